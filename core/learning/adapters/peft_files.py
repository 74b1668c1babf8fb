"""Folders of adapters as PEFT writes and reads them.

    adapter_config.json          the settings (`peft_config`)
    adapter_model.safetensors    base_model.model.MODULE.lora_A.weight [rank, inputs],
                                 MODULE.lora_B.weight [outputs, rank], MODULE.lora_magnitude_vector
                                 [outputs], MODULE.lora_embedding_A [rank, symbols] and _B [width,
                                 rank], MODULE.ia3_l [outputs, 1] or [1, inputs]; and the tensors of
                                 `modules_to_save` under their own names

A folder comes from outside. The model says which names and shapes may be in it, and how long it
may be; whatever differs is an error, and the model that was given stays as it is.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any, NoReturn, TypeVar

import numpy as np

from ...common.errors import DelianError
from ...compiler.ir import Array
from ...compiler.tree import leaves
from ..interchange.model_card import open_folder, write_text
from ..interchange.safetensors_file import HEADER_BYTES_MAX, read_safetensors, write_safetensors
from ..interchange.torch.torch_model import TorchModel
from .adapted import put, saved_leaves, settings_of, weights_of, without
from .adapter_settings import AdapterSettings
from .low_rank import dense
from .module_places import Path, Place, at, places, replaced
from .peft_config import NAME as CONFIG_NAME
from .peft_config import config_text, read_config
from .target_rules import check, chosen, matches

T = TypeVar("T")

NAME = "adapter_model.safetensors"
PREFIX = "base_model.model."
#: The endings of tensors' names, and the fields of adapters that they are.
_ENDINGS = {
    ".lora_A.weight": "a",
    ".lora_B.weight": "b",
    ".lora_embedding_A": "a",
    ".lora_embedding_B": "b",
    ".lora_magnitude_vector": "magnitude",
    ".ia3_l": "factors",
}
_FIELDS = {"lora": {"a", "b"}, "dora": {"a", "b", "magnitude"}, "ia3": {"factors"}}
#: PEFT also writes the table of an embedding that has an adapter.
_BASE = ".base_layer.weight"
#: Bytes of the widest element, f64.
_ITEM_BYTES_MAX = 8
#: Names that a message shows.
_SHOWN = 3
_OTHER = "load it into the base model that it was trained on, of the same configuration"


def save_adapter(model: Any, folder: str | os.PathLike[str]) -> None:
    """Writes a model's adapters as a folder that `PeftModel.from_pretrained(net, folder)` reads.

    Raises DelianError for a model without adapters, and where the folder cannot be written.
    """
    settings = settings_of(model)
    if settings is None:
        raise DelianError("the model has no adapters", "dl.lora(model, ...) gives it some")
    found = weights_of(model)
    tensors: dict[str, Array] = {}
    for name, (place, node) in found.items():
        for ending, value in _tensors(place, node).items():
            tensors[f"{PREFIX}{name}{ending}"] = np.ascontiguousarray(value, np.float32)
    for name, path in saved_leaves(model, settings).items():
        tensors[f"{PREFIX}{name}"] = _in_torch_axes(model, path, at(model, path))
    targets, forward = _named(settings, found)
    stored = all(place.kind == "conv1d" for place, _ in found.values())
    where = _path_of(folder)
    open_folder(where)
    write_safetensors(where / NAME, tensors, {"format": "pt"})
    write_text(where / CONFIG_NAME, config_text(settings, targets, forward, stored))


def _named(
    settings: AdapterSettings, found: Mapping[str, tuple[Place, Any]]
) -> tuple[list[str], list[str]]:
    """Which layers have adapters, and which of them scale their input, for the configuration.

    By the ends of names that the user gave, if PEFT takes them; by whole names if not.
    """
    targets, forward = settings.targets, settings.feedforward
    if not isinstance(targets, str) and not isinstance(forward, str) and {*forward} <= {*targets}:
        return list(targets), list(forward)
    inputs = [name for name, (_, node) in found.items() if getattr(node, "feedforward", False)]
    return sorted(found), sorted(inputs)


def _tensors(place: Place, node: Any) -> dict[str, Array]:
    """An adapter's tensors by the endings of their names, in PyTorch's axes."""
    if hasattr(node, "factors"):
        axis = 0 if node.feedforward else 1
        return {".ia3_l": np.expand_dims(np.asarray(node.factors), axis)}
    kind = "embedding_" if place.kind == "embedding" else ""
    last = "" if kind else ".weight"
    found = {f".lora_{kind}A{last}": np.transpose(node.a), f".lora_{kind}B{last}": node.b.T}
    if hasattr(node, "magnitude"):
        found[".lora_magnitude_vector"] = node.magnitude
    return found


def _in_torch_axes(model: Any, path: Path, value: Any) -> Array:
    axes = model.graphs.kernels.get(path[-1]) if isinstance(model, TorchModel) else None
    turned = value if axes is None else np.transpose(value, [int(k) for k in np.argsort(axes)])
    return np.ascontiguousarray(turned, np.float32)


def load_adapter(model: T, folder: str | os.PathLike[str]) -> T:
    """The model with the adapters of a folder that `save_adapter` or PEFT wrote.

    A model that has adapters keeps its base, and takes adapters of the same kind and ranks alone.

    Raises:
        DelianError: a file is missing, damaged or too long; it is the adapter of another model
            (names or shapes differ), of another kind or rank; or its configuration has an option
            that changes what the adapter computes, and that Delian does not have.
    """
    where = _path_of(folder)
    settings, now = read_config(where), settings_of(model)
    base = without(model)
    made: T = _Reader(base, settings, str(where / NAME)).read(where / NAME)
    if now is not None:
        _check_same(model, made, str(where))
    return made


def _path_of(folder: Any) -> FilePath:
    """Raises DelianError for what names no folder."""
    if not isinstance(folder, str | os.PathLike):
        raise DelianError(
            f"{str(folder)[:60]!r} is {type(folder).__name__}, and no folder of an adapter",
            "give its path: load_adapter(model, 'my-adapter')",
        )
    return FilePath(folder)


def _check_same(model: Any, made: Any, where: str) -> None:
    own, new = weights_of(model), weights_of(made)
    if set(own) != set(new):
        other = sorted(set(own) ^ set(new))[0]
        raise DelianError(
            f"{where}: its adapters are on other layers than the model's ({other})",
            "load it into the model without adapters",
        )
    for name, (_, node) in own.items():
        kinds = type(node).__name__, type(new[name][1]).__name__
        if kinds[0] != kinds[1]:
            raise DelianError(
                f"{where}: its adapters are {kinds[1]}, and the model's are {kinds[0]}",
                "load it into the model without adapters",
            )
        sizes = [np.shape(leaf) for leaf in leaves(node)]
        if sizes != [np.shape(leaf) for leaf in leaves(new[name][1])]:
            raise DelianError(
                f"{where}: {name} has another rank than the model's adapter",
                "load it into the model without adapters, or train with the rank of the file",
            )


class _Reader:
    """Reads the tensors of one folder for a base model; `where` begins each message."""

    def __init__(self, base: Any, settings: AdapterSettings, where: str) -> None:
        self.base = base
        self.settings = settings
        self.where = where
        self.places = {place.name: place for place in places(base)}

    def fail(self, what: str, hint: str = _OTHER) -> NoReturn:
        raise DelianError(f"{self.where}: {what}", hint)

    def read(self, path: FilePath) -> Any:
        """The base model with the adapters of the file."""
        self._check_size(path)
        tensors, _ = read_safetensors(path)
        values, others = self._sorted(tensors)
        picked = [self._place(name) for name in values]
        for place in picked:
            values[place.name] = self._checked(place, values[place.name])
        self._check_targets(picked)
        settings = self._settled(picked, values)
        made = put(self.base, settings, picked, values)
        return replaced(made, self._saved(made, settings, others))

    def _check_size(self, path: FilePath) -> None:
        """A file is not longer than all that could be in it, in the widest type."""
        ranks = [self.settings.rank, *(rank for _, rank in self.settings.rank_pattern)]
        elements = sum(np.size(leaf) for leaf in leaves(self.base))
        for place in self.places.values():
            if not place.refusal:
                elements += sum(at(self.base, place.weight).shape) * (max(ranks) + 1)
        limit = elements * _ITEM_BYTES_MAX + HEADER_BYTES_MAX
        try:
            size = path.stat().st_size
        except OSError as error:
            self.fail(f"cannot be read: {error.strerror or error}", "save the adapter again")
        if size > limit:
            self.fail(f"{size} bytes; an adapter of this model has at most {limit}")

    def _sorted(
        self, tensors: Mapping[str, Array]
    ) -> tuple[dict[str, dict[str, Array]], dict[str, Array]]:
        """The tensors of adapters by layer and field, and the others by their names."""
        values: dict[str, dict[str, Array]] = {}
        others: dict[str, Array] = {}
        for full, tensor in tensors.items():
            if not full.startswith(PREFIX):
                self.fail(f"{_text(full)} does not begin with {PREFIX}", "save it again with PEFT")
            array = self._numbers(full, tensor)
            name = full.removeprefix(PREFIX)
            ending = next((e for e in _ENDINGS if name.endswith(e)), None)
            if ending is None:
                others[name] = array
                continue
            layer = name.removesuffix(ending)
            is_table = ending.startswith(".lora_embedding")
            place = self.places.get(layer)
            known = place is not None and ending.startswith(".lora_")
            if place is not None and known and is_table != (place.kind == "embedding"):
                self.fail(f"{_text(layer)} is a layer {place.kind}, and has {ending}")
            values.setdefault(layer, {})[_ENDINGS[ending]] = array
        if not values:
            self.fail("there is no adapter in it", "save it again")
        return values, others

    def _numbers(self, name: str, tensor: Array) -> Array:
        if tensor.dtype.kind != "f" and tensor.dtype.name != "bfloat16":
            self.fail(f"{_text(name)} is of {tensor.dtype}", "an adapter is of floats")
        array: Array = tensor.astype(np.float32)
        if not np.isfinite(array).all():
            self.fail(f"{_text(name)} has NaN or infinity", "the adapter has diverged")
        return array

    def _place(self, name: str) -> Place:
        place = self.places.get(name)
        if place is None:
            self.fail(f"an adapter of another model: there is no layer {_text(name)}")
        check(place, self.settings)
        return place

    def _checked(self, place: Place, given: dict[str, Array]) -> dict[str, Array]:
        """An adapter's values in Delian's axes."""
        kind, wanted = self.settings.kind, _FIELDS[self.settings.kind]
        if set(given) != wanted:
            have = ", ".join(sorted(given))
            self.fail(
                f"{place.name} has {have}, and an adapter of kind {kind} has"
                f" {', '.join(sorted(wanted))}",
                "configuration and tensors are of different adapters: save both again",
            )
        inputs, outputs = at(self.base, place.weight).shape
        if kind == "ia3":
            factors = given["factors"]
            if factors.shape not in ((outputs, 1), (1, inputs)):
                self._shape(place, "ia3_l", factors, (outputs, 1))
            return {"factors": factors}
        rank = self.settings.rank_of(place.name)
        a, b = given["a"], given["b"]
        if a.ndim == 2 and b.ndim == 2 and a.shape[0] == b.shape[1] != rank:
            self.fail(
                f"{place.name} has rank {a.shape[0]}, and the configuration says {rank}",
                "configuration and tensors are of different adapters: save both again",
            )
        if a.shape != (rank, inputs):
            self._shape(place, "A", a, (rank, inputs))
        if b.shape != (outputs, rank):
            self._shape(place, "B", b, (outputs, rank))
        found = {"a": np.ascontiguousarray(a.T), "b": np.ascontiguousarray(b.T)}
        if kind == "dora":
            found["magnitude"] = given["magnitude"]
            if given["magnitude"].shape != (outputs,):
                self._shape(place, "the magnitude", given["magnitude"], (outputs,))
        return found

    def _shape(self, place: Place, what: str, array: Array, wanted: tuple[int, ...]) -> NoReturn:
        self.fail(
            f"an adapter of another model: {what} of {place.name} has the shape"
            f" {list(array.shape)}, and needs {list(wanted)}"
        )

    def _check_targets(self, picked: list[Place]) -> None:
        """Every layer that the configuration names has an adapter, and no other one."""
        if not self.settings.targets:
            return
        named = chosen(list(self.places.values()), self.settings, strict=False)
        wanted, have = {place.name for place in named}, {place.name for place in picked}
        if odd := sorted(have - wanted):
            self.fail(f"{odd[0]} has an adapter that the configuration does not name")
        if missing := sorted(wanted - have):
            self.fail(
                f"there is no adapter of {missing[0]}, which the configuration names",
                "the file is not whole, or of another model: get it again",
            )

    def _settled(self, picked: list[Place], values: dict[str, dict[str, Array]]) -> AdapterSettings:
        """The settings with the layers that there are, and the vectors of (IA)^3 as vectors."""
        settings = self.settings
        names = {place.name for place in picked}
        if not settings.targets:
            settings = dataclasses.replace(settings, targets=tuple(sorted(names)))
        if settings.kind != "ia3":
            return settings
        forward = {name for name in names if values[name]["factors"].shape[0] == 1}
        by_rule = {name for name in names if matches(settings.feedforward, name)}
        for name in names:
            values[name] = {"factors": values[name]["factors"].reshape(-1)}
        if forward == by_rule:
            return settings
        return dataclasses.replace(settings, feedforward=tuple(sorted(forward)))

    def _saved(
        self, made: Any, settings: AdapterSettings, others: dict[str, Array]
    ) -> dict[Path, Array]:
        """The parameters of modules that are stored whole, by their paths."""
        wanted = saved_leaves(made, settings)
        changes: dict[Path, Array] = {}
        for name, array in others.items():
            if name.endswith(_BASE):
                self._check_base(name.removesuffix(_BASE), array)
                continue
            if name not in wanted:
                self.fail(f"an adapter of another model: {_text(name)} is unknown")
            path = wanted[name]
            changes[path] = self._stored(name, path, array)
        if missing := [name for name in wanted if name not in others]:
            self.fail(f"modules_to_save: {', '.join(missing[:_SHOWN])} is missing")
        return changes

    def _check_base(self, layer: str, array: Array) -> None:
        place = self.places.get(layer)
        own = None if place is None else at(self.base, place.weight)
        if own is None or own.shape != array.shape or not np.array_equal(dense(own), array):
            self.fail(f"an adapter of another model: the table of {_text(layer)} differs")

    def _stored(self, name: str, path: Path, array: Array) -> Array:
        own = _in_torch_axes(self.base, path, at(self.base, path))
        if own.shape != array.shape:
            self.fail(
                f"an adapter of another model: {_text(name)} has the shape {list(array.shape)}, and"
                f" needs {list(own.shape)}"
            )
        axes = self.base.graphs.kernels.get(path[-1]) if isinstance(self.base, TorchModel) else None
        return array if axes is None else np.ascontiguousarray(np.transpose(array, axes))


def _text(name: str) -> str:
    """A name of the file, as a message repeats it."""
    shown = ascii(name)[1:-1]
    return shown if len(shown) <= 100 else f"{shown[:100]}..."
