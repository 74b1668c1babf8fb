"""Linear systems as loops of Gaussian elimination, since ONNX has no operator that solves one.

    x = solve(a, b)    =>    m = [a b] in f64; for each column: the row with the largest entry is
                             swapped up and scaled, and taken from all others (Gauss and Jordan with
                             partial pivots; Golub and Van Loan 2013, section 3.4); x = m[:, n:]

Cholesky's factor is made a column at a time (section 4.2.5). As in the IR a matrix that has no
solution gives NaN, and its determinant is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np

from ....compiler.ir import Builder, DType, Function, Op, TensorType, Value, Values, replaced_in

_F64, _I64 = DType.F64, DType.I64


def _flat(b: Builder, x: Value) -> Value:
    """[..., n, k] as f64[B, n, k]."""
    *batch, n, k = x.shape
    return b("reshape", b("convert", x, dtype=_F64), shape=(int(np.prod(batch, dtype=int)), n, k))


def _back(b: Builder, x: Value, like: Value) -> Value:
    return b("reshape", b("convert", x, dtype=like.dtype), shape=like.shape)


def _number(b: Builder, like: Value, value: float) -> Value:
    return b.full(like.tensor, value)


def _spread(b: Builder, x: Value, shape: tuple[int, ...], dims: tuple[int, ...]) -> Value:
    return b("broadcast", x, shape=shape, dims=dims)


def _column(b: Builder, m: Value, j: Value) -> Value:
    """m[:, :, j]: [B, n]."""
    zero = b.constant(0, _I64)
    count, rows, _ = m.shape
    cut = b("dynamic_slice", m, zero, zero, j, sizes=(count, rows, 1))
    return b("reshape", cut, shape=(count, rows))


def _row(b: Builder, m: Value, j: Value) -> Value:
    """m[:, j, :]: [B, k]."""
    zero = b.constant(0, _I64)
    count, _, columns = m.shape
    cut = b("dynamic_slice", m, zero, j, zero, sizes=(count, 1, columns))
    return b("reshape", cut, shape=(count, columns))


def _places(b: Builder, count: int, n: int) -> Value:
    """The number of each row: i64[B, n]."""
    return b("iota", dtype=_I64, shape=(count, n), axis=1)


def _pivot_trip(b: Builder, j: Value, m: Value, bad: Value, sign: Value, log: Value) -> Values:
    """One column of the elimination.

    m f64[B, n, n + k]; bad bool[B]: a pivot was 0; sign, log f64[B]: of the product of pivots.
    """
    count, n, _ = m.shape
    here = _spread(b, j, (count, n), ())
    places = _places(b, count, n)
    sizes = b("abs", _column(b, m, j))
    below = b("le", here, places)
    sizes = b("select", below, sizes, _number(b, sizes, -1))
    best = b("argmax", sizes, axis=1)
    wide_best = _spread(b, best, (count, n), (0,))
    is_here, is_best = b("eq", places, here), b("eq", places, wide_best)
    order = b("select", is_here, wide_best, b("select", is_best, here, places))
    m = b("take_along", m, _spread(b, order, m.shape, (0, 1)), axis=1)
    row, factors = _row(b, m, j), _column(b, m, j)
    zero = b.constant(0, _I64)
    pivot = b("dynamic_slice", factors, zero, j, sizes=(count, 1))
    pivot = b("reshape", pivot, shape=(count,))
    none = b("eq", pivot, _number(b, pivot, 0))
    divisor = b("select", none, _number(b, pivot, 1), pivot)
    row = b("div", row, _spread(b, divisor, row.shape, (0,)))
    others = b("select", is_here, _number(b, factors, 0), factors)
    wide_row = _spread(b, row, m.shape, (0, 2))
    less = b("sub", m, b("mul", _spread(b, others, m.shape, (0, 1)), wide_row))
    m = b("select", _spread(b, is_here, m.shape, (0, 1)), wide_row, less)
    swapped = b("ne", best, _spread(b, j, (count,), ()))
    negative = b("lt", pivot, _number(b, pivot, 0))
    turned = b("select", b("xor", swapped, negative), b("neg", sign), sign)
    return m, b("or", bad, none), turned, b("add", log, b("log", b("abs", divisor)))


def _eliminated(b: Builder, m: Value) -> Values:
    """(m, bad, sign, log) after all columns of the square part."""
    count, n, _ = m.shape
    bad = b.full(TensorType(DType.BOOL, (count,)), False)
    ones = b.full(TensorType(_F64, (count,)), 1)
    carries = (m, bad, ones, _number(b, ones, 0))
    inner = Builder([TensorType(_I64), *[v.type for v in carries]])
    region = inner.finish(_pivot_trip(inner, *inner.params))
    bounds = b.constant(0, _I64), b.constant(n, _I64)
    return b.emit("for", (*bounds, *carries), {"consts": 0}, (region,))


def _solved(b: Builder, a: Value, right: Value) -> Value:
    n, k = right.shape[1:]
    m, bad, _, _ = _eliminated(b, b("concat", a, right, axis=2))
    count = m.shape[0]
    x = b("slice", m, start=(0, 0, n), stop=(count, n, n + k), step=(1, 1, 1))
    return b("select", _spread(b, bad, x.shape, (0,)), _number(b, x, np.nan), x)


def _solve(b: Builder, op: Op, operands: list[Value]) -> Values:
    a, right = operands
    return (_back(b, _solved(b, _flat(b, a), _flat(b, right)), op.result),)


def _triangle(b: Builder, a: Value, lower: bool) -> Value:
    rows, columns = (b("iota", dtype=_I64, shape=a.shape, axis=axis) for axis in (1, 2))
    kept = b("le", columns, rows) if lower else b("le", rows, columns)
    return b("select", kept, a, _number(b, a, 0))


def _triangular_solve(b: Builder, op: Op, operands: list[Value]) -> Values:
    a, right = operands
    triangle = _triangle(b, _flat(b, a), op.attrs["lower"])
    return (_back(b, _solved(b, triangle, _flat(b, right)), op.result),)


def _slogdet(b: Builder, op: Op, operands: list[Value]) -> Values:
    _, bad, sign, log = _eliminated(b, _flat(b, operands[0]))
    sign = b("select", bad, _number(b, sign, 0), sign)
    log = b("select", bad, _number(b, log, -np.inf), log)
    return _back(b, sign, op.results[0]), _back(b, log, op.results[1])


def _factor_trip(b: Builder, j: Value, a: Value, factor: Value, bad: Value) -> Values:
    """One column of Cholesky's factor f64[B, n, n]."""
    count, n, _ = a.shape
    product = {"contract_a": (2,), "contract_b": (1,), "batch_a": (0,), "batch_b": (0,)}
    column = b("sub", _column(b, a, j), b("dot", factor, _row(b, factor, j), **product))
    zero = b.constant(0, _I64)
    square = b("dynamic_slice", column, zero, j, sizes=(count, 1))
    square = b("reshape", square, shape=(count,))
    positive = b("lt", _number(b, square, 0), square)
    column = b("div", column, _spread(b, b("sqrt", square), column.shape, (0,)))
    below = b("le", _spread(b, j, (count, n), ()), _places(b, count, n))
    column = b("select", below, column, _number(b, column, 0))
    update = b("reshape", column, shape=(count, n, 1))
    factor = b("dynamic_update", factor, update, zero, zero, j)
    return factor, b("or", bad, b("not", positive))


def _cholesky(b: Builder, op: Op, operands: list[Value]) -> Values:
    a = _flat(b, operands[0])
    count, n, _ = a.shape
    carries = _number(b, a, 0), b.full(TensorType(DType.BOOL, (count,)), False)
    inner = Builder([TensorType(_I64), a.type, *[v.type for v in carries]])
    region = inner.finish(_factor_trip(inner, *inner.params))
    bounds = b.constant(0, _I64), b.constant(n, _I64)
    factor, bad = b.emit("for", (*bounds, a, *carries), {"consts": 1}, (region,))
    factor = b("select", _spread(b, bad, a.shape, (0,)), _number(b, a, np.nan), factor)
    return (_back(b, _triangle(b, factor, True), op.result),)


_LOOPS: Mapping[str, Callable[[Builder, Op, list[Value]], Values]] = MappingProxyType(
    {
        "cholesky": _cholesky,
        "solve": _solve,
        "triangular_solve": _triangular_solve,
        "slogdet": _slogdet,
    }
)
#: The primitives that become loops.
NAMES = frozenset(_LOOPS)


def eliminate(function: Function) -> Function:
    """The function with linear systems as loops; the same one where there is none."""
    return replaced_in(
        function, lambda op: op.name in NAMES, lambda b, op, vs: _LOOPS[op.name](b, op, vs)
    )
