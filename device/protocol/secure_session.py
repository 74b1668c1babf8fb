"""The device's part in secure aggregation: one session for each task whose updates are masked.

It makes keys when a task is taken, exchanges messages with its neighbours through the coordinator
while the device trains, masks the update, and stays until it has sent its shares for the sum.
`core.privacy.secagg.client` has the session itself.

All messages follow from the state, so a machine that replays its journal sends the same ones. What
must not be sent in two versions is durable in the state before it is sent.

A message of a session may come again, late, or not at all. The device repeats its last one with
growing pauses (`poll`); the coordinator answers each with the next one.
"""

from __future__ import annotations

from google.protobuf.message import Message

from ...core.privacy.mechanisms import noise_mechanism
from ...core.privacy.mechanisms.ring import RingError, RingPlan
from ...core.privacy.secagg import kdf
from ...core.privacy.secagg.client import ClientSession, ClientState
from ...core.privacy.secagg.client import Phase as SessionPhase
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.protocol.machine import Output, Part
from ...core.protocol.ports import Vector
from ...core.wire.round_pb2 import NOT_IN_COHORT, FailureReason, Task
from .acceptance import note, refusal_of
from .device_state import DeviceState, Owner

#: Faults that leave a session as it is: of another attempt, or too early or too late.
_HARMLESS = ("foreign", "order")
_CAN_MASK = (SessionPhase.MASKING, SessionPhase.MASKED)
#: What a fresh device's master secret is as long as.
SECRET_BYTES = 32


class Sessions(Part[DeviceState]):
    """The sessions of a device's tasks, one at a time."""

    def __init__(self, state: DeviceState, out: Output, owner: Owner) -> None:
        super().__init__(state, out)
        self.owner = owner

    def _session(self) -> ClientSession:
        state, owner = self.state, self.owner
        assert state.session is not None and owner.identity is not None
        return ClientSession(state.session, owner.identity, owner.policy.floor)

    @property
    def is_early(self) -> bool:
        """Whether an update cannot be masked yet."""
        session = self.state.session
        return session is not None and session.phase not in _CAN_MASK

    # ------------------------------------------------ steps of a session

    def begin(self, task: Task) -> FailureReason | None:
        """Makes keys for a task with masks, and sends them; gives why the device takes no part.

        The master secret is moved on at once: from it these keys cannot be made again.
        """
        state = self.state
        state.session, state.trained = None, None
        if not task.HasField("secure"):
            return None
        if self.owner.identity is None:
            self.record("session", device=state.device, reason="identity")
            return NOT_IN_COHORT
        state.session = ClientState(state.device, log=state.log)
        try:
            self._session().begin(task, state.secret)
        except SecureError as fault:
            note(self, fault)
            return refusal_of(fault)
        state.secret = kdf.ratchet(state.secret)
        self.say()
        return None

    def take(self, message: Message) -> bool:
        """Takes a message of the session and sends the next one.

        Returns whether the session has moved on. Raises SecureError when it cannot go on.
        """
        state, session = self.state, self._session()
        assert state.session is not None
        before = state.session.phase
        state.unheard = 0
        try:
            _take(session, message)
        except SecureError as fault:
            note(self, fault)
            if fault.reason in _HARMLESS:
                return False
            raise
        if before is SessionPhase.KEYS:
            state.log = state.session.log  # no other head was taken since the keys
        if state.session.phase is before:
            return False  # received before; the answer is repeated when it is due
        self.say()
        return True

    def mask(self, vector: Vector) -> Vector | None:
        """The update as it leaves the device; None: its session has failed."""
        state = self.state
        if state.session is None:
            return vector
        try:
            return self._session().mask(self._noised(vector))
        except SecureError as fault:
            note(self, fault)
        except RingError:
            self.record("session", device=state.device, reason="length")
        return None

    def _noised(self, vector: Vector) -> Vector:
        """The update with its part of the task's noise, if there is any.

        Raises RingError for an update that discloses more than the task accounts for.
        """
        ring = RingPlan.of(self.state.at_hand.ring)
        if not ring.noise or ring.wide:  # a question's measure has its noise already
            return vector
        noise_mechanism.guard(vector, ring)
        if ring.central:
            return vector
        noised = vector.copy()
        noise_mechanism.add(noised, ring, self._session().noise_key())
        return noised

    def forget(self) -> None:
        self.state.session, self.state.trained = None, None
        self.cancel_timer("session")

    # ------------------------------------------------ sending

    def say(self) -> None:
        """Sends the next message of the session, if there is one."""
        self.state.polls = self.state.unheard = 0
        self.poll()

    def poll(self) -> None:
        """Sends it, or repeats it."""
        state = self.state
        message = self._session().waiting if state.session is not None else None
        if message is None:
            self.cancel_timer("session")
            return
        size = message.ByteSize()
        self.send(state.home_node, message, size)
        state.polls += 1
        state.unheard += 1
        self.set_timer("session", self.now + self.owner.policy.backoff.pause(state.polls, size))


def _take(session: ClientSession, message: Message) -> None:
    """Passes a message to a session. Raises SecureError."""
    kind = type(message).__name__
    take = {
        "Cohort": session.take_cohort,
        "Delivery": session.take_delivery,
        "Survivors": session.take_survivors,
        "UnmaskRequest": session.take_unmask,
    }[kind]
    take(message)  # type: ignore[operator]
