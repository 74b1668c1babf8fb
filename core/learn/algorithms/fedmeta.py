"""Federated meta-learning: MAML, its first-order variant, and Meta-SGD.

Chen, Luo, Dong, Li and He, "Federated Meta-Learning with Fast Convergence and Efficient
Communication", arXiv:1802.07876, algorithm 1: a device adapts the model on a support batch, takes
the gradient of the adapted model's loss on a query batch, and the server steps along the mean of
those. One local meta-step before the upload is that algorithm; several are Per-FedAvg (Fallah,
Mokhtari and Ozdaglar, NeurIPS 2020, algorithm 1).

    theta' = theta - alpha grad L_support(theta)          meta-gradient = d/dtheta L_query(theta')

MAML (Finn, Abbeel and Levine, ICML 2017, equation 1) differentiates through the adaptation: the
compiler takes the reverse mode of a program that holds a reverse mode. FOMAML takes d theta'/d
theta for the identity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ... import functional, tree
from ...api import grad, value_and_grad
from ...ir import Tensor
from ..algorithm import Algorithm
from ..sampling import Batch
from ..task import Task


@dataclass(frozen=True)
class Maml(Algorithm):
    """The paper's alpha is `inner_learning_rate`, its beta the local optimiser's rate times the
    server's.

    Personalisation is the adaptation itself, at the rate that was trained for, `personal_steps`
    times.
    """

    first_order: bool = False
    inner_steps: int = 1
    inner_learning_rate: float = 0.1

    def steps(self, task: Task, data: Any) -> Any:
        return self.local_steps or task.source.episodes(data)

    def step_share(self, task: Task, data: Any, step: Any) -> Any:
        return task.source.episode_share(data, self._turn(task, data, step))

    def _turn(self, task: Task, data: Any, step: Any) -> Any:
        """The step within a pass: a fixed number of steps takes the episodes round and round."""
        return step % task.source.episodes(data) if self.local_steps else step

    def episode(self, task: Task, data: Any, order: Tensor, step: Any) -> tuple[Batch, Batch]:
        """(what a step adapts on, what it judges by)."""
        return task.source.episode(data, order, self._turn(task, data, step))

    def adapt(self, task: Task, state: Any, batch: Batch) -> Any:
        """theta': the inner steps on one support batch."""
        model = state
        for _ in range(self.inner_steps):
            gradient = grad(task.loss)(model, batch)
            if self.first_order:
                gradient = tree.map(functional.stop_gradient, gradient)
            model = tree.map(lambda p, g: p - self.inner_learning_rate * g, model, gradient)
        return model

    def judged(self, state: Any, support: Batch, query: Batch) -> Batch:
        """The query batch with weight zero for rows that this support batch says nothing about."""
        return query

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        support, query = self.episode(task, data, order, step)

        def meta_loss(at: Any) -> Tensor:
            return task.loss(self.adapt(task, at, support), self.judged(at, support, query))

        return value_and_grad(meta_loss)(current)


class MetaSgdState(NamedTuple):
    """`model` and `rates`: trees of the same structure and shapes."""

    model: Any
    rates: Any


@dataclass(frozen=True)
class MetaSgd(Maml):
    """Meta-SGD: the initialisation and a rate for every parameter are learnt together.

    Li, Zhou, Chen and Li, "Meta-SGD: Learning to Learn Quickly for Few-Shot Learning",
    arXiv:1707.09835, equation 4: theta' = theta - alpha o grad L_support(theta), and the
    meta-gradient is taken with respect to theta and alpha. `inner_learning_rate` is what every rate
    starts at. The upload is twice the model: rates travel as weights do.
    """

    def init(self, task: Task, key: Tensor) -> MetaSgdState:
        model = task.init(key)
        rate = self.inner_learning_rate
        return MetaSgdState(model, tree.map(lambda p: np.full_like(p, rate), model))

    def model(self, state: MetaSgdState) -> Any:
        return state.model

    def adapt(self, task: Task, state: MetaSgdState, batch: Batch) -> Any:
        model = state.model
        for _ in range(self.inner_steps):
            gradient = grad(task.loss)(model, batch)
            model = tree.map(lambda p, a, g: p - a * g, model, state.rates, gradient)
        return model

    def personalise(
        self, task: Task, state: MetaSgdState, data: Any, key: Tensor, kept: Any = ()
    ) -> Any:
        order = task.source.order(data, key)
        model = state.model
        for step in range(self.personal_steps):
            batch = task.source.adaptation(data, order, step)
            gradient = grad(task.loss)(model, batch)
            model = tree.map(lambda p, a, g: p - a * g, model, state.rates, gradient)
        return model
