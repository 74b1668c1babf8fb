"""The common part of askers and servers: run queue, request table, tier above, one timer."""

from __future__ import annotations

from collections.abc import Callable

from ....protocol.ports import SetTimer, TimerFired
from . import part_ports as ports
from .request_table import Local, Request, RequestTable
from .run_queue import RunQueue
from .upstream import Upper

#: The timer's name.
TICK = "subgraphs"


class TierRunner:
    """Reads the events of runs and of the tier above, and keeps the timer."""

    def __init__(
        self,
        upper: Upper | None,
        local: Local,
        done: Callable[[Request], ports.Effect],
        refuse: Callable[[Request, ports.Failure], ports.Effect],
        late: bool,
        queue: RunQueue | None = None,
    ) -> None:
        self.upper = upper
        self.queue = RunQueue() if queue is None else queue
        self.table = RequestTable(self.queue, upper, local, done, refuse, late)
        self._timer: int | None = None

    def hear(self, event: ports.Event, now: int) -> list[ports.Effect]:
        """What an event means for the requests under way."""
        if isinstance(event, ports.RunFinished):
            jobs = self.queue.finished(event.run, now, measured=event.failure is None)
            return self.table.ended(jobs, event.failure is not None, now)
        if isinstance(event, TimerFired):
            if self._timer is not None and now >= self._timer:
                self._timer = None
            return self.upper.tick(now) if self.upper is not None else []
        assert self.upper is not None, f"{type(event).__name__}: there is no tier above"
        return self._from_above(self.upper, event, now)

    def _from_above(self, upper: Upper, event: ports.Event, now: int) -> list[ports.Effect]:
        match event:
            case ports.Taken():
                return upper.taken(event, now)
            case ports.ReplyArriving(ticket, done, _):
                upper.estimator.arriving(ticket, done, now)
            case ports.ReplyReceived():
                return self.table.replied(event, now)
            case ports.ReplyFailed(ticket, failure):
                return self._reply_failed(upper, ticket, failure, now)
            case ports.ProbeAnswered():
                return upper.probed(event, now)
            case ports.CutOpened():
                upper.opened(event)
            case ports.CutRefused():
                upper.refused(event, now)
            case ports.UpperBack():
                return upper.back(now)
            case ports.UpperGone():
                upper.gone(now)
                return self.table.alone(now)
            case _:
                raise AssertionError(f"{type(event).__name__} is not for this machine")
        return []

    def _reply_failed(
        self, upper: Upper, ticket: int, failure: ports.Failure, now: int
    ) -> list[ports.Effect]:
        """The tier above refused a request: it is too busy, or does not know the cut any more."""
        request = self.table.requests.get(ticket)
        if request is None:
            return []
        if failure in (ports.Failure.UNKNOWN, ports.Failure.MISFIT):
            upper.refused(ports.CutRefused(request.course.cut, failure), now)
        else:
            upper.overloaded(now)
        return self.table.failed(ticket, now)

    def settle(self, now: int, wanted: int | None = None) -> list[ports.Effect]:
        """What begins now, and the next timer: at `wanted` at the latest."""
        effects: list[ports.Effect] = list(self.queue.start(now))
        times = [wanted, self.table.next_at(now), self.queue.next_at()]
        if self.upper is not None:
            times.append(self.upper.next_at())
        known = [t for t in times if t is not None]
        if known:
            at = max(now + 1, min(known))
            if self._timer is None or self._timer <= now or at < self._timer:
                self._timer = at
                effects.append(SetTimer(TICK, at))
        return effects
