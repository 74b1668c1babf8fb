"""Makes the next model of a mean: runs the bundle's `server_update` for the coordinator's machine.
It takes the masks out of a sum too (`unmask`), which is as much arithmetic.

The programs come from whoever submitted the run, so they are read like a peer's message: parsed
under limits, verified, compiled here. The same bundle, weights, memory and mean give the same bytes
on every run. Both results are durable in the store before the machine hears of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from ..core.backends import Backend
from ..core.bundle import parse
from ..core.errors import DelianError
from ..core.ir import Array
from ..core.learn.robust import Combination, update_of
from ..core.node.blobs import BlobStore
from ..core.ports import NewModel, Outcome, ProgramStopped, RunProgram, Vector
from ..core.privacy import noising
from ..core.privacy.noise import KEY_BYTES as NOISE_KEY_BYTES
from ..core.privacy.ring import RingPlan
from ..core.processors import cores
from ..core.runtime import Runtime
from ..core.secagg import masks
from ..core.wire.blob_pb2 import BlobRef
from ..core.wire.round_pb2 import BAD_BUNDLE, NON_FINITE, OUT_OF_MEMORY, PROGRAM_FAILED

log = logging.getLogger("delian.cloud.updates")

_T = TypeVar("_T")

#: Compiled bundles that are held; one a run that is active.
RUNTIMES_MAX = 16


class ServerUpdates:
    """A ProgramRunner (`core.node.executor`) for `server_update` and `unmask`.

    threads: updates that run at once. on_update: told the seconds that one took.
    """

    def __init__(
        self,
        blobs: BlobStore,
        backend: Backend = "native",
        threads: int = 1,
        on_update: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._blobs, self._backend, self._on_update = blobs, backend, on_update
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="delian-update")
        self._runtimes: OrderedDict[bytes, Runtime] = OrderedDict()
        self._loading = asyncio.Lock()

    async def run(self, program: RunProgram) -> Outcome | NewModel | ProgramStopped:
        """Gives a NewModel, a sum without masks, or why there is none."""
        if program.program == "unmask":
            return await self._unmask(*program.arguments)
        assert program.program == "server_update", program.program
        began = time.perf_counter()
        bundle, weights, *memory = program.blobs
        mean = program.arguments[0]
        try:
            runtime = await self._runtime(bundle)
        except DelianError as fault:
            log.error("the run's bundle cannot be used: %s", fault.message)
            return ProgramStopped(BAD_BUNDLE)
        try:
            state = np.frombuffer(await self._blobs.read(weights), "<f4").astype(np.float32)
            before = await self._blobs.read(memory[0]) if memory else b""
            made = await self._on_thread(lambda: _update(runtime, state, before, mean))
        except MemoryError:
            return ProgramStopped(OUT_OF_MEMORY)
        except DelianError as fault:
            log.error("the server update failed: %s", fault.message)
            return ProgramStopped(PROGRAM_FAILED)
        if made is None:
            log.error("the server update gave numbers that are not finite")
            return ProgramStopped(NON_FINITE)
        new, remembered = made
        kept: BlobRef | None = await self._blobs.put(remembered) if remembered else None
        model = NewModel(await self._blobs.put(new), kept)
        self._on_update(time.perf_counter() - began)
        return model

    async def _unmask(
        self,
        total: Vector,
        keys: list[tuple[bytes, int]],
        suite: int,
        noised: RingPlan | None = None,
    ) -> Outcome | ProgramStopped:
        """The exact sum is never seen outside where the coordinator adds noise to it."""

        def work() -> Vector:
            plain = np.array(total, np.uint32)
            masks.add(plain, keys, suite, cores())
            if noised is not None:
                noising.add(plain, noised, os.urandom(NOISE_KEY_BYTES))
            return plain

        try:
            return Outcome(await self._on_thread(work))
        except MemoryError:
            return ProgramStopped(OUT_OF_MEMORY)

    async def cancel(self, ticket: int) -> None:
        """Nothing to stop: one update takes less than a round's messages, and what it gives is
        dropped by whoever awaits it.
        """

    async def close(self) -> None:
        """Waits for the update that runs. May be called twice."""
        await asyncio.to_thread(self._pool.shutdown, True, cancel_futures=True)

    async def _runtime(self, digest: bytes) -> Runtime:
        """Raises DelianError for a bundle that is missing, does not verify or does not compile."""
        async with self._loading:
            known = self._runtimes.get(digest)
            if known is None:
                content = await self._blobs.read(digest)
                where = f"bundle {digest.hex()[:16]}"
                known = await self._on_thread(lambda: Runtime(parse(content, where), self._backend))
                self._runtimes[digest] = known
            self._runtimes.move_to_end(digest)
            while len(self._runtimes) > RUNTIMES_MAX:
                self._runtimes.popitem(last=False)
            return known

    async def _on_thread(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


def _update(
    runtime: Runtime, state: Array, memory: bytes, made: Array | Combination
) -> tuple[bytes, bytes] | None:
    """Weights and memory as they are stored; None: some number is not finite. made: the mean, or a
    rule in its place and what that is to be used on. Raises DelianError.
    """
    mean = update_of(made)
    after, remembered = runtime.server_update(state, runtime.memory_from(memory), mean)
    if not np.isfinite(after).all():
        return None
    return after.astype("<f4", copy=False).tobytes(), runtime.memory_bytes(remembered)
