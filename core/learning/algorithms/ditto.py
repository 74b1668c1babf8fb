"""Ditto.

Li, Hu, Beirami and Smith, "Ditto: Fair and Robust Federated Learning Through Personalization", ICML
2021, algorithm 1: each device takes part in training the shared model w, here by federated
averaging, and also trains a model v_k of its own, held near w:

    v_k <- v_k - eta (grad F_k(v_k) + lambda (v_k - w_t))

v_k is the client state and never leaves the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...compiler import random, tree
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm, ClientResult
from ..hyperparameters import Strength
from ..task import Task


@dataclass(frozen=True)
class Ditto(Algorithm):
    """Ditto: a model of each device's own, held near the shared one (Li et al. 2021).

    v_k is trained by as many passes as w, by the same local optimiser. The device's own model is
    v_k; it begins as the shared model that the device first receives.
    """

    about: ClassVar[About] = About(
        "Ditto", "Li et al. 2021", "the shared model's change", "its own model"
    )

    attraction: Strength = 0.1
    """How strongly it is held (lambda). 0: each device trains alone."""

    def client_state(self, task: Task, state: Any) -> Any:
        return state

    def client_update(
        self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()
    ) -> ClientResult:
        keys = random.split(key, 2)
        shared = Algorithm.client_update(self, task, state, data, keys[0])
        own, _ = self.descend(task, kept, state, data, keys[1], self.attracted)
        return shared._replace(kept=own)

    def attracted(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        """(F_k, grad F_k(v_k) + lambda (v_k - w_t))."""
        loss, gradient = self.gradient(task, current, state, data, order, step)
        return loss, tree.map(
            lambda g, v, w: g + self.attraction * (v - w), gradient, current, state
        )

    def personalise(self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()) -> Any:
        """v_k after `personal_steps` more."""
        order = task.source.order(data, key)
        own = kept
        for step in range(self.personal_steps):
            _, gradient = self.attracted(task, own, state, data, order, step)
            own = tree.map(lambda v, g: v - self.personal_learning_rate * g, own, gradient)
        return own
