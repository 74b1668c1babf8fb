"""What must hold in a machine's state at any time.

Every list has an end, and what is stored twice agrees.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....cloud.protocol.buffered_machine import WAVES_MAX
from ....cloud.protocol.coordinator_state import RUNS_ACTIVE_MAX, RUNS_ENDED_MAX, CoordinatorState
from ....core.protocol.ports import Tier
from ....device.protocol.device_state import BUNDLES_KEPT as DEVICE_BUNDLES
from ....device.protocol.device_state import HOMES_MAX, RUNS_REMEMBERED, DeviceState, Phase
from ....device.protocol.device_triggers import WORKING
from ....edge.protocol import edge_state as edges
from ....edge.protocol.edge_state import IN_SUM, EdgeState, Stage
from ..frozen_parts import PARTS

if TYPE_CHECKING:
    from ..simulated_node import Host

#: Timers of a node, or of one attempt: each has its name.
DEVICE_TIMERS = 4
EDGE_TIMERS, ATTEMPT_TIMERS = 2, 4
CLOUD_TIMERS, RUN_TIMERS = 1, 4


def broken(host: Host) -> str:
    """What does not hold in a node's state; empty: all does."""
    state = host.machine.state
    if host.node.tier is Tier.DEVICE:
        checks = _device(state, host)
    elif host.node.tier is Tier.EDGE:
        checks = _edge(state, host)
    else:
        checks = _cloud(state, host)
    return ", ".join(what for what, holds in checks.items() if not holds)


def _device(state: DeviceState, host: Host) -> dict[str, bool]:
    working = state.phase in (*WORKING, Phase.UNMASKING)
    return {
        "runs": len(state.done) <= RUNS_REMEMBERED,
        "bundles": len(state.bundles) <= DEVICE_BUNDLES,
        "blobs": len(state.have) == len(set(state.have)) <= DEVICE_BUNDLES + 2 + PARTS,
        "kept": sum(state.kept.values()) <= host.machine.owner.policy.blobs_bytes_max,
        "homes": 0 < len(state.homes) <= HOMES_MAX and len(state.former) <= HOMES_MAX,
        "task": (state.task is not None) == working,
        "answer": (state.upload is not None or state.failure is not None)
        == (state.phase is Phase.UPLOADING),
        "timers": len(host.timers) <= DEVICE_TIMERS,
        "programs": len(host.programs) <= 1,
    }


def _edge(state: EdgeState, host: Host) -> dict[str, bool]:
    policy = host.machine.policy
    every = state.collections.values()
    waited = sum(len(c.waiting) for c in every)
    held = sum(len(out.sum) for c in every for out in c.outgoing.values())
    held += sum(c.total.nbytes for c in every if c.total is not None)
    by_run: dict[int, int] = {}
    for closed in state.closed.values():
        by_run[closed.run] = by_run.get(closed.run, 0) + 1
    named = {n.partition("/")[0] for n in host.timers if "/" in n}
    answers = sum(len(c.answers) for c in state.closed.values())
    checks = {
        "attempts": len(state.collections) <= edges.COLLECTIONS_MAX,
        "closed": len(state.closed) <= edges.CLOSED_MAX,
        "closed of a run": max(by_run.values(), default=0) <= edges.CLOSED_PER_RUN,
        "answers": len(state.closed) <= 1 or answers <= edges.ANSWERS_REMEMBERED,
        "floors": len(state.floor) <= edges.RUNS_REMEMBERED,
        "weights": len(state.weights) <= edges.WEIGHTS_KEPT,
        "bundles": len(state.bundles) <= edges.BUNDLES_KEPT,
        "blobs": set(state.have) <= host.blobs.keys(),
        "kept": sum(state.kept.values()) <= policy.blobs_bytes_max,
        "pool": len(state.pool) <= policy.devices_max,
        "check-ins": len(state.check_ins) <= 2 * policy.devices_max,
        "askers": all(len(a) <= policy.devices_max for a in state.asked.values()),
        "asked": len(state.asked) <= 2 * edges.COLLECTIONS_MAX + PARTS,
        "at work": len(host.machine.edge.tasked) <= waited,
        "sums": held <= policy.sum_bytes_max,
        "timers": len(host.timers) <= EDGE_TIMERS + ATTEMPT_TIMERS * len(state.collections),
        "helping": len(state.helping) <= edges.HELPING_MAX,
        "timers of what is over": host.world.faults.loose or named <= state.collections.keys(),
    }
    for name, one in state.collections.items():
        in_part = [d for d in one.in_part if one.answers[d] == IN_SUM]
        checks[f"{name} waits"] = not one.waiting.keys() & one.answers.keys()
        checks[f"{name} counts"] = one.phase is not Stage.COLLECTING or len(in_part) == one.counted
        checks[f"{name} parts"] = len(one.outgoing) <= edges.PARTS_OUT_MAX + 1
        checks[f"{name} sizes"] = one.outgoing.keys() == one.sizes.keys()
        sums = one.phase is not Stage.COLLECTING or (one.total is None) == (not one.counted)
        checks[f"{name} sum"] = sums
    return checks


def _cloud(state: CoordinatorState, host: Host) -> dict[str, bool]:
    devices = host.world.shape.devices
    waves = sum(len(r.open) for r in state.runs.values())
    checks: dict[str, Any] = {
        "runs": len(state.runs) <= RUNS_ACTIVE_MAX and len(state.ended) <= RUNS_ENDED_MAX,
        "edges": len(state.edges) <= host.world.shape.edges + host.world.shape.helpers,
        "timers": len(host.timers) <= CLOUD_TIMERS + RUN_TIMERS * len(state.runs) + 3 * waves,
    }
    for edge, view in state.edges.items():
        checks[f"edge {edge} ready"] = view.ready == sorted(set(view.ready))
        checks[f"edge {edge} seen"] = (
            len(view.seen) <= devices and view.due.keys() <= view.seen.keys()
        )
        checks[f"edge {edge} away"] = len(view.away) <= devices
        checks[f"edge {edge} taken"] = set(view.taken.values()) <= state.runs.keys()
        checks[f"edge {edge} size"] = max(len(view.ready), len(view.taken)) <= devices
    for number, run in state.runs.items():
        checks[f"run {number} waves"] = len(run.open) <= WAVES_MAX + 1
        checks[f"run {number} parked"] = len(run.parked) + len(run.batch) <= 4 * WAVES_MAX
        # A device may have had a part in each of the waves since the last model.
        resolved = len(run.resolved) + len(run.stale)
        checks[f"run {number} resolved"] = resolved <= 64 * devices
        for one in run.open:
            reported = one.reported()
            checks[f"run {number} unused"] = set(one.unused) <= set(reported)
            checks[f"run {number} reported"] = len(reported) == len(set(reported))
            checks[f"run {number} sum"] = (one.total is None) == (not one.unused)
    return checks
