"""What devices reach without a federation: each alone, and with all training rows in one place.

Both use the run's own programs, hyperparameters and first weights, and are judged as the run's
models are.

- alone: a federation of one device, as many rounds as the run had: an update, and from it the next
  model. Devices that never train in the run train here: their own rows are all they have.
- pooled: as many updates as the run added up, one after the other from the newest model, each on
  rows drawn without replacement from those of all training devices, as many as the median device
  has. With one pass over a device's rows an update is that of stochastic gradient descent on the
  pool.

An update is clipped and rounded as in the run, and has no noise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.compiler import random
from ...core.compiler.ir import Array
from ...core.learning.sampling import SampleSet
from ...core.privacy.mechanisms import ring
from .result import Baseline, Phase

if TYPE_CHECKING:
    from ...core.learning.runtime import Runtime
    from .stage import Pool, Stage

#: Names of random streams, apart from those of a run.
_ALONE, _POOLED = 0x616C6F6E, 0x706F6F6C


@dataclass(slots=True)
class _Learner:
    """A federation of one: the newest state, the server's memory, the client state."""

    runtime: Runtime
    state: Array
    memory: list[Array]
    kept: Array | None = None

    def learn(self, data: Any, key: Array) -> bool:
        """One update, and the model made of it; False where it is not finite."""
        update = self.runtime.client_update(self.state, data, key, self.kept)
        if not update.finite:
            return False
        mean, weight = ring.decode(update.vector, self.runtime.ring)
        self.state, self.memory = self.runtime.server_update(
            self.state, self.memory, mean, weight=weight
        )
        self.kept = update.kept
        return True


def baselines(
    stage: Stage,
    first: Array,
    rounds: int,
    updates: int,
    pool: Pool,
    stop: Callable[[], bool],
) -> dict[str, Baseline] | None:
    """`alone`, and `pooled` where devices hold rows. None where the run is to end.

    Args:
        stage: of the run.
        first: the weights that it began from, f32[D].
        rounds: how many it had.
        updates: how many it added up.
        pool: threads that train.
        stop: whether the run is to end.
    """
    stage.say(Phase("baseline: each device alone"))
    train = functools.partial(_alone, stage, first, rounds, stop)
    futures = [pool.submit(functools.partial(train, device)) for device in stage.judged]
    pairs = [future.result() for future in futures]
    if stop():
        return None
    found = {"alone": Baseline(rounds, dict(zip(stage.judged, pairs, strict=True)))}
    if all(isinstance(each, SampleSet) for each in stage.arrays):
        stage.say(Phase("baseline: all rows in one place"))
        state = _pooled(stage, first, updates, stop)
        if stop():
            return None
        judge = functools.partial(_judged, stage, state)
        futures = [pool.submit(functools.partial(judge, device)) for device in stage.judged]
        judged = [future.result() for future in futures]
        found["pooled"] = Baseline(updates, dict(zip(stage.judged, judged, strict=True)))
    return found


def _alone(
    stage: Stage, first: Array, rounds: int, stop: Callable[[], bool], device: int
) -> tuple[float, float]:
    learner = _Learner(stage.runtime, first, stage.runtime.memory())
    for turn in range(rounds):
        key = _key(stage.scenario.seed, _ALONE, device, turn)
        if stop() or not learner.learn(stage.arrays[device], key):
            break
    return _judged(stage, learner.state, device, learner.kept)


def _pooled(stage: Stage, first: Array, updates: int, stop: Callable[[], bool]) -> Array:
    learner = _Learner(stage.runtime, first, stage.runtime.memory())
    rows = _rows(stage)
    for turn in range(updates):
        key = _key(stage.scenario.seed, _POOLED, turn)
        if stop() or not learner.learn(next(rows), key):
            break
    return learner.state


def _rows(stage: Stage) -> Iterator[SampleSet]:
    """Tables of rows of all training devices, as programs take them, without end."""
    held: list[SampleSet] = [stage.arrays[i] for i in stage.data.training]
    counts = [int(each.support) for each in held]
    x = np.concatenate([each.x[:n] for each, n in zip(held, counts, strict=True)])
    y = np.concatenate([each.y[:n] for each, n in zip(held, counts, strict=True)])
    size = max(1, int(np.median(counts)))
    rng = np.random.default_rng([stage.scenario.seed, _POOLED])
    left = np.empty(0, np.int64)
    while True:
        while len(left) < size:
            left = np.concatenate([left, rng.permutation(len(x))])
        taken, left = left[:size], left[size:]
        table, labels = np.zeros_like(held[0].x), np.zeros_like(held[0].y)
        table[:size], labels[:size] = x[taken], y[taken]
        yield SampleSet(table, labels, np.array(size, np.int64), np.array(0, np.int64))


def _judged(
    stage: Stage, state: Array, device: int, kept: Array | None = None
) -> tuple[float, float]:
    before, after = stage.judge(device, state, kept)
    return stage.measure.of(before), stage.measure.of(after)


def _key(seed: int, *names: int) -> Array:
    key = random.key(seed)
    for name in names:
        key = random.fold_in(key, name)
    return key
