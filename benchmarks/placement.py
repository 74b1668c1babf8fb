"""Where a program is cut, and what that is worth: the solver's time, and latencies measured over a
link of several bandwidths and round trips.

    python benchmarks/placement.py [--json] [--models lenet,lstm] [--slowdown 100] [--repeats 7]
    python benchmarks/placement.py --solver            # only the solver
    python benchmarks/placement.py --draw result.json docs/placement.svg

**The solver.** Graphs of 5,000 operations over two and three tiers, for latency: a chain, a
residual network, a graph in which operations read what up to 20 before them made; and operations
at random whose times and tensors are of one size, the hard case. Processor time of the one thread,
split into checking the problem and making arrays of it, building the network, and finding the cut.

**Latency.** Two tiers: a device and a tier above, two processes on this machine, speak gRPC through
a relay that is the link, in a third: 1.1, 5.85 and 18.88 Mbit/s (the usual 3G, 4G and Wi-Fi) and
1 Gbit/s, each with round trips of 5, 20 and 100 ms, the same both ways. The tier above is this
machine; the device is emulated: each of its parts takes `--slowdown` times the least time that it
was measured to take here, by sleeping. One input at a time, f32 on the wire. Measured for each:

- the whole program on the device;
- all of it above: the input goes up;
- each cut of the chain: those where one tensor crosses, as Neurosurgeon (Kang et al. 2017) cuts
  between layers. A cut whose tensor is not smaller than that of an earlier cut is left out: it
  sends no less, and has more of the work on the slower device. The best of them is `by hand`;
- ours: the placement that `solve` finds, from this machine's profile.

A cut that several of these are is measured once. Least seconds over rounds in which all take turns;
one that took twice as long as the best in the first round is not measured again.

Predictions are made from what a node can measure: the times of the program's operations, those of a
device `--slowdown` times as long; what a run of next to nothing takes there; the link's bandwidth;
and its round trip, by a request of 16 bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import placement_nodes as nodes
from delian.core.placement.cut.cut import Cut
from delian.core.placement.cut.link_model import LinkProfile
from delian.core.placement.cut.measure import measure_node, measured_seconds
from delian.core.placement.cut.price import price
from delian.core.placement.cut.profile import NodeProfile
from delian.core.placement.cut.program_costs import Model, Options, problem_of
from delian.core.placement.cut.solver import solve
from delian.simulations.runs.host_facts import cpu_name
from placement_curve import draw
from placement_solver import GRAPHS, solver_times

MBITS = (1.1, 5.85, 18.88, 1000.0)
ROUND_TRIPS_MS = (5.0, 20.0, 100.0)
#: Half a GFLOP/s or so: a small single-board computer.
SLOWDOWN = 100.0
PINGS = 15
#: After the first round, what took so many times the best's is not measured again.
HOPELESS = 2.0
#: Goals: ms for 5,000 operations; ours over the best other; predicted over measured.
SOLVER_MS, SLOWER, PREDICTED = 50.0, 1.05, 0.20
DEVICE, ABOVE, OURS = "device", "above", "ours"


@dataclass(slots=True)
class Candidate:
    """A cut at one point. names: what it is; predicted: seconds; seconds: measured, by round."""

    cut: Cut
    names: list[str]
    predicted: float
    seconds: list[float] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "device_operations": sum(label == 0 for label in self.cut.labels),
            "predicted_ms": 1e3 * self.predicted,
            "least_ms": 1e3 * min(self.seconds),
            "median_ms": 1e3 * statistics.median(self.seconds),
            "requests": len(self.seconds),
        }


class Subject:
    """One model: its cuts, and what is predicted of them."""

    def __init__(self, name: str, profile: NodeProfile, slowdown: float, start_s: float) -> None:
        self.name, self._whole = name, nodes.model(name)
        self._start_s = start_s
        self._profiles = (profile.scaled(slowdown), profile)
        took = measured_seconds(self._whole.function, repeats=20)
        self._seconds = ([slowdown * s for s in took], took)
        self._chain = self._chain_of(self.at(LinkProfile(1e6, 1e6, 0.01)))

    def at(self, link: LinkProfile) -> Model:
        """The placement problem over this link."""
        model = problem_of(
            self._whole.function,
            self._whole.resident,
            self._profiles,
            [link],
            Options(memory=(None, None)),
            seconds=self._seconds,
        )
        return replace(model, problem=replace(model.problem, start_s=self._start_s))

    def candidates(self, link: LinkProfile) -> list[Candidate]:
        """All that is measured over this link, each cut once."""
        model = self.at(link)
        count = len(model.problem.items)
        wanted = [(DEVICE, (0,) * count), (ABOVE, (1,) * count)]
        wanted += [(f"chain {at}", (0,) * at + (1,) * (count - at)) for at in self._chain]
        wanted.append((OURS, solve(model.problem).labels))
        found: dict[bytes, Candidate] = {}
        for name, labels in wanted:
            placement = price(model.problem, labels)
            cut = model.cut(placement, self._whole.bundle.hex(), self._whole.program)
            one = found.setdefault(cut.to_bytes(), Candidate(cut, [], placement.latency))
            one.names.append(name)
        return list(found.values())

    @staticmethod
    def _chain_of(model: Model) -> list[int]:
        """After how many items one tensor crosses that is smaller than any before it."""
        problem, found, least = model.problem, [], None
        for at in range(1, len(problem.items)):
            labels = (0,) * at + (1,) * (len(problem.items) - at)
            placement = price(problem, labels)
            if sum(c.up for c in placement.crossings) != 1:
                continue
            if least is None or placement.up_bytes[0] < least:
                least = placement.up_bytes[0]
                found.append(at)
        return found


# ---------------------------------------------------------------- measuring


async def round_trip(device: nodes.Device, cut: Cut) -> float:
    """Seconds of a request without work."""
    await device.use(cut)
    return min([(await device.ask()).seconds for _ in range(PINGS)])


async def measured(device: nodes.Device, candidates: Sequence[Candidate], rounds: int) -> None:
    """Fills in their seconds, in turns."""
    for n in range(rounds + 1):
        best = min((min(c.seconds) for c in candidates if c.seconds), default=0.0)
        for one in candidates:
            if n > 1 and min(one.seconds) > HOPELESS * best:
                continue
            await device.use(one.cut)
            if n == 0:  # caches and windows warm up
                await device.ask()
                continue
            one.seconds.append((await device.ask()).seconds)


@dataclass(frozen=True, slots=True)
class Bench:
    """The link and the tier above, and how to measure over them."""

    port: int
    shape: Any
    slowdown: float
    repeats: int
    mbits: tuple[float, ...]
    round_trips_ms: tuple[float, ...]

    def points(self) -> list[tuple[float, float]]:
        return [(m, r) for r in self.round_trips_ms for m in self.mbits]

    async def links(self) -> dict[tuple[float, float], LinkProfile]:
        """What a request without work takes at each point: the link as a node finds it."""
        cut = nodes.all_on(nodes.PING, 1)
        found = {}
        async with nodes.Device(nodes.PING, [cut], 1.0, self.port) as device:
            for mbit, rtt in self.points():
                self.change(mbit, rtt)
                trip = await round_trip(device, cut)
                found[mbit, rtt] = LinkProfile(mbit * 1e6 / 8, mbit * 1e6 / 8, trip / 2)
        return found

    def change(self, mbit: float, rtt: float) -> None:
        self.shape(f"{mbit * 1e6 / 8} {rtt / 2e3}")

    async def start_s(self) -> float:
        """What a run without work takes on the device."""
        cut = nodes.all_on(nodes.PING, 0)
        async with nodes.Device(nodes.PING, [cut], self.slowdown, self.port) as device:
            return await round_trip(device, cut)

    async def model(
        self, subject: Subject, links: dict[tuple[float, float], LinkProfile]
    ) -> list[dict[str, Any]]:
        """All points of one model."""
        plans = {point: subject.candidates(link) for point, link in links.items()}
        cuts = {c.cut.to_bytes(): c.cut for found in plans.values() for c in found}
        say(f"{subject.name}: {len(cuts)} cuts")
        rows = []
        async with nodes.Device(
            subject.name, list(cuts.values()), self.slowdown, self.port
        ) as device:
            for (mbit, rtt), candidates in plans.items():
                self.change(mbit, rtt)
                await measured(device, candidates, self.repeats)
                rows.append(row(subject.name, mbit, rtt, links[mbit, rtt], candidates))
                say("  " + line(rows[-1]))
            assert not device.machine.gone, "the link broke"
        return rows


def row(
    name: str, mbit: float, rtt: float, link: LinkProfile, candidates: Sequence[Candidate]
) -> dict[str, Any]:
    """What is told of a point."""
    told = [c.told() for c in candidates]

    def least(wanted: str) -> float | None:
        found = (t["least_ms"] for t in told if any(wanted in n for n in t["names"]))
        return min(found, default=None)

    ours = next(t for t in told if OURS in t["names"])
    others = [t["least_ms"] for t in told if t["names"] != [OURS]]
    return {
        "model": name,
        "mbit": mbit,
        "round_trip_ms": rtt,
        "found_round_trip_ms": 2e3 * link.latency_s,
        "device_ms": least(DEVICE),
        "above_ms": least(ABOVE),
        "by_hand_ms": least("chain"),
        "ours_ms": ours["least_ms"],
        "predicted_ms": ours["predicted_ms"],
        "ours_is": [n for n in ours["names"] if n != OURS],
        "over_best": ours["least_ms"] / min(others),
        "predicted_over_measured": ours["predicted_ms"] / ours["least_ms"],
        "cuts": told,
    }


def line(found: dict[str, Any]) -> str:
    """A point, for people."""
    figures = (
        f"{k} {found[k + '_ms']:.1f}"
        for k in ("device", "above", "by_hand", "ours", "predicted")
        if found[k + "_ms"] is not None
    )
    return (
        f"{found['mbit']:g} Mbit/s, {found['round_trip_ms']:g} ms: "
        + ", ".join(figures)
        + f" ms; {found['over_best']:.2f} of the best other ({', '.join(found['ours_is'])})"
    )


def targets(solver: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> list[Any]:
    """The goals, and what was measured."""
    found = [
        (f"5,000 operations, {kind}, 2 and 3 tiers, ms", SOLVER_MS, max(each))
        for kind in GRAPHS
        if (each := [r["least_ms"] for r in solver if r["graph"] == kind])
    ]
    if rows:
        off = max(abs(r["predicted_over_measured"] - 1) for r in rows)
        found.append(
            ("ours over the best other, anywhere", SLOWER, max(r["over_best"] for r in rows))
        )
        found.append(("predicted latency of ours, share off", PREDICTED, off))
    return [
        {"name": name, "goal": goal, "measured": got, "met": got <= goal}
        for name, goal, got in found
    ]


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def latencies(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures all models."""
    names = options.models.split(",") if options.models else list(nodes.MODELS)
    say("this machine's profile")
    profile = measure_node(
        name="above",
        cpu=cpu_name(),
        date=time.strftime("%Y-%m-%d"),
        memory=None,
        seconds=options.profile_seconds,
    )
    rows: list[dict[str, Any]] = []
    with (
        nodes.process("serve", nodes.PING, *names) as (port, _),
        nodes.process("relay", f"127.0.0.1:{port}") as (relay, shape),
    ):
        bench = Bench(
            relay,
            shape,
            options.slowdown,
            options.repeats,
            MBITS[1:2] if options.quick else MBITS,
            ROUND_TRIPS_MS[1:2] if options.quick else ROUND_TRIPS_MS,
        )
        links, start_s = asyncio.run(bench.links()), asyncio.run(bench.start_s())
        say(f"a run on the device takes {1e3 * start_s:.2f} ms beside its work")
        for name in names:
            subject = Subject(name, profile, options.slowdown, start_s)
            rows += asyncio.run(bench.model(subject, links))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--models", default="", help=f"of {', '.join(nodes.MODELS)}; all of them")
    parser.add_argument("--slowdown", type=float, default=SLOWDOWN, help="of the device")
    parser.add_argument("--repeats", type=int, default=7, help="rounds at each point")
    parser.add_argument("--profile-seconds", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true", help="one link only")
    parser.add_argument("--solver", action="store_true", help="only the solver's time")
    parser.add_argument("--draw", nargs=2, metavar=("RESULT", "SVG"), help="draws a result")
    options = parser.parse_args()
    if options.draw:
        result, drawing = map(Path, options.draw)
        drawing.write_text(draw(json.loads(result.read_text())), encoding="utf-8")
        return
    solver = solver_times(3 if options.quick else 9)
    rows = [] if options.solver else latencies(options)
    result = {
        "load": os.getloadavg()[0],
        "cpu": cpu_name(),
        "slowdown": options.slowdown,
        "solver": solver,
        "points": rows,
        "targets": targets(solver, rows),
    }
    if options.json:
        print(json.dumps(result, indent=1))
        return
    for each in solver:
        print(
            "  ".join(f"{k} {v:.1f}" if isinstance(v, float) else f"{v}" for k, v in each.items())
        )
    for each in rows:
        print(f"{each['model']:<12}{line(each)}")
    for each in result["targets"]:
        print(f"{each['name']}: {each['measured']:.3g} (goal {each['goal']:g})")


if __name__ == "__main__":
    main()
