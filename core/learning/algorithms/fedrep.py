"""FedRep.

Collins, Hassani, Mokhtari and Shakkottai, "Exploiting Shared Representations for Personalized
Federated Learning", ICML 2021, algorithm 1: each device has a head of its own, as in FedPer; it
trains the head first, with the body fixed, and then the body, with the head fixed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...compiler import random
from ...compiler.ir import Tensor
from ..algorithm import About, Algorithm, ClientResult, Gradient
from ..heads import body_only, head_only
from ..hyperparameters import Steps
from ..task import Task
from .fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """FedRep: a shared body and a head of each device's own, in turn (Collins et al. 2021).

    `epochs` are the body's.
    """

    about: ClassVar[About] = About(
        "FedRep",
        "Collins et al. 2021",
        "the body's change",
        "its head",
        unused_model=FedPer.about.unused_model,
    )

    head_epochs: Steps = 1
    """Passes that train the head (tau), before those that train the body. 1: as many as theirs."""

    def client_update(
        self, task: Task, state: Any, data: Any, key: Tensor, kept: Any = ()
    ) -> ClientResult:
        start, _ = self.starts(task, state, kept)
        keys = random.split(key, 2)
        masked = self._masked(head_only)
        model, _ = self.descend(task, start, start, data, keys[0], masked, self.head_epochs)
        end, loss = self.descend(task, model, model, data, keys[1], self._masked(body_only))
        return self.result(task, state, end, loss, data, kept)

    def _masked(self, part: Any) -> Gradient:
        def gradient(
            task: Task, current: Any, state: Any, data: Any, order: Tensor, step: Any
        ) -> Any:
            loss, slope = Algorithm.gradient(self, task, current, state, data, order, step)
            return loss, part(slope, self.head_leaves)

        return gradient
