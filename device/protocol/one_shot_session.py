"""One-shot secure aggregation: the device masks, seals seeds to helpers, and uploads once.

`core.privacy.secagg.helper` has what is masked and sealed. The owner decides which edges may help
(`DevicePolicy.helpers`): a coordinator that could name any would name one of its own.

The secret of the task's masks is derived when the task is taken, and the master secret moves on; it
is dropped when the update is masked. The masked update stays in the state until it is answered, so
that a repetition is the same bytes.
"""

from __future__ import annotations

from ...core.privacy.secagg import helper, kdf
from ...core.privacy.secagg.helper import Helpers
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.privacy.secagg.transcript import Session
from ...core.protocol.machine import Output, Part
from ...core.protocol.ports import Vector
from ...core.wire.round_pb2 import NOT_IN_COHORT, FailureReason, Task, Upload
from .acceptance import note, refusal_of
from .device_state import DeviceState, Owner


class HelpedTasks(Part[DeviceState]):
    """Replaces a session where helpers unmask."""

    def __init__(self, state: DeviceState, out: Output, owner: Owner) -> None:
        super().__init__(state, out)
        self.owner = owner

    def begin(self, task: Task) -> FailureReason | None:
        """Checks the helpers and derives the masks' secret; gives why the device takes no part."""
        state, owner = self.state, self.owner
        state.session, state.trained = None, None
        if owner.identity is None:
            self.record("session", device=state.device, reason="identity")
            return NOT_IN_COHORT
        try:
            session = Helpers.of(task).session
            self._check_floor(session)
            owner.policy.helpers.check(task.secure, state.home, owner.identity)
        except SecureError as fault:
            note(self, fault)
            return refusal_of(fault)
        state.helped = kdf.session_secret(state.secret, session.task)
        state.secret = kdf.ratchet(state.secret)
        return None

    def _check_floor(self, session: Session) -> None:
        floor = self.owner.policy.floor
        if session.cohort_min < floor.cohort_min or session.suite not in floor.suites:
            raise SecureError("policy", "a plan below what the device's owner asks for")
        if session.noise:
            raise SecureError("helpers", "noise is for sessions")

    def mask_into(self, upload: Upload, vector: Vector) -> Vector | None:
        """The update as it leaves the device, with the seeds of its masks in `upload`.

        None: it cannot be masked. The secret is dropped.
        """
        state, identity = self.state, self.owner.identity
        assert identity is not None
        helpers = Helpers.of(state.at_hand)
        try:
            masked, seeds = helper.mask(vector, helpers, state.device, state.helped, identity)
        except SecureError as fault:
            note(self, fault)
            return None
        upload.seeds.CopyFrom(seeds)
        state.helped = b""
        return masked
