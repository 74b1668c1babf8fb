"""The profiles: both back ends give the same bits on the whole table, or a refusal says where."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import api, ops, random
from delian.core.compiler.backends.native.program import compile_native
from delian.core.compiler.backends.reference import ReferenceProgram
from delian.core.compiler.ir import DType, Function, TensorType
from delian.core.compiler.passes.number_profiles import in_profile
from delian.core.compiler.passes.simplify import simplify
from delian.core.compiler.verify import verify
from support import primitive_cases


@pytest.fixture(scope="module")
def programs(toolchain: Any) -> dict[str, Any]:
    """All cases without f64, those on f32 among them, compiled as one file, strictly."""
    functions = {}
    for case in primitive_cases.TABLE:
        if _holds_f64(case):
            continue
        block = case.block()
        params = tuple(f"a{i}" for i in range(len(block.params)))
        results = tuple(f"r{i}" for i in range(len(block.results)))
        made = in_profile(Function(case.name, block, params, results), "reproducible")
        verify(made)
        functions[str(case)] = made
    return {
        name: (program, ReferenceProgram(functions[name]))
        for name, program in compile_native(functions, toolchain, strict=True).items()
    }


def _holds_f64(case: Any) -> bool:
    types = (v.type for op in case.block().ops for v in (*op.operands, *op.results))
    return any(isinstance(t, TensorType) and t.dtype is DType.F64 for t in types)


def test_both_back_ends_give_the_same_bits_on_the_table(
    primitive_case: Any, programs: dict[str, Any]
) -> None:
    if str(primitive_case) not in programs:
        assert _holds_f64(primitive_case)  # which the profile refuses, or which is as in "fast"
        return
    native, reference = programs[str(primitive_case)]
    args = [np.asarray(a) for a in primitive_case.args]
    for n, r in zip(native(*args), reference(*args), strict=True):
        assert n.dtype == r.dtype
        if n.dtype.kind == "f":  # any NaN is as good as another, and so is the zero's sign of a sum
            np.testing.assert_array_equal(n, r)
        else:
            assert n.tobytes() == r.tobytes()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 7, 15])
def test_what_is_rounded_between_two_sums_is_rounded(size: int) -> None:
    """GCC 12 leaves it out in vectors of two."""
    rng = np.random.default_rng(size)
    x = rng.normal(size=(5, 2, size)).astype(np.float32)

    def sums(x):
        rows = np.sum(x, axis=0)
        return np.sum(rows, axis=0), np.cumsum(rows, axis=0) - rows

    native, reference = (
        api.compile(sums, profile="reproducible", backend=b)(x) for b in ("native", "reference")
    )
    for a, b in zip(native, reference, strict=True):
        assert a.tobytes() == b.tobytes()


def test_a_training_step_gives_the_same_bits_everywhere() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 30)).astype(np.float32)
    y = rng.normal(size=(64, 10)).astype(np.float32)
    w = [rng.normal(size=s).astype(np.float32) * 0.3 for s in ((30, 50), (50, 10))]

    def loss(w):
        hidden = np.tanh(x @ w[0])
        z = hidden @ w[1]
        logs = z - np.log(np.sum(np.exp(z), axis=1, keepdims=True))
        return -np.mean(logs * y) + np.float32(0.01) * np.sum(w[1] * w[1])

    def step(w):
        for _ in range(5):
            g = api.grad(loss)(w)
            w = [a - np.float32(0.1) * b for a, b in zip(w, g, strict=True)]
        return w

    runs = [
        api.compile(step, backend=backend, profile="reproducible")(w)
        for backend in ("native", "reference")
    ]
    for a, b in zip(*runs, strict=True):
        assert a.tobytes() == b.tobytes()


def test_reproducible_refuses_what_it_cannot_widen() -> None:
    with pytest.raises(DelianError, match=r"reduce_sum at .*on f64"):
        api.compile(lambda x: np.sum(x), profile="reproducible", backend="reference")(np.ones(3))
    plain = api.compile(lambda x: x + x * 2, profile="reproducible")(np.ones(3))
    assert plain.tolist() == [3, 3, 3]


def test_a_refusal_names_the_user_s_line_and_owns_up_where_there_is_none() -> None:
    line = sys._getframe().f_lineno + 2
    with pytest.raises(DelianError, match=rf"{Path(__file__).name}:{line}:.*on f64") as caught:
        api.compile(lambda x: ops.softmax(x), profile="reproducible")(np.ones(3))
    assert caught.value.hint.startswith("use f32")
    with pytest.raises(DelianError, match=r"compiler/ops/.*\.py:.*on f64") as caught:
        api.compile(ops.softmax, profile="reproducible")(np.ones(3))
    assert "no line of yours" in caught.value.hint


def test_a_table_in_f64_that_is_rounded_before_use_is_the_same_everywhere() -> None:
    def shifted(x, rounded_first):
        angles = np.arange(100)[:, None] * 10_000.0 ** (-np.arange(8) / 8)
        table = np.sin(angles)
        return x + table.astype(np.float32) if rounded_first else (x + table).astype(np.float32)

    x = np.full((100, 8), 0.5, np.float32)
    native, reference = (
        api.compile(shifted, profile="reproducible", backend=backend)(x, api.Static(True))
        for backend in ("native", "reference")
    )
    assert native.tobytes() == reference.tobytes()
    np.testing.assert_array_equal(native, shifted(x, True))
    with pytest.raises(DelianError, match="on f64"):
        api.compile(shifted, profile="reproducible", backend="reference")(x, api.Static(False))


def test_exact_takes_integers_and_random_bits_and_refuses_float_arithmetic() -> None:
    def draw(key):
        bits = random.bits(key, 4)
        return bits % 7, np.sort(bits), bits.astype(np.float64) > 1e9

    key = random.key(3)
    runs = [api.compile(draw, profile="exact", backend=b)(key) for b in ("native", "reference")]
    for a, b in zip(*runs, strict=True):
        assert a.tobytes() == b.tobytes()
    for f in (lambda x: x * 2, np.exp, lambda x: x.astype(np.float32), lambda x: x.astype(int)):
        with pytest.raises(DelianError, match="floating-point arithmetic"):
            api.compile(f, profile="exact", backend="reference")(np.ones(3))


def test_an_unknown_profile_is_refused_by_name() -> None:
    with pytest.raises(DelianError, match="no profile 'quick'"):
        api.compile(np.sum, profile="quick", backend="reference")(np.ones(3, np.float32))


def test_fast_is_the_function_as_it_is() -> None:
    f = api.compile(lambda x: np.sum(np.exp(x))).trace(np.ones(3, np.float32)).function
    assert in_profile(f, "fast") is f
    assert simplify(f.body) is f.body
