"""PyTorch's control flow: branches and loops of Python over the functions of inner graphs.

An inner graph is a function `inner(*operands, weight, draw) -> results`, where `weight` is the
batch's and `draw` the key of what is drawn in it, or None (`torch_nodes.NodeWriter.inner`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ....compiler import ops, random
from ....compiler.api import vmap
from ....compiler.ir import Tensor
from ..straight_line import Ref

if TYPE_CHECKING:
    from torch.fx import Node

Inner: TypeAlias = Callable[..., Any]
#: The writer of the graph that a node is in, and the node -> the value of its results.
Control: TypeAlias = Callable[[Any, "Node"], Ref]


def drawn(draw: Tensor, number: Any) -> Tensor:
    """The key of a call's `number`th random operator, or of a loop's trip; None without a key."""
    return None if draw is None else random.fold_in(draw, number)


def cond(
    condition: Tensor, then: Inner, otherwise: Inner, operands: Any, weight: Tensor, draw: Tensor
) -> Any:
    """torch.cond on a tensor of one bool."""
    if np.reshape(condition, ()):
        return then(*operands, weight, draw)
    return otherwise(*operands, weight, draw)


def cond_of_sizes(
    condition: bool, then: Inner, otherwise: Inner, operands: Any, weight: Tensor, draw: Tensor
) -> Any:
    """torch.cond on what is known when the program is compiled."""
    if condition:
        return then(*operands, weight, draw)
    return otherwise(*operands, weight, draw)


def while_loop(
    test: Inner, body: Inner, carries: Any, outside: Any, weight: Tensor, draw: Tensor
) -> Any:
    """torch.while_loop: carries go from trip to trip as long as `test` of them is true."""
    trip = np.uint32(0)
    while np.reshape(test(*carries, *outside, weight, None)[0], ()):
        carries = body(*carries, *outside, weight, drawn(draw, trip))
        trip = trip + np.uint32(1)
    return carries


def scan(body: Inner, carries: Any, rows: Any, outside: Any, weight: Tensor, draw: Tensor) -> Any:
    """torch's scan over the first axis of `rows`: (last carries, what each step gives, stacked)."""
    steps = rows[0].shape[0]
    # The first step's results are read for their shapes alone.
    shown = body(*carries, *[x[0] for x in rows], *outside, weight, drawn(draw, 0))[len(carries) :]
    outputs = [np.zeros((steps, *y.shape), y.dtype) for y in shown]
    for k in range(steps):
        found = body(*carries, *[x[k] for x in rows], *outside, weight, drawn(draw, k))
        carries = found[: len(carries)]
        given = found[len(carries) :]
        for i in range(len(outputs)):
            start = (k,) + (0,) * given[i].ndim
            outputs[i] = ops.dynamic_update(outputs[i], given[i][None], start)
    return (*carries, *outputs)


def mapped(body: Inner, rows: Any, outside: Any, weight: Tensor, draw: Tensor) -> Any:
    """torch's map over the first axis of `rows`: the results of all rows, stacked."""
    if draw is None:
        return vmap(lambda given: body(*given, *outside, weight, None))(rows)
    places = np.arange(rows[0].shape[0], dtype=np.uint32)
    return vmap(
        lambda given, place: body(*given, *outside, weight, random.fold_in(draw, place)),
    )(rows, places)


def _cond(writer: Any, node: Node) -> Ref:
    condition, then, otherwise, operands = node.args
    functions, draw = _inner(writer, node, (then, otherwise))
    value = writer.value(condition)
    sized = isinstance(value, bool) or not _is_tensor(writer, condition)
    return _called(
        writer, node, cond_of_sizes if sized else cond, value, *functions, operands, draw=draw
    )


def _while_loop(writer: Any, node: Node) -> Ref:
    test, body, carries, outside = node.args
    functions, draw = _inner(writer, node, (test, body))
    return _called(writer, node, while_loop, *functions, _counters(carries), outside, draw=draw)


def _counters(carries: Any) -> tuple[Any, ...]:
    """Python's whole numbers among the carries change from trip to trip: they are i64."""
    return tuple(np.int64(each) if type(each) is int else each for each in carries)


def _scan(writer: Any, node: Node) -> Ref:
    body, carries, rows, outside = node.args
    functions, draw = _inner(writer, node, (body,))
    return _called(writer, node, scan, *functions, carries, rows, outside, draw=draw)


def _map(writer: Any, node: Node) -> Ref:
    body, rows, outside = node.args
    functions, draw = _inner(writer, node, (body,))
    return _called(writer, node, mapped, *functions, rows, outside, draw=draw)


def _inner(writer: Any, node: Node, graphs: Any) -> tuple[list[Any], Any]:
    """The functions of inner graphs, and the key for what they draw, if they do."""
    pairs = [writer.inner(writer.value(graph), str(graph)) for graph in graphs]
    draws = any(draws for _, draws in pairs)
    return [function for function, _ in pairs], writer.next_key(node) if draws else None


def _called(writer: Any, node: Node, function: Any, *args: Any, draw: Any) -> Ref:
    """The call; refused where a result is a number of Python, which has no type."""
    torch = writer.torch
    for user in node.users:
        value = user.meta.get("val")
        if user in writer.needed and isinstance(value, torch.SymInt | torch.SymFloat | int | float):
            raise writer.refusal(
                user, f"{node.target} gives a number that is no tensor", "make it a tensor"
            )
    given = [writer.value(each) for each in args]
    found: Ref = writer.lines.call(
        function, *given, Ref("weight"), draw, origin=writer.origin(node), name=node.name
    )
    return found


def _is_tensor(writer: Any, given: Any) -> bool:
    return isinstance(getattr(given, "meta", {}).get("val"), writer.torch.Tensor)


#: By the names of torch's higher-order operators.
CONTROLS: dict[str, Control] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
}
