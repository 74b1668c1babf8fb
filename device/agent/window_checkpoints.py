"""Checkpoints of trainings by windows: the agent stores what its worker, confined, cannot.

One file a training, named by its bundle, weights and key; what is in it the worker alone reads
(`core.learning.windows.window_checkpoint`). A worker may have been taken over by the program that
it runs: so what it sends is bounded in size, and stored no more often than it was asked for.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ...core.common.files import read_at_most, write_whole
from ...core.node.sandbox import frames
from ...core.protocol.ports import RunProgram

log = logging.getLogger("delian.device.agent.windows")

#: Of a record, as of what a worker takes.
BYTES_MAX = 1 << 30
#: Trainings whose checkpoints are kept: one is under way, and one may be tried again.
FILES_KEPT = 2
SUFFIX = ".windows"


class WindowCheckpoints:
    """A folder of checkpoints. every_s: seconds between two of a training."""

    def __init__(
        self, folder: Path, every_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self.every_s, self._clock = folder, every_s, clock

    def read(self, program: RunProgram) -> bytes:
        """The last record of a training; empty where there is none. Blocks; raises OSError."""
        try:
            return read_at_most(self._file(program), BYTES_MAX)
        except FileNotFoundError:
            return b""

    def drop(self, program: RunProgram) -> None:
        """The training has ended. Blocks; raises OSError."""
        self._file(program).unlink(missing_ok=True)

    def write(self, program: RunProgram, record: bytes | bytearray) -> None:
        """Puts a record in place of the one before, durably: one of them is there whole.

        Readable by the owner alone: it depends on the data. Blocks; raises OSError.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self._file(program), bytes(record), 0o600, durable=True)
        others = sorted(self._folder.glob(f"*{SUFFIX}"), key=lambda f: f.stat().st_mtime_ns)
        for old in others[:-FILES_KEPT]:
            old.unlink(missing_ok=True)

    def note(self, program: RunProgram) -> Taking:
        """What takes the notes of a training."""
        return Taking(self, program, self._clock)

    def _file(self, program: RunProgram) -> Path:
        key = ",".join(str(int(word)) for word in program.arguments[0])
        parts: Sequence[str] = (*(blob.hex() for blob in program.blobs[:2]), key)
        name = hashlib.sha256(" ".join(parts).encode()).hexdigest()
        return self._folder / f"{name}{SUFFIX}"


class Taking:
    """Takes the notes of one training: logs its place, and stores its checkpoints."""

    def __init__(
        self, store: WindowCheckpoints, program: RunProgram, clock: Callable[[], float]
    ) -> None:
        self._store, self._program, self._clock = store, program, clock
        self._last, self._stored = -math.inf, False

    def progressed(self) -> bool:
        """Whether a checkpoint was stored since this was last asked."""
        stored, self._stored = self._stored, False
        return stored

    async def __call__(self, frame: frames.Frame) -> None:
        """A note: where the training is, and the record of it."""
        now = self._clock()
        # The worker's clock and this one may differ by a little.
        if now - self._last < self._store.every_s / 2:
            return
        self._last = now
        place = {n: frame.head.get(n) for n in ("epoch", "passes", "window", "windows")}
        if not all(type(number) is int for number in place.values()):
            return
        log.info("client_update under way", extra={"ticket": self._program.ticket, **place})
        if not frame.body:
            return
        try:
            await asyncio.to_thread(self._store.write, self._program, frame.body)
            self._stored = True
        except OSError as error:
            log.warning("a checkpoint was not stored: %s", error)
