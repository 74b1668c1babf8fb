"""A training without learning: updates are small integers, so that a sum can be checked exactly."""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from delian.core.ports import Floats, Outcome, Vector
from delian.core.privacy.ring import RingPlan


def update_of(device: int, key: Vector, plan: RingPlan) -> Vector:
    """What a device uploads: u32[D+1], a function of device and key; each has the same weight."""
    mixed = (device * 2654435761 + int(key[0]) * 40503 + int(key[1])) % 2**32
    steps = (np.arange(plan.dimension, dtype=np.int64) * 7919 + mixed) % 2001 - 1000
    weight = int(plan.weight_scale) // 2
    return np.append(steps, weight).astype(np.uint32)


class FakeTraining:
    """Counts what it is asked for. `sick` devices have updates that are not finite."""

    def __init__(
        self, plan: RingPlan, threads: int = 1, sick: frozenset[int] = frozenset()
    ) -> None:
        self.plan = plan
        self.sick = sick
        self.pool: Executor = ThreadPoolExecutor(threads)
        self.bundle = b"a bundle " * 100
        self.means: list[Floats] = []
        self.asked: list[tuple[int, tuple[int, int]]] = []

    def initial(self) -> Any:
        return np.zeros(self.plan.dimension, np.float32)

    def weights(self, state: Any) -> Floats:
        return state  # type: ignore[no-any-return]

    def flops(self, device: int) -> float:
        return 4e9

    def submit(self, device: int, weights: Floats, key: Vector) -> Future[Outcome]:
        self.asked.append((device, (int(key[0]), int(key[1]))))
        return self.pool.submit(self._train, device, key)

    def _train(self, device: int, key: Vector) -> Outcome:
        if device in self.sick:
            return Outcome(None, examples=1, loss=float("nan"), finite=False)
        return Outcome(update_of(device, key, self.plan), examples=10 + device, loss=1.0 / (1 + device))

    def server_update(self, state: Any, mean: Floats, weight: float) -> Any:
        self.means.append(mean)
        return state + mean
