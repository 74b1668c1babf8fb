"""One node of the simulated world.

The daemons' own driver (`core.node.driver.batches`), whose steps are carried out in virtual time
over the daemons' own journal (`Segments`).

A batch is durable after a drawn time, in which further events wait. A node that may crash does so
before its append, in the middle of it (at any operation of its disk), after it, or after any of the
effects. Its disk loses what was not synced. A node that never crashes in a seed writes no journal:
it would never be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.node.driver import batches
from ...core.node.driver.clock import SteadyClock
from ...core.node.driver.inbox import Item
from ...core.node.driver.timers import Timer
from ...core.node.storage.journal import whole
from ...core.node.storage.memory_storage import MemoryDisk
from ...core.node.storage.segments import JournalError, Segments
from ...core.protocol import ports
from ...core.wire.journal_pb2 import DeniedVersion
from .skewed_clock import NodeClock

if TYPE_CHECKING:
    from .world import World

#: Events of one batch; the daemons' limit is higher.
BATCH_EVENTS_MAX = 32
#: Unix time at which a world begins, ns.
EPOCH_NS = 1_790_000_000 * 10**9
#: Operations of a disk in one append; a crash comes before one of them.
_OPERATIONS_MAX = 5
#: Entries at which a node without a journal writes a snapshot.
_NEVER = 2**62
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


class Watched:
    """A host's machine, as the host's driver sees it: what it handles is noted and audited."""

    def __init__(self, host: Host, machine: Any) -> None:
        self._host, self._machine = host, machine
        self.node: ports.Node = machine.node
        self.changed = self.passed_on = False

    def handle(self, event: ports.Event, now: int) -> list[ports.Effect]:
        host = self._host
        if host.recovering:
            replayed: list[ports.Effect] = self._machine.handle(event, now)
            return replayed
        host.world.note(host.node, event)
        machine = self._machine
        effects: list[ports.Effect] = machine.handle(event, now)
        self.changed, self.passed_on = machine.changed, machine.passed_on
        host.world.auditor.handled(host, event, effects)
        host.handled.append((event, effects))
        return effects

    def snapshot(self) -> bytes:
        content: bytes = self._machine.snapshot()
        return content


class Computer:
    """What a node's process takes the time from: wrong, and set between two starts."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def now(self) -> int:
        return self._host.clock.now(self._host.world.now)


class Host:
    """A node. `make` gives its machine of a snapshot; of None, a new node's."""

    def __init__(
        self,
        world: World,
        node: ports.Node,
        make: Callable[[bytes | None], Any],
        process: Process,
        journaled: bool,
    ) -> None:
        self.world = world
        self.node = node
        self.make = make
        self.process = process
        self.journaled = journaled
        self.mortal = node in world.faults.mortal
        self.slow = world.faults.slow.get(node, 1.0)
        self.clock = NodeClock()
        self.up = False
        self.recovering = False
        self.life = 0  # starts so far: what was planned in an earlier one is void
        self.machine: Any = None
        self.handled: list[
            tuple[ports.Event, list[ports.Effect]]
        ] = []  # and not yet known to be durable
        self.programs: dict[int, int] = {}
        self.blobs: dict[bytes, bytes] = {}
        self.disk = MemoryDisk()
        self.answered_ns = -1  # when it last received something
        self._limits = batches.DriverLimits(
            batch_events_max=BATCH_EVENTS_MAX,
            inbox_events_max=world.faults.inbox,
            checkpoint_entries=world.faults.checkpoint_entries if journaled else _NEVER,
        )
        self._steady = SteadyClock(Computer(self))
        self._batches = self._new_batches()
        self._segments: Segments | None = None
        self._durable = 0  # entries after the snapshot
        # What was being written when the process ended: entries, or (None) a snapshot.
        self._unsure: int | None = None
        self._in_checkpoint = False
        self._left = -1  # effects until the process ends; below zero: it does not
        self._looked = 0
        self._busy = False
        self._turning = False
        process.hosts.append(self)
        self._ways: dict[type, Callable[[Any, ports.Event], None]] = {
            ports.Send: self._send,
            ports.SendBlob: self._send_blob,
            ports.StoreBlob: self._store_blob,
            ports.DropBlob: self._drop_blob,
            ports.SetTimer: self._set_timer,
            ports.CancelTimer: self._cancel_timer,
            ports.RunProgram: self._run_program,
            ports.CancelProgram: self._cancel_program,
            ports.Record: self._record,
        }
        self._steps: dict[type, Callable[[Any], None]] = {
            batches.Append: self._append,
            batches.CarryOut: self._carry_out,
            batches.Checkpoint: self._checkpoint,
            batches.Pause: lambda step: None,
        }

    @property
    def now(self) -> int:
        """The node's own time."""
        return self._steady.now()

    @property
    def timers(self) -> Collection[str]:
        """Names of the timers that are set."""
        return self._batches.timers

    # ------------------------------------------------ starting and ending

    def start(self) -> None:
        """Recovers the state and goes on from there.

        A journal that cannot be opened or written ends the node at once.
        """
        self.life += 1
        self.up = True
        self.world.set_clock(self)
        self._steady = SteadyClock(Computer(self))
        self._batches = self._new_batches()
        self.recovering = True
        try:
            self._recover()
        except (JournalError, Killed):
            self.world.crash(self.process)
            return
        finally:
            self.recovering = False
        self._batches.start(tuple(self.blobs), EPOCH_NS + self.world.now)
        self._turn()

    def _new_batches(self) -> batches.Batches:
        refused = partial(self.world.auditor.refused, self)
        return batches.Batches(self._watched, self._steady, self._limits, refused)

    def _watched(self, snapshot: bytes | None) -> Watched:
        self.machine = self.make(snapshot)
        return Watched(self, self.machine)

    def _recover(self) -> None:
        snapshot: bytes | None = None
        entries: list[bytes] = []
        if self.journaled:
            self._segments = self.world.segments(self.disk)
            snapshot, entries = self._segments.load()
            self._look_for_losses(len(entries))
            self.world.check(
                snapshot is not None or not entries, "journal", f"{self.node}: no snapshot"
            )
        self.handled.clear()  # what was never written
        for step in self._batches.recover(snapshot, entries):
            self._steps[type(step)](step)
        if snapshot is not None:
            self.world.auditor.recovered(self)

    def _look_for_losses(self, found: int) -> None:
        """What was durable is there, and what was being written as a whole or not at all."""
        unsure, known, self._unsure = self._unsure, self._durable, None
        allowed = {known}
        if self._in_checkpoint:
            allowed.add(0)
        elif unsure is not None:
            allowed.add(known + unsure)
        held = found in allowed
        self.world.check(held, "journal", f"{self.node}: {found} entries, not {sorted(allowed)}")
        if unsure is not None and found > known:
            self._tell_durable()
        self._durable, self._in_checkpoint = found, False

    def fall(self) -> None:
        """All that was only in memory is gone."""
        self.up = self._busy = False
        self.programs.clear()
        self.disk.before = None

    def wipe(self) -> None:
        """The disk is a new one."""
        self.disk = MemoryDisk()
        self.blobs = {}
        self.machine, self._durable, self._unsure = None, 0, None
        self._in_checkpoint = False

    # ------------------------------------------------ events

    def receive(self, sender: ports.Node, message: Any) -> None:
        """A message has come."""
        if not self.up:
            return
        if not self._batches.post(ports.Received(sender, message)):
            self.world.counts["inbox full"] += 1
            return
        self.answered_ns = self.world.now
        attacker = self.world.attacker_at(self.node)
        if attacker is not None:
            attacker.received(self, sender, message)
        self._turn()

    def post(self, event: ports.Event, timer: Timer | None = None) -> None:
        """Takes an event of the node's own. timer: the setting that fired."""
        self._batches.inbox.put(Item(event, timer=timer))
        self._turn()

    def _turn(self) -> None:
        """Handles what waits, unless that is being done."""
        if self._busy or self._turning:
            return
        self._turning = True
        try:
            while self.up and not self._busy and self._batches.inbox:
                steps = self._batches.batch()
                first = next(steps)
                lag = self._lag_ns(type(first) is batches.Append)
                if lag:
                    self._busy = True
                    self.world.after(lag, self._go_on, steps, first, self.life)
                else:
                    self._finish_batch(steps, first)
        finally:
            self._turning = False

    def _lag_ns(self, writes: bool) -> int:
        mean = self.world.faults.append_s if writes and self.journaled else 0.0
        if self.slow > 1.0 and self.world.faulty:
            mean = (mean + 0.001) * self.slow
        return self.world.rng.exponential_ns(mean) if mean else 0

    def _go_on(self, steps: Iterator[batches.Step], first: batches.Step, life: int) -> None:
        if life == self.life and self.up:
            # Busy until the end: a timer that is due at once waits.
            self._finish_batch(steps, first)
            if self.up:
                self._busy = False
                self._turn()

    def _finish_batch(self, steps: Iterator[batches.Step], step: batches.Step | None) -> None:
        """Carries out the steps of a batch; the process may end anywhere."""
        try:
            self._draw_end()
            while step is not None:
                self._steps[type(step)](step)
                step = next(steps, None)
            self._tell_durable()  # where nothing was to be written and nothing to be done
            self._looked += 1
            if self._looked % _LOOK_EVERY == 0:
                self.world.look_at(self)
        except Killed:
            self.world.crash(self.process)
        except JournalError:
            self.world.counts["journal failed"] += 1
            self.world.crash(self.process)

    def _draw_end(self) -> None:
        """Whether the process ends in this batch.

        In its append (a third of all), or before or after one of its effects.
        """
        self._left = -1
        crash = self.world.crash_point(self)
        if crash >= 1.0:
            return
        if crash < 1 / 3:
            self._end_at_operation(int(crash * 3 * (_OPERATIONS_MAX + 1)))
        count = sum(len(effects) for _, effects in self.handled)
        self._left = int(max(0.0, crash - 1 / 3) * 1.5 * (count + 1))

    def _end_at_operation(self, left: int) -> None:
        """Ends the process before an operation of its disk."""

        def before(operation: str) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1

        self.disk.before = before

    def _tell_durable(self) -> None:
        if self.handled:
            handled, self.handled = self.handled, []
            self.world.auditor.durable(self, handled)

    # ------------------------------------------------ steps

    def _append(self, step: batches.Append) -> None:
        if self.journaled:
            assert self._segments is not None
            self._unsure = len(step.entries)
            try:
                self._segments.append(whole(step.entries, step.tails))
            finally:
                self.disk.before = None
            self._durable += len(step.entries)
            self._unsure = None
        self._tell_durable()
        if self._left == 0:
            raise Killed

    def _carry_out(self, step: batches.CarryOut) -> None:
        if self.handled:  # nothing of this batch is written
            self._tell_durable()
        if self._left == 0:
            raise Killed
        self._left -= 1
        effect = step.effect
        self._ways[type(effect)](effect, step.cause)
        if self._left == 0:
            raise Killed

    def _checkpoint(self, step: batches.Checkpoint) -> None:
        if not self.journaled:
            return
        assert self._segments is not None
        crash = self.world.crash_point(self)
        if crash < 1.0:
            self._end_at_operation(int(crash * 2 * _OPERATIONS_MAX))
        self._in_checkpoint = True
        try:
            self._segments.checkpoint(step.snapshot)
        finally:
            self.disk.before = None
        self._durable, self._in_checkpoint = 0, False

    # ------------------------------------------------ effects

    def _send(self, effect: ports.Send, event: ports.Event) -> None:
        self.world.auditor.sent(self, effect.message, event)
        attacker = self.world.attacker_at(self.node)
        said = [effect.message]
        if attacker is not None:
            said = attacker.sending(self.node, effect.to, effect.message)
        for message in said:
            self.world.network.send(self, effect.to, message)

    def _send_blob(self, effect: ports.SendBlob, event: ports.Event) -> None:
        held = effect.digest in self.blobs
        self.world.check(held, "blob", f"{self.node} has not got what it is to send")
        self.world.network.send_blob(self, effect.to, effect.digest, self.blobs[effect.digest])

    def _store_blob(self, effect: ports.StoreBlob, event: ports.Event) -> None:
        world = self.world
        if world.faulty and world.rng.chance(world.faults.no_room):
            self.post(ports.BlobStored(effect.blob.digest, False))
        else:
            lag = world.rng.exponential_ns(_PUT_S)
            world.after(lag, self._stored, effect.blob, self.life)

    def _stored(self, blob: Any, life: int) -> None:
        if life == self.life and self.up:
            self.post(ports.BlobStored(blob.digest, self.keep(blob)))

    def keep(self, blob: Any) -> bool:
        """Whether the blob is in the store now. One without content was put there before."""
        if not blob.content and blob.size:
            return blob.digest in self.blobs
        if hashlib.sha256(blob.content).digest() != blob.digest:
            return False
        self.blobs[blob.digest] = blob.content
        return True

    def _drop_blob(self, effect: ports.DropBlob, event: ports.Event) -> None:
        self.blobs.pop(effect.digest, None)

    def _set_timer(self, effect: ports.SetTimer, event: ports.Event) -> None:
        world, timer = self.world, self._batches.timers.set(effect.name, effect.at)
        at = self.clock.when(effect.at - self._steady.shift)
        if at <= world.now:
            self._fire(effect.name, timer, self.life)
        else:
            world.at(at, self._fire, effect.name, timer, self.life)

    def _fire(self, name: str, timer: Timer, life: int) -> None:
        if life != self.life or not self.up:
            return
        stands = self._batches.timers.stands(name, timer)
        if self.world.faults.loose:
            if stands:
                self._batches.timers.cancel(name)
            self.post(ports.TimerFired(name))
        elif stands:
            self.post(ports.TimerFired(name), timer)

    def _cancel_timer(self, effect: ports.CancelTimer, event: ports.Event) -> None:
        self._batches.timers.cancel(effect.name)

    def _run_program(self, effect: ports.RunProgram, event: ports.Event) -> None:
        token = self.programs[effect.ticket] = self.world.token()
        missing = [d for d in effect.blobs if d not in self.blobs]
        self.world.check(not missing, "blob", f"{self.node} is to run what it has not got")
        due, finish = self.world.work.run(self, effect)
        if finish is not None:
            self.world.after(due, self._finish, effect.ticket, token, finish)

    def _finish(self, ticket: int, token: int, finish: Callable[[], Any]) -> None:
        if self.programs.get(ticket) == token:
            del self.programs[ticket]
            self.post(ports.ProgramFinished(ticket, finish()))

    def _cancel_program(self, effect: ports.CancelProgram, event: ports.Event) -> None:
        self.programs.pop(effect.ticket, None)

    def _record(self, effect: ports.Record, event: ports.Event) -> None:
        self.world.counts[effect.kind] += 1
        if effect.kind == "deny_list_awaited" and not self.world.withholds:
            version, issued_s = effect.fields["version"], self.now // ports.SECOND
            self.world.order(self.node, DeniedVersion(version=version, issued_s=issued_s))
        if effect.kind == "session" and "reason" in effect.fields:
            self.world.counts[f"session {effect.fields['reason']}"] += 1

    # ------------------------------------------------ what the world asks

    @property
    def is_quiet(self) -> bool:
        """Whether all that it has handled is durable."""
        return not self._batches.inbox and not self._busy

    def replay(self) -> bytes:
        """The snapshot of the machine that the journal gives."""
        snapshot, entries = self.world.segments(self.disk).load()
        assert snapshot is not None
        again = batches.Batches(
            self.make, SteadyClock(Computer(self)), self._limits, lambda *told: None
        )
        for _ in again.recover(snapshot, entries):
            pass
        assert again.machine is not None
        return again.machine.snapshot()
