"""Federated meta-learning: MAML.

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
from typing import Annotated, Any, ClassVar

from ...compiler import ops, tree
from ...compiler.api import grad, value_and_grad
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm
from ..hyperparameters import Bounds, FromRun, Rate
from ..sampling import Batch
from ..task import Task


@dataclass(frozen=True)
class Maml(Algorithm):
    """MAML with its exact second-order gradient (Finn et al. 2017; FedMeta, Chen et al. 2018).

    beta is the local optimiser's rate times the server's. Personalization is the adaptation
    itself, at the rate that was trained for, `personal_steps` times.
    """

    about: ClassVar[About] = About(
        "MAML", "Finn et al. 2017; Chen et al. 2018", "the change by meta-gradients"
    )
    source_keys: ClassVar[tuple[str, ...]] = ("adapt_share",)
    splits_rows: ClassVar[bool] = True

    personal_learning_rate: Annotated[float, FromRun("inner_learning_rate")] = 0.1
    """The rate of the personal steps: that of the inner ones, as the meta-gradient saw them."""
    first_order: bool = False
    """Whether d theta'/d theta is taken for the identity (FOMAML)."""
    inner_steps: Annotated[int, Bounds(ge=1, le=100)] = 1
    """Steps of adaptation that the meta-gradient looks through; FedMeta takes one."""
    inner_learning_rate: Rate = 0.1
    """The rate of adaptation (alpha); Meta-SGD starts from it and learns it."""

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
                gradient = tree.map(ops.stop_gradient, gradient)
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
