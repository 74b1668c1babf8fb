"""The device's part in secure aggregation, as rows of its table.

It makes keys when it takes a task, speaks with its neighbours through the coordinator while it
trains, masks its update, and stays when that is in the sum until it has given its shares.
`core.privacy.secagg.client` has the session itself.

All that it says follows from what its state holds, so a machine that handles its journal again says
the same. What it must not say twice in two ways is in its state, and durable, before it leaves.

A message of a session may come again, late, or not at all. The device repeats what it said last,
with growing pauses (`poll`); the coordinator answers each with what comes next. Where its home is
silent while it waits for its neighbours, any other home passes its words on.
"""

from __future__ import annotations

from google.protobuf.message import Message

from ...core.privacy.mechanisms import noise_mechanism
from ...core.privacy.mechanisms.ring import RingError, RingPlan
from ...core.privacy.secagg import kdf
from ...core.privacy.secagg.client import ClientSession, ClientState
from ...core.privacy.secagg.client import Phase as SessionPhase
from ...core.privacy.secagg.logged import ForkError, accept
from ...core.privacy.secagg.member_identity import Identity
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.privacy.secagg.signed_task import check
from ...core.protocol.machine import Machine
from ...core.protocol.ports import MS, SECOND, CancelProgram, Node, Tier, Vector
from ...core.wire.journal_pb2 import DeniedVersion
from ...core.wire.log_pb2 import LogUpdate
from ...core.wire.round_pb2 import (
    BELOW_FLOOR,
    MASKS_REQUIRED,
    NOT_IN_COHORT,
    TASK_NOT_SIGNED,
    Failure,
    FailureReason,
    Task,
    UploadAck,
)
from . import releases
from .device_state import DevicePolicy, DeviceState, Phase
from .table import Trigger

_T = Trigger
#: Faults that leave a session as it is: the message is another attempt's, or too early or too late.
_NOBODYS = ("foreign", "order")
_CAN_MASK = (SessionPhase.MASKING, SessionPhase.MASKED)
#: The reason of a refused task that has no masks.
UNMASKED = "unmasked"
#: And of one that has masks, where the deny list is too old.
DENY_LIST = "deny list"
#: And where it is older than the one that the task names.
DENY_LIST_VERSION = "deny list version"
#: What the coordinator is told of a refused task, by the reason.
_REFUSALS = {
    UNMASKED: MASKS_REQUIRED,
    DENY_LIST: NOT_IN_COHORT,
    DENY_LIST_VERSION: NOT_IN_COHORT,
    releases.NOISE: BELOW_FLOOR,
    releases.BUDGET: BELOW_FLOOR,
}
#: Orders about whom the device may trust.
NOTICES = (DeniedVersion, LogUpdate)
#: What a fresh device's master secret is as long as.
SECRET_BYTES = 32


class SessionMachine(Machine[DeviceState]):
    """The rows of a session. `DeviceMachine` is the rest of the device.

    identity: signs for the device, and verifies its neighbours.
    """

    policy: DevicePolicy
    identity: Identity | None

    def resume_upload(self, _: object) -> None:
        raise AssertionError("DeviceMachine sends answers")

    def _end(self) -> None:
        raise AssertionError("DeviceMachine ends tasks")

    # ------------------------------------------------ who and what

    @property
    def home(self) -> Node:
        """The node that it speaks to."""
        return Node(Tier.EDGE, self.state.home)

    def _move_on(self) -> None:
        state = self.state
        at = state.homes.index(state.home) if state.home in state.homes else -1
        self._move(state.homes[(at + 1) % len(state.homes)])

    def _move(self, home: int) -> None:
        self.state.home = home
        self.record("rehomed", device=self.state.device, home=home)

    def _task(self) -> Task:
        assert self.state.task is not None
        return self.state.task

    def _failure(self, task: Task, reason: FailureReason) -> Failure:
        return Failure(
            run=task.run,
            round=task.round,
            attempt=task.attempt,
            device=self.state.device,
            reason=reason,
        )

    def _record_answer(self, message: UploadAck) -> None:
        """What became of an answer, and whether it was an update."""
        self.record(
            "answered",
            device=self.state.device,
            run=message.run,
            round=message.round,
            attempt=message.attempt,
            status=int(message.status),
            update=self.state.upload is not None,
        )

    # ------------------------------------------------ which tasks

    def _check_task(self, task: Task) -> None:
        """Raises SecureError for a task that the owner does not want, or that the coordinator has
        not signed as it is. A device without an identity cannot tell the latter.
        """
        if self._lacks_masks(task):
            raise SecureError(UNMASKED, "the owner wants masks, and the task has none")
        if task.HasField("secure") and self._knows_too_little():
            raise SecureError(DENY_LIST, "the deny list is too old to take a masked task")
        if self.identity is not None:
            check(task, self.identity, self.now // SECOND)
        releases.check(task, self.policy.floor, self.policy.caps, self.state.releases)
        if task.secure.denied_version > self.state.denied_version:
            raise SecureError(DENY_LIST_VERSION, "the task names a newer deny list")

    def _refusal(self, task: Task, fault: SecureError) -> tuple[Trigger, tuple[Task, str]]:
        """What follows where a task does not pass. One that names a newer deny list is not answered
        when it comes first: the home sends it again, and the list may be here by then.
        """
        waits = fault.reason == DENY_LIST_VERSION and self.state.awaited != _name(task)
        return (_T.BEHIND if waits else _T.REFUSED), (task, fault.reason)

    def await_list(self, subject: tuple[Task, str]) -> None:
        """Has the newer deny list fetched."""
        task, _ = subject
        self.state.awaited = _name(task)
        version = task.secure.denied_version
        self.record("deny_list_awaited", device=self.state.device, version=version)

    def _lacks_masks(self, task: Task) -> bool:
        """Whether the owner requires masks and the task has none, whatever the task is for."""
        return self.policy.secure_required and not task.HasField("secure")

    def refuse_task(self, subject: tuple[Task, str]) -> None:
        """Records why, in a fixed word. The task is not taken, so the true one still may be."""
        task, reason = subject
        self.record("session", device=self.state.device, reason=reason)
        refusal = _REFUSALS.get(reason, TASK_NOT_SIGNED)
        self.send(self.home, self._failure(task, refusal))

    def _knows_too_little(self) -> bool:
        """Whether the deny list is too old to tell which devices may be among a task's neighbours.
        A coordinator that withholds the list gets no masked updates by it.
        """
        age_ns = self.now - self.state.denied_issued_s * SECOND
        return 0 < self.policy.denied_age_ns < age_ns

    def _read_notice(self, order: DeniedVersion | LogUpdate) -> Trigger:
        if isinstance(order, DeniedVersion):
            return _T.DENIED if self._is_newer(order) else _T.STALE
        state = self.state
        # Until a session's cohort comes, its proof is to continue the head that the device stated.
        stated = state.session is not None and state.session.phase is SessionPhase.KEYS
        fits = self._is_logged and not stated and order.old_size == state.log.size
        return _T.LOG_UPDATE if fits else _T.STALE

    @property
    def _is_logged(self) -> bool:
        """Whether the device asks for proofs of the certificate log."""
        return self.identity is not None and self.policy.floor.log.required

    def keep_log(self, update: LogUpdate) -> None:
        """Takes a head that continues the accepted one."""
        assert self.identity is not None
        rules = self.policy.floor.log
        try:
            self.state.log = accept(self.state.log, update, self.identity, rules)
        except SecureError as fault:
            self._note(fault)

    def _is_newer(self, order: DeniedVersion) -> bool:
        """Whether the deny list is another one than the state knows of. Without a list its age
        counts from the device's first start on.
        """
        known = self.state.denied_version, self.state.denied_issued_s
        return (order.version, order.issued_s) > known if order.version else known == (0, 0)

    def keep_denied(self, order: DeniedVersion) -> None:
        self.state.denied_version, self.state.denied_issued_s = order.version, order.issued_s

    # ------------------------------------------------ what the device asks

    def _session(self) -> ClientSession:
        assert self.state.session is not None and self.identity is not None
        return ClientSession(self.state.session, self.identity, self.policy.floor)

    def _is_early(self) -> bool:
        """Whether an update cannot be masked yet."""
        session = self.state.session
        return session is not None and session.phase not in _CAN_MASK

    def _begin_session(self, task: Task) -> FailureReason | None:
        """Makes keys for a task that asks for masks, and sends them. Gives why this device does not
        take part, or None.

        The master secret is moved on at once: from it these keys cannot be made again.
        """
        state = self.state
        state.session, state.trained = None, None
        if not task.HasField("secure"):
            return None
        if self.identity is None:
            self.record("session", device=state.device, reason="identity")
            return NOT_IN_COHORT
        state.session = ClientState(state.device, log=state.log)
        try:
            self._session().begin(task, state.secret)
        except SecureError as fault:
            self._note(fault)
            return refusal_of(fault)
        state.secret = kdf.ratchet(state.secret)
        self._say()
        return None

    def _charge(self) -> None:
        """Charges the update at hand to the device's own account, once an attempt."""
        task, state = self._task(), self.state
        if state.releases is None:
            state.releases = releases.Releases()
        state.releases.charge(task, releases.cost_of(task, self.policy.floor))

    def _masked(self, vector: Vector) -> Vector | None:
        """The update as it leaves the device; None: its session has failed."""
        if self.state.session is None:
            return vector
        try:
            return self._session().mask(self._noised(vector))
        except SecureError as fault:
            self._note(fault)
        except RingError:
            self.record("session", device=self.state.device, reason="length")
        return None

    def _noised(self, vector: Vector) -> Vector:
        """The update with its part of the noise that the task asks for, if it does. Raises
        RingError for one that tells more of the device than the task accounts for.
        """
        ring = RingPlan.of(self._task().ring)
        if not ring.noise:
            return vector
        noise_mechanism.guard(vector, ring)
        if ring.central:
            return vector
        noised = vector.copy()
        noise_mechanism.add(noised, ring, self._session().noise_key())
        return noised

    def _forget_session(self) -> None:
        self.state.session, self.state.trained = None, None
        self.cancel_timer("session")

    # ------------------------------------------------ what is said

    def _say(self) -> None:
        """Says what comes next in the session, if anything does."""
        self.state.polls = self.state.unheard = 0
        self.poll(None)

    def poll(self, _: object) -> None:
        state = self.state
        message = self._session().waiting if state.session is not None else None
        if message is None:
            self.cancel_timer("session")
            return
        size = message.ByteSize()
        self.send(self.home, message, size)
        state.polls += 1
        state.unheard += 1
        self.set_timer("session", self.now + self.policy.backoff.pause(state.polls, size))

    def poll_elsewhere(self, _: object) -> None:
        # The pauses go on growing: when all homes are silent, it is not they that are missing.
        self._move_on()
        self.poll(None)

    def resume_session(self, _: object) -> None:
        self.set_timer("task", self.state.ends_ns)
        self._say()

    # ------------------------------------------------ what is heard

    def attend(self, message: Message) -> None:
        state, session = self.state, self._session()
        assert state.session is not None
        before = state.session.phase
        state.unheard = 0
        try:
            _take(session, message)
        except SecureError as fault:
            self._note(fault)
            if fault.reason not in _NOBODYS:
                self.post(_T.SESSION_FAILED)
            return
        if before is SessionPhase.KEYS:
            state.log = state.session.log  # no other head was taken since the keys
        if state.session.phase is before:
            return  # heard before; what was said then is said again when it is due
        self._say()
        if state.phase is Phase.SEALING and not self._is_early():
            self.post(_T.CAN_MASK)

    def _note(self, fault: SecureError) -> None:
        """Says why, without what: a fault's reason is a fixed word."""
        self.record("session", device=self.state.device, reason=fault.reason)
        if isinstance(fault, ForkError):
            signed = fault.known.signed
            self.record(
                "log_fork",
                device=self.state.device,
                why=fault.message,
                known=b"" if signed is None else signed.SerializeToString(deterministic=True),
                offered=fault.offered.SerializeToString(deterministic=True),
            )

    def hear(self, _: object) -> None:
        self.state.unheard = 0

    # ------------------------------------------------ what follows

    def hold(self, vector: Vector) -> None:
        self.state.trained = vector

    def leave_cohort(self, refusal: FailureReason | None) -> None:
        """Reports that there is no update. refusal: why, where it is not the session's course."""
        state = self.state
        if state.phase is Phase.TRAINING:
            self.emit(CancelProgram(state.ticket))
        self._forget_session()
        self.cancel_timer("repeat")
        state.upload, state.beside = None, b""
        state.failure = self._failure(self._task(), refusal or NOT_IN_COHORT)
        self.resume_upload(None)

    def stay(self, message: UploadAck) -> None:
        state, task = self.state, self._task()
        self._record_answer(message)
        state.upload, state.beside, state.failure = None, b"", None
        self.cancel_timer("repeat")
        # From the end of its time on: as long again, in which the sums go up, and some more.
        state.ends_ns += task.time_ms * MS + self.policy.unmask_ns
        self.resume_session(None)

    def part(self, _: object) -> None:
        self.record("session_over", device=self.state.device)
        self._end()


def _name(task: Task) -> tuple[int, int, int]:
    return task.run, task.round, task.attempt


def refusal_of(fault: SecureError) -> FailureReason:
    """What the coordinator is told of a plan that this device does not take."""
    return BELOW_FLOOR if fault.reason == "policy" else NOT_IN_COHORT


def _take(session: ClientSession, message: Message) -> None:
    """Lets a session have a message. Raises SecureError."""
    kind = type(message).__name__
    take = {
        "Cohort": session.take_cohort,
        "Delivery": session.take_delivery,
        "Survivors": session.take_survivors,
        "UnmaskRequest": session.take_unmask,
    }[kind]
    take(message)  # type: ignore[operator]
