"""The device's protocol. Everything that decides what a device does next lives in this file; it
does not know whether a daemon or the simulator drives it, which algorithm it runs, or what a bundle
holds.

A device offers itself (CheckIn), waits in its edge's pool, takes one task at a time, fetches what
the task names and it has not got, trains, and uploads until the edge says that it has the answer or
the task's time is over. It repeats whatever may have been lost and does nothing twice: an answered
task is never taken again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from ..core import snapshot
from ..core.machine import IGNORE, Backoff, Machine, index, row
from ..core.ports import (
    BLOB_BYTES_MAX,
    DIMENSION_MAX,
    MS,
    PROTOCOL,
    SECOND,
    BlobStored,
    CancelProgram,
    DropBlob,
    Event,
    Masker,
    NewModel,
    Node,
    NoMask,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    ProtocolError,
    Received,
    Rng,
    RoundInfo,
    RunProgram,
    Started,
    StoreBlob,
    Tier,
    TimerFired,
    window,
    wire_size,
)
from ..core.streams import device_key
from ..core.wire.admission_pb2 import Accept, CheckIn, DeviceFacts, Eligibility, Reject
from ..core.wire.blob_pb2 import Blob, BlobRef, FetchBlob
from ..core.wire.round_pb2 import (
    DEADLINE,
    NON_FINITE,
    PROGRAM_FAILED,
    Failure,
    FailureReason,
    RoundClosed,
    Task,
    Upload,
    UploadAck,
)


class Phase(StrEnum):
    OFFLINE = "offline"
    IDLE = "idle"  # waits for the moment to come back
    CHECKING_IN = "checking in"
    READY = "ready"  # in the edge's pool
    FETCHING = "fetching"
    TRAINING = "training"
    UPLOADING = "uploading"


class Trigger(StrEnum):
    STARTED = "started"
    RETRY = "time to come back"
    UNANSWERED = "no answer yet"
    LEASE_OVER = "lease is over"
    ACCEPTED = "Accept"
    REJECTED = "Reject"
    TASK = "Task"
    BLOB = "Blob that is missing"
    STORED = "blob stored"
    CORRUPT = "blob does not hash to its digest"
    ALL_HERE = "nothing is missing"
    TRAINED = "finite update"
    UNFIT = "no update"
    ANSWERED = "UploadAck"
    TIME_OVER = "task's time is over"
    CLOSED = "RoundClosed"
    STALE = "late, repeated or of no use"


OFFLINE, IDLE, CHECKING_IN, READY, FETCHING, TRAINING, UPLOADING = Phase
_T = Trigger
_RESTING = (IDLE, CHECKING_IN, READY)
_WORKING = (FETCHING, TRAINING, UPLOADING)

TABLE = (
    row((OFFLINE, *_RESTING), _T.STARTED, "start", CHECKING_IN, "offer itself"),
    row((FETCHING, TRAINING), _T.STARTED, "restart", FETCHING, "train again from the start"),
    row(UPLOADING, _T.STARTED, "resume_upload", UPLOADING, "the answer survived; send it"),
    row(IDLE, _T.RETRY, "check_in", CHECKING_IN, "the retry window says so"),
    row(CHECKING_IN, _T.UNANSWERED, "repeat_check_in", CHECKING_IN, "request or answer was lost"),
    row(CHECKING_IN, _T.ACCEPTED, "wait", READY, "keep the lease and the next window"),
    row((CHECKING_IN, READY), _T.REJECTED, "rest", IDLE, "come back in the window"),
    row(READY, _T.LEASE_OVER, "check_in", CHECKING_IN, "the edge may have forgotten it"),
    row(_RESTING, _T.TASK, "take", FETCHING, "also when the Accept was lost"),
    row(FETCHING, _T.BLOB, "keep", FETCHING, "store it"),
    row(FETCHING, _T.STORED, "note", FETCHING, "one less is missing"),
    row(FETCHING, _T.CORRUPT, IGNORE, FETCHING, "the next repetition asks again"),
    row(FETCHING, _T.UNANSWERED, "fetch_again", FETCHING, "request or blob was lost"),
    row(FETCHING, _T.ALL_HERE, "train", TRAINING, "one call into compiled code"),
    row(TRAINING, _T.TRAINED, "upload", UPLOADING, "mask and send"),
    row(TRAINING, _T.UNFIT, "refuse", UPLOADING, "say that there is no update"),
    row(UPLOADING, _T.UNANSWERED, "send_answer", UPLOADING, "answer or its UploadAck was lost"),
    row(UPLOADING, _T.ANSWERED, "finish", IDLE, "the task is over, whatever the status"),
    row((FETCHING, TRAINING), _T.TIME_OVER, "give_up", IDLE, "say so once"),
    row(UPLOADING, _T.TIME_OVER, "abandon", IDLE, "nobody waits any more"),
    row(_WORKING, _T.CLOSED, "stop", IDLE, "it was not needed, or too slow"),
    row(tuple(Phase), _T.STALE, IGNORE, None, "count it"),
)


#: Of how many runs a device remembers its last task. A fleet runs a handful side by side.
RUNS_REMEMBERED = 16


@dataclass(slots=True)
class DeviceState:
    """All that a device remembers, as plain data.

    draws: random numbers drawn. tries: sendings of what is now being repeated. have: digests in the
    store. ends_ns: when the task's time is over. done: for each run the last (round, attempt)
    taken; neither it nor an earlier one is taken again.
    """

    device: int
    phase: Phase = OFFLINE
    sequence: int = 0
    draws: int = 0
    tries: int = 0
    task: Task | None = None
    ends_ns: int = 0
    ticket: int = 0
    have: list[bytes] = field(default_factory=list)
    upload: Upload | None = None
    upload_size: int = 0
    failure: Failure | None = None
    done: dict[int, tuple[int, int]] = field(default_factory=dict)
    after_task_ms: tuple[int, int] = (1_000, 5_000)


@dataclass(frozen=True, slots=True)
class DevicePolicy:
    """What a device's owner sets. `retry_ms`: the window where the edge gives none."""

    backoff: Backoff = field(default_factory=lambda: Backoff(2 * SECOND, 60 * SECOND, 16 * 1024))
    retry_ms: tuple[int, int] = (60_000, 300_000)


class DeviceMachine(Machine[DeviceState]):
    """One device. `edge` is the node that it speaks to."""

    rows = index(TABLE)

    def __init__(
        self,
        state: DeviceState,
        edge: Node,
        rng: Rng,
        facts: DeviceFacts,
        eligibility: Eligibility,
        masker: Masker | None = None,
        policy: DevicePolicy | None = None,
    ) -> None:
        super().__init__(state)
        self.node = Node(Tier.DEVICE, state.device)
        self.edge = edge
        self.rng = rng
        self.facts = facts
        self.eligibility = eligibility
        self.masker = masker or NoMask()
        self.policy = policy or DevicePolicy()

    def snapshot(self) -> bytes:
        """The state, to be stored."""
        return snapshot.dump(self.state)

    # ------------------------------------------------ reading events

    def read(self, event: Event) -> tuple[Trigger, Any]:
        match event:
            case Received(sender, message):
                if sender != self.edge:
                    raise ProtocolError(
                        f"{self.node}: a message from {sender}, not from {self.edge}"
                    )
                return self._read_message(message)
            case TimerFired(name):
                return self._read_timer(name), None
            case BlobStored(digest, intact):
                if digest not in self._missing():
                    return _T.STALE, None
                return (_T.STORED if intact else _T.CORRUPT), digest
            case ProgramFinished(ticket, outcome):
                if self.state.phase is not TRAINING or ticket != self.state.ticket:
                    return _T.STALE, None
                return self._read_outcome(outcome)
            case Started(stored):
                return _T.STARTED, stored

    def _read_message(self, message: Any) -> tuple[Trigger, Any]:
        state = self.state
        kind = type(message)
        if kind is Task:
            fresh = (message.round, message.attempt) > state.done.get(message.run, (0, 0))
            fits = fresh and state.phase in _RESTING and _sane(message)
            return (_T.TASK if fits else _T.STALE), message
        if kind is Blob:
            wanted = state.phase is FETCHING and message.digest in self._missing()
            return (_T.BLOB if wanted else _T.STALE), message
        if kind is RoundClosed:
            mine = state.phase in _WORKING and _name(message) == _name(self._task())
            return (_T.CLOSED if mine else _T.STALE), message
        if kind is UploadAck:
            if message.device != state.device:
                raise ProtocolError(f"{self.node}: an UploadAck for device {message.device}")
            mine = state.phase is UPLOADING and _name(message) == _name(self._task())
            return (_T.ANSWERED if mine else _T.STALE), message
        if kind is Accept:
            fits = state.phase is CHECKING_IN and message.sequence == state.sequence
            return (_T.ACCEPTED if fits else _T.STALE), message
        if kind is Reject:
            fits = state.phase in (CHECKING_IN, READY) and message.sequence == state.sequence
            return (_T.REJECTED if fits else _T.STALE), message
        raise ProtocolError(f"{self.node}: a device receives no {kind.__name__}")

    def _read_timer(self, name: str) -> Trigger:
        """A timer may fire once after it was cancelled, so each is good in its own phases only."""
        phase = self.state.phase
        if name == "retry" and phase is IDLE:
            return _T.RETRY
        if name == "repeat" and phase in (CHECKING_IN, FETCHING, UPLOADING):
            return _T.UNANSWERED
        if name == "lease" and phase is READY:
            return _T.LEASE_OVER
        if name == "task" and phase in _WORKING and self.now >= self.state.ends_ns:
            return _T.TIME_OVER
        return _T.STALE

    def _read_outcome(self, outcome: Outcome | NewModel | ProgramStopped) -> tuple[Trigger, Any]:
        match outcome:
            case ProgramStopped(reason):
                return _T.UNFIT, reason
            case Outcome(vector, _, _, finite):
                if not finite:
                    return _T.UNFIT, NON_FINITE
                if vector is None or len(vector) != self._task().ring.dimension + 1:
                    return _T.UNFIT, PROGRAM_FAILED
                return _T.TRAINED, vector
            case NewModel():
                return _T.UNFIT, PROGRAM_FAILED

    # ------------------------------------------------ checking in

    def start(self, stored: tuple[bytes, ...]) -> None:
        self.state.have = list(stored)
        self.check_in(None)

    def check_in(self, _: object) -> None:
        self.state.sequence += 1
        self.state.tries = 0
        self.repeat_check_in(None)

    def repeat_check_in(self, _: object) -> None:
        state = self.state
        self.send(
            self.edge,
            CheckIn(
                device=state.device,
                sequence=state.sequence,
                protocol=PROTOCOL,
                facts=self.facts,
                eligibility=self.eligibility,
            ),
        )
        self._repeat(0)

    def wait(self, message: Accept) -> None:
        self.state.after_task_ms = window(message.after_task)
        self.cancel_timer("repeat")
        self.set_timer("lease", self.now + message.lease_ms * MS)

    def rest(self, message: Reject) -> None:
        self.cancel_timer("repeat")
        self.cancel_timer("lease")
        asked = message.HasField("retry")
        self._come_back(window(message.retry) if asked else self.policy.retry_ms)

    # ------------------------------------------------ working

    def take(self, task: Task) -> None:
        state = self.state
        state.task = task
        state.done.pop(task.run, None)
        while len(state.done) >= RUNS_REMEMBERED:
            del state.done[next(iter(state.done))]
        state.done[task.run] = (task.round, task.attempt)
        state.ends_ns = self.now + task.time_ms * MS
        for name in ("repeat", "lease", "retry"):
            self.cancel_timer(name)
        wanted = (task.bundle.digest, task.weights.digest)
        for digest in state.have:
            if digest not in wanted:
                self.emit(DropBlob(digest))
        state.have = [d for d in state.have if d in wanted]
        self._begin()

    def restart(self, stored: tuple[bytes, ...]) -> None:
        self.state.have = list(stored)
        self._begin()

    def _begin(self) -> None:
        self.set_timer("task", self.state.ends_ns)
        self.state.tries = 0
        self.fetch_again(None)

    def fetch_again(self, _: object) -> None:
        missing = self._missing()
        if not missing:
            self.post(_T.ALL_HERE)
            return
        for digest in missing:
            self.send(self.edge, FetchBlob(digest=digest))
        self._repeat(sum(missing.values()))

    def keep(self, blob: Blob) -> None:
        self.emit(StoreBlob(blob))

    def note(self, digest: bytes) -> None:
        self.state.have.append(digest)
        if not self._missing():
            self.post(_T.ALL_HERE)

    def train(self, _: object) -> None:
        state, task = self.state, self._task()
        self.cancel_timer("repeat")
        state.ticket += 1
        key = np.array(device_key(task.rng_key, state.device), np.uint32)
        blobs = (task.bundle.digest, task.weights.digest)
        self.emit(RunProgram(state.ticket, "client_update", blobs, (key, task.ring)))

    def upload(self, vector: Any) -> None:
        task, device = self._task(), self.state.device
        info = RoundInfo(
            task.run, task.round, task.attempt, task.weights.digest, task.bundle.digest
        )
        masked = self.masker.mask(vector, info, device)
        upload = Upload(run=task.run, round=task.round, attempt=task.attempt, device=device)
        content = masked.astype("<u4", copy=False).tobytes()
        self.state.upload_size = wire_size(upload, len(content))
        upload.vector = content
        self.state.upload = upload
        self.resume_upload(None)

    def refuse(self, reason: FailureReason) -> None:
        self.state.failure = self._failure(reason)
        self.resume_upload(None)

    def resume_upload(self, _: object) -> None:
        self.set_timer("task", self.state.ends_ns)
        self.state.tries = 0
        self.send_answer(None)

    def send_answer(self, _: object) -> None:
        state = self.state
        if state.upload is not None:
            self.send(self.edge, state.upload, state.upload_size)
            self._repeat(state.upload_size)
        else:
            assert state.failure is not None
            self.send(self.edge, state.failure)
            self._repeat(0)

    # ------------------------------------------------ ending

    def finish(self, message: UploadAck) -> None:
        self.record("answered", device=self.state.device, status=int(message.status))
        self._end()

    def give_up(self, _: object) -> None:
        self.send(self.edge, self._failure(DEADLINE))
        self.stop(None)

    def stop(self, _: object) -> None:
        if self.state.phase is TRAINING:
            self.emit(CancelProgram(self.state.ticket))
        self.abandon(None)

    def abandon(self, _: object) -> None:
        self.record("abandoned", device=self.state.device, phase=self.state.phase.value)
        self._end()

    def _end(self) -> None:
        state = self.state
        # The weights are of no use after their round; the bundle serves the next.
        weights = self._task().weights.digest
        if weights in state.have:
            state.have.remove(weights)
            self.emit(DropBlob(weights))
        state.task = state.upload = state.failure = None
        self.cancel_timer("repeat")
        self.cancel_timer("task")
        self._come_back(state.after_task_ms)

    # ------------------------------------------------ of the task

    def _task(self) -> Task:
        assert self.state.task is not None
        return self.state.task

    def _missing(self) -> dict[bytes, int]:
        """Digest -> size of what the task names and the store has not got."""
        task = self.state.task
        if task is None:
            return {}
        have = self.state.have
        return {r.digest: r.size for r in (task.bundle, task.weights) if r.digest not in have}

    def _failure(self, reason: FailureReason) -> Failure:
        task = self._task()
        return Failure(
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            device=self.state.device,
            reason=reason,
        )

    def _repeat(self, size: int) -> None:
        self.state.tries += 1
        self.set_timer("repeat", self.now + self.policy.backoff.pause(self.state.tries, size))

    def _come_back(self, window_ms: tuple[int, int]) -> None:
        state, (low, high) = self.state, window_ms
        share = self.rng.unit("device retry", state.device, state.draws)
        state.draws += 1
        self.set_timer("retry", self.now + low * MS + int(share * (high - low) * MS))


def _name(message: Any) -> tuple[int, int, int]:
    """Which attempt a message belongs to."""
    return message.run, message.round, message.attempt


def _sane(task: Task) -> bool:
    """Whether the task keeps the limits that the contract states."""
    refs: tuple[BlobRef, ...] = (task.bundle, task.weights)
    return (
        0 < task.ring.dimension <= DIMENSION_MAX
        and len(task.rng_key) == 8
        and all(len(r.digest) == 32 and r.size <= BLOB_BYTES_MAX for r in refs)
    )


def restore(data: bytes) -> DeviceState:
    """The state that `DeviceMachine.snapshot` gave. Raises SnapshotError."""
    return snapshot.load(DeviceState, data)
