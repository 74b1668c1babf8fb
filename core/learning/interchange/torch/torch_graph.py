"""An exported program as the source of a Python function (`straight_line`).

The function is `net(parameters, statistics, inputs, weight, draw) -> (outputs, statistics)`.
Symbolic sizes become expressions of `x.shape`, so one function serves every batch size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..straight_line import Ref, StraightLine
from .torch_export import torch_module
from .torch_guards import write_guards
from .torch_nodes import Held, NodeWriter

if TYPE_CHECKING:
    import torch
    from torch.fx import Node


@dataclass(frozen=True)
class Written:
    """One graph of a module, written as a function."""

    function: FunctionType
    shapes: tuple[tuple[int | None, ...], ...]
    """Of the inputs; None for a size that may differ from call to call."""
    dtypes: tuple[np.dtype[Any], ...]
    outputs: tuple[str | int, ...]
    """Names or places of its results; empty for one alone."""
    results: tuple[tuple[int | None, ...], ...]
    """The shapes of its results that are tensors; None for a size that depends on the inputs'."""
    draws: bool
    """Whether it draws random numbers, as dropout does."""
    unweighted: str
    """An operator that counts rows without weight; empty if there is none."""


def changed_buffers(program: torch.export.ExportedProgram) -> tuple[str, ...]:
    """The float buffers that a call changes: a module's running statistics."""
    signature = program.graph_signature
    found = []
    for name, target in signature.buffers_to_mutate.items():
        node = next(n for n in program.graph.nodes if n.name == name)
        if node.meta["val"].dtype.is_floating_point:
            found.append(target)
    return tuple(sorted(found))


def written(
    program: torch.export.ExportedProgram,
    name: str,
    statistics: Sequence[str] = (),
    ties: Mapping[str, str] = MappingProxyType({}),
    kernels: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> Written:
    """An exported program as a function.

    Args:
        program: in core ATen.
        name: of the function.
        statistics: buffers that are values of the program; others are constants of it.
        ties: the first name of a parameter by each of its names.
        kernels: parameters that come with their axes in this order (`torch_layouts.kernels`).

    Raises:
        ProgramError: DL123, for an operator without a row and for what has no meaning here.
    """
    return _Writer(program, name, statistics, ties, kernels).written()


class _Writer:
    """Writes a whole program: its inputs, its nodes, its results."""

    def __init__(
        self,
        program: torch.export.ExportedProgram,
        name: str,
        statistics: Sequence[str],
        ties: Mapping[str, str],
        kernels: Mapping[str, tuple[int, ...]],
    ) -> None:
        self.torch = torch_module()
        self.program = program
        names = ["parameters", "statistics", "inputs", "weight", "draw"]
        self.nodes = NodeWriter(program.graph_module, StraightLine(name, names))
        self.statistics = set(statistics)
        self.ties = ties
        self.changed: dict[str, str] = {}  # output node's name -> buffer
        self.kernels = kernels

    def written(self) -> Written:
        shapes, dtypes = self._inputs()
        write_guards(self.program, self.nodes.lines)
        output = next(node for node in self.program.graph.nodes if node.op == "output")
        self.nodes.write(self._needed(output))
        results, statistics = self._results(output)
        function = self.nodes.lines.function((results, statistics))
        outputs: tuple[str | int, ...] = ()
        if isinstance(results, dict | tuple):
            outputs = tuple(results if isinstance(results, dict) else range(len(results)))
        shown = self._shown(output)
        return Written(
            function, shapes, dtypes, outputs, shown, self.nodes.draws > 0, self.nodes.unweighted
        )

    def _inputs(self) -> tuple[tuple[tuple[int | None, ...], ...], tuple[np.dtype[Any], ...]]:
        """Gives every placeholder its value; (shapes, element types) of the user's inputs."""
        kinds = self.torch.export.graph_signature.InputKind
        signature = self.program.graph_signature
        nodes = [node for node in self.program.graph.nodes if node.op == "placeholder"]
        shapes: list[tuple[int | None, ...]] = []
        dtypes: list[np.dtype[Any]] = []
        values = self.nodes.values
        for node, spec in zip(nodes, signature.input_specs, strict=True):
            if spec.kind is kinds.PARAMETER and self._trains(spec.target):
                name = self.ties.get(spec.target, spec.target)
                found = Ref(f"parameters[{name!r}]")
                if name in self.kernels:
                    self.nodes.weights[node] = found
                    self.nodes.axes[node] = self.kernels[name]
                else:
                    values[node] = found
            elif spec.kind is kinds.USER_INPUT:
                value = node.meta.get("val")
                if not isinstance(value, self.torch.Tensor):
                    values[node] = getattr(spec.arg, "value", None)
                    continue
                values[node] = Ref(f"inputs[{len(shapes)}]")
                sizes = self._sizes(value)
                if self.nodes.batch is None and sizes and sizes[0] is None:
                    self.nodes.batch = value.shape[0]
                shapes.append(sizes)
                dtypes.append(self.nodes.dtype(value.dtype, node))
            elif spec.target in self.statistics:
                values[node] = Ref(f"statistics[{spec.target!r}]")
            else:
                values[node] = self._held(spec)
        return tuple(shapes), tuple(dtypes)

    def _shown(self, output: Node) -> tuple[tuple[int | None, ...], ...]:
        kinds = self.torch.export.graph_signature.OutputKind
        specs = self.program.graph_signature.output_specs
        found = []
        for node, spec in zip(output.args[0], specs, strict=True):
            value = getattr(node, "meta", {}).get("val")
            if spec.kind is kinds.USER_OUTPUT and isinstance(value, self.torch.Tensor):
                found.append(self._sizes(value))
        return tuple(found)

    def _sizes(self, value: Any) -> tuple[int | None, ...]:
        return tuple(None if self.nodes.symbolic(n) else int(n) for n in value.shape)

    def _trains(self, name: str) -> bool:
        found = self.program.state_dict.get(name)
        return found is not None and found.requires_grad

    def _held(self, spec: Any) -> Held:
        """A buffer, a constant or a frozen parameter."""
        state = self.program.state_dict
        return Held(state.get(spec.target, self.program.constants.get(spec.target)))

    def _needed(self, output: Node) -> list[Node]:
        """The results that are read; also says which buffers get new values."""
        kinds = self.torch.export.graph_signature.OutputKind
        found: list[Node] = []
        for node, spec in zip(
            output.args[0], self.program.graph_signature.output_specs, strict=True
        ):
            if spec.kind is kinds.BUFFER_MUTATION:
                if spec.target not in self.statistics:
                    continue  # a counter of batches, or statistics that the model does not keep
                self.changed[node.name] = spec.target
            elif spec.kind is kinds.USER_INPUT_MUTATION:
                raise self.nodes.refusal(
                    node, "the module changes an input in place", "return it instead"
                )
            if isinstance(node, self.torch.fx.Node):
                found.append(node)
        return found

    def _results(self, output: Node) -> tuple[Any, dict[str, Any]]:
        from torch.utils import _pytree as pytree

        kinds = self.torch.export.graph_signature.OutputKind
        leaves, statistics = [], {}
        for node, spec in zip(
            output.args[0], self.program.graph_signature.output_specs, strict=True
        ):
            if spec.kind is kinds.USER_OUTPUT:
                leaves.append(self.nodes.value(node))
            elif getattr(node, "name", None) in self.changed:
                statistics[spec.target] = self.nodes.value(node)
        tree = pytree.tree_unflatten(leaves, self.program.call_spec.out_spec)
        return _plain(tree), dict(sorted(statistics.items()))


def _plain(tree: Any) -> Any:
    """A tree of results in tuples and dicts: records of other packages become dicts."""
    if isinstance(tree, Mapping):
        return {str(key): _plain(value) for key, value in tree.items() if value is not None}
    if isinstance(tree, list | tuple):
        return tuple(_plain(each) for each in tree)
    return tree
