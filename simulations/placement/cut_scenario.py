"""Scenarios of partitioned execution: TOML files for `delian partition simulate`.

A scenario names the cuts that may be used (with their times and sizes, or a plan's file), the
devices and their links, and what goes wrong. It is a kind of file of its own: nothing is trained.
"""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, model_validator

from ...core.common.errors import DelianError
from ...core.placement.cut.placement_plan import BYTES_MAX, Piece, PlacementPlan
from ...core.placement.subgraphs.machines.asker import AskerSettings
from ...core.placement.subgraphs.machines.cut_choice import ChoiceSettings
from ...core.placement.subgraphs.machines.part_ports import Course, Leg, Link
from ...core.placement.subgraphs.machines.part_server import ServerSettings
from ...core.placement.subgraphs.machines.request_table import Local
from ...core.protocol.ports import MS, SECOND
from ...core.protocol.random_streams import Streams
from ..scenario.scenario_file import SCENARIO_BYTES_MAX
from ..scenario.scenario_keys import markdown, reference_of
from ..scenario.settings_table import FileTable, Table, conflict
from .cut_world import Outage, Setup
from .links_over_time import MBPS, LinkTrace, constant, mobile, read_trace

BUNDLED = Path(__file__).parent / "scenarios"
DEFAULT = "subgraphs-mobile"
PROBLEMS_SHOWN_MAX = 5
#: Requests of one run, in all.
REQUESTS_MAX = 1_000_000
_DAY_S = 86_400.0


class CutTable(Table):
    """One cut: what each tier computes of a request, and what crosses."""

    name: str = Field(min_length=1, max_length=60)
    """What the report calls it."""
    device_ms: float = Field(default=0.0, ge=0.0, le=1e7)
    """Its part on the device."""
    edge_ms: float = Field(default=0.0, ge=0.0, le=1e7)
    """Its part on the edge."""
    cloud_ms: float = Field(default=0.0, ge=0.0, le=1e7)
    """Its part in the cloud."""
    up_bytes: int = Field(default=0, ge=0, le=1 << 30)
    """What a request sends to the edge; 0: no request is sent."""
    down_bytes: int = Field(default=0, ge=0, le=1 << 30)
    """And what comes back."""
    cloud_up_bytes: int = Field(default=0, ge=0, le=1 << 30)
    """What the edge sends on to the cloud; 0: nothing."""
    cloud_down_bytes: int = Field(default=0, ge=0, le=1 << 30)
    """And what comes back."""

    def course(self, whole_s: float) -> Course:
        """The cut as the machines take it."""
        seconds, legs = [self.device_ms / 1e3], []
        if self.up_bytes:
            seconds.append(self.edge_ms / 1e3)
            legs.append(Leg(self.up_bytes, self.down_bytes))
        if self.cloud_up_bytes:
            seconds.append(self.cloud_ms / 1e3)
            legs.append(Leg(self.cloud_up_bytes, self.cloud_down_bytes))
        before = 0 if self.device_ms or not legs else None
        rest = max(0.0, whole_s - seconds[0]) if legs else 0.0
        name = sha256(self.name.encode()).digest()
        return Course(name, before, None, tuple(seconds), tuple(legs), rest)


class DevicesTable(Table):
    """The devices: how many, what they compute alone, and what is asked of them."""

    count: int = Field(default=3, ge=1, le=10_000)
    """How many."""
    whole_ms: float | None = Field(default=None, gt=0.0, le=1e7)
    """The whole program on the device; absent: that of the cut without requests."""
    smaller_ms: float | None = Field(default=None, gt=0.0, le=1e7)
    """A smaller program, for answers that would be late otherwise; absent: there is none."""
    every_ms: float = Field(default=500.0, gt=0.0, le=1e8)
    """Time from one request to the next; the mean, for `poisson`."""
    arrivals: Literal["periodic", "poisson"] = "periodic"
    """Whether requests come evenly or at random."""
    deadline_ms: float = Field(default=1000.0, gt=0.0, le=1e8)
    """After a request, when its answer is due."""
    under_way: int = Field(default=4, ge=1, le=1000)
    """Requests of one device at a time; the others wait in line."""
    gain: float = Field(default=0.1, ge=0.0, lt=1.0)
    """A cut is left only for one that is predicted to take less time by this share."""
    dwell_s: float = Field(default=1.0, ge=0.0, le=3600.0)
    """And, unless it is twice as fast, not before the present one was used for so long."""


class LinksTable(Table):
    """The links between devices and edges."""

    kinds: list[Literal["3g", "4g", "wifi", "steady", "file"]] = Field(
        default=["wifi"], min_length=1, max_length=1000
    )
    """What links there are; devices take turns. `3g`, `4g`, `wifi`: made by a Markov chain with
    means of 1.1, 5.85 and 18.88 Mbit/s upwards. `steady`: never changes. `file`: read from one.
    """
    mbps: float = Field(default=10.0, ge=0.001, le=100_000.0)
    """Of a `steady` link, upwards and downwards."""
    latency_ms: float = Field(default=10.0, ge=0.0, le=60_000.0)
    """One way, of a `steady` link, and of a `file` whose rows do not say."""
    file: str = Field(default="", max_length=4096)
    """A file of rows seconds,Mbit/s[,latency in ms], relative to the scenario's folder."""
    down: float = Field(default=1.0, gt=0.0, le=1000.0)
    """Of a `file`: times as much downwards as upwards."""
    loss: float = Field(default=0.0, ge=0.0, lt=1.0)
    """The chance that a message is lost for good; a transport that repairs has none."""


class EdgesTable(Table):
    """The edges."""

    count: int = Field(default=1, ge=1, le=1000)
    """How many; devices take turns."""
    lanes: int = Field(default=16, ge=1, le=1024)
    """Requests in one batch, at most."""
    wait_ms: float = Field(default=0.0, ge=0.0, le=10_000.0)
    """How long an idle edge waits for others before it runs a batch."""
    workers: int = Field(default=1, ge=1, le=1024)
    """Batches that run at a time."""
    alike: float = Field(default=0.5, ge=0.0, le=1.0)
    """The share of one request's time that a batch takes once, however large it is."""
    rest_times: float = Field(default=4.0, ge=1.0, le=1e4)
    """How many times as long as the cloud an edge takes for the cloud's part."""
    cloud_mbps: float = Field(default=100.0, ge=0.001, le=100_000.0)
    """An edge's link to the cloud, both ways."""
    cloud_latency_ms: float = Field(default=10.0, ge=0.0, le=60_000.0)
    """Its latency, one way."""


class OutageTable(Table):
    """A time in which a node is away, with all that it knew."""

    tier: Literal["edge", "cloud"] = "edge"
    """Which tier."""
    number: int = Field(default=0, ge=0, le=1000)
    """Which edge, from 0."""
    from_s: float = Field(ge=0.0, le=_DAY_S)
    """When it goes."""
    to_s: float = Field(gt=0.0, le=_DAY_S)
    """When it is back."""


class CutScenario(FileTable):
    """A run of partitioned execution."""

    name: str = Field(min_length=1, max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """What the run is called."""
    description: str = Field(default="", max_length=2000)
    """For people."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    """Decides everything random."""
    seconds: float = Field(default=120.0, gt=0.0, le=_DAY_S)
    """For how long requests come."""
    noise: float = Field(default=0.03, ge=0.0, le=1.0)
    """Standard deviation of computing times, as a share."""
    plan: str = Field(default="", max_length=4096)
    """A file of `delian partition plan` in the place of `cuts`, relative to the scenario's folder.
    """
    bundle: str = Field(default="", max_length=4096)
    """With `check`: the bundle that the plan was made for."""
    check: bool = False
    """Really run the parts of every cut that is used, and compare with the whole program."""
    cuts: list[CutTable] = Field(default_factory=list, max_length=256)
    """The cuts, where there is no plan."""
    devices: DevicesTable = Field(default_factory=DevicesTable)
    links: LinksTable = Field(default_factory=LinksTable)
    edges: EdgesTable = Field(default_factory=EdgesTable)
    outages: list[OutageTable] = Field(default_factory=list, max_length=1000)
    """When nodes are away."""

    @model_validator(mode="after")
    def _together(self) -> CutScenario:
        if bool(self.cuts) == bool(self.plan):
            raise conflict("plan", "a scenario has either cuts or a plan")
        if len({c.name for c in self.cuts}) < len(self.cuts):
            raise conflict("cuts", "two cuts have one name")
        if any(c.cloud_up_bytes and not c.up_bytes for c in self.cuts):
            raise conflict("cuts", "what goes on to the cloud must come to the edge")
        if self.check and not (self.plan and self.bundle):
            raise conflict("check", "to run the parts takes a plan and its bundle")
        if "file" in self.links.kinds and not self.links.file:
            raise conflict("links.file", "a link of the kind file needs one")
        if any(o.to_s <= o.from_s for o in self.outages):
            raise conflict("outages", "an outage ends after it begins")
        if self.seconds / (self.devices.every_ms / 1e3) * self.devices.count > REQUESTS_MAX:
            raise conflict("seconds", f"more than {REQUESTS_MAX:,} requests")
        return self


def bundled() -> dict[str, Path]:
    """The scenarios that come with Delian, by name."""
    return {path.stem: path for path in sorted(BUNDLED.glob("*.toml"))}


def load(source: str, settings: list[str] | None = None) -> CutScenario:
    """The scenario of a file, or the bundled one of that name, with `key=value` changes.

    Raises DelianError.
    """
    path = Path(source)
    if not path.is_file():
        found = bundled().get(source)
        if found is None:
            raise DelianError(
                f"there is no scenario {source}", f"bundled ones: {', '.join(bundled())}"
            )
        path = found
    try:
        if path.stat().st_size > SCENARIO_BYTES_MAX:
            raise DelianError(f"{path} is larger than a scenario can be")
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise DelianError(f"{path}: {error}", "a scenario is a TOML file") from None
    for setting in settings or []:
        _put(raw, setting)
    try:
        scenario = CutScenario.model_validate(raw)
    except ValidationError as error:
        raise DelianError(f"{path}: {_problems(error)}", "see docs/placement.md") from None
    return scenario.placed_in(path.parent)


def _put(raw: dict[str, Any], setting: str) -> None:
    key, equals, text = setting.partition("=")
    *tables, last = [part.strip() for part in key.split(".")]
    if not equals or not last:
        raise DelianError(f"--set {setting}: this is not key=value", "such as --set seconds=30")
    table = raw
    for name in tables:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise DelianError(f"--set {setting}: {name} is no table")
    try:
        table[last] = tomllib.loads(f"value = {text.strip()}")["value"]
    except (tomllib.TOMLDecodeError, KeyError, RecursionError):
        table[last] = text.strip()


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False)[:PROBLEMS_SHOWN_MAX]
    return "; ".join(f"`{'.'.join(map(str, p['loc']))}` {p['msg']}" for p in found)


def keys_markdown() -> str:
    """What keys a scenario may have, for docs/placement.md."""
    return markdown(reference_of(CutScenario))


# ---------------------------------------------------------------- what it means


def tables_of(scenario: CutScenario) -> list[CutTable]:
    """The scenario's cuts, or its plan's."""
    if scenario.cuts:
        return list(scenario.cuts)
    plan = read_plan(scenario)
    if len(plan.links) > 2:
        raise DelianError("a plan of more than three tiers")
    try:
        return [_table(f"piece {number}", piece) for number, piece in enumerate(plan.pieces, 1)]
    except ValidationError as error:
        raise DelianError(
            f"{scenario.plan}: {_problems(error)}", "make it with delian partition plan"
        ) from None


def _table(name: str, piece: Piece) -> CutTable:
    """A plan's piece as a scenario has its cuts. Raises ValidationError for what no cut takes."""
    up, down = (*piece.up, 0)[:2], (*piece.down, 0)[:2]
    # Encoding costs the lower side of a link, decoding the upper; each is small.
    times = [s * 1e3 for s in (*piece.tiers, 0.0)[:3]]
    for k, seconds in enumerate(piece.wires_s):
        times[k] += seconds * 1e3
    return CutTable(
        name=name,
        device_ms=times[0],
        edge_ms=times[1],
        cloud_ms=times[2],
        up_bytes=up[0],
        down_bytes=down[0],
        cloud_up_bytes=up[1],
        cloud_down_bytes=down[1],
    )


def read_plan(scenario: CutScenario) -> PlacementPlan:
    """The plan's file. Raises DelianError."""
    path = scenario.folder / scenario.plan
    try:
        if path.stat().st_size > BYTES_MAX:
            raise DelianError(f"{path} is larger than a plan can be")
        return PlacementPlan.from_json(path.read_bytes(), str(path))
    except (OSError, ValueError) as error:  # a name with a zero is no name
        raise DelianError(f"{path}: {error}", "make it with delian partition plan") from None


def courses_of(scenario: CutScenario, tables: list[CutTable], whole: float) -> tuple[Course, ...]:
    """The cuts as the machines take them. whole: seconds of the whole program on a device."""
    courses = tuple(table.course(whole) for table in tables)
    if scenario.cuts:
        return courses
    pieces = read_plan(scenario).pieces
    return tuple(
        replace(course, pieces=((piece.low, piece.high),))
        for course, piece in zip(courses, pieces, strict=True)
    )


def whole_s(scenario: CutScenario, tables: list[CutTable]) -> float:
    """Seconds of the whole program on a device. Raises DelianError where nothing says so."""
    if scenario.devices.whole_ms is not None:
        return scenario.devices.whole_ms / 1e3
    alone = [t.device_ms for t in tables if not t.up_bytes]
    if not alone:
        raise DelianError(
            "every cut sends requests, so the time of a device alone is unknown",
            "set devices.whole_ms",
        )
    return min(alone) / 1e3


def links_of(scenario: CutScenario) -> list[tuple[str, LinkTrace]]:
    """The devices' links, each with its kind."""
    streams, table = Streams(scenario.seed), scenario.links
    found: list[tuple[str, LinkTrace]] = []
    for device in range(scenario.devices.count):
        kind = table.kinds[device % len(table.kinds)]
        if kind == "steady":
            trace = constant(table.mbps, table.latency_ms)
        elif kind == "file":
            trace = read_trace(scenario.folder / table.file, table.latency_ms, table.down)
        else:
            trace = mobile(kind, streams, device, scenario.seconds)
        found.append((kind, trace))
    return found


def requests_of(scenario: CutScenario) -> tuple[tuple[int, ...], ...]:
    """By device, when its requests are made.

    The first come a second after the start, when links are there and cuts open.
    """
    streams, table = Streams(scenario.seed), scenario.devices
    step = table.every_ms / 1e3
    found = []
    for device in range(table.count):
        times, k = [], 0
        now = 1.0 + step * streams.unit("cut phase", device)
        while now < scenario.seconds:
            times.append(round(now * SECOND))
            if table.arrivals == "periodic":
                now += step
            else:
                now -= math.log(1.0 - streams.unit("cut arrival", device, k)) * step
            k += 1
        found.append(tuple(times))
    return tuple(found)


def setup_of(
    scenario: CutScenario, courses: tuple[Course, ...], local: Local, links: list[LinkTrace]
) -> Setup:
    """The world of a scenario, for these cuts."""
    devices, edges = scenario.devices, scenario.edges
    cloud = Link(edges.cloud_mbps * MBPS, edges.cloud_mbps * MBPS, edges.cloud_latency_ms / 1e3)
    up = constant(edges.cloud_mbps, edges.cloud_latency_ms)
    objective = read_plan(scenario).objective if scenario.plan else "latency"
    choice = replace(ChoiceSettings.of(objective), gain=devices.gain, dwell_s=devices.dwell_s)
    base = Setup(
        courses=courses,
        local=local,
        device_links=tuple(links),
        edge_links=(up,) * edges.count,
        requests=requests_of(scenario),
        # What devices assume before they have measured: all the same, and wrong for most.
        nominal=Link(5.85 * MBPS, 5.85 * MBPS, 0.02),
        beyond=(cloud,),
        deadline_s=devices.deadline_ms / 1e3,
        noise=scenario.noise,
        alike=edges.alike,
        edge_rest=edges.rest_times,
        outages=tuple(
            Outage(1 if o.tier == "edge" else 2, o.number, o.from_s, o.to_s)
            for o in scenario.outages
        ),
        asker=AskerSettings(under_way=devices.under_way, choice=choice),
        server=ServerSettings(
            lanes=edges.lanes, wait_ns=round(edges.wait_ms * MS), workers=edges.workers
        ),
    )
    faults = replace(base.faults, loss=scenario.links.loss)
    return replace(base, faults=faults)
