"""Primitives that solve linear systems.

Cholesky's factor, triangular and general solves, and the logarithm of a determinant.

Each works on the last two axes; those before are a batch. A matrix that has no solution gives NaN,
never an error. The derivatives are closed under differentiation, since a solve's are solves again
(Giles 2008, "An extended collection of matrix derivative results", sections 2.2 and 2.3; Murray
2016, "Differentiation of the Cholesky decomposition", section 3.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir import Array, Blocks, Builder, DType, Op, TensorType, Type, Types, Value
from .batching import same_attrs
from .rules import number, one_result, zeros_like
from .table import Attrs, CostRule, InferRule, JvpRule, Maybe, Primitive, ReferenceRule, VjpRule
from .type_checks import FLOATS, differ, fail, tensor


def _square(name: str, type_: Type) -> TensorType:
    a = tensor(name, type_, FLOATS)
    if len(a.shape) < 2 or a.shape[-1] != a.shape[-2]:
        fail(name, f"takes square matrices, not {a}")
    if a.shape[-1] == 0:
        fail(name, f"{a} has no elements")
    return a


def _cholesky_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    return (_square("cholesky", types[0]),)


def _slogdet_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    a = _square("slogdet", types[0])
    one = TensorType(a.dtype, a.shape[:-2])
    return (one, one)


def _solved(name: str, types: Types) -> TensorType:
    a, b = _square(name, types[0]), tensor(name, types[1], FLOATS)
    if b.dtype is not a.dtype or b.shape[:-1] != a.shape[:-1]:
        differ(name, a, b)
    return b


def _solve_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    return (_solved("solve", types),)


def _triangular_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    return (_solved("triangular_solve", types),)


# Meaning


def _each(f: Callable[..., Any], *batches: Array) -> Array:
    """f of each matrix in f64; NaN where it has no result."""
    last = batches[-1]
    out = np.empty(last.shape, np.float64)
    for at in np.ndindex(last.shape[:-2]):
        try:
            out[at] = f(*(x[at].astype(np.float64) for x in batches))
        except np.linalg.LinAlgError:
            out[at] = np.nan
    return out.astype(last.dtype)


def _cholesky(a: Array, attrs: Attrs) -> Array:
    return np.tril(_each(np.linalg.cholesky, a))


def _solve(a: Array, b: Array, attrs: Attrs) -> Array:
    return _each(np.linalg.solve, a, b)


def _triangular_solve(a: Array, b: Array, attrs: Attrs) -> Array:
    triangle = np.tril if attrs["lower"] else np.triu
    return _each(lambda a, b: np.linalg.solve(triangle(a), b), a, b)


def _slogdet(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    (a,) = args
    with np.errstate(all="ignore"):
        sign, log = np.linalg.slogdet(a.astype(np.float64))
    return np.asarray(sign).astype(a.dtype), np.asarray(log).astype(a.dtype)


# Derivatives


def _turned(b: Builder, x: Value) -> Value:
    """The transpose of each matrix."""
    rank = len(x.shape)
    return b("transpose", x, perm=(*range(rank - 2), rank - 1, rank - 2))


def _matmul(b: Builder, x: Value, y: Value) -> Value:
    n = len(x.shape) - 2
    batch = tuple(range(n))
    return b("dot", x, y, contract_a=(n + 1,), contract_b=(n,), batch_a=batch, batch_b=batch)


def _positions(b: Builder, x: Value) -> tuple[Value, Value]:
    """The row and the column of each element."""
    rank = len(x.shape)
    row, column = (b("iota", dtype=DType.I64, shape=x.shape, axis=k) for k in (rank - 2, rank - 1))
    return row, column


def _triangle(b: Builder, x: Value, lower: bool) -> Value:
    row, column = _positions(b, x)
    keep = b("le", column, row) if lower else b("le", row, column)
    return b("select", keep, x, zeros_like(b, x))


def _halved(b: Builder, x: Value) -> Value:
    """The lower triangle with half of the diagonal: Giles's and Murray's Phi."""
    row, column = _positions(b, x)
    half = b("select", b("eq", row, column), b("mul", x, number(b, x, 0.5)), x)
    return b("select", b("le", column, row), half, zeros_like(b, x))


def _between(b: Builder, l: Value, x: Value, lower: bool) -> Value:  # noqa: E741 - the factor's name
    """l^-1 x l^-T for a triangular l."""
    left = b("triangular_solve", l, x, lower=lower)
    return _turned(b, b("triangular_solve", l, _turned(b, left), lower=lower))


def _cholesky_back(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
    """Phi(S + S') with S = L^-T Phi(L' g) L^-1: only the lower triangle was read."""
    (g,), factor = cotangents, op.result
    if g is None:
        return (None,)
    inner = _halved(b, _matmul(b, _turned(b, factor), g))
    s = _between(b, _turned(b, factor), inner, False)
    return (_halved(b, b("add", s, _turned(b, s))),)


def _cholesky_forward(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
    """L Phi(L^-1 dA L^-T)."""
    (t,), factor = tangents, op.result
    if t is None:
        return (None,)
    half = _halved(b, t)
    whole = b("add", half, _turned(b, half))
    return (_matmul(b, factor, _halved(b, _between(b, factor, whole, True))),)


def _solve_again(b: Builder, op: Op, right: Value, turned: bool) -> Value:
    """The operation's system, or its transpose, with another right side."""
    a = op.operands[0]
    attrs = dict(op.attrs)
    if turned:
        a = _turned(b, a)
        if "lower" in attrs:
            attrs["lower"] = not attrs["lower"]
    return b.emit(op.name, (a, right), attrs)[0]


def _only_read(b: Builder, op: Op, x: Value) -> Value:
    return _triangle(b, x, op.attrs["lower"]) if "lower" in op.attrs else x


def _solve_back(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
    """The right side gets A^-T g, the matrix -(A^-T g) X'."""
    (g,) = cotangents
    if g is None:
        return (None, None)
    back = _solve_again(b, op, g, True)
    matrix = b("neg", _matmul(b, back, _turned(b, op.result)))
    return (_only_read(b, op, matrix), back)


def _solve_forward(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
    """A^-1 (dB - dA X)."""
    da, right = tangents
    if da is not None:
        product = _matmul(b, _only_read(b, op, da), op.result)
        right = b("neg", product) if right is None else b("sub", right, product)
    return (None if right is None else _solve_again(b, op, right, False),)


def _inverse_turned(b: Builder, a: Value) -> Value:
    row, column = _positions(b, a)
    one = b("convert", b("eq", row, column), dtype=a.dtype)
    return b("solve", _turned(b, a), one)


def _spread(b: Builder, x: Value, like: Value) -> Value:
    return b("broadcast", x, shape=like.shape, dims=tuple(range(len(x.shape))))


def _slogdet_back(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
    """g A^-T; the sign is flat."""
    _, g = cotangents
    (a,) = op.operands
    return (None if g is None else b("mul", _spread(b, g, a), _inverse_turned(b, a)),)


def _slogdet_forward(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
    (t,), (a,) = tangents, op.operands
    if t is None:
        return (None, None)
    rank = len(a.shape)
    product = b("mul", _inverse_turned(b, a), t)
    return (None, b("reduce_sum", product, axes=(rank - 2, rank - 1)))


# Costs


def _factor_cost(op: Op) -> int:
    """n^3 / 3 multiplications and as many additions, half of that for a symmetric matrix."""
    *batch, n, _ = op.operands[0].shape
    return math.prod(batch) * 2 * n**3 // (6 if op.name == "cholesky" else 3)


def _solve_cost(op: Op) -> int:
    *batch, n, k = op.operands[1].shape
    if op.name == "triangular_solve":
        return math.prod(batch) * n * n * k
    return math.prod(batch) * 2 * n * n * k + _factor_cost(op)


def _workspace(op: Op) -> int:
    """A matrix and its right side, in f64."""
    *_, n, k = op.operands[-1].shape
    return 8 * (n * n + n * k)


def _row(
    name: str,
    rule: InferRule,
    reference: ReferenceRule,
    vjp: VjpRule,
    jvp: JvpRule,
    cost: CostRule,
    operands: int,
    attrs: tuple[str, ...] = (),
) -> Primitive:
    options: dict[str, Any] = {"batch": same_attrs(), "workspace": _workspace}
    return Primitive(name, rule, reference, vjp, jvp, cost, None, attrs, operands, **options)


_SOLVE = (_solve_back, _solve_forward, _solve_cost, 2)
_CHOLESKY = (_cholesky_back, _cholesky_forward, _factor_cost, 1)
_SLOGDET = (_slogdet_back, _slogdet_forward, _factor_cost, 1)

ROWS = (
    # The lower factor of a symmetric positive definite matrix, of which the lower triangle is read.
    _row("cholesky", _cholesky_type, one_result(_cholesky), *_CHOLESKY),
    _row("solve", _solve_type, one_result(_solve), *_SOLVE),
    # Of the matrix one triangle is read.
    _row("triangular_solve", _triangular_type, one_result(_triangular_solve), *_SOLVE, ("lower",)),
    # The determinant's sign, and the logarithm of its magnitude.
    _row("slogdet", _slogdet_type, _slogdet, *_SLOGDET),
)
