"""Who may be in an edge's pool, and when the others come back."""

from __future__ import annotations

from ..core.ports import MS, PROTOCOL, window
from ..core.wire.admission_pb2 import (
    EDGE_FULL,
    NO_WORK,
    NOT_ELIGIBLE,
    POOL_FULL,
    PROTOCOL_TOO_OLD,
    TOO_SMALL,
    Accept,
    CheckIn,
    Reject,
    RejectReason,
    RetryWindow,
)
from .state import EdgePolicy, EdgeState


def is_old(state: EdgeState, message: CheckIn) -> bool:
    """Whether a newer check-in of the device has been seen."""
    return message.sequence < state.check_ins.get(message.device, 0)


def admit(state: EdgeState, policy: EdgePolicy, message: CheckIn, now: int) -> Accept | Reject:
    """Puts the device into the pool or keeps it out of it; gives the answer."""
    device = message.device
    state.check_ins.pop(device, None)
    state.check_ins[device] = message.sequence
    if len(state.check_ins) > 2 * policy.devices_max:
        del state.check_ins[next(iter(state.check_ins))]
    reason = _reason_against(state, policy, message)
    if reason is not None:
        state.pool.pop(device, None)
        return Reject(sequence=message.sequence, reason=reason, retry=_retry(state, policy, reason))
    pace = state.pace
    lease_ms = pace.lease_ms if pace is not None else policy.lease_ms
    # A little longer than the device believes, so that the edge is never the first to forget.
    state.pool[device] = now + (lease_ms + lease_ms // 8) * MS
    low, high = window(pace.after_task) if pace is not None else policy.after_task_ms
    return Accept(
        sequence=message.sequence,
        lease_ms=lease_ms,
        after_task=RetryWindow(min_ms=low, max_ms=high),
    )


def _reason_against(state: EdgeState, policy: EdgePolicy, message: CheckIn) -> RejectReason | None:
    """Why a device cannot be in the pool; None when it can."""
    pace, its = state.pace, message.eligibility
    if message.protocol < PROTOCOL:
        return PROTOCOL_TOO_OLD
    if not its.consented:
        return NOT_ELIGIBLE
    if message.device not in state.pool and len(state.pool) >= policy.devices_max:
        return EDGE_FULL
    if pace is None:
        return None
    if pace.ready_max == 0:
        return NO_WORK
    asked, memory_mib = pace.requirements, message.facts.memory_mib
    for needed, given in (
        (asked.powered, its.powered),
        (asked.unmetered, its.unmetered),
        (asked.idle, its.idle),
    ):
        if needed and not given:
            return NOT_ELIGIBLE
    if memory_mib and memory_mib < asked.memory_mib:
        return TOO_SMALL
    if message.device not in state.pool and len(state.pool) >= pace.ready_max:
        return POOL_FULL
    return None


def _retry(state: EdgeState, policy: EdgePolicy, reason: RejectReason) -> RetryWindow:
    pace = state.pace
    low, high = window(pace.after_reject) if pace is not None else policy.after_reject_ms
    if reason == POOL_FULL and pace is not None:
        # Pace steering: the more devices share the places, the longer each stays away, so that the
        # number that knocks in a second does not grow with the fleet.
        high = low + (high - low) * (1 + len(state.check_ins) // pace.ready_max)
    return RetryWindow(min_ms=low, max_ms=high)
