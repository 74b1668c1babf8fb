"""List operations as C: a list is a pointer to its top node, in a heap of the call (lists.h).

One with lanes is a pointer to an array of such pointers; 0 where all are empty.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ....ir import ListType, Type, Value
from ....passes.schedule.block_steps import Call
from ..names import memory_type, unsigned_type

if TYPE_CHECKING:
    from ..emit import FunctionWriter

_FULL = "if (heap.full) goto full;"


def _lanes(type_: Type) -> int:
    """How many stacks a list has side by side; 0 for a plain one."""
    assert isinstance(type_, ListType)
    return math.prod(type_.lanes) if type_.lanes else 0


def _payload_bytes(type_: Type) -> str:
    """The bytes of one element, as C."""
    return "sizeof(void *)" if isinstance(type_, ListType) else str(type_.nbytes)


def _made(w: FunctionWriter, value: Value, expression: str) -> None:
    """A list that took memory."""
    w.lines += [f"const dl_node *const {w.local(value)} = {expression};", _FULL]


def _empty(w: FunctionWriter, call: Call) -> None:
    w.lines.append(f"const dl_node *const {w.local(call.op.result)} = 0;")


def _push(w: FunctionWriter, call: Call) -> None:
    below, x = call.operands
    assert isinstance(below.type, ListType)
    lanes, element = _lanes(below.type), below.type.element
    address = f"&{w.names[x]}" if isinstance(x.type, ListType) else w.address(x)
    if not lanes:
        size = _payload_bytes(element)
        pushed = f"dl_push(&heap, {w.names[below]}, {address}, {size})"
    elif isinstance(element, ListType):
        inner = _lanes(element)
        pushed = f"dl_push_lists(&heap, {w.names[below]}, {w.names[x]}, {lanes}, {inner})"
    else:
        size = _payload_bytes(element)
        pushed = f"dl_push_lanes(&heap, {w.names[below]}, {address}, {lanes}, {size})"
    _made(w, call.op.result, pushed)


def _pop(w: FunctionWriter, call: Call) -> None:
    (top,) = call.operands
    rest, x = call.op.results
    assert isinstance(top.type, ListType)
    lanes, element = _lanes(top.type), top.type.element
    w.lines.append(_pop_target(w, x))
    if isinstance(x.type, ListType) or x.shape == ():
        address = f"&{w.names[x]}"
    else:
        address = w.pointer(x)
    if not lanes:
        popped = f"dl_pop({w.names[top]}, {address}, {_payload_bytes(element)})"
        w.lines.append(f"const dl_node *const {w.local(rest)} = {popped};")
        return
    kind = "lists" if isinstance(element, ListType) else "lanes"
    size = _lanes(element) if isinstance(element, ListType) else _payload_bytes(element)
    _made(w, rest, f"dl_pop_{kind}(&heap, {w.names[top]}, {address}, {lanes}, {size})")


def _pop_target(w: FunctionWriter, x: Value) -> str:
    """The variable that the top is popped into, if it is one."""
    if isinstance(x.type, ListType):
        return f"const dl_node *{w.local(x)} = 0;"
    if x.shape == ():
        return f"{memory_type(x.dtype)} {w.local(x)};"
    return ""


def _add(w: FunctionWriter, call: Call) -> None:
    a, b = call.operands
    type_ = call.op.result.type
    assert isinstance(type_, ListType), "the sum of lists is a list"
    widths = [_lanes(type_)]
    element: Type = type_.element
    while isinstance(element, ListType):
        widths.append(_lanes(element))
        element = element.element
    adder = f"dl_add_{element.dtype.value}"
    w.unit.instance("DL_ADDER", element.dtype, unsigned_type(element.dtype))
    numbers = f"{adder}, {element.size}, {element.nbytes}"
    if any(widths):
        table = f"(const int64_t[]){{{', '.join(map(str, widths))}}}"
        call_ = f"dl_list_add_lanes(&heap, {w.names[a]}, {w.names[b]}, {len(widths) - 1}, {table},"
    else:
        call_ = f"dl_list_add(&heap, {w.names[a]}, {w.names[b]}, {len(widths) - 1},"
    _made(w, call.op.result, f"{call_} {numbers})")


def _select(w: FunctionWriter, call: Call) -> None:
    pred, a, b = call.operands
    lanes = _lanes(a.type)
    if not lanes:
        chosen = f"{w.scalar(pred)} ? {w.names[a]} : {w.names[b]}"
        w.lines.append(f"const dl_node *const {w.local(call.op.result)} = {chosen};")
        return
    lists = f"{w.names[a]}, {w.names[b]}"
    _made(w, call.op.result, f"dl_select_lanes(&heap, {w.address(pred)}, {lists}, {lanes})")


def _take(w: FunctionWriter, call: Call) -> None:
    stack, at = call.operands
    count, lanes = at.tensor.size, _lanes(stack.type)
    places = f"{w.address(at)}, {count}, {lanes}"
    _made(w, call.op.result, f"dl_take_lanes(&heap, {w.names[stack]}, {places})")


WRITERS: Mapping[str, Callable[[FunctionWriter, Call], None]] = {
    "list_empty": _empty,
    "list_push": _push,
    "list_pop": _pop,
    "list_add": _add,
    "list_select": _select,
    "list_take": _take,
}
