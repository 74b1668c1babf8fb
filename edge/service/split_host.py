"""Lets devices train with this edge, in the rounds of runs that allow it.

A round begins when the edge has the task's blobs and ends with its sum (`edge.protocol`). In
between devices open their trainings on streams of `SubgraphService`, by the digest of the run's
bundle; each is served by that round's `TrainingHost`. When one is whole the edge's machine gets its
name, before the device can have uploaded. What devices have trained is in memory: an edge that is
started again knows nothing of it, and the round's devices are asked again.

Programs of runs are compiled and run in this process, as those of `serve` are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ...core.common.errors import DelianError
from ...core.learning import bundle as bundles
from ...core.learning.frozen import Stamp, mapped, stamps_of
from ...core.placement.split_training.edge_round import EdgeRound, device_of
from ...core.placement.split_training.training_service import EXPIRE_EVERY_S, TrainingHost
from ...core.placement.subgraphs.frames.stream import Key, StreamError, Whole
from ...core.placement.subgraphs.frames.stream_service import Line
from ...core.protocol.ports import Outcome, ProgramStopped, RunProgram
from ...core.wire import subgraph_pb2 as pb
from ...core.wire.journal_pb2 import SplitTrained
from ...core.wire.round_pb2 import PROGRAM_FAILED, Task

if TYPE_CHECKING:
    from ...core.learning.bundle import Bundle

log = logging.getLogger("delian.edge.split")

#: Rounds of different runs at once.
ROUNDS_MAX = 8


class _Round:
    """An attempt that is under way."""

    def __init__(
        self, digest: bytes, part: EdgeRound, trained: Callable[[str, bytes], object]
    ) -> None:
        self.digest, self.part = digest, part
        self.host = TrainingHost(part.trainings, digest, trained)


class SplitHost:
    """The rounds of this edge; the owner of a `SubgraphService`.

    path_of: the file of a whole blob, by digest. order: takes orders to the edge's machine.
    """

    def __init__(
        self, path_of: Callable[[bytes], Path], order: Callable[[SplitTrained], object]
    ) -> None:
        self._path_of, self._order = path_of, order
        self.counts: Counter[str] = Counter()
        self._rounds: dict[str, _Round] = {}
        self._bundle: tuple[bytes, Bundle] | None = None
        self._before: tuple[bytes, EdgeRound] | None = None
        self._mapped: tuple[Stamp | None, ...] = ()
        self._lines: dict[int, TrainingHost] = {}  # whose stream has which round open

    # ------------------------------------------------ rounds

    async def run(self, program: RunProgram) -> Outcome | ProgramStopped:
        """`split_begin` and `split_end`; says why there is no outcome."""
        name = program.arguments[0]
        try:
            if program.program == "split_begin":
                await self._begin(name, program)
                return Outcome(None)
            return Outcome(await self._end(name, program))
        except (DelianError, OSError, MemoryError) as error:
            log.warning("%s of %s failed: %s", program.program, name, error)
            return ProgramStopped(PROGRAM_FAILED)

    async def _begin(self, name: str, program: RunProgram) -> None:
        assert program.task is not None
        part = await asyncio.to_thread(self._part, program, program.task.rng_key)
        digest = program.blobs[0]
        for other, known in list(self._rounds.items()):
            if known.digest == digest or len(self._rounds) >= ROUNDS_MAX:
                await self._drop(other)  # an attempt is over when the run's next one begins
        self._rounds[name] = _Round(digest, part, partial(self._trained, program.task))
        log.info("devices may train with this edge", extra={"attempt": name})

    def _trained(self, task: Task, peer: str, name: bytes) -> None:
        at = {"run": task.run, "round": task.round, "attempt": task.attempt}
        self._order(SplitTrained(**at, device=device_of(peer), name=name))

    def _part(self, program: RunProgram, rng_key: bytes) -> EdgeRound:
        """The edge's part of a round. Blocks. Raises DelianError, OSError."""
        digest, weights, *parts = program.blobs
        if self._bundle is None or self._bundle[0] != digest:
            self._bundle = digest, bundles.load(self._path_of(digest))
        bundle = self._bundle[1]
        files = [self._path_of(part) for part in parts]
        stamps = stamps_of(files)
        if stamps != self._mapped:
            self._before, self._mapped = None, stamps  # its leaves are those of other files
        frozen = mapped(bundle.manifest.frozen, files)
        given = np.fromfile(self._path_of(weights), "<f4").astype(np.float32)
        known = self._before
        before = known[1] if known is not None and known[0] == digest else None
        made = EdgeRound(bundle, given, frozen, rng_key, before=before)
        self._before = digest, made
        return made

    async def _end(self, name: str, program: RunProgram) -> np.ndarray | None:
        """The sum of what is here of the devices' updates; None: they have none."""
        parts = program.arguments[1]
        known = self._rounds.get(name)
        if known is None and parts:
            raise DelianError("no such round is here", "the edge was started again meanwhile")
        total = None
        if known is not None and parts:
            total = await asyncio.to_thread(known.part.total, parts)
        await self._drop(name)
        return total

    async def _drop(self, name: str) -> None:
        known = self._rounds.pop(name, None)
        if known is not None:
            self.counts += known.host.counts
            self._lines = {n: host for n, host in self._lines.items() if host is not known.host}
            await known.host.close()

    async def keep_expiring(self) -> None:
        """Drops trainings that no device continues, again and again."""
        while True:
            await asyncio.sleep(EXPIRE_EVERY_S)
            for known in self._rounds.values():
                known.host.expire()

    async def close(self) -> None:
        """Ends. May be called twice."""
        for name in list(self._rounds):
            await self._drop(name)

    # ------------------------------------------------ what the service says

    def came(self, line: Line) -> None:
        """A stream opens a training with its first frame."""

    def gone(self, line: Line) -> None:
        host = self._lines.pop(line.number, None)
        if host is not None:
            host.gone(line)

    def said(self, line: Line, frame: pb.SubgraphFrame) -> None:
        host = self._lines.get(line.number)
        if frame.WhichOneof("frame") == "open":
            found = self._host_of(frame.open.bundle)
            if found is None:
                self._refuse(line, frame.open.session)
                return
            if found is not host:
                self.gone(line)
                found.came(line)
                self._lines[line.number] = host = found
        if host is not None:
            host.said(line, frame)

    def admit(self, line: Line, key: Key, size: int) -> bool:
        host = self._lines.get(line.number)
        return host is not None and host.admit(line, key, size)

    def asked(self, line: Line, request: Whole) -> None:
        host = self._lines.get(line.number)
        if host is None:
            raise StreamError("unknown session")
        host.asked(line, request)

    def _host_of(self, digest: bytes) -> TrainingHost | None:
        return next((r.host for r in self._rounds.values() if r.digest == digest), None)

    def _refuse(self, line: Line, session: int) -> None:
        """It may be asked again: the round's blobs may be on their way here."""
        if not session:
            raise StreamError("malformed opening")
        self.counts["opening refused: no round"] += 1
        reason = "no round of training has begun here"
        opened = pb.SubgraphOpened(session=session, failure=pb.SUBGRAPH_BUSY, reason=reason)
        line.say(pb.SubgraphFrame(opened=opened))
