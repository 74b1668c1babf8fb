"""FedProx.

Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, "Federated Optimization in Heterogeneous Networks",
MLSys 2020, algorithm 2: a device minimises h(w; w_t) = F(w) + mu/2 |w - w_t|^2, which holds it near
the model that it was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...compiler import tree
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm
from ..hyperparameters import Strength
from ..task import Task


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg with a pull towards the global model (Li et al. 2020)."""

    about: ClassVar[About] = About("FedProx", "Li et al. 2020")

    proximal_mu: Strength = 0.01
    """Strength of the pull (mu). 0 is FedAvg; the paper tries 0.001 to 1."""

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        loss, gradient = Algorithm.gradient(self, task, current, state, data, order, step)
        return loss, tree.map(
            lambda g, w, start: g + self.proximal_mu * (w - start), gradient, current, state
        )
