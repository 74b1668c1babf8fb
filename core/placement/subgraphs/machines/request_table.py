"""The life of a request on one tier, as a table; a device, an edge and the cloud share it.

    BEFORE ── ran ──> ASKED ── replied ──> FINAL ── ran ──> answered
       │                │ hopeless           ^ (or answered at once: nothing comes after the reply)
       │ lost,          v                    │
       │ hopeless     BOTH ── replied ───────┘
       │                │ fell: the fallback was first ──> answered
       v                v lost
     LOCAL ── fell ──> answered

A request is answered once: with the answer it leaves the table, and what else is under way for it
is called off. Falling back means: the rest of the cut here, the whole program, or the smaller one,
whichever can be ready in time; the smaller one only where the others cannot, or failed.

*Hopeless* is not a fixed timeout. What the reply still takes is predicted again and again from what
is on the link and how fast it moves; when the fallback would be ready sooner, or the deadline is so
near that the fallback must begin now, it begins while the request waits (`BOTH`), and whichever
comes first is the answer. A reply that is overdue by twice its predicted time is not predicted any
more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from ....protocol.machine import IGNORE, index, row, step
from ....protocol.ports import MS, SECOND, Record
from . import part_ports as ports
from .run_queue import Job, RunQueue
from .upstream import Upper

#: The fallback begins while the request waits when it would be ready this much sooner.
SOONER = 1.25
#: Before a deadline: how wrong predictions may be.
MARGIN = 1.2
#: A reply is overdue after so many times its predicted time, and this much more.
PATIENCE = 2.0
PATIENCE_NS = 30 * MS
#: How often requests that wait for a reply are looked at.
TICK_NS = 20 * MS
#: A reply that should be here already takes at least this part of its predicted time still.
STILL = 0.1


class Phase(StrEnum):
    """Of one request."""

    BEFORE = "before"  # this tier's first part waits or runs
    ASKED = "asked"  # the tier above has it, or is being sent it
    BOTH = "both"  # as ASKED, and the fallback waits or runs
    LOCAL = "local"  # only the fallback, or the program of a cut that asks no tier
    FINAL = "final"  # the part whose results are the answer waits or runs


class Trigger(StrEnum):
    """What happens to a request."""

    RAN = "its part ran"
    FELL = "its fallback ran"
    BROKE = "a run failed"
    REPLIED = "the reply came"
    LOST = "there will be no reply"
    HOPELESS = "the reply would be too late"
    OVER = "the answer is not needed any more"


@dataclass(slots=True)
class Request:
    """One request under way."""

    ticket: int
    deadline: int
    course: ports.Course
    phase: Phase
    begun: int
    ran: bool = False
    """`before` is done, so REST can run."""
    target: int = 0
    """Bytes that the link will have taken when all of it is above."""
    uploaded_at: int | None = None
    """When that was so."""
    overdue: bool = False
    """Its reply was, once."""
    by: ports.Work = ports.Work.PART
    """The fallback that waits or runs, or ran."""
    fallback: bool = False
    tried: set[ports.Work] = field(default_factory=set)
    """Those that failed."""


@dataclass(frozen=True, slots=True)
class Local:
    """What this tier can run for a request by itself, in predicted seconds; infinite: it cannot."""

    whole: float = math.inf
    smaller: float = math.inf


class RequestTable:
    """Requests under way on one tier.

    done: makes the effect that answers a request; refuse: that refuses it. late: whether an answer
    after its deadline is still one: to an application it is, to a tier below not.
    """

    def __init__(
        self,
        queue: RunQueue,
        upper: Upper | None,
        local: Local,
        done: Callable[[Request], ports.Effect],
        refuse: Callable[[Request, ports.Failure], ports.Effect],
        late: bool,
    ) -> None:
        self.queue, self.upper, self._local = queue, upper, local
        self._done, self._refuse, self._late = done, refuse, late
        self.requests: dict[int, Request] = {}
        self.now = 0
        self._effects: list[ports.Effect] = []

    def __len__(self) -> int:
        return len(self.requests)

    # ------------------------------------------------ what comes in

    def begin(
        self, ticket: int, deadline: int, course: ports.Course, now: int
    ) -> list[ports.Effect]:
        """Takes a request, with the cut that it keeps."""
        request = Request(ticket, deadline, course, Phase.BEFORE, now)
        self.requests[ticket] = request
        self.now, self._effects = now, []
        if course.legs:
            if course.before is None:
                self._step(request, Trigger.RAN)
            else:
                self._run(request, ports.Work.PART, course.before, course.seconds[0])
        elif course.before is None:
            request.phase, request.by = Phase.LOCAL, ports.Work.WHOLE
            self._run(request, ports.Work.WHOLE, None, self._local.whole)
        else:
            request.phase = Phase.FINAL
            self._run(request, ports.Work.PART, course.before, course.seconds[0])
        return self._effects

    def ended(self, jobs: list[Job], failed: bool, now: int) -> list[ports.Effect]:
        """A run of these jobs has ended."""
        self.now, self._effects = now, []
        for job in jobs:
            request = self.requests.get(job.ticket)
            if request is None:
                continue
            if failed:
                request.tried.add(job.work)
                self._step(request, Trigger.BROKE)
            elif job.work is ports.Work.PART:
                self._step(request, Trigger.RAN)
            else:
                self._step(request, Trigger.FELL)
        return self._effects

    def replied(self, event: ports.ReplyReceived, now: int) -> list[ports.Effect]:
        """The reply to a request came; one that no request waits for is ignored."""
        self.now, self._effects = now, []
        request = self.requests.get(event.ticket)
        if request is not None and request.phase in (Phase.ASKED, Phase.BOTH):
            assert self.upper is not None
            self.upper.replied(event, request.course, now)
            self._step(request, Trigger.REPLIED)
        return self._effects

    def failed(self, ticket: int, now: int) -> list[ports.Effect]:
        """The tier above has refused a request."""
        self.now, self._effects = now, []
        request = self.requests.get(ticket)
        if request is not None and request.phase in (Phase.ASKED, Phase.BOTH):
            request.target = 0
            self._step(request, Trigger.LOST)
        return self._effects

    def alone(self, now: int) -> list[ports.Effect]:
        """The tier above went."""
        self.now, self._effects = now, []
        for request in list(self.requests.values()):
            request.target = 0
            # A first part that can be followed by the rest here is not run in vain.
            if request.phase is not Phase.BEFORE or request.course.rest == math.inf:
                self._step(request, Trigger.LOST)
        return self._effects

    def forget(self, ticket: int, now: int) -> list[ports.Effect]:
        """The answer is not needed any more: calls off what is under way."""
        self.now, self._effects = now, []
        request = self.requests.get(ticket)
        if request is not None:
            self._leave(request)
        return self._effects

    def look(self, now: int) -> list[ports.Effect]:
        """Time has passed: whose reply is hopeless, whose deadline is over?"""
        self.now, self._effects = now, []
        for request in list(self.requests.values()):
            if now > request.deadline and not self._late:
                self._step(request, Trigger.OVER)
            elif request.phase in (Phase.BEFORE, Phase.ASKED) and self._hopeless(request):
                if self._fallback(request) is not None:
                    self._step(request, Trigger.HOPELESS)
                elif now > request.deadline:
                    self._step(request, Trigger.OVER)
        return self._effects

    def next_at(self, now: int) -> int | None:
        """When to `look` again."""
        waits = any(
            not self._late or r.phase in (Phase.BEFORE, Phase.ASKED) for r in self.requests.values()
        )
        return now + TICK_NS if waits else None

    # ------------------------------------------------ actions of the table

    def _step(self, request: Request, trigger: Trigger) -> None:
        step(_ROWS, request, trigger, self, request)

    def ask(self, request: Request) -> None:
        """Sends the boundary up; where that cannot be now, falls back at once."""
        request.ran = True
        upper, course = self.upper, request.course
        if upper is None or not upper.usable(course.cut):
            self._step(request, Trigger.LOST)
            return
        estimator = upper.estimator
        estimator.sent(course.legs[0].up, self.now)
        request.target = estimator.taken + estimator.waiting
        self._effects.append(ports.SendRequest(request.ticket, course.cut, self._of_use(request)))

    def take(self, request: Request) -> None:
        """The reply is here: it is the answer, or the last part needs it."""
        request.by, request.fallback, request.target = ports.Work.PART, False, 0
        self._call_off_runs(request)
        course = request.course
        if course.after is None:
            self.answer(request)
        else:
            self._run(request, ports.Work.PART, course.after, course.seconds[0] / 2)

    def hedge(self, request: Request) -> None:
        self._effects.append(Record("hedged", {"ticket": request.ticket}))
        self.fall_back(request)

    def fall_back(self, request: Request) -> None:
        """Runs what this tier can run alone; refuses the request where that is nothing."""
        if request.phase is Phase.LOCAL:  # not while the request may still be answered
            self._call_off_runs(request)
            self._call_off_request(request)
        choice = self._fallback(request)
        if choice is None:
            failure = ports.Failure.FAILED if request.tried else ports.Failure.LOST
            self._effects.append(self._refuse(request, failure))
            self._leave(request)
            return
        work, seconds = choice
        request.by, request.fallback = work, True
        self._run(request, work, None, seconds)

    def answer(self, request: Request) -> None:
        self._effects.append(self._done(request))
        self._leave(request)

    def give_up(self, request: Request) -> None:
        self._effects.append(self._refuse(request, ports.Failure.LATE))
        self._leave(request)

    def _leave(self, request: Request) -> None:
        """The request is done with; what is still under way for it is of no use."""
        self._call_off_runs(request)
        self._call_off_request(request)
        self.requests.pop(request.ticket, None)

    def _call_off_runs(self, request: Request) -> None:
        self._effects += [ports.CancelRun(run) for run in self.queue.drop(request.ticket)]

    def _call_off_request(self, request: Request) -> None:
        if request.target and self.upper is not None:
            estimator = self.upper.estimator
            left = min(request.target - estimator.taken, request.course.legs[0].up)
            estimator.called_off(max(0, left))
            request.target = 0
            self._effects.append(ports.CancelRequest(request.ticket))

    def _run(self, request: Request, work: ports.Work, part: int | None, seconds: float) -> None:
        # The whole program and the smaller one are the same for all cuts.
        cut = request.course.cut if work in (ports.Work.PART, ports.Work.REST) else b""
        job = Job(request.ticket, cut, work, part, request.deadline, seconds, self.now)
        self.queue.add(job)

    # ------------------------------------------------ predictions

    def local_s(self, deadline: int, now: int) -> float:
        """Predicted seconds until the whole program, begun now, would be done."""
        whole = self.queue.expected_s(self._local.whole, now)
        return self.queue.delay_s(now, deadline) + whole

    def _fallback(self, request: Request) -> tuple[ports.Work, float] | None:
        """What this tier would run alone, and its predicted seconds."""
        choices = [(request.course.rest, ports.Work.REST)] if request.ran else []
        choices.append((self._local.whole, ports.Work.WHOLE))
        full = [c for c in choices if c[0] < math.inf and c[1] not in request.tried]
        best = min(full, default=None)
        smaller = self._local.smaller
        if smaller < math.inf and ports.Work.SMALLER not in request.tried:
            ready = self.now + self._seconds(best[0], request) if best is not None else math.inf
            if best is None or (ready > request.deadline and smaller < best[0]):
                best = (smaller, ports.Work.SMALLER)
        return None if best is None else (best[1], best[0])

    def _seconds(self, predicted: float, request: Request) -> int:
        """Ns until something of so many predicted seconds, begun now, would be done."""
        delay = self.queue.delay_s(self.now, request.deadline)
        return round((delay + self.queue.expected_s(predicted, self.now)) * SECOND)

    def _hopeless(self, request: Request) -> bool:
        """Whether the fallback should begin now."""
        remaining = self._remaining_s(request)
        choice = self._fallback(request)
        if choice is None:
            return self.now > request.deadline
        if remaining == math.inf:
            return True
        fallback = self._seconds(choice[1], request)
        reply = round(remaining * SECOND)
        # The smaller program's answers are worse: only a deadline makes it begin.
        if choice[0] is not ports.Work.SMALLER and reply > SOONER * fallback + PATIENCE_NS:
            return True
        must_begin = self.now + round(MARGIN * fallback) >= request.deadline
        return must_begin and reply > fallback and self.now + MARGIN * reply > request.deadline

    def _of_use(self, request: Request) -> int:
        """Ns for which a reply is of use.

        Until the deadline; and where a late answer is still one, as long as it may well take, and
        as long as nothing here would be sooner.
        """
        time = request.deadline - self.now
        if self._late:
            choice = self._fallback(request)
            here = 0 if choice is None else self._seconds(choice[1], request)
            reply = self._remaining_s(request)
            if reply < math.inf:
                time = max(time, here, round(PATIENCE * reply * SECOND) + PATIENCE_NS)
        return max(1, time)

    def _remaining_s(self, request: Request) -> float:
        """Predicted seconds until the reply; infinite: it is overdue, or no tier is there."""
        upper, course = self.upper, request.course
        if upper is None or not upper.usable(course.cut):
            return course.rest if request.phase is Phase.BEFORE else math.inf
        link = upper.link(self.now)
        leg = course.legs[0]
        above = upper.above_s(course, self.now)
        back = leg.down / link.down + link.latency_s
        if request.phase is Phase.BEFORE:
            delay = self.queue.delay_s(self.now, request.deadline)
            up = (upper.estimator.waiting + leg.up) / link.up + link.latency_s
            return delay + up + above + back
        left = min(request.target - upper.estimator.taken, upper.estimator.waiting)
        if left > 0:
            return left / link.up + link.latency_s + above + back
        if request.uploaded_at is None:
            request.uploaded_at = self.now
        waited = (self.now - request.uploaded_at) / SECOND
        expected = above + back
        if waited > PATIENCE * expected + PATIENCE_NS / SECOND:
            if not request.overdue:
                request.overdue = True
                upper.overloaded(self.now)
            return math.inf
        return max(expected - waited, STILL * expected)


_P, _T = Phase, Trigger
ROWS = (
    row(_P.BEFORE, _T.RAN, RequestTable.ask, _P.ASKED, "its boundary values go up"),
    row(_P.BEFORE, _T.BROKE, RequestTable.fall_back, _P.LOCAL, "another program may still run"),
    row(_P.BEFORE, _T.LOST, RequestTable.fall_back, _P.LOCAL, "no tier is there to be asked"),
    row(_P.BEFORE, _T.HOPELESS, RequestTable.fall_back, _P.LOCAL, "asking would take too long"),
    row(_P.ASKED, _T.REPLIED, RequestTable.take, _P.FINAL, "results, or what the rest needs"),
    row(_P.ASKED, _T.LOST, RequestTable.fall_back, _P.LOCAL, "refused, or the tier went"),
    row(_P.ASKED, _T.HOPELESS, RequestTable.hedge, _P.BOTH, "whichever is first answers"),
    row(_P.BOTH, _T.REPLIED, RequestTable.take, _P.FINAL, "the fallback is called off"),
    row(_P.BOTH, _T.FELL, RequestTable.answer, None, "the request is called off"),
    row(_P.BOTH, _T.BROKE, IGNORE, _P.ASKED, "the reply may still come"),
    row(_P.BOTH, _T.LOST, IGNORE, _P.LOCAL, "the fallback runs already"),
    row(_P.LOCAL, _T.FELL, RequestTable.answer, None, "by this tier alone"),
    row(_P.LOCAL, _T.BROKE, RequestTable.fall_back, _P.LOCAL, "the next program, if one is left"),
    row(_P.FINAL, _T.RAN, RequestTable.answer, None, "as the cut says"),
    row(_P.FINAL, _T.BROKE, RequestTable.fall_back, _P.LOCAL, "another program may still run"),
    row((_P.LOCAL, _P.FINAL), _T.LOST, IGNORE, None, "nothing is awaited from above"),
    row(tuple(Phase), _T.OVER, RequestTable.give_up, None, "it is refused as late"),
)
_ROWS = index(ROWS)
