"""The oracles: what must hold whatever goes wrong.

The auditor sees what a node has made durable and what it has sent, and keeps its own book of it.

sum       The sum behind every model and every evaluation is, to the last bit, that of the devices
          which are named, each once; the step that the server update is given follows from it.
once      No update is in two models.
lost      A device that received COUNTED is in its edge's sums, unless that edge lost its disk. What
          the coordinator has acknowledged to an edge, it uses: all of it, and nothing else.
order     An order that was accepted survives: a run that was submitted is known, one that was
          cancelled ends, one that is paused selects no device, ordered weights are the next model.
roster    The coordinator's view of an edge is the newest that it received.
attempt   Attempts are numbered upwards, ask no more devices than the plan says, and are not asked
          for again once they are closed. A sum is asked for early only when there is enough. A run
          gives up after as many failed attempts in a row as its plan says, no more and no fewer.
again     No device trains again what was answered.
private   Nothing that a device sends holds its number of examples or its loss.
ledger    No key serves two attempts, no device signs two sets of survivors, of no device are shares
          of both its secrets out, and of no session shares for two sets. No masked sum is read of
          fewer devices than its plan says, and no update leaves without masks.
refused   No honest node sends what another refuses.
attack      No device takes a message that was changed so that it can see it (`found_out`).
"""

from __future__ import annotations

import contextlib
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ....cloud.protocol.run import TICKETS
from ....cloud.protocol.run_plan import RunPlan
from ....core.learning import metrics
from ....core.privacy.mechanisms import ring
from ....core.privacy.secagg import messages
from ....core.protocol import ports
from ....core.protocol.random_streams import device_key
from ....core.wire import round_pb2
from ....core.wire.admission_pb2 import EdgeHello
from ....core.wire.journal_pb2 import Drain, DrainEdge
from ....core.wire.operator_pb2 import RunOrder
from ..node_work import EXAMPLES, LOSS, update_of
from .books import AttemptBook, RunBook, cohorts
from .edge_book import EdgeBook, Name, OracleFailure
from .edge_book import name_of as _name
from .helper_book import HelperBook, helps, is_honest
from .session_ledger import Ledger
from .update_check import Step, check_step

if TYPE_CHECKING:
    from ..simulated_node import Host
    from ..world import World

#: Why an attempt of an honest federation may give nothing: how these texts begin.
_HONEST = (
    "too few devices reported",
    "too few devices are ready",
    "the server update failed",
    "no updates come",
)
_LOSS_BYTES = (struct.pack("<d", LOSS), struct.pack(">d", LOSS))


class Auditor:
    """Reads along. Raises OracleFailure."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runs: dict[int, RunBook] = {}
        self.attempts: dict[Name, AttemptBook] = {}
        # Orders that were accepted or refused, by identity: held, so that no other order has it.
        self._settled: dict[int, Any] = {}
        self.draining: dict[int, bool] = {}
        self.withdrawn: dict[int, bool] = {}
        self._steps: dict[int, Step] = {}  # by ticket
        self._made: dict[bytes, Step] = {}  # by the model's digest
        self._used: set[tuple[Name, int]] = set()
        self._counted: dict[tuple[int, int, Name], int] = defaultdict(int)  # edge, part
        self.edges = EdgeBook()
        self._helpers = HelperBook(self)
        self._ledger = Ledger()
        self._whys: set[str] = set()  # why sessions have failed
        self._answered: set[tuple[int, Name]] = set()
        self._lies: dict[tuple[Name, int], list[ports.Vector]] = defaultdict(list)

    def fail(self, oracle: str, what: str) -> None:
        raise OracleFailure(oracle, what)

    @staticmethod
    def check(holds: bool, oracle: str, what: str) -> None:
        if not holds:
            raise OracleFailure(oracle, what)

    # ------------------------------------------------ events of hosts

    def handled(self, host: Host, event: ports.Event, effects: list[ports.Effect]) -> None:
        """An event was handled; nothing of it is durable yet."""
        tier = host.node.tier
        if tier is ports.Tier.CLOUD:
            self._look_for_steps(host, effects)
        elif tier is ports.Tier.DEVICE:
            self._ledger.handled(host, effects)
            if self.world.attackers is not None:
                self.world.attackers.check(host, event, effects)
            for effect in effects:
                if type(effect) is ports.RunProgram:
                    key = (host.node.number, _name(host.machine.state.task))
                    self.check(key not in self._answered, "again", f"device {key[0]}, {key[1]}")

    def durable(self, host: Host, handled: list[tuple[ports.Event, list[ports.Effect]]]) -> None:
        """These events are durable; their effects follow."""
        tier = host.node.tier
        if tier is ports.Tier.CLOUD:
            for event, effects in handled:
                self._cloud(host, event, effects)
            self._check_views(host, handled)
        elif tier is ports.Tier.EDGE:
            self._edge(host, handled)
        else:
            for event, effects in handled:
                if type(event) is ports.Ordered:
                    self.settle(event.order)
                for effect in effects:
                    if type(effect) is ports.Record and effect.kind == "answered":
                        assert isinstance(event, ports.Received)
                        self._answered.add((host.node.number, _name(event.message)))

    def sent(self, host: Host, message: Any, event: ports.Event) -> None:
        """A message leaves."""
        tier, kind = host.node.tier, type(message)
        if tier is ports.Tier.DEVICE:
            self._look_for_secrets(host, message)
            self._ledger.sent(message)
        elif kind is round_pb2.UploadAck:
            upload = type(event) is ports.Received and type(event.message) is round_pb2.Upload
            if upload and message.status == round_pb2.COUNTED:
                incarnation = host.machine.state.incarnation
                self.edges.said_counted(host.node.number, incarnation, message)
        elif kind is round_pb2.EdgeProgress:
            key = (message.edge, message.part, _name(message))
            self._counted[key] = max(self._counted[key], message.counted)
        elif kind is round_pb2.EdgeSumAck:
            self._acked(event)

    def refused(self, host: Host, event: ports.Event, fault: Exception) -> None:
        """A machine refused a message."""
        liars, attacker = self.world.faults.liars, self.world.attackers
        if (
            attacker is not None
            and type(event) is ports.Received
            and attacker.stands_at(event.sender)
        ):
            return
        if type(event) is ports.Received:
            sender = event.sender
            if sender.tier is ports.Tier.DEVICE and sender.number in liars:
                return
        self.fail("refused", f"{host.node} refused {event}: {fault}")

    def lied(self, device: int, message: Any) -> None:
        """A device has said something that it did not mean."""
        if type(message) is round_pb2.Upload:
            key = (_name(message), message.device)
            book = self.attempts.get(key[0])
            if book is not None and ring.is_packed(message.vector, book.plan):
                self._lies[key].append(ring.unpacked(message.vector, book.plan))
        elif type(message) in messages.UP:
            self._lies[_name(message), message.device] = []

    def will_make(self, effect: ports.RunProgram, digest: bytes) -> None:
        """A server update has begun; it makes the model of this digest."""
        self._made[digest] = self._steps[effect.ticket]

    # ------------------------------------------------ sums

    def _look_for_steps(self, host: Host, effects: list[ports.Effect]) -> None:
        """A server update begins: of which sums?"""
        for effect in effects:
            if type(effect) is ports.RunProgram and effect.program == "server_update":
                number = effect.ticket // TICKETS
                run = host.machine.state.runs[number]
                pieces = run.batch if self.runs[number].plan.buffered else run.open
                pieces = [p for p in pieces if p.total is not None]  # a cohort may have failed
                sums = [((number, p.round, p.attempt), p.total, tuple(p.unused)) for p in pieces]
                factors = None
                if run.opening:
                    honest = not any(self._twisted(name) for name, *_ in sums)
                    sums, factors = self._helpers.sums(run, honest)
                for one in () if run.opening else sums:
                    self._check_sum(*one)
                masked = frozenset(
                    (number, w.round, w.attempt) for w in run.open if w.session is not None
                )
                step = self._steps[effect.ticket] = Step(run.round, sums, masked)
                check_step(self.runs[number].plan, step, factors, *effect.arguments)

    def _check_sum(self, name: Name, total: ports.Vector, devices: tuple[int, ...]) -> None:
        book, plan = self.attempts[name], self.runs[name[0]].plan
        self.check(len(set(devices)) == len(devices) > 0, "sum", f"{name} names {devices}")
        self.check(len(devices) >= plan.cohort_min, "ledger", f"{name} is of {devices}")
        self.check(len(total) == book.plan.length, "sum", f"{name} has {len(total)} numbers")
        if self.world.attackers is not None:
            self.world.attackers.summed(name, devices, plan.cohort_min)
        rest = ring.settled(total - self.sum_of(name, devices), book.plan)
        if plan.secure is not None and self._twisted(name):
            return  # a liar's shares may make a wrong mask
        if rest.any() and not any(
            not ring.settled(rest - lie, book.plan).any() for lie in self._lied(name, devices)
        ):
            self.fail("sum", f"{name}: the sum is not that of {sorted(devices)}")

    def _twisted(self, name: Name) -> bool:
        """Whether an attacker is there, or has sent something in a session or under masks."""
        attacker = self.world.attackers
        attacks = attacker is not None and attacker.meddled(name)
        return attacks or any(at[0] == name for at in self._lies)

    def sum_of(self, name: Name, devices: Iterable[int]) -> ports.Vector:
        """What the devices meant to say, added up."""
        book = self.attempts[name]
        total = np.zeros(book.plan.length, np.uint32)
        for device in devices:
            total += update_of(device, device_key(book.key, device), book.plan, name)
        return total

    def _lied(self, name: Name, devices: Iterable[int]) -> Iterator[ports.Vector]:
        """What liars may have added to a sum."""
        choices = []
        for device in devices:
            lies = self._lies.get((name, device), [])
            own = self.sum_of(name, [device])
            fitting = [lie - own for lie in lies if len(lie) == len(own)]
            if fitting:
                choices.append([np.zeros_like(own), *fitting])
        for chosen in product(*choices):
            if chosen:
                yield np.sum(chosen, 0, np.uint32)

    def _check_metrics(self, fields: Any) -> None:
        """An evaluation says what the devices said whose sums were acknowledged."""
        run, round = fields["run"], fields["round"] + 1
        name = max(n for n, b in self.attempts.items() if b.evaluates and n[:2] == (run, round))
        devices = self.attempts[name].devices
        self.check(len(devices) == fields["devices"], "lost", f"{name}: not all have judged")
        plan, total = self.attempts[name].plan, self.sum_of(name, devices)
        if metrics.decode(total, plan) == fields["metrics"]:
            return
        if self.runs[run].plan.secure is not None and self._twisted(name):
            return
        for lie in self._lied(name, devices):
            with contextlib.suppress(ring.RingError):
                if metrics.decode(total + lie, plan) == fields["metrics"]:
                    return
        self.fail("sum", f"{name}: the metrics are not those of {sorted(devices)}")

    def is_settled(self, order: Any) -> bool:
        """Whether its node has accepted or refused this very order."""
        return id(order) in self._settled

    def settle(self, order: Any) -> None:
        self._settled[id(order)] = order

    # ------------------------------------------------ the coordinator

    def _cloud(self, host: Host, event: ports.Event, effects: list[ports.Effect]) -> None:
        touched = set()
        if isinstance(event, ports.Ordered):
            self.settle(event.order)
            if isinstance(event.order, RunOrder):
                self._order(event.order, effects)
            elif isinstance(event.order, DrainEdge):
                self.withdrawn[event.order.edge] = event.order.draining
        for effect in effects:
            if isinstance(effect, ports.Send):
                message = effect.message
                if isinstance(message, round_pb2.EdgeTask):
                    touched.add(self._tasked(message, effect.to.number))
                elif isinstance(message, round_pb2.EdgeSumAck):
                    self._acked(event)
                elif isinstance(message, round_pb2.RoundClosed) and not message.HasField("device"):
                    self._close(_name(message))
                elif isinstance(message, round_pb2.Flush):
                    self._flush(message)
            elif isinstance(effect, ports.Record):
                self._record(host, effect)
            elif isinstance(effect, ports.RunProgram) and effect.program == "server_update":
                self._begin_update(effect)
        for name in touched:
            self._check_asked(name)

    def _check_views(
        self, host: Host, handled: list[tuple[ports.Event, list[ports.Effect]]]
    ) -> None:
        """The coordinator sees of each edge the newest that it has received."""
        for event, _ in handled:
            if isinstance(event, ports.Received) and isinstance(event.message, EdgeHello):
                hello = event.message
                view = host.machine.state.edges[hello.edge]
                new = (hello.incarnation, hello.sequence) <= (view.incarnation, view.sequence)
                self.check(new, "roster", f"edge {hello.edge} is seen as it was before")

    def _tasked(self, message: round_pb2.EdgeTask, edge: int) -> Name:
        task = message.task
        name, devices = _name(task), tuple(message.devices)
        run, book = self.runs[name[0]], self.attempts.get(name)
        if book is None:
            self.check(name[1:] > run.newest, "attempt", f"{name} after {run.newest}")
            self.check(not run.is_to_give_up, "attempt", f"{name} after all that may fail")
            self.check(not run.paused, "order", f"{name} begins while its run is paused")
            self.check(run.ordered is None, "order", f"{name} begins without the ordered weights")
            self.check(task.weights.digest == run.weights, "attempt", f"{name}: other weights")
            run.newest = name[1:]
            r = task.ring
            plan = ring.RingPlan(r.clip, r.clients_max, r.dimension, r.bits)
            book = AttemptBook(task.rng_key, plan, task.purpose == round_pb2.EVALUATE, task.run)
            self.check(task.run >= run.called, "attempt", f"{name} has an older name of its run")
            run.called = task.run
            self.attempts[name] = book
        self.check(task.run == book.called, "attempt", f"{name} is called otherwise than before")
        self.check(not book.closed, "attempt", f"{name} is asked for after it was closed")
        known = book.asked.setdefault(edge, devices)
        self.check(known == devices, "attempt", f"{name}: other devices at edge {edge}")
        return name

    def _check_asked(self, name: Name) -> None:
        book, plan = self.attempts[name], self.runs[name[0]].plan
        devices = [d for devices in book.asked.values() for d in devices]
        limit = plan.evaluation_selected if book.evaluates else plan.selected
        self.check(len(devices) <= limit, "attempt", f"{name} asks {len(devices)} devices")
        self.check(len(set(devices)) == len(devices), "attempt", f"{name} asks one twice")

    def _acked(self, event: ports.Event) -> None:
        """The coordinator acknowledges a sum."""
        if isinstance(event, ports.Received) and isinstance(event.message, round_pb2.EdgeSum):
            self._take(event.message)

    def _take(self, message: round_pb2.EdgeSum) -> None:
        """What the coordinator must use from now on."""
        name, edge = _name(message), message.edge
        book = self.attempts[name]
        if book.closed or book.taken.get(edge, 0) != message.part:
            return
        book.taken[edge] = message.part + 1 if message.more else None
        self._counted[edge, message.part, name] = message.count
        devices = set(message.devices)
        self.check(not devices & book.devices, "once", f"{name}: a sum names a device again")
        book.devices |= devices
        book.unused |= devices
        book.failures.update(f.device for f in message.failures)

    def _close(self, name: Name) -> None:
        book = self.attempts[name]
        book.closed = True

    def _flush(self, message: round_pb2.Flush) -> None:
        """A synchronous run may ask before time when it has enough."""
        name = _name(message)
        book, plan = self.attempts[name], self.runs[name[0]].plan
        if message.go_on or plan.buffered:
            return
        there = sum(self._counted.get((edge, 0, name), 0) for edge in book.asked)
        target = plan.evaluation_cohort if book.evaluates else plan.cohort
        if plan.cohorts > 1 and not book.evaluates:
            together = sum(len(c.selected) for c in cohorts(self.attempts, *name[:2]))
            target = target * len(book.selected) // together
        self.check(there >= target, "attempt", f"{name} is flushed with {there} of {target}")

    def _begin_update(self, effect: ports.RunProgram) -> None:
        """All that was acknowledged is in it, but what is too old."""
        step = self._steps[effect.ticket]
        run = step.sums[0][0][0]
        book = self.runs[run]
        batch = frozenset((name, frozenset(devices)) for name, _, devices in step.sums)
        if batch == book.batch:
            return  # the same again, after a crash
        used = dict(batch)
        for name, attempt in self.attempts.items():
            if name[0] != run or attempt.evaluates:
                continue
            if not book.plan.buffered and name not in used:
                continue
            devices = used.get(name, frozenset())
            if name in step.masked:
                continue
            # With helpers, too few wait for others.
            same = devices == attempt.unused or (devices < attempt.unused and helps(book.plan))
            self.check(same, "lost", f"{name}: {attempt.unused} are here, {devices} are used")
            attempt.unused -= devices
        book.batch = batch

    def _record(self, host: Host, record: ports.Record) -> None:
        fields, kind = record.fields, record.kind
        if kind == "round":
            self._round(fields)
        elif kind == "evaluation":
            self._check_metrics(fields)
        elif kind == "stale":
            for name, attempt in self.attempts.items():
                if (
                    name[1:] == (fields["round"], fields["attempt"])
                    and self.runs[name[0]].plan.buffered
                ):
                    age = self.runs[name[0]].models + 1 - name[1]
                    plan = self.runs[name[0]].plan
                    old = age > plan.round.staleness_max or helps(plan)
                    self.check(old, "lost", f"{name} is dropped at age {age}")
                    attempt.unused = set()
        elif kind == "model_ordered":
            run = self.runs[fields["run"]]
            run.weights, run.ordered, run.batch = fields["model"], None, None
            for name, attempt in self.attempts.items():
                if name[0] == fields["run"]:
                    attempt.unused = set()
        elif kind == "session" and fields["why"]:
            self._whys.add(fields["why"])
            book = self.attempts[fields["run"], fields["round"], fields["attempt"]]
            book.unused, book.failed = set(), True
        elif kind == "run_failed":
            self.runs[fields["run"]].check_given_up()
        elif kind in ("edge_lost", "unanswered"):
            for name, attempt in self.attempts.items():
                if fields["edge"] in attempt.asked and not attempt.closed:
                    self._lose(host, name, fields["edge"])
        elif kind == "phase":
            run = self.runs[fields["run"]]
            run.over = fields["phase"] in ("done", "cancelled", "failed")
        elif kind == "refused_sum":
            self.fail("refused", f"the coordinator refused a sum of edge {fields['edge']}")

    def _lose(self, host: Host, name: Name, edge: int) -> None:
        """The edge's part in an attempt is over, as the coordinator sees it."""
        run = host.machine.state.runs.get(name[0])
        owed = run is not None and any(
            (a.round, a.attempt) == name[1:] and a.owes(edge) for a in run.open
        )
        if not owed:
            self.attempts[name].taken[edge] = None

    def _round(self, fields: Any) -> None:
        name = (fields["run"], fields["round"], fields["attempt"])
        run = self.runs[name[0]]
        if not run.plan.buffered and fields["selected"]:
            books = cohorts(self.attempts, *name[:2])
            cut = run.plan.cohorts > 1  # then a failed cohort reports nothing
            there = {d for b in books if not (cut and b.failed) for d in b.devices}
            same = set(fields["reported"]) == there
            self.check(same, "lost", f"{name} reports {fields['reported']}, not {there}")
            failures = {d for b in books for d in b.failures}
            same = set(fields["refused"]) == failures
            self.check(same, "lost", f"{name} refuses {fields['refused']}, not {failures}")
            asked = sorted(d for b in books for d in b.selected)
            self.check(fields["selected"] == asked, "attempt", f"{name} selected others")
            for book in books:
                book.told = True
        run.failures = 0 if fields["succeeded"] else run.failures + 1
        if not fields["succeeded"]:
            self._fell_short(run, fields)
            return
        step = self._made.get(fields["model"])
        if step is None:
            self.fail("sum", f"{name} has a model of unknown origin")
            return
        self.check(fields["parent"] == run.weights, "sum", f"{name} has another parent")
        self.check(fields["round"] == run.models + 1, "once", f"{name} after {run.models} models")
        devices = [(of, d) for of, _, ds in step.sums for d in ds]
        twice = [d for d in devices if d in self._used]
        self.check(not twice, "once", f"{name} uses again {twice}")
        named = sorted({d for _, d in devices}) == sorted(fields["reported"])
        self.check(named, "sum", f"{name} reports others than it uses")
        self._used.update(devices)
        run.weights, run.models, run.batch = fields["model"], run.models + 1, None

    def _fell_short(self, run: RunBook, fields: Any) -> None:
        why = fields["why"]
        few = " cohorts gave a sum" in why
        if not why.startswith(_HONEST) and why not in self._whys and not (few or is_honest(why)):
            # Sums that cannot be decoded: only attackers can make some. The record has the newest
            # attempt's name; a batch of a buffered run is of several.
            newest = (fields["run"], fields["round"], fields["attempt"])
            reported = set(fields["reported"])
            spoilt = bool(self.world.faults.liars & reported) or any(
                self._twisted(name)
                for name, attempt in self.attempts.items()
                if name == newest or (name[0] == newest[0] and attempt.devices & reported)
            )
            self.check(spoilt, "sum", f"run {fields['run']}: {why}")
            for name, attempt in self.attempts.items():
                if name[0] == fields["run"]:
                    attempt.unused = set()
        run.batch = None

    # ------------------------------------------------ orders

    def _order(self, order: RunOrder, effects: list[ports.Effect]) -> None:
        if any(type(e) is ports.Record and e.kind == "refused_order" for e in effects):
            return
        kind = order.WhichOneof("order")
        if kind == "submit":
            plan = RunPlan.from_message(order.run, order.submit)
            self.runs[order.run] = RunBook(plan, plan.weights.digest)
            return
        run = self.runs[order.run]
        if kind == "pause":
            run.paused = True
        elif kind == "resume":
            run.paused = False
        elif kind == "cancel":
            run.cancelled = True
        else:
            run.ordered = order.weights.digest

    def recovered(self, host: Host) -> None:
        """A node has its state again: what it was ordered is in it."""
        state = host.machine.state
        if host.node.tier is ports.Tier.EDGE:
            ordered = self.draining.get(host.node.number)
            kept = ordered is None or state.drained == ordered
            self.check(kept, "order", f"{host.node} forgot whether it drains")
        elif host.node == ports.CLOUD:
            gone = {edge for edge, draining in self.withdrawn.items() if draining}
            kept = state.draining.keys() == gone
            self.check(kept, "order", "the coordinator forgot which edges are out of service")
            for number, book in self.runs.items():
                run = state.runs.get(number)
                known = run is not None or number in state.ended
                self.check(known, "order", f"run {number} is not known any more")
                if run is None:
                    continue
                self.check(not book.cancelled, "order", f"run {number} goes on after its end")
                paused = run.pausing or run.phase.value == "paused"
                self.check(paused == book.paused, "order", f"run {number} forgot its pause")
                told = None if run.ordered is None else run.ordered.digest
                self.check(told == book.ordered, "order", f"run {number} forgot its weights")
                same = run.weights.digest == book.weights
                self.check(same, "lost", f"run {number} has another model")

    # ------------------------------------------------ edges

    def _edge(self, host: Host, handled: list[tuple[ports.Event, list[ports.Effect]]]) -> None:
        number, incarnation = host.node.number, host.machine.state.incarnation
        for event, effects in handled:
            if isinstance(event, ports.Ordered):
                self.settle(event.order)
                if isinstance(event.order, Drain):
                    self.draining[number] = event.order.draining
            elif isinstance(event, ports.Received) and event.sender == ports.CLOUD:
                self.edges.told(number, incarnation, event.message)
            for effect in effects:
                if isinstance(effect, ports.Send) and isinstance(effect.message, round_pb2.EdgeSum):
                    self.edges.summed(incarnation, effect.message)
        self.edges.check_held(host.machine.state)
        self._helpers.handled(number, incarnation, handled)

    # ------------------------------------------------ devices

    def _look_for_secrets(self, host: Host, message: Any) -> None:
        content = message.SerializeToString()
        secret = _varint(EXAMPLES + host.node.number)
        found = secret in content or any(loss in content for loss in _LOSS_BYTES)
        self.check(not found, "private", f"{host.node} discloses its examples or its loss")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
