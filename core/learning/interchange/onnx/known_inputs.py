"""Which inputs and tensors of a graph a program must know: those that decide a shape.

A shape, an axis or a count is known while a program is compiled. What such a value is computed from
must then be known too, back to the model's tensors and inputs; a `Shape` on the way needs no value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .graph_order import inputs_of
from .model_files import DEPTH_MAX, graphs_of
from .onnx_errors import refused
from .operator_rows import Row

#: Inputs of operators with inner graphs that must be known: trips and first condition of a Loop.
_OF_GRAPHS: dict[str, tuple[int, ...]] = {"Loop": (0, 1)}


class KnownInputs:
    """Finds the names whose values must be known."""

    def __init__(self, row_for: Callable[[Any], Row | None], body_of: Callable[[Any], Any]) -> None:
        """What nodes stand for.

        Args:
            row_for: a node's row, if it has one.
            body_of: the function that a node without a row stands for, if there is one.
        """
        self._row_for, self._body_of = row_for, body_of
        self._found: dict[tuple[str, str], frozenset[int]] = {}

    def names(self, nodes: Sequence[Any], depth: int = 0) -> set[str]:
        """Of a graph's nodes, in order. Raises OnnxError for functions that are too deep."""
        needed: set[str] = set()
        for node in reversed(nodes):
            row = self._row_for(node)
            places = row.known if row is not None else _OF_GRAPHS.get(node.op_type, ())
            needed.update(node.input[k] for k in places if k < len(node.input) and node.input[k])
            asked = any(name in needed for name in node.output if name)
            if asked and not (row is not None and row.shape_only):
                needed.update(inputs_of(node))
            for graph in graphs_of(node):
                needed |= self.names(list(graph.node), depth + 1)
            if row is None and not asked:
                inputs = list(node.input)
                needed.update(inputs[k] for k in self._within(node, depth) if k < len(inputs))
        needed.discard("")
        return needed

    def _within(self, node: Any, depth: int) -> frozenset[int]:
        """Inputs of a function that its body must know."""
        key = node.domain, node.op_type
        found = self._found.get(key)
        if found is None:
            if depth > DEPTH_MAX:
                raise refused(node, f"functions of the model are more than {DEPTH_MAX} deep")
            body = self._body_of(node)
            if body is None:
                return frozenset()
            names = self.names(list(body.node), depth + 1)
            found = frozenset(k for k, name in enumerate(body.input) if name in names)
            self._found[key] = found
        return found
