"""A training without learning.

Updates are small whole numbers, so that a sum can be checked exactly.

For tests of the protocol, for timing the simulator itself, and for the documentation's example
round.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from delian.core.learning import metrics
from delian.core.learning.runtime import Score
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import Floats, Outcome, Vector
from delian.simulations.federation.training import ahead_of


class StubTraining:
    """A `Training` whose devices all weigh the same; updates of `sick` ones are not finite."""

    pure = foreseeable = True
    split = None

    def __init__(
        self, plan: RingPlan, threads: int = 1, sick: Collection[int] = (), flops: float = 4e9
    ) -> None:
        self.plan, self.ahead = plan, ahead_of(plan.nbytes)
        self.bundle = b"a bundle of programs" * 50
        self._sick = frozenset(sick)
        self._flops = flops
        self._pool = ThreadPoolExecutor(threads)
        self._pattern = np.arange(plan.length, dtype=np.uint32) * np.uint32(7919)

    def update_of(self, device: int, key: Vector) -> Vector:
        """What a device uploads: u32[D+1], a function of device and key; from -512 to 511."""
        mixed = (device * 2654435761 + int(key[0]) * 40503 + int(key[1])) % 2**32
        steps = self._pattern + np.uint32(mixed)
        steps &= np.uint32(1023)
        steps -= np.uint32(512)
        steps[-1] = self.weight_steps
        return steps

    @property
    def weight_steps(self) -> int:
        """The last coordinate of every update: a weight of one half."""
        return int(self.plan.weight_scale) // 2

    def initial(self) -> Floats:
        return np.zeros(self.plan.dimension, np.float32)

    def flops(self, device: int, program: str) -> float:
        return self._flops if program == "client_update" else self._flops / 4

    def submit(self, device: int, weights: Floats, key: Vector) -> Future[Outcome]:
        return self._pool.submit(self._train, device, key)

    def _train(self, device: int, key: Vector) -> Outcome:
        if device in self._sick:
            return Outcome(None, examples=1, loss=float("nan"), finite=False)
        return Outcome(self.update_of(device, key), examples=10 + device, loss=1.0 / (1 + device))

    def evaluate(
        self, device: int, weights: Floats, key: Vector, plan: RingPlan
    ) -> Future[Outcome]:
        return self._pool.submit(self._judge, device, key, plan)

    def _judge(self, device: int, key: Vector, plan: RingPlan) -> Outcome:
        """Device d has d + 1 examples; its own model halves a loss of one and doubles 40 %."""
        count = float(device + 1)
        before, after = Score(count, 0.4 * count, count), Score(0.5 * count, 0.8 * count, count)
        return Outcome(metrics.encode(before, after, key, plan), device + 1, 0.5)

    def server_update(
        self, weights: Floats, memory: bytes, mean: Floats, weight: float
    ) -> tuple[Floats, bytes]:
        return weights + mean, b""
