"""Persistent stacks: what reverse mode saves a loop's carries on (`ir.ListType` says why they are as they are)."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Block, ListType, TensorType, Type
from .checks import NUMERIC, differ, fail, list_of, tensor
from .table import Attrs, Primitive


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
    assert isinstance(inner, TensorType)
    return (stack,)


ROWS = (
    Primitive(
        "list_empty", _empty_type, None, None, None, lambda op: 0, attrs=("type",), operands=0
    ),
    Primitive("list_push", _push_type, None, None, None, lambda op: 0, operands=2),
    Primitive("list_pop", _pop_type, None, None, None, lambda op: 0, operands=1),
    Primitive("list_add", _add_type, None, None, None, lambda op: 0, operands=2),
)
