"""Federated SGD.

McMahan, Moore, Ramage, Hampson and Agüera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data", AISTATS 2017, section 2: every device sends the gradient g_k of
its whole data at the model it was given, and the server takes one step along their mean,
w <- w - eta sum_k n_k / n g_k. The server's optimiser is that step; its rate is eta.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ...compiler import tree
from ...compiler.api import value_and_grad
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm, ClientResult
from ..sampling import Batch
from ..task import Task


@dataclass(frozen=True)
class FedSgd(Algorithm):
    """Federated SGD: one gradient of all of a device's data in a round (McMahan et al. 2017).

    The step is `server_learning_rate`; `local` is not used.
    """

    about: ClassVar[About] = About("FedSGD", "McMahan et al. 2017", "one gradient")

    epochs: int = 1
    """Not used: a device takes one gradient of its data."""
    local_steps: int = 0
    """Not used."""

    def alone(self, state: Any, update: Any) -> Any:
        """The state after the server's step along the device's own gradient."""
        return self.server_update(state, self.memory(state), update)[0]

    def client_update(
        self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()
    ) -> ClientResult:
        source = task.source.once()
        order = source.order(data, key)
        summed, total = tree.map(np.zeros_like, state), np.float32(0.0)
        rows = np.float32(0.0)
        for step in range(source.steps(data)):
            loss, gradient, count = self._summed(task, state, source.batch(data, order, step))
            summed = tree.map(np.add, summed, gradient)
            total, rows = total + loss, rows + count
        rows = np.maximum(rows, 1.0)
        update = tree.map(lambda s: -s / rows, summed)
        return ClientResult(update, self.weight(data), total / rows, kept)

    def _summed(self, task: Task, state: Any, batch: Batch) -> Any:
        """(loss, gradient, rows) of a batch, the first two summed over its rows."""
        count = np.sum(batch.weight)
        loss, gradient = value_and_grad(task.loss)(state, batch)
        return count * loss, tree.map(lambda g: count * g, gradient), count
