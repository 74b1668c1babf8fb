"""ANIL: almost no inner loop.

Raghu, Raghu, Bengio and Vinyals, "Rapid Learning or Feature Reuse? Towards Understanding the
Effectiveness of MAML", ICLR 2020, section 4: MAML whose inner steps, in training and after, move
the head alone; the outer step moves everything. An adaptation costs one layer's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...compiler import ops, tree
from ...compiler.api import grad
from ...compiler.ir import Tensor
from ..algorithm import About
from ..heads import head_only
from ..hyperparameters import HeadLeaves
from ..sampling import Batch
from ..task import Task
from .maml import Maml


@dataclass(frozen=True)
class Anil(Maml):
    """ANIL: MAML that adapts the head alone (Raghu et al. 2020)."""

    about: ClassVar[About] = About("ANIL", "Raghu et al. 2020", Maml.about.uploads)

    head_leaves: HeadLeaves = 2
    """How many of the model's last arrays are the head: a layer has a weight and a bias."""

    def inner(self, task: Task, model: Any, batch: Batch) -> Any:
        """One inner step."""
        gradient = head_only(grad(task.loss)(model, batch), self.head_leaves)
        if self.first_order:
            gradient = tree.map(ops.stop_gradient, gradient)
        return tree.map(lambda p, g: p - self.inner_learning_rate * g, model, gradient)

    def adapt(self, task: Task, state: Any, batch: Batch) -> Any:
        model = state
        for _ in range(self.inner_steps):
            model = self.inner(task, model, batch)
        return model

    def personalise(self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()) -> Any:
        order = task.source.order(data, key)
        model = state
        for step in range(self.personal_steps):
            model = self.inner(task, model, task.source.adaptation(data, order, step))
        return model
