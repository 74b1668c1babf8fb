"""A protocol as one table, and the few lines that run it.

A machine reads an event into a trigger (what happened, with the guards applied: "the last blob is
here", "a late answer"), finds the row of (phase, trigger) in its table, does the row's action and
takes the row's next phase. An action may post a further trigger, which is looked up at once: an
edge that has counted an answer posts "all have answered". What is not in the table is a protocol
error; what is to be ignored is in the table and says so.

A machine is put together of three things. Its own file holds the table and the guards, which read
events. Its actions are methods of an object (`Part`) that acts on the state; a row holds the method
itself. That object may have further parts, of the same kind. A part knows the state and the
machine's `Output`, where it writes what is to be done; it does not know the machine.

The documentation's diagrams are made from the tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

from google.protobuf.message import Message

from . import ports

#: A method of the machine's actions, called with the trigger's subject. It returns False where it
#: changed nothing.
Action: TypeAlias = Callable[..., bool | None]
#: The action of a row that counts the event and does nothing else.
IGNORE: Final = None


@dataclass(frozen=True, slots=True)
class Row:
    """In each of `phases`, `trigger` does `action` and leads to `next`."""

    phases: tuple[StrEnum, ...]
    trigger: StrEnum
    action: Action | None  # what the machine does; IGNORE: nothing
    next: StrEnum | None  # the phase after it; None: the phase stays
    why: str  # for people: it goes into the documentation

    @property
    def name(self) -> str:
        """The action in words."""
        if self.action is IGNORE:
            return "ignore"
        name: str = self.action.__name__
        return name.replace("_", " ")


def row(
    phases: StrEnum | Iterable[StrEnum],
    trigger: StrEnum,
    action: Action | None,
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
    """A machine's state: plain data, with the phase of the table."""

    phase: Any


S = TypeVar("S", bound=HasPhase)


def step(rows: Index, one: HasPhase, trigger: StrEnum, *given: Any) -> None:
    """Takes a row for one of many things that a machine keeps, each in a phase of its own.

    The phase is set before the action is called with `given`, which may take a further step.
    """
    r = rows[one.phase, trigger]
    if r.next is not None:
        one.phase = r.next
    if r.action is not IGNORE:
        r.action(*given)


@dataclass(slots=True, eq=False)
class Output:
    """What a machine and its parts do about the event at hand."""

    timers: str = ""  # what the names of timers begin with
    now: int = 0  # when the event is handled, ns
    event: Any = None  # None while none is handled
    effects: list[ports.Effect] = field(default_factory=list)  # what is to be done, in order
    #: The trigger to look up once the present row is done, and its subject.
    posted: tuple[StrEnum, Any] | None = None
    changed: bool = True  # whether the event changed the state, as far as the table shows
    passed_on: bool = False  # whether the event is a message that was sent on as it was
    #: Whether the driver carries vectors separately (`Send.vector`), so that one that stays in this
    #: process is not copied. It is set before the first event.
    carries_vectors: bool = False

    def content(self, inside: ports.Content) -> ports.Content:
        """The vector of the message at hand: the separate one, else the one inside."""
        event = self.event
        separate = event.vector if isinstance(event, ports.Received) else None
        return inside if separate is None else separate

    def ignore(self, trigger: StrEnum) -> None:
        """Counts the event at hand as one that changes nothing, and says what it was."""
        event = self.event
        if isinstance(event, ports.Received):
            what = type(event.message).__name__
        elif isinstance(event, ports.TimerFired):
            what = f"timer {event.name}"
        else:
            what = type(event).__name__
        self.effects.append(ports.Record("ignored", {"what": what, "trigger": trigger.value}))


class Part(Generic[S]):
    """Acts on a machine's state: the machine's actions, or a part of them."""

    def __init__(self, state: S, out: Output) -> None:
        self.state = state
        self.out = out

    @property
    def now(self) -> int:
        """When the event at hand is handled, ns."""
        return self.out.now

    def post(self, trigger: StrEnum, subject: Any = None) -> None:
        """Look up a further trigger once the present row is done."""
        assert self.out.posted is None, "one trigger at a time"
        self.out.posted = (trigger, subject)

    def emit(self, effect: ports.Effect) -> None:
        self.out.effects.append(effect)

    def send(
        self, to: ports.Node, message: Message, size: int = 0, vector: ports.Content | None = None
    ) -> None:
        self.out.effects.append(ports.Send(to, message, size, vector))

    def delegate(self, machine: Machine[Any], event: Any) -> None:
        """Lets another machine of this node handle an event; its effects are this one's."""
        machine.out.carries_vectors = self.out.carries_vectors
        self.out.effects += machine.handle(event, self.now)

    def set_timer(self, name: str, at: int) -> None:
        self.out.effects.append(ports.SetTimer(self.out.timers + name, at))

    def cancel_timer(self, name: str) -> None:
        self.out.effects.append(ports.CancelTimer(self.out.timers + name))

    def record(self, kind: str, **fields: Any) -> None:
        self.out.effects.append(ports.Record(kind, fields))


class Machine(ABC, Generic[S]):
    """Runs a table over a state. A tier's machine gives `rows` and `read`."""

    rows: ClassVar[Index]  # the table
    node: ports.Node  # whose machine it is

    def __init__(self, state: S, out: Output, actions: Any) -> None:
        self.state = state  # plain data, which the guards read and the actions change
        self.out = out  # where the actions write what is to be done
        self.actions = actions  # the object whose methods the rows hold

    @property
    def now(self) -> int:
        """When the event at hand is handled, ns."""
        return self.out.now

    @property
    def changed(self) -> bool:
        """Whether the last event changed the state, as far as the table shows; see `handle`."""
        return self.out.changed

    @property
    def passed_on(self) -> bool:
        """Whether the last event was a message that was sent on as it was."""
        return self.out.passed_on

    @abstractmethod
    def read(self, event: ports.Event) -> tuple[StrEnum, Any]:
        """Gives an event's trigger in the present state, and its subject. Changes nothing."""

    def settle(self) -> None:
        """What follows each event. Most machines do nothing more."""

    def handle(self, event: ports.Event, now: int) -> list[ports.Effect]:
        """What to do about an event at `now` ns.

        Afterwards `changed` is false when every row that was taken kept the phase, and its action
        was `ignore` or returned False: then the state is what it was (`read` changes nothing), and
        a driver needs not store the event.

        Raises:
            ProtocolError: a peer is at fault. The state is unchanged.
        """
        assert now >= 0
        out = self.out
        effects: list[ports.Effect] = []
        out.now, out.event, out.effects, out.posted = now, event, effects, None
        out.changed = out.passed_on = False
        state, rows = self.state, self.rows
        next_step: tuple[StrEnum, Any] | None = self.read(event)
        while next_step is not None:
            trigger, subject = next_step
            r = rows.get((state.phase, trigger))
            if r is None:
                raise ports.ProtocolError(
                    f"{self.node}: {trigger} is not allowed while {state.phase}"
                )
            out.posted = None
            action, phase = r.action, r.next
            if action is IGNORE:
                out.changed |= phase is not None and phase != state.phase
                out.ignore(trigger)
            elif action(self.actions, subject) is not False:
                out.changed = True
            if phase is not None:
                state.phase = phase
            next_step = out.posted
        self.settle()
        if type(event) is ports.Received:
            message = event.message
            for effect in effects:
                if type(effect) is ports.Send and effect.message is message:
                    out.passed_on = True
        # A machine at rest holds on to nothing but its state: messages are large.
        out.effects, out.event, out.posted = [], None, None
        return effects


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses between repetitions of a message, doubled each time.

    To each pause comes the time that a large message takes on the slowest link that is worth
    waiting for, so that a slow transfer is not taken for a lost one.
    """

    first_ns: int
    """The first pause."""
    max_ns: int
    """The longest."""
    bytes_per_second_min: int
    """The rate of that slowest link."""

    def __post_init__(self) -> None:
        assert 0 < self.first_ns <= self.max_ns
        assert self.bytes_per_second_min > 0

    def pause(self, tries: int, size: int = 0) -> int:
        """Ns to wait after the `tries`-th sending (from 1); it or its answer has `size` bytes."""
        assert tries >= 1
        doubled = self.first_ns << min(tries - 1, 40)
        return min(doubled, self.max_ns) + size * 1_000_000_000 // self.bytes_per_second_min
