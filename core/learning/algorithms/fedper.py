"""FedPer.

Arivazhagan, Aggarwal, Singh and Choudhary, "Federated Learning with Personalization Layers",
arXiv:1912.00818, algorithm 1: all devices train the body together, and each has a head of its own,
which is trained with the body and never leaves the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...compiler import tree
from ...compiler.api import grad
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm, ClientResult
from ..heads import body_only, head_of, head_only, with_head
from ..hyperparameters import HeadLeaves
from ..task import Task


@dataclass(frozen=True)
class FedPer(Algorithm):
    """FedPer: a shared body under a head of each device's own (Arivazhagan et al. 2019).

    The head is the client state; a device begins with the head that was first drawn.
    """

    about: ClassVar[About] = About(
        "FedPer",
        "Arivazhagan et al. 2019",
        "the body's change, zeros for the head",
        "its head",
        unused_model="the shared body under the head that was first drawn",
    )

    head_leaves: HeadLeaves = 2
    """How many of the model's last arrays are the head: a layer has a weight and a bias."""

    def client_state(self, task: Task, state: Any) -> Any:
        return head_of(state, self.head_leaves)

    def starts(self, task: Task, state: Any, kept: Any) -> tuple[Any, Any]:
        start = with_head(state, kept)
        return start, start

    def result(
        self, task: Task, state: Any, end: Any, loss: Tensor, data: Any, kept: Any
    ) -> ClientResult:
        start = with_head(state, kept)
        update = body_only(tree.map(np.subtract, end, start), self.head_leaves)
        return ClientResult(update, self.weight(data), loss, head_of(end, self.head_leaves))

    def personalise(self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()) -> Any:
        """The shared body under the device's head, which is fine-tuned alone."""
        order = task.source.order(data, key)
        model = with_head(state, kept)
        for step in range(self.personal_steps):
            batch = task.source.adaptation(data, order, step)
            gradient = head_only(grad(task.loss)(model, batch), self.head_leaves)
            model = tree.map(lambda p, g: p - self.personal_learning_rate * g, model, gradient)
        return model
