"""Roles of the leaves of models with LoRA, for algorithms that treat A and B differently."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..leaf_roles import Role, leaf_names
from .adapted import trained_names
from .low_rank import LowRank
from .module_places import dotted, walk


def lora_roles(model: Any, own: Mapping[str, Role]) -> list[Role]:
    """The role of each leaf: all is frozen but adapters and `modules_to_save`, which are shared.

    own: other roles of an adapter's `a` and `b`. Raises DelianError for a model without adapters.
    """
    trained = trained_names(model)
    fields: dict[str, Role] = {
        dotted((*path, name)): role
        for path, node in walk(model)
        if isinstance(node, LowRank)
        for name, role in own.items()
    }
    return [
        fields.get(name, "shared") if name in trained else "frozen" for name in leaf_names(model)
    ]
