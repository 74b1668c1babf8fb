"""Persistent stacks: what reverse mode saves a loop's carries on. `ir.ListType` says why.

The adjoint of push is pop, and that of pop is push:

    l' = push(l, x)      (dl, dx) = pop(dl')
    l', x = pop(l)       dl = push(dl', dx)

A stack is a chain of cells that share what is below them, so keeping every version of one costs no
copies: second order does keep them.

Where a list has lanes, each is a stack of its own; `list_select` chooses between two lists lane by
lane, and `list_take` picks lanes. Only `transforms.vmap` makes these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..ir import Blocks, Builder, DType, ListType, Op, TensorType, Type, Types
from .rules import filled, free
from .table import Attrs, Maybe, Primitive
from .type_checks import NUMERIC, differ, fail, list_of, tensor


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
            is_list = isinstance(value, Stack | Lanes)
            result = result.push(value if is_list else np.asarray(value))
        return result


class Lanes:
    """The run-time value of a list with lanes: an array of stacks."""

    __slots__ = ("stacks",)

    def __init__(self, stacks: Any) -> None:
        self.stacks: Any = stacks

    @classmethod
    def each(cls, shape: tuple[int, ...], make: Callable[[tuple[int, ...]], Stack]) -> Lanes:
        stacks = np.empty(shape, dtype=object)
        for at in np.ndindex(shape):
            stacks[at] = make(at)
        return cls(stacks)

    def __getitem__(self, at: tuple[int, ...]) -> Any:
        """One lane, or the lanes within it."""
        found = self.stacks[at]
        return found if isinstance(found, Stack) else Lanes(found)

    def push(self, value: Any) -> Lanes:
        return self.each(self.stacks.shape, lambda at: self.stacks[at].push(value[at]))

    def pop(self) -> tuple[Lanes, Any]:
        shape = self.stacks.shape
        pairs = {at: self.stacks[at].pop() for at in np.ndindex(shape)}
        tops = [top for _, top in pairs.values()]
        if isinstance(tops[0], Stack):
            value: Any = self.each(shape, lambda at: pairs[at][1])
        elif isinstance(tops[0], Lanes):
            whole = np.array([t.stacks for t in tops], dtype=object)
            value = Lanes(whole.reshape(*shape, *tops[0].stacks.shape))
        else:
            value = np.stack(tops).reshape(*shape, *np.shape(tops[0]))
        return self.each(shape, lambda at: pairs[at][0]), value

    def __add__(self, other: Lanes) -> Lanes:
        return self.each(self.stacks.shape, lambda at: self.stacks[at] + other.stacks[at])


def zero_of(type_: Type) -> Any:
    """The zero of a type: an array of zeros, or the empty stack."""
    if isinstance(type_, ListType):
        if type_.lanes:
            return Lanes.each(type_.lanes, lambda at: Stack(type_.element))
        return Stack(type_.element)
    return np.zeros(type_.shape, type_.dtype.numpy)


def _empty_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    return (attrs["type"],)


def _push_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    stack = list_of("list_push", types[0])
    if types[1] != stack.item:
        fail("list_push", f"{stack} cannot hold {types[1]}")
    return (stack,)


def _pop_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    stack = list_of("list_pop", types[0])
    return (stack, stack.item)


def _add_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    stack = list_of("list_add", types[0])
    if types[1] != stack:
        differ("list_add", stack, types[1])
    inner: Type = stack
    while isinstance(inner, ListType):
        inner = inner.element
    tensor("list_add", inner, NUMERIC, "the element")
    return (stack,)


def _select_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    pred, a, b = types
    stack = list_of("list_select", a)
    if a != b:
        differ("list_select", a, b)
    wanted = TensorType(DType.BOOL, stack.lanes)
    if pred != wanted:
        fail("list_select", f"the predicate for {stack} must be {wanted}, not {pred}")
    return (stack,)


def _take_type(types: Types, attrs: Attrs, regions: Blocks) -> tuple[Type, ...]:
    stack, at = list_of("list_take", types[0]), types[1]
    if type(at) is not TensorType or at.dtype is not DType.I64:
        fail("list_take", f"the lanes must be i64, not {at}")
    if math.prod(stack.lanes) == 0 or not at.shape:
        fail("list_take", f"{stack} and the lanes {at} must both have lanes")
    return (ListType(stack.element, at.shape),)


def _empty(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    return (zero_of(attrs["type"]),)


def _push(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    stack, value = args
    return (stack.push(value),)


def _pop(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    return args[0].pop()  # type: ignore[no-any-return]


def _add(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    with np.errstate(all="ignore"):
        return (args[0] + args[1],)


def _select(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    pred, a, b = args
    if isinstance(a, Stack):
        return (a if pred else b,)
    return (Lanes(np.where(pred, a.stacks, b.stacks)),)


def _take(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    stack, at = args
    if isinstance(stack, Stack):
        return (Lanes.each(at.shape, lambda _: stack),)
    flat = stack.stacks.reshape(-1)
    return (Lanes(flat[np.clip(at, 0, flat.size - 1)]),)


def _select_back(b: Builder, op: Op, cotangents: Sequence[Maybe]) -> Sequence[Maybe]:
    (g,), pred = cotangents, op.operands[0]
    if g is None:
        return (None, None, None)
    zero = b.zeros(g.type)
    return (None, b("list_select", pred, g, zero), b("list_select", pred, zero, g))


def _select_forward(b: Builder, op: Op, tangents: Sequence[Maybe]) -> Sequence[Maybe]:
    if tangents[1] is None and tangents[2] is None:
        return (None,)
    pred = op.operands[0]
    _, if_true, if_false = filled(b, op, (pred, *tangents[1:]))
    return (b("list_select", pred, if_true, if_false),)


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


_SELECT = (_select_back, _select_forward)

ROWS = (
    Primitive("list_empty", _empty_type, _empty, None, None, free, attrs=("type",), operands=0),
    Primitive("list_push", _push_type, _push, _push_back, _push_forward, free, operands=2),
    Primitive("list_pop", _pop_type, _pop, _pop_back, _pop_forward, free, operands=1),
    Primitive("list_add", _add_type, _add, _add_back, _add_forward, _cost, operands=2),
    Primitive("list_select", _select_type, _select, *_SELECT, free, operands=3),
    # What is taken stands in for lanes that are masked out: no derivative flows through it.
    Primitive("list_take", _take_type, _take, None, None, free, operands=2),
)
