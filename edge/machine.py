"""The edge's protocol. Everything that decides what an edge does next lives in this file; it cannot
read an update, for it only adds vectors of the ring, and it does not know what a device trains or
which round comes next.

An edge keeps a pool of devices that checked in and tells the cloud who is in it (EdgeHello). A task
from the cloud goes to the devices that it names; bundle and weights are fetched once and served to
all of them. Updates are added to one running sum as they come: the memory that a round takes does
not depend on how many devices take part. The sum goes up when all have answered, when the cloud
asks, or when time is over, and is repeated until the cloud has it.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Any

import numpy as np

from ..core import snapshot
from ..core.machine import IGNORE, Machine, index, row
from ..core.ports import (
    CLOUD,
    DEVICES_PER_EDGE_MAX,
    DIMENSION_MAX,
    MS,
    PROTOCOL,
    BlobStored,
    DropBlob,
    Event,
    Node,
    ProtocolError,
    Received,
    SendBlob,
    Started,
    StoreBlob,
    Tier,
    TimerFired,
    wire_size,
)
from ..core.privacy import ring
from ..core.wire.admission_pb2 import CheckIn, EdgeHello, Pace, Reject
from ..core.wire.blob_pb2 import Blob, FetchBlob
from ..core.wire.round_pb2 import (
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
    Flush,
    RoundClosed,
    Task,
    Upload,
    UploadAck,
    UploadStatus,
)
from . import pool
from .state import IN_SUM, EdgePolicy, EdgeState, Phase


class Trigger(StrEnum):
    STARTED = "started"
    CHECK_IN = "CheckIn"
    CHECK_IN_TASKED = "CheckIn of a device that has a task"
    PACE = "Pace"
    HELLO_DUE = "time for an EdgeHello"
    FETCH = "FetchBlob"
    BLOB = "Blob that is missing"
    STORED = "blob stored"
    CORRUPT = "blob does not hash to its digest"
    FETCH_DUE = "blob still missing"
    TASK = "EdgeTask, newer than what is at hand"
    TASK_AGAIN = "EdgeTask again"
    SILENT = "devices still silent"
    ANSWER = "first answer of a device"
    ANSWER_AGAIN = "answer again"
    LATE_ANSWER = "answer to no open task"
    PROGRESS_DUE = "time for an EdgeProgress"
    ALL_ANSWERED = "all have answered"
    FLUSH = "Flush"
    TIME_OVER = "time is over"
    SUM_UNANSWERED = "sum not acknowledged yet"
    SUM_ACKED = "EdgeSumAck"
    CLOSED = "RoundClosed"
    STALE = "late, repeated or of no use"


OFFLINE, GATHERING, COLLECTING, REPORTING = Phase
_T = Trigger
_ON = (GATHERING, COLLECTING, REPORTING)

TABLE = (
    row(OFFLINE, _T.STARTED, "start", GATHERING, "say hello"),
    row(_ON, _T.STARTED, "restart", None, "the state survived: set the timers again"),
    row(_ON, _T.CHECK_IN, "admit", None, "Accept or Reject"),
    row(COLLECTING, _T.CHECK_IN_TASKED, "task_one", COLLECTING, "it missed the task"),
    row(_ON, _T.PACE, "keep_pace", None, "how many devices, and when they come back"),
    row(_ON, _T.HELLO_DUE, "hello", None, "the pool changed, or a heartbeat"),
    row(_ON, _T.FETCH, "serve", None, "send it, or when it is here"),
    row(_ON, _T.BLOB, "keep", None, "store it"),
    row(_ON, _T.STORED, "serve_waiting", None, "send it to all who asked"),
    row(_ON, _T.CORRUPT, IGNORE, None, "the next repetition asks again"),
    row(_ON, _T.FETCH_DUE, "fetch_again", None, "request or blob was lost"),
    row(_ON, _T.TASK, "open", COLLECTING, "drop what was at hand; task the devices"),
    row((COLLECTING, REPORTING), _T.TASK_AGAIN, "progress", None, "the cloud missed the answer"),
    row(COLLECTING, _T.SILENT, "task_again", COLLECTING, "task or sign of life was lost"),
    row(COLLECTING, _T.ANSWER, "count", COLLECTING, "add it to the sum"),
    row(_ON, _T.ANSWER_AGAIN, "ack_again", None, "the UploadAck was lost"),
    row(_ON, _T.LATE_ANSWER, "ack_late", None, "it is in no sum"),
    row(COLLECTING, _T.PROGRESS_DUE, "progress", COLLECTING, "answers came"),
    row(COLLECTING, _T.ALL_ANSWERED, "report", REPORTING, "send the sum"),
    row(COLLECTING, _T.FLUSH, "report", REPORTING, "the cloud has enough"),
    row(COLLECTING, _T.TIME_OVER, "report", REPORTING, "whoever is missing is late"),
    row(REPORTING, _T.SUM_UNANSWERED, "send_sum", REPORTING, "sum or EdgeSumAck was lost"),
    row(REPORTING, _T.SUM_ACKED, "forget", GATHERING, "the cloud has it"),
    row(_ON, _T.CLOSED, "close", GATHERING, "its weights are of no use any more"),
    row(tuple(Phase), _T.STALE, IGNORE, None, "count it"),
)


class EdgeMachine(Machine[EdgeState]):
    """One edge."""

    rows = index(TABLE)

    def __init__(self, state: EdgeState, policy: EdgePolicy | None = None) -> None:
        super().__init__(state)
        self.node = Node(Tier.EDGE, state.edge)
        self.policy = policy or EdgePolicy()

    def snapshot(self) -> bytes:
        """The state, to be stored."""
        return snapshot.dump(self.state)

    # ------------------------------------------------ reading events

    def read(self, event: Event) -> tuple[Trigger, Any]:
        match event:
            case Received(sender, message):
                if sender.tier is Tier.DEVICE:
                    return self._read_device(sender, message)
                if sender == CLOUD:
                    return self._read_cloud(message)
                raise ProtocolError(f"{self.node}: a message from {sender}")
            case TimerFired(name):
                return self._read_timer(name), None
            case BlobStored(digest, intact):
                if digest not in self._missing():
                    return _T.STALE, None
                return (_T.STORED if intact else _T.CORRUPT), digest
            case Started(stored):
                return _T.STARTED, stored
        raise AssertionError(f"an edge runs no programs: {event}")

    def _read_device(self, sender: Node, message: Any) -> tuple[Trigger, Any]:
        kind = type(message)
        if kind is FetchBlob:
            return _T.FETCH, (sender, message)
        if kind not in (CheckIn, Upload, Failure):
            raise ProtocolError(f"{self.node}: a device sends no {kind.__name__}")
        if message.device != sender.number:
            raise ProtocolError(f"{self.node}: {sender} names itself device {message.device}")
        state, device = self.state, sender.number
        if kind is CheckIn:
            tasked = state.phase is COLLECTING and device in state.waiting
            return (_T.CHECK_IN_TASKED if tasked else _T.CHECK_IN), message
        if device in state.answers and _name(message) == state.answers_of:
            return _T.ANSWER_AGAIN, message
        if state.phase is COLLECTING and device in state.waiting and self._is_open(message):
            return _T.ANSWER, message
        return _T.LATE_ANSWER, message

    def _read_cloud(self, message: Any) -> tuple[Trigger, Any]:
        kind, phase = type(message), self.state.phase
        if kind is Pace:
            return _T.PACE, message
        if kind is Blob:
            return (_T.BLOB if message.digest in self._missing() else _T.STALE), message
        if kind is EdgeTask:
            if self._is_open(message.task):
                return _T.TASK_AGAIN, None
            at, newest = (message.task.round, message.task.attempt), self.state.newest
            fresh = at > newest.get(message.task.run, (0, 0))
            return (_T.TASK if fresh and _sane(message) else _T.STALE), message
        if kind not in (Flush, EdgeSumAck, RoundClosed):
            raise ProtocolError(f"{self.node}: the cloud sends no {kind.__name__}")
        if kind is RoundClosed:
            last = _name(message) == self.state.answers_of
            return (_T.CLOSED if last else _T.STALE), message
        if not self._is_open(message):
            return _T.STALE, None
        if kind is Flush:
            return (_T.FLUSH if phase is COLLECTING else _T.STALE), None
        return (_T.SUM_ACKED if phase is REPORTING else _T.STALE), None

    def _read_timer(self, name: str) -> Trigger:
        """A timer may fire once after it was cancelled, so each is good in its own phases only."""
        state = self.state
        if name == "hello":
            return _T.HELLO_DUE
        if name == "fetch" and self._missing():
            return _T.FETCH_DUE
        if name == "progress" and state.phase is COLLECTING:
            return _T.PROGRESS_DUE
        if name == "repeat" and state.phase is COLLECTING:
            return _T.SILENT
        if name == "repeat" and state.phase is REPORTING:
            return _T.SUM_UNANSWERED
        if name == "round" and state.phase is COLLECTING and self.now >= state.ends_ns:
            return _T.TIME_OVER
        return _T.STALE

    def _is_open(self, message: Any) -> bool:
        """Whether a message belongs to the attempt at hand."""
        task = self.state.task
        return task is not None and _name(message) == _name(task.task)

    # ------------------------------------------------ the pool

    def start(self, stored: tuple[bytes, ...]) -> None:
        self.state.have = list(stored)
        self.hello(None)

    def restart(self, stored: tuple[bytes, ...]) -> None:
        state = self.state
        self.start(stored)
        self.set_timer("round", state.ends_ns)
        state.tries = 0
        if state.phase is COLLECTING:
            self._repeat(self.policy.backoff.first_ns)
        if state.phase is REPORTING:
            self.send_sum(None)
        if self._missing():
            self.fetch_again(None)

    def hello(self, _: object) -> None:
        state = self.state
        for device in [d for d, ends in state.pool.items() if ends <= self.now]:
            del state.pool[device]
        state.hello_sequence += 1
        self.send(
            CLOUD,
            EdgeHello(
                edge=state.edge,
                incarnation=state.incarnation,
                sequence=state.hello_sequence,
                protocol=PROTOCOL,
                ready=sorted(state.pool),
                devices_max=self.policy.devices_max,
                asks_pace=state.pace is None,
            ),
        )
        self._hello_at(self.policy.heartbeat_ns)

    def keep_pace(self, pace: Pace) -> None:
        self.state.pace = pace

    def admit(self, message: CheckIn) -> None:
        if pool.is_old(self.state, message):
            self.ignore(_T.STALE)
            return
        known = message.device in self.state.pool
        answer = pool.admit(self.state, self.policy, message, self.now)
        self.send(Node(Tier.DEVICE, message.device), answer)
        if isinstance(answer, Reject):
            self.record("rejected", device=message.device, reason=int(answer.reason))
        if known != (message.device in self.state.pool):
            self._hello_soon()

    def task_one(self, message: CheckIn) -> None:
        self._send_task([message.device])

    def _hello_soon(self) -> None:
        soon = self.now + self.policy.hello_delay_ns
        if not self.now < self.state.hello_at_ns <= soon:
            self._hello_at(self.policy.hello_delay_ns)

    def _hello_at(self, delay_ns: int) -> None:
        self.state.hello_at_ns = self.now + delay_ns
        self.set_timer("hello", self.state.hello_at_ns)

    # ------------------------------------------------ blobs

    def serve(self, subject: tuple[Node, FetchBlob]) -> None:
        sender, message = subject
        state, digest = self.state, message.digest
        if sender.number in state.waiting:
            state.waiting[sender.number] = True
        if digest in state.have:
            self.emit(SendBlob(sender, digest))
        elif digest in self._missing():
            askers = state.asked.setdefault(digest, [])
            if sender.number not in askers:
                askers.append(sender.number)
        else:
            self.ignore(_T.STALE)

    def keep(self, blob: Blob) -> None:
        self.emit(StoreBlob(blob))

    def serve_waiting(self, digest: bytes) -> None:
        state = self.state
        state.have.append(digest)
        for device in state.asked.pop(digest, []):
            self.emit(SendBlob(Node(Tier.DEVICE, device), digest))
        if not self._missing():
            self.cancel_timer("fetch")

    def fetch_again(self, _: object) -> None:
        missing = self._missing()
        for digest in missing:
            self.send(CLOUD, FetchBlob(digest=digest))
        self.state.fetch_tries += 1
        pause = self.policy.backoff.pause(self.state.fetch_tries, sum(missing.values()))
        self.set_timer("fetch", self.now + pause)

    def _missing(self) -> dict[bytes, int]:
        """Digest -> size of what the task names and the store has not got."""
        if self.state.task is None:
            return {}
        task, have = self.state.task.task, self.state.have
        return {r.digest: r.size for r in (task.bundle, task.weights) if r.digest not in have}

    # ------------------------------------------------ a round

    def open(self, message: EdgeTask) -> None:
        state, task = self.state, message.task
        if state.task is not None:
            self._clear()
        state.task = message
        state.answers, state.answers_of = {}, _name(task)
        state.weights = task.weights.digest
        state.newest[task.run] = (task.round, task.attempt)
        wanted = (task.bundle.digest, task.weights.digest)
        for digest in state.have:
            if digest not in wanted:
                self.emit(DropBlob(digest))
        state.have = [d for d in state.have if d in wanted]
        # Half of the margin is for the devices' last uploads, half for the sum's way up.
        patience_ms = (task.time_ms + max(message.time_ms, task.time_ms)) // 2
        state.opened_ns = self.now
        state.ends_ns = self.now + patience_ms * MS
        self.set_timer("round", state.ends_ns)
        for device in message.devices:
            # One that is not in the pool any more would not answer: it is not waited for.
            if state.pool.pop(device, None) is not None:
                state.waiting[device] = False
                self.send(Node(Tier.DEVICE, device), task)
        self._hello_soon()
        self.progress(None)
        state.fetch_tries = 0
        if self._missing():
            self.fetch_again(None)
        self._repeat(self.policy.backoff.first_ns)
        if not state.waiting:
            self.post(_T.ALL_ANSWERED)

    def task_again(self, _: object) -> None:
        silent = [d for d, alive in self.state.waiting.items() if not alive]
        self._send_task(silent)
        if silent:
            self._repeat(0)

    def _send_task(self, devices: list[int]) -> None:
        """Repeats the task, with what is left of its time."""
        state, message = self.state, self.state.task
        assert message is not None
        left_ms = message.task.time_ms - (self.now - state.opened_ns) // MS
        if left_ms <= 0:
            return
        task = Task()
        task.CopyFrom(message.task)
        task.time_ms = left_ms
        for device in devices:
            self.send(Node(Tier.DEVICE, device), task)

    def count(self, message: Upload | Failure) -> None:
        state, device = self.state, message.device
        assert state.task is not None
        del state.waiting[device]
        status: UploadStatus = COUNTED
        if isinstance(message, Failure):
            state.answers[device] = message.reason or PROGRAM_FAILED
        elif self._add(message.vector):
            state.answers[device] = IN_SUM
        else:
            state.answers[device] = PROGRAM_FAILED
            status = REFUSED
        self._ack(message, status)
        if not state.waiting:
            self.post(_T.ALL_ANSWERED)
        elif not state.progress_due:
            state.progress_due = True
            self.set_timer("progress", self.now + self.policy.progress_delay_ns)

    def _add(self, content: bytes) -> bool:
        """Adds a masked update to the running sum; False when it has another length."""
        state = self.state
        assert state.task is not None
        length = state.task.task.ring.dimension + 1
        if len(content) != 4 * length:
            return False
        vector = np.frombuffer(content, "<u4")
        if state.total is None:
            state.total = vector.astype(np.uint32)
        else:
            ring.add(state.total, vector)
        return True

    def progress(self, _: object) -> None:
        state = self.state
        assert state.task is not None
        task = state.task.task
        state.progress_due = False
        self.send(
            CLOUD,
            EdgeProgress(
                run=task.run,
                round=task.round,
                attempt=task.attempt,
                edge=state.edge,
                counted=self._counted(),
            ),
        )

    def _counted(self) -> int:
        return sum(1 for reason in self.state.answers.values() if reason == IN_SUM)

    def report(self, _: object) -> None:
        state = self.state
        assert state.task is not None
        task = state.task.task
        answers = sorted(state.answers.items())
        devices = [d for d, reason in answers if reason == IN_SUM]
        outgoing = EdgeSum(
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            edge=state.edge,
            devices=devices,
            count=len(devices),
            failures=[
                DeviceFailure(device=d, reason=r)  # type: ignore[arg-type]
                for d, r in answers
                if r != IN_SUM
            ],
        )
        total = b"" if state.total is None else state.total.astype("<u4", copy=False).tobytes()
        state.total = None
        state.outgoing_size = wire_size(outgoing, len(total))
        outgoing.sum = total
        state.outgoing = outgoing
        over = RoundClosed(run=task.run, round=task.round, attempt=task.attempt)
        for device in state.waiting:
            self.send(Node(Tier.DEVICE, device), over)
        state.waiting = {}
        for name in ("round", "progress"):
            self.cancel_timer(name)
        state.tries = 0
        self.send_sum(None)

    def send_sum(self, _: object) -> None:
        state = self.state
        assert state.outgoing is not None
        self.send(CLOUD, state.outgoing, state.outgoing_size)
        self._repeat(0, state.outgoing_size)

    def forget(self, _: object) -> None:
        self._clear()

    def close(self, message: RoundClosed) -> None:
        state = self.state
        if state.task is not None:
            self._clear()
        # After a round that failed the same weights are asked for again.
        if message.succeeded and state.weights in state.have:
            state.have.remove(state.weights)
            self.emit(DropBlob(state.weights))

    def _clear(self) -> None:
        """Forgets the attempt, but for who answered: a repeated answer is not a late one."""
        state = self.state
        state.task = state.total = state.outgoing = None
        state.waiting, state.asked = {}, {}
        state.progress_due = False
        for name in ("round", "progress", "repeat", "fetch"):
            self.cancel_timer(name)

    # ------------------------------------------------ answers

    def ack_again(self, message: Upload | Failure) -> None:
        self._ack(message, COUNTED)
        self.record("duplicate", device=message.device)

    def ack_late(self, message: Upload | Failure) -> None:
        self._ack(message, LATE)
        if isinstance(message, Upload):
            self.record("late", device=message.device, round=message.round, attempt=message.attempt)

    def _ack(self, message: Upload | Failure, status: UploadStatus) -> None:
        self.send(
            Node(Tier.DEVICE, message.device),
            UploadAck(
                run=message.run,
                round=message.round,
                attempt=message.attempt,
                device=message.device,
                status=status,
            ),
        )

    def _repeat(self, at_least_ns: int, size: int = 0) -> None:
        self.state.tries += 1
        pause = self.policy.backoff.pause(self.state.tries, size)
        self.set_timer("repeat", self.now + max(pause, at_least_ns))


def _name(message: Any) -> tuple[int, int, int]:
    """Which attempt a message belongs to."""
    return message.run, message.round, message.attempt


def _sane(message: EdgeTask) -> bool:
    """Whether the task keeps the limits that the contract states."""
    task, devices = message.task, list(message.devices)
    return (
        0 < len(devices) <= DEVICES_PER_EDGE_MAX
        and all(a < b for a, b in pairwise(devices))
        and 0 < task.ring.dimension <= DIMENSION_MAX
    )


def restore(data: bytes) -> EdgeState:
    """The state that `EdgeMachine.snapshot` gave. Raises SnapshotError."""
    return snapshot.load(EdgeState, data)
