"""A small model on this device, and a large one above for what is hard.

    homes = ["edge-1@edge:7451"]
    with CascadeModel("small.bundle", "large.bundle", Threshold(0.7), homes, identity) as model:
        logits = model.predict(x)                  # [n, ...] -> [n, classes]
        model.facts                                # which model answered, and why

Rows go one by one: what is easy is answered here, what is hard by a home that serves the large
bundle (`delian edge run --serve`); where none answers in time, the small model's answer stands
(`core.placement.cascade.machine`). A large program made for batches gets a row in a batch of its
size.

Calls may come from several threads. An event loop in a thread of its own connects to the home.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...core.common.errors import DelianError
from ...core.compiler.backends import Backend
from ...core.compiler.ir import Array, TensorType
from ...core.learning.bundle import Bundle, load
from ...core.learning.data.fit import as_rows
from ...core.node.driver.clock import WallClock
from ...core.placement.cascade.cascade_driver import CascadeDriver
from ...core.placement.cascade.cascade_link import LargeAbove
from ...core.placement.cascade.hard_examples import Made
from ...core.placement.cascade.machine import CascadePlan, Mode, Reply
from ...core.placement.subgraphs.machines.part_ports import Link
from ...core.placement.subgraphs.part_programs import Model, Programs
from ...core.protocol.ports import MS, SECOND
from .split_model import OPEN_EVERY_S, input_of, upstream_of

#: How long above may take, unless the caller says otherwise.
ABOVE_S = 1.0
#: What a link is taken to be until it was measured.
NOMINAL = Link(up=1e6, down=1e6, latency_s=0.02)
#: Rows under way at once: what a home takes of one device without refusing.
UNDER_WAY = 16
#: Kept back for the small model, as a multiple of what it takes.
MARGIN = 2.0


class CascadeModel:
    """Two bundles' `infer`, both with their weights, and a filter between them.

    small, large: bundles, or their files; of the large one this device keeps the programs and the
    hash of its weights. homes, identity, number: as of `SplitModel`. above_s: how long above may
    take for a row.

    Raises DelianError where the two do not take the same rows, no upstream is configured, or
    something cannot be read or compiled.
    """

    def __init__(
        self,
        small: Bundle | Path | str,
        large: Bundle | Path | str,
        chosen: Made,
        homes: Sequence[str] = (),
        identity: Path | None = None,
        *,
        number: int | None = None,
        mode: Mode = Mode.INFERENCE_THEN_MINING,
        above_s: float = ABOVE_S,
        backend: Backend = "native",
    ) -> None:
        below, above = (
            Model.of(one if isinstance(one, Bundle) else load(Path(one))) for one in (small, large)
        )
        self._small, self._large = input_of(below), input_of(above)
        if _lengths(self._small) != _lengths(self._large):
            raise DelianError(
                f"the small model takes rows of {list(self._small.shape[1:])}, the large one of"
                f" {list(self._large.shape[1:])}",
                "build both for the same data",
            )
        upstream = upstream_of(homes, identity, number)
        if upstream is None:
            raise DelianError("no upstream node is configured", "--home edge-1@host:port")
        programs = Programs(backend)
        run = programs.whole(below)
        self._leaves, self._run = below.leaves, run
        self._clock = WallClock()
        self._way = LargeAbove(above, upstream, NOMINAL, self._clock)
        small_ns = int(MARGIN * programs.measure(run) * SECOND)
        plan = CascadePlan(chosen, mode, above_ns=max(MS, int(above_s * SECOND)), small_ns=small_ns)
        self._driver = CascadeDriver(plan, self._below, self._above, self._clock)
        self._under_way = asyncio.Semaphore(UNDER_WAY)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="delian-cascade", daemon=True
        )
        self._thread.start()
        self._loop.call_soon_threadsafe(self._way.start)
        self._closed = False

    # ------------------------------------------------ its life

    def close(self) -> None:
        """Ends. May be called twice."""
        if self._closed:
            return
        self._closed = True
        asyncio.run_coroutine_threadsafe(self._way.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> CascadeModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_ready(self, seconds: float) -> bool:
        """Waits until the large model can be asked, as long at most; whether it can."""
        until = time.monotonic() + seconds
        while not self._way.ready:
            if time.monotonic() > until:
                return False
            time.sleep(OPEN_EVERY_S)
        return True

    @property
    def facts(self) -> dict[str, int]:
        """Counts of rows.

        By the model that answered ("small", "large"), and of rows that were hard, sent to the large
        model, late or failed there, or kept because the large model was not asked
        (`CascadeState.counts`).
        """
        return dict(self._driver.machine.state.counts)

    # ------------------------------------------------ asking

    def predict(self, x: Array, seconds: float = 10.0) -> Array:
        """The answers to rows [n, ...], f32[n, ...]. seconds: when each is due.

        Raises DelianError when the rows are not those of the models, CascadeError where neither
        model answered one.
        """
        given = np.asarray(x)
        rows = as_rows(given, self._small.shape[1:])
        if rows is None or given.dtype.kind not in "fiub" or not len(rows):
            wanted = ", ".join(map(str, self._small.shape[1:]))
            raise DelianError(
                f"a batch of {given.dtype}{list(given.shape)}", f"give [n, {wanted}], n >= 1"
            )
        work = self._ask_all(rows, seconds)
        replies = asyncio.run_coroutine_threadsafe(work, self._loop).result()
        answers = [reply.answer for reply in replies]
        return np.concatenate([a for a in answers if a is not None])

    async def _ask_all(self, rows: Array, seconds: float) -> list[Reply]:
        async def one(row: Array) -> Reply:
            async with self._under_way:
                return await self._driver.ask(row, self._clock.now() + int(seconds * SECOND))

        asked = [asyncio.ensure_future(one(rows[i : i + 1])) for i in range(len(rows))]
        try:
            return await asyncio.gather(*asked)
        finally:
            for task in asked:
                task.cancel()

    def _below(self, row: Array) -> Array:
        answer: Array = self._run(*self._leaves, _filled(row, self._small))[0]
        return answer[:1]

    async def _above(self, row: Array, until: int) -> Array:
        return (await self._way(_filled(row, self._large), until))[:1]


def _filled(row: Array, kind: TensorType) -> Array:
    """The row first in a batch of zeros."""
    batch = np.zeros(kind.shape, kind.dtype.numpy)
    batch[0] = row[0].reshape(kind.shape[1:])
    return batch


def _lengths(kind: TensorType) -> list[int]:
    """A row's axes; one of length one, as grey images have, makes no difference."""
    return [n for n in kind.shape[1:] if n != 1]
