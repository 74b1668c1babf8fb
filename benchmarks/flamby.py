"""FLamby's published results, run again: theirs, ours, and the exact fit of masked sums.

    python benchmarks/flamby.py --flamby FLAMBY
    python benchmarks/flamby.py --flamby FLAMBY --heart UCI --seeds 20
    python benchmarks/flamby.py --flamby FLAMBY --strategy FedAdam --json

FLAMBY is a checkout of github.com/owkin/FLamby, which has Fed-TCGA-BRCA's table and its results.
UCI is the folder of heart disease's four files, `processed.cleveland.data` and so on, which it has
not. A strategy runs with their hyperparameters and first weights; a figure is the mean over centres
of the test sets' C-index or accuracy, and its standard deviation is over seeds. The exact fits are
Cox's and logistic regression of sums under masks: nothing of them is tuned.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from delian.core.statistics.methods.cox import Cox
from delian.core.statistics.methods.glm import GLM
from delian.core.statistics.question import Question
from delian.simulations.statistics.local_sites import LocalSites
from flamby_data import Centre, Suite, brca, heart
from flamby_strategies import STRATEGIES, pooled, strategy

#: The first of their seeds.
SEED = 42
#: Ridge of the exact Cox fit. Its table has columns that are each other's copies, and some without
#: an event: the likelihood alone has no maximum.
RIDGE = 0.1


def c_index(y: Any, scores: Any) -> float:
    """Harrell's index of risks `scores` for y as `flamby_data.times_of` has it."""
    time_, event = np.abs(y), y > 0
    later = (time_[None, :] > time_[:, None]) | (
        (time_[None, :] == time_[:, None]) & ~event[None, :]
    )
    pairs = later & event[:, None]
    gap = scores[:, None] - scores[None, :]
    right = np.sum(pairs & (gap > 0)) + np.sum(pairs & (gap == 0)) / 2
    return float(right / np.sum(pairs))


def judged(suite: Suite, scores: Callable[[Any], Any]) -> float:
    """The mean of the centres' test sets."""
    found = []
    for centre in suite.centres:
        said = scores(centre.test_x)
        if suite.metric == "C-index":
            found.append(c_index(centre.test_y, said))
        else:
            found.append(float(np.mean((said > 0) == (centre.test_y > 0))))
    return statistics.mean(found)


def exact(suite: Suite) -> Callable[[Any], Any]:
    """Cox or logistic regression of the centres' sums under masks."""
    columns = np.concatenate([c.x for c in suite.centres])
    used = np.flatnonzero(columns.std(axis=0) > 0)
    names = tuple(f"x{k}" for k in used)

    def table(centre: Centre) -> dict[str, Any]:
        known = {f"x{k}": centre.x[:, k] for k in used}
        known |= {"days": np.abs(centre.y) - 1, "event": 1.0 * (centre.y > 0)}
        return known

    question: Question
    if suite.metric == "C-index":
        question = Cox("days", "event", names, penalizer=RIDGE, proportional="", score_bins=0)
    else:
        question = GLM("event", names, "logistic")
    answer: Any = LocalSites([table(c) for c in suite.centres]).answer(question)
    found = answer.coefficients
    first = 0.0 if suite.metric == "C-index" else found[0]
    return lambda x: first + x[:, used] @ found[-len(used) :]


def measured(suite: Suite, names: Sequence[str], seeds: int) -> list[dict[str, Any]]:
    """A row a method."""
    rows = []
    for name in names:
        began, values = time.perf_counter(), []
        for seed in range(SEED, SEED + seeds):
            run = pooled(suite, seed) if name == "Pooled" else strategy(suite, name, seed)
            values.append(judged(suite, run))
            print(f"{suite.name} {name} seed={seed}: {values[-1]:.4f}", file=sys.stderr)
        theirs = suite.published[name]
        rows.append(
            {
                "suite": suite.name,
                "metric": suite.metric,
                "method": name,
                "published": round(statistics.mean(theirs), 4),
                "published deviation": round(statistics.stdev(theirs), 4),
                "mean": round(statistics.mean(values), 4),
                "deviation": round(statistics.stdev(values), 4) if seeds > 1 else 0.0,
                "values": [round(v, 4) for v in values],
                "seconds a seed": round((time.perf_counter() - began) / seeds, 2),
            }
        )
    return rows


def target(row: dict[str, Any]) -> dict[str, Any]:
    """Within one standard deviation of theirs."""
    off = abs(row["mean"] - row["published"])
    return {
        "name": f"{row['suite']}, {row['method']}: {row['metric']} off the published one",
        "goal": row["published deviation"],
        "measured": round(off, 4),
        "met": off <= row["published deviation"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flamby", type=Path, required=True, help="a checkout of FLamby")
    parser.add_argument("--heart", type=Path, help="UCI's four files of heart disease")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--strategy", action="append", choices=["Pooled", *STRATEGIES])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    suites = [brca(args.flamby)]
    if args.heart is not None:
        suites.append(heart(args.flamby, args.heart))
    names = args.strategy or ["Pooled", *STRATEGIES]
    rows = [row for suite in suites for row in measured(suite, names, args.seeds)]
    fits = {suite.name: round(judged(suite, exact(suite)), 4) for suite in suites}
    if args.json:
        results = {"results": rows, "exact": fits, "targets": [target(row) for row in rows]}
        print(json.dumps(results, indent=2))
        return
    print("| | published | ours | within one | seconds a seed |\n|---|---|---|---|---|")
    for row in rows:
        print(
            f"| {row['suite']}, {row['method']} | {row['published']:.3f} ±"
            f" {row['published deviation']:.3f} | {row['mean']:.3f} ± {row['deviation']:.3f} |"
            f" {'yes' if target(row)['met'] else 'no'} | {row['seconds a seed']:.1f} |"
        )
    for name, value in fits.items():
        print(f"| {name}, exact regression of masked sums | | {value:.3f} | | |")


if __name__ == "__main__":
    main()
