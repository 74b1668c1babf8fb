"""What a person or a program reads of seeds that were run."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import kept_report
from .check import DEVICES, EDGES, Failure, Report, check_seeds, replay_command
from .hostile.attackers import DONE, DRAWN, FOUND, HARMLESS, PREFIX
from .hostile.hostile_bundles import EXPOSED

#: A line of progress, and a report in its file, after so many seeds.
_EVERY, _STORED_EVERY = 50, 10


@dataclass(frozen=True, slots=True)
class Asked:
    """Which seeds, of which federations."""

    seeds: range
    devices: int = DEVICES
    edges: int = EDGES
    hostile: bool = False
    resume: Path | None = None
    """The file of a run in parts (`kept_report`)."""

    @property
    def key(self) -> dict[str, Any]:
        """What parts of one run have in common."""
        first = self.seeds.start
        return {
            "first": first,
            "devices": self.devices,
            "edges": self.edges,
            "hostile": self.hostile,
        }

    def replay(self, seed: int) -> str:
        return replay_command(seed, self.devices, self.edges, self.hostile)


def main(asked: Asked, as_json: bool) -> int:
    """Runs seeds and prints what came of them; 1 where one failed.

    Raises DelianError for a file that cannot be read or written, or is of other seeds.
    """
    file = asked.resume
    before = Report() if file is None else kept_report.load(file, asked.key)
    left = asked.seeds[before.seeds :]

    def progress(report: Report) -> None:
        if file is not None and report.seeds % _STORED_EVERY == 0:
            kept_report.store(file, asked.key, report)
        if not as_json and report.seeds % _EVERY == 0:
            print(f"{report.seeds:6} seeds  {report.events:9} events  {report.cpu_s:7.1f} s CPU")
            sys.stdout.flush()

    report = check_seeds(
        left,
        asked.devices,
        asked.edges,
        progress,
        hostile=asked.hostile,
        report=before,
        failures_max=1 if file is None else kept_report.FAILURES_MAX,
    )
    if file is not None:
        kept_report.store(file, asked.key, report)
    print(json.dumps(facts(report, asked)) if as_json else text(report, asked))
    return 0 if report.failure is None else 1


def main_large(as_json: bool) -> int:
    """Runs a federation of 100,000 devices and prints what it took."""
    from ..federation.round_records import RoundRecord
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


def facts(report: Report, asked: Asked) -> dict[str, Any]:
    """A report as JSON."""
    failures = [_facts_of(failure, asked) for failure in report.failures]
    attacks = attacks_of(report)
    return {
        "seeds": report.seeds,
        "devices": asked.devices,
        "edges": asked.edges,
        "hostile": asked.hostile,
        "events": report.events,
        "cpu_seconds": round(report.cpu_s, 3),
        "slowest": {"seed": report.slowest[1], "cpu_seconds": round(report.slowest[0], 3)},
        "counts": dict(sorted(report.counts.items())),
        "attacks": attacks,
        "traces": report.traces,
        "failure": failures[0] if failures else None,
        "failures": failures,
    }


def _facts_of(failure: Failure, asked: Asked) -> dict[str, Any]:
    return {
        "seed": failure.seed,
        "oracle": failure.oracle,
        "what": failure.what,
        "last": list(failure.last),
        "replay": asked.replay(failure.seed),
    }


def attacks_of(report: Report) -> dict[str, dict[str, Any]]:
    """What came of each attack, in seeds.

    How many drew it, in how many it was carried out, in how many devices found it out for each
    reason, in how many it was harmless without that, and in how many a sum disclosed single
    updates, which noise alone would bound.
    """
    attacks: dict[str, dict[str, Any]] = {}
    for name, count in sorted(report.counts.items()):
        head, *rest = name.split(": ")
        kind, _, attack = head.partition(" ")
        if kind != PREFIX or not rest:
            continue
        row = attacks.setdefault(attack, {DRAWN: 0, DONE: 0, FOUND: {}, HARMLESS: 0, EXPOSED: 0})
        if rest[0] == FOUND:
            row[FOUND][rest[1]] = count
        else:
            row[rest[0]] = count
    return attacks


def table(report: Report) -> str:
    """The attacks for the terminal; empty where there was no attack."""
    attacks = attacks_of(report)
    if not attacks:
        return ""
    wide = max(map(len, attacks))
    heads = f"{'drawn':>6} {'done':>6} {'harmless':>9} {EXPOSED:>12}"
    lines = [f"{'attack':{wide}}  {heads}  found out by reason"]
    for attack, row in attacks.items():
        found = ", ".join(f"{reason} {count}" for reason, count in row[FOUND].items())
        numbers = f"{row[DRAWN]:6} {row[DONE]:6} {row[HARMLESS]:9} {row[EXPOSED]:12}"
        lines.append(f"{attack:{wide}}  {numbers}  {found}".rstrip())
    return "\n".join(lines) + "\n"


def text(report: Report, asked: Asked) -> str:
    """A report for the terminal."""
    if report.failures:
        return "\n".join(_failure(failure, asked) for failure in report.failures)
    counts = report.counts
    return (
        f"{table(report)}"
        f"{report.seeds} seeds held: {asked.devices} devices, {asked.edges} edges, "
        f"{report.events} events, "
        f"{report.cpu_s:.1f} s CPU\n"
        f"{counts['crashes']} crashes, {counts['lost']} messages lost, "
        f"{counts['damaged']} damaged, {counts['duplicate']} answers counted once though they "
        f"came twice, {counts['round']} attempts at a model\n"
        f"traces {report.traces}"
    )


def _failure(failure: Failure, asked: Asked) -> str:
    return "\n".join(
        (
            f"seed {failure.seed} fails: {failure.oracle}",
            f"  {failure.what}",
            "the last events before it:",
            *(f"  {line}" for line in failure.last),
            "again:",
            f"  {asked.replay(failure.seed)}",
        )
    )
