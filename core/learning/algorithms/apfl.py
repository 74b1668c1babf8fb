"""APFL: adaptive personalised federated learning.

Deng, Kamani and Mahdavi, "Adaptive Personalized Federated Learning", arXiv:2003.13461, algorithm 1:
each device mixes the shared model w with one of its own, v, and learns how much of which it wants.

    m = alpha v + (1 - alpha) w                         the device's model
    w <- w - eta grad f(w);   v <- v - eta alpha grad f(m)
    alpha <- alpha - eta <v - w, grad f(m)>             equation 9, held within [0, 1]

The client state is (v, alpha).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ...compiler import tree
from ...compiler.api import value_and_grad
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm, ClientResult
from ..hyperparameters import Bounds, Rate
from ..task import Task


class Mixed(NamedTuple):
    """The client state."""

    own: Any
    """v, a tree like the model."""
    share: Tensor
    """alpha, f32[]."""


@dataclass(frozen=True)
class Apfl(Algorithm):
    """APFL: each device learns a mixture of the shared model and its own (Deng et al. 2020).

    v descends as w does, by the local optimiser; alpha at the first step of every round.
    """

    about: ClassVar[About] = About(
        "APFL", "Deng et al. 2020", "the shared model's change", "its own model and its share"
    )

    share: Annotated[float, Bounds(ge=0.0, le=1.0)] = 0.5
    """The own model's share at first (alpha). A half favours neither model."""
    share_learning_rate: Rate = 0.01
    """The rate at which the share is learnt, below that of the models, so that it moves slowly."""

    def client_state(self, task: Task, state: Any) -> Mixed:
        return Mixed(state, np.float32(self.share))

    def mix(self, state: Any, kept: Mixed) -> Any:
        """The mixture m = alpha v + (1 - alpha) w."""
        alpha = kept.share
        return tree.map(lambda v, w: alpha * v + (1.0 - alpha) * w, kept.own, state)

    def client_update(
        self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()
    ) -> ClientResult:
        kept = Mixed(kept.own, self.learnt_share(task, state, data, key, kept))
        start = (state, kept.own)

        def gradient(
            task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
        ) -> Any:
            shared, own = current
            loss, slope = self.gradient(task, shared, shared, data, order, step)
            mixed = self.mix(shared, Mixed(own, kept.share))
            _, bent = self.gradient(task, mixed, shared, data, order, step)
            return loss, (slope, tree.map(lambda g: kept.share * g, bent))

        (shared, own), loss = self.descend(task, start, state, data, key, gradient)
        update = tree.map(np.subtract, shared, state)
        return ClientResult(update, self.weight(data), loss, Mixed(own, kept.share))

    def learnt_share(self, task: Task, state: Any, data: Any, key: Tensor, kept: Mixed) -> Tensor:
        """The share alpha after equation 9."""
        batch = task.source.batch(data, task.source.order(data, key), 0)
        _, slope = value_and_grad(task.loss)(self.mix(state, kept), batch)
        products = tree.map(lambda v, w, g: np.sum((v - w) * g), kept.own, state, slope)
        step = self.share_learning_rate * sum(tree.leaves(products))
        return np.clip(kept.share - step, 0.0, 1.0)

    def personalise(self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()) -> Any:
        """m, after `personal_steps` of v on the support set."""
        alpha = kept.share
        order = task.source.order(data, key)
        for step in range(self.personal_steps):
            batch = task.source.adaptation(data, order, step)
            _, slope = value_and_grad(task.loss)(self.mix(state, kept), batch)
            own = tree.map(
                lambda v, g: v - self.personal_learning_rate * alpha * g, kept.own, slope
            )
            kept = Mixed(own, alpha)
        return self.mix(state, kept)
