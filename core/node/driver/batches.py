"""What a driver does with its machine, as steps: no I/O, no event loop, no waiting.

    inbox -> handle (a batch) -> Append -> CarryOut of each effect -> Checkpoint, when it is due

`driver.py` carries the steps out for a daemon, and the host of the deterministic simulation does so
in virtual time: what a seed judges is what a daemon runs.

State is what the journal's events make it, so nothing that the outside may build upon happens
before the events that led to it are durable. After a crash the machine is its last snapshot and the
events since, whose effects are thrown away, and then it receives `Started` with what its store
holds: it sends, sets and runs again what it still needs.

What needs not be journaled. An event may be left out when handling it changed nothing that a later
event could reveal: the machine says so (`changed` is false: every row of its table that it went
through was `ignore` and kept the phase, and reading an event changes no state), and nothing but
Records came of it, or the message that came was only handed on (`passed_on`). Refused messages
(ProtocolError) leave the state as it was by contract.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from ...protocol.ports import Effect, Event, Node, ProtocolError, Received, Record, Started
from ...protocol.snapshot import SnapshotError
from ..storage.codec import decode, encode, encode_head, open_snapshot, seal_snapshot
from ..storage.journal import Tail
from .clock import SteadyClock
from .inbox import Inbox, Item
from .timers import Timers
from .traces import Traces, current

#: For the weighing of entries against a snapshot: what handling one again costs, as bytes.
ENTRY_BYTES_FLAT = 1024
#: Entries that are replayed before others get a turn on the event loop.
_REPLAY_STRIDE = 256


class StateMachine(Protocol):
    """What a driver runs: a core.protocol.machine.Machine, or a coordinator of several.

    One that has an attribute `changed: bool` says by it whether the last event that it handled
    changed its state; True when in doubt. By `passed_on: bool`, that a message was sent on as it
    came, which no journal needs to know.
    """

    @property
    def node(self) -> Node: ...

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Raises ProtocolError, the state unchanged, when a peer is at fault."""

    def snapshot(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class DriverLimits:
    """How much a driver takes at once.

    batch: events handled, and bytes of their entries, before they are made durable. inbox: events
    and bytes that wait. checkpoint: after so many entries, or bytes of them, a snapshot takes their
    place; but not while the snapshot before it was larger than all of them.
    """

    batch_events_max: int = 256
    batch_bytes_max: int = 32 * 2**20
    inbox_events_max: int = 4_096
    inbox_bytes_max: int = 256 * 2**20
    checkpoint_entries: int = 10_000
    checkpoint_bytes: int = 256 * 2**20

    def __post_init__(self) -> None:
        assert min(self.batch_events_max, self.batch_bytes_max, self.inbox_events_max) > 0
        assert min(self.inbox_bytes_max, self.checkpoint_entries, self.checkpoint_bytes) > 0


class Append(NamedTuple):
    """Make these durable, all or none: entries of the journal with their tails, and records."""

    entries: Sequence[bytes]
    records: Sequence[Record]
    tails: Mapping[int, Tail]


class CarryOut(NamedTuple):
    """Do an effect."""

    effect: Effect
    traceparent: str
    """Of the message that led to it."""
    cause: Event
    """The event."""


class Checkpoint(NamedTuple):
    """Make a snapshot durable: it takes the place of all entries."""

    snapshot: bytes


class Pause(NamedTuple):
    """Give others on the event loop a turn."""


Step = Append | CarryOut | Checkpoint | Pause


@dataclass(slots=True)
class _Batch:
    """Events that were handled, and what is to be done about them once they are durable."""

    entries: list[bytes] = field(default_factory=list)
    tails: dict[int, Tail] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    effects: list[CarryOut] = field(default_factory=list)
    size: int = 0

    def add(self, entry: bytes, tail: Tail | None) -> None:
        if tail is not None:
            self.tails[len(self.entries)] = tail
            self.size += len(tail.content)
        self.entries.append(entry)
        self.size += len(entry)


class Batches:
    """One life of a node: recovery, then batch after batch.

    make: gives the machine of a snapshot; of None, a new node's.
    refused: called with each event that the machine refuses.
    traces: knows which trace an event belongs to; None: effects carry what came with the event.

    Each method that gives steps is a generator. Its caller carries a step out, whole, before it
    asks for the next, and asks for no more once one has failed: that ends the node's life.

    `counters`: "events", "entries", "entry bytes", "batches", "skipped" (not journaled),
    "checkpoints", "replayed", "dropped" (inbox full), and "refused KIND" of messages.
    """

    def __init__(
        self,
        make: Callable[[bytes | None], StateMachine],
        clock: SteadyClock,
        limits: DriverLimits,
        refused: Callable[[Event, ProtocolError], None],
        traces: Traces | None = None,
    ) -> None:
        self.clock, self.limits = clock, limits
        self.counters: Counter[str] = Counter()
        self.inbox = Inbox(limits.inbox_events_max, limits.inbox_bytes_max)
        self.timers = Timers()
        self.machine: StateMachine | None = None
        self._make, self._refused, self._traces = make, refused, traces
        self._since = _Since()

    # ------------------------------------------------ the beginning and the end

    def recover(self, snapshot: bytes | None, entries: Sequence[bytes]) -> Iterator[Step]:
        """The machine of what a journal holds.

        Of None and nothing, a new node's, whose first state is checkpointed at once. Raises
        SnapshotError.
        """
        if snapshot is None:
            if entries:
                raise SnapshotError(
                    f"a journal with {len(entries)} entries and no snapshot to begin from",
                    "it was not written by a node, or a file is missing; restore it from a backup",
                )
            self.machine = self._make(None)
            yield from self._checkpoint()
            return
        state, floor = open_snapshot(snapshot)
        self.machine = self._make(state)
        self._since = _Since(snapshot=len(snapshot))
        self.clock.raise_to(floor)
        for number, entry in enumerate(entries):
            self._replay(number, entry)
            if number % _REPLAY_STRIDE == _REPLAY_STRIDE - 1:
                yield Pause()

    def _replay(self, number: int, entry: bytes) -> None:
        assert self.machine is not None
        event, now = decode(entry)
        try:
            self.machine.handle(event, now)
        except ProtocolError as fault:
            # It was handled when it was written.
            raise SnapshotError(
                f"entry {number} of the journal is refused: {fault.message}",
                "start the node once with the version of delian that wrote it, and close it",
            ) from fault
        self.clock.raise_to(now)
        self._since.add(1, len(entry))
        self.counters["replayed"] += 1

    def start(self, stored: tuple[bytes, ...], unix_ns: int) -> None:
        """Sends the machine `Started`, before all that waits.

        stored: digests of what its store holds. unix_ns: the time as it is set, 0 where it is not
        known.
        """
        self.inbox.put(Item(Started(stored, unix_ns)), first=True)

    def end(self) -> Iterator[Step]:
        """A snapshot, where there are entries after the last."""
        if self._since.entries:
            yield from self._checkpoint()

    # ------------------------------------------------ events

    def post(
        self, event: Event, traceparent: str = "", size: int = 0, patience_s: float = 0.0
    ) -> bool:
        """Takes an event.

        When the inbox is full, a message (only a message) is dropped and False comes back: its
        sender will repeat it. size: bytes of the message, where they are known. patience_s: how
        long it may wait for others.
        """
        if self.inbox.full and isinstance(event, Received):
            self.counters["dropped"] += 1
            return False
        self.inbox.put(Item(event, traceparent, size, patience_s=patience_s))
        return True

    def batch(self) -> Iterator[Step]:
        """Handles what waits, as far as the limits go: all of it is durable before any effect."""
        batch, limits = self._handled(), self.limits
        if batch.entries:
            yield Append(batch.entries, batch.records, batch.tails)
            self._since.add(len(batch.entries), batch.size)
            self.counters["entries"] += len(batch.entries)
            self.counters["entry bytes"] += batch.size
            self.counters["batches"] += 1
        for step in batch.effects:
            if self._traces is not None:
                told = self._traces.leaving(step.effect, step.traceparent, self.clock.now())
                step = step._replace(traceparent=told)
            yield step
        if self._since.is_due(limits):
            yield from self._checkpoint()
        else:
            yield Pause()  # a batch without entries has not waited for anything

    def _handled(self) -> _Batch:
        batch, limits, inbox = _Batch(), self.limits, self.inbox
        for _ in range(limits.batch_events_max):
            if not inbox or batch.size >= limits.batch_bytes_max:
                break
            item = inbox.take()
            if self.timers.take(item):
                self._handle(item, batch)
        return batch

    def _handle(self, item: Item, batch: _Batch) -> None:
        event, machine = item.event, self.machine
        assert machine is not None
        now = self.clock.now()
        # Before it is handled: an array might be changed in place.
        if isinstance(event, Received) and event.digest:
            entry, tail = encode_head(event, now), Tail(event.encoded, event.digest)
        else:
            entry, tail = encode(event, now), None
        self.counters["events"] += 1
        traceparent = item.traceparent
        if self._traces is not None:
            traceparent = self._traces.entering(event, traceparent, now)
        current.set(traceparent)
        try:
            effects = machine.handle(event, now)
        except ProtocolError as fault:
            kind = type(event.message if isinstance(event, Received) else event).__name__
            self.counters[f"refused {kind}"] += 1
            self._refused(event, fault)
            return
        changed = getattr(machine, "changed", True)
        passed_on = getattr(machine, "passed_on", False)
        told = not passed_on and any(type(effect) is not Record for effect in effects)
        if changed or told:
            batch.add(entry, tail)
            batch.records += [e for e in effects if isinstance(e, Record)]
        else:
            self.counters["skipped"] += 1
        batch.effects += [CarryOut(effect, traceparent, event) for effect in effects]

    def _checkpoint(self) -> Iterator[Step]:
        assert self.machine is not None
        snapshot = seal_snapshot(self.machine.snapshot(), self.clock.now())
        yield Checkpoint(snapshot)
        self._since = _Since(snapshot=len(snapshot))
        self.counters["checkpoints"] += 1


@dataclass(slots=True)
class _Since:
    """What the journal holds beyond its snapshot."""

    snapshot: int = 0
    entries: int = 0
    size: int = 0

    def add(self, entries: int, size: int) -> None:
        self.entries += entries
        self.size += size

    def is_due(self, limits: DriverLimits) -> bool:
        """Whether a snapshot should take the entries' place.

        Not while it would cost more to write than to handle them again.
        """
        many = self.entries >= limits.checkpoint_entries or self.size >= limits.checkpoint_bytes
        return many and self.size + self.entries * ENTRY_BYTES_FLAT >= self.snapshot
