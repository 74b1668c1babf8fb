"""pFedMe.

Dinh, Tran and Nguyen, "Personalized Federated Learning with Moreau Envelopes", NeurIPS 2020,
algorithm 1: a device's loss is the Moreau envelope of its own, F_i(w) = min_theta f_i(theta) +
lambda/2 |theta - w|^2. The minimiser theta_i(w) is its personal model, the envelope's gradient
lambda (w - theta_i(w)) what it descends on:

    theta ~ argmin f(theta; batch) + lambda/2 |theta - w|^2           K gradient steps, equation 7
    w <- w - eta lambda (w - theta)                                                 R of these
    w_{t+1} = (1 - beta) w_t + beta mean w_i                     the rate of the server's SGD: beta

theta_i is computed from w each time, so there is no client state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from ...compiler import tree
from ...compiler.api import value_and_grad
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm
from ..hyperparameters import Bounds, Rate, Strength
from ..nn.optim import apply
from ..sampling import Batch
from ..task import Task


@dataclass(frozen=True)
class PFedMe(Algorithm):
    """pFedMe: personal models by Moreau envelopes (Dinh et al. 2020).

    eta is the rate of the local SGD, beta the server's.
    """

    about: ClassVar[About] = About("pFedMe", "Dinh et al. 2020", "the shared model's change")

    inner_steps: Annotated[int, Bounds(ge=1, le=100)] = 5
    """Steps to a personal model on one batch (K), as many as in the paper's experiments."""
    inner_learning_rate: Rate = 0.05
    """The rate of those steps."""
    penalty: Strength = 15.0
    """How strongly a personal model is held near the shared one (lambda), as in the paper."""

    def nearby(self, task: Task, model: Any, centre: Any, batch: Batch) -> Any:
        """(f at the start, theta): K steps from `model` on the batch, held near `centre`."""
        first = None
        for _ in range(self.inner_steps):
            loss, gradient = value_and_grad(task.loss)(model, batch)
            first = loss if first is None else first
            model = tree.map(
                lambda t, g, w: t - self.inner_learning_rate * (g + self.penalty * (t - w)),
                model,
                gradient,
                centre,
            )
        return first, model

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        batch = self.batch(task, data, order, step)
        loss, theta = self.nearby(task, current, current, batch)
        return loss, tree.map(lambda w, t: self.penalty * (w - t), current, theta)

    def personalise(self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()) -> Any:
        """The model theta_i(w_i) after `personal_steps` batches from the shared model."""
        order = task.source.order(data, key)
        centre, theta, memory = state, state, self.local.init(state)
        for step in range(self.personal_steps):
            batch = task.source.adaptation(data, order, step)
            _, theta = self.nearby(task, theta, centre, batch)
            slope = tree.map(lambda w, t: self.penalty * (w - t), centre, theta)
            change, memory = self.local.update(slope, memory, centre)
            centre = apply(centre, change)
        return theta
