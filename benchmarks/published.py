"""Published results, run again: each figure of a paper beside ours, and how long ours took.

    python benchmarks/published.py                                  what needs no file, three seeds
    python benchmarks/published.py synthetic --seeds 1
    python benchmarks/published.py sinusoid
    python benchmarks/published.py shakespeare --data tinyshakespeare.txt
    python benchmarks/published.py shakespeare-rates --data tinyshakespeare.txt

An experiment runs as its authors ran it, or the page says what differs. A figure is the mean over
seeds with its standard deviation. With --keep FILE each finished run is a line of JSON there, and
the same command goes on where it was stopped. With --processes 2 two runs go on at a time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from delian.simulations.scenario import scenario_file
from published_experiments import OWN_DATA, SUITES, Figure

#: Points of accuracy by which ours may fall short.
SHORT_MAX = 0.5
#: Seconds that a seed of Synthetic's whole table may take.
SECONDS_MAX = 60.0


@dataclass(frozen=True)
class Run:
    """A finished run: figures by key, wall and processor seconds."""

    figures: Mapping[str, float]
    seconds: float
    processor: float


class Job(NamedTuple):
    """One experiment of a suite with one seed."""

    suite: str
    experiment: int
    seed: int
    data: Path | None
    changes: tuple[str, ...]

    @property
    def name(self) -> str:
        experiment = SUITES[self.suite][self.experiment].name
        return " ".join([self.suite, experiment, f"seed={self.seed}", *self.changes])


def run(job: Job) -> Run:
    """Runs an experiment once."""
    experiment = SUITES[job.suite][job.experiment]
    chosen = scenario_file.load(experiment.scenario)
    chosen = scenario_file.with_algorithm(chosen, experiment.algorithm)
    settings = [f"seed={job.seed}", *experiment.settings, *job.changes]
    chosen = scenario_file.override(chosen, settings)
    began, used = time.perf_counter(), _processor()
    assert experiment.measure is not None
    figures = experiment.measure(chosen, job.data)
    return Run(figures, time.perf_counter() - began, _processor() - used)


def run_all(jobs: Sequence[Job], processes: int) -> Iterable[tuple[Job, Run]]:
    """Runs them, several at a time; gives each when it is done."""
    if processes == 1:
        yield from ((job, run(job)) for job in jobs)
        return
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(run, job): job for job in jobs}
        for done in as_completed(waiting):
            yield waiting[done], done.result()


def _processor() -> float:
    return sum(os.times()[:4])


class Kept:
    """Finished runs by name, a line of JSON each in a file, if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._runs: dict[str, Run] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    said = json.loads(line)
                except ValueError:
                    continue  # cut short when its writer was stopped: it is run again
                name = said.pop("run")
                self._runs[name] = Run(**said)

    def get(self, name: str) -> Run | None:
        return self._runs.get(name)

    def put(self, name: str, done: Run) -> None:
        self._runs[name] = done
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"run": name, **vars(done)}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", nargs="*", choices=[[], *SUITES], default=[])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="finished runs, to go on from")
    parser.add_argument("--processes", type=int, default=1, help="runs at a time")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.processes < 1:
        parser.error("--processes: at least one")
    kept = Kept(args.keep)
    suites = args.suite or OWN_DATA
    jobs = [
        Job(suite, k, seed, args.data, tuple(args.changes))
        for suite in suites
        for seed in range(1, args.seeds + 1)
        for k in range(len(SUITES[suite]))
    ]
    found = {job: done for job in jobs if (done := kept.get(job.name)) is not None}
    missing, began = [job for job in jobs if job not in found], time.perf_counter()
    for job, done in run_all(missing, args.processes):
        kept.put(job.name, done)
        found[job] = done
        said = ", ".join(f"{key} {value:.3f}" for key, value in done.figures.items())
        print(f"{job.name}: {said} ({done.seconds:.1f} s)", file=sys.stderr)
    seconds = time.perf_counter() - began
    rows = []
    for suite in suites:
        for k, experiment in enumerate(SUITES[suite]):
            runs = [found[job] for job in jobs if (job.suite, job.experiment) == (suite, k)]
            rows += [_row(suite, figure, runs) for figure in experiment.figures]
    if args.json:
        targets = [_target(row) for row in rows if row["suite"] == "synthetic"]
        if suites == ["synthetic"] and len(missing) == len(jobs):
            a_seed = round(seconds / args.seeds, 1)
            targets.append(
                {
                    "name": "Synthetic, a seed of the table, s",
                    "goal": SECONDS_MAX,
                    "measured": a_seed,
                    "met": a_seed <= SECONDS_MAX,
                }
            )
        print(json.dumps({"results": rows, "targets": targets}, indent=2))
        return
    print("| | published | ours | seconds a seed | of a processor |\n|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['name']} | {row['published']} | {row['mean']:.2f} ± {row['deviation']:.2f}"
            f" | {row['seconds']:.0f} | {row['processor']:.0f} |"
        )
    print(f"{len(missing)} runs, {args.processes} at a time: {seconds:.0f} s", file=sys.stderr)


def _row(suite: str, figure: Figure, runs: Sequence[Run]) -> dict[str, Any]:
    values = [done.figures[figure.key] for done in runs]
    return {
        "suite": suite,
        "name": figure.label,
        "published": figure.published,
        "mean": round(statistics.mean(values), 3),
        "deviation": round(statistics.stdev(values), 3) if len(values) > 1 else 0.0,
        "values": [round(v, 3) for v in values],
        "seconds": round(statistics.median(done.seconds for done in runs), 2),
        "processor": round(statistics.median(done.processor for done in runs), 2),
    }


def _target(row: dict[str, Any]) -> dict[str, Any]:
    goal = float(row["published"]) - SHORT_MAX
    return {
        "name": f"{row['name']}, accuracy",
        "goal": goal,
        "measured": row["mean"],
        "met": row["mean"] >= goal,
    }


if __name__ == "__main__":
    main()
