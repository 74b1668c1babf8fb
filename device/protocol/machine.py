"""The device's protocol: its table, and the guards that read events.

`device_actions` has what a device does. The protocol does not know whether a daemon or the
simulator drives it, which algorithm it runs, or what a bundle holds.

A device offers itself (CheckIn), waits in its edge's pool, takes one task at a time, fetches what
the task names and it has not got, trains, and uploads until the edge says that it has the answer or
the task's time is over. It repeats whatever may have been lost and does nothing twice: an answered
task is never taken again.

It uses one edge at a time, its home. When the home gives no answer to several check-ins, or
sends it away for good, it goes to the next of its homes. While it works it stays with the home that
tasked it: no other node waits for the answer.
"""

from __future__ import annotations

from typing import Any

from ...core.privacy.mechanisms.ring import RingPlan
from ...core.privacy.secagg import messages
from ...core.privacy.secagg.member_identity import Identity
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.privacy.task_limits import is_sane
from ...core.protocol import ports, snapshot
from ...core.protocol.machine import IGNORE, Machine, Output, index, row
from ...core.wire import admission_pb2, round_pb2
from ...core.wire.blob_pb2 import Blob
from ...core.wire.journal_pb2 import Conditions, Connected, DeniedVersion, Homes
from .acceptance import NOTICES
from .device_actions import Device
from .device_state import HOMES_MAX, DevicePolicy, DeviceState, Owner, Phase, name_of
from .device_triggers import (
    BEFORE,
    CHECKING_IN,
    FETCHING,
    IDLE,
    IN_SESSION,
    NOT_OFFERED,
    NOT_TRAINING,
    OFFERED,
    OFFLINE,
    READY,
    RESTING,
    SEALING,
    TRAINING,
    UNMASKING,
    UPLOADING,
    WORKING,
    Trigger,
)
from .homes import edge_of, edges_of
from .secure_session import SECRET_BYTES

_T = Trigger

TABLE = (
    row((OFFLINE, *RESTING), _T.STARTED, Device.start, CHECKING_IN, "offer itself"),
    row((FETCHING, TRAINING), _T.STARTED, Device.restart, FETCHING, "train again from the start"),
    row(SEALING, _T.STARTED, Device.resume_session, SEALING, "the update survived; ask again"),
    row(UPLOADING, _T.STARTED, Device.resume_upload, UPLOADING, "the answer survived; send it"),
    row(UNMASKING, _T.STARTED, Device.resume_session, UNMASKING, "the shares survived; ask again"),
    row(IDLE, _T.RETRY, Device.check_in, CHECKING_IN, "the retry window says so"),
    row(CHECKING_IN, _T.UNANSWERED, Device.repeat_check_in, CHECKING_IN, "a message was lost"),
    row(CHECKING_IN, _T.HOME_SILENT, Device.rehome, CHECKING_IN, "try the next home"),
    row(CHECKING_IN, _T.ACCEPTED, Device.wait, READY, "keep the lease and the next window"),
    row(OFFERED, _T.REJECTED, Device.rest, IDLE, "come back in the window"),
    row(OFFERED, _T.SENT_AWAY, Device.leave, IDLE, "try the next home in a moment"),
    row(IDLE, _T.WORK_CAME, Device.come_back_soon, IDLE, "in this window, not in the one before"),
    row(READY, _T.LEASE_OVER, Device.check_in, CHECKING_IN, "the edge may have forgotten it"),
    row(OFFERED, _T.CONNECTED, Device.check_in, CHECKING_IN, "a task may have been missed"),
    row(FETCHING, _T.CONNECTED, Device.fetch_again, FETCHING, "requests or blobs were lost"),
    row(RESTING, _T.TASK, Device.take, FETCHING, "also when the Accept was lost"),
    row(RESTING, _T.UNWANTED, Device.decline, None, "it is over already, or not allowed"),
    row(RESTING, _T.REFUSED, Device.refuse_task, None, "record why; the true task may still come"),
    row(RESTING, _T.BEHIND, Device.await_list, None, "fetch the list; the task is sent again"),
    row(FETCHING, _T.BLOB, Device.keep, FETCHING, "store it"),
    row(FETCHING, _T.STORED, Device.note, FETCHING, "one fewer is missing"),
    row(FETCHING, _T.CORRUPT, IGNORE, FETCHING, "the next repetition asks again"),
    row(TRAINING, _T.BLOB_GONE, Device.refetch, FETCHING, "ask for it again, then train"),
    row(NOT_TRAINING, _T.BLOB_GONE, Device.forget, None, "the next task asks for it again"),
    row(FETCHING, _T.UNANSWERED, Device.fetch_again, FETCHING, "request or blob was lost"),
    row(FETCHING, _T.ALL_HERE, Device.train, TRAINING, "one call into compiled code"),
    row(TRAINING, _T.TRAINED, Device.upload, UPLOADING, "mask and send"),
    row(TRAINING, _T.TRAINED_EARLY, Device.hold, SEALING, "mask it when they are"),
    row(TRAINING, _T.UNFIT, Device.refuse, UPLOADING, "report no update"),
    row(IN_SESSION, _T.SESSION, Device.attend, None, "check it, and send the next message"),
    row(SEALING, _T.CAN_MASK, Device.upload_held, UPLOADING, "mask and send"),
    row(WORKING, _T.SESSION_FAILED, Device.leave_cohort, UPLOADING, "report no update"),
    row(UNMASKING, _T.SESSION_FAILED, Device.abandon, IDLE, "neighbours manage without its shares"),
    row((*BEFORE, UNMASKING), _T.POLL_DUE, Device.poll, None, "send the last message again"),
    row(UNMASKING, _T.HOME_SILENT, Device.poll_elsewhere, UNMASKING, "any home forwards it"),
    row(UPLOADING, _T.UNANSWERED, Device.send_answer, UPLOADING, "answer or UploadAck was lost"),
    row(UPLOADING, _T.ANSWERED, Device.finish, IDLE, "the task is over, whatever the status"),
    row(UPLOADING, _T.IN_SUM, Device.stay, UNMASKING, "its shares will be asked for"),
    row(UNMASKING, _T.HEARD, Device.reset_silence, UNMASKING, "its home is there"),
    row(BEFORE, _T.TIME_OVER, Device.give_up, IDLE, "report it once"),
    row((UPLOADING, UNMASKING), _T.TIME_OVER, Device.abandon, IDLE, "the deadline has passed"),
    row(WORKING, _T.CLOSED, Device.stop, IDLE, "it was not needed, or too slow"),
    row(UNMASKING, _T.CLOSED, Device.part, IDLE, "the sum is known, or given up"),
    row(NOT_OFFERED, _T.CONDITIONS, Device.keep_conditions, None, "for the next check-in"),
    row(OFFERED, _T.CONDITIONS, Device.check_in_again, CHECKING_IN, "its home must decide again"),
    row(IDLE, _T.CONSENT, Device.come_back_now, CHECKING_IN, "not only when the window says so"),
    row(WORKING, _T.CONSENT_LOST, Device.withdraw, IDLE, "stop at once, and report it once"),
    row(UNMASKING, _T.CONSENT_LOST, Device.withhold, IDLE, "neighbours manage without its shares"),
    row((*NOT_OFFERED, *OFFERED), _T.HOMES, Device.keep_homes, None, "for the next move"),
    row(OFFERED, _T.HOME_GONE, Device.leave_home, CHECKING_IN, "offer itself to the first of them"),
    row(tuple(Phase), _T.DENIED, Device.keep_denied, None, "needed by masked tasks"),
    row(tuple(Phase), _T.LOG_UPDATE, Device.keep_log, None, "if it continues the known one"),
    row(tuple(Phase), _T.STALE, IGNORE, None, "count it"),
)


class DeviceMachine(Machine[DeviceState]):
    """One device.

    Args:
        homes, facts, eligibility, secret: what a device that has never run begins with. Otherwise
            they are in its state, and `Ordered` changes them. So a driver stores the snapshot of a
            new machine before its first event.
        identity: see `Owner.identity`.
        secret: 32 random bytes, from which all its masks are derived.
        key_secret: 32 random bytes from which its random keys are derived; empty: it is simulated,
            and they follow from its number.
    """

    rows = index(TABLE)

    def __init__(
        self,
        state: DeviceState,
        homes: tuple[ports.Node, ...],
        rng: ports.Rng,
        facts: admission_pb2.DeviceFacts,
        eligibility: admission_pb2.Eligibility,
        policy: DevicePolicy | None = None,
        secret: bytes = b"",
        identity: Identity | None = None,
        key_secret: bytes = b"",
    ) -> None:
        owner = Owner(policy or DevicePolicy(), identity)
        out = Output()
        self.device = Device(state, out, owner, rng, key_secret)
        super().__init__(state, out, self.device)
        self.node = ports.Node(ports.Tier.DEVICE, state.device)
        self.owner = owner
        if not state.homes:
            assert 0 < len(homes) <= HOMES_MAX and all(h.tier is ports.Tier.EDGE for h in homes)
            state.homes = [h.number for h in homes]
            state.home = state.homes[0]
            state.facts, state.eligibility = facts, eligibility
        if not state.secret:
            assert identity is None or len(secret) == SECRET_BYTES, "masks need a secret"
            state.secret = secret

    @property
    def wanted(self) -> dict[bytes, int]:
        """Digest -> size in bytes of the blobs that it would take now."""
        return self.device.missing() if self.state.phase is FETCHING else {}

    def snapshot(self) -> bytes:
        """The state, to be stored."""
        return snapshot.dump(self.state)

    # ------------------------------------------------ reading events

    def read(self, event: ports.Event) -> tuple[Trigger, Any]:
        if isinstance(event, ports.Received):  # most are, and a case takes five times as long
            return self._read_sender(event.sender, event.message)
        match event:
            case ports.TimerFired(name):
                return self._read_timer(name), None
            case ports.BlobStored(digest, intact):
                if digest not in self.wanted:
                    gone = not intact and digest in self.state.have
                    return (_T.BLOB_GONE if gone else _T.STALE), digest
                return (_T.STORED if intact else _T.CORRUPT), digest
            case ports.ProgramFinished(ticket, outcome):
                if self.state.phase is not TRAINING or ticket != self.state.ticket:
                    return _T.STALE, None
                return self._read_outcome(outcome)
            case ports.Started(stored):
                return _T.STARTED, stored
            case ports.Ordered(order):
                return self._read_order(order)

    def _read_sender(self, sender: ports.Node, message: Any) -> tuple[Trigger, Any]:
        state = self.state
        if sender.number == state.home and sender.tier is ports.Tier.EDGE:
            return self._read_message(message)
        if state.phase is UNMASKING and sender.number in state.homes:
            return self._read_message(message)  # a word on its way before it went elsewhere
        if sender.tier is ports.Tier.EDGE and sender.number in (*state.homes, *state.former):
            return _T.STALE, message
        raise ports.ProtocolError(
            f"{self.node}: a message from {sender}, which is none of its homes"
        )

    def _read_message(self, message: Any) -> tuple[Trigger, Any]:
        state = self.state
        kind = type(message)
        if kind is round_pb2.Task:
            return self._read_task(message)
        if kind is Blob:
            return (_T.BLOB if message.digest in self.wanted else _T.STALE), message
        works = state.phase in (*WORKING, UNMASKING)
        if kind is round_pb2.RoundClosed:
            mine = works and name_of(message) == name_of(state.at_hand)
            return (_T.CLOSED if mine else _T.STALE), message
        if kind is round_pb2.UploadAck or kind in messages.DOWN:
            if message.device != state.device:
                raise ports.ProtocolError(
                    f"{self.node}: a {kind.__name__} for device {message.device}"
                )
            mine = works and name_of(message) == name_of(state.at_hand)
            if kind is round_pb2.UploadAck:
                return (self._read_ack(message) if mine else _T.STALE), message
            return (_T.SESSION if mine and state.session is not None else _T.STALE), message
        if kind is admission_pb2.Accept:
            fits = state.phase is CHECKING_IN and message.sequence == state.sequence
            return (_T.ACCEPTED if fits else _T.STALE), message
        if kind is admission_pb2.Reject:
            if message.sequence != state.sequence:
                return _T.STALE, message
            if message.reason == admission_pb2.WORK_CAME:
                return (_T.WORK_CAME if state.phase is IDLE else _T.STALE), message
            if state.phase not in OFFERED:
                return _T.STALE, message
            sent_on = (
                message.reason in (admission_pb2.DRAINING, admission_pb2.EDGE_FULL)
                and len(state.homes) > 1
            )
            return (_T.SENT_AWAY if sent_on else _T.REJECTED), message
        raise ports.ProtocolError(f"{self.node}: a device receives no {kind.__name__}")

    def _read_ack(self, message: round_pb2.UploadAck) -> Trigger:
        state = self.state
        if state.phase is UNMASKING:
            return _T.HEARD
        if state.phase is not UPLOADING:
            return _T.STALE
        masked = state.upload is not None and state.session is not None
        return _T.IN_SUM if masked and message.status == round_pb2.COUNTED else _T.ANSWERED

    def _read_task(self, task: round_pb2.Task) -> tuple[Trigger, Any]:
        state = self.state
        if state.phase not in RESTING or not is_sane(task):
            return _T.STALE, task
        at, last = (task.round, task.attempt), state.done.get(task.run, (0, 0))
        if at < last:
            return _T.STALE, task
        # A home that sends a done task again still waits for an answer: the last one was lost.
        if at == last or not state.eligibility.consented:
            return _T.UNWANTED, task
        try:
            self.device.acceptance.check(task)
        except SecureError as fault:
            waits = self.device.acceptance.waits(task, fault)
            return (_T.BEHIND if waits else _T.REFUSED), (task, fault.reason)
        return _T.TASK, task

    def _read_timer(self, name: str) -> Trigger:
        """A timer may fire once after it was cancelled, so each is good in its own phases only."""
        state, phase = self.state, self.state.phase
        if name == "retry" and phase is IDLE:
            return _T.RETRY
        if name == "repeat" and phase is CHECKING_IN:
            enough = state.tries > 0 and state.tries % self.owner.policy.rehome_tries == 0
            return _T.HOME_SILENT if enough and len(state.homes) > 1 else _T.UNANSWERED
        if name == "repeat" and phase in (FETCHING, UPLOADING):
            return _T.UNANSWERED
        if name == "lease" and phase is READY:
            return _T.LEASE_OVER
        if name == "session" and phase in (FETCHING, TRAINING, SEALING, UNMASKING):
            if state.session is None:
                return _T.STALE
            enough = state.unheard > 0 and state.unheard % self.owner.policy.rehome_tries == 0
            goes = enough and phase is UNMASKING and len(state.homes) > 1
            return _T.HOME_SILENT if goes else _T.POLL_DUE
        if name == "task" and phase in (*WORKING, UNMASKING) and self.now >= state.ends_ns:
            return _T.TIME_OVER
        return _T.STALE

    def _read_outcome(
        self, outcome: ports.Outcome | ports.NewModel | ports.ProgramStopped
    ) -> tuple[Trigger, Any]:
        match outcome:
            case ports.ProgramStopped(reason):
                return _T.UNFIT, reason
            case ports.Outcome(vector, _, _, finite):
                if not finite:
                    return _T.UNFIT, round_pb2.NON_FINITE
                if vector is None or not _is_update(vector, RingPlan.of(self.state.at_hand.ring)):
                    return _T.UNFIT, round_pb2.PROGRAM_FAILED
                early = self.device.sessions.is_early
                return (_T.TRAINED_EARLY if early else _T.TRAINED), outcome
            case ports.NewModel():
                return _T.UNFIT, round_pb2.PROGRAM_FAILED

    def _read_order(self, order: Any) -> tuple[Trigger, Any]:
        state, phase = self.state, self.state.phase
        if isinstance(order, Conditions):
            if (order.facts, order.eligibility) == (state.facts, state.eligibility):
                return _T.STALE, order
            if phase in (*WORKING, UNMASKING) and not order.eligibility.consented:
                return _T.CONSENT_LOST, order
            same = order.eligibility.consented == state.eligibility.consented
            return (_T.CONDITIONS if same or phase is not IDLE else _T.CONSENT), order
        if isinstance(order, Homes):
            homes = edges_of(order)
            if not 0 < len(homes) <= HOMES_MAX:
                raise ports.ProtocolError(
                    f"{self.node}: a device has 1 to {HOMES_MAX} different homes"
                )
            if homes == state.homes:
                return _T.STALE, order
            gone = phase in OFFERED and state.home not in homes
            return (_T.HOME_GONE if gone else _T.HOMES), homes
        if isinstance(order, NOTICES):
            kind = _T.DENIED if isinstance(order, DeniedVersion) else _T.LOG_UPDATE
            return (kind if self.device.acceptance.is_news(order) else _T.STALE), order
        if isinstance(order, Connected):
            at_home = edge_of(order.home) == state.home
            waits = phase in (*OFFERED, FETCHING)
            return (_T.CONNECTED if at_home and waits else _T.STALE), order
        raise ports.ProtocolError(
            f"{self.node}: a device takes no {type(order).__name__} as an order"
        )


def _is_update(vector: ports.Vector, plan: RingPlan) -> bool:
    """Whether a program has made as many elements as it must, and a weight of 1 at most.

    An update is cut by its weight, and no weight is longer than the ring.
    """
    return len(vector) == plan.made and int(vector[-1]) <= plan.weight_scale


def restore(data: bytes) -> DeviceState:
    """The state that `DeviceMachine.snapshot` gave. Raises SnapshotError."""
    return snapshot.load(DeviceState, data)
