"""Training from a pipeline next to training on arrays in memory, for data that fits.

    python benchmarks/pipeline_training.py [--seconds 60] [--json]

60,000 u8 images of 28x28, ten noisy patterns, train an MLP 784-200-200-10 by SGD with batches of
64; the step is one compiled program, the loop is Python's. In memory: the images are f32 and
normalised before the clock starts, and each batch is `x[order[k]]`. The pipelines shuffle too and
normalise each batch: of arrays in memory, of a folder of x.npy and y.npy that `cache` keeps, and of
a packed file read in windows, whose rows never are in memory as a whole. Every form first trains an
epoch whose loss is checked. Then all take turns, an epoch each. Given are rows a second and the
median of the ratios of neighbouring epochs; other work on the machine slows both of a pair.
--json ends in `targets`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import delian as dl
import numpy as np
from delian.core.learning import nn

ROWS, BATCH, CLASSES, RATE = 60_000, 64, 10, 0.05
HIDDEN = (200, 200)
#: Of rows a second in memory.
GOAL = 0.9
ROUNDS_MIN = 5
#: The patterns are easy: an epoch learns them.
LOSS_MAX = 0.5
WINDOW, BLOCK = 4096, 64
IN_MEMORY = "in memory"

Batches = Callable[[], Iterable[tuple[Any, Any]]]


def images() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 256, (CLASSES, 28, 28))
    y = rng.integers(0, CLASSES, ROWS).astype(np.int32)
    x = patterns[y] + rng.integers(-60, 61, (ROWS, 28, 28))
    return np.clip(x, 0, 255).astype(np.uint8), y


def normalise(x: Any) -> Any:
    return (x.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.3)


def loss(model: Any, x: Any, y: Any) -> Any:
    return np.mean(dl.ops.cross_entropy(model(x, None), y))


def step(model: Any, x: Any, y: Any) -> Any:
    value, gradient = dl.value_and_grad(loss)(model, x, y)
    return dl.tree.map(lambda w, g: w - np.float32(RATE) * g, model, gradient), value


def in_memory(x: np.ndarray, y: np.ndarray) -> Batches:
    """Whole batches in a new random order each time."""
    ready, epoch = normalise(x), itertools.count()

    def batches() -> Iterator[tuple[Any, Any]]:
        order = np.random.default_rng(next(epoch)).permutation(ROWS)
        for k in range(0, ROWS, BATCH):
            rows = order[k : k + BATCH]
            yield ready[rows], y[rows]

    return batches


def epochs(steps: Any) -> Batches:
    numbers = itertools.count()
    return lambda: steps.run(epoch=next(numbers))


def forms(folder: Path) -> dict[str, Batches]:
    x, y = images()
    (folder / "rows").mkdir()
    np.save(folder / "rows" / "x.npy", x)
    np.save(folder / "rows" / "y.npy", y)
    dl.data.pack(dl.data.open_rows(folder / "rows"), folder / "rows.npz")
    compiled = dl.compile(normalise)

    def ready(rows: Any) -> Any:
        return rows.batch(BATCH).map(compiled, on="x")

    whole = ready(dl.data.Pipeline((x, y)).shuffle())
    kept = ready(dl.data.Pipeline(folder / "rows").cache().shuffle())
    windows = ready(dl.data.Pipeline(folder / "rows.npz").shuffle(window=WINDOW, block=BLOCK))
    return {
        IN_MEMORY: in_memory(x, y),
        "pipeline of arrays": epochs(whole),
        "pipeline of arrays, a thread ahead": epochs(whole.prefetch(8)),
        "pipeline of files, cached": epochs(kept),
        "pipeline of a packed file, in windows": epochs(windows),
        "pipeline of a packed file, in windows, a thread ahead": epochs(windows.prefetch(8)),
    }


class Trained:
    """One model of each form, and the speed of an epoch."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches
        self._model = nn.Mlp.init(np.array([1, 2], np.uint32), 28 * 28, HIDDEN, CLASSES)
        self._step = dl.compile(step, donate=(0,))
        self.loss = 0.0

    def epoch(self) -> float:
        """Rows a second."""
        start, losses = time.perf_counter(), []
        for x, y in self._batches():
            self._model, value = self._step(self._model, x, y)
            losses.append(value)
        seconds = time.perf_counter() - start
        self.loss = float(np.mean([float(value) for value in losses[-50:]]))
        return ROWS / seconds


def measure(folder: Path, seconds: float) -> dict[str, Any]:
    runs = {name: Trained(batches) for name, batches in forms(folder).items()}
    for name, run in runs.items():
        run.epoch()
        if not run.loss < LOSS_MAX:
            raise SystemExit(f"{name}: a loss of {run.loss}")
    found: dict[str, list[float]] = {name: [] for name in runs}
    loads, end = [], time.perf_counter() + seconds
    while len(loads) < ROUNDS_MIN or time.perf_counter() < end:
        for name, run in runs.items():
            found[name].append(run.epoch())
        loads.append(os.getloadavg()[0])
    base = found[IN_MEMORY]
    ratios = {
        name: statistics.median(a / b for a, b in zip(values, base, strict=True))
        for name, values in found.items()
        if name != IN_MEMORY
    }
    return {
        "rounds": len(loads),
        "load": {"least": min(loads), "median": statistics.median(loads), "most": max(loads)},
        "rows_s_most": {name: max(values) for name, values in found.items()},
        "rows_s_median": {name: statistics.median(values) for name, values in found.items()},
        "of_in_memory_median": ratios,
        "of_in_memory_of_most": {name: max(found[name]) / max(base) for name in ratios},
        "loss": {name: run.loss for name, run in runs.items()},
    }


def targets(report: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "name": f"{name}: rows a second of training, over those in memory",
            "goal": GOAL,
            "measured": value,
            "met": value >= GOAL,
        }
        for name, value in report["of_in_memory_median"].items()
    ]


def shown(report: dict[str, Any]) -> str:
    load = report["load"]
    lines = [
        f"{report['rounds']} rounds, load {load['least']:.1f} to {load['most']:.1f} (median"
        f" {load['median']:.1f})",
        "| form | rows a second, most | median | of in memory, median | of the most |",
        "|---|---|---|---|---|",
    ]
    for name, most in report["rows_s_most"].items():
        cells = [name, f"{most:,.0f}", f"{report['rows_s_median'][name]:,.0f}"]
        if name != IN_MEMORY:
            cells += [
                f"{report['of_in_memory_median'][name]:.2f}",
                f"{report['of_in_memory_of_most'][name]:.2f}",
            ]
        lines.append(f"| {' | '.join(cells)} |" + ("  |  |" if name == IN_MEMORY else ""))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of measuring")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = measure(Path(folder), options.seconds)
    report = {
        "machine": platform.processor() or platform.machine(),
        "processors": os.cpu_count(),
        **report,
    }
    report["targets"] = targets(report)
    print(json.dumps(report, indent=1) if options.json else shown(report))


if __name__ == "__main__":
    main()
