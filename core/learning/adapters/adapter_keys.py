"""Random keys for the dropout of adapters: each of a model's adapters has one of its own."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from ...compiler import random
from ...compiler.ir import Tensor
from ...compiler.tree import flatten, unflatten
from .dora_weight import Dora
from .low_rank import LowRank

T = TypeVar("T")

#: Makes keys of adapters others than those of the model's own dropout, which are numbered from 1.
_ADAPTERS = 0x10A0


def keyed(parameters: dict[str, Tensor], key: Tensor) -> dict[str, Tensor]:
    """The parameters of a model, in which adapters with dropout have a key each."""
    own = random.fold_in(key, _ADAPTERS)
    return {
        name: _keyed(value, own, place) if isinstance(value, LowRank | Dora) else value
        for place, (name, value) in enumerate(parameters.items())
    }


def with_key(model: T, key: Tensor) -> T:
    """The model in training: its adapters drop parts of their inputs, under a key each.

    A model of `dl.from_torch` needs it not: `model.in_training(inputs, weight, key)` does it.

    key: u32[2].
    """
    own = random.fold_in(key, _ADAPTERS)
    nodes, structure = flatten(model, lambda node: isinstance(node, LowRank | Dora))
    made = [
        _keyed(node, own, place) if isinstance(node, LowRank | Dora) else node
        for place, node in enumerate(nodes)
    ]
    found: T = unflatten(structure, made)
    return found


def _keyed(weight: Any, key: Tensor, place: int) -> Any:
    if weight.settings is None or weight.settings.dropout == 0.0:
        return weight
    return dataclasses.replace(weight, key=random.fold_in(key, place))
