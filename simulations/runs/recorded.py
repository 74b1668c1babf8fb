"""A training that replays updates which a real one has made.

For federations so large that computing all their updates takes too long.

An update is recorded as what it says (its mean and its weight), and encoded again for the ring of
the federation that replays it.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from ...core.compiler import random
from ...core.privacy.mechanisms import ring
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.protocol.ports import Floats, Outcome, Vector
from ..federation.training import ahead_of
from ..scenario.scenario_file import load, override
from .stage import Stage

#: What is recorded: devices of this scenario, with a smaller model, on the reference back end, so
#: that neither data nor a compiler is needed.
SCENARIO = "synthetic-mlp"
_SETTINGS = ("data.support=20", "data.query=2", "model.hidden=[8]", "evaluation.devices=1")
#: Devices that train for the recording.
RECORDED = 16


@dataclass(frozen=True, slots=True)
class Recording:
    """Recorded updates, and what made them."""

    updates: tuple[tuple[Floats, float], ...]
    """Updates f32[D] with their weights in (0, 1]."""
    first: Floats
    """The weights f32[D] that they began from."""
    bundle: bytes
    """The bundle that made them, encoded."""
    clip: float
    """The L2 norm that updates are clipped to."""
    flops: float
    """What one run of a program is taken to cost, in floating-point operations."""


def record(devices: int = RECORDED) -> Recording:
    """Lets devices train once, each on its own data."""
    changes = [f"fleet.devices={devices}", f"round.cohort={max(2, devices // 2)}", *_SETTINGS]
    stage = Stage(override(load(SCENARIO), changes), None, None, "reference", lambda _: None)
    plan, first = stage.runtime.ring, np.asarray(stage.first, np.float32)
    updates = []
    for number, arrays in enumerate(stage.arrays[:devices]):
        made = stage.runtime.client_update(first, arrays, np.array([0, number], np.uint32))
        updates.append(ring.decode(np.asarray(made.vector), plan))
    return Recording(tuple(updates), first, stage.bundle.to_bytes(), plan.clip, 4e9)


class RecordedTraining:
    """A `Training` that replays a recording; the server adds the mean to its weights."""

    pure = foreseeable = True
    split = None

    def __init__(self, recording: Recording, plan: RingPlan) -> None:
        self.recording, self.plan, self.ahead = recording, plan, ahead_of(plan.nbytes)
        self.vectors = _encoded(recording.updates, plan)

    @property
    def bundle(self) -> bytes:
        return self.recording.bundle

    def initial(self) -> Floats:
        return self.recording.first

    def flops(self, device: int, program: str) -> float:
        return self.recording.flops

    def which(self, device: int, key: Vector) -> int:
        """The number of the update that a device replays in a round."""
        return (device * 40503 + int(key[0])) % len(self.vectors)

    def submit(self, device: int, weights: Floats, key: Vector) -> Future[Outcome]:
        vector = self.vectors[self.which(device, key)]
        return _done(Outcome(vector, examples=1, loss=0.0))

    def evaluate(
        self, device: int, weights: Floats, key: Vector, plan: RingPlan
    ) -> Future[Outcome]:
        """There are no data to judge a model on."""
        return _done(Outcome(None))

    def server_update(
        self, weights: Floats, memory: bytes, mean: Floats, weight: float
    ) -> tuple[Floats, bytes]:
        return weights + mean, b""


def _encoded(updates: Sequence[tuple[Floats, float]], plan: RingPlan) -> list[Vector]:
    keys = [np.array([1, number], np.uint32) for number in range(len(updates))]
    return [
        np.asarray(ring.encode(mean, np.float32(weight), random.fold_in(key, 0), plan))
        for (mean, weight), key in zip(updates, keys, strict=True)
    ]


def _done(outcome: Outcome) -> Future[Outcome]:
    future: Future[Outcome] = Future()
    future.set_result(outcome)
    return future
