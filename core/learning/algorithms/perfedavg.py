"""Per-FedAvg.

Fallah, Mokhtari and Ozdaglar, "Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach", NeurIPS 2020, algorithm 1: several local steps of MAML
before each upload. The meta-gradient at w, on three batches,

    (I - alpha grad^2 f(w; D''))  grad f(w - alpha grad f(w; D); D')

has a product with a Hessian, and the paper has two ways around it. The first-order one leaves it
out: that is `Maml(first_order=True)`. The Hessian-free one (equations 12 and 13) takes a difference
of gradients for it, with v = grad f(w - alpha grad f(w; D); D'):

    grad^2 f(w) v ~ (grad f(w + delta v) - grad f(w - delta v)) / (2 delta)

The compiler differentiates twice exactly (`Maml`); this is for models where that costs too much.
D'' is D here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from ...compiler import tree
from ...compiler.api import grad, value_and_grad
from ...compiler.ir import Tensor
from ..algorithm import About
from ..hyperparameters import Bounds
from ..task import Task
from .maml import Maml


@dataclass(frozen=True)
class PerFedAvg(Maml):
    """Per-FedAvg, Hessian-free: MAML with a difference of gradients (Fallah et al. 2020).

    beta is the rate of the local optimiser, tau the local steps of a round. The first-order
    variant is fomaml with several passes.
    """

    about: ClassVar[About] = About(
        "Per-FedAvg",
        "Fallah et al. 2020, Hessian-free; first order is `fomaml`",
        Maml.about.uploads,
    )

    delta: Annotated[float, Bounds(gt=0.0, le=1.0)] = 1e-3
    """Length of the difference (delta): small for its error, well above f32's rounding."""

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        support, query = self.episode(task, data, order, step)
        loss, v = value_and_grad(task.loss)(self.adapt(task, current, support), query)
        above = tree.map(lambda w, d: w + self.delta * d, current, v)
        below = tree.map(lambda w, d: w - self.delta * d, current, v)
        ahead, behind = grad(task.loss)(above, support), grad(task.loss)(below, support)
        scale = self.inner_learning_rate / (2.0 * self.delta)
        return loss, tree.map(lambda g, a, b: g - scale * (a - b), v, ahead, behind)
