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
from typing import Annotated, Any, ClassVar

import numpy as np

from ...compiler import tree
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm, ClientResult
from ..hyperparameters import Bounds, FromRun
from ..task import Task


@dataclass(frozen=True)
class FedDyn(Algorithm):
    """FedDyn: each device's loss is bent until its minimum is the shared one (Acar et al. 2021).

    All devices have the same weight. The server's step is the paper's: `server` is not used.
    """

    about: ClassVar[About] = About("FedDyn", "Acar et al. 2021", keeps="its gradient correction")

    alpha: Annotated[float, Bounds(gt=0.0, le=1e3)] = 0.01
    """Strength of the regulariser (alpha). The paper tries 0.001 to 0.1."""
    share: Annotated[float, FromRun("cohort_share")] = 1.0
    """|P|/m if `fleet` is 0: the share of the devices that report in each round."""
    fleet: Annotated[int, FromRun("training_devices")] = 0
    """Devices that may take part (m). With it |P| is the number that reported in a round."""

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

    def starts(self, task: Task, state: Any, kept: Any) -> tuple[Any, Any]:
        return state, (state, kept)

    def result(
        self, task: Task, state: Any, end: Any, loss: Tensor, data: Any, kept: Any
    ) -> ClientResult:
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
