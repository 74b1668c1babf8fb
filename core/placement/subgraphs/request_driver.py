"""The driver of an `Asker`: a device's requests, answered by the tiers together.

driver = AskingDriver(model, cuts, asker, programs, upstream)
driver.start()
results = await driver.request((x,), seconds=2.0)
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ...common.errors import DelianError
from ...compiler.ir import Array
from ...protocol.ports import Record
from ..cut.wire_formats import WireError
from .frames.enveloped import EnvelopedUpstream
from .frames.stream_client import Upstream
from .machine_loop import Machine, MachineLoop
from .machines import part_ports as ports
from .part_programs import Model, Prepared, Programs
from .part_work import Held, Workers
from .upstream_driver import Above


class RefusedError(DelianError):
    """A request has no answer. failure: why."""

    def __init__(self, failure: ports.Failure) -> None:
        super().__init__(_WORDS[failure])
        self.failure = failure


_WORDS = {
    ports.Failure.UNKNOWN: "no tier above knows the model, and this device cannot run it alone",
    ports.Failure.MISFIT: "the request does not fit the model",
    ports.Failure.BUSY: "too many requests wait already",
    ports.Failure.LATE: "the answer would have come too late",
    ports.Failure.LOST: "no tier above answers, and this device cannot run the model alone",
    ports.Failure.FAILED: "the model could not be run",
}


@dataclass(frozen=True, slots=True)
class Answered:
    """What a request gave."""

    results: tuple[Array, ...]
    by: ports.Work
    """What ran; PART: as the cut says."""
    fallback: bool
    """Whether that was not what the plan wanted."""
    seconds: float
    """Seconds from the request to the answer."""


class AskingDriver:
    """Runs an Asker over a model.

    cuts: what the plan has, by the name that the machine knows each by. upstream: makes the way up,
    for its owner; None: there is none. threads: runs at once, which the machine must know too.
    """

    def __init__(
        self,
        model: Model,
        cuts: Mapping[bytes, Prepared],
        machine: Machine,
        programs: Programs,
        upstream: Callable[[Above], Upstream | EnvelopedUpstream] | None,
        *,
        threads: int = 1,
        smaller: Callable[..., tuple[Array, ...]] | None = None,
        on_record: Callable[[Record], None] | None = None,
    ) -> None:
        self._model, self._cuts = model, cuts
        self._held: dict[int, Held] = {}
        self._waiting: dict[int, tuple[asyncio.Future[Answered], int]] = {}
        self._tickets = itertools.count(1)
        self._loop = MachineLoop(machine, self._carry, on_record)
        self._workers = Workers(programs, self._held, cuts, self._loop.post, threads, smaller)
        self.above = Above(self._held, cuts, self._loop.post)
        self.upstream = None if upstream is None else upstream(self.above)

    def start(self) -> None:
        """Dials, where there is a tier above."""
        if self.upstream is not None:
            self.upstream.start()

    async def close(self) -> None:
        """Ends; requests that are not answered are refused. May be called twice."""
        if self.upstream is not None:
            await self.upstream.close()
        self._loop.close()
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(RefusedError(ports.Failure.LOST))
        self._waiting.clear()
        await asyncio.to_thread(self._workers.close)

    def request(self, inputs: Sequence[Array], seconds: float) -> asyncio.Future[Answered]:
        """Asks for the program's results.

        seconds: when the answer is due; one that comes later is still given. The future raises
        RefusedError where there is none.
        """
        ticket = next(self._tickets)
        now = self._loop.now()
        future: asyncio.Future[Answered] = asyncio.get_running_loop().create_future()
        places = range(len(self._model.leaves), len(self._model.leaves) + len(inputs))
        have = dict(zip(places, inputs, strict=True))
        self._held[ticket] = Held(self._model, dict(have), tuple(inputs))
        self._waiting[ticket] = (future, now)
        self._loop.post(ports.Requested(ticket, now + int(seconds * 1e9)))
        return future

    def _carry(self, effect: ports.Effect) -> None:
        match effect:
            case ports.Run():
                for ticket in effect.tickets:
                    if effect.cut:
                        self._held[ticket].cut = effect.cut
                self._workers.run(effect)
            case ports.CancelRun(run):
                self._workers.cancel(run)
            case ports.OpenCut() | ports.SendRequest() | ports.CancelRequest() | ports.Probe():
                self.above.carry(effect)
            case ports.Answer(ticket, by, fallback):
                self._answer(ticket, by, fallback)
            case ports.Refuse(ticket, failure):
                self._refuse(ticket, failure)
            case _:
                raise AssertionError(f"{type(effect).__name__} is a server's effect")

    def _answer(self, ticket: int, by: ports.Work, fallback: bool) -> None:
        held = self._held.pop(ticket)
        future, began = self._waiting.pop(ticket)
        if future.done():
            return
        prepared = self._cuts[held.cut] if by in (ports.Work.PART, ports.Work.REST) else None
        try:
            results = held.answer(prepared)
        except WireError:
            future.set_exception(RefusedError(ports.Failure.FAILED))
            return
        seconds = (self._loop.now() - began) / 1e9
        future.set_result(Answered(results, by, fallback, seconds))

    def _refuse(self, ticket: int, failure: ports.Failure) -> None:
        self._held.pop(ticket, None)
        future, _ = self._waiting.pop(ticket)
        if not future.done():
            future.set_exception(RefusedError(failure))
