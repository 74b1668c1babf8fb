"""Runs a scenario of partitioned execution and says what came of it, as one JSON object.

The same requests, links and outages are run three times: with the scenario's cuts as the machines
choose them, with devices alone, and with everything above (the cut of which the device runs least).
Latencies are from a request to its answer; a request that was refused has none, and is counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...core.placement.subgraphs.machines.part_ports import Course
from ...core.placement.subgraphs.machines.request_table import Local
from ...core.protocol.ports import SECOND
from . import cut_scenario
from .cut_world import Served, World
from .links_over_time import MBPS, LinkTrace

FORMAT = 1
#: Devices whose links and cuts the report shows over time: one of each kind of link, then others.
SHOWN_MAX = 6
#: Points of a distribution.
QUANTILES = 200
#: Points of one line over time.
POINTS_MAX = 2_000

#: What is asked above without a fallback is waited for, at least so long: a latency says more than
#: a refusal.
PATIENT_S = 60.0

TOGETHER, ALONE, ABOVE = "together", "device only", "all above"


def run_scenario(
    scenario: cut_scenario.CutScenario, say: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """The report. Raises DelianError where the scenario's files are wrong."""
    tables = cut_scenario.tables_of(scenario)
    whole = cut_scenario.whole_s(scenario, tables)
    smaller = scenario.devices.smaller_ms
    local = Local(whole, math.inf if smaller is None else smaller / 1e3)
    courses = cut_scenario.courses_of(scenario, tables, whole)
    kinds = cut_scenario.links_of(scenario)
    links = [trace for _, trace in kinds]
    arms: list[dict[str, Any]] = []
    worlds: dict[str, World] = {}
    for name, cuts, alone in _arms(courses, local):
        say(f"{name}: {len(kinds)} devices, {scenario.seconds:g} s")
        setup = cut_scenario.setup_of(scenario, cuts, alone, links)
        if name == ABOVE:
            setup = replace(setup, deadline_s=max(setup.deadline_s, PATIENT_S))
        world = World(setup, scenario.seed)
        world.run()
        worlds[name] = world
        arms.append(_arm(name, world, [kind for kind, _ in kinds], scenario.devices.deadline_ms))
    world = worlds[TOGETHER]
    report: dict[str, Any] = {
        "format": FORMAT,
        "kind": "partition",
        "name": scenario.name,
        "description": " ".join(scenario.description.split()),
        "seed": scenario.seed,
        "seconds": scenario.seconds,
        "trace": world.trace(),
        "scenario": scenario.model_dump(mode="json"),
        "whole_ms": whole * 1e3,
        "cuts": _cuts(tables, courses, world),
        "arms": arms,
        "devices": _devices(world, kinds, courses, scenario.seconds),
        "outages": [o.model_dump(mode="json") for o in scenario.outages],
        "batches": _batches(world),
        "checked": None,
    }
    if scenario.check:
        from .cut_check import check_scenario  # compiles programs

        used = {cut["number"] for cut in report["cuts"] if cut["requests"]}
        report["checked"] = check_scenario(scenario, sorted(used), say)
    return report


def _arms(courses: Sequence[Course], local: Local) -> list[tuple[str, tuple[Course, ...], Local]]:
    """(name, cuts, what a device runs alone) of each run."""
    found = [(TOGETHER, tuple(courses), local), (ALONE, (), local)]
    above = [c for c in courses if c.legs]
    if above:
        # Of those that leave the device least, the one that sends least: narrow wires are fair.
        least = min(above, key=lambda c: c.seconds[0] if c.before is not None else 0.0)
        same = [c for c in above if c.before is None] or [least]
        chosen = min(same, key=lambda c: c.legs[0].up)
        # Without a fallback: what is asked above is answered above, or not at all.
        found.append((ABOVE, (replace(chosen, rest=math.inf),), Local()))
    return found


def _arm(name: str, world: World, kinds: Sequence[str], deadline_ms: float) -> dict[str, Any]:
    served = world.served
    groups = {"all": served}
    for kind in dict.fromkeys(kinds):
        groups[kind] = [s for s in served if kinds[s.device] == kind]
    return {
        "name": name,
        "hedged": world.hedged,
        "switches": len(world.switches),
        "trace": world.trace(),
        "groups": {key: _figures(group, deadline_ms) for key, group in groups.items()},
    }


def _figures(served: Sequence[Served], deadline_ms: float) -> dict[str, Any]:
    """Counts, and the latencies in ms."""
    took = sorted((s.answered - s.asked) / SECOND * 1e3 for s in served if s.answered is not None)
    by = Counter(str(s.by) for s in served if s.fallback)
    return {
        "requests": len(served),
        "answered": len(took),
        "refused": sum(s.failure is not None for s in served),
        "late": sum(ms > deadline_ms for ms in took),
        "fallback": dict(sorted(by.items())),
        "mean_ms": sum(took) / len(took) if took else None,
        **{f"p{q}_ms": quantile(took, q / 100) for q in (50, 95, 99)},
        "max_ms": took[-1] if took else None,
        "cdf": [quantile(took, k / QUANTILES) for k in range(QUANTILES + 1)] if took else [],
    }


def quantile(values: Sequence[float], q: float) -> float | None:
    """The smallest of the sorted values that a share `q` of them does not exceed."""
    if not values:
        return None
    return values[max(0, math.ceil(q * len(values)) - 1)]


def _cuts(
    tables: Sequence[cut_scenario.CutTable], courses: Sequence[Course], world: World
) -> list[Any]:
    used = Counter(s.cut for s in world.served if s.answered is not None and not s.fallback)
    return [
        {"number": k, **table.model_dump(mode="json"), "requests": used[course.cut]}
        for k, (table, course) in enumerate(zip(tables, courses, strict=True))
    ]


def _batches(world: World) -> dict[str, Any]:
    sizes = Counter(size for edge in world.edges for size in edge.batches)
    runs, requests = sum(sizes.values()), sum(k * n for k, n in sizes.items())
    return {
        "runs": runs,
        "requests": requests,
        "mean": requests / runs if runs else None,
        "max": max(sizes, default=0),
    }


def _devices(
    world: World, kinds: Sequence[tuple[str, LinkTrace]], courses: Sequence[Course], seconds: float
) -> list[dict[str, Any]]:
    """Links, their estimated bandwidths, cuts and switches over time, of some devices."""
    first = {kind: device for device, (kind, _) in reversed(list(enumerate(kinds)))}
    order = [*first.values(), *(d for d in range(len(kinds)) if d not in first.values())]
    numbers = {course.cut: k for k, course in enumerate(courses)}
    alone = next((k for k, c in enumerate(courses) if not c.legs), None)
    shown = []
    for device in sorted(order[:SHOWN_MAX]):
        kind, trace = kinds[device]
        estimated = [(at, up) for d, at, up in world.estimated if d == device]
        switches = [s for s in world.switches if s.device == device]
        shown.append(
            {
                "device": device,
                "link": kind,
                "mean_mbps": trace.mean_up() / MBPS,
                "mbps": _thinned(_stretches(trace, seconds)),
                "estimated": _thinned([(at / SECOND, up / MBPS) for at, up in estimated]),
                "switches": [
                    {
                        "at": s.at / SECOND,
                        "before": numbers.get(s.before, alone),
                        "after": numbers.get(s.after, alone),
                        "mbps": s.up / MBPS,
                    }
                    for s in switches
                ],
                "latency": _thinned(
                    [
                        (s.asked / SECOND, (s.answered - s.asked) / SECOND * 1e3)
                        for s in world.served
                        if s.device == device and s.answered is not None
                    ]
                ),
            }
        )
    return shown


def _stretches(trace: LinkTrace, seconds: float) -> list[tuple[float, float]]:
    """(second, Mbit/s) where the bandwidth changes."""
    points: list[tuple[float, float]] = []
    turn, length = 0.0, trace.length / SECOND
    if len(trace.starts) == 1:
        return [(0.0, trace.up[0] / MBPS)]
    while turn < seconds and len(points) < 10 * POINTS_MAX:
        for start, up in zip(trace.starts, trace.up, strict=True):
            if turn + start / SECOND < seconds:
                points.append((turn + start / SECOND, up / MBPS))
        turn += length
    return points


def _thinned(points: Sequence[tuple[float, float]]) -> list[list[float]]:
    step = max(1, math.ceil(len(points) / POINTS_MAX))
    return [[round(x, 4), round(y, 4)] for x, y in points[::step]]
