"""Models with adapters: made, taken apart, merged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ...common.errors import DelianError
from ...compiler import random
from ...compiler.ir import Array
from ...compiler.tree import flatten, unflatten
from ..interchange.torch.torch_model import TorchModel
from .adapter_settings import AdapterSettings, checked, names
from .dora_weight import Dora, column_norms
from .ia3_weight import Ia3, MovedBias
from .low_rank import LowRank
from .module_places import (
    WEIGHTS,
    Path,
    Place,
    at,
    dotted,
    module_name,
    places,
    replaced,
    tensor_name,
    walk,
)
from .summed_weight import SummedWeight
from .target_rules import chosen, is_saved, matches

T = TypeVar("T")

#: The fields of adapters that are trained.
TRAINED = {LowRank: ("a", "b"), Dora: ("a", "b", "magnitude"), Ia3: ("factors",)}


def lora(
    model: T,
    rank: int = 8,
    targets: str | Sequence[str] = ("query", "value"),
    alpha: float = 16.0,
    dropout: float = 0.0,
    use_rslora: bool = False,
    seed: int = 0,
    *,
    modules_to_save: Sequence[str] = (),
) -> T:
    """The model with an update of low rank on the weights of some layers (arXiv 2106.09685).

    Each weight W [inputs, outputs] becomes `LowRank`: W, A [inputs, rank], uniform within
    1 / sqrt(inputs) as PEFT draws it, and B [rank, outputs], zero. So the model computes at first
    what it did. All leaves but A, B and those of `modules_to_save` are meant to stay as they are
    (`adapters.adapter_roles`).

    Args:
        model: layers of `dl.nn`, or a model of `dl.from_torch`.
        rank: of the update.
        targets: endings of layers' names; or a regular expression for whole names; or "all-linear".
            Linear layers, transformers' Conv1D and embeddings can have adapters.
        alpha: the update counts alpha / rank times.
        dropout: probability with which an adapter's input is zero in training.
        use_rslora: the update counts alpha / sqrt(rank) times (arXiv 2312.03732).
        seed: of A.
        modules_to_save: endings of names of modules that are trained whole.

    Raises:
        DelianError: no layer has such a name, one takes no adapter, a number has no meaning, or
            the model has adapters already.
    """
    settings = AdapterSettings(
        "lora", names(targets), rank, alpha, dropout, use_rslora, tuple(modules_to_save)
    )
    return _made(model, settings, seed)


def dora(
    model: T,
    rank: int = 8,
    targets: str | Sequence[str] = ("query", "value"),
    alpha: float = 16.0,
    dropout: float = 0.0,
    use_rslora: bool = False,
    seed: int = 0,
    *,
    modules_to_save: Sequence[str] = (),
) -> T:
    """As `lora`, and the length of each of the weight's columns is trained too (arXiv 2402.09353).

    A weight becomes `Dora`, with a magnitude [outputs] besides. Embeddings are refused.
    """
    settings = AdapterSettings(
        "dora", names(targets), rank, alpha, dropout, use_rslora, tuple(modules_to_save)
    )
    return _made(model, settings, seed)


def ia3(
    model: T,
    targets: str | Sequence[str],
    feedforward: str | Sequence[str] = (),
    *,
    modules_to_save: Sequence[str] = (),
) -> T:
    """The model with scaled outputs of some layers, at first by 1 ((IA)^3; arXiv 2205.05638).

    Args:
        model: as for `lora`.
        targets: as for `lora`.
        feedforward: those of the targets whose input is scaled, and not the output.
        modules_to_save: endings of names of modules that are trained whole.

    Raises DelianError as `lora` does.
    """
    settings = AdapterSettings(
        "ia3",
        names(targets),
        modules_to_save=tuple(modules_to_save),
        feedforward=names(feedforward),
    )
    return _made(model, settings, 0)


def _made(model: T, settings: AdapterSettings, seed: int) -> T:
    if settings_of(model) is not None:
        raise DelianError(
            "the model has adapters already", "adapters.merged(model) is a model without"
        )
    picked = chosen(places(model), checked(settings))
    key = random.key(seed)
    values = {
        place.name: _first(at(model, place.weight), place, settings, random.fold_in(key, k))
        for k, place in enumerate(picked)
    }
    return put(model, settings, picked, values)


def _first(base: Any, place: Place, settings: AdapterSettings, key: Array) -> dict[str, Array]:
    """The values that training begins with."""
    inputs, outputs = base.shape
    if settings.kind == "ia3":
        size = inputs if matches(settings.feedforward, place.name) else outputs
        return {"factors": np.ones(size, np.float32)}
    rank = settings.rank_of(place.name)
    if place.kind == "embedding":
        first = np.zeros((inputs, rank), np.float32), random.normal(key, (rank, outputs))
    else:
        within = 1.0 / math.sqrt(inputs)
        first = (
            (random.uniform(key, (inputs, rank)) * 2.0 - 1.0) * within,
            np.zeros((rank, outputs), np.float32),
        )
    found = {"a": np.asarray(first[0], np.float32), "b": np.asarray(first[1], np.float32)}
    if settings.kind == "dora":
        start = Dora(base, found["a"], found["b"], found["b"][0])
        found["magnitude"] = np.asarray(column_norms(start), np.float32)
    return found


def put(
    model: T,
    settings: AdapterSettings,
    picked: Sequence[Place],
    values: Mapping[str, Mapping[str, Array]],
) -> T:
    """A model without adapters, with these: `values` by a layer's name and an adapter's field.

    Raises DelianError where `modules_to_save` names no module.
    """
    changes: dict[Path, Any] = {}
    for place in picked:
        base, own = at(model, place.weight), values[place.name]
        scale = settings.scale_of(place.name)
        if settings.kind == "lora":
            changes[place.weight] = LowRank(base, own["a"], own["b"], None, scale, settings)
        elif settings.kind == "dora":
            parts = base, own["a"], own["b"], own["magnitude"]
            changes[place.weight] = Dora(*parts, None, scale, settings)
        else:
            feedforward = matches(settings.feedforward, place.name)
            bias = None if feedforward or place.bias is None else at(model, place.bias)
            changes[place.weight] = Ia3(base, own["factors"], bias, feedforward, settings)
            if bias is not None and place.bias is not None:
                changes[place.bias] = MovedBias()
    made: T = replaced(model, changes)
    if settings.modules_to_save and not saved_leaves(made, settings):
        raise DelianError(
            f"modules_to_save: no module of the model ends with {settings.modules_to_save}",
            "name modules that are trained whole, such as the classifier",
        )
    return made


def settings_of(model: Any) -> AdapterSettings | None:
    """The settings of a model's adapters; None for a model without."""
    for _, node in walk(model):
        if isinstance(node, WEIGHTS):
            found: AdapterSettings | None = node.settings
            return found
    return None


def weights_of(model: Any) -> dict[str, tuple[Place, Any]]:
    """The adapters of a model by their layers' names, each with its place."""
    by_path = {place.weight: place for place in places(without(model))}
    found = {}
    for path, node in walk(model):
        if isinstance(node, WEIGHTS):
            found[by_path[path].name] = by_path[path], node
    return found


def saved_leaves(model: Any, settings: AdapterSettings) -> dict[str, Path]:
    """The parameters that are trained whole, by PEFT's names."""
    found: dict[str, Path] = {}
    if not settings.modules_to_save:
        return found
    leaves, _ = flatten(model, lambda node: isinstance(node, WEIGHTS))
    own = {id(leaf) for leaf in leaves if not isinstance(leaf, WEIGHTS)}
    for path, node in walk(model):
        if id(node) not in own or not path:
            continue
        if isinstance(model, TorchModel) and path[0] != "parameters":
            continue
        if is_saved(settings, module_name(model, path)):
            found[tensor_name(model, path)] = path
    return found


def without(model: T) -> T:
    """The base model: as it was before it had adapters."""
    return _plain(model, lambda node: (node.base, getattr(node, "bias", None)))


def merged(model: T) -> T:
    """A plain model that computes what the model with its adapters does, up to rounding."""
    return _plain(
        model,
        lambda node: (node.merged(), node.merged_bias() if isinstance(node, Ia3) else None),
    )


def _plain(model: T, of: Callable[[Any], tuple[Any, Any]]) -> T:
    changes: dict[Path, Any] = {}
    for path, node in walk(model):
        if isinstance(node, WEIGHTS):
            changes[path], bias = of(node)
            if bias is not None:
                changes[_bias(path)] = bias
    made: T = replaced(model, changes)
    return made


def _bias(weight: Path) -> Path:
    """Where the bias of a weight is."""
    last = weight[-1]
    return (*weight[:-1], f"{str(last).removesuffix('weight')}bias")


class Parts:
    """A model in two: `join(trained, frozen)` is the model.

    Not a dataclass. A compiled function that reads a dataclass from outside depends on all of its
    fields: each call would compare all weights, and compile again once a step had donated one.
    """

    __slots__ = ("frozen", "join", "trained")

    def __init__(
        self,
        trained: dict[str, Any],
        frozen: dict[str, Any],
        join: Callable[[dict[str, Any], dict[str, Any]], Any],
    ) -> None:
        self.trained = trained
        """Leaves of adapters and of `modules_to_save`, by their dotted names in the model."""
        self.frozen = frozen
        """All other leaves."""
        self.join = join
        """Puts a model together; it can be called in compiled functions."""


def split(model: Any) -> Parts:
    """The leaves that training changes, the others, and what joins them.

    A gradient with respect to the first alone computes no slope of a dense weight.
    """
    leaves, structure = flatten(model)
    paths = tuple(structure.paths())
    own = trained_names(model)
    both = dict(zip(paths, leaves, strict=True))

    def join(trained: dict[str, Any], frozen: dict[str, Any]) -> Any:
        found = {**trained, **frozen}
        return unflatten(structure, [found[path] for path in paths])

    trained = {name: value for name, value in both.items() if name in own}
    frozen = {name: value for name, value in both.items() if name not in own}
    return Parts(trained, frozen, join)


def trained_names(model: Any) -> frozenset[str]:
    """The dotted names, in the model's tree, of the leaves that training changes."""
    settings = settings_of(model)
    if settings is None:
        raise DelianError("the model has no adapters", "dl.lora(model, ...) gives it some")
    found = {dotted(path) for path in saved_leaves(model, settings).values()}
    for path, node in walk(model):
        if isinstance(node, WEIGHTS):
            found |= {dotted((*path, name)) for name in TRAINED[type(node)]}
            if isinstance(node.base, SummedWeight):
                found.add(dotted((*path, "base", "residual")))
    return frozenset(found)


def adapter_roles(model: Any) -> tuple[str, ...]:
    """The dotted names of a model's frozen leaves: all but those that training changes.

    Raises DelianError for a model without adapters.
    """
    own = trained_names(model)
    return tuple(name for name in flatten(model)[1].paths() if name not in own)
