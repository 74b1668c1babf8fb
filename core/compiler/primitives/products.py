"""The derivatives of `reduce_prod`, exact where elements are zero.

Dividing the product by an element breaks at zero. Instead the product is built as a tree: halve the
row, multiply the halves, until one element is left. The derivative of that tree is work of the same
size, in primitives that have derivatives of their own.

    x = [a b c d]   ->   [a b] * [c d] = [ac bd]   ->   [ac] * [bd] = [abcd]
"""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Builder, Op, TensorType, Value
from .shape import inverse
from .table import Maybe


def _order(op: Op) -> tuple[int, ...]:
    """The permutation that puts the reduced axes last."""
    axes = op.attrs["axes"]
    return (*[i for i in range(len(op.operands[0].shape)) if i not in axes], *axes)


def _rows(b: Builder, op: Op, x: Value) -> Value:
    """The tensor as [what is kept, what is reduced]."""
    outer = op.result.tensor.size
    count = 1
    for axis in op.attrs["axes"]:
        count *= x.shape[axis]
    return b("reshape", b("transpose", x, perm=_order(op)), shape=(outer, count))


def _cut(b: Builder, x: Value, start: int, stop: int) -> Value:
    return b("slice", x, start=(0, start), stop=(x.shape[0], stop), step=(1, 1))


def _halves(b: Builder, x: Value, neutral: float) -> tuple[Value, Value]:
    """The two halves of each row, an odd one made even with the neutral element."""
    count = x.shape[1]
    if count % 2:
        value = b.full(TensorType(x.dtype), neutral)
        x = b("pad", x, value, low=(0, 0), high=(0, 1), interior=(0, 0))
    half = (count + 1) // 2
    return _cut(b, x, 0, half), _cut(b, x, half, 2 * half)


def product_back(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
    (g,), (x,) = cotangents, op.operands
    if g is None or x.tensor.size == 0:
        return (None,)
    level = _rows(b, op, x)
    levels = []
    while level.shape[1] > 1:
        left, right = _halves(b, level, 1)
        levels.append((level.shape[1], left, right))
        level = b("mul", left, right)
    g = b("reshape", g, shape=level.shape)
    for count, left, right in reversed(levels):
        g = b("concat", b("mul", g, right), b("mul", g, left), axis=1)
        g = g if g.shape[1] == count else _cut(b, g, 0, count)
    order = _order(op)
    g = b("reshape", g, shape=tuple([x.shape[i] for i in order]))
    return (b("transpose", g, perm=inverse(order)),)


def product_forward(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
    (t,), (x,) = tangents, op.operands
    if t is None or x.tensor.size == 0:
        return (None,)
    level, t = _rows(b, op, x), _rows(b, op, t)
    while level.shape[1] > 1:
        left, right = _halves(b, level, 1)
        t_left, t_right = _halves(b, t, 0)
        level = b("mul", left, right)
        t = b("add", b("mul", t_left, right), b("mul", left, t_right))
    return (b("reshape", t, shape=op.result.shape),)
