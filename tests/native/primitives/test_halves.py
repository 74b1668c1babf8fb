"""bf16 and f16: stored in 16 bits, computed in f32, rounded once an operation, everywhere."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError, ProgramError
from delian.core.compiler import api, ir
from delian.core.compiler.backends import compile_function
from delian.core.compiler.backends.reference import run_block
from delian.core.compiler.bfloat16 import bfloat16
from delian.core.compiler.ir import Builder, DType, Function, TensorType
from delian.core.compiler.ir_codec import decode_function, encode_function
from delian.core.compiler.parse import parse_function
from delian.core.compiler.primitives.halves import MOVES
from delian.core.compiler.text import print_function
from support import primitive_cases

HALVES = pytest.mark.parametrize("dtype", [DType.BF16, DType.F16], ids=["bf16", "f16"])


def same(a: Any, b: Any) -> None:
    """Equal to the bit, but for which NaN it is."""
    assert a.dtype == b.dtype and a.shape == b.shape
    x, y = a.astype(np.float32), b.astype(np.float32)
    np.testing.assert_array_equal(x, y)


def in_half(case: Any, dtype: DType) -> list[Any]:
    halved = (np.float64, np.float32)
    return [a.astype(dtype.numpy) if a.dtype in halved else a for a in case.args]


def cases() -> list[Any]:
    """Those that are one operation on f64 alone, which says no element type itself."""
    return [
        case
        for case in primitive_cases.TABLE
        if case.build is None
        and any(a.dtype == np.float64 for a in case.args)
        and "dtype" not in case.attrs
    ]


@HALVES
def test_every_primitive_is_its_f32_one_rounded(dtype: DType, primitive_names: set[str]) -> None:
    tried = set()
    for case in cases():
        args = in_half(case, dtype)
        b = Builder([TensorType.of(a) for a in args])
        results = run_block(b.finish(b.emit(case.name, b.params, case.attrs)), args)
        wide = [a.astype(np.float32) if a.dtype == dtype.numpy else a for a in args]
        f = Builder([TensorType.of(a) for a in wide])
        expected = run_block(f.finish(f.emit(case.name, f.params, case.attrs)), wide)
        with np.errstate(all="ignore"):
            for half, full in zip(results, expected, strict=True):
                same(half, np.asarray(full).astype(half.dtype))
        tried.add(case.name)
    assert len(tried) > 50 and tried <= primitive_names


@HALVES
def test_native_is_bit_equal_to_the_reference(dtype: DType) -> None:
    """What rounds alike in f32: arithmetic, choices, moves, order, conversions."""
    rng = np.random.default_rng(3)
    kind = TensorType(dtype, (4, 5))
    b = Builder([kind, kind, TensorType(DType.F32, (4, 5))])
    x, y, wide = b.params
    narrow = b("convert", wide, dtype=dtype)
    product = b("mul", b("add", x, y), b("div", x, b.full(kind, 3.0)))
    both = b("transpose", b("concat", product, narrow, axis=0), perm=(1, 0))
    larger = b("select", b("lt", x, narrow), narrow, x)
    order = b("take_along", x, b("argsort", x, axis=1), axis=1)
    whole = b("convert", b("mul", x, b.full(kind, 100.0)), dtype=DType.I32)
    back = b("convert", whole, dtype=dtype)
    top = b("reduce_max", x, axes=(0, 1))
    odd = b.constant(np.array([0.1, 1e-7, np.inf, np.nan, -3e-8], dtype.numpy))
    results = [product, both, larger, order, whole, back, top, b("neg", odd)]
    outs = tuple(f"r{i}" for i in range(len(results)))
    function = Function("halves", b.finish(results), ("x", "y", "wide"), outs)
    args = [rng.normal(size=(4, 5)).astype(dtype.numpy) for _ in range(2)]
    args.append((rng.normal(size=(4, 5)) * 10.0 ** rng.integers(-9, 6, (4, 5))).astype(np.float32))
    native = compile_function(function, "native")(*args)
    for n, r in zip(native, compile_function(function, "reference")(*args), strict=True):
        same(n, r)
    text = print_function(function)
    assert print_function(parse_function(text)) == text
    assert print_function(decode_function(encode_function(function))) == text


@HALVES
def test_conversions_round_to_nearest_even_everywhere(dtype: DType) -> None:
    every = np.arange(65536, dtype=np.uint16).view(dtype.numpy)
    edges = [0x387FFFFF, 0x38800000, 0x477FEFFF, 0x477FF000, 0x47800000, 0x33000000, 0x33000001]
    bits = [*range(0, 2**32, 99991), *edges, 0x7F7FFFFF, 0x7F7F8000, 1]
    floats = np.array(bits, np.uint32).view(np.float32)
    b = Builder([TensorType.of(every), TensorType.of(floats)])
    results = [
        b("convert", b.params[0], dtype=DType.F32),
        b("convert", b.params[1], dtype=dtype),
    ]
    function = Function("convert", b.finish(results), ("half", "full"), ("up", "down"))
    with np.errstate(all="ignore"):
        up, down = compile_function(function, "native")(every, floats)
        same(up, every.astype(np.float32))
        same(down, floats.astype(dtype.numpy))


@HALVES
@pytest.mark.parametrize("backend", ["reference", "native"])
def test_gradients_flow_through_halves_and_loops(dtype: DType, backend: Any) -> None:
    numpy_type = dtype.numpy.type

    def f(x):
        y = x.astype(numpy_type)
        for _ in range(3):
            y = y * y + numpy_type(0.5) * y
        return np.sum(y.astype(np.float32))

    x = np.array([0.25, -0.5], np.float32)
    got = api.compile(api.grad(f), backend=backend)(x)
    y, slope = x.astype(np.float64), np.ones(2)
    for _ in range(3):
        slope, y = slope * (2 * y + 0.5), y * y + 0.5 * y
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, slope, rtol=0.05)


def test_promotion_is_numpys_and_ml_dtypes() -> None:
    half, brain = np.ones(2, np.float16), np.ones(2, bfloat16)

    def kinds(x, y):
        return x + 1.5, x + np.float32(1), y * 2, y + np.float32(1), x + np.uint8(1), y > 0.5

    got = [r.dtype for r in api.compile(kinds, backend="reference")(half, brain)]
    assert got == [np.float16, np.float32, np.dtype(bfloat16), np.float32, np.float16, np.bool_]
    with pytest.raises(ProgramError, match="f16 and bf16 have no common type"):
        api.compile(lambda x, y: x + y, backend="reference")(half, brain)


@HALVES
def test_infinities_become_the_largest_numbers(dtype: DType) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1.5], np.float32).astype(dtype.numpy)
    got = api.compile(np.nan_to_num, backend="reference")(x)
    assert got.dtype == dtype.numpy
    assert got.astype(np.float64).tolist() == [dtype.largest, -dtype.largest, 0, 1.5]


def test_a_primitive_that_moves_is_one_without_arithmetic() -> None:
    assert not {"add", "dot", "convert", "reduce_max", "put_add", "iota"} & MOVES


def test_without_ml_dtypes_bf16_is_refused_by_name_and_the_rest_works(monkeypatch) -> None:
    ir._bfloat16.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    try:
        assert DType.BF16 not in DType.here() and DType.F16 in DType.here()
        assert "bfloat16" in DType.names() and DType.BF16.itemsize == 2
        with pytest.raises(DelianError, match="need the package ml_dtypes"):
            _ = DType.BF16.numpy
        doubled = api.compile(lambda x: x * 2, backend="reference")(np.ones(2, np.float16))
        assert doubled.dtype == np.float16
    finally:
        ir._bfloat16.cache_clear()
