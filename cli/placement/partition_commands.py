"""`delian partition`: where a bundle's program is best cut between device, edge and cloud."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...core.common.errors import DelianError
from ..options import AsJson
from ..output import table, tell, write_out
from .placement_text import TIERS, explained, ms, told

if TYPE_CHECKING:
    from ...core.compiler.ir import Function
    from ...core.learning.bundle import Bundle
    from ...core.placement.cut.link_model import LinkProfile
    from ...core.placement.cut.placement_plan import PlacementPlan
    from ...core.placement.cut.problem import Objective
    from ...core.placement.cut.profile import NodeProfile
    from ...core.placement.cut.program_costs import Options

app = typer.Typer(help="Cut a bundle between device, edge and cloud.", no_args_is_help=True)

_MEMORY = "--memory device=64MB,edge=2GB"
_TERM = re.compile(r"(?:([0-9.]+)\s*\*\s*)?(latency|throughput|energy)")
_SIZE = re.compile(r"([0-9.]+)\s*([kKMG]?)i?B?")
_UNITS = {"": 1, "k": 1 << 10, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_PLACE = re.compile(r"(.+\.py):([0-9]+)")

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
    str, typer.Option("--memory", help="Limits: device=64MB,edge=2GB. (default: the profiles')")
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
    """Show the best cut of a program.

    What runs where, what crosses the links and how it is written, the time by tier and link; and
    for comparison the second best cut and each tier alone.
    """
    from ...core.placement.cut.link_model import LinkProfile

    links = [LinkProfile.parse(link_device_edge), LinkProfile.parse(link_edge_cloud)]
    case = _case(
        bundle, [device, edge, cloud], links, objective, wire, pin or [], memory, program, measure
    )
    facts = explained(case)
    if what_if:
        changed = replace(case, links=_changed(case.links, what_if))
        facts["what_if"] = {"changes": list(what_if), **explained(changed)}
    tell(facts, as_json, lambda: told(facts, operations))


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
    """Write the best cut for every bandwidth of the device's link.

    Devices, edges and the cloud load the plan. The latency of that link, and the other link, are as
    given.
    """
    from ...core.placement.cut.link_model import LinkProfile, parse_bandwidth
    from ...core.placement.cut.planning import plan_of

    least, most = parse_bandwidth(low), parse_bandwidth(high)
    if least > most:
        raise DelianError(f"--from {low} is more than --to {high}", "--from 50kbit/s --to 10Gbit/s")
    LinkProfile(least, most, 0.0)  # each is a bandwidth that a link may have
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
        low=least,
        high=most,
        seconds=case.seconds,
    )
    write_out(out, made.to_json())
    rows = _plan_rows(made)
    facts = {"plan": str(out), "digest": made.digest(), "pieces": rows}
    tell(facts, as_json, lambda: [*_plan_lines(rows, len(case.profiles)), str(out)])


# -- what was given


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be placed."""

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
    """As `problem_of` takes them."""
    measured: tuple[bool, ...]
    """By tier, whether the times are the program's own, not worked out from classes of operations.
    """


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
) -> Case:
    from ...core.compiler.ir_codec import content_hash
    from ...core.learning.bundle import load
    from ...core.placement.cut.program_costs import Options
    from ...simulations.runs.host_facts import cpu_name
    from .profile_commands import read_profile

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
    own = content_hash(function)
    here = cpu_name() if measure else None
    measured = tuple(own in p.programs or p.cpu == here for p in profiles)
    return Case(
        *(made, bundle, program, function, resident, profiles),
        *(tuple(links[: len(profiles) - 1]), objective, options, seconds, measured),
    )


def _resident(bundle: Bundle, program: str) -> int:
    """How many of a program's parameters are the model's, which every tier has."""
    manifest = bundle.manifest
    first = manifest.model if program in ("infer", "evaluate") else manifest.state
    return len(first) + len(manifest.frozen)


def _measured(function: Function, profiles: Sequence[NodeProfile]) -> tuple[tuple[float, ...], ...]:
    """This node's times for the tiers that have its processor, the model's for the others."""
    from ...core.placement.cut.costs import op_seconds
    from ...core.placement.cut.measure import measured_seconds
    from ...simulations.runs.host_facts import cpu_name

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
    from ...core.placement.cut.problem import Objective

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
    from ...core.placement.cut.wire_formats import NARROW

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
    except (ValueError, OverflowError):
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
    """The links with the first one's bandwidth or latency changed.

    "edge-cloud." before a key: the second one's.
    """
    from ...core.placement.cut.link_model import parse_bandwidth, parse_seconds

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


def _plan_rows(made: PlacementPlan) -> list[dict[str, Any]]:
    from ...core.placement.cut.cut import Cut

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
    from ...core.placement.cut.link_model import bits

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
