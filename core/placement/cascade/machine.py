"""A cascade: a small model below, a large one above, and which of them answers a request.

Everything that decides is in this file, without I/O: `handle(event, now) -> effects`. A driver runs
the models, carries the questions up and keeps the timers (`driver`); a simulation can do
so under a virtual clock. Two modes, named as in KubeEdge Sedna's joint inference:

    inference-then-mining   the small model answers first; a filter reads its answer, and what is
                            hard is asked above as well. The small model's answer is at hand all the
                            while, so what fails or is late above costs accuracy, never an answer.
    mining-then-inference   a filter chooses first, by what a router says of the input or by
                            nothing, and one of the two models runs. Time for the small one is kept
                            back: it runs after all where above fails or is late.

Each request is answered exactly once: by the large model, by the small one, or, where both fail,
with a failure in words. An answer that comes from above after that is counted and dropped. After
`failures` failures or late answers in a row, above is left alone for a pause that doubles, and hard
examples keep the small model's answer without waiting; then one request tries again.

    new ── infer ──> LOOKING ── easy, or above rests ──────────> answered by the small one
                        │ hard             ┌─ large ───────────> answered by the large one
                        └──> ASKED ────────┴─ failed, late ────> answered by the small one
    new ── hard ───> ALONE ── large ───────────────────────────> answered by the large one
                        │ failed, late
                        v
    new ── easy ───> RUNNING ── small, or large after all ─────> answered by it
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from ...common.errors import DelianError
from ...compiler.ir import Array
from ...protocol.machine import IGNORE, Backoff, index, row, step
from ...protocol.ports import MS, SECOND
from .hard_examples import Filter, hard

#: Requests that one cascade holds at a time: each may hold an answer.
REQUESTS_MAX = 4_096
PAUSE = Backoff(200 * MS, 10 * SECOND, 1)


class Mode(StrEnum):
    """Whether the small model or the filter comes first."""

    INFERENCE_THEN_MINING = "inference-then-mining"
    MINING_THEN_INFERENCE = "mining-then-inference"


class By(StrEnum):
    """Whose answer it is."""

    SMALL = "small"
    LARGE = "large"
    NEITHER = "neither"


class CascadeError(DelianError):
    """A request that could not be taken, or that neither model answered."""


@dataclass(frozen=True, slots=True)
class CascadePlan:
    """How a cascade decides."""

    chosen: Filter
    """The filter; a request of several rows is hard where one of them is."""
    mode: Mode = Mode.INFERENCE_THEN_MINING
    """Whether the small model or the filter comes first."""
    above_ns: int = SECOND
    """How long above may take, in ns; after it the small model's answer stands."""
    small_ns: int = 0
    """How long the small model takes, in ns: kept back of a request's deadline where it has not run
    yet.
    """
    failures: int = 3
    """So many in a row, and above is left alone."""
    pause: Backoff = PAUSE
    """For how long above is left alone."""

    def __post_init__(self) -> None:
        if self.above_ns <= 0 or self.small_ns < 0 or self.failures < 1:
            raise CascadeError(
                f"a cascade that waits {self.above_ns} ns, keeps {self.small_ns} ns for its own"
                f" model and gives up after {self.failures} failures",
                "above 0, at least 0, and at least 1",
            )


# Events.


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of this number has come, to be answered by `deadline` ns where that can be."""

    request: int
    deadline: int
    seen: Array | None = None
    """What a router says of its input, for a filter that looks before it chooses."""


@dataclass(frozen=True, slots=True)
class SmallRan:
    """The small model gave an answer [B, ...], or none."""

    request: int
    answer: Array | None


@dataclass(frozen=True, slots=True)
class LargeRan:
    """Above gave an answer, or said that it has none, or cannot be reached."""

    request: int
    answer: Array | None


@dataclass(frozen=True, slots=True)
class Late:
    """The time that `AskAbove` gave is over."""

    request: int


Event: TypeAlias = Asked | SmallRan | LargeRan | Late


# Effects.


@dataclass(frozen=True, slots=True)
class RunSmall:
    """Run the small model on the request's input, and say `SmallRan`."""

    request: int


@dataclass(frozen=True, slots=True)
class AskAbove:
    """Ask above, and say `LargeRan`; say `Late` at `until` ns where it has not answered."""

    request: int
    until: int


@dataclass(frozen=True, slots=True)
class Reply:
    """The request's one answer."""

    request: int
    answer: Array | None
    by: By
    hard: bool | None
    """What the filter said; None where it never got to."""
    why: str = ""
    """Empty, or why a hard example has no answer from above."""


Effect: TypeAlias = RunSmall | AskAbove | Reply


class Phase(StrEnum):
    """Of one request."""

    LOOKING = "looking"
    ASKED = "asked"
    ALONE = "alone"
    RUNNING = "running"
    DONE = "done"


class Trigger(StrEnum):
    """What an event is to a request."""

    EASY = "easy"
    HARD = "hard"
    RESTING = "hard, and above is left alone"
    SMALL = "the small model ran"
    SMALL_FAILED = "the small model failed"
    LARGE = "answered above"
    LARGE_FAILED = "failed or late above"
    LOST = "both failed"


@dataclass(slots=True)
class _Request:
    deadline: int
    phase: Phase
    hard: bool | None = None
    small: Array | None = None
    small_failed: bool = False
    asked: bool = False
    why: str = ""


@dataclass(slots=True)
class CascadeState:
    """Plain data."""

    requests: dict[int, _Request] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """Requests by answer (small, large, neither), and hard, asked, failed, late ones."""
    streak: int = 0
    """Failures above in a row."""
    rests_until: int = 0
    """Ns; until then nothing goes up but `probe`."""
    probe: int | None = None


class Cascade:
    """Runs the table for every request that is open."""

    def __init__(self, plan: CascadePlan) -> None:
        self.plan = plan
        self.state = CascadeState()
        self._now = 0
        self._effects: list[Effect] = []

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Handles an event. Raises CascadeError for a number in use, and for one too many."""
        self._now, self._effects = now, []
        if isinstance(event, Asked):
            self._begin(event)
            return self._effects
        one = self.state.requests.get(event.request)
        if one is None:
            self.state.counts["dropped"] += 1
            return self._effects
        trigger = self._read(event, one)
        if trigger is None:
            return self._effects
        step(_ROWS, one, trigger, self, event.request, one, event)
        if one.phase is Phase.DONE:
            del self.state.requests[event.request]
        return self._effects

    def forget(self, request: int) -> None:
        """Drops a request that is open: its answer is not needed any more."""
        if self.state.requests.pop(request, None) is not None:
            self.state.counts["forgotten"] += 1

    def _begin(self, event: Asked) -> None:
        if event.request in self.state.requests:
            raise CascadeError(f"request {event.request} is open already")
        if len(self.state.requests) >= REQUESTS_MAX:
            raise CascadeError(f"{REQUESTS_MAX} requests are open", "wait for some of them")
        one = _Request(event.deadline, Phase.LOOKING)
        if self.plan.mode is Mode.MINING_THEN_INFERENCE:
            one.hard = bool(np.any(hard(self.plan.chosen, event.seen, event.request)))
            goes = one.hard and self._open(event.request, one)
            one.phase = Phase.ALONE if goes else Phase.RUNNING
        self.state.requests[event.request] = one
        if one.phase is Phase.ALONE:
            self.ask(event.request, one, event)
        else:
            self._effects.append(RunSmall(event.request))

    def _read(self, event: Event, one: _Request) -> Trigger | None:
        """The trigger that an event is to a request; None for one that says nothing new."""
        if isinstance(event, SmallRan):
            if one.phase not in (Phase.LOOKING, Phase.RUNNING):
                return None
            if event.answer is None:
                one.small_failed = True
                return Trigger.LOST if one.asked else Trigger.SMALL_FAILED
            if one.phase is Phase.RUNNING:
                return Trigger.SMALL
            one.hard = bool(np.any(hard(self.plan.chosen, event.answer, event.request)))
            if not one.hard:
                return Trigger.EASY
            return Trigger.HARD if self._open(event.request, one) else Trigger.RESTING
        if not one.asked:
            return None
        if isinstance(event, LargeRan) and event.answer is not None:
            return Trigger.LARGE
        if one.phase is Phase.ALONE and one.small_failed:
            return Trigger.LOST
        return Trigger.LARGE_FAILED

    def _until(self, one: _Request) -> int:
        """Until when above may answer, with time kept for a small model that has yet to run."""
        kept = 0 if one.small is not None or one.phase is Phase.LOOKING else self.plan.small_ns
        return min(self._now + self.plan.above_ns, one.deadline - kept)

    def _open(self, request: int, one: _Request) -> bool:
        """Whether a hard example may go up now; says why not."""
        state = self.state
        if self._until(one) <= self._now:
            one.why = "no time to ask above"
        elif state.streak < self.plan.failures:
            return True
        elif self._now >= state.rests_until:
            # One tries; the others keep away until it is known how that went.
            state.probe, state.rests_until = request, self._until(one)
            return True
        else:
            one.why = f"above failed {state.streak} times in a row and is left alone"
        state.counts["rested"] += 1
        return False

    def _went_wrong(self, request: int, event: Event) -> str:
        """Counts a failure above and gives it in words."""
        state = self.state
        late = isinstance(event, Late)
        state.counts["late" if late else "failed"] += 1
        # Those that were on their way when the streak was full say nothing new.
        if state.streak < self.plan.failures or request == state.probe:
            state.streak += 1
            state.probe = None
            over = state.streak - self.plan.failures
            if over >= 0:
                state.rests_until = self._now + self.plan.pause.pause(over + 1)
        return "above was late" if late else "above failed"

    # Actions.

    def ask(self, request: int, one: _Request, event: Event) -> None:
        if isinstance(event, SmallRan):
            one.small = event.answer
        one.asked = True
        self.state.counts["asked"] += 1
        # Where no model is left below, whatever time there is is above's.
        until = one.deadline if one.small_failed else self._until(one)
        self._effects.append(AskAbove(request, until))

    def keep(self, request: int, one: _Request, event: SmallRan) -> None:
        self._reply(request, one, event.answer, By.SMALL)

    def take(self, request: int, one: _Request, event: LargeRan) -> None:
        state = self.state
        state.streak, state.rests_until, state.probe = 0, 0, None
        self._reply(request, one, event.answer, By.LARGE)

    def fall_back(self, request: int, one: _Request, event: Event) -> None:
        one.why = self._went_wrong(request, event)
        self._reply(request, one, one.small, By.SMALL)

    def run_after_all(self, request: int, one: _Request, event: Event) -> None:
        one.why = self._went_wrong(request, event)
        self._effects.append(RunSmall(request))

    def fail(self, request: int, one: _Request, event: Event) -> None:
        above = one.why if isinstance(event, SmallRan) else self._went_wrong(request, event)
        one.why = f"the model here failed, and {above}"
        self._reply(request, one, None, By.NEITHER)

    def _reply(self, request: int, one: _Request, answer: Array | None, by: By) -> None:
        counts = self.state.counts
        counts[by.value] += 1
        if one.hard:
            counts["hard"] += 1
        self._effects.append(Reply(request, answer, by, one.hard, one.why))


_P, _T = Phase, Trigger
TABLE = (
    row(_P.LOOKING, _T.EASY, Cascade.keep, _P.DONE, "the small model is sure: nothing goes up"),
    row(_P.LOOKING, _T.HARD, Cascade.ask, _P.ASKED, "its answer waits here"),
    row(_P.LOOKING, _T.RESTING, Cascade.keep, _P.DONE, "no request waits for what keeps failing"),
    row(_P.LOOKING, _T.SMALL_FAILED, Cascade.ask, _P.ALONE, "above is the only one left"),
    row(_P.ASKED, _T.LARGE, Cascade.take, _P.DONE, "what the request went up for"),
    row(_P.ASKED, _T.LARGE_FAILED, Cascade.fall_back, _P.DONE, "the small model's answer stands"),
    row(_P.ALONE, _T.LARGE, Cascade.take, _P.DONE, "the small model never ran, or failed"),
    row(_P.ALONE, _T.LARGE_FAILED, Cascade.run_after_all, _P.RUNNING, "time was kept for it"),
    row(_P.ALONE, _T.LOST, Cascade.fail, _P.DONE, "said in words"),
    row(_P.RUNNING, _T.SMALL, Cascade.keep, _P.DONE, "easy, or no other answer came"),
    row(_P.RUNNING, _T.LARGE, Cascade.take, _P.DONE, "late, and still before the small one"),
    row(_P.RUNNING, _T.LARGE_FAILED, IGNORE, None, "counted already; the small model runs"),
    row(_P.RUNNING, _T.SMALL_FAILED, Cascade.ask, _P.ALONE, "above, which was not asked yet"),
    row(_P.RUNNING, _T.LOST, Cascade.fail, _P.DONE, "above failed before"),
)
_ROWS = index(TABLE)
