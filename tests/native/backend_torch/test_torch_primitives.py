"""Every primitive by torch, against what its oracle gives in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler.backends import compile_function
from delian.core.compiler.ir import Builder, DType, Function, TensorType
from delian.core.compiler.primitives import PRIMITIVES
from support import primitive_cases
from support.tolerance import ACCUMULATED, ULPS

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from delian.core.compiler.backends.torch.torch_lowering import primitives  # noqa: E402 - needs torch

CUDA = pytest.param(
    "torch:cuda",
    marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA GPU here"),
)
DEVICES = pytest.mark.parametrize("backend", ["torch:cpu", CUDA])
UNIT = {np.dtype(np.float32): 2.0**-23, np.dtype(np.float64): 2.0**-52}
#: torch's functions of f32 may be as far off as this, in units in the last place.
ULPS_TORCH = 4


def as_function(case: Any) -> Function:
    block = case.block()
    names = tuple(f"a{i}" for i in range(len(block.params)))
    return Function(case.name, block, names, tuple(f"r{i}" for i in range(len(block.results))))


def tolerances(name: str, dtype: np.dtype[Any], expected: Any) -> tuple[float, float]:
    if dtype not in UNIT:
        return 0, 0
    unit = UNIT[dtype]
    finite = float(np.max(np.abs(expected[np.isfinite(expected)]), initial=1e-30))
    if dtype == np.float64:
        return 64 * unit, 64 * unit * finite
    if name in ACCUMULATED:
        return unit, ACCUMULATED[name] * unit * finite
    return max(ULPS_TORCH, ULPS.get(name, 1)) * unit, 1e-29


def check(case: Any, backend: str) -> None:
    before = [a.copy() for a in case.args]
    results = compile_function(as_function(case), backend)(*case.args)
    types = [r.tensor for r in case.block().results]
    for result, expected, type_ in zip(results, case.expected(), types, strict=True):
        assert result.dtype == type_.dtype.numpy and result.shape == type_.shape
        relative, absolute = tolerances(case.name, result.dtype, expected)
        np.testing.assert_allclose(result, expected, rtol=relative, atol=absolute)
    for after, given in zip(before, case.args, strict=True):
        assert after.tobytes() == given.tobytes()


@DEVICES
def test_torch_gives_what_the_oracle_gives(backend: str, primitive_names: set[str]) -> None:
    wrong = []
    for case in primitive_cases.TABLE:
        if any(a.dtype == np.uint64 for a in (*case.args, *case.expected())):
            with pytest.raises(DelianError, match="u64, for which torch has no operations"):
                check(case, backend)
            continue
        try:
            check(case, backend)
        except AssertionError as error:
            wrong.append(f"{case}: {error}")
    assert not wrong, "\n".join(wrong)
    assert primitive_names <= set(PRIMITIVES)


def test_every_primitive_has_a_lowering() -> None:
    assert set(PRIMITIVES) <= primitives()


@DEVICES
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16], ids=["bf16", "f16"])
def test_halves_are_computed_in_f32_and_rounded_once(backend: str, dtype: DType) -> None:
    pytest.importorskip("ml_dtypes")
    rng = np.random.default_rng(3)
    x, y = (rng.uniform(-2, 2, (40, 30)).astype(dtype.numpy) for _ in "xy")
    b = Builder([TensorType.of(x), TensorType.of(y)])
    made = [b(name, *b.params) for name in ("add", "mul", "div", "max")]
    made.append(b("convert", b("tanh", b.params[0]), dtype=DType.F32))
    made.append(b("concat", b.params[0], b("reverse", b.params[1], axes=(0,)), axis=1))
    function = Function("f", b.finish(made), ("x", "y"), tuple("abcdef"))
    expected = compile_function(function, "reference")(x, y)
    for found, wanted in zip(compile_function(function, backend)(x, y), expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(
            found.astype(np.float32), wanted.astype(np.float32), rtol=2.0**-7, atol=0
        )


@DEVICES
def test_the_negative_of_zero_is_minus_zero(backend: str) -> None:
    x = np.array([0.0, -0.0, 2.0])
    b = Builder([TensorType.of(x)])
    function = Function("f", b.finish([b("neg", b.params[0])]), ("x",), ("y",))
    (found,) = compile_function(function, backend)(x)
    assert np.signbit(found).tolist() == [True, False, True]
