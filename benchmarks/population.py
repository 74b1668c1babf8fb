"""A million devices in one simulation: memory, and whether rounds grow slower with the population.

    python benchmarks/population.py [--devices 1000000] [--rounds 40] [--json]

All devices come up, ten thousand a second of virtual time, and offer themselves to twenty edges,
each of which keeps fifty ready and sends the others away for a while; a hundred train in a round.
What they train is a stub of a hundred numbers: the protocol is measured, the tiers' own machines
on their network. The same rounds are run with ten thousand devices, before and after, and the
processor's time for a round is compared: that of the protocol's events, and of those who knock at
a full pool meanwhile. Only rounds that began when everybody had come up are counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

EDGES, COHORT, READY_PER_EDGE, DIMENSION = 20, 100, 50, 100
#: Peak resident memory for a million devices, MiB.
RSS_MIB = 500.0
#: What the many are compared with: few, and still most of them are sent away.
FEW = 10_000
#: How many times as long a round may take as with the few: none, but for noise and what is no
#: longer in a core's cache.
SLOWER_MOST = 1.25


def child(devices: int, rounds: int) -> dict[str, Any]:
    """Runs one population, in this process."""
    import tests_path  # noqa: F401
    from delian.core.privacy.mechanisms.ring import RingPlan
    from delian.core.protocol.ports import SECOND
    from delian.simulations.federation.attendance import COMING_UP_PER_S
    from delian.simulations.federation.federation import Federation
    from delian.simulations.federation.fleet import Fleet
    from delian.simulations.runs.host_facts import peak_rss_mib
    from delian.simulations.scenario.federation_plan import FederationPlan
    from support.stub_training import StubTraining

    ring = RingPlan(clip=1.0, clients_max=2 * COHORT, dimension=DIMENSION)
    plan = FederationPlan.of(
        ring,
        Fleet(devices, EDGES),
        rounds=rounds,
        cohort=COHORT,
        over_selection=1.0,
        ready_per_edge_max=READY_PER_EDGE,
        pool_share=2 * COHORT / devices,
    )
    cpu = time.process_time()
    federation = Federation(plan, StubTraining(ring), seed=1)
    built = time.process_time() - cpu
    marks: list[tuple[float, int]] = []

    def note(record: Any) -> None:
        if record.started_ns > devices / COMING_UP_PER_S * SECOND:
            marks.append((time.process_time(), federation.trace.events))

    result = federation.run(note)
    counted = len(marks) > 1 and not result.failed
    if not counted:
        raise SystemExit(f"too few rounds after everybody had come up: {result.failed}")
    (began, events), (ended, events_after) = marks[0], marks[-1]
    return {
        "devices": devices,
        "rounds": len(result.rounds),
        "rounds_counted": len(marks) - 1,
        "events": result.events,
        "build_cpu_s": round(built, 2),
        "cpu_s": round(time.process_time() - cpu, 1),
        "round_cpu_s": round((ended - began) / (len(marks) - 1), 4),
        "round_events": round((events_after - events) / (len(marks) - 1)),
        "event_cpu_us": round(1e6 * (ended - began) / (events_after - events), 1),
        "rss_mib": peak_rss_mib(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.devices, args.rounds)))
        return
    runs = []
    for devices in (FEW, args.devices, FEW):
        command = [sys.executable, str(Path(__file__)), "--child"]
        command += ["--devices", str(devices), "--rounds", str(args.rounds)]
        runs.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    before, many, after = runs
    slower = 2 * many["round_cpu_s"] / (before["round_cpu_s"] + after["round_cpu_s"])
    result = {
        "runs": runs,
        "targets": [
            {
                "name": f"{many['devices']:,} devices, peak resident memory, MiB",
                "goal": RSS_MIB,
                "measured": many["rss_mib"],
                "met": many["rss_mib"] <= RSS_MIB,
            },
            {
                "name": f"the processor's time for a round, against {FEW:,} devices",
                "goal": SLOWER_MOST,
                "measured": round(slower, 2),
                "met": slower <= SLOWER_MOST,
            },
        ],
    }
    if args.json:
        print(json.dumps(result, indent=2))
        return
    for run in runs:
        print(", ".join(f"{key} {value:,}" for key, value in run.items()))
    for target in result["targets"]:
        mark = "met" if target["met"] else "MISSED"
        print(f"{target['name']}: {target['measured']} (goal {target['goal']:g}): {mark}")


if __name__ == "__main__":
    main()
