"""SCAFFOLD.

Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, "SCAFFOLD: Stochastic Controlled Averaging for
Federated Learning", ICML 2020, algorithm 1. Devices with different data pull the model apart; a
control variate c_i on each, and their mean c at the server, take that drift out of every step:

    y_i <- y_i - eta_l (g_i(y_i) - c_i + c)                                            line 10
    c_i+ = c_i - c + (x - y_i) / (K eta_l)                                 line 12, option II
    upload (y_i - x, c_i+ - c_i); c_i <- c_i+                                    lines 13, 14
    x <- x + eta_g mean (y_i - x);  c <- c + |S|/N mean (c_i+ - c_i)             lines 16, 17

The state is (x, eta_l c) and the client state eta_l c_i: so scaled, both halves of an upload, twice
the model, have about the same size, and one clip and one step of the ring serve them both.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np

from ...compiler import tree
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm, ClientResult
from ..hyperparameters import FromRun
from ..nn.optim import apply
from ..task import Task


class Controlled(NamedTuple):
    """The state: the model and the server's control variate."""

    model: Any
    """x."""
    control: Any
    """eta_l c, a tree like the model."""


@dataclass(frozen=True)
class Scaffold(Algorithm):
    """SCAFFOLD (Karimireddy et al. 2020): control variates; uploads two models, equal weights."""

    about: ClassVar[About] = About(
        "SCAFFOLD",
        "Karimireddy et al. 2020",
        "the changes of model and control variate: twice the model",
        "its control variate",
    )

    local_learning_rate: Annotated[float, FromRun("learning_rate")] = 0.1
    """The rate of the local SGD (eta_l), which `local` must have too."""
    share: Annotated[float, FromRun("cohort_share")] = 1.0
    """|S|/N if `fleet` is 0: the share of the devices that report in each round."""
    fleet: Annotated[int, FromRun("training_devices")] = 0
    """Devices that may take part (N). With it |S| is the number that reported in a round."""

    def init(self, task: Task, key: Tensor) -> Controlled:
        model = task.init(key)
        return Controlled(model, tree.map(np.zeros_like, model))

    def model(self, state: Controlled) -> Any:
        return state.model

    def client_state(self, task: Task, state: Controlled) -> Any:
        return tree.map(np.zeros_like, state.model)

    def weight(self, data: Any) -> Tensor:
        return np.float32(1.0)

    def gradient(
        self, task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
    ) -> Any:
        """`state` is c - c_i, which stays the same all through a round."""
        loss, gradient = Algorithm.gradient(self, task, current, state, data, order, step)
        return loss, tree.map(np.add, gradient, state)

    def starts(self, task: Task, state: Controlled, kept: Any) -> tuple[Any, Any]:
        drift = tree.map(lambda c, own: (c - own) / self.local_learning_rate, state.control, kept)
        return state.model, drift

    def result(
        self, task: Task, state: Controlled, end: Any, loss: Tensor, data: Any, kept: Any
    ) -> ClientResult:
        moved = tree.map(np.subtract, end, state.model)
        steps = self.whole_steps(task, data)
        control = tree.map(lambda c, d: -c - d / steps, state.control, moved)
        update = Controlled(moved, control)
        return ClientResult(update, self.weight(data), loss, apply(kept, control))

    def reported(self, count: Tensor) -> Algorithm | None:
        return replace(self, share=np.minimum(count / self.fleet, 1.0)) if self.fleet else None

    def memory(self, state: Controlled) -> Any:
        return self.server.init(state.model)

    def server_update(
        self, state: Controlled, memory: Any, mean: Controlled
    ) -> tuple[Controlled, Any]:
        model, memory = Algorithm.server_update(self, state.model, memory, mean.model)
        control = tree.map(lambda c, d: c + self.share * d, state.control, mean.control)
        return Controlled(model, control), memory
