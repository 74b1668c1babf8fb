"""What the rows share: references that give arrays, derivatives of whole classes of primitives.

Two classes cover most rows. An elementwise primitive's Jacobian is diagonal, hence its own
transpose: one function, "partial derivative by operand i, times g", is its forward and its reverse
rule. A primitive that is linear in its tensors is its own forward rule; only its transpose has to
be said.

None is a symbolic zero throughout, so that nothing is built for what nothing flows through.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..ir import Array, Builder, Op, Value
from .table import Attrs, CostRule, JvpRule, Maybe, ReferenceRule, VjpRule

#: (builder, operation, i, g) -> d(result)/d(operand i) times g, element by element.
Partial: TypeAlias = Callable[[Builder, Op, int, Value], Maybe]


def one_result(f: Callable[..., Any]) -> ReferenceRule:
    """The reference `f(*arrays, attrs)` of one result, without NumPy's warnings."""

    def rule(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
        with np.errstate(all="ignore"):
            return (np.asarray(f(*args, attrs)),)

    return rule


def each(f: Callable[..., Any]) -> ReferenceRule:
    """The reference of an elementwise primitive: `f(*arrays)`."""
    return one_result(lambda *args: f(*args[:-1]))


def each_in_f64(f: Callable[..., Any]) -> ReferenceRule:
    """As `each`, worked out in f64 and rounded once: the profile that is equal on every tier."""

    def in_f64(*args: Array) -> Any:
        wide = [a.astype(np.float64) for a in args]
        return np.asarray(f(*wide)).astype(args[0].dtype)

    return each(in_f64)


def widen(x: Array) -> Array:
    """The array in the type that sums are kept in: f64 for floats, its own for integers."""
    return x.astype(np.float64) if x.dtype == np.float32 else x


def per_element(operations: int) -> CostRule:
    """The cost of an elementwise primitive."""

    def cost(op: Op) -> int:
        return op.results[0].tensor.size * operations

    return cost


def free(op: Op) -> int:
    """The cost of what only moves elements about."""
    return 0


def number(b: Builder, like: Value, value: float) -> Value:
    """One number, repeated to the type of another value."""
    return b.full(like.tensor, value)


def total(b: Builder, terms: Sequence[Maybe]) -> Maybe:
    """The sum of those that are not symbolic zeros."""
    result: Maybe = None
    for term in terms:
        if term is not None:
            result = term if result is None else b("add", result, term)
    return result


def filled(b: Builder, op: Op, tangents: Sequence[Maybe]) -> list[Value]:
    """The tangents of the first operands, the symbolic zeros among them made real."""
    pairs = zip(op.operands, tangents, strict=False)
    return [b.zeros(v.type) if t is None else t for v, t in pairs]


def diagonal(partial: Partial) -> tuple[VjpRule, JvpRule]:
    """Both rules of an elementwise primitive."""

    def vjp(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
        (g,) = cotangents
        if g is None:
            return (None,) * len(op.operands)
        return [
            partial(b, op, i, g) if v.dtype.is_float else None for i, v in enumerate(op.operands)
        ]

    def jvp(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
        terms = [None if t is None else partial(b, op, i, t) for i, t in enumerate(tangents)]
        return (total(b, terms),)

    return vjp, jvp


def linear(
    transpose: Callable[[Builder, Op, Value], Sequence[Maybe]], moving: int | None = None
) -> tuple[VjpRule, JvpRule]:
    """Both rules of a primitive of one result, linear in its first `moving` operands (None: all).

    The operands after those are indices. `transpose(builder, operation, g)` gives a cotangent for
    each of the moving ones.
    """

    def vjp(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
        (g,) = cotangents
        count = len(op.operands)
        if g is None:
            return (None,) * count
        back = tuple(transpose(b, op, g))
        return back + (None,) * (count - len(back))

    def jvp(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
        moved = tangents[:moving]
        if all(t is None for t in moved):
            return (None,)
        operands = (*filled(b, op, moved), *op.operands[len(moved) :])
        return b.emit(op.name, operands, op.attrs)

    return vjp, jvp


def bilinear(
    first: Callable[[Builder, Op, Value], Value], second: Callable[[Builder, Op, Value], Value]
) -> tuple[VjpRule, JvpRule]:
    """Both rules of a primitive linear in each of its two operands, from its two transposes."""

    def vjp(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
        (g,) = cotangents
        return (None, None) if g is None else (first(b, op, g), second(b, op, g))

    def jvp(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
        left, right = tangents
        x, y = op.operands
        terms = [
            None if left is None else b.emit(op.name, (left, y), op.attrs)[0],
            None if right is None else b.emit(op.name, (x, right), op.attrs)[0],
        ]
        return (total(b, terms),)

    return vjp, jvp


def zeros_like(b: Builder, value: Value) -> Value:
    """Zeros of a value's type."""
    return b.zeros(value.type)


def cast(b: Builder, value: Value, like: Value) -> Value:
    """The value with the element type of another."""
    return b("convert", value, dtype=like.dtype)
