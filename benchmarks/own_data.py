"""`delian simulate --data` without a further option, beside scikit-learn on all training rows.

    python benchmarks/own_data.py iris wine digits digits/folder
    python benchmarks/own_data.py --group tables --group images --seeds 5
    python benchmarks/own_data.py mine.csv:price

A figure is the mean over seeds, with the standard deviation, of the accuracy (R² of a regression)
on the rows that no device trained on. The baselines, a linear model and a network with 64 hidden
units, train on the training rows of all training devices and are judged on the same rows.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import own_data_sets
from delian.core.common.errors import DelianError
from delian.simulations.report.run_warnings import warnings_of
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file
from delian.simulations.scenario.datasets import load_data, scenario_for

#: How far below the better baseline the shared model may be.
WITHIN = 0.02
GROUPS = {
    "tables": tuple(own_data_sets.TABLES),
    "images": tuple(f"{name}{form}" for name in own_data_sets.IMAGES for form in ("", "/folder")),
    "hard": tuple(own_data_sets.HARD),
}


@dataclass
class Row:
    """One set's figures, a value a seed."""

    name: str
    measure: str = ""
    classes: int = 0
    train_rows: int = 0
    test_rows: int = 0
    shared: list[float] = field(default_factory=list)
    personal: list[float] = field(default_factory=list)
    linear: list[float] = field(default_factory=list)
    network: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def gap(self) -> float:
        """The better baseline less the shared model, of means over seeds."""
        best = max(statistics.mean(self.linear), statistics.mean(self.network))
        return best - statistics.mean(self.shared)


def split(scenario: Any, path: Path) -> tuple[Any, Any, Any, Any]:
    """Training rows of training devices and evaluation rows of all: x, y, x, y."""
    data = load_data(scenario, path)
    train = [d for i, d in enumerate(data.devices) if i not in data.held_out]
    x = np.concatenate([d.x[: d.support] for d in train])
    y = np.concatenate([d.y[: d.support] for d in train])
    test_x = np.concatenate([d.x[d.support : d.examples] for d in data.devices])
    test_y = np.concatenate([d.y[d.support : d.examples] for d in data.devices])
    if x.dtype == np.uint8:
        x, test_x = x / np.float32(255), test_x / np.float32(255)
    return x.reshape(len(x), -1), y, test_x.reshape(len(test_x), -1), test_y


def centralised(scenario: Any, path: Path, seed: int) -> tuple[float, float]:
    """What a linear model and a network reach with all training rows."""
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y, test_x, test_y = split(scenario, path)
    settings: dict[str, Any] = {
        "hidden_layer_sizes": (64,),
        "max_iter": 500,
        "random_state": seed,
    }
    scores = []
    if scenario.regression:
        deviation = np.std(y) or 1.0
        y, test_y = (y - np.mean(y)) / deviation, (test_y - np.mean(y)) / deviation
        models = [Ridge(), MLPRegressor(**settings)]
    else:
        models = [LogisticRegression(max_iter=2000), MLPClassifier(**settings)]
    for model in models:
        images = scenario.data.source == "images" or scenario.model.name == "cnn"
        whole = model if images else make_pipeline(StandardScaler(), model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scores.append(float(whole.fit(x, y).score(test_x, test_y)))
    return scores[0], scores[1]


def measured(row: Row, path: Path, target: str, seed: int, changes: list[str]) -> None:
    """One seed of one set."""
    scenario = scenario_for(None, path, [f"data.target={target}"] if target else [])
    scenario = scenario_file.override(scenario, [f"seed={seed}", *changes])
    began = time.perf_counter()
    result = simulate(scenario, data_path=path)
    row.seconds.append(time.perf_counter() - began)
    last = result.rounds[-1]
    data = load_data(scenario, path)
    row.measure = "R²" if scenario.regression else "accuracy"
    row.classes = 0 if scenario.regression else data.classes
    row.train_rows = sum(data.devices[i].support for i in data.training)
    row.test_rows = sum(each.query for each in data.devices)
    pair = (
        (last.global_r_squared, last.personalised_r_squared)
        if scenario.regression
        else (last.global_pooled_accuracy, last.personalised_pooled_accuracy)
    )
    row.shared.append(float(pair[0]))
    row.personal.append(float(pair[1]))
    row.warnings = warnings_of(result)


def rows(names: list[str], seeds: int, changes: list[str], baseline: bool) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            row = Row(name)
            try:
                path, target = Path(name.partition(":")[0]), name.partition(":")[2]
                if not path.exists():
                    path, target = own_data_sets.write(name, Path(folder)), "target"
                target = "" if path.suffix != ".csv" else target
                for seed in range(1, seeds + 1):
                    measured(row, path, target, seed, changes)
                    if baseline:
                        chosen = scenario_for(None, path, [f"data.target={target}"])
                        chosen = scenario_file.override(chosen, [f"seed={seed}", *changes])
                        linear, network = centralised(chosen, path, seed)
                        row.linear.append(linear)
                        row.network.append(network)
            except (ImportError, DelianError) as fault:
                print(f"{name}: not measured: {fault}", file=sys.stderr)
                continue
            yield row


def shown(values: list[float]) -> str:
    if not values:
        return ""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.1f} ± {100 * spread:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*")
    parser.add_argument("--group", action="append", default=[], choices=sorted(GROUPS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--no-baseline", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    names = [*args.sets, *(name for group in args.group for name in GROUPS[group])]
    found = []
    if not args.json:
        print("| set | measure | classes | rows | shared | personal | linear | network | gap | s |")
        print("|---" * 10 + "|")
    for row in rows(names, args.seeds, args.changes, not args.no_baseline):
        found.append(row)
        if not args.json:
            gap = f"{100 * row.gap:+.1f}" if row.linear else ""
            cells = [row.name, row.measure, row.classes, f"{row.train_rows} / {row.test_rows}"]
            cells += map(shown, (row.shared, row.personal, row.linear, row.network))
            cells += [gap, f"{statistics.mean(row.seconds):.1f}"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            for each in row.warnings:
                print(f"  {row.name}: {each}", file=sys.stderr, flush=True)
    if args.json:
        targets = [
            {
                "name": f"{row.name}: points below the better centralised baseline",
                "goal": WITHIN,
                "measured": round(row.gap, 4),
                "met": row.gap <= WITHIN,
            }
            for row in found
            if row.linear
        ]
        print(json.dumps({"sets": [asdict(row) for row in found], "targets": targets}, indent=2))


if __name__ == "__main__":
    main()
