"""A protocol as one table, and the few lines that run it.

A machine reads an event into a trigger (what happened, with the guards applied: "the last blob is
here", "a late answer"), finds the row of (phase, trigger) in its table, does the row's action and
takes the row's next phase. An action may post a further trigger, which is looked up at once: an
edge that has counted an answer posts "all have answered". What is not in the table is a protocol
error; what is to be ignored is in the table and says so.

Each tier's file holds its table; the documentation's diagrams are made from the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from google.protobuf.message import Message

from .ports import (
    CancelTimer,
    Content,
    Effect,
    Event,
    Node,
    ProtocolError,
    Received,
    Record,
    Send,
    SetTimer,
    TimerFired,
)

IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Row:
    """In each of `phases`, `trigger` does `action` and leads to `next` (None: the phase stays).

    `action` names a method of the machine that takes the trigger's subject; `ignore` counts and
    does nothing else. `why` is for people: it goes into the documentation.
    """

    phases: tuple[StrEnum, ...]
    trigger: StrEnum
    action: str
    next: StrEnum | None
    why: str


def row(
    phases: StrEnum | Iterable[StrEnum],
    trigger: StrEnum,
    action: str,
    next: StrEnum | None,
    why: str,
) -> Row:
    """One row of a table; `phases` may be one phase or several."""
    return Row(
        (phases,) if isinstance(phases, StrEnum) else tuple(phases), trigger, action, next, why
    )


Index = Mapping[tuple[StrEnum, StrEnum], Row]


def index(table: Iterable[Row]) -> Index:
    """The rows by (phase, trigger). No two rows may claim one place."""
    places: dict[tuple[StrEnum, StrEnum], Row] = {}
    for r in table:
        for phase in r.phases:
            assert (phase, r.trigger) not in places, f"two rows for {phase}, {r.trigger}"
            places[phase, r.trigger] = r
    return places


class HasPhase(Protocol):
    """A machine's state: plain data, with the phase that the table speaks of."""

    phase: Any


S = TypeVar("S", bound=HasPhase)


class Machine(Generic[S]):
    """Runs a table over a state. A tier's machine gives `rows`, `read` and the actions."""

    rows: ClassVar[Index]
    node: Node
    #: Whether the driver carries vectors beside messages (`Send.beside`), so that one that stays in
    #: this process is not copied. A driver that does says so before the first event.
    carries_beside: bool = False

    def __init__(self, state: S) -> None:
        self.state = state
        self.now = 0
        # Whether the last event changed the state, as far as the table can tell; see `handle`.
        self.changed = True
        # Whether it was only handed on, as it was: see `hand_on`.
        self.passed_on = False
        self._effects: list[Effect] = []
        self._event: Event | None = None
        self._posted: tuple[StrEnum, Any] | None = None

    def read(self, event: Event) -> tuple[StrEnum, Any]:
        """The trigger that an event is in the present state, and its subject (a message, an
        outcome, None). Changes nothing.
        """
        raise AssertionError("each tier reads its own events")

    def handle(self, event: Event, now: int) -> list[Effect]:
        """What to do about an event at `now` ns. Raises ProtocolError, the state unchanged, when a
        peer is at fault.

        Afterwards `changed` is false when every row that was gone through was `ignore` and kept the
        phase: then the state is what it was (`read` changes nothing), and a driver needs not
        remember the event.
        """
        assert now >= 0
        self.now = now
        self.changed = self.passed_on = False
        self._event = event
        effects: list[Effect] = []
        self._effects, self._posted = effects, None
        state, rows = self.state, self.rows
        next_step: tuple[StrEnum, Any] | None = self.read(event)
        while next_step is not None:
            trigger, subject = next_step
            r = rows.get((state.phase, trigger))
            if r is None:
                raise ProtocolError(f"{self.node}: {trigger} is not allowed while {state.phase}")
            self._posted = None
            action, phase = r.action, r.next
            if action != IGNORE:
                self.changed = True
                getattr(self, action)(subject)
            else:
                if phase is not None and phase != state.phase:
                    self.changed = True
                self.ignore(trigger)
            if phase is not None:
                state.phase = phase
            next_step = self._posted
        # A machine at rest holds on to nothing but its state: messages are large.
        self._effects, self._event, self._posted = [], None, None
        return effects

    # What actions are written with.

    def post(self, trigger: StrEnum, subject: Any = None) -> None:
        """Look up a further trigger once the present row is done."""
        assert self._posted is None, "one trigger at a time"
        self._posted = (trigger, subject)

    def ignore(self, trigger: StrEnum) -> None:
        """Counts the event at hand as one that changes nothing, and says what it was."""
        event = self._event
        if isinstance(event, Received):
            what = type(event.message).__name__
        elif isinstance(event, TimerFired):
            what = f"timer {event.name}"
        else:
            what = type(event).__name__
        self.record("ignored", what=what, trigger=trigger.value)

    def hand_on(self, to: Node, message: Message) -> None:
        """Sends on a message that is of no concern to this node: it changes nothing here, so a
        driver needs not remember it.
        """
        self.send(to, message)
        self.changed, self.passed_on = False, True

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def send(
        self, to: Node, message: Message, size: int = 0, beside: Content | None = None
    ) -> None:
        self._effects.append(Send(to, message, size, beside))

    def set_timer(self, name: str, at: int) -> None:
        self._effects.append(SetTimer(name, at))

    def cancel_timer(self, name: str) -> None:
        self._effects.append(CancelTimer(name))

    def record(self, kind: str, **fields: Any) -> None:
        self._effects.append(Record(kind, fields))


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between repetitions of a message: `first_ns`, doubled each time up to `max_ns`.

    To each pause comes the time that a large message takes on the slowest link that is worth
    waiting for, so that a slow transfer is not taken for a lost one.
    """

    first_ns: int
    max_ns: int
    bytes_per_second_min: int

    def __post_init__(self) -> None:
        assert 0 < self.first_ns <= self.max_ns
        assert self.bytes_per_second_min > 0

    def pause(self, tries: int, size: int = 0) -> int:
        """Ns to wait after the `tries`-th sending (from 1) of something whose answer or itself has
        `size` bytes.
        """
        assert tries >= 1
        doubled = self.first_ns << min(tries - 1, 40)
        return min(doubled, self.max_ns) + size * 1_000_000_000 // self.bytes_per_second_min
