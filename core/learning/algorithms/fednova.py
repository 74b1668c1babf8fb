"""FedNova.

Wang, Liu, Liang, Joshi and Poor, "Tackling the Objective Inconsistency Problem in Heterogeneous
Federated Optimization", NeurIPS 2020, equation 6 with plain local SGD (a_i a vector of ones, its
norm the number tau_i of local steps): devices send how far they went *a step*, and the server goes
that far for as many steps as devices took in the mean.

    d_i = (y_i - x) / tau_i;    x <- x + tau_eff sum_i p_i d_i;    tau_eff = sum_i p_i tau_i

Averaging the y_i themselves would favour devices that took many steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...compiler import tree
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm, ClientResult
from ..task import Task

#: What a step counts for in the part of an upload that adds steps up: little compared with the
#: model, so that the clip is the model's.
STEP = 2.0**-10


class Normalised(NamedTuple):
    """The state, whose form uploads have."""

    model: Any
    """x; in an upload d_i."""
    steps: Tensor
    """f32[], zero; in an upload tau_i times `STEP`."""


@dataclass(frozen=True)
class FedNova(Algorithm):
    """FedNova: updates a step, so that many steps count no more than few (Wang et al. 2020).

    p_i is a device's share of the examples.
    """

    about: ClassVar[About] = About(
        "FedNova", "Wang et al. 2020", "the change a step, and the number of steps"
    )

    def init(self, task: Task, key: Tensor) -> Normalised:
        return Normalised(task.init(key), np.float32(0.0))

    def model(self, state: Normalised) -> Any:
        return state.model

    def starts(self, task: Task, state: Normalised, kept: Any) -> tuple[Any, Any]:
        return state.model, state.model

    def result(
        self, task: Task, state: Normalised, end: Any, loss: Tensor, data: Any, kept: Any
    ) -> ClientResult:
        steps = self.whole_steps(task, data)
        each = tree.map(lambda y, x: (y - x) / steps, end, state.model)
        return ClientResult(Normalised(each, steps * STEP), self.weight(data), loss, kept)

    def alone(self, state: Normalised, update: Normalised) -> Normalised:
        steps = update.steps / STEP
        model = tree.map(lambda x, d: x + steps * d, state.model, update.model)
        return Normalised(model, state.steps)

    def memory(self, state: Normalised) -> Any:
        return self.server.init(state.model)

    def server_update(
        self, state: Normalised, memory: Any, mean: Normalised
    ) -> tuple[Normalised, Any]:
        effective = mean.steps / STEP
        step = tree.map(lambda d: effective * d, mean.model)
        model, memory = Algorithm.server_update(self, state.model, memory, step)
        return Normalised(model, state.steps), memory
