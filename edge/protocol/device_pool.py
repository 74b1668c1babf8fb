"""Which devices are in an edge's pool, and when the others come back."""

from __future__ import annotations

from collections.abc import Container, Iterator
from itertools import islice

from ...core.protocol.ports import DEVICES_PER_EDGE_MAX, MS, PROTOCOL, RETRY_MS_MAX, SECOND, window
from ...core.wire import admission_pb2
from .edge_state import EdgePolicy, EdgeState, Phase

#: Devices that are called come within this time, or longer when they are many.
CALLED_MS_MIN = 500
#: A device that was sent away is waited for a little longer than it may take to come back.
LATE_NS = 20 * SECOND
#: The reasons for which a device comes back to this edge by itself: an EdgeHello names them.
_STAYS = frozenset(
    (
        admission_pb2.NOT_ELIGIBLE,
        admission_pb2.POOL_FULL,
        admission_pb2.PROTOCOL_TOO_OLD,
        admission_pb2.TOO_SMALL,
        admission_pb2.NO_WORK,
        admission_pb2.NOT_CONSENTED,
    )
)
#: A device that was sent away for lack of work is called when there is some (`called`). It also
#: comes by itself, since the call may be lost, after a window this many times as long.
NO_WORK_TIMES = 2


def is_old(state: EdgeState, message: admission_pb2.CheckIn) -> bool:
    """Whether a newer check-in of the device has been seen."""
    return message.sequence < state.check_ins.get(message.device, 0)


def admit(
    state: EdgeState, policy: EdgePolicy, message: admission_pb2.CheckIn, now: int, tasked: int
) -> admission_pb2.Accept | admission_pb2.Reject:
    """Puts the device into the pool or keeps it out of it; gives the answer.

    tasked: how many devices are at work, and so not in the pool. Takes the same time for a large
    pool as for a small one.
    """
    device = message.device
    state.check_ins.pop(device, None)
    state.check_ins[device] = message.sequence
    if len(state.check_ins) > 2 * policy.devices_max:
        del state.check_ins[next(iter(state.check_ins))]
    reason = _reason_against(state, policy, message, tasked)
    state.away.pop(device, None)
    if reason is not None:
        state.pool.pop(device, None)
        answer = reject(state, policy, message.sequence, reason, now)
        if reason in _STAYS and len(state.away) < policy.devices_max:
            until = now + answer.retry.max_ms * MS + LATE_NS
            state.away[device] = (int(reason), until)
        return answer
    pace = state.pace
    lease_ms = pace.lease_ms if pace is not None else policy.lease_ms
    # A little longer than the lease of the device, so that the edge is never the first to forget.
    state.pool[device] = now + (lease_ms + lease_ms // 8) * MS
    low, high = window(pace.after_task) if pace is not None else policy.after_task_ms
    return admission_pb2.Accept(
        sequence=message.sequence,
        lease_ms=lease_ms,
        after_task=admission_pb2.RetryWindow(min_ms=low, max_ms=high),
    )


def called(state: EdgeState, tasked: Container[int]) -> Iterator[tuple[int, admission_pb2.Reject]]:
    """Calls devices that were sent away: there is work now.

    The newest of them, as many as the pool has places, spread to at most a thousand a second.
    """
    assert state.pace is not None
    away = (d for d in reversed(state.check_ins) if d not in state.pool and d not in tasked)
    chosen = list(islice(away, state.pace.ready_max))
    soon = admission_pb2.RetryWindow(min_ms=0, max_ms=max(CALLED_MS_MIN, len(chosen)))
    for device in chosen:
        sequence = state.check_ins[device]
        yield (
            device,
            admission_pb2.Reject(sequence=sequence, reason=admission_pb2.WORK_CAME, retry=soon),
        )


def absent(state: EdgeState) -> list[admission_pb2.Away]:
    """The devices that are there and not in the pool, by reason."""
    found: dict[int, list[int]] = {}
    room = DEVICES_PER_EDGE_MAX - len(state.pool)
    for device, (reason, _) in islice(state.away.items(), room):
        found.setdefault(reason, []).append(device)
    name = admission_pb2.RejectReason.Name
    return [
        admission_pb2.Away(reason=name(reason), devices=sorted(devices))
        for reason, devices in sorted(found.items())
    ]


def reject(
    state: EdgeState,
    policy: EdgePolicy,
    sequence: int,
    reason: admission_pb2.RejectReason,
    now: int,
) -> admission_pb2.Reject:
    """Sends the device of a check-in away."""
    return admission_pb2.Reject(
        sequence=sequence, reason=reason, retry=_retry(state, policy, reason, now)
    )


def _reason_against(
    state: EdgeState, policy: EdgePolicy, message: admission_pb2.CheckIn, tasked: int
) -> admission_pb2.RejectReason | None:
    """Why a device cannot be in the pool; None when it can."""
    pace, its = state.pace, message.eligibility
    if state.phase is Phase.DRAINING:
        return admission_pb2.DRAINING
    if message.protocol < PROTOCOL:
        return admission_pb2.PROTOCOL_TOO_OLD
    if not its.consented:
        return admission_pb2.NOT_CONSENTED
    known = message.device in state.pool
    if not known and len(state.pool) + tasked >= policy.devices_max:
        return admission_pb2.EDGE_FULL
    if pace is None:
        return None
    if pace.ready_max == 0:
        return admission_pb2.NO_WORK
    asked, has = pace.requirements, message.facts
    for needed, given in (
        (asked.powered, its.powered),
        (asked.unmetered, its.unmetered),
        (asked.idle, its.idle),
        (asked.fresh, its.fresh),
    ):
        if needed and not given:
            return admission_pb2.NOT_ELIGIBLE
    for needed_mib, given_mib in (
        (asked.memory_mib, has.memory_mib),
        (asked.storage_mib, has.storage_mib),
    ):
        # Zero: the device does not say, and is taken to have enough.
        if 0 < given_mib < needed_mib:
            return admission_pb2.TOO_SMALL
    if not known and len(state.pool) >= pace.ready_max:
        return admission_pb2.POOL_FULL
    return None


def _retry(
    state: EdgeState, policy: EdgePolicy, reason: admission_pb2.RejectReason, now: int
) -> admission_pb2.RetryWindow:
    pace = state.pace
    low, high = window(pace.after_reject) if pace is not None else policy.after_reject_ms
    if reason == admission_pb2.NO_WORK:
        low, high = NO_WORK_TIMES * low, NO_WORK_TIMES * high
    elif reason == admission_pb2.POOL_FULL and pace is not None:
        # Pace steering: they come back in turn, as many as the pool has places in half a window, so
        # the number of check-ins in a second does not grow with the fleet. No turn is later than if
        # all of the fleet had been sent away twice: frequent check-ins delay no other device.
        spread = high - low
        turn = max(state.turn_ns, now + low * MS) + spread * MS // (2 * pace.ready_max)
        latest = low + spread * (1 + len(state.check_ins) // pace.ready_max)
        latest = max(low, min(latest, RETRY_MS_MAX - spread))
        state.turn_ns = min(turn, now + latest * MS)
        low = (state.turn_ns - now) // MS
        high = low + spread
    return admission_pb2.RetryWindow(min_ms=low, max_ms=high)
