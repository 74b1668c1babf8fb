"""Operators with inner graphs: branches and loops of Python over functions of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .....compiler.ir import Tensor
from ..element_types import as_program_value
from ..onnx_errors import refused

#: The writer, the node, its inputs, its attributes, the scope, the origin -> the node's results.
Control = Callable[..., list[Any]]


def branch(
    condition: Tensor, then: Any, otherwise: Any, for_then: Any, for_otherwise: Any
) -> Tensor:
    """If: one of two functions, by a condition of the running program or a known one."""
    if np.reshape(condition, ()):
        return then(*for_then)
    return otherwise(*for_otherwise)


def loop_for(
    body: Any, trips: Tensor, condition: Tensor, carries: Any, outside: Any, scans: int
) -> Tensor:
    """Loop of a known number of trips at most; what each trip gives is stacked."""
    going = True if condition is None else np.reshape(condition, ())
    rows: list[Any] = [[] for _ in range(scans)]
    for i in range(int(np.reshape(trips, ()))):
        if not going:
            break
        found = body(np.int64(i), going, *carries, *outside)
        going = found[0]
        carries = found[1 : 1 + len(carries)]
        for k in range(scans):
            rows[k].append(found[1 + len(carries) + k])
    return (*carries, *[np.stack(row) for row in rows])


def loop_while(body: Any, condition: Tensor, carries: Any, outside: Any) -> Tensor:
    """Loop of as many trips as the condition says."""
    i = np.int64(0)
    going = np.reshape(condition, ())
    while going:
        found = body(i, going, *carries, *outside)
        going, carries = found[0], found[1:]
        i = i + 1
    return carries


def scan(
    body: Any,
    states: Any,
    sequences: Any,
    outside: Any,
    axes: tuple[int, ...],
    backward: tuple[int, ...],
    output_axes: tuple[int, ...],
    output_backward: tuple[int, ...],
) -> Tensor:
    """Scan: states go from step to step along sequences; what each step gives is stacked."""
    length = sequences[0].shape[axes[0]]
    rows: list[Any] = [[] for _ in output_axes]
    for i in [*range(length)]:
        given = []
        for k in range(len(sequences)):
            place = length - 1 - i if backward[k] else i
            given.append(np.take(sequences[k], place, axis=axes[k]))
        found = body(*states, *given, *outside)
        states = found[: len(states)]
        for k in range(len(output_axes)):
            rows[k].append(found[len(states) + k])
    stacked = []
    for k in range(len(output_axes)):
        row = rows[k][::-1] if output_backward[k] else rows[k]
        stacked.append(np.stack(row, axis=output_axes[k]))
    return (*states, *stacked)


def scan_rows(body: Any, states: Any, sequences: Any, outside: Any, outputs: int) -> Tensor:
    """Scan of version 8: a batch of them, along the second axis."""
    rows = []
    for b in [*range(sequences[0].shape[0])]:
        rows.append(
            scan(
                body,
                tuple([s[b] for s in states]),
                tuple([s[b] for s in sequences]),
                outside,
                (0,) * len(sequences),
                (0,) * len(sequences),
                (0,) * outputs,
                (0,) * outputs,
            )
        )
    return tuple([np.stack([row[k] for row in rows]) for k in range(len(rows[0]))])


def sequence_map(body: Any, inputs: Any, outside: Any, many: int) -> Any:
    """SequenceMap: a function of each item; inputs that are tensors are the same for all."""
    shared = [not isinstance(value, list | tuple) for value in inputs]
    rows: list[Any] = [[] for _ in range(many)]
    for i in [*range(len(inputs[0]))]:
        given = [inputs[k] if shared[k] else inputs[k][i] for k in range(len(inputs))]
        found = body(*given, *outside)
        for k in range(many):
            rows[k].append(found[k])
    return tuple(rows)


def _if(writer: Any, node: Any, inputs: Any, attributes: Any, scope: Any, origin: Any) -> Any:
    then, for_then = writer.inner(attributes["then_branch"], scope, "then_branch")
    other, for_other = writer.inner(attributes["else_branch"], scope, "else_branch")
    result = writer.program.call(
        branch, inputs[0], then, other, for_then, for_other, origin=origin, name="branch"
    )
    return [result[k] for k in range(len(node.output))]


def _loop(writer: Any, node: Any, inputs: Any, attributes: Any, scope: Any, origin: Any) -> Any:
    body, outside = writer.inner(attributes["body"], scope, "body")
    trips, condition = (*inputs, None, None)[:2]
    carries = tuple(inputs[2:])
    scans = len(attributes["body"].output) - 1 - len(carries)
    if trips is None:
        if scans or condition is None:
            raise refused(
                node,
                "a loop whose number of trips only the data decide gives no stacked results",
                "give it a trip count, or export the model without it",
            )
        arguments: tuple[Any, ...] = (loop_while, body, condition, carries, outside)
    else:
        arguments = (loop_for, body, trips, condition, carries, outside, scans)
    result = writer.program.call(*arguments, origin=origin, name="loop")
    return [result[k] for k in range(len(node.output))]


def _scan(writer: Any, node: Any, inputs: Any, attributes: Any, scope: Any, origin: Any) -> Any:
    graph = attributes["body"]
    body, outside = writer.inner(graph, scope, "body")
    many = attributes["num_scan_inputs"]
    old = writer.opsets.get("", 1) < _SCAN_WITHOUT_BATCH
    if old and inputs[0] is not None:
        raise refused(node, "sequences of different lengths are not read", "use version 9 of ONNX")
    given = inputs[1:] if old else inputs
    states = tuple(given[: len(given) - many])
    sequences = tuple(given[len(given) - many :])
    outputs = len(graph.output) - len(states)
    if old:
        if set(attributes) - {"body", "num_scan_inputs"}:
            raise refused(node, "directions are read from version 9 on")
        result = writer.program.call(
            scan_rows, body, states, sequences, outside, outputs, origin=origin, name="scan"
        )
    else:
        result = writer.program.call(
            scan,
            body,
            states,
            sequences,
            outside,
            attributes.get("scan_input_axes", (0,) * many),
            attributes.get("scan_input_directions", (0,) * many),
            attributes.get("scan_output_axes", (0,) * outputs),
            attributes.get("scan_output_directions", (0,) * outputs),
            origin=origin,
            name="scan",
        )
    return [result[k] for k in range(len(node.output))]


#: The version from which Scan has no batch.
_SCAN_WITHOUT_BATCH = 9


def _constant(writer: Any, node: Any, inputs: Any, attributes: Any, *rest: Any) -> list[Any]:
    if len(attributes) != 1:
        raise refused(node, "a constant has one value")
    (name, value), *_ = attributes.items()
    kinds: dict[str, Any] = {
        "value_float": np.float32,
        "value_floats": np.float32,
        "value_int": np.int64,
        "value_ints": np.int64,
        "value_string": object,
        "value_strings": object,
    }
    if name == "value":
        return [value]
    if name not in kinds:
        raise refused(node, f"its attribute {name[:100]!r} is not read")
    array = np.array(value, kinds[name])
    array.flags.writeable = False
    return [as_program_value(array)]


def _map(writer: Any, node: Any, inputs: Any, attributes: Any, scope: Any, origin: Any) -> Any:
    graph = attributes["body"]
    body, outside = writer.inner(graph, scope, "body")
    many = len(graph.output)
    result = writer.program.call(
        sequence_map, body, tuple(inputs), outside, many, origin=origin, name="mapped"
    )
    return [result[k] for k in range(many)]


CONTROLS: dict[str, Control] = {
    "Constant": _constant,
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _map,
}
