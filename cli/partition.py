"""`delian partition`: where a bundle's program is best cut between device, edge and cloud."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.errors import DelianError
from .coordinator import AsJson, table, tell

if TYPE_CHECKING:
    from ..core.bundle import Bundle
    from ..core.ir import Function
    from ..core.placement.links import LinkProfile
    from ..core.placement.plan import PlacementPlan
    from ..core.placement.problem import Objective, Placement
    from ..core.placement.profile import NodeProfile
    from ..core.placement.programs import Model, Options, Placed

app = typer.Typer(help="Cut a bundle between device, edge and cloud.", no_args_is_help=True)

TIERS = ("device", "edge", "cloud")
_MEMORY = "--memory device=64MB,edge=2GB"
_TERM = re.compile(r"(?:([0-9.]+)\s*\*\s*)?(latency|throughput|energy)")
_SIZE = re.compile(r"([0-9.]+)\s*([kKMG]?)i?B?")
_UNITS = {"": 1, "k": 1 << 10, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_PLACE = re.compile(r"(.+\.py):([0-9]+)")
#: Lines of operations that are shown of a tier, unless all are asked for.
_LINES = 6

BundleFile = Annotated[Path, typer.Argument(help="The .bundle to cut.")]
Device = Annotated[
    Path, typer.Option("--device", help="The device's profile, from delian profile --out.")
]
Edge = Annotated[Path, typer.Option("--edge", help="The edge's.")]
Cloud = Annotated[
    Path | None, typer.Option("--cloud", help="The cloud's. Without it there are two tiers.")
]
DeviceEdge = Annotated[
    str, typer.Option("--link-device-edge", metavar="LINK", help='Such as "5.85Mbit/s,20ms".')
]
EdgeCloud = Annotated[
    str, typer.Option("--link-edge-cloud", metavar="LINK", help="Likewise, of the edge's uplink.")
]
Wanted = Annotated[
    str,
    typer.Option(
        "--objective", help="latency, throughput, energy, or a sum: 0.7*latency+0.3*energy."
    ),
]
Wires = Annotated[
    str, typer.Option("--wire", help="How tensors may be written on a link: f32,f16,i8.")
]
Pins = Annotated[
    list[str] | None,
    typer.Option(
        "--pin",
        metavar="WHAT[=TIER]",
        help="input: stays on the device (or below TIER). model.py:12=edge: these operations run"
        " there.",
    ),
]
Memory = Annotated[
    str, typer.Option("--memory", help="Limits: device=64MB,edge=2GB. [default: the profiles']")
]
ProgramName = Annotated[str, typer.Option("--program", help="Which program of the bundle.")]
Measured = Annotated[
    bool,
    typer.Option(
        "--measure",
        help="Time this program here, operation by operation, for the tiers whose profiles are of"
        " this processor.",
    ),
]


@app.command("explain")
def explain(
    bundle: BundleFile,
    device: Device,
    edge: Edge,
    cloud: Cloud = None,
    link_device_edge: DeviceEdge = "5.85Mbit/s,20ms",
    link_edge_cloud: EdgeCloud = "100Mbit/s,10ms",
    objective: Wanted = "latency",
    wire: Wires = "f32",
    pin: Pins = None,
    memory: Memory = "",
    program: ProgramName = "infer",
    measure: Measured = False,
    what_if: Annotated[
        list[str] | None,
        typer.Option("--what-if", metavar="KEY=VALUE", help="bandwidth=1.1Mbit/s, latency=50ms."),
    ] = None,
    operations: Annotated[
        bool, typer.Option("--operations", help="Show every operation of every tier.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the best cut of a program: what runs where, what crosses the links and how it is
    written, the time by tier and link; and beside it the second best cut and each tier alone.
    """
    from ..core.placement.links import LinkProfile

    links = [LinkProfile.parse(link_device_edge), LinkProfile.parse(link_edge_cloud)]
    case = _case(
        bundle, [device, edge, cloud], links, objective, wire, pin or [], memory, program, measure
    )
    facts = _explained(case)
    if what_if:
        changed = replace(case, links=_changed(case.links, what_if))
        facts["what_if"] = {"changes": list(what_if), **_explained(changed)}
    tell(facts, as_json, lambda: _told(facts, operations))


@app.command("plan")
def plan(
    bundle: BundleFile,
    device: Device,
    edge: Edge,
    out: Annotated[Path, typer.Option("-o", "--out", help="Where the plan goes: plan.json.")],
    cloud: Cloud = None,
    link_device_edge: DeviceEdge = "5.85Mbit/s,20ms",
    link_edge_cloud: EdgeCloud = "100Mbit/s,10ms",
    objective: Wanted = "latency",
    wire: Wires = "f32",
    pin: Pins = None,
    memory: Memory = "",
    program: ProgramName = "infer",
    measure: Measured = False,
    low: Annotated[str, typer.Option("--from", help="The least bandwidth.")] = "50kbit/s",
    high: Annotated[str, typer.Option("--to", help="The greatest.")] = "10Gbit/s",
    as_json: AsJson = False,
) -> None:
    """Write the best cut for every bandwidth of the device's link, as devices, edges and the cloud
    load it. The link's latency, and the other link, are as given.
    """
    from ..core.files import write_whole
    from ..core.placement.links import LinkProfile, parse_bandwidth
    from ..core.placement.planning import plan_of

    links = [LinkProfile.parse(link_device_edge), LinkProfile.parse(link_edge_cloud)]
    case = _case(
        bundle, [device, edge, cloud], links, objective, wire, pin or [], memory, program, measure
    )
    made = plan_of(
        case.function,
        case.resident,
        case.profiles,
        case.links,
        case.options,
        bundle=case.bundle.content_hash(),
        program=program,
        objective=objective,
        low=parse_bandwidth(low),
        high=parse_bandwidth(high),
        seconds=case.seconds,
    )
    try:
        write_whole(out, made.to_json())
    except OSError as error:
        raise DelianError(f"{out}: cannot be written: {error.strerror}") from None
    rows = _plan_rows(made)
    facts = {"plan": str(out), "digest": made.digest(), "pieces": rows}
    tell(facts, as_json, lambda: [*_plan_lines(rows, len(case.profiles)), str(out)])


# -- what was given


@dataclass(frozen=True, slots=True)
class _Case:
    """What is to be placed. seconds: as `problem_of` takes them."""

    bundle: Bundle
    file: Path
    program: str
    function: Function
    resident: range
    profiles: tuple[NodeProfile, ...]
    links: tuple[LinkProfile, ...]
    objective: str
    options: Options
    seconds: tuple[tuple[float, ...], ...]


def _case(
    bundle: Path,
    files: Sequence[Path | None],
    links: Sequence[LinkProfile],
    objective: str,
    wire: str,
    pin: Sequence[str],
    memory: str,
    program: str,
    measure: bool,
) -> _Case:
    from ..core.bundle import load
    from ..core.placement.programs import Options
    from .profile import read_profile

    made = load(bundle)
    if program not in made.programs:
        raise DelianError(
            f"{bundle} has no program `{program}`", f"it has {', '.join(made.programs)}"
        )
    function = made.programs[program]
    resident = range(_resident(made, program))
    profiles = tuple(read_profile(f) for f in files if f is not None)
    weights = parse_objective(objective)
    if weights.energy and not (profiles[0].joules_per_second or profiles[0].joules_per_byte):
        raise DelianError(
            "the device's profile says nothing of energy",
            "delian profile --watts 3 --joules-per-mb 0.5",
        )
    ceilings, pins = _pins(function, resident, pin, len(profiles))
    options = Options(
        objective=weights,
        wires=_wires(wire),
        ceilings=ceilings,
        pins=pins,
        memory=_memory(memory, profiles),
    )
    seconds = _measured(function, profiles) if measure else ()
    return _Case(
        *(made, bundle, program, function, resident, profiles),
        *(tuple(links[: len(profiles) - 1]), objective, options, seconds),
    )


def _resident(bundle: Bundle, program: str) -> int:
    """How many of a program's parameters are the model's, which every tier has."""
    manifest = bundle.manifest
    if program == "infer":
        return len(manifest.model)
    if program == "evaluate":
        return len(manifest.model)
    return len(manifest.state)


def _measured(function: Function, profiles: Sequence[NodeProfile]) -> tuple[tuple[float, ...], ...]:
    """This node's times for the tiers that have its processor, the model's for the others."""
    from ..core.placement.costs import op_seconds
    from ..core.placement.measure import measured_seconds
    from ..simulations.host import cpu_name

    here = cpu_name()
    if all(p.cpu != here for p in profiles):
        raise DelianError(
            "--measure: no profile is of this processor",
            "run delian profile --bundle on the nodes themselves",
        )
    own = measured_seconds(function)
    return tuple(own if p.cpu == here else op_seconds(function, p) for p in profiles)


def parse_objective(text: str) -> Objective:
    """Reads "0.7*latency+0.3*energy". Raises DelianError."""
    from ..core.placement.problem import Objective

    hint = "latency, throughput, energy, or a sum such as 0.7*latency+0.3*energy"
    weights: dict[str, float] = {"latency": 0.0, "throughput": 0.0, "energy": 0.0}
    for term in text.split("+"):
        found = _TERM.fullmatch(term.strip())
        try:
            weight = 1.0 if found is None or found[1] is None else float(found[1])
        except ValueError:
            found = None
        if found is None:
            raise DelianError(f"not an objective: {text!r}", hint)
        weights[found[2]] += weight
    if not sum(weights.values()) > 0:
        raise DelianError(f"an objective without weight: {text!r}", hint)
    return Objective(**weights)


def _wires(text: str) -> tuple[str, ...]:
    from ..core.placement.wires import NARROW

    found = tuple(w.strip() for w in text.split(",") if w.strip())
    known = ("f32", *NARROW)
    wrong = [w for w in found if w not in known]
    if wrong or not found:
        raise DelianError(f"not a wire: {', '.join(wrong) or text!r}", f"some of {','.join(known)}")
    return found


def _memory(text: str, profiles: Sequence[NodeProfile]) -> tuple[int | None, ...]:
    limits = [p.memory for p in profiles]
    names = TIERS[: len(profiles)]
    for part in filter(None, (p.strip() for p in text.split(","))):
        tier, _, size = part.partition("=")
        if tier not in names:
            raise DelianError(f"not a tier's limit of memory: {part!r}", _MEMORY)
        limits[names.index(tier)] = parse_size(size, _MEMORY)
    return tuple(limits)


def parse_size(text: str, example: str) -> int:
    """Bytes of "64MB" (of 1,024 x 1,024). Raises DelianError."""
    found = _SIZE.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        return int(float(found[1]) * _UNITS[found[2]])
    except ValueError:
        raise DelianError(f"not a size: {text!r}", example) from None


def _pins(
    function: Function, resident: range, pins: Sequence[str], tiers: int
) -> tuple[dict[int, int], dict[int, int]]:
    """(ceilings by value, tiers by operation)."""
    ceilings: dict[int, int] = {}
    chosen: dict[int, int] = {}
    inputs = {name: i for i, name in enumerate(function.param_names) if i not in resident}
    for text in pins:
        what, _, where = text.partition("=")
        names = TIERS[:tiers]
        if where not in ("", *names):
            raise DelianError(f"--pin {text}: there is no tier {where!r}", ", ".join(names))
        tier = names.index(where) if where else 0
        place = _PLACE.fullmatch(what)
        if place is not None:
            found = [
                i
                for i, op in enumerate(function.body.ops)
                if any(_is_at(loc.file, loc.line, place) for loc in op.locs)
            ]
            if not found:
                raise DelianError(
                    f"--pin {text}: no operation is from that line", "see --operations"
                )
            chosen.update(dict.fromkeys(found, tier))
        elif what == "input" or what in inputs:
            numbers = inputs.values() if what == "input" else [inputs[what]]
            ceilings.update(dict.fromkeys(numbers, tier))
        else:
            raise DelianError(
                f"--pin {text}: the program has no input {what!r}",
                f"input, one of {', '.join(inputs)}, or a line such as model.py:12=edge",
            )
    return ceilings, chosen


def _is_at(file: str, line: int, place: re.Match[str]) -> bool:
    return line == int(place[2]) and Path(file).name == Path(place[1]).name


def _changed(links: Sequence[LinkProfile], changes: Sequence[str]) -> tuple[LinkProfile, ...]:
    """The links with the first one's bandwidth or latency changed; "edge-cloud." before a key: the
    second one's.
    """
    from ..core.placement.links import parse_bandwidth, parse_seconds

    out = list(links)
    for text in changes:
        key, _, value = text.partition("=")
        second = key.startswith("edge-cloud.")
        k, name = int(second), key.removeprefix("edge-cloud.")
        if name not in ("bandwidth", "latency") or k >= len(out):
            raise DelianError(
                f"--what-if {text}: not known",
                "bandwidth=1.1Mbit/s or latency=50ms, edge-cloud.bandwidth=... for the second link",
            )
        if name == "bandwidth":
            up = parse_bandwidth(value)
            out[k] = replace(out[k], up=up, down=up * out[k].down / out[k].up)
        else:
            out[k] = replace(out[k], latency_s=parse_seconds(value))
    return tuple(out)


# -- what is said


def _explained(case: _Case) -> dict[str, Any]:
    from ..core.placement.price import fits, price
    from ..core.placement.problem import PlacementError
    from ..core.placement.programs import placed, problem_of
    from ..core.placement.solve import runner_up, solve

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
            {"tier": t, "name": p.name, "cpu": p.cpu, "digest": p.digest()}
            for t, p in zip(TIERS, case.profiles, strict=False)
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
    """Where in the source an operation is from, the innermost call."""
    found = model.graph.function.body.ops[op]
    if not found.locs:
        return f"%{op}"
    loc = found.locs[-1]
    return f"{Path(loc.file).name}:{loc.line}"


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


# -- for people


def _told(facts: dict[str, Any], operations: bool) -> list[str]:
    lines = [f"{facts['program']} of {facts['bundle']}, {facts['objective']}"]
    lines += _section(facts, operations)
    if "what_if" in facts:
        lines += ["", f"what if {', '.join(facts['what_if']['changes'])}"]
        lines += _section(facts["what_if"], operations)
    return lines


def _section(facts: dict[str, Any], operations: bool) -> list[str]:
    best = facts["best"]
    lines = [f"best cut: {ms(best['latency_s'])}" + ("" if best["optimal"] else " (not proved)")]
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
                profile["name"],
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


def _plan_rows(made: PlacementPlan) -> list[dict[str, Any]]:
    from ..core.placement.cut import Cut

    rows = []
    for piece in made.pieces:
        cut = Cut.from_bytes(piece.cut)
        tiers = range(len(made.profiles))
        middle = math.sqrt(piece.low * piece.high)
        first = made.links[0]
        link = replace(first, up=middle, down=middle * first.down / first.up)
        rows.append(
            {
                "from": piece.low,
                "to": piece.high,
                "operations": [cut.labels.count(t) for t in tiers],
                "up_bytes": list(piece.up),
                "down_bytes": list(piece.down),
                "tiers_s": list(piece.tiers),
                "latency_s": piece.seconds([link, *made.links[1:]]),
                "cut": cut.digest(),
            }
        )
    return rows


def _plan_lines(rows: Sequence[dict[str, Any]], tiers: int) -> list[str]:
    from ..core.placement.links import bits

    head = ("from", "to", "operations", "up", "down", "at the middle")
    return table(
        head,
        [
            (
                bits(r["from"]),
                bits(r["to"]),
                " / ".join(f"{n} {t}" for n, t in zip(r["operations"], TIERS, strict=False)),
                " / ".join(f"{n:,} B" for n in r["up_bytes"]),
                " / ".join(f"{n:,} B" for n in r["down_bytes"]),
                ms(r["latency_s"]),
            )
            for r in rows
        ],
    )
