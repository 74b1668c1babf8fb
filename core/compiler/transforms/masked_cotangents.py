"""Cotangents of which a `select` keeps some elements: what it leaves out stays zero.

    y = select(c, f(x), 0)            ȳ            is what comes back
                                      ȳ' = select(c, ȳ, 0)       the cotangent of f(x)
                                      x̄  = select(c, ȳ f'(x), 0)  and not ȳ' f'(x)

Where c is false, f'(x) may be infinite or NaN, as that of a square root or a quotient is at 0, and
zero times it is NaN, though x has no part in y there. So a cotangent is remembered with the
predicate and with the value that the predicate masks; the rules of elementwise operations are
applied to that value, and the mask after them. (Elsewhere this is written by hand, as two `where`:
one for the argument, one for the result.)

The mask goes through elementwise operations, changes of shape, sums of two cotangents with one
mask, further selects, and sums over axes along which the predicate was repeated. Other operations
are given the masked cotangent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir import Builder, DType, ListType, Op, TensorType, Value
from ..primitives import PRIMITIVES
from ..primitives.table import Maybe


@dataclass(frozen=True, slots=True)
class _Mask:
    """A predicate, and the truth of those elements that are kept."""

    predicate: Value
    kept: bool


class MaskedCotangents:
    """The cotangents of a block that are masked, and rules that keep them so."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder
        self._known: dict[Value, tuple[_Mask, Value]] = {}
        self._repeated: dict[Value, Op] = {}
        self._both: dict[tuple[_Mask, _Mask], _Mask] = {}

    def see(self, op: Op) -> None:
        """An operation of the forward part: it may repeat what is a predicate later."""
        if op.name == "broadcast" and op.result.dtype is DType.BOOL:
            self._repeated[op.result] = op

    def reverse(self, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
        """The cotangents of an operation's operands, by its primitive's rule."""
        row = PRIMITIVES[op.name]
        assert row.vjp is not None, f"{op.name} has no vjp rule, yet its result is varied"
        g = cotangents[0]
        known = None if g is None else self._known.get(g)
        if op.name == "select" and g is not None:
            value = g if known is None else known[1]
            masks = [_Mask(op.operands[0], kept) for kept in (True, False)]
            if known is not None:
                masks = [self._and(known[0], mask) for mask in masks]
            grads = row.vjp(self.b, op, cotangents)
            for mask, grad in zip(masks, grads[1:], strict=True):
                assert grad is not None
                self._known[grad] = mask, value
            return grads
        if known is None:
            return row.vjp(self.b, op, cotangents)
        if op.name == "reshape" and g is not None:
            return [self.reshaped(g, op.operands[0].shape)]
        mask, value = known
        if op.name == "broadcast":
            narrow = self._before(op, mask)
            if narrow is None:
                return row.vjp(self.b, op, cotangents)
            mask = narrow
        elif row.c is None:
            return row.vjp(self.b, op, cotangents)
        grads = row.vjp(self.b, op, [value])
        return [
            g if grad is value else None if grad is None else self._masked(mask, grad)
            for grad in grads
        ]

    def add(self, x: Value, y: Value) -> Value:
        """The sum of two cotangents of one value."""
        if isinstance(x.type, ListType):
            return self.b("list_add", x, y)
        first, second = self._known.get(x), self._known.get(y)
        if first is None or second is None or first[0] != second[0]:
            return self.b("add", x, y)
        return self._masked(first[0], self.b("add", first[1], second[1]))

    def reshaped(self, x: Value, shape: tuple[int, ...]) -> Value:
        """A cotangent in another shape."""
        if (known := self._known.get(x)) is None:
            return self.b("reshape", x, shape=shape)
        mask, value = known
        predicate = self.b("reshape", mask.predicate, shape=shape)
        return self._masked(_Mask(predicate, mask.kept), self.b("reshape", value, shape=shape))

    def _masked(self, mask: _Mask, value: Value) -> Value:
        zero = self.b.zeros(value.type)
        pair = (value, zero) if mask.kept else (zero, value)
        result = self.b("select", mask.predicate, *pair)
        self._known[result] = mask, value
        return result

    def _and(self, outer: _Mask, inner: _Mask) -> _Mask:
        """Of two masks the one that keeps what both keep."""
        if outer == inner:
            return outer
        if (outer, inner) not in self._both:
            parts = [m.predicate if m.kept else self.b("not", m.predicate) for m in (outer, inner)]
            self._both[outer, inner] = _Mask(self.b("and", *parts), True)
        return self._both[outer, inner]

    def _before(self, op: Op, mask: _Mask) -> _Mask | None:
        """The mask of what a broadcast repeats, where the predicate is repeated in the same way."""
        made = self._repeated.get(mask.predicate)
        x = op.operands[0]
        if made is None or made.attrs != op.attrs:
            return None
        predicate = made.operands[0]
        fits = predicate.type == TensorType(DType.BOOL, x.shape)
        return _Mask(predicate, mask.kept) if fits else None
