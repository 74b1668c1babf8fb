"""The functions of f32: accuracy over their domains, and what they give at the edges."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from delian.core.compiler.backends.native.program import NativeProgram, compile_native
from delian.core.compiler.backends.native.toolchain.toolchain import Toolchain
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.ir import Block, Builder, DType, Function, TensorType
from support.tolerance import ULPS

COUNT = 50_000
DOMAINS: dict[str, list[tuple[float, float]]] = {
    "exp": [(-110, 95), (-1e-3, 1e-3)],
    "expm1": [(-110, 95), (-1, 1), (-1e-6, 1e-6)],
    "log": [(0, 1e-38), (0, 3), (0, 3e38)],
    "log1p": [(-1, 3), (-1e-5, 1e-5), (0, 1e30)],
    "tanh": [(-12, 12), (-1e-3, 1e-3)],
    "sigmoid": [(-110, 110)],
    "erf": [(-5, 5), (-1e-3, 1e-3)],
    "sin": [(-10, 10), (-1e6, 1e6), (-1e-3, 1e-3), (-3e38, 3e38)],
    "cos": [(-10, 10), (-1e6, 1e6), (-3e38, 3e38)],
    "rsqrt": [(0, 10), (0, 1e-38)],
    "sqrt": [(0, 10)],
    "floor": [(-10, 10)],
    "ceil": [(-10, 10)],
}
#: Zeros, infinities, NaN, subnormals, the largest numbers.
EDGES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1e-39, 3e38, -3e38]


def unary(name: str, size: int) -> Block:
    b = Builder([TensorType(DType.F32, (size,))])
    return b.finish([b(name, b.params[0])])


@pytest.fixture(scope="module")
def functions(toolchain: Toolchain) -> Mapping[str, NativeProgram]:
    programs = {}
    for name in DOMAINS:
        for size in (COUNT, len(EDGES)):
            key = f"{name}_{size}"
            programs[key] = Function(key, unary(name, size), ("x",), ("y",))
    return compile_native(programs, toolchain)


@pytest.mark.parametrize("name", DOMAINS)
def test_a_function_stays_within_its_ulps(
    name: str, functions: Mapping[str, NativeProgram]
) -> None:
    rng = np.random.default_rng(5)
    for low, high in DOMAINS[name]:
        x = rng.uniform(low, high, COUNT).astype(np.float32)
        (result,) = functions[f"{name}_{COUNT}"](x)
        (exact,) = run_block(_wide(name), [x.astype(np.float64)])
        with np.errstate(over="ignore"):
            rounded = exact.astype(np.float32)
        finite = np.isfinite(rounded)
        assert np.array_equal(result[~finite], rounded[~finite], equal_nan=True)
        error = np.abs(result[finite].astype(np.float64) - exact[finite])
        ulps = error / np.spacing(np.abs(rounded[finite])).astype(np.float64)
        assert ulps.max() <= ULPS.get(name, 0.5), f"{name} on {(low, high)}"


@pytest.mark.parametrize("name", DOMAINS)
def test_a_function_is_right_at_the_edges(
    name: str, functions: Mapping[str, NativeProgram]
) -> None:
    x = np.array(EDGES, np.float32)
    (result,) = functions[f"{name}_{len(EDGES)}"](x)
    (exact,) = run_block(unary(name, len(EDGES)), [x])
    same_class = (np.isnan(result) == np.isnan(exact)) & (np.isinf(result) == np.isinf(exact))
    assert same_class.all(), (name, x[~same_class], result[~same_class], exact[~same_class])
    zero = exact == 0
    assert (result[zero] == 0).all()
    if name != "log1p":
        assert np.array_equal(np.signbit(result[zero]), np.signbit(exact[zero]))
    np.testing.assert_allclose(result, exact, rtol=1e-6, atol=1e-44)


def _wide(name: str) -> Block:
    b = Builder([TensorType(DType.F64, (COUNT,))])
    return b.finish([b(name, b.params[0])])
