"""Published results, run again: each figure of a paper beside ours, and how long ours took.

    python benchmarks/published.py                      every experiment, three seeds
    python benchmarks/published.py synthetic --seeds 1

An experiment runs as its authors ran it: same data, model, rounds, steps and settings, and its
accuracy is counted as theirs is. A figure is the mean over seeds with its standard deviation. A
target is met when ours is not more than half a point below the published one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from delian.simulations import scenario_file
from delian.simulations.simulate import simulate

#: Points of accuracy by which ours may fall short.
SHORT_MAX = 0.5


@dataclass(frozen=True)
class Figure:
    """One published number: per cent, and which of a round's accuracies it is, the best round
    counting.
    """

    label: str
    accuracy: str
    published: float


@dataclass(frozen=True)
class Experiment:
    """One run of a paper. source: where its figures are from."""

    scenario: str
    algorithm: str
    figures: tuple[Figure, ...]
    settings: tuple[str, ...] = ()


SHARED, PERSONAL = "global_pooled_accuracy", "personalised_pooled_accuracy"

#: Dinh, Tran and Nguyen, NeurIPS 2020, table 1, Synthetic, strongly convex, fine-tuned settings.
#: The published figures are quoted from memory, not from the page.
SYNTHETIC = (
    Experiment("synthetic-logistic", "fedavg", (Figure("FedAvg", SHARED, 77.62),)),
    Experiment(
        "synthetic-logistic", "fomaml", (Figure("Per-FedAvg, first order", PERSONAL, 81.49),)
    ),
    Experiment(
        "synthetic-logistic",
        "pfedme",
        (
            Figure("pFedMe, shared", SHARED, 78.65),
            Figure("pFedMe, personal", PERSONAL, 83.20),
        ),
    ),
)
SUITES = {"synthetic": SYNTHETIC}


def run(experiment: Experiment, seed: int, data: Path | None, changes: Sequence[str]) -> Any:
    """The best accuracies of a run, per cent, by figure; and its wall time in seconds."""
    chosen = scenario_file.load(experiment.scenario)
    chosen = scenario_file.with_algorithm(chosen, experiment.algorithm)
    chosen = scenario_file.override(chosen, [f"seed={seed}", *experiment.settings, *changes])
    began = time.perf_counter()
    rounds = simulate(chosen, data_path=data).rounds
    seconds = time.perf_counter() - began
    best = {}
    for figure in experiment.figures:
        values = [getattr(r, figure.accuracy) for r in rounds]
        best[figure.label] = 100 * max(v for v in values if v is not None)
    return best, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suite", nargs="*", choices=[[], *SUITES], default=[])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for suite in args.suite or SUITES:
        for experiment in SUITES[suite]:
            runs = []
            for seed in range(1, args.seeds + 1):
                runs.append(run(experiment, seed, args.data, args.changes))
                best, seconds = runs[-1]
                said = ", ".join(f"{label} {value:.2f}" for label, value in best.items())
                print(f"seed {seed}: {said} ({seconds:.1f} s)", file=sys.stderr)
            rows += [_row(figure, runs) for figure in experiment.figures]
    if args.json:
        print(json.dumps({"results": rows, "targets": [_target(row) for row in rows]}, indent=2))
        return
    print("| algorithm | published | ours | seconds a seed |\n|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['name']} | {row['published']:.2f} | {row['mean']:.2f} ± {row['deviation']:.2f}"
            f" | {row['seconds']:.0f} |"
        )


def _row(figure: Figure, runs: Sequence[Any]) -> dict[str, Any]:
    values = [best[figure.label] for best, _ in runs]
    return {
        "name": figure.label,
        "published": figure.published,
        "mean": round(statistics.mean(values), 3),
        "deviation": round(statistics.stdev(values), 3) if len(values) > 1 else 0.0,
        "values": [round(v, 3) for v in values],
        "seconds": round(statistics.median(seconds for _, seconds in runs), 2),
    }


def _target(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": f"{row['name']}, accuracy",
        "goal": row["published"] - SHORT_MAX,
        "measured": row["mean"],
        "met": row["mean"] >= row["published"] - SHORT_MAX,
    }


if __name__ == "__main__":
    main()
