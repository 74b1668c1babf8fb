"""The edge's side of one attempt at a round.

Everything that decides about the attempt lives in this file. `edge.protocol.machine` knows the
devices, the blobs and the other attempts.

The task goes to the devices that it names, and again to those that stay silent. Updates are added
to one running sum as they come: the memory that an attempt takes does not depend on how many
devices take part, unless the cloud wants them apart. A synchronous round has one sum, which goes up
when all have answered, when the cloud asks, or when time is over. A buffered run asks before that
(Flush.go_on): what has been counted becomes part N, and the devices that are still at work go on as
part N + 1, with the time that they had. Each part is repeated until the cloud has it.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Any

from ...core.privacy.mechanisms import ring, sparse
from ...core.privacy.secagg.helper import SEEDS_BYTES_MAX, are_seeds
from ...core.privacy.task_limits import is_sane as is_sane_task
from ...core.privacy.task_limits import left_ms, with_left
from ...core.protocol import ports
from ...core.protocol.machine import IGNORE, Machine, Output, Part, index, row
from ...core.wire.admission_pb2 import CheckIn
from ...core.wire.journal_pb2 import Forget, SplitTrained
from ...core.wire.round_pb2 import (
    COUNTED,
    LATE,
    PROGRAM_FAILED,
    REFUSED,
    DeviceFailure,
    EdgeProgress,
    EdgeSum,
    EdgeSumAck,
    EdgeTask,
    Failure,
    FailureReason,
    Flush,
    RoundClosed,
    Task,
    Upload,
    UploadAck,
    UploadStatus,
)
from .edge_state import IN_SUM, MISFIT, PARTS_OUT_MAX, CollectionState, EdgePolicy, Stage


class Trigger(StrEnum):
    """What can happen to an attempt."""

    TASK = "EdgeTask"
    TASK_AGAIN = "EdgeTask again"
    STARTED = "started"
    CHECK_IN = "CheckIn of a device that is waited for"
    SILENT = "devices still silent"
    ANSWER = "first answer of a device"
    ANSWER_AGAIN = "answer again"
    LATE_ANSWER = "answer that nobody waits for"
    FORGET = "a device that is waited for is revoked"
    TRAINED = "a device that is waited for has trained with this edge"
    PROGRESS_DUE = "time for an EdgeProgress"
    ALL_ANSWERED = "all have answered"
    FLUSH = "Flush"
    FLUSH_ON = "Flush, and go on"
    TIME_OVER = "time is over"
    SUM_UNANSWERED = "sum not acknowledged yet"
    SUM_ACKED = "EdgeSumAck"
    ALL_ACKED = "the last sum is acknowledged"
    PARTS_ADDED = "sum of the parts of updates that this edge trained"
    EXPIRED = "nobody wanted the sum"
    CLOSED = "RoundClosed"
    STALE = "late, repeated or of no use"


NEW, COLLECTING, REPORTING, OVER = Stage
_T = Trigger
_OPEN = (COLLECTING, REPORTING)


class Attempt(Part[CollectionState]):
    """The actions of one attempt at one edge."""

    def __init__(
        self,
        state: CollectionState,
        out: Output,
        edge: int,
        policy: EdgePolicy,
        tasked: dict[int, str],
    ) -> None:
        super().__init__(state, out)
        self.edge = edge
        self.policy = policy
        self.tasked = tasked
        self.task: Task = state.task.task
        self.name = name_of(self.task)
        for device in state.waiting:
            tasked[device] = self.name

    def left_ms(self, now: int) -> int:
        """What is left of the devices' time."""
        return left_ms(self.task) - (now - self.state.opened_ns) // ports.MS

    # ------------------------------------------------ tasking

    def open(self, message: EdgeTask) -> None:
        state, task = self.state, message.task
        # Half of the margin is for the devices' last uploads, half for the sum's way up.
        devices_ms = left_ms(task)
        patience_ms = (devices_ms + max(message.time_ms, devices_ms)) // 2
        state.opened_ns = self.now
        state.ends_ns = self.now + patience_ms * ports.MS
        self.set_timer("round", state.ends_ns)
        for device in state.waiting:
            self.send(ports.Node(ports.Tier.DEVICE, device), task)
        self.progress(None)
        self._repeat(self.policy.backoff.first_ns)
        if not state.waiting:
            self.post(_T.ALL_ANSWERED)

    def restart(self, _: object) -> None:
        state = self.state
        if state.phase is COLLECTING:
            self.set_timer("round", state.ends_ns)
            state.tries = 0
            self._repeat(self.policy.backoff.first_ns)
            if state.progress_due:
                self.set_timer("progress", self.now + self.policy.progress_delay_ns)
        if state.outgoing:
            state.sum_tries = 0
            self.send_sums(None)

    def task_one(self, message: CheckIn) -> None:
        self._send_task([message.device])

    def task_again(self, _: object) -> None:
        silent = [d for d, alive in self.state.waiting.items() if not alive]
        self._send_task(silent)
        if silent:
            self._repeat(0)

    def _send_task(self, devices: list[int]) -> None:
        """Repeats the task, with what is left of its time."""
        left = self.left_ms(self.now)
        if left <= 0:
            return
        task = with_left(self.task, left)
        for device in devices:
            self.send(ports.Node(ports.Tier.DEVICE, device), task)

    # ------------------------------------------------ counting

    def count(self, message: Upload | Failure) -> None:
        state, device = self.state, message.device
        if isinstance(message, Failure):
            known = message.reason in FailureReason.values() and message.reason
            state.answers[device] = message.reason if known else PROGRAM_FAILED
        elif self._take(message, vector := self.out.content(message.vector)):
            state.answers[device] = IN_SUM
            state.counted += 1
        else:
            state.answers[device] = MISFIT
            self.record("misfit", device=device, bytes=len(vector))
        state.in_part.append(device)
        self.emit(ack(message, status_of(state.answers[device], message)))
        self._wait_no_more(device)
        if state.waiting and not state.progress_due:
            state.progress_due = True
            self.set_timer("progress", self.now + self.policy.progress_delay_ns)

    def _take(self, message: Upload, content: ports.Content) -> bool:
        """Adds an update to the sum, or keeps it apart.

        Returns False where it has another length, lacks the seeds of its masks, or names a training
        that is not here whole: found out later, it would cost the sum.
        """
        device, helpers = message.device, self.task.secure.helpers
        if helpers and not (
            message.seeds.device == device and are_seeds(message.seeds, len(helpers))
        ):
            return False
        fits = sparse.is_sent(content, ring.RingPlan.of(self.task.ring))
        if message.split:
            known = message.split == self.state.trained.get(device)
            fits = fits and known and not is_apart(self.state.task)
            if not known:
                self.record("split_unknown", attempt=self.name, device=device)
        if fits and is_apart(self.state.task):
            self.state.apart[device] = bytes(content)
        elif fits:
            self._add(content)
        if fits and helpers:
            self.state.seeds[device] = message.seeds
        if fits and message.split:
            self.state.splits[device] = message.split
        return fits

    def _add(self, content: ports.Content) -> None:
        """Adds an update to the running sum."""
        plan = ring.RingPlan.of(self.task.ring)
        self.state.total = sparse.summed(self.state.total, content, plan)

    def note_trained(self, order: SplitTrained) -> None:
        self.state.trained[order.device] = order.name

    def drop_device(self, order: Forget) -> None:
        self._wait_no_more(order.device)

    def _wait_no_more(self, device: int) -> None:
        del self.state.waiting[device]
        self._release(device)
        if not self.state.waiting:
            self.post(_T.ALL_ANSWERED)

    def _release(self, device: int) -> None:
        # One that came back when its time was over may work for another attempt by now.
        if self.tasked.get(device) == self.name:
            del self.tasked[device]

    def ack_again(self, message: Upload | Failure) -> None:
        self.emit(ack(message, status_of(self.state.answers[message.device], message)))
        self.record("duplicate", device=message.device)

    def ack_late(self, message: Upload | Failure) -> None:
        self.emit(ack(message, LATE))
        if isinstance(message, Upload):
            self.record("late", device=message.device, round=message.round, attempt=message.attempt)

    def progress(self, _: object) -> None:
        state, task = self.state, self.task
        state.progress_due = False
        self.send(
            ports.CLOUD,
            EdgeProgress(
                run=task.run,
                round=task.round,
                attempt=task.attempt,
                edge=self.edge,
                counted=state.counted,
                part=state.part,
            ),
        )

    # ------------------------------------------------ sums

    def part(self, _: object) -> None:
        state = self.state
        self._send_part(more=True)
        state.part += 1
        state.in_part, state.counted, state.progress_due = [], 0, False
        self.cancel_timer("progress")

    def report(self, _: object) -> None:
        if self.state.waiting:
            self.record("unanswered", attempt=self.name, devices=len(self.state.waiting))
        self._let_go()
        for name in ("round", "progress", "repeat"):
            self.cancel_timer(name)
        if not self.state.splits:
            self._send_part(more=False)

    @property
    def owes_parts(self) -> bool:
        """Whether the last sum waits for the parts of updates that this edge trained."""
        return self.state.phase is REPORTING and bool(self.state.splits)

    def add_parts(self, outcome: ports.Outcome | ports.NewModel | ports.ProgramStopped) -> None:
        state, plan = self.state, ring.RingPlan.of(self.task.ring)
        vector = outcome.vector if isinstance(outcome, ports.Outcome) else None
        if vector is not None and len(vector) == plan.length and state.total is not None:
            state.total = state.total + vector  # the first update's array is its sender's
        else:
            # The devices' parts without their other ones would be half of an update.
            self.record("split_lost", attempt=self.name, devices=len(state.splits))
            lost = [d for d in state.in_part if state.answers[d] == IN_SUM]
            state.answers.update(dict.fromkeys(lost, PROGRAM_FAILED))
            state.total, state.seeds = None, {}
        state.splits, state.split_ending = {}, 0
        self._send_part(more=False)

    def _send_part(self, more: bool) -> None:
        state, task = self.state, self.task
        answers = [(d, state.answers[d]) for d in sorted(state.in_part)]
        devices = [d for d, answer in answers if answer == IN_SUM]
        outgoing = EdgeSum(
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            edge=self.edge,
            devices=devices,
            count=len(devices),
            failures=[
                DeviceFailure(device=d, reason=PROGRAM_FAILED if answer == MISFIT else answer)  # type: ignore[arg-type]
                for d, answer in answers
                if answer != IN_SUM
            ],
            part=state.part,
            more=more,
            seeds=[state.seeds[d] for d in devices if d in state.seeds],
        )
        total: ports.Content = b""
        if state.total is not None:
            carry = ring.carried if self.out.carries_vectors else ring.packed
            total = carry(state.total, ring.RingPlan.of(task.ring))
        if state.apart:
            total = b"".join(state.apart[d] for d in devices)
        state.total, state.apart, state.seeds = None, {}, {}
        state.sizes[state.part] = ports.wire_size(outgoing, len(total))
        if self.out.carries_vectors:
            state.beside[state.part] = total
        else:
            outgoing.sum = bytes(total)
        state.outgoing[state.part] = outgoing
        state.sum_tries = 0
        self._send_sums([state.part])

    def send_sums(self, _: object) -> None:
        self._send_sums(list(self.state.outgoing))

    def _send_sums(self, parts: list[int]) -> None:
        state = self.state
        for part in parts:
            self.send(ports.CLOUD, state.outgoing[part], state.sizes[part], state.beside.get(part))
        state.sum_tries += 1
        # What is on its way already delays what comes after it.
        pause = self.policy.backoff.pause(state.sum_tries, sum(state.sizes.values()))
        self.set_timer("sum", self.now + pause)

    def drop_sum(self, message: EdgeSumAck) -> None:
        state = self.state
        del state.outgoing[message.part], state.sizes[message.part]
        state.beside.pop(message.part, None)
        if not state.outgoing:
            self.cancel_timer("sum")
            if state.phase is REPORTING:
                self.post(_T.ALL_ACKED)

    # ------------------------------------------------ ending

    def expire(self, _: object) -> None:
        self.record("sum_expired", attempt=self.name, parts=len(self.state.outgoing))
        self.end(None)

    def close(self, _: object) -> None:
        self._let_go()
        self.end(None)

    def end(self, _: object) -> None:
        state = self.state
        state.total, state.apart, state.seeds = None, {}, {}
        state.splits, state.trained = {}, {}
        state.outgoing, state.sizes, state.beside = {}, {}, {}
        for name in ("round", "progress", "repeat", "sum"):
            self.cancel_timer(name)

    def _let_go(self) -> None:
        """Sends RoundClosed to the devices that have not answered."""
        task = self.task
        over = RoundClosed(run=task.run, round=task.round, attempt=task.attempt)
        for device in self.state.waiting:
            self.send(ports.Node(ports.Tier.DEVICE, device), over)
            self._release(device)
        self.state.waiting = {}

    # ------------------------------------------------ timers of its own

    def _repeat(self, at_least_ns: int) -> None:
        self.state.tries += 1
        pause = self.policy.backoff.pause(self.state.tries)
        self.set_timer("repeat", self.now + max(pause, at_least_ns))


TABLE = (
    row(NEW, _T.TASK, Attempt.open, COLLECTING, "task the devices"),
    row(_OPEN, _T.TASK_AGAIN, Attempt.progress, None, "the cloud missed the answer"),
    row(_OPEN, _T.STARTED, Attempt.restart, None, "the state survived: set the timers again"),
    row(COLLECTING, _T.CHECK_IN, Attempt.task_one, COLLECTING, "it missed the task"),
    row(COLLECTING, _T.SILENT, Attempt.task_again, COLLECTING, "task or sign of life was lost"),
    row(COLLECTING, _T.ANSWER, Attempt.count, COLLECTING, "add it to the sum"),
    row(_OPEN, _T.ANSWER_AGAIN, Attempt.ack_again, None, "the UploadAck was lost"),
    row(_OPEN, _T.LATE_ANSWER, Attempt.ack_late, None, "it is in no sum"),
    row(COLLECTING, _T.FORGET, Attempt.drop_device, COLLECTING, "its answer will not come"),
    row(COLLECTING, _T.TRAINED, Attempt.note_trained, None, "an update may name that training"),
    row(COLLECTING, _T.PROGRESS_DUE, Attempt.progress, COLLECTING, "answers came"),
    row(COLLECTING, _T.ALL_ANSWERED, Attempt.report, REPORTING, "send the last sum"),
    row(COLLECTING, _T.FLUSH, Attempt.report, REPORTING, "the cloud has enough"),
    row(COLLECTING, _T.FLUSH_ON, Attempt.part, COLLECTING, "send what there is"),
    row(COLLECTING, _T.TIME_OVER, Attempt.report, REPORTING, "silent devices are late"),
    row(_OPEN, _T.SUM_UNANSWERED, Attempt.send_sums, None, "sum or EdgeSumAck was lost"),
    row(_OPEN, _T.SUM_ACKED, Attempt.drop_sum, None, "the cloud has it"),
    row(REPORTING, _T.PARTS_ADDED, Attempt.add_parts, None, "send the sum; none where one is lost"),
    row(REPORTING, _T.ALL_ACKED, Attempt.end, OVER, "keep the answers"),
    row(REPORTING, _T.EXPIRED, Attempt.expire, OVER, "it was kept long enough"),
    row(_OPEN, _T.CLOSED, Attempt.close, OVER, "notify the devices that still work on it"),
    row(_OPEN, _T.STALE, IGNORE, None, "count it"),
)


class Collection(Machine[CollectionState]):
    """One attempt at one edge.

    tasked: device -> name of the attempt that it works for, shared by all collections of the edge.
    """

    rows = index(TABLE)

    def __init__(
        self, state: CollectionState, edge: int, policy: EdgePolicy, tasked: dict[int, str]
    ) -> None:
        self.task: Task = state.task.task
        self.name = name_of(self.task)
        out = Output(f"{self.name}/")
        self.attempt = Attempt(state, out, edge, policy, tasked)
        super().__init__(state, out, self.attempt)
        self.node = ports.Node(ports.Tier.EDGE, edge)
        self.policy = policy
        self.upload_bytes = upload_bytes(self.task)  # asked for at each offer of an update

    # ------------------------------------------------ what the edge asks

    @property
    def at(self) -> tuple[int, int]:
        """Which attempt of its run."""
        return self.task.round, self.task.attempt

    @property
    def bytes_held(self) -> int:
        """Of sums: those on their way up, and what the running one takes in the end."""
        running = needed_bytes(self.state.task) if self.state.phase in (NEW, COLLECTING) else 0
        state = self.state
        held = sum(len(out.sum) for out in state.outgoing.values())
        return running + held + sum(map(len, state.beside.values()))

    def hear(self, device: int) -> bool:
        """Notes a sign of life; whether it is the first."""
        first = self.state.waiting.get(device) is False
        if first:
            self.state.waiting[device] = True
        return first

    # ------------------------------------------------ reading events

    def read(self, event: ports.Event) -> tuple[Trigger, Any]:
        if isinstance(event, ports.Received):  # most are, and a case takes five times as long
            if event.sender.tier is ports.Tier.DEVICE:
                return self._read_device(event.message)
            return self._read_cloud(event.message)
        match event:
            case ports.TimerFired(name):
                return self._read_timer(name.rpartition("/")[2]), None
            case ports.Ordered(Forget() | SplitTrained() as order):
                waited = self.state.phase is COLLECTING and order.device in self.state.waiting
                kind = _T.FORGET if isinstance(order, Forget) else _T.TRAINED
                return (kind if waited else _T.STALE), order
            case ports.Started():
                return _T.STARTED, None
            case ports.ProgramFinished(_, outcome):
                return (_T.PARTS_ADDED if self.attempt.owes_parts else _T.STALE), outcome
        raise AssertionError(f"not of an attempt: {event}")

    def _read_device(self, message: Any) -> tuple[Trigger, Any]:
        state, device = self.state, message.device
        waited = state.phase is COLLECTING and device in state.waiting
        if isinstance(message, CheckIn):
            return (_T.CHECK_IN if waited else _T.STALE), message
        if device in state.answers:
            return _T.ANSWER_AGAIN, message
        return (_T.ANSWER if waited else _T.LATE_ANSWER), message

    def _read_cloud(self, message: Any) -> tuple[Trigger, Any]:
        state, kind = self.state, type(message)
        if kind is EdgeTask:
            return (_T.TASK if state.phase is NEW else _T.TASK_AGAIN), message
        if kind is RoundClosed:
            return _T.CLOSED, message
        if kind is EdgeSumAck:
            return (_T.SUM_ACKED if message.part in state.outgoing else _T.STALE), message
        assert kind is Flush
        if state.phase is not COLLECTING or message.part != state.part:
            return _T.STALE, message
        if not message.go_on:
            return _T.FLUSH, message
        goes = len(state.outgoing) < PARTS_OUT_MAX and not state.splits
        return (_T.FLUSH_ON if goes else _T.STALE), message

    def _read_timer(self, name: str) -> Trigger:
        """A timer may fire once after it was cancelled, so each is good in its own phases only."""
        state = self.state
        if name == "sum" and state.outgoing:
            expired = self.now >= state.ends_ns + self.policy.sum_keep_ns
            return _T.EXPIRED if expired and state.phase is REPORTING else _T.SUM_UNANSWERED
        if state.phase is COLLECTING:
            if name == "progress" and state.progress_due:
                return _T.PROGRESS_DUE
            if name == "repeat":
                return _T.SILENT
            if name == "round" and self.now >= state.ends_ns:
                return _T.TIME_OVER
        return _T.STALE


def is_sane(message: EdgeTask) -> bool:
    """Whether the task keeps the limits that the contract states."""
    devices = list(message.devices)
    return (
        0 < len(devices) <= ports.DEVICES_PER_EDGE_MAX
        and all(a < b for a, b in pairwise(devices))
        and is_sane_task(message.task)
    )


def name_of(message: Any) -> str:
    """Which attempt a message belongs to."""
    return f"{message.run}.{message.round}.{message.attempt}"


def sum_bytes(task: Task) -> int:
    """Bytes of a running sum of the task's updates."""
    return ring.RingPlan.of(task.ring).nbytes


def upload_bytes(task: Task) -> int:
    """Bytes of what an Upload carries, at most."""
    sent = ring.RingPlan.of(task.ring).sent_bytes
    return sent + (SEEDS_BYTES_MAX if task.secure.helpers else 0)


def is_apart(message: EdgeTask) -> bool:
    """Whether the updates go up one by one. Masked ones never do: alone they are of no use."""
    return message.apart and not message.task.HasField("secure")


def needed_bytes(message: EdgeTask) -> int:
    """Bytes that the updates of an attempt may take here."""
    return sum_bytes(message.task) * (len(message.devices) if is_apart(message) else 1)


def status_of(answer: int, message: Upload | Failure) -> UploadStatus:
    """What becomes of a message of a device whose answer is known."""
    if answer == MISFIT:
        return REFUSED
    # An update that comes after its device has said that there is none is in no sum.
    in_no_sum = isinstance(message, Upload) and answer != IN_SUM
    return LATE if in_no_sum else COUNTED


def ack(message: Any, status: UploadStatus) -> ports.Send:
    """The answer to an answer, or to a message of its session."""
    return ports.Send(
        ports.Node(ports.Tier.DEVICE, message.device),
        UploadAck(
            run=message.run,
            round=message.round,
            attempt=message.attempt,
            device=message.device,
            status=status,
        ),
    )
