"""A cut model over real processes: what a changing link and a killed edge do to 1,000 requests.

    python benchmarks/subgraphs.py --json

A cloud, an edge (`delian cloud run --serve`, `delian edge run --serve`) and a device, each a
process of its own, and a relay between device and edge that shapes the link: 40 Mbit/s, 5 ms each
way. The device is so much slower than this machine that the whole program takes it --alone-ms
(100): after each run it pauses. It asks one request after the other.

1. 1,000 requests; at 330 the link becomes ten times as slow, at 660 as fast as before. Goals: no
   request is lost and all answers are the whole program's (allclose: rtol 1e-4, atol 1e-5); the cut
   moves within 2 s of each change; the 99th percentile of latency is under the device's own time
   for the whole program.
2. 600 requests; at 200 the edge is killed (SIGKILL), at 300 it is started again. Goal: all are
   answered, and right.

Also shown, without a goal: how exactly the relay keeps to its shape, that n bytes take
n / bandwidth + latency. All figures want a quiet machine: a busy one is a slow edge and a link that
jitters.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import tests_path  # noqa: F401
from delian.simulations.runs.host_facts import cpu_name
from support.processes.parted import ALONE_S, Case, Tiers, Told, slowed
from support.processes.shaped_link import Shape, ShapedLink, in_thread

REQUESTS, DOWN_AT, UP_AT = 1_000, 330, 660
KILL_REQUESTS, KILL_AT, AGAIN_AT = 600, 200, 300
MOVES_S = 2.0
#: Links and bytes on which the relay is checked: Mbit/s, ms one way.
SHAPES = ((1.1, 50.0), (5.85, 20.0), (18.88, 10.0), (40.0, 5.0))


def changing(tiers: Tiers, case: Case) -> Told:
    """The link a tenth of itself, and itself again."""
    return tiers.ask(
        REQUESTS,
        {
            DOWN_AT: lambda: tiers.link.change(case.shape(0.1)),
            UP_AT: lambda: tiers.link.change(case.shape()),
        },
    )


def killed(tiers: Tiers) -> Told:
    """The edge gone, and back."""
    return tiers.ask(KILL_REQUESTS, {KILL_AT: tiers.edge.kill, AGAIN_AT: tiers.restart_edge})


def summary(told: Told, bounds: tuple[int, ...]) -> dict[str, Any]:
    """Figures of a run, in all and by its phases."""
    phases = []
    for begin, end in zip((0, *bounds), (*bounds, len(told.records)), strict=True):
        times = [1e3 * r["seconds"] for r in told.records[begin:end] if "seconds" in r]
        phases.append(
            {
                "requests": end - begin,
                "p50_ms": float(np.percentile(times, 50)),
                "p99_ms": float(np.percentile(times, 99)),
                "fallbacks": sum(r.get("fallback", False) for r in told.records[begin:end]),
                "cuts": len({r["cut"] for r in told.records[begin:end]}),
            }
        )
    return {
        "requests": len(told.records),
        "lost": told.lost,
        "wrong": len(told.records) - told.lost - told.right,
        "p50_ms": 1e3 * told.percentile(50),
        "p99_ms": 1e3 * told.percentile(99),
        "max_ms": 1e3 * told.percentile(100),
        "device_only_ms": 1e3 * float(np.median(told.alone_s)),
        "device_only_max_ms": 1e3 * max(told.alone_s),
        "answered_by": told.answered,
        "moved_s": {str(n): told.moved_s(n) for n in told.changes},
        "switches": len(told.switched),
        "phases": phases,
    }


def exactness(repeats: int = 3) -> list[dict[str, float]]:
    """Of the relay: measured over wanted time of 0.3 s worth of bytes, there alone."""
    found = []
    for mbit, latency_ms in SHAPES:
        shape = Shape.symmetric(mbit * 1e6 / 8, latency_ms / 1e3)
        size = int(0.3 * shape.up)
        wanted = size / shape.up + 2 * shape.latency_s
        best = min(_transfer(shape, size) for _ in range(repeats))
        found.append({"mbit_s": mbit, "latency_ms": latency_ms, "over_wanted": best / wanted})
    return found


def _transfer(shape: Shape, size: int) -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as peer:
                left = size
                while left and (got := len(peer.recv(min(left, 1 << 16)))):
                    left -= got
                peer.sendall(b"k")

        thread = threading.Thread(target=serve)
        thread.start()
        link = ShapedLink(f"127.0.0.1:{server.getsockname()[1]}", shape)
        with in_thread(link), socket.create_connection(("127.0.0.1", link.port)) as peer:
            time.sleep(0.05)  # connected all the way
            began = time.perf_counter()
            peer.sendall(bytes(size))
            peer.recv(1)
            spent = time.perf_counter() - began
        thread.join()
    return spent


def targets(change: dict[str, Any], kill: dict[str, Any]) -> list[dict[str, Any]]:
    """Each goal, what was measured, and whether it was met."""
    down, up = (change["moved_s"].get(str(n)) for n in (DOWN_AT, UP_AT))
    rows = [
        ("requests lost, link changed", change["lost"], 0),
        ("wrong answers, link changed", change["wrong"], 0),
        ("seconds until the cut moved, slower", float("inf") if down is None else down, MOVES_S),
        ("seconds until the cut moved, faster", float("inf") if up is None else up, MOVES_S),
        ("p99 ms against the device alone", change["p99_ms"], change["device_only_ms"]),
        ("requests lost, edge killed", kill["lost"], 0),
        ("wrong answers, edge killed", kill["wrong"], 0),
    ]
    return [
        {"name": name, "measured": measured, "goal": goal, "met": measured <= goal}
        for name, measured, goal in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--alone-ms", type=float, default=1e3 * ALONE_S)
    options = parser.parse_args()
    case = slowed(Case(), 1e-3 * options.alone_ms)
    load = os.getloadavg()[0]
    relay = exactness()
    with tempfile.TemporaryDirectory() as folder, Tiers(Path(folder), case) as tiers:
        pieces = len(tiers.plan.pieces)
        change = summary(changing(tiers, case), (DOWN_AT, UP_AT))
        kill = summary(killed(tiers), (KILL_AT, AGAIN_AT))
    result = {
        "machine": {"cpu": cpu_name(), "cores": os.cpu_count(), "load_before": load},
        "case": {
            "alone_ms": options.alone_ms,
            "slowdown": case.slowdown,
            "mbit_s": case.bandwidth * 8e-6,
            "latency_ms": 1e3 * case.latency_s,
            "pieces_of_the_plan": pieces,
        },
        "relay": relay,
        "changing": change,
        "killed": kill,
        "targets": targets(change, kill),
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    for name, told in (("link changed", change), ("edge killed", kill)):
        print(
            f"{name}: {told['requests']} requests, {told['lost']} lost, {told['wrong']} wrong;"
            f" p50 {told['p50_ms']:.1f} ms, p99 {told['p99_ms']:.1f} ms, max {told['max_ms']:.1f};"
            f" the device alone {told['device_only_ms']:.1f} ms; by {told['answered_by']}"
        )
        for phase in told["phases"]:
            print(
                f"   {phase['requests']}: p50 {phase['p50_ms']:.1f}, p99 {phase['p99_ms']:.1f} ms"
            )
    for target in result["targets"]:
        mark = "met" if target["met"] else "MISSED"
        print(f"{target['name']}: {target['measured']:.4g} (goal {target['goal']:.4g}): {mark}")


if __name__ == "__main__":
    main()
