"""Which tensors of a graph are stored with their channels last.

PyTorch's images are [N, C, space...], Delian's kernels take [N, space..., C]. A convolution stores
its result with the channels last, and what follows keeps it so as long as it can: pools and
normalisations know both layouts, pointwise operators any, reductions and joints renumber their
axes. Where an operator needs PyTorch's axes the tensor is transposed once. So the images of a
network are laid out once at its beginning, and its gradients, which come from this program, are
too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..straight_line import Ref
from .aten_images import kernel_axes
from .aten_row import Row


def last_axis(axis: int, rank: int) -> int:
    """Where an axis of [N, C, space...] is in [N, space..., C]."""
    axis %= rank
    return axis if axis == 0 else (rank - 1 if axis == 1 else axis - 1)


def rank_of(node: Any) -> int:
    """Of a node's tensor; -1 for a node that has none."""
    value: Any = getattr(node, "meta", {}).get("val")
    return int(getattr(value, "ndim", -1))


@dataclass(frozen=True)
class Plan:
    """How one operator is written for tensors whose channels are last."""

    nodes: tuple[Any, ...]
    """Its arguments that are taken with their channels last."""
    keywords: dict[str, Any]
    """Further arguments of the row's function."""
    args: dict[int, Any]
    """Arguments in the place of the graph's own, by their place."""
    stored: bool
    """Whether its result's channels are last."""


def planned(node: Any, row: Row, stored: dict[Any, Ref]) -> Plan | None:
    """The plan for an operator; None where it takes PyTorch's axes.

    stored: the tensors whose channels are last so far.
    """
    if row.layout in ("images", "images first"):
        return _images(node, row, stored)
    if row.layout == "pointwise":
        return _pointwise(node, row, stored)
    if row.layout == "axes":
        return _axes(node, stored)
    return None


def _name(node: Any) -> str:
    return str(node.target).split(".")[1]


def _images(node: Any, row: Row, stored: dict[Any, Ref]) -> Plan | None:
    x, rank = node.args[0], rank_of(node.args[0])
    name = _name(node)
    space = rank_of(node.args[1]) - 2 if name == "convolution" else _space(name, rank)
    if rank < 3 or rank != space + 2 or (row.layout == "images" and x not in stored):
        return None
    return Plan((x,), {"channels": -1}, {}, True)


def _space(name: str, rank: int) -> int:
    """Axes of space of an operator: 2 of max_pool2d; of one for all ranks those that there are."""
    found = re.search(r"([123])d", name)
    return int(found[1]) if found else rank - 2


def _pointwise(node: Any, row: Row, stored: dict[Any, Ref]) -> Plan | None:
    rank = rank_of(node)
    if rank < 0:  # several results: those of dropout
        rank = rank_of(node.args[0])
    given = [n for n in node.all_input_nodes if rank_of(n) >= 0]
    if not any(n in stored for n in given) or any(rank_of(n) not in (0, rank) for n in given):
        return None
    return Plan(tuple(n for n in given if rank_of(n) == rank), {}, {}, True)


def _axes(node: Any, stored: dict[Any, Ref]) -> Plan | None:
    name = _name(node)
    if name == "cat":
        return _joined(node, stored)
    x, rank = node.args[0], rank_of(node.args[0])
    if x not in stored:
        return None
    if name in ("slice", "split_with_sizes"):
        place = 1 if name == "slice" else 2
        axis = node.args[place] if len(node.args) > place else node.kwargs.get("dim", 0)
        if "dim" in node.kwargs:
            return None
        return Plan((x,), {}, {place: last_axis(axis, rank)}, True)
    if name == "permute" or "dim" in node.kwargs or len(node.args) < 2 or node.args[1] is None:
        return None
    return _reduced(node, x, rank)


def _joined(node: Any, stored: dict[Any, Ref]) -> Plan | None:
    parts: Sequence[Any] = node.args[0]
    rank = rank_of(node)
    if rank < 3 or not any(n in stored for n in parts) or any(rank_of(n) != rank for n in parts):
        return None
    axis = node.args[1] if len(node.args) > 1 else 0
    return Plan(tuple(parts), {}, {1: last_axis(axis, rank)}, True)


def _reduced(node: Any, x: Any, rank: int) -> Plan | None:
    """A reduction whose result has PyTorch's order of axes, or keeps them all."""
    given = node.args[1]
    dims = [d % rank for d in (given if isinstance(given, list | tuple) else (given,))]
    keeps = (len(node.args) > 2 and node.args[2]) or node.kwargs.get("keepdim", False)
    place = {1: tuple(last_axis(d, rank) for d in dims)}
    if not dims:
        return None
    if keeps:
        return Plan((x,), {}, place, True)
    if 1 in dims or set(range(2, rank)) <= set(dims):
        return Plan((x,), {}, place, False)
    return None


#: Where operators take weights, by the beginning of their names.
_WEIGHTS = {
    "aten.convolution.": 1,
    "aten.linear.": 1,
    "aten.lstm.": 2,
    "aten.gru.": 2,
    "aten.rnn_tanh.": 2,
    "aten.rnn_relu.": 2,
}


def kernels(programs: Sequence[Any], ties: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """The parameters that are weights of layers and nothing else, and the axes they are stored in.

    Those of convolutions are stored as [space..., C / groups, O], other weights as [inputs,
    outputs], which is how Delian's layers have them. ties: the first name of a parameter by each
    of its names; its uses under all of them count.
    """
    found: dict[str, tuple[int, ...]] = {}
    other: set[str] = set()
    for program in programs:
        names = program.graph_signature.inputs_to_parameters
        for node in program.graph.nodes:
            name = names.get(node.name) if node.op == "placeholder" else None
            if name is None or rank_of(node) < 2:
                continue
            name = ties.get(name, name)
            uses = {_stored_axes(user, node) for user in node.users}
            axes = uses.pop() if len(uses) == 1 else None
            if axes is not None and found.setdefault(name, axes) == axes:
                continue
            if node.users:
                other.add(name)
    return {name: axes for name, axes in found.items() if name not in other}


def weight_place(node: Any) -> int | None:
    """Which argument of an operator is its weight, or its list of weights."""
    target = str(node.target)
    return next((place for name, place in _WEIGHTS.items() if target.startswith(name)), None)


def _stored_axes(user: Any, node: Any) -> tuple[int, ...] | None:
    """The axes for one use of a parameter; None where it is no weight."""
    place = weight_place(user)
    if place is None or sum(n is node for n in _flat(user.args)) != 1:
        return None
    if node not in _flat(user.args[place : place + 1]):
        return None
    if str(user.target).startswith("aten.convolution."):
        return kernel_axes(rank_of(node), bool(user.args[6]))
    return (1, 0)


def _flat(args: Sequence[Any]) -> list[Any]:
    return [n for a in args for n in (_flat(a) if isinstance(a, list | tuple) else [a])]
