"""What a person or a program reads of seeds that were run."""

from __future__ import annotations

import json
import sys
from typing import Any

from .check import Failure, Report, check_seeds, replay_command

#: A line of progress after so many seeds.
_EVERY = 50


def main(seeds: range, devices: int, edges: int, as_json: bool) -> int:
    """Runs seeds and prints what came of them; 1 where one failed."""

    def progress(report: Report) -> None:
        if not as_json and report.seeds % _EVERY == 0:
            print(f"{report.seeds:6} seeds  {report.events:9} events  {report.cpu_s:7.1f} s CPU")
            sys.stdout.flush()

    report = check_seeds(seeds, devices, edges, progress)
    print(json.dumps(facts(report, devices, edges)) if as_json else text(report, devices, edges))
    return 0 if report.failure is None else 1


def main_large(as_json: bool) -> int:
    """Runs a federation of 100,000 devices and prints what it took."""
    from ..records import RoundRecord
    from .large import run_large

    def progress(made: RoundRecord) -> None:
        if not as_json:
            print(f"round {made.round}: {len(made.reported)} updates", flush=True)

    run = run_large(on_round=progress)
    if as_json:
        print(json.dumps(run.facts()))
    else:
        print(
            f"{run.devices} devices behind {run.edges} edges: {run.rounds} rounds, "
            f"{run.events} events, {run.cpu_s:.1f} s CPU, {run.memory_mib} MiB\n"
            f"trace {run.trace}"
        )
    return 0


def facts(report: Report, devices: int, edges: int) -> dict[str, Any]:
    """A report as JSON."""
    failure = report.failure
    return {
        "seeds": report.seeds,
        "devices": devices,
        "edges": edges,
        "events": report.events,
        "cpu_seconds": round(report.cpu_s, 3),
        "slowest": {"seed": report.slowest[1], "cpu_seconds": round(report.slowest[0], 3)},
        "counts": dict(sorted(report.counts.items())),
        "traces": report.traces.hexdigest(),
        "failure": None
        if failure is None
        else {
            "seed": failure.seed,
            "oracle": failure.oracle,
            "what": failure.what,
            "last": list(failure.last),
            "replay": replay_command(failure.seed, devices, edges),
        },
    }


def text(report: Report, devices: int, edges: int) -> str:
    """A report for the terminal."""
    if report.failure is not None:
        return _failure(report.failure, devices, edges)
    counts = report.counts
    return (
        f"{report.seeds} seeds held: {devices} devices, {edges} edges, {report.events} events, "
        f"{report.cpu_s:.1f} s CPU\n"
        f"{counts['crashes']} crashes, {counts['lost']} messages lost, "
        f"{counts['damaged']} damaged, {counts['duplicate']} answers counted once though they "
        f"came twice, {counts['round']} attempts at a model\n"
        f"traces {report.traces.hexdigest()}"
    )


def _failure(failure: Failure, devices: int, edges: int) -> str:
    return "\n".join(
        (
            f"seed {failure.seed} fails: {failure.oracle}",
            f"  {failure.what}",
            "the last events before it:",
            *(f"  {line}" for line in failure.last),
            "again:",
            f"  {replay_command(failure.seed, devices, edges)}",
        )
    )
