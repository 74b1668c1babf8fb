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

from typing import Any

import numpy as np

from ...core.privacy.mechanisms.post_processing import finished
from ...core.privacy.mechanisms.ring import RingPlan, carried
from ...core.privacy.mechanisms.sparse import sent
from ...core.privacy.secagg import messages
from ...core.privacy.secagg.member_identity import Identity
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.privacy.task_limits import is_sane, left_ms
from ...core.protocol import snapshot
from ...core.protocol.machine import index
from ...core.protocol.ports import (
    MS,
    PROTOCOL,
    RETRY_MS_MAX,
    BlobStored,
    CancelProgram,
    DropBlob,
    Event,
    NewModel,
    Node,
    Ordered,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    ProtocolError,
    Received,
    Rng,
    RunProgram,
    Started,
    StoreBlob,
    Tier,
    TimerFired,
    Vector,
    window,
    wire_size,
)
from ...core.protocol.random_streams import device_key
from ...core.protocol.run_names import least_useful
from ...core.wire.admission_pb2 import (
    DRAINING,
    EDGE_FULL,
    WORK_CAME,
    Accept,
    CheckIn,
    DeviceFacts,
    Eligibility,
    Reject,
)
from ...core.wire.blob_pb2 import Blob, FetchBlob
from ...core.wire.journal_pb2 import Conditions, Connected, Homes
from ...core.wire.round_pb2 import (
    COUNTED,
    DEADLINE,
    EVALUATE,
    NON_FINITE,
    PROGRAM_FAILED,
    FailureReason,
    RoundClosed,
    Task,
    Upload,
    UploadAck,
)
from .device_state import BUNDLES_KEPT, HOMES_MAX, LEASE_MS_MIN, RUNS_REMEMBERED
from .device_state import DevicePolicy as DevicePolicy
from .device_state import DeviceState as DeviceState
from .device_state import Phase as Phase
from .homes import edge_of, edges_of
from .one_shot_session import HelpedMachine
from .secure_session import NOTICES, SECRET_BYTES
from .table import (
    CHECKING_IN,
    FETCHING,
    IDLE,
    OFFERED,
    READY,
    RESTING,
    SEALING,
    TRAINING,
    UNMASKING,
    UPLOADING,
    WORKING,
)
from .table import TABLE as TABLE
from .table import Trigger as Trigger

_T = Trigger


class DeviceMachine(HelpedMachine):
    """One device.

    homes, facts, eligibility, secret: what a device that has never run begins with; one that has
    finds them in its state and hears of changes by `Ordered`. So a driver stores the snapshot of a
    new machine before its first event. secret: 32 random bytes, of which all its masks are made.
    identity: signs for it, and verifies the coordinator's signature on tasks; None: it takes no
    task whose updates are masked, and cannot tell who made the others. key_secret: 32 random bytes
    of which its random keys are made; empty: it is simulated, and they follow from its number.
    """

    rows = index(TABLE)

    def __init__(
        self,
        state: DeviceState,
        homes: tuple[Node, ...],
        rng: Rng,
        facts: DeviceFacts,
        eligibility: Eligibility,
        policy: DevicePolicy | None = None,
        secret: bytes = b"",
        identity: Identity | None = None,
        key_secret: bytes = b"",
    ) -> None:
        super().__init__(state)
        self.node = Node(Tier.DEVICE, state.device)
        self.rng = rng
        self.policy = policy or DevicePolicy()
        self.identity = identity
        self._key_secret = key_secret
        if not state.homes:
            assert 0 < len(homes) <= HOMES_MAX and all(h.tier is Tier.EDGE for h in homes)
            state.homes = [h.number for h in homes]
            state.home = state.homes[0]
            state.facts, state.eligibility = facts, eligibility
        if not state.secret:
            assert identity is None or len(secret) == SECRET_BYTES, "masks need a secret"
            state.secret = secret

    @property
    def wanted(self) -> dict[bytes, int]:
        """Digest -> size in bytes of the blobs that it would take now."""
        return self._missing() if self.state.phase is FETCHING else {}

    def snapshot(self) -> bytes:
        """The state, to be stored."""
        return snapshot.dump(self.state)

    # ------------------------------------------------ reading events

    def read(self, event: Event) -> tuple[Trigger, Any]:
        if isinstance(event, Received):  # most are, and a case takes five times as long
            return self._read_sender(event.sender, event.message)
        match event:
            case TimerFired(name):
                return self._read_timer(name), None
            case BlobStored(digest, intact):
                if digest not in self.wanted:
                    gone = not intact and digest in self.state.have
                    return (_T.BLOB_GONE if gone else _T.STALE), digest
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
        if sender.number == state.home and sender.tier is Tier.EDGE:
            return self._read_message(message)
        if state.phase is UNMASKING and sender.number in state.homes:
            return self._read_message(message)  # a word on its way before it went elsewhere
        if sender.tier is Tier.EDGE and sender.number in (*state.homes, *state.former):
            return _T.STALE, message
        raise ProtocolError(f"{self.node}: a message from {sender}, which is none of its homes")

    def _read_message(self, message: Any) -> tuple[Trigger, Any]:
        state = self.state
        kind = type(message)
        if kind is Task:
            return self._read_task(message)
        if kind is Blob:
            return (_T.BLOB if message.digest in self.wanted else _T.STALE), message
        works = state.phase in (*WORKING, UNMASKING)
        if kind is RoundClosed:
            mine = works and _name(message) == _name(self._task())
            return (_T.CLOSED if mine else _T.STALE), message
        if kind is UploadAck or kind in messages.DOWN:
            if message.device != state.device:
                raise ProtocolError(f"{self.node}: a {kind.__name__} for device {message.device}")
            mine = works and _name(message) == _name(self._task())
            if kind is UploadAck:
                return (self._read_ack(message) if mine else _T.STALE), message
            return (_T.SESSION if mine and state.session is not None else _T.STALE), message
        if kind is Accept:
            fits = state.phase is CHECKING_IN and message.sequence == state.sequence
            return (_T.ACCEPTED if fits else _T.STALE), message
        if kind is Reject:
            if message.sequence != state.sequence:
                return _T.STALE, message
            if message.reason == WORK_CAME:
                return (_T.WORK_CAME if state.phase is IDLE else _T.STALE), message
            if state.phase not in OFFERED:
                return _T.STALE, message
            sent_on = message.reason in (DRAINING, EDGE_FULL) and len(state.homes) > 1
            return (_T.SENT_AWAY if sent_on else _T.REJECTED), message
        raise ProtocolError(f"{self.node}: a device receives no {kind.__name__}")

    def _read_ack(self, message: UploadAck) -> Trigger:
        state = self.state
        if state.phase is UNMASKING:
            return _T.HEARD
        if state.phase is not UPLOADING:
            return _T.STALE
        masked = state.upload is not None and state.session is not None
        return _T.IN_SUM if masked and message.status == COUNTED else _T.ANSWERED

    def _read_task(self, task: Task) -> tuple[Trigger, Any]:
        state = self.state
        if state.phase not in RESTING or not is_sane(task):
            return _T.STALE, task
        at, last = (task.round, task.attempt), state.done.get(task.run, (0, 0))
        if at < last:
            return _T.STALE, task
        # Whoever sends again what was done still waits for an answer: the last one was lost.
        if at == last or not state.eligibility.consented:
            return _T.UNWANTED, task
        try:
            self._check_task(task)
        except SecureError as fault:
            return self._refusal(task, fault)
        return _T.TASK, task

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
        if name == "session" and phase in (FETCHING, TRAINING, SEALING, UNMASKING):
            if state.session is None:
                return _T.STALE
            enough = state.unheard > 0 and state.unheard % self.policy.rehome_tries == 0
            goes = enough and phase is UNMASKING and len(state.homes) > 1
            return _T.HOME_SILENT if goes else _T.POLL_DUE
        if name == "task" and phase in (*WORKING, UNMASKING) and self.now >= state.ends_ns:
            return _T.TIME_OVER
        return _T.STALE

    def _read_outcome(self, outcome: Outcome | NewModel | ProgramStopped) -> tuple[Trigger, Any]:
        match outcome:
            case ProgramStopped(reason):
                return _T.UNFIT, reason
            case Outcome(vector, _, _, finite):
                if not finite:
                    return _T.UNFIT, NON_FINITE
                if vector is None or not _is_update(vector, RingPlan.of(self._task().ring)):
                    return _T.UNFIT, PROGRAM_FAILED
                return (_T.TRAINED_EARLY if self._is_early() else _T.TRAINED), vector
            case NewModel():
                return _T.UNFIT, PROGRAM_FAILED

    def _read_order(self, order: Any) -> tuple[Trigger, Any]:
        state, phase = self.state, self.state.phase
        if isinstance(order, Conditions):
            if (order.facts, order.eligibility) == (state.facts, state.eligibility):
                return _T.STALE, order
            if phase in (*WORKING, UNMASKING) and not order.eligibility.consented:
                return _T.CONSENT_LOST, order
            return _T.CONDITIONS, order
        if isinstance(order, Homes):
            homes = edges_of(order)
            if not 0 < len(homes) <= HOMES_MAX:
                raise ProtocolError(f"{self.node}: a device has 1 to {HOMES_MAX} different homes")
            if homes == state.homes:
                return _T.STALE, order
            gone = phase in OFFERED and state.home not in homes
            return (_T.HOME_GONE if gone else _T.HOMES), homes
        if isinstance(order, NOTICES):
            return self._read_notice(order), order
        if isinstance(order, Connected):
            at_home = edge_of(order.home) == state.home
            return (_T.CONNECTED if at_home and phase in OFFERED else _T.STALE), order
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

    def come_back_soon(self, message: Reject) -> None:
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
        state.done[task.run] = (task.round, task.attempt)
        while len(state.done) > RUNS_REMEMBERED:
            del state.done[least_useful(state.done)]
        state.ends_ns = self.now + left_ms(task) * MS
        for name in ("repeat", "lease", "retry"):
            self.cancel_timer(name)
        bundle = task.bundle.digest
        state.bundles = [*(b for b in state.bundles if b != bundle), bundle][-BUNDLES_KEPT:]
        wanted = (*state.bundles, task.weights.digest)
        for digest in state.have:
            if digest not in wanted:
                self.emit(DropBlob(digest))
        state.have = [d for d in state.have if d in wanted]
        refusal = self._begin_session(task)
        if refusal is None:
            self._begin()
        else:
            self.post(_T.SESSION_FAILED, refusal)

    def decline(self, task: Task) -> None:
        reason = DEADLINE if self.state.eligibility.consented else PROGRAM_FAILED
        self.send(self.home, self._failure(task, reason))

    def restart(self, stored: tuple[bytes, ...]) -> None:
        self.state.have = list(stored)
        self._say()
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

    def forget(self, digest: bytes) -> None:
        self.state.have.remove(digest)

    def refetch(self, digest: bytes) -> None:
        self.forget(digest)
        self._begin()

    def train(self, _: object) -> None:
        state, task = self.state, self._task()
        self.cancel_timer("repeat")
        state.ticket += 1
        key = self._key(task)
        program = "evaluate" if task.purpose == EVALUATE else "client_update"
        blobs = (task.bundle.digest, task.weights.digest)
        self.emit(RunProgram(state.ticket, program, blobs, (key, task.ring), task))

    def _key(self, task: Task) -> Vector:
        """The device's random key for a task, u32[2]."""
        words = device_key(task.rng_key, self.state.device, self._key_secret)
        return np.array(words, np.uint32)

    def upload(self, vector: Any) -> None:
        task = self._task()
        upload = Upload(
            run=task.run, round=task.round, attempt=task.attempt, device=self.state.device
        )
        plan = RingPlan.of(task.ring)
        whole = finished(vector, plan, task.rng_key, self._key(task))
        masked = self._mask_into(upload, whole)
        if masked is None:
            self.post(_T.SESSION_FAILED)
            return
        self._charge()
        state = self.state
        if self.carries_beside:
            state.beside = sent(masked, plan) if plan.top else carried(masked, plan)
            state.upload_size = wire_size(upload, len(state.beside))
        else:
            content = sent(masked, plan)
            state.upload_size = wire_size(upload, len(content))
            upload.vector = content
        state.upload = upload
        self.resume_upload(None)

    def upload_held(self, _: object) -> None:
        vector, self.state.trained = self.state.trained, None
        self.upload(vector)

    def refuse(self, reason: FailureReason) -> None:
        self._forget_session()
        self.state.failure = self._failure(self._task(), reason)
        self.resume_upload(None)

    def resume_upload(self, _: object) -> None:
        self.set_timer("task", self.state.ends_ns)
        self.state.tries = 0
        self.send_answer(None)

    def send_answer(self, _: object) -> None:
        state = self.state
        if state.upload is not None:
            self.send(self.home, state.upload, state.upload_size, state.beside or None)
            self._repeat(state.upload_size)
        else:
            assert state.failure is not None
            self.send(self.home, state.failure)
            self._repeat(0)

    # ------------------------------------------------ ending

    def finish(self, message: UploadAck) -> None:
        self._record_answer(message)
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

    def withhold(self, order: Conditions) -> None:
        self.keep_conditions(order)
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
        state.beside = b""
        if state.session is not None or state.helped:
            self._forget_session()
        self.cancel_timer("repeat")
        self.cancel_timer("task")
        self._come_back(state.after_task_ms)

    # ------------------------------------------------ of the task

    def _missing(self) -> dict[bytes, int]:
        """Digest -> size of what the task names and the store has not got."""
        task, have = self.state.task, self.state.have
        if task is None:
            return {}
        refs = (task.bundle, task.weights)
        return {digest: r.size for r in refs if (digest := r.digest) not in have}

    def _repeat(self, size: int) -> None:
        self.state.tries += 1
        self.set_timer("repeat", self.now + self.policy.backoff.pause(self.state.tries, size))

    def _come_back(self, window_ms: tuple[int, int]) -> None:
        state, (low, high) = self.state, window_ms
        share = self.rng.unit("device retry", state.device, state.draws)
        state.draws += 1
        self.set_timer("retry", self.now + low * MS + int(share * (high - low) * MS))


def _is_update(vector: Vector, plan: RingPlan) -> bool:
    """Whether a program has made as many elements as it must, and a weight of 1 at most: by what it
    weighs an update is cut, and no weight is longer than the ring.
    """
    return len(vector) == plan.made and int(vector[-1]) <= plan.weight_scale


def _name(message: Any) -> tuple[int, int, int]:
    """Which attempt a message belongs to."""
    return message.run, message.round, message.attempt


def restore(data: bytes) -> DeviceState:
    """The state that `DeviceMachine.snapshot` gave. Raises SnapshotError."""
    return snapshot.load(DeviceState, data)
