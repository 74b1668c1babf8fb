"""Cuts made ready for lower nodes: their parts derived and compiled, off the event loop.

Compiling one takes seconds, so a node may have only so many made, its own one after the other, and
those of several nodes take turns; runs have threads of their own and do not wait for any of it. A
cut that no asker waits for any more when its turn comes is not made.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic

from ...common.errors import DelianError
from ...node.net.message_limits import Buckets
from ..cut.cut import Cut, CutError
from .machines.part_ports import Event, Failure, Run, Unprepared
from .machines.part_ports import Prepared as CutPrepared
from .part_programs import Model, Prepared, Programs
from .request_limits import PREPARES_BURST, PREPARES_PER_S

log = logging.getLogger("delian.subgraphs")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A cut that is to be made ready."""

    model: Model
    cut: Cut
    tier: int
    node: str
    """The first asker."""


class CutPreparation:
    """Makes cuts ready, by the name that the machine knows each by.

    ready: those that are; under_way: those that are not yet. post: passes the result of each to the
    machine. waits: whether an asker waits for a cut.
    """

    def __init__(
        self,
        programs: Programs,
        post: Callable[[Event], None],
        waits: Callable[[bytes], bool],
    ) -> None:
        self.ready: dict[bytes, Prepared] = {}
        self.programs, self._post, self._waits = programs, post, waits
        self._wanted: dict[bytes, Wanted] = {}  # yet to be begun
        self.under_way: set[bytes] = set()
        self._budget = Buckets(PREPARES_BURST, PREPARES_PER_S)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._widened: set[tuple[bytes, int, int]] = set()
        self._compilers = ThreadPoolExecutor(1, thread_name_prefix="delian-compile")
        self._tasks: set[asyncio.Task[None]] = set()

    def may(self, name: bytes, node: str) -> bool:
        """Whether a node may have a cut, which counts where it is yet to be made for it."""
        return name in self.ready or name in self.under_way or self._budget.take(node, monotonic())

    def want(self, name: bytes, wanted: Wanted) -> None:
        """What a cut's name means, for when the machine wants it made."""
        self._wanted[name] = wanted

    def unwant(self, name: bytes) -> None:
        self._wanted.pop(name, None)

    def begin(self, name: bytes) -> None:
        """Makes a wanted cut; answered with Prepared or Unprepared."""
        making = self._make(name, self._wanted.pop(name))
        task = asyncio.get_running_loop().create_task(making)
        self.under_way.add(name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def widen(self, run: Run) -> None:
        """Prepares a program for as many requests at once, or the power of two below."""
        prepared = self.ready.get(run.cut)
        if prepared is None or run.part is None or len(run.tickets) < 2:
            return
        part, count = prepared.own()[run.part], 1 << (len(run.tickets).bit_length() - 1)
        wish = (run.cut, part.phase, count)
        if wish in self._widened:
            return
        self._widened.add(wish)

        def widen() -> None:
            try:
                self.programs.widen(prepared, part, count)
            except (DelianError, MemoryError) as error:
                log.warning("a part does not take several requests at once: %s", error)

        self._compilers.submit(widen)

    def drop(self, name: bytes) -> None:
        self.ready.pop(name, None)
        self._widened = {wish for wish in self._widened if wish[0] != name}

    async def close(self) -> None:
        """Ends, with what is being compiled. May be called twice."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.to_thread(self._compilers.shutdown, wait=True, cancel_futures=True)

    async def _make(self, name: bytes, wanted: Wanted) -> None:
        loop = asyncio.get_running_loop()
        turn = self._turns.setdefault(wanted.node, asyncio.Lock())
        try:
            async with turn:
                if not self._waits(name):
                    self._post(Unprepared(name, Failure.LOST))
                    return
                made = await loop.run_in_executor(
                    self._compilers, self.programs.prepare, wanted.model, wanted.cut, wanted.tier
                )
        except CutError as error:
            log.warning("a cut that does not fit: %s", error)
            self._post(Unprepared(name, Failure.MISFIT))
        except (DelianError, MemoryError) as error:
            log.warning("a cut that cannot be prepared: %s", error)
            self._post(Unprepared(name, Failure.FAILED))
        except Exception:  # a fault of this node's; askers that wait for the cut need an answer
            log.exception("a cut could not be prepared")
            self._post(Unprepared(name, Failure.FAILED))
        else:
            self.ready[name] = made
            self._post(CutPrepared(made.course(name)))
        finally:
            self.under_way.discard(name)
