"""The device's part in secure aggregation: one session beside each task whose updates are masked.

It makes keys when a task is taken, exchanges messages with its neighbours through the coordinator
while the device trains, masks the update, and stays when that is in the sum until it has given its
shares. `core.privacy.secagg.client` has the session itself.

All that it says follows from what its state holds, so a machine that handles its journal again says
the same. What it must not say twice in two ways is in its state, and durable, before it leaves.

A message of a session may come again, late, or not at all. The device repeats what it said last,
with growing pauses (`poll`); the coordinator answers each with what comes next.
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

#: Faults that leave a session as it is: the message is another attempt's, or too early or too late.
_NOBODYS = ("foreign", "order")
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

    # ------------------------------------------------ the course of a session

    def begin(self, task: Task) -> FailureReason | None:
        """Makes keys for a task that asks for masks, and sends them. Gives why this device does not
        take part, or None.

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
        """Takes a message of the session and says what comes next. Gives whether the session has
        moved on; raises SecureError when it cannot go on.
        """
        state, session = self.state, self._session()
        assert state.session is not None
        before = state.session.phase
        state.unheard = 0
        try:
            _take(session, message)
        except SecureError as fault:
            note(self, fault)
            if fault.reason in _NOBODYS:
                return False
            raise
        if before is SessionPhase.KEYS:
            state.log = state.session.log  # no other head was taken since the keys
        if state.session.phase is before:
            return False  # heard before; what was said then is said again when it is due
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
        """The update with its part of the noise that the task asks for, if it does. Raises
        RingError for one that tells more of the device than the task accounts for.
        """
        ring = RingPlan.of(self.state.at_hand.ring)
        if not ring.noise:
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

    # ------------------------------------------------ what is said

    def say(self) -> None:
        """Says what comes next in the session, if anything does."""
        self.state.polls = self.state.unheard = 0
        self.poll()

    def poll(self) -> None:
        """Says it, or says it again."""
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
    """Lets a session have a message. Raises SecureError."""
    kind = type(message).__name__
    take = {
        "Cohort": session.take_cohort,
        "Delivery": session.take_delivery,
        "Survivors": session.take_survivors,
        "UnmaskRequest": session.take_unmask,
    }[kind]
    take(message)  # type: ignore[operator]
