"""FedBABU.

Oh, Kim and Yun, "FedBABU: Toward Enhanced Representation for Federated Image Classification", ICLR
2022, algorithm 1: the head stays as it was first drawn, the same one on every device, until the
body is trained; then each device fine-tunes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm
from ..heads import body_only, personal_head
from ..hyperparameters import HeadLeaves
from ..leaf_roles import Role
from ..task import Task


@dataclass(frozen=True)
class FedBabu(Algorithm):
    """FedBABU: the head stays as it was drawn until the body is done (Oh et al. 2022)."""

    about: ClassVar[About] = About("FedBABU", "Oh et al. 2022", "the body's change")

    head_leaves: HeadLeaves = 2
    """How many of the model's last arrays are the head: a layer has a weight and a bias."""

    def roles(self, model: Any) -> Sequence[Role]:
        return personal_head(model, self.head_leaves)

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        loss, gradient = Algorithm.gradient(self, task, current, state, data, order, step)
        return loss, body_only(gradient, self.head_leaves)
