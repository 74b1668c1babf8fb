"""FedProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, algorithm 2: a device minimises h(w; w_t) = F(w) + mu/2 |w - w_t|^2, which holds it near
the model that it was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ... import tree
from ...ir import Tensor
from ..algorithm import Algorithm
from ..task import Task


@dataclass(frozen=True)
class FedProx(Algorithm):
    """`proximal` is the paper's mu; at zero this is federated averaging."""

    proximal: float = 0.01

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        loss, gradient = Algorithm.gradient(self, task, current, state, data, order, step)
        return loss, tree.map(
            lambda g, w, start: g + self.proximal * (w - start), gradient, current, state
        )
