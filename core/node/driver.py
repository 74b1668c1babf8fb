"""Runs a state machine for real: events in, journal, effects out.

    inbox -> handle (a batch) -> journal (one append for the batch) -> effects, in order

State is what the journal's events make it, so nothing that the outside may build upon happens
before the events that led to it are durable. After a crash the machine is its last snapshot and the
events since, whose effects are thrown away, and then it is told `Started` with what its store
holds: it sends, sets and runs anew what it still needs.

What needs not be journaled. An event may be left out when handling it changed nothing that a later
event could tell: the machine says so (`changed` is false: every row of its table that it went
through was `ignore` and kept the phase, and reading an event changes no state), and nothing but
Records came of it, or the message that came was only handed on (`passed_on`). Refused messages
(ProtocolError) leave the state as it was by contract.

Whatever else goes wrong in the machine or the journal stops the node: `run` raises, and no effect
of the batch was carried out. Starting it again recovers it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import DelianError
from ..ports import (
    Clock,
    Effect,
    Event,
    Node,
    ProtocolError,
    Received,
    Record,
    RunProgram,
    Started,
)
from ..snapshot import SnapshotError
from .blobs import BlobStore
from .clock import SteadyClock, WallClock
from .codec import decode, encode, encode_head, open_snapshot, seal_snapshot
from .effects import Carrier, Effects
from .executor import ProgramRunner
from .inbox import Inbox, Item
from .journal import Journal, Tail
from .once import Once
from .traces import Traces, current

__all__ = ["Carrier", "Driver", "DriverLimits", "StateMachine"]

log = logging.getLogger("delian.node")

#: For the weighing of entries against a snapshot: what handling one again costs, as bytes.
ENTRY_BYTES_FLAT = 1024
#: Entries that are replayed before others get a turn on the event loop.
_REPLAY_STRIDE = 256


class StateMachine(Protocol):
    """What a driver runs: a core.machine.Machine, or a coordinator of several.

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


@dataclass(slots=True)
class _Batch:
    """Events that were handled, and what is to be done about them once they are durable."""

    entries: list[bytes] = field(default_factory=list)
    tails: dict[int, Tail] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    effects: list[tuple[Effect, str]] = field(default_factory=list)  # with their traceparent
    size: int = 0

    def add(self, entry: bytes, tail: Tail | None) -> None:
        if tail is not None:
            self.tails[len(self.entries)] = tail
            self.size += len(tail.content)
        self.entries.append(entry)
        self.size += len(entry)


class Driver:
    """One node of this process, from `run` to `close`.

    make: gives the machine of a snapshot; of None, a new node's. None is given once in a node's
        life: its first state is checkpointed at once, and what changes in its configuration later
        comes as `Ordered`.
    journal: the driver's own from now on; it closes it.
    on_record: called with each Record once it is durable.
    traces: knows which trace an event belongs to; None: effects carry what came with the event.
    patience: seconds that an event may wait for others, to be made durable together. It never waits
        behind one that may not, or not so long: that takes along whatever waits.

        driver = Driver(make, journal, switch, blobs, executor)
        switch.attach(node, driver.post, blobs, limit)
        await driver.run()  # until close(); raises what has stopped the node

    `counters`: "events", "entries", "entry bytes", "batches", "skipped" (not journaled),
    "checkpoints", "replayed", "dropped" (inbox full), "programs", "corrupt blobs", "store failed",
    "blobs gone" (damaged ones too), and for each kind "refused KIND" (messages) and "record KIND".
    """

    def __init__(
        self,
        make: Callable[[bytes | None], StateMachine],
        journal: Journal,
        switch: Carrier,
        blobs: BlobStore,
        executor: ProgramRunner,
        clock: Clock | None = None,
        on_record: Callable[[Record], None] | None = None,
        limits: DriverLimits | None = None,
        traces: Traces | None = None,
        patience: Callable[[Event], float] = lambda event: 0.0,
    ) -> None:
        self.counters: Counter[str] = Counter()
        self.limits = limits or DriverLimits()
        self._make, self._journal, self._switch = make, journal, switch
        self._blobs, self._executor, self._on_record = blobs, executor, on_record
        self._wall = time.time_ns if clock is None else None
        self._clock = SteadyClock(clock or WallClock(), self._wall)
        self._first = Once()  # refusals that were logged
        self._inbox = Inbox(self.limits.inbox_events_max, self.limits.inbox_bytes_max)
        self._traces, self._patience = traces, patience
        self._machine: StateMachine | None = None
        self._effects: Effects | None = None
        self._since = _Since()
        self._begun = False
        self._ready, self._ended = asyncio.Event(), asyncio.Event()
        self._closing = False
        self._fault: BaseException | None = None

    # ------------------------------------------------ what users call

    @property
    def machine(self) -> StateMachine:
        """The machine, after `started`. Its state may be a moment ahead of what is durable."""
        assert self._machine is not None, "the driver has not started"
        return self._machine

    @property
    def now(self) -> int:
        """The node's time, ns."""
        return self._clock.now()

    @property
    def waiting(self) -> int:
        """Events in the inbox."""
        return len(self._inbox)

    async def started(self) -> None:
        """Waits until the state is recovered and what Started led to is done. Raises what has
        stopped the node instead.
        """
        await self._ready.wait()
        if isinstance(self._fault, Exception):
            raise self._fault
        if self._fault is not None:
            raise DelianError("the node was stopped before it had started") from self._fault

    def post(self, event: Event, traceparent: str = "", size: int = 0) -> None:
        """Takes an event, on the event loop's thread; also before `run`. When the inbox is full, a
        message (only a message) is dropped and counted: its sender will repeat it. size: bytes of
        the message, where they are known.
        """
        if self._closing:
            return
        if self._inbox.full and isinstance(event, Received):
            if not self.counters["dropped"]:
                log.warning("inbox is full", extra={"sender": str(event.sender)})
            self.counters["dropped"] += 1
            return
        self._inbox.put(Item(event, traceparent, size, patience_s=self._patience(event)))

    async def offer(self, event: Event, traceparent: str = "", size: int = 0) -> bool:
        """`post` that waits for room: how a link slows down its peers. False: the node ends."""
        while self._inbox.full and not self._closing:
            await self._inbox.room()
        self.post(event, traceparent, size)
        return not self._closing

    async def run(self) -> None:
        """Recovers the node and handles its events until `close`. Raises what has stopped it."""
        assert not self._begun, "a driver runs once"
        self._begun = True
        try:
            await self._recover()
            while not self._closing:
                await self._inbox.filled()
                await self._inbox.gathered()
                if self._closing:
                    break
                await self._next_batch()
                self._ready.set()
            if self._since.entries:
                await self._checkpoint()
        except Exception as fault:
            self._fault = fault
            name = str(self._machine.node) if self._machine else "a node"
            # An error of ours says what to do about it; of others it takes a developer to read.
            trace = None if isinstance(fault, DelianError) else fault
            log.error("%s stops: %s", name, fault, exc_info=trace, extra={"node": name})
            raise
        except BaseException as fault:  # cancelled, or the process is to end
            self._fault = fault
            raise
        finally:
            await self._end()

    async def close(self) -> None:
        """Finishes the batch at hand, checkpoints, stops programs and timers, and closes the
        journal. What waits in the inbox is dropped: nobody was told that it had arrived. May be
        called twice, but not by the machine's own effects.
        """
        self._closing = True
        self._inbox.wake()
        if not self._begun:
            await self._journal.close()
        else:
            await self._ended.wait()

    # ------------------------------------------------ recovery and the end

    async def _recover(self) -> None:
        snapshot, entries = await self._journal.load()
        if snapshot is None:
            if entries:
                raise SnapshotError(
                    f"a journal with {len(entries)} entries and no snapshot to begin from",
                    "it was not written by a node, or a file is missing; restore it from a backup",
                )
            self._machine = self._make(None)
            await self._checkpoint()
        else:
            state, floor = open_snapshot(snapshot)
            self._machine = self._make(state)
            self._since = _Since(snapshot=len(snapshot))
            self._clock.raise_to(floor)
            await self._replay(entries)
        stored = await self._blobs.digests()
        self._effects = Effects(
            self.machine.node,
            self._switch,
            self._blobs,
            self._executor,
            self._clock,
            self._inbox,
            self.counters,
            self._on_record,
        )
        self._effects.hold(stored)
        unix_ns = 0 if self._wall is None else self._wall()
        self._inbox.put(Item(Started(stored, unix_ns)), first=True)
        name = str(self.machine.node)
        facts = {"node": name, "replayed": len(entries), "blobs": len(stored)}
        log.info("%s starts", name, extra=facts)

    async def _replay(self, entries: list[bytes]) -> None:
        for number, entry in enumerate(entries):
            event, now = decode(entry)
            try:
                self.machine.handle(event, now)
            except ProtocolError as fault:
                # It was handled when it was written.
                raise SnapshotError(
                    f"entry {number} of the journal is refused: {fault.message}",
                    "start the node once with the version of delian that wrote it, and close it",
                ) from fault
            self._clock.raise_to(now)
            self._since.add(1, len(entry))
            self.counters["replayed"] += 1
            if number % _REPLAY_STRIDE == _REPLAY_STRIDE - 1:
                await asyncio.sleep(0)

    async def _end(self) -> None:
        self._closing = True
        self._inbox.wake()
        try:
            if self._effects is not None:
                await self._effects.close()
        finally:
            try:
                await self._journal.close()
            finally:
                self._ready.set()
                self._ended.set()

    # ------------------------------------------------ events

    async def _next_batch(self) -> None:
        batch, limits, effects = _Batch(), self.limits, self._effects
        assert effects is not None
        began = self._clock.now()
        for _ in range(limits.batch_events_max):
            if not self._inbox or batch.size >= limits.batch_bytes_max:
                break
            item = self._inbox.take()
            if effects.is_current(item):
                self._handle(item, batch)
        if batch.entries:
            await self._journal.append(batch.entries, batch.records, batch.tails)
            self._since.add(len(batch.entries), batch.size)
            self.counters["entries"] += len(batch.entries)
            self.counters["entry bytes"] += batch.size
            self.counters["batches"] += 1
        effects.waited = self._clock.now() - began
        for effect, traceparent in batch.effects:
            if self._traces is not None:
                traceparent = self._traces.leaving(effect, traceparent, self._clock.now())
            # Not for messages: a link's tasks outlive what they were begun for.
            current.set(traceparent if isinstance(effect, Record | RunProgram) else "")
            await effects.carry_out(effect, traceparent)
        current.set("")
        if self._since.is_due(limits):
            await self._checkpoint()
        else:
            await asyncio.sleep(0)  # a batch without entries has not waited for anything

    def _handle(self, item: Item, batch: _Batch) -> None:
        event, machine = item.event, self.machine
        now = self._clock.now()
        # Before it is handled: nobody promises that an array is not changed in place.
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
            self._refuse(event, fault)
            return
        changed = getattr(machine, "changed", True)
        passed_on = getattr(machine, "passed_on", False)
        told = not passed_on and any(type(effect) is not Record for effect in effects)
        if changed or told:
            batch.add(entry, tail)
            batch.records += [e for e in effects if isinstance(e, Record)]
        else:
            self.counters["skipped"] += 1
        batch.effects += [(effect, traceparent) for effect in effects]

    def _refuse(self, event: Event, fault: ProtocolError) -> None:
        """A peer broke the protocol: nothing of what it said is kept."""
        if isinstance(event, Received):
            kind, sender = type(event.message).__name__, str(event.sender)
        else:
            kind, sender = type(event).__name__, "this node"
        self.counters[f"refused {kind}"] += 1
        if not self._first(kind, sender):
            return
        facts = {"node": str(self.machine.node), "kind": kind, "sender": sender}
        log.warning("refused a %s of %s: %s", kind, sender, fault.message, extra=facts)

    async def _checkpoint(self) -> None:
        snapshot = seal_snapshot(self.machine.snapshot(), self._clock.now())
        await self._journal.checkpoint(snapshot)
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
        """Whether a snapshot should take the entries' place. Not while it would cost more to write
        than to handle them again.
        """
        many = self.entries >= limits.checkpoint_entries or self.size >= limits.checkpoint_bytes
        return many and self.size + self.entries * ENTRY_BYTES_FLAT >= self.snapshot
