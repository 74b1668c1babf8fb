"""What askers and servers have in common: a bench, a desk, perhaps a tier above, and one timer."""

from __future__ import annotations

from collections.abc import Callable

from ....protocol.ports import SetTimer, TimerFired
from . import part_ports as ports
from .request_table import Desk, Local, Request
from .run_queue import Bench
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
        bench: Bench | None = None,
    ) -> None:
        self.upper = upper
        self.bench = Bench() if bench is None else bench
        self.desk = Desk(self.bench, upper, local, done, refuse, late)
        self._timer: int | None = None

    def hear(self, event: ports.Event, now: int) -> list[ports.Effect]:
        """What an event means for the requests under way."""
        if isinstance(event, ports.RunFinished):
            jobs = self.bench.finished(event.run, now, measured=event.failure is None)
            return self.desk.ended(jobs, event.failure is not None, now)
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
                return self.desk.replied(event, now)
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
                return self.desk.alone(now)
            case _:
                raise AssertionError(f"{type(event).__name__} is not for this machine")
        return []

    def _reply_failed(
        self, upper: Upper, ticket: int, failure: ports.Failure, now: int
    ) -> list[ports.Effect]:
        """The tier above refused a request: it is too busy, or does not know the cut any more."""
        request = self.desk.requests.get(ticket)
        if request is None:
            return []
        if failure in (ports.Failure.UNKNOWN, ports.Failure.MISFIT):
            upper.refused(ports.CutRefused(request.course.cut, failure), now)
        else:
            upper.overloaded(now)
        return self.desk.failed(ticket, now)

    def settle(self, now: int, wanted: int | None = None) -> list[ports.Effect]:
        """What begins now, and when time is to be told next: at `wanted` at the latest."""
        effects: list[ports.Effect] = list(self.bench.start(now))
        times = [wanted, self.desk.next_at(now), self.bench.next_at()]
        if self.upper is not None:
            times.append(self.upper.next_at())
        known = [t for t in times if t is not None]
        if known:
            at = max(now + 1, min(known))
            if self._timer is None or self._timer <= now or at < self._timer:
                self._timer = at
                effects.append(SetTimer(TICK, at))
        return effects
