"""FedPer.

Arivazhagan, Aggarwal, Singh and Choudhary, "Federated Learning with Personalization Layers",
arXiv:1912.00818, algorithm 1: all devices train the body together, and each has a head of its own,
which is trained with the body and never leaves the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ...compiler import tree
from ...compiler.api import grad
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm
from ..heads import head_only, personal_head
from ..hyperparameters import HeadLeaves
from ..leaf_roles import Role
from ..task import Task


@dataclass(frozen=True)
class FedPer(Algorithm):
    """FedPer: a shared body under a head of each device's own (Arivazhagan et al. 2019).

    The head is personal; a device begins with the head that was first drawn.
    """

    about: ClassVar[About] = About(
        "FedPer",
        "Arivazhagan et al. 2019",
        "the body's change",
        "its head",
        unused_model="the shared body under the head that was first drawn",
    )

    head_leaves: HeadLeaves = 2
    """How many of the model's last arrays are the head: a layer has a weight and a bias."""

    def roles(self, model: Any) -> Sequence[Role]:
        return personal_head(model, self.head_leaves)

    def personalise(self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()) -> Any:
        """The shared body under the device's head, which is fine-tuned alone."""
        order = task.source.order(data, key)
        model = state
        for step in range(self.personal_steps):
            batch = task.source.adaptation(data, order, step)
            gradient = head_only(grad(task.loss)(model, batch), self.head_leaves)
            model = tree.map(lambda p, g: p - self.personal_learning_rate * g, model, gradient)
        return model
