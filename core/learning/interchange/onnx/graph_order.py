"""Orders the nodes of a graph, and says what a graph reads from outside of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .model_files import graphs_of
from .onnx_errors import OnnxError, place_of, refused


def inputs_of(node: Any) -> list[str]:
    """Names that a node reads, with those that its inner graphs read from outside."""
    found = [name for name in node.input if name]
    for graph in graphs_of(node):
        found.extend(free_names(graph))
    return list(dict.fromkeys(found))


def free_names(graph: Any) -> list[str]:
    """Names that an inner graph reads from outside, in order."""
    own = {value.name for value in graph.input}
    own.update(tensor.name for tensor in graph.initializer)
    own.update(tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        own.update(node.output)
    read = [name for node in graph.node for name in inputs_of(node)]
    read += [value.name for value in graph.output]
    return [name for name in dict.fromkeys(read) if name and name not in own]


def in_order(nodes: Sequence[Any], given: set[str]) -> list[Any]:
    """The nodes so that each comes after what it reads.

    Args:
        nodes: of one graph.
        given: names that are there before: inputs, tensors, names from outside.

    Raises:
        OnnxError: a name is written twice, read and not there, or part of a cycle.
    """
    writer: dict[str, int] = {}
    for k, node in enumerate(nodes):
        for name in node.output:
            if name and (name in writer or name in given):
                raise refused(node, f"writes {name[:200]!r}, which is there already")
            writer[name] = k
    waits: list[int] = []
    readers: list[list[int]] = [[] for _ in nodes]
    for k, node in enumerate(nodes):
        sources = set()
        for name in inputs_of(node):
            if name in given:
                continue
            if name not in writer:
                raise refused(
                    node,
                    f"reads {name[:200]!r}, which no input, tensor or node gives",
                    "check the model with onnx.checker.check_model",
                )
            sources.add(writer[name])
        waits.append(len(sources))
        for source in sources:
            readers[source].append(k)
    # Those that are ready, in the file's order.
    ready = [k for k in reversed(range(len(nodes))) if waits[k] == 0]
    order: list[Any] = []
    while ready:
        k = ready.pop()
        order.append(nodes[k])
        for reader in reversed(readers[k]):
            waits[reader] -= 1
            if waits[reader] == 0:
                ready.append(reader)
    if len(order) < len(nodes):
        stuck = next(node for k, node in enumerate(nodes) if waits[k])
        raise OnnxError(
            f"{place_of(stuck)}: the graph has a cycle", "check the model with onnx.checker"
        )
    return order
