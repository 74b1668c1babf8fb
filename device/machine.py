"""The device's protocol. Everything that decides what a device does next lives in this file; it
does not know whether a daemon or the simulator drives it, which algorithm it runs, or what a bundle
holds.

A device offers itself (CheckIn), waits in its edge's pool, takes one task at a time, fetches what
the task names and it has not got, trains, and uploads until the edge says that it has the answer or
the task's time is over. It repeats whatever may have been lost and does nothing twice: an answered
task is never taken again.

It speaks to one edge at a time, its home. When the home gives no answer to several check-ins, or
sends it away for good, it goes to the next of its homes. While it works it stays with the home that
tasked it: nobody else waits for the answer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np

from ..core import snapshot
from ..core.machine import IGNORE, Machine, index, row
from ..core.ports import (
    MS,
    PROTOCOL,
    RETRY_MS_MAX,
    BlobStored,
    CancelProgram,
    DropBlob,
    Event,
    Masker,
    NewModel,
    Node,
    NoMask,
    Ordered,
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
from ..core.tasks import is_sane
from ..core.wire.admission_pb2 import (
    DRAINING,
    EDGE_FULL,
    Accept,
    CheckIn,
    DeviceFacts,
    Eligibility,
    Reject,
)
from ..core.wire.blob_pb2 import Blob, FetchBlob
from ..core.wire.journal_pb2 import Conditions, Homes
from ..core.wire.link_pb2 import NODE_CLOUD, NODE_EDGE
from ..core.wire.round_pb2 import (
    DEADLINE,
    EVALUATE,
    NON_FINITE,
    PROGRAM_FAILED,
    Failure,
    FailureReason,
    RoundClosed,
    Task,
    Upload,
    UploadAck,
)
from .state import BUNDLES_KEPT, HOMES_MAX, LEASE_MS_MIN, RUNS_REMEMBERED
from .state import DevicePolicy as DevicePolicy
from .state import DeviceState as DeviceState
from .state import Phase as Phase


class Trigger(StrEnum):
    STARTED = "started"
    RETRY = "time to come back"
    UNANSWERED = "no answer yet"
    HOME_SILENT = "no answer, too many times"
    LEASE_OVER = "lease is over"
    ACCEPTED = "Accept"
    REJECTED = "Reject"
    SENT_AWAY = "Reject: another home may take it"
    TASK = "Task"
    UNWANTED = "Task that it will not do"
    BLOB = "Blob that is missing"
    STORED = "blob stored"
    CORRUPT = "blob does not hash to its digest"
    ALL_HERE = "nothing is missing"
    TRAINED = "finite update"
    UNFIT = "no update"
    ANSWERED = "UploadAck"
    TIME_OVER = "task's time is over"
    CLOSED = "RoundClosed"
    CONDITIONS = "other conditions"
    CONSENT_LOST = "consent is taken back"
    HOMES = "other homes"
    HOME_GONE = "other homes, without the present one"
    STALE = "late, repeated or of no use"


OFFLINE, IDLE, CHECKING_IN, READY, FETCHING, TRAINING, UPLOADING = Phase
_T = Trigger
_RESTING = (IDLE, CHECKING_IN, READY)
_WORKING = (FETCHING, TRAINING, UPLOADING)
_OFFERED = (CHECKING_IN, READY)
_NOT_OFFERED = (OFFLINE, IDLE, *_WORKING)

TABLE = (
    row((OFFLINE, *_RESTING), _T.STARTED, "start", CHECKING_IN, "offer itself"),
    row((FETCHING, TRAINING), _T.STARTED, "restart", FETCHING, "train again from the start"),
    row(UPLOADING, _T.STARTED, "resume_upload", UPLOADING, "the answer survived; send it"),
    row(IDLE, _T.RETRY, "check_in", CHECKING_IN, "the retry window says so"),
    row(CHECKING_IN, _T.UNANSWERED, "repeat_check_in", CHECKING_IN, "request or answer was lost"),
    row(CHECKING_IN, _T.HOME_SILENT, "rehome", CHECKING_IN, "try the next home"),
    row(CHECKING_IN, _T.ACCEPTED, "wait", READY, "keep the lease and the next window"),
    row(_OFFERED, _T.REJECTED, "rest", IDLE, "come back in the window"),
    row(_OFFERED, _T.SENT_AWAY, "leave", IDLE, "try the next home in a moment"),
    row(READY, _T.LEASE_OVER, "check_in", CHECKING_IN, "the edge may have forgotten it"),
    row(_RESTING, _T.TASK, "take", FETCHING, "also when the Accept was lost"),
    row(_RESTING, _T.UNWANTED, "decline", None, "it is over already, or not allowed"),
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
    row(_NOT_OFFERED, _T.CONDITIONS, "keep_conditions", None, "for the next check-in"),
    row(_OFFERED, _T.CONDITIONS, "tell_conditions", CHECKING_IN, "its home must judge anew"),
    row(_WORKING, _T.CONSENT_LOST, "withdraw", IDLE, "stop at once, and say so once"),
    row((*_NOT_OFFERED, *_OFFERED), _T.HOMES, "keep_homes", None, "for the next move"),
    row(_OFFERED, _T.HOME_GONE, "leave_home", CHECKING_IN, "offer itself to the first of them"),
    row(tuple(Phase), _T.STALE, IGNORE, None, "count it"),
)


class DeviceMachine(Machine[DeviceState]):
    """One device.

    homes, facts, eligibility: what a device that has never run begins with; one that has finds
    them in its state and hears of changes by `Ordered`. So a driver stores the snapshot of a new
    machine before its first event.
    """

    rows = index(TABLE)

    def __init__(
        self,
        state: DeviceState,
        homes: tuple[Node, ...],
        rng: Rng,
        facts: DeviceFacts,
        eligibility: Eligibility,
        masker: Masker | None = None,
        policy: DevicePolicy | None = None,
    ) -> None:
        super().__init__(state)
        self.node = Node(Tier.DEVICE, state.device)
        self.rng = rng
        self.masker = masker or NoMask()
        self.policy = policy or DevicePolicy()
        if not state.homes:
            assert 0 < len(homes) <= HOMES_MAX and all(h.tier is Tier.EDGE for h in homes)
            state.homes = [h.number for h in homes]
            state.home = state.homes[0]
            state.facts, state.eligibility = facts, eligibility

    @property
    def home(self) -> Node:
        """The node that it speaks to."""
        return Node(Tier.EDGE, self.state.home)

    @property
    def wanted(self) -> dict[bytes, int]:
        """Digest -> size in bytes of the blobs that it would take now."""
        return self._missing() if self.state.phase is FETCHING else {}

    def snapshot(self) -> bytes:
        """The state, to be stored."""
        return snapshot.dump(self.state)

    # ------------------------------------------------ reading events

    def read(self, event: Event) -> tuple[Trigger, Any]:
        match event:
            case Received(sender, message):
                return self._read_sender(sender, message)
            case TimerFired(name):
                return self._read_timer(name), None
            case BlobStored(digest, intact):
                if digest not in self.wanted:
                    return _T.STALE, None
                return (_T.STORED if intact else _T.CORRUPT), digest
            case ProgramFinished(ticket, outcome):
                if self.state.phase is not TRAINING or ticket != self.state.ticket:
                    return _T.STALE, None
                return self._read_outcome(outcome)
            case Started(stored):
                return _T.STARTED, stored
            case Ordered(order):
                return self._read_order(order)

    def _read_sender(self, sender: Node, message: Any) -> tuple[Trigger, Any]:
        state = self.state
        if sender == self.home:
            return self._read_message(message)
        if sender.tier is Tier.EDGE and sender.number in (*state.homes, *state.former):
            return _T.STALE, message
        raise ProtocolError(f"{self.node}: a message from {sender}, which is none of its homes")

    def _read_message(self, message: Any) -> tuple[Trigger, Any]:
        state = self.state
        kind = type(message)
        if kind is Task:
            return self._read_task(message), message
        if kind is Blob:
            return (_T.BLOB if message.digest in self.wanted else _T.STALE), message
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
            if state.phase not in _OFFERED or message.sequence != state.sequence:
                return _T.STALE, message
            sent_on = message.reason in (DRAINING, EDGE_FULL) and len(state.homes) > 1
            return (_T.SENT_AWAY if sent_on else _T.REJECTED), message
        raise ProtocolError(f"{self.node}: a device receives no {kind.__name__}")

    def _read_task(self, task: Task) -> Trigger:
        state = self.state
        if state.phase not in _RESTING or not is_sane(task):
            return _T.STALE
        at, last = (task.round, task.attempt), state.done.get(task.run, (0, 0))
        if at < last:
            return _T.STALE
        # Whoever sends again what was done still waits for an answer: the last one was lost.
        return _T.TASK if at > last and state.eligibility.consented else _T.UNWANTED

    def _read_timer(self, name: str) -> Trigger:
        """A timer may fire once after it was cancelled, so each is good in its own phases only."""
        state, phase = self.state, self.state.phase
        if name == "retry" and phase is IDLE:
            return _T.RETRY
        if name == "repeat" and phase is CHECKING_IN:
            enough = state.tries > 0 and state.tries % self.policy.rehome_tries == 0
            return _T.HOME_SILENT if enough and len(state.homes) > 1 else _T.UNANSWERED
        if name == "repeat" and phase in (FETCHING, UPLOADING):
            return _T.UNANSWERED
        if name == "lease" and phase is READY:
            return _T.LEASE_OVER
        if name == "task" and phase in _WORKING and self.now >= state.ends_ns:
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

    def _read_order(self, order: Any) -> tuple[Trigger, Any]:
        state, phase = self.state, self.state.phase
        if isinstance(order, Conditions):
            if (order.facts, order.eligibility) == (state.facts, state.eligibility):
                return _T.STALE, order
            if phase in _WORKING and not order.eligibility.consented:
                return _T.CONSENT_LOST, order
            return _T.CONDITIONS, order
        if isinstance(order, Homes):
            homes = _edges(order)
            if not 0 < len(homes) <= HOMES_MAX:
                raise ProtocolError(f"{self.node}: a device has 1 to {HOMES_MAX} different homes")
            if homes == state.homes:
                return _T.STALE, order
            gone = phase in _OFFERED and state.home not in homes
            return (_T.HOME_GONE if gone else _T.HOMES), homes
        raise ProtocolError(f"{self.node}: a device takes no {type(order).__name__} as an order")

    # ------------------------------------------------ checking in

    def start(self, stored: tuple[bytes, ...]) -> None:
        self.state.have = list(stored)
        self.check_in(None)

    def check_in(self, _: object) -> None:
        state = self.state
        if state.home not in state.homes:
            self._move(state.homes[0])
        state.sequence += 1
        state.tries = 0
        self.repeat_check_in(None)

    def repeat_check_in(self, _: object) -> None:
        state = self.state
        self.send(
            self.home,
            CheckIn(
                device=state.device,
                sequence=state.sequence,
                protocol=PROTOCOL,
                facts=state.facts,
                eligibility=state.eligibility,
            ),
        )
        self._repeat(0)

    def wait(self, message: Accept) -> None:
        state = self.state
        state.after_task_ms = window(message.after_task)
        state.turned_away = 0
        self.cancel_timer("repeat")
        lease_ms = min(max(message.lease_ms, LEASE_MS_MIN), RETRY_MS_MAX)
        self.set_timer("lease", self.now + lease_ms * MS)

    def rest(self, message: Reject) -> None:
        self.state.turned_away = 0
        self._withdraw_offer()
        self._come_back(self._retry(message))

    # ------------------------------------------------ changing homes

    def rehome(self, _: object) -> None:
        # The pauses go on growing: when all homes are silent, it is not they that are missing.
        self._move_on()
        self.state.sequence += 1
        self.repeat_check_in(None)

    def leave(self, message: Reject) -> None:
        state = self.state
        state.turned_away += 1
        self._withdraw_offer()
        self._move_on()
        if state.turned_away < len(state.homes):
            self._come_back(self.policy.rehome_ms)
        else:
            # Nobody takes it: as after any other Reject.
            state.turned_away = 0
            self._come_back(self._retry(message))

    def keep_homes(self, homes: list[int]) -> None:
        state = self.state
        left = dict.fromkeys([*state.former, *state.homes, state.home])
        state.former = [h for h in left if h not in homes][-HOMES_MAX:]
        state.homes, state.turned_away = homes, 0

    def leave_home(self, homes: list[int]) -> None:
        self._withdraw_offer()
        self.keep_homes(homes)
        self.check_in(None)

    def keep_conditions(self, order: Conditions) -> None:
        self.state.facts, self.state.eligibility = order.facts, order.eligibility

    def tell_conditions(self, order: Conditions) -> None:
        self._withdraw_offer()
        self.keep_conditions(order)
        self.check_in(None)

    def _move_on(self) -> None:
        state = self.state
        at = state.homes.index(state.home) if state.home in state.homes else -1
        self._move(state.homes[(at + 1) % len(state.homes)])

    def _move(self, home: int) -> None:
        self.state.home = home
        self.record("rehomed", device=self.state.device, home=home)

    def _withdraw_offer(self) -> None:
        self.cancel_timer("repeat")
        self.cancel_timer("lease")

    def _retry(self, message: Reject) -> tuple[int, int]:
        return window(message.retry) if message.HasField("retry") else self.policy.retry_ms

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
        bundle = task.bundle.digest
        state.bundles = [*(b for b in state.bundles if b != bundle), bundle][-BUNDLES_KEPT:]
        wanted = (*state.bundles, task.weights.digest)
        for digest in state.have:
            if digest not in wanted:
                self.emit(DropBlob(digest))
        state.have = [d for d in state.have if d in wanted]
        self._begin()

    def decline(self, task: Task) -> None:
        over = self.state.eligibility.consented
        self.send(self.home, self._failure(task, DEADLINE if over else PROGRAM_FAILED))

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
            self.send(self.home, FetchBlob(digest=digest))
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
        program = "evaluate" if task.purpose == EVALUATE else "client_update"
        blobs = (task.bundle.digest, task.weights.digest)
        self.emit(RunProgram(state.ticket, program, blobs, (key, task.ring), task))

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
        self.state.failure = self._failure(self._task(), reason)
        self.resume_upload(None)

    def resume_upload(self, _: object) -> None:
        self.set_timer("task", self.state.ends_ns)
        self.state.tries = 0
        self.send_answer(None)

    def send_answer(self, _: object) -> None:
        state = self.state
        if state.upload is not None:
            self.send(self.home, state.upload, state.upload_size)
            self._repeat(state.upload_size)
        else:
            assert state.failure is not None
            self.send(self.home, state.failure)
            self._repeat(0)

    # ------------------------------------------------ ending

    def finish(self, message: UploadAck) -> None:
        self.record(
            "answered",
            device=self.state.device,
            run=message.run,
            round=message.round,
            attempt=message.attempt,
            status=int(message.status),
        )
        self._end()

    def give_up(self, _: object) -> None:
        self.send(self.home, self._failure(self._task(), DEADLINE))
        self.stop(None)

    def withdraw(self, order: Conditions) -> None:
        self.keep_conditions(order)
        self.send(self.home, self._failure(self._task(), PROGRAM_FAILED))
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
        if weights in state.have and weights not in state.bundles:
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

    def _failure(self, task: Task, reason: FailureReason) -> Failure:
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


def _edges(order: Homes) -> list[int]:
    """The homes' numbers, each once. The cloud gathers as edge 0."""
    numbers = [0 if h.tier == NODE_CLOUD else h.number for h in order.homes]
    known = all(h.tier in (NODE_EDGE, NODE_CLOUD) for h in order.homes)
    return list(dict.fromkeys(numbers)) if known else []


def restore(data: bytes) -> DeviceState:
    """The state that `DeviceMachine.snapshot` gave. Raises SnapshotError."""
    return snapshot.load(DeviceState, data)
