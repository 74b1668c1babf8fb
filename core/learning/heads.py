"""A model's head and its body.

A model's *head* is its last leaves, in its tree's order: the weight and the bias of the last layer.
One from PyTorch has them in the order of its module (`last_parameters`).
The rest is the body.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiler import tree
from ..compiler.ir import Tensor
from .leaf_roles import Role


def head_of(model: Any, leaves: int) -> list[Tensor]:
    """The last `leaves` leaves."""
    if hasattr(model, "last_parameters"):
        return model.last_parameters(leaves)  # type: ignore[no-any-return]
    return list(tree.leaves(model)[-leaves:])


def with_head(model: Any, head: list[Tensor]) -> Any:
    """The model with these for its last leaves."""
    if hasattr(model, "with_last_parameters"):
        return model.with_last_parameters(head)
    leaves, structure = tree.flatten(model)
    return tree.unflatten(structure, [*leaves[: -len(head)], *head])


def body_only(change: Any, leaves: int) -> Any:
    """The tree with zeros in the place of the head."""
    return with_head(change, [np.zeros_like(leaf) for leaf in head_of(change, leaves)])


def head_only(change: Any, leaves: int) -> Any:
    """The tree with zeros in the place of the body."""
    return with_head(tree.map(np.zeros_like, change), head_of(change, leaves))


def personal_head(model: Any, leaves: int) -> list[Role]:
    """The role of each leaf of the model's tree: the head is personal."""
    count = min(leaves, len(tree.leaves(model)))
    heads: list[Any] = ["personal"] * count
    roles: list[Role] = tree.leaves(with_head(tree.map(lambda _: "shared", model), heads))
    return roles


def head_order(places: Any) -> list[int]:
    """The places of all leaves, those of the head last.

    places: the model with each leaf's place in its tree.
    """
    every: list[int] = tree.leaves(places)
    if not hasattr(places, "last_parameters"):
        return every
    last: list[int] = places.last_parameters(len(every))
    return [k for k in every if k not in last] + last
