"""Which tasks a device takes, by its owner's rules, the deny list and the certificate log."""

from __future__ import annotations

from ...core.privacy.secagg.client import Phase as SessionPhase
from ...core.privacy.secagg.logged import ForkError, accept
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.privacy.secagg.signed_task import check
from ...core.protocol.machine import Output, Part
from ...core.protocol.ports import SECOND
from ...core.protocol.task_blobs import refs_of, sizes_of
from ...core.wire import round_pb2
from ...core.wire.journal_pb2 import DeniedVersion
from ...core.wire.log_pb2 import LogUpdate
from . import releases
from .device_state import DeviceState, Owner, name_of

#: The reason of a refused task that has no masks.
UNMASKED = "unmasked"
#: And of one that has masks, where the deny list is too old.
DENY_LIST = "deny list"
#: And where it is older than the one that the task names.
DENY_LIST_VERSION = "deny list version"
#: And of one whose blobs the store or the disk has no room for.
ROOM = "no room"
_MIB = 1 << 20
#: The FailureReason of a refused task, by the reason.
_REFUSALS = {
    UNMASKED: round_pb2.MASKS_REQUIRED,
    DENY_LIST: round_pb2.NOT_IN_COHORT,
    DENY_LIST_VERSION: round_pb2.NOT_IN_COHORT,
    releases.NOISE: round_pb2.BELOW_FLOOR,
    releases.BUDGET: round_pb2.BELOW_FLOOR,
    ROOM: round_pb2.NO_ROOM,
}
#: Orders that change which nodes the device trusts.
NOTICES = (DeniedVersion, LogUpdate)


class Acceptance(Part[DeviceState]):
    """What a device checks of a task before it takes it."""

    def __init__(self, state: DeviceState, out: Output, owner: Owner) -> None:
        super().__init__(state, out)
        self.owner = owner

    # ------------------------------------------------ tasks

    def check(self, task: round_pb2.Task) -> None:
        """Checks that the owner wants the task and that the coordinator has signed it as it is.

        A device without an identity cannot check the signature. Raises SecureError.
        """
        state, owner = self.state, self.owner
        if self.lacks_masks(task):
            raise SecureError(UNMASKED, "the owner wants masks, and the task has none")
        if task.HasField("secure") and self.knows_too_little():
            raise SecureError(DENY_LIST, "the deny list is too old to take a masked task")
        if owner.identity is not None:
            check(task, owner.identity, self.now // SECOND)
        releases.check(task, owner.policy.floor, owner.policy.caps, state.releases)
        self._check_room(task)
        if task.secure.denied_version > state.denied_version:
            raise SecureError(DENY_LIST_VERSION, "the task names a newer deny list")

    def _check_room(self, task: round_pb2.Task) -> None:
        """Raises SecureError for a task whose blobs, all together, the device could not store.

        Their sizes are in the task, so that nothing is fetched in vain.
        """
        needed = sum(sizes_of(refs_of(task)).values())
        most, told = self.owner.policy.blobs_bytes_max, self.state.facts.storage_mib
        most = min(most, told * _MIB) if told else most
        if needed > most:
            raise SecureError(ROOM, f"the task's blobs have {needed} bytes, of {most} at most")

    def waits(self, task: round_pb2.Task, fault: SecureError) -> bool:
        """Whether a task that does not pass is not answered yet.

        It names a newer deny list and is new. The home sends it again, and the list may be here by
        then.
        """
        return fault.reason == DENY_LIST_VERSION and self.state.awaited != name_of(task)

    def await_list(self, task: round_pb2.Task) -> None:
        """Has the newer deny list fetched."""
        self.state.awaited = name_of(task)
        version = task.secure.denied_version
        self.record("deny_list_awaited", device=self.state.device, version=version)

    def refuse(self, reason: str) -> round_pb2.FailureReason:
        """Records why a task is refused, in a fixed word; gives the reason for its home."""
        self.record("session", device=self.state.device, reason=reason)
        return _REFUSALS.get(reason, round_pb2.TASK_NOT_SIGNED)

    def lacks_masks(self, task: round_pb2.Task) -> bool:
        """Whether the owner requires masks and the task has none, whatever the task is for."""
        return self.owner.policy.secure_required and not task.HasField("secure")

    def knows_too_little(self) -> bool:
        """Whether the deny list is too old to say which neighbours of a task are revoked.

        A coordinator that withholds the list gets no masked updates by it.
        """
        age_ns = self.now - self.state.denied_issued_s * SECOND
        return 0 < self.owner.policy.denied_age_ns < age_ns

    # ------------------------------------------------ the deny list and the certificate log

    def is_news(self, order: DeniedVersion | LogUpdate) -> bool:
        """Whether the deny list is a newer one, or the log's head continues the accepted one."""
        if isinstance(order, DeniedVersion):
            return self._is_newer(order)
        state = self.state
        # Until a session's cohort comes, its proof is to continue the head that the device stated.
        stated = state.session is not None and state.session.phase is SessionPhase.KEYS
        owner = self.owner
        logged = owner.identity is not None and owner.policy.floor.log.required
        return logged and not stated and order.old_size == state.log.size

    def _is_newer(self, order: DeniedVersion) -> bool:
        """Whether the deny list differs from the one in the state.

        Without a list its age counts from the device's first start.
        """
        known = self.state.denied_version, self.state.denied_issued_s
        return (order.version, order.issued_s) > known if order.version else known == (0, 0)

    def keep_log(self, update: LogUpdate) -> None:
        """Takes a head that continues the accepted one."""
        state, owner = self.state, self.owner
        assert owner.identity is not None
        try:
            state.log = accept(state.log, update, owner.identity, owner.policy.floor.log)
        except SecureError as fault:
            note(self, fault)

    def keep_denied(self, order: DeniedVersion) -> None:
        self.state.denied_version, self.state.denied_issued_s = order.version, order.issued_s


def note(part: Part[DeviceState], fault: SecureError) -> None:
    """Records a fault, without what it is about: its reason is a fixed word."""
    device = part.state.device
    part.record("session", device=device, reason=fault.reason)
    if isinstance(fault, ForkError):
        signed = fault.known.signed
        part.record(
            "log_fork",
            device=device,
            why=fault.message,
            known=b"" if signed is None else signed.SerializeToString(deterministic=True),
            offered=fault.offered.SerializeToString(deterministic=True),
        )


def refusal_of(fault: SecureError) -> round_pb2.FailureReason:
    """The FailureReason of a plan that this device does not take."""
    return round_pb2.BELOW_FLOOR if fault.reason == "policy" else round_pb2.NOT_IN_COHORT
