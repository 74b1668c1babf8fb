"""What an edge's machine has computed: the ProgramRunner of an edge.

Masks are added up for a helper on a thread of their own; devices' trainings with the edge are the
affair of `split_host`.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from ...core.privacy.secagg.helper import masks_of
from ...core.protocol.ports import Outcome, ProgramStopped, RunProgram
from ...core.wire.round_pb2 import OUT_OF_MEMORY

if TYPE_CHECKING:
    from .split_host import SplitHost


class EdgePrograms:
    """Runs `masks`, one at a time; an edge that does not help has none to run.

    split: lets devices train with the edge; None: they do not, and no such program comes.
    """

    def __init__(self, split: SplitHost | None = None) -> None:
        self._split = split
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="delian-masks")

    async def run(self, program: RunProgram) -> Outcome | ProgramStopped:
        """Gives the sum of the masks of some keys, or why there is none."""
        if self._split is not None and program.program in ("split_begin", "split_end"):
            return await self._split.run(program)
        assert program.program == "masks", program.program
        keys, length, suite = program.arguments
        loop = asyncio.get_running_loop()
        try:
            return Outcome(await loop.run_in_executor(self._pool, masks_of, keys, length, suite))
        except MemoryError:
            return ProgramStopped(OUT_OF_MEMORY)

    async def cancel(self, ticket: int) -> None:
        """Nothing to stop: a sum of masks is never cancelled."""

    async def close(self) -> None:
        """Waits for the sum that is being made. May be called twice."""
        await asyncio.to_thread(self._pool.shutdown, True, cancel_futures=True)
