"""Where a model has layers that adapters know: by the module names that PEFT would see.

A model of `dl.from_torch` has PyTorch's names. In other models a name is the path of a layer in the
model's tree (`layers.0.attention.query`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...compiler.ops.quantised_weights import QuantisedWeight
from ...compiler.tree import LEAF, Structure, build, children
from ..interchange.torch.torch_model import TorchModel
from ..nn.layers import Conv, ConvTranspose, Dense, DepthwiseConv, Embedding
from .dora_weight import Dora
from .ia3_weight import Ia3
from .low_rank import LowRank

#: The steps from a model's root to a node of its tree.
Path = tuple[Any, ...]

#: The objects that stand in the place of weights.
WEIGHTS = (LowRank, Dora, Ia3)

_CONVOLUTIONS = (Conv, ConvTranspose, DepthwiseConv)
_PARAMETERS = "parameters"


@dataclass(frozen=True)
class Place:
    """A layer that targets can name."""

    name: str
    """The module's name as PEFT has it."""
    kind: str
    """`linear`, `conv1d`, `embedding`, or the class of a layer that takes no adapter."""
    weight: Path
    bias: Path | None = None
    is_head: bool = False
    """Whether it is the model's output layer, which "all-linear" leaves out."""
    refusal: str = ""
    """Why its weight cannot be replaced; empty where it can."""
    is_named: bool = False
    """Whether it is known by its name alone: a matrix that is no layer of `dl.nn`."""


def walk(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All nodes of a tree with their paths, from the root. Objects of weights stay whole."""
    yield path, node
    parts = None if isinstance(node, (*WEIGHTS, QuantisedWeight)) else children(node)
    if parts is not None:
        for key, child in zip(parts[0], parts[1], strict=True):
            yield from walk(child, (*path, key))


def dotted(path: Path) -> str:
    """A path as the tree's structure names it."""
    return ".".join(str(key) for key in path)


def at(tree: Any, path: Path) -> Any:
    """The node at a path."""
    for key in path:
        parts = children(tree)
        assert parts is not None
        tree = parts[1][parts[0].index(key)]
    return tree


def replaced(tree: Any, changes: Mapping[Path, Any]) -> Any:
    """The tree with other nodes at these paths."""
    if not changes:
        return tree
    if () in changes:
        return changes[()]
    parts = children(tree)
    assert parts is not None
    keys, nodes, fixed = parts
    below: dict[Any, dict[Path, Any]] = {}
    for path, value in changes.items():
        below.setdefault(path[0], {})[path[1:]] = value
    made = [replaced(n, below.get(key, {})) for key, n in zip(keys, nodes, strict=True)]
    order = tuple(tree) if isinstance(tree, dict) else ()
    return build(Structure(type(tree), keys, (LEAF,) * len(keys), fixed, order), made)


def places(model: Any) -> list[Place]:
    """The layers of a model without adapters, in its order."""
    return _of_torch(model) if isinstance(model, TorchModel) else _of_tree(model)


def module_name(model: Any, path: Path) -> str:
    """The name of the module that a parameter belongs to, as PEFT has it."""
    return tensor_name(model, path).rpartition(".")[0]


def tensor_name(model: Any, path: Path) -> str:
    """The name of a parameter, as PEFT has it."""
    if isinstance(model, TorchModel):
        return dotted(path[1:]).removeprefix(_prefix(model))
    return dotted(path)


def _prefix(model: TorchModel) -> str:
    """What names in the module have before those of the model that it wraps."""
    return "" if model.graphs.source is None else model.graphs.source.prefix


def _of_torch(model: TorchModel) -> list[Place]:
    found, graphs = [], model.graphs
    shared = {name for name in graphs.others.values() if isinstance(name, str)}
    for module, kind in graphs.layers.items():
        name = f"{module}.weight"
        refusal = ""
        if kind.removesuffix(" head") in ("linear", "conv1d", "embedding"):
            if name not in model.parameters:
                refusal = "its weight is a constant of the program"
                if isinstance(graphs.others.get(name), str):
                    refusal = f"its weight is tied to {graphs.others[name]}"
            elif name in shared:
                refusal = "its weight is tied to another layer's"
            elif kind.startswith("linear") and graphs.kernels.get(name) != (1, 0):
                refusal = "its weight has another use in the module besides the layer"
        bias = f"{module}.bias"
        found.append(
            Place(
                module.removeprefix(_prefix(model)),
                kind.removesuffix(" head"),
                (_PARAMETERS, name),
                (_PARAMETERS, bias) if bias in model.parameters else None,
                kind.endswith(" head"),
                refusal,
            )
        )
    return found


def _of_tree(model: Any) -> list[Place]:
    found: list[Place] = []
    inside: set[Path] = set()
    for path, node in walk(model):
        name = dotted(path)
        if isinstance(node, Dense):
            found.append(Place(name, "linear", (*path, "weight"), (*path, "bias")))
            inside |= {(*path, "weight")}
        elif isinstance(node, Embedding):
            found.append(Place(name, "embedding", (*path, "table")))
            inside |= {(*path, "table")}
        elif isinstance(node, _CONVOLUTIONS):
            found.append(Place(name, type(node).__name__, (*path, "kernel")))
            inside |= {(*path, "kernel")}
        elif path not in inside and _is_matrix(node):
            own = name.removesuffix(".weight")
            bias = (*path[:-1], "bias")
            is_layer = own != name and _has(model, bias)
            found.append(Place(own, "linear", path, bias if is_layer else None, is_named=True))
    return found


def _is_matrix(node: Any) -> bool:
    if isinstance(node, QuantisedWeight):
        return True
    return children(node) is None and np.ndim(node) == 2 and np.result_type(node).kind == "f"


def _has(model: Any, path: Path) -> bool:
    parts = children(at(model, path[:-1]))
    return parts is not None and path[-1] in parts[0] and at(model, path) is not None
