"""List operations as C: a list is a pointer to its top node, in a heap of the call (lists.h)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ...ir import ListType, Type, Value
from ...passes.steps import Call
from .names import memory_type

if TYPE_CHECKING:
    from .emit import FunctionWriter

_FULL = "if (heap.full) goto full;"


def _payload_bytes(type_: Type) -> str:
    return "sizeof(void *)" if isinstance(type_, ListType) else str(type_.nbytes)


def _empty(w: FunctionWriter, call: Call) -> None:
    w.lines.append(f"const dl_node *const {w.local(call.op.result)} = 0;")


def _push(w: FunctionWriter, call: Call) -> None:
    below, x = call.operands
    if isinstance(x.type, ListType):
        address = f"&{w.names[x]}"
    else:
        address = w.address(x)
    size = _payload_bytes(x.type)
    pushed = f"dl_push(&heap, {w.names[below]}, {address}, {size})"
    w.lines += [f"const dl_node *const {w.local(call.op.result)} = {pushed};", _FULL]


def _pop(w: FunctionWriter, call: Call) -> None:
    (top,) = call.operands
    rest, x = call.op.results
    w.lines.append(_pop_target(w, x))
    if isinstance(x.type, ListType) or x.shape == ():
        address = f"&{w.names[x]}"
    else:
        address = w.pointer(x)
    popped = f"dl_pop({w.names[top]}, {address}, {_payload_bytes(x.type)})"
    w.lines.append(f"const dl_node *const {w.local(rest)} = {popped};")


def _pop_target(w: FunctionWriter, x: Value) -> str:
    """The variable that the top is popped into, if it is one."""
    if isinstance(x.type, ListType):
        return f"const dl_node *{w.local(x)};"
    if x.shape == ():
        return f"{memory_type(x.dtype)} {w.local(x)};"
    return ""


def _add(w: FunctionWriter, call: Call) -> None:
    a, b = call.operands
    depth, inner = 0, call.op.result.type
    assert isinstance(inner, ListType), "the sum of lists is a list"
    element: Type = inner.element
    while isinstance(element, ListType):
        depth, element = depth + 1, element.element
    adder = f"dl_add_{element.dtype.value}"
    arguments = f"{depth}, {adder}, {element.size}, {element.nbytes}"
    total = f"dl_list_add(&heap, {w.names[a]}, {w.names[b]}, {arguments})"
    w.lines += [f"const dl_node *const {w.local(call.op.result)} = {total};", _FULL]


WRITERS: Mapping[str, Callable[[FunctionWriter, Call], None]] = {
    "list_empty": _empty,
    "list_push": _push,
    "list_pop": _pop,
    "list_add": _add,
}
