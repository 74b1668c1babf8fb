"""Persistent stacks: what reverse mode saves a loop's carries on. `ir.ListType` says why.

The adjoint of push is pop, and that of pop is push:

    l' = push(l, x)      (dl, dx) = pop(dl')
    l', x = pop(l)       dl = push(dl', dx)

A stack is a chain of cells that share what is below them, so keeping every version of one costs no
copies: second order does keep them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..ir import Block, Builder, ListType, Op, Type
from .checks import NUMERIC, differ, fail, list_of, tensor
from .rules import filled
from .table import Attrs, Maybe, Primitive


class Stack:
    """The run-time value of a list: the top element and the stack below; None for the empty one."""

    __slots__ = ("below", "element", "top")

    def __init__(self, element: Type, top: Any = None, below: Stack | None = None) -> None:
        self.element = element
        self.top = top
        self.below = below

    def push(self, value: Any) -> Stack:
        return Stack(self.element, value, self)

    def pop(self) -> tuple[Stack, Any]:
        """The stack below and the top; of the empty stack, itself and zero."""
        if self.below is None:
            return self, zero_of(self.element)
        return self.below, self.top

    def __iter__(self) -> Iterator[Any]:
        """The elements, from the top down."""
        at = self
        while at.below is not None:
            yield at.top
            at = at.below

    def __add__(self, other: Stack) -> Stack:
        """Adds element by element from the top; the longer one's rest is shared, not copied."""
        a, b = self, other
        sums = []
        while a.below is not None and b.below is not None:
            sums.append(a.top + b.top)
            a, b = a.below, b.below
        result = b if a.below is None else a
        for value in reversed(sums):
            result = result.push(value if isinstance(value, Stack) else np.asarray(value))
        return result


def zero_of(type_: Type) -> Any:
    """The zero of a type: an array of zeros, or the empty stack."""
    if isinstance(type_, ListType):
        return Stack(type_.element)
    return np.zeros(type_.shape, type_.dtype.numpy)


def _empty_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    type_ = attrs["type"]
    if type(type_) is not ListType:
        fail("list_empty", f"type must be a list type, not {type_}")
    return (type_,)


def _push_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    stack = list_of("list_push", types[0])
    if types[1] != stack.element:
        fail("list_push", f"{stack} cannot hold {types[1]}")
    return (stack,)


def _pop_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    stack = list_of("list_pop", types[0])
    return (stack, stack.element)


def _add_type(types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]) -> tuple[Type, ...]:
    stack = list_of("list_add", types[0])
    if types[1] != stack:
        differ("list_add", stack, types[1])
    inner: Type = stack
    while isinstance(inner, ListType):
        inner = inner.element
    tensor("list_add", inner, NUMERIC, "the element")
    return (stack,)


def _empty(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    return (Stack(attrs["type"].element),)


def _push(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    stack, value = args
    return (stack.push(value),)


def _pop(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    return args[0].pop()  # type: ignore[no-any-return]


def _add(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    with np.errstate(all="ignore"):
        return (args[0] + args[1],)


def _push_back(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
    (g,) = cotangents
    return (None, None) if g is None else b.emit("list_pop", (g,))


def _push_forward(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
    if all(t is None for t in tangents):
        return (None,)
    return (b("list_push", *filled(b, op, tangents)),)


def _pop_back(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
    if all(g is None for g in cotangents):
        return (None,)
    pairs = zip(op.results, cotangents, strict=True)
    return (b("list_push", *[b.zeros(v.type) if g is None else g for v, g in pairs]),)


def _pop_forward(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
    (t,) = tangents
    return (None, None) if t is None else b.emit("list_pop", (t,))


def _add_back(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
    return (cotangents[0], cotangents[0])


def _add_forward(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
    left, right = tangents
    if left is None or right is None:
        return (left if right is None else right,)
    return (b("list_add", left, right),)


def _cost(op: Op) -> int:
    """A list's length is not in its type: what one element takes."""
    element = op.operands[0].type
    while isinstance(element, ListType):
        element = element.element
    return element.size


ROWS = (
    Primitive(
        "list_empty", _empty_type, _empty, None, None, lambda op: 0, attrs=("type",), operands=0
    ),
    Primitive("list_push", _push_type, _push, _push_back, _push_forward, lambda op: 0, operands=2),
    Primitive("list_pop", _pop_type, _pop, _pop_back, _pop_forward, lambda op: 0, operands=1),
    Primitive("list_add", _add_type, _add, _add_back, _add_forward, _cost, operands=2),
)
