"""Reptile.

Nichol, Achiam and Schulman, "On First-Order Meta-Learning Algorithms", arXiv:1803.02999, algorithm
2 (the batched version): devices run k steps of an optimiser on batches of their task, and the
server moves the initialisation towards the mean of where they end, by the step epsilon.

It is federated averaging with a fixed number of inner steps, tasks of the same weight and a step
below one at the server. It learns what the gradients of a task's batches have in common (section
5.1), so steps go over all of a task's rows, as the paper's do ("train shots").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...compiler.api import value_and_grad
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm
from ..hyperparameters import Steps
from ..task import Task


@dataclass(frozen=True)
class Reptile(Algorithm):
    """Reptile (Nichol, Achiam, Schulman 2018); epsilon is `server_learning_rate`."""

    about: ClassVar[About] = About("Reptile", "Nichol et al. 2018")

    epochs: int = 1
    """Not used but for Python: the inner steps are taken so many times."""
    local_steps: int = 0
    """Not used: see `inner_steps`."""
    inner_steps: Steps = 5
    """Local steps in a round, whatever the data (k). 5: as in the paper's 5-way Omniglot."""

    def fixed_steps(self) -> int:
        return self.epochs * self.inner_steps

    def steps(self, task: Task, data: Any) -> int:
        return self.inner_steps

    def step_share(self, task: Task, data: Any, step: Any) -> Any:
        """Pieces go round and round: all are full."""
        return 1.0

    def weight(self, data: Any) -> Tensor:
        return np.float32(1.0)

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        return value_and_grad(task.loss)(current, task.source.pieces(data, order, step))
