"""A model's head and its body.

A model's *head* is its last leaves, in its tree's order: the weight and the bias of the last layer.
One from PyTorch has them in the order of its module (`last_parameters`).
The rest is the body. An upload of the body alone has the model's form, with zeros in the place of
the head: what a head learns of a device's labels does not leave the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..compiler import tree
from ..compiler.ir import Tensor


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
