"""iMAML: MAML by the implicit gradient.

Rajeswaran, Finn, Kakade and Levine, "Meta-Learning with Implicit Gradients", NeurIPS 2019,
algorithms 1 and 2. A task's model is held near the shared one, and its gradient needs where the
adaptation ended, not the way there:

    phi = argmin L_support(phi) + lambda/2 |phi - theta|^2              gradient steps, equation 3
    meta-gradient = (I + grad^2 L_support(phi) / lambda)^-1 grad L_query(phi)          equation 6

The inverse is not formed: conjugate gradients solve the linear system with products of the Hessian
and a vector. Memory does not grow with the number of inner steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from ...common.errors import DelianError
from ...compiler import tree
from ...compiler.api import grad, hvp, value_and_grad
from ...compiler.ir import Tensor
from ..algorithm import About
from ..hyperparameters import Bounds
from ..sampling import Batch
from ..task import Task
from .maml import Maml

#: A curvature or a residual below it ends the conjugate gradients: what is left is rounding.
TINY = 1e-20


def _dot(a: Any, b: Any) -> Any:
    """The inner product of two trees, f32[]."""
    return sum(tree.leaves(tree.map(lambda x, y: np.sum(x * y), a, b)))


def _moved(a: Any, length: Any, b: Any) -> Any:
    """a + length b, of trees."""
    return tree.map(lambda x, y: x + length * y, a, b)


@dataclass(frozen=True)
class IMaml(Maml):
    """iMAML: MAML by implicit gradients of a regularized adaptation (Rajeswaran et al. 2019)."""

    about: ClassVar[About] = About("iMAML", "Rajeswaran et al. 2019", Maml.about.uploads)

    inner_steps: Annotated[int, Bounds(ge=1, le=100)] = 16
    """Gradient steps of an adaptation, enough to come near its minimum. 16: the paper's, Omniglot.
    """
    penalty: Annotated[float, Bounds(gt=0.0, le=1e6)] = 2.0
    """How strongly a task's model is held near the shared one (lambda). 2: as in the paper."""
    cg_steps: Annotated[int, Bounds(ge=1, le=100)] = 5
    """Steps of conjugate gradients to the meta-gradient. 5: as in the paper."""

    def __post_init__(self) -> None:
        if self.first_order:
            raise DelianError(
                "iMAML has no first-order form", "leave first_order out, or use Fomaml"
            )

    def inner(self, task: Task, model: Any, centre: Any, batch: Batch) -> Any:
        """One gradient step on a batch's loss and the distance to the shared model."""
        gradient = grad(task.loss)(model, batch)
        return tree.map(
            lambda p, g, w: p - self.inner_learning_rate * (g + self.penalty * (p - w)),
            model,
            gradient,
            centre,
        )

    def adapt(self, task: Task, state: Any, batch: Batch) -> Any:
        model = state
        for _ in range(self.inner_steps):
            model = self.inner(task, model, state, batch)
        return model

    def implicit(self, task: Task, model: Any, batch: Batch, slope: Any) -> Any:
        """x of (I + H / lambda) x = slope, H the Hessian of the batch's loss at the model.

        Conjugate gradients (Hestenes and Stiefel 1952) from x = 0.
        """
        x = tree.map(np.zeros_like, slope)
        residual, direction = slope, slope
        square = _dot(slope, slope)
        for _ in range(self.cg_steps):
            (bent,) = hvp(lambda at: task.loss(at, batch), (model,), (direction,))
            image = _moved(direction, 1.0 / self.penalty, bent)
            curvature = _dot(direction, image)
            length = np.where(curvature > TINY, square / np.maximum(curvature, TINY), 0.0)
            x = _moved(x, length, direction)
            residual = _moved(residual, -length, image)
            left = _dot(residual, residual)
            direction = _moved(residual, left / np.maximum(square, TINY), direction)
            square = left
        return x

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        support, query = self.episode(task, data, order, step)
        model = self.adapt(task, current, support)
        loss, slope = value_and_grad(task.loss)(model, self.judged(current, support, query))
        return loss, self.implicit(task, model, support, slope)

    def personalise(self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()) -> Any:
        """`personal_steps` steps of the same adaptation, each on a batch of the support set."""
        order = task.source.order(data, key)
        model = state
        for step in range(self.personal_steps):
            batch = task.source.adaptation(data, order, step)
            model = self.inner(task, model, state, batch)
        return model
