"""Training and evaluation by windows: the loops around a bundle's programs.

    carry <- begin(state)
    for each pass, for each window:   carry <- chunk(carry, the window's rows)
    update <- end(carry)

While a window is trained on, the next one is read. A training goes on from any place that it was
interrupted at: the rows of a window follow from the key and the place, and what came before is in
the carry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from ..bundle import SEEN, TOTAL, Manifest
from ..data.rows import NoDataError
from ..runtime import Runtime, Score, Update
from .reading_thread import ReadingThread
from .window_checkpoint import Checkpoint, Subject, digest
from .window_rows import Window, WindowRows

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a training is: before this window of this pass."""

    epoch: int
    window: int
    windows: int
    """How many a pass has."""

    def next(self) -> Place:
        """The place after it."""
        last = self.window + 1 == self.windows
        epoch, window = (self.epoch + 1, 0) if last else (self.epoch, self.window + 1)
        return Place(epoch, window, self.windows)


#: Is called after each window, with the next place and the carry there.
Passed = Callable[[Place, Sequence[Array]], None]


@dataclass(frozen=True, slots=True)
class Trained:
    """What a training by windows gives."""

    update: Update
    rows: int
    """Rows that it trained on in a pass."""


def train(
    runtime: Runtime,
    state: Array,
    rows: WindowRows,
    key: Array,
    kept: Array | None = None,
    *,
    reading: ReadingThread | None = None,
    resumed: Checkpoint | None = None,
    passed: Passed = lambda place, carry: None,
) -> Trained:
    """A device's whole training, by windows.

    Args:
        runtime: a bundle with windows.
        state: as of `Runtime.client_update`, as are `key` and `kept`.
        rows: the device's rows.
        reading: reads ahead; None: each window is read when it is needed.
        resumed: where to go on; None: at the beginning.
        passed: is called after each window, for checkpoints and logs.

    Raises:
        DelianError: rows cannot be read, or do not fit; nothing is left to train on.
    """
    manifest, ahead = runtime.manifest, reading or ReadingThread()
    if not manifest.carry:
        raise DelianError(
            "the bundle trains on rows in memory", "build it with data.rows_in_memory"
        )
    count = rows.windows.count
    place = Place(0, 0, count) if resumed is None else Place(resumed.epoch, resumed.window, count)
    carry = runtime.begin(state, kept) if resumed is None else resumed.carry
    spare = [np.empty_like(leaf) for leaf in carry]
    total = _place_of(manifest, TOTAL)
    free = [rows.buffers(), rows.buffers()]

    def asked(at: Place, into: list[Array]) -> Callable[[], Window]:
        return lambda: rows.training(key, at.epoch, at.window, into)

    waiting = ahead.submit(asked(place, free[0])) if place.epoch < manifest.passes else None
    turn = 1
    while waiting is not None:
        window, at, place = waiting.result(), place, place.next()
        more = place.epoch < manifest.passes
        waiting = ahead.submit(asked(place, free[turn])) if more else None
        turn = 1 - turn
        made = runtime.chunk(
            state, carry, window.arrays, key, kept, epoch=at.epoch, window=at.window, out=spare
        )
        carry, spare = made, carry
        if not math.isfinite(float(carry[total])):
            # It will not be finite again: what is left of the passes is of no use.
            if waiting is not None:
                waiting.result()
            break
        passed(place, carry)
    seen = int(carry[_place_of(manifest, SEEN)])
    if not seen:
        raise NoDataError(
            f"none of {rows.source.rows} rows is trained on",
            "equal rows are on one side of the split: collect more, or lower query_fraction",
        )
    return Trained(runtime.end(state, carry, key, kept), seen)


def scores(
    runtime: Runtime, models: Sequence[Array], data: WindowRows | list[Array], key: Array
) -> list[Score]:
    """Each model, f32[M], judged by all rows that judge; data in memory is judged in one call."""
    if not isinstance(data, WindowRows):
        return [runtime.evaluate(model, data, key) for model in models]
    own = len(runtime.manifest.metrics)
    sums = [Score(0.0, 0.0, 0.0, ((0.0, 0.0),) * own) for _ in models]
    for window in data.judging([data.buffers()]):
        for i, model in enumerate(models):
            sums[i] = _added(sums[i], runtime.evaluate(model, window.arrays, key))
    return sums


def first_rows(data: WindowRows | list[Array], key: Array) -> list[Array]:
    """What a personal model is made from: data in memory, or the first window of a pass."""
    if not isinstance(data, WindowRows):
        return data
    return data.training(key, 0, 0, data.buffers()).arrays


def subject_of(
    bundle: str, state: Array, kept: Array | None, key: Array, rows: WindowRows
) -> Subject:
    """What a checkpoint of this training is named by; bundle: names the bundle."""
    first, second = (int(word) for word in key)
    own = "" if kept is None else digest(kept)
    count = rows.source.rows
    return Subject(bundle, digest(state), own, (first, second), rows.version(), count)


def _place_of(manifest: Manifest, name: str) -> int:
    """The place of a leaf in the carry. Raises DelianError for a carry of another kind."""
    for place, leaf in enumerate(manifest.carry):
        if leaf.name == name and not leaf.shape:
            return place
    raise DelianError(f"the bundle's carry has no {name}", "build it again")


def _added(a: Score, b: Score) -> Score:
    more = zip(a.more, b.more, strict=True)
    return Score(
        a.loss + b.loss,
        a.correct + b.correct,
        a.count + b.count,
        tuple((above + its, below + their) for (above, below), (its, their) in more),
    )
