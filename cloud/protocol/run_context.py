"""What the coordinator gives a run, and the ring that its sums are in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ...core.privacy.mechanisms.ring import RingPlan
from ...core.privacy.secagg.logged import ServedLog
from ...core.privacy.secagg.member_identity import Identity
from ...core.protocol.machine import Backoff
from ...core.protocol.ports import Rng
from .coordinator_state import Attempt, RunState
from .roster import Roster
from .run_plan import RunPlan


@dataclass(slots=True)
class RunContext:
    """What the coordinator gives a run. It replaces the identity, the log and `denied`."""

    plan: RunPlan
    roster: Roster
    rng: Rng
    backoff: Backoff
    #: Signs tasks, and verifies whose keys are whose.
    identity: Identity | None
    #: What proves devices to each other.
    log: ServedLog | None
    #: Version of the deny list.
    denied: int
    #: As in the coordinator's policy.
    names_sums: bool
    #: The number of devices that work for other runs.
    busy_elsewhere: Callable[[], int]


def ring_of(plan: RunPlan, state: RunState, attempt: Attempt) -> RingPlan:
    """The ring of an attempt's sum."""
    return plan.metrics if attempt.evaluates else ring_now(plan, state)


def ring_now(plan: RunPlan, state: RunState) -> RingPlan:
    """The plan's ring, with the clip of the round at hand."""
    if not plan.privacy.clip_quantile:
        return plan.ring
    if state.clip is None:
        state.clip = plan.first_clip(plan.privacy.clip_quantile)
    return replace(plan.ring, within=state.clip.clip)
