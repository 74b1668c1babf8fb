"""One node of the simulated world: its machine behind a driver that does without waiting what
`core.node.driver` and `core.node.effects` do for a daemon.

    inbox -> handle (a batch) -> journal -> effects, in order

A batch is durable after a drawn time, in which further events wait. A node that may crash does so
before its append, in the middle of it (at any operation of its disk), after it, or after any of the
effects. Its journal is the daemons' own (`Segments`) on a disk that loses what was not synced. A
node that never crashes in a seed writes no journal: nobody could tell.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...core.node.codec import decode, encode, open_snapshot, seal_snapshot
from ...core.node.memory import MemoryDisk
from ...core.node.segments import JournalError, Segments
from ...core.ports import (
    SECOND,
    BlobStored,
    CancelProgram,
    CancelTimer,
    DropBlob,
    Effect,
    Event,
    Node,
    ProgramFinished,
    ProtocolError,
    Received,
    Record,
    RunProgram,
    Send,
    SendBlob,
    SetTimer,
    Started,
    StoreBlob,
    TimerFired,
)
from ...core.wire.journal_pb2 import DeniedVersion
from .clock import NodeClock

if TYPE_CHECKING:
    from .world import World

#: Events of one batch; the daemons' limit is higher.
BATCH_EVENTS_MAX = 32
#: Unix time at which a world begins, ns.
EPOCH_NS = 1_790_000_000 * 10**9
#: Operations of a disk in one append; a crash comes before one of them.
_OPERATIONS_MAX = 5
#: After so many batches a node's state is looked at.
_LOOK_EVERY = 16
#: A blob is durable after this long, on average, in s.
_PUT_S = 0.002


class Killed(Exception):
    """The process ends here."""


class Process:
    """Nodes that live and die together."""

    def __init__(self) -> None:
        self.hosts: list[Host] = []
        self.up = False
        self.gone = False  # for good


class Batch:
    """Events that were handled, and what is to be done about them once they are durable."""

    __slots__ = ("entries", "handled")

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.handled: list[tuple[Event, list[Effect]]] = []


class Host:
    """A node. `make` gives its machine of a snapshot; of None, a new node's."""

    def __init__(
        self,
        world: World,
        node: Node,
        make: Callable[[bytes | None], Any],
        process: Process,
        journaled: bool,
    ) -> None:
        self.world = world
        self.node = node
        self.make = make
        self.process = process
        self.journaled = journaled
        self.mortal = node in world.weather.mortal
        self.slow = world.weather.slow.get(node, 1.0)
        self.clock = NodeClock()
        self.up = False
        self.life = 0  # starts so far: what was planned in an earlier one is void
        self.machine: Any = None
        self.inbox: deque[tuple[Event, int]] = deque()
        self.timers: dict[str, int] = {}
        self.programs: dict[int, int] = {}
        self.blobs: dict[bytes, bytes] = {}
        self.disk = MemoryDisk()
        self.answered_ns = -1  # when it was last told something
        self._segments: Segments | None = None
        self._since = 0  # entries after the snapshot
        # What was being written when the process ended: a batch, or (None) a snapshot.
        self._unsure: Batch | None = None
        self._in_checkpoint = False
        self._batches = 0
        self._busy = False
        self._turning = False
        process.hosts.append(self)
        self._ways: dict[type, Callable[[Any, Event], None]] = {
            Send: self._send,
            SendBlob: self._send_blob,
            StoreBlob: self._store_blob,
            DropBlob: self._drop_blob,
            SetTimer: self._set_timer,
            CancelTimer: self._cancel_timer,
            RunProgram: self._run_program,
            CancelProgram: self._cancel_program,
            Record: self._record,
        }

    @property
    def now(self) -> int:
        """The node's own time."""
        return self.clock.now(self.world.now)

    # ------------------------------------------------ starting and ending

    def start(self) -> None:
        """Recovers the state and goes on from there. A journal that cannot be opened or written
        ends the node at once.
        """
        self.life += 1
        self.up = True
        floor = 0
        try:
            if self.journaled:
                floor = self._recover()
            elif self.machine is None:
                self.machine = self.make(None)
        except (JournalError, Killed):
            self.world.crash(self.process)
            return
        self.world.set_clock(self, floor)
        self.post(Started(tuple(self.blobs), EPOCH_NS + self.world.now))

    def _recover(self) -> int:
        """Gives the newest time that it had seen."""
        self._segments = segments = self.world.segments(self.disk)
        snapshot, entries = segments.load()
        self._look_for_losses(len(entries))
        if snapshot is None:
            self.world.check(not entries, "journal", f"{self.node}: entries without a snapshot")
            self.machine = self.make(None)
            self._in_checkpoint = True
            segments.checkpoint(seal_snapshot(self.machine.snapshot(), self.now))
            self._in_checkpoint = False
            return 0
        state, floor = open_snapshot(snapshot)
        self.machine = self.make(state)
        for entry in entries:
            event, now = decode(entry)
            self.machine.handle(event, now)
            floor = max(floor, now)
        self.world.auditor.recovered(self)
        return floor

    def _look_for_losses(self, found: int) -> None:
        """What was durable is there, and what was being written as a whole or not at all."""
        unsure, known, self._unsure = self._unsure, self._since, None
        allowed = {known}
        if self._in_checkpoint:
            allowed.add(0)
        elif unsure is not None:
            allowed.add(known + len(unsure.entries))
        held = found in allowed
        self.world.check(held, "journal", f"{self.node}: {found} entries, not {sorted(allowed)}")
        if unsure is not None and found > known:
            self.world.auditor.durable(self, unsure.handled)
        self._since, self._in_checkpoint = found, False

    def fall(self) -> None:
        """All that was only in memory is gone."""
        self.up = self._busy = False
        self.inbox.clear()
        self.timers.clear()
        self.programs.clear()

    def wipe(self) -> None:
        """The disk is a new one."""
        self.disk = MemoryDisk()
        self.blobs = {}
        self.machine, self._since, self._unsure = None, 0, None

    # ------------------------------------------------ events

    def receive(self, sender: Node, message: Any) -> None:
        """A message has come."""
        if not self.up:
            return
        if len(self.inbox) >= self.world.weather.inbox:
            self.world.counts["inbox full"] += 1
            return
        self.answered_ns = self.world.now
        plotter = self.world.plotter_at(self.node)
        if plotter is not None:
            plotter.hears(self, sender, message)
        self.post(Received(sender, message))

    def post(self, event: Event, token: int = 0) -> None:
        """token: of a timer, the setting that fired."""
        self.inbox.append((event, token))
        if not self._busy and not self._turning:
            self._turn()

    def _turn(self) -> None:
        self._turning = True
        try:
            while self.inbox and self.up and not self._busy:
                batch = self._handle_batch()
                lag = self._lag_ns(batch)
                if lag:
                    self._busy = True
                    self.world.after(lag, self._committed, batch, self.life)
                else:
                    self._commit(batch)
        finally:
            self._turning = False

    def _lag_ns(self, batch: Batch) -> int:
        mean = self.world.weather.append_s if batch.entries else 0.0
        if self.slow > 1.0 and self.world.faulty:
            mean = (mean + 0.001) * self.slow
        return self.world.dice.exponential_ns(mean) if mean else 0

    def _handle_batch(self) -> Batch:
        batch, world, inbox = Batch(), self.world, self.inbox
        for _ in range(BATCH_EVENTS_MAX):
            if not inbox:
                break
            event, token = inbox.popleft()
            if token and type(event) is TimerFired and not self._is_current(event.name, token):
                continue
            now = self.clock.now(world.now)
            world.note(self.node, event)
            machine = self.machine
            entry = encode(event, now) if self.journaled else b""
            try:
                effects = machine.handle(event, now)
            except ProtocolError as fault:
                world.auditor.refused(self, event, fault)
                continue
            world.auditor.handled(self, event, effects)
            if self.journaled and (
                machine.changed
                or (not machine.passed_on and any(type(e) is not Record for e in effects))
            ):
                batch.entries.append(entry)
            batch.handled.append((event, effects))
        return batch

    def _is_current(self, name: str, token: int) -> bool:
        """Whether a timer's setting still stands; then it is done."""
        if self.timers.get(name) == token:
            del self.timers[name]
            return True
        return self.world.weather.loose

    def _committed(self, batch: Batch, life: int) -> None:
        if life == self.life and self.up:
            # Busy until the end: a timer that is due at once waits, or a snapshot would hold its
            # event, which no journal has yet.
            self._commit(batch)
            if self.up:
                self._busy = False
                self._turn()

    def _commit(self, batch: Batch) -> None:
        """Makes a batch durable and does what it asks for; the process may end anywhere."""
        try:
            crash = self.world.crash_point(self)
            if batch.entries:
                self.append(batch, crash)
            self.world.auditor.durable(self, batch.handled)
            self.carry_out(batch, crash)
            if self._since >= self.world.weather.checkpoint_entries:
                self._checkpoint()
            self._batches += 1
            if self._batches % _LOOK_EVERY == 0:
                self.world.look_at(self)
        except Killed:
            self.world.crash(self.process)
        except JournalError:
            self.world.counts["journal failed"] += 1
            self.world.crash(self.process)

    def append(self, batch: Batch, crash: float) -> None:
        """Writes to the journal. crash: from 0 to 1/3 the process ends meanwhile; see `carry_out`
        for more.
        """
        assert self._segments is not None
        if crash < 1 / 3:
            self._end_at_operation(int(crash * 3 * (_OPERATIONS_MAX + 1)))
        self._unsure = batch
        try:
            self._segments.append(batch.entries)
        finally:
            self.disk.before = None
        self._since += len(batch.entries)
        self._unsure = None

    def carry_out(self, batch: Batch, crash: float = 2.0) -> None:
        """Does the effects. crash: from 1/3 to 1 the process ends before one of them."""
        left = -1
        if crash < 1.0:
            count = sum(len(effects) for _, effects in batch.handled)
            left = int(max(0.0, crash - 1 / 3) * 1.5 * (count + 1))
        ways = self._ways
        for event, effects in batch.handled:
            for effect in effects:
                if left == 0:
                    raise Killed
                left -= 1
                ways[type(effect)](effect, event)
        if left == 0:
            raise Killed

    def _end_at_operation(self, left: int) -> None:
        """Ends the process before an operation of its disk."""

        def before(operation: str) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1

        self.disk.before = before

    def _checkpoint(self) -> None:
        assert self._segments is not None
        crash = self.world.crash_point(self)
        if crash < 1.0:
            self._end_at_operation(int(crash * 2 * _OPERATIONS_MAX))
        self._in_checkpoint = True
        try:
            self._segments.checkpoint(seal_snapshot(self.machine.snapshot(), self.now))
        finally:
            self.disk.before = None
        self._since, self._in_checkpoint = 0, False

    # ------------------------------------------------ effects

    def _send(self, effect: Send, event: Event) -> None:
        self.world.auditor.sent(self, effect.message, event)
        plotter = self.world.plotter_at(self.node)
        said = [effect.message]
        if plotter is not None:
            said = plotter.says(self.node, effect.to, effect.message)
        for message in said:
            self.world.network.send(self, effect.to, message)

    def _send_blob(self, effect: SendBlob, event: Event) -> None:
        held = effect.digest in self.blobs
        self.world.check(held, "blob", f"{self.node} has not got what it is to send")
        self.world.network.send_blob(self, effect.to, effect.digest, self.blobs[effect.digest])

    def _store_blob(self, effect: StoreBlob, event: Event) -> None:
        world = self.world
        if world.faulty and world.dice.chance(world.weather.no_room):
            self.post(BlobStored(effect.blob.digest, False))
        else:
            lag = world.dice.exponential_ns(_PUT_S)
            world.after(lag, self._stored, effect.blob, self.life)

    def _stored(self, blob: Any, life: int) -> None:
        if life == self.life and self.up:
            self.post(BlobStored(blob.digest, self.keep(blob)))

    def keep(self, blob: Any) -> bool:
        """Whether the blob is in the store now. One without content was put there before."""
        if not blob.content and blob.size:
            return blob.digest in self.blobs
        if hashlib.sha256(blob.content).digest() != blob.digest:
            return False
        self.blobs[blob.digest] = blob.content
        return True

    def _drop_blob(self, effect: DropBlob, event: Event) -> None:
        self.blobs.pop(effect.digest, None)

    def _set_timer(self, effect: SetTimer, event: Event) -> None:
        world = self.world
        at = self.clock.when(effect.at)
        token = self.timers[effect.name] = world.token()
        if at <= world.now:
            self.post(TimerFired(effect.name), token)
        else:
            world.at(at, self._fire, effect.name, token, self.life)

    def _fire(self, name: str, token: int, life: int) -> None:
        current = self.timers.get(name) == token or self.world.weather.loose
        if life == self.life and self.up and current:
            self.post(TimerFired(name), token)

    def _cancel_timer(self, effect: CancelTimer, event: Event) -> None:
        self.timers.pop(effect.name, None)

    def _run_program(self, effect: RunProgram, event: Event) -> None:
        token = self.programs[effect.ticket] = self.world.token()
        missing = [d for d in effect.blobs if d not in self.blobs]
        self.world.check(not missing, "blob", f"{self.node} is to run what it has not got")
        due, finish = self.world.work.run(self, effect)
        if finish is not None:
            self.world.after(due, self._finish, effect.ticket, token, finish)

    def _finish(self, ticket: int, token: int, finish: Callable[[], Any]) -> None:
        if self.programs.get(ticket) == token:
            del self.programs[ticket]
            self.post(ProgramFinished(ticket, finish()))

    def _cancel_program(self, effect: CancelProgram, event: Event) -> None:
        self.programs.pop(effect.ticket, None)

    def _record(self, effect: Record, event: Event) -> None:
        self.world.counts[effect.kind] += 1
        if effect.kind == "deny_list_awaited" and not self.world.withholds:
            version, issued_s = effect.fields["version"], self.now // SECOND
            self.world.order(self.node, DeniedVersion(version=version, issued_s=issued_s))
        if effect.kind == "session" and "reason" in effect.fields:
            self.world.counts[f"session {effect.fields['reason']}"] += 1

    # ------------------------------------------------ what the world asks

    @property
    def is_quiet(self) -> bool:
        """Whether all that it has handled is durable."""
        return not self.inbox and not self._busy

    def replay(self) -> bytes:
        """The snapshot of the machine that the journal gives."""
        snapshot, entries = self.world.segments(self.disk).load()
        assert snapshot is not None
        machine = self.make(open_snapshot(snapshot)[0])
        for entry in entries:
            machine.handle(*decode(entry))
        content: bytes = machine.snapshot()
        return content
