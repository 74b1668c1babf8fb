"""What `delian partition explain` says of a placement: facts, and lines for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...core.common.errors import innermost
from ..output import table

if TYPE_CHECKING:
    from ...core.placement.cut.link_model import LinkProfile
    from ...core.placement.cut.problem import Placement
    from ...core.placement.cut.program_costs import Model, Placed
    from .partition_commands import Case

TIERS = ("device", "edge", "cloud")
#: Lines of operations that are shown of a tier, unless all are asked for.
_LINES = 6


def explained(case: Case) -> dict[str, Any]:
    """The best cut of a case, the second best, and each tier alone.

    Raises PlacementError where no cut is allowed.
    """
    from ...core.placement.cut.price import fits, price
    from ...core.placement.cut.problem import PlacementError
    from ...core.placement.cut.program_costs import placed, problem_of
    from ...core.placement.cut.solver import runner_up, solve

    model = problem_of(
        case.function, case.resident, case.profiles, case.links, case.options, case.seconds
    )
    found = placed(model, solve)
    model, best = found.model, found.placement
    second = runner_up(model.problem, best)
    alone = {}
    for tier in range(len(case.profiles)):
        try:
            only = price(model.problem, [tier] * len(model.groups))
            alone[TIERS[tier]] = {
                **_figures(only, case.links),
                "fits": fits(model.problem, only),
            }
        except PlacementError:
            alone[TIERS[tier]] = {"refused": "not allowed by what is pinned"}
    return {
        "bundle": str(case.file),
        "hash": case.bundle.content_hash(),
        "program": case.program,
        "objective": case.objective,
        "profiles": [
            {
                "tier": t,
                "name": p.name,
                "cpu": p.cpu,
                "digest": p.digest(),
                "measured": measured,
            }
            for t, p, measured in zip(TIERS, case.profiles, case.measured, strict=False)
        ],
        "links": [{**link.body(), "text": str(link)} for link in case.links],
        "best": {
            **_figures(best, case.links),
            "optimal": best.optimal,
            "memory": list(found.memory),
            "cut": found.cut.digest(),
            "labels": list(model.labels(best.labels)),
            "crossings": _crossings(found),
            "operations": _operations(model, best),
        },
        "runner_up": None
        if second is None
        else {**_figures(second, case.links), "moves": _moves(model, best, second)},
        "alone": alone,
    }


def _figures(placement: Placement, links: Sequence[LinkProfile]) -> dict[str, Any]:
    ways = zip(placement.up_seconds, placement.down_seconds, placement.fixed_seconds, strict=True)
    return {
        "cost": placement.cost,
        "latency_s": placement.latency,
        "slowest_s": placement.slowest,
        "joules": placement.joules,
        "tiers_s": list(placement.tier_seconds),
        "links_s": [math.fsum(way) for way in ways],
        "up_bytes": list(placement.up_bytes),
        "down_bytes": list(placement.down_bytes),
    }


def _crossings(found: Placed) -> list[dict[str, Any]]:
    out = []
    model = found.model
    graph = model.graph
    for c in found.placement.crossings:
        value = model.values[c.tensor]
        op = graph.producer[value]
        wire = found.wire(c.tensor)
        out.append(
            {
                "value": value,
                "link": c.hop,
                "up": c.up,
                "type": str(graph.values[value].type),
                "wire": wire.dtype,
                "bytes": wire.nbytes,
                "from": _place(model, op) if op >= 0 else graph.function.param_names[value],
            }
        )
    return out


def _place(model: Model, op: int) -> str:
    """Where in the source an operation is from.

    The innermost call in the user's own files, or in Delian's where the model is one of its
    catalogue.
    """
    loc = innermost(model.graph.function.body.ops[op].locs)
    return f"%{op}" if loc is None else f"{Path(loc.file).name}:{loc.line}"


def _operations(model: Model, best: Placement) -> list[dict[str, Any]]:
    """By item, in order."""
    ops = model.graph.function.body.ops
    return [
        {
            "tier": TIERS[tier],
            "numbers": list(group),
            "names": list(dict.fromkeys(ops[i].name for i in group)),
            "places": list(dict.fromkeys(_place(model, i) for i in group)),
            "seconds": model.problem.items[k].seconds[tier],
        }
        for k, (group, tier) in enumerate(zip(model.groups, best.labels, strict=True))
    ]


def _moves(model: Model, best: Placement, other: Placement) -> list[str]:
    """What the other placement has elsewhere, in short."""
    moved = [
        (model.groups[k], a, b)
        for k, (a, b) in enumerate(zip(best.labels, other.labels, strict=True))
        if a != b
    ]
    ops = model.graph.function.body.ops
    out = []
    for group, _, b in moved[:_LINES]:
        names = ", ".join(dict.fromkeys(ops[i].name for i in group))
        out.append(f"{names} ({_place(model, group[0])}) on the {TIERS[b]}")
    if len(moved) > _LINES:
        out.append(f"and {len(moved) - _LINES} more")
    return out


def told(facts: dict[str, Any], operations: bool) -> list[str]:
    """Lines of what `explained` gave. operations: whether all of them are shown."""
    lines = [f"{facts['program']} of {facts['bundle']}, {facts['objective']}"]
    lines += _section(facts, operations)
    if "what_if" in facts:
        lines += ["", f"what if {', '.join(facts['what_if']['changes'])}"]
        lines += _section(facts["what_if"], operations)
    return lines


def _section(facts: dict[str, Any], operations: bool) -> list[str]:
    best = facts["best"]
    head = f"best cut: {ms(best['latency_s'])}"
    if "throughput" in facts["objective"]:
        head += f", slowest stage {ms(best['slowest_s'])}"
    if "energy" in facts["objective"]:
        head += f", {best['joules']:.3g} J"
    lines = [head + ("" if best["optimal"] else " (not proved)")]
    rows = []
    for k, profile in enumerate(facts["profiles"]):
        mine = [o for o in best["operations"] if o["tier"] == profile["tier"]]
        count = sum(len(o["numbers"]) for o in mine)
        rows.append(
            (
                profile["tier"],
                ms(best["tiers_s"][k]),
                f"{count} operations",
                f"{best['memory'][k] / 2**20:.1f} MiB" if mine else "",
                profile["name"] + (", measured" if profile["measured"] else ""),
            )
        )
        if k < len(facts["links"]):
            moved = f"{best['up_bytes'][k]:,} B up, {best['down_bytes'][k]:,} B down"
            rows.append((" link", ms(best["links_s"][k]), moved, "", facts["links"][k]["text"]))
    lines += [f"  {line}" for line in table(("", "time", "", "memory", ""), rows)]
    lines += _where(best, operations)
    for c in best["crossings"]:
        way = "up" if c["up"] else "down"
        link = f"{TIERS[c['link']]}-{TIERS[c['link'] + 1]}"
        lines.append(
            f"  {link} {way}: {c['type']} as {c['wire']}, {c['bytes']:,} B, from {c['from']}"
        )
    lines += _others(facts)
    return lines


def _where(best: dict[str, Any], operations: bool) -> list[str]:
    lines = []
    for tier in TIERS:
        mine = [o for o in best["operations"] if o["tier"] == tier]
        if not mine:
            continue
        lines.append(f"  on the {tier}:")
        timed = [o for o in mine if o["seconds"] > 0]
        shown = mine if operations else sorted(timed, key=lambda o: -o["seconds"])[:_LINES]
        shown = sorted(shown, key=lambda o: o["numbers"])
        for o in shown:
            names, places = ", ".join(o["names"]), " ".join(o["places"][:3])
            lines.append(f"    {ms(o['seconds']):>10}  {names}  {places}")
        if len(shown) < len(mine):
            lines.append(f"    {'':>10}  and {len(mine) - len(shown)} smaller steps")
    return lines


def _others(facts: dict[str, Any]) -> list[str]:
    best, second = facts["best"], facts["runner_up"]
    lines = []
    if second is not None:
        more = second["cost"] - best["cost"]
        share = f" ({100 * more / best['cost']:+.1f}%)" if best["cost"] else ""
        lines.append(
            f"  second best: {ms(second['latency_s'])}{share}: {'; '.join(second['moves'])}"
        )
    for tier, only in facts["alone"].items():
        told = only.get("refused") or ms(only["latency_s"])
        lines.append(f"  {tier} alone: {told}{'' if only.get('fits', True) else ', does not fit'}")
    return lines


def ms(seconds: float) -> str:
    """Milliseconds for people."""
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
