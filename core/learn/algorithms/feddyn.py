"""FedDyn.

Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, "Federated Learning Based on Dynamic
Regularization", ICLR 2021, algorithm 1: each device bends its own loss so that its minimum comes to
lie where the shared model ends.

    theta_k = argmin L_k(theta) - <h_k, theta> + alpha/2 |theta - theta_t|^2
    h_k <- h_k - alpha (theta_k - theta_t)
    h <- h - alpha 1/m sum_{k in P} (theta_k - theta_t)
    theta_{t+1} = 1/|P| sum_{k in P} theta_k - h / alpha

The argmin is some passes of the local optimiser. h_k, the paper's gradient of L_k at theta_k, is
the client state; h is the server's memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import tree
from ...ir import Tensor
from ..algorithm import Algorithm, ClientResult
from ..task import Task


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """`alpha` is the paper's; `fleet` is m, how many devices may take part, and |P| is how many
    reported in a round. 0: `share` is |P|/m, whatever happens. All devices weigh alike. The
    server's step is the paper's: its optimiser is not used.
    """

    alpha: float = 0.01
    share: float = 1.0
    fleet: int = 0

    def client_state(self, task: Task, state: Any) -> Any:
        return tree.map(np.zeros_like, state)

    def weight(self, data: Any) -> Tensor:
        return np.float32(1.0)

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        """`state` is (theta_t, h_k)."""
        start, own = state
        loss, gradient = Algorithm.gradient(self, task, current, start, data, order, step)
        return loss, tree.map(
            lambda g, h, w, w0: g - h + self.alpha * (w - w0), gradient, own, current, start
        )

    def client_update(
        self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()
    ) -> ClientResult:
        end, loss = self.descend(task, state, (state, kept), data, key)
        update = tree.map(np.subtract, end, state)
        own = tree.map(lambda h, d: h - self.alpha * d, kept, update)
        return ClientResult(update, self.weight(data), loss, own)

    def reported(self, count: Tensor) -> Algorithm | None:
        return replace(self, share=np.minimum(count / self.fleet, 1.0)) if self.fleet else None

    def memory(self, state: Any) -> Any:
        return tree.map(np.zeros_like, state)

    def server_update(self, state: Any, memory: Any, mean: Any) -> tuple[Any, Any]:
        memory = tree.map(lambda h, d: h - self.alpha * self.share * d, memory, mean)
        state = tree.map(lambda w, d, h: w + d - h / self.alpha, state, mean, memory)
        return state, memory
