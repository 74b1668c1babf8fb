"""Meta-SGD.

Li, Zhou, Chen and Li, "Meta-SGD: Learning to Learn Quickly for Few-Shot Learning",
arXiv:1707.09835, equation 4: the initialisation and a rate for every parameter are learnt together.

    theta' = theta - alpha o grad L_support(theta)

The meta-gradient is taken with respect to theta and alpha. The upload is twice the model: rates
travel as weights do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...compiler import tree
from ...compiler.api import grad
from ...compiler.ir import Tensor
from ..algorithm import About
from ..sampling import Batch
from ..task import Task
from .maml import Maml


class MetaSgdState(NamedTuple):
    """The state: trees of the same structure and shapes."""

    model: Any
    """theta."""
    rates: Any
    """alpha, all `inner_learning_rate` at first."""


@dataclass(frozen=True)
class MetaSgd(Maml):
    """Meta-SGD: learns a rate for each parameter as well (Li et al. 2017)."""

    about: ClassVar[About] = About(
        "Meta-SGD", "Li et al. 2017", "the changes of model and rates: twice the model"
    )

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
