"""Quantised inference: accuracy, size and speed beside f32, for models trained here and now.

    python benchmarks/quantised.py --json quantised.json
    python benchmarks/quantised.py --omniglot omniglot_small.npz        real 28 x 28 images

Three models are trained through their own bundles: an MLP and a CNN on scikit-learn's digits, and
the FedAvg paper's CNN on 28 x 28 images of 20 classes: Omniglot's characters where a file is given
(arrays `image` u8[n,28,28] and `character`; the last quarter of each character's drawings is held
out), else patterns with noise. Each is quantised with 256 training rows. Accuracy is on rows that
neither training nor calibration has seen, in points; size is the quantised bundle against the f32
weights; speed is one call of `infer`, both engines in turn, the fastest of many, on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from delian.core import learning
from delian.core.compiler import random
from delian.core.compiler.ir import Array, DType, TensorType
from delian.core.learning import Classification, Samples, SampleSet, nn
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.quantise import METHODS, batches_of, quantise
from delian.core.learning.runtime import Runtime

#: Accuracy that may be lost, in points; how many times smaller, and faster, at least.
GOALS = {"drop": 1.0, "size": 3.0, "speed": 1.0}
CALIBRATION_ROWS = 256
TURNS = 400
#: Of gradient descent, on batches of twenty, in one call of a bundle's `personalise`.
STEPS = 200


@dataclass
class Result:
    model: str
    method: str
    batch: int
    accuracy: float
    accuracy_quantised: float
    drop: float
    size: float
    speed: float
    f32_us: float
    quantised_us: float


def digits() -> tuple[Array, Array, int]:
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    x = found.images[order].astype(np.float32)
    return x, found.target[order], len(order) * 3 // 4


def patterns(classes: int = 20, each: int = 60) -> tuple[Array, Array, int]:
    """Blurred random strokes, shifted and with noise."""
    rng = np.random.default_rng(1)
    base = rng.normal(size=(classes, 34, 34))
    for _ in range(3):
        base = (base + np.roll(base, 1, 1) + np.roll(base, 1, 2) + np.roll(base, -1, 1)) / 4
    base = np.clip(base / base.std() * 70 + 90, 0, 255)
    y = np.repeat(np.arange(classes), each)
    rows = []
    for label in y:
        i, j = rng.integers(0, 7, 2)
        rows.append(base[label, i : i + 28, j : j + 28] + rng.normal(size=(28, 28)) * 60)
    order = rng.permutation(len(y))
    x = np.clip(np.array(rows), 0, 255).astype(np.float32)[order]
    return x, y[order], len(y) * 3 // 4


def omniglot(path: Path, classes: int = 20) -> tuple[Array, Array, int]:
    with np.load(path, allow_pickle=False) as found:
        image, character = found["image"], found["character"]
    names = np.unique(character)[:classes]
    train, test = [], []
    for label, name in enumerate(names):
        rows = image[character == name].astype(np.float32)
        cut = len(rows) * 3 // 4
        train += [(r, label) for r in rows[:cut]]
        test += [(r, label) for r in rows[cut:]]
    order = np.random.default_rng(0).permutation(len(train))
    both = [train[i] for i in order] + test
    return np.array([r for r, _ in both]), np.array([k for _, k in both]), len(train)


def trained(
    init: Callable[[Any], Any], x: Array, y: Array, cut: int, scale: float, calls: int, batch: int
) -> tuple[Any, Array]:
    """A bundle whose `infer` takes `batch` rows, and a model trained on the first rows."""
    data = SampleSet(x, y, np.array(cut, np.int64), np.array(len(x) - cut, np.int64))
    made = build(
        Classification("quantised", init, Samples(20, scale)),
        learning.FedAvg(personal_steps=STEPS, personal_learning_rate=0.1),
        data,
        example=TensorType(DType.F32, (batch, *x.shape[1:])),
        clip=1e3,
        clients_max=4,
        weight_max=float(len(x)),
        seed=0,
    )
    runtime, state = Runtime(made), made.weights
    for k in range(calls):
        state = runtime.personalise(state, data, random.key(k))
    return made, state


def accuracy(runtime: Runtime, model: Array, x: Array, y: Array) -> float:
    infer = runtime.bundle.programs["infer"]
    right = [runtime.infer(model, rows).argmax(-1) for rows in batches_of(x, infer)]
    return 100 * float(np.mean(np.concatenate(right)[: len(y)] == y))


def fastest(runs: list[Callable[[], Any]]) -> list[float]:
    """Seconds of the fastest call of each, in turn."""
    best = [float("inf")] * len(runs)
    for _ in range(TURNS):
        for i, run in enumerate(runs):
            start = time.perf_counter()
            run()
            best[i] = min(best[i], time.perf_counter() - start)
    return best


def measure(
    name: str, batch: int, init: Any, data: tuple[Array, Array, int], scale: float, calls: int
) -> list[Result]:
    x, y, cut = data
    made, model = trained(init, x, y, cut, scale, calls, batch)
    before, empty = Runtime(made), np.empty(0, np.float32)
    rows = x[:batch]
    whole = accuracy(before, model, x[cut:], y[cut:])
    out = []
    for method in METHODS:
        small = quantise(made, x[:cut][:CALIBRATION_ROWS], weights=model, method=method)
        after = Runtime(small)
        less = accuracy(after, empty, x[cut:], y[cut:])
        f32, quantised = fastest(
            [lambda: before.infer(model, rows), lambda after=after: after.infer(empty, rows)]  # type: ignore[misc]
        )
        size = model.nbytes / len(small.to_bytes())
        row = Result(
            name,
            method,
            batch,
            round(whole, 2),
            round(less, 2),
            round(whole - less, 2),
            round(size, 2),
            round(f32 / quantised, 2),
            round(1e6 * f32, 1),
            round(1e6 * quantised, 1),
        )
        out.append(row)
        print(
            f"{name:14} B{batch:<3} {method:10} {whole:6.2f}% -> {less:6.2f}%   size / {size:.2f}  "
            f" {row.f32_us:8.1f} -> {row.quantised_us:7.1f} us   {row.speed:.2f} times as fast",
            flush=True,
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--omniglot", type=Path, metavar="FILE")
    parser.add_argument("--batches", default="1,10", help="rows of one call of infer")
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    images = omniglot(given.omniglot) if given.omniglot else patterns()
    results: list[Result] = []
    for batch in (int(b) for b in given.batches.split(",")):
        x, y, cut = digits()
        flat = (x.reshape(len(x), 64), y, cut)
        deep = (x[..., None], y, cut)
        results += measure(
            "digits-mlp", batch, lambda k: nn.Mlp.init(k, 64, (256, 128), 10), flat, 1 / 16, 6
        )
        results += measure(
            "digits-cnn", batch, lambda k: nn.FedAvgCnn.init(k, 8, 8, 1, 10), deep, 1 / 16, 5
        )
        tall = (images[0][..., None], images[1], images[2])
        name = "omniglot-cnn" if given.omniglot else "patterns-cnn"
        results += measure(
            name, batch, lambda k: nn.FedAvgCnn.init(k, 28, 28, 1, 20), tall, 1 / 255, 4
        )
    chosen = [r for r in results if r.method == "mse"]
    targets = {
        f"{r.model}-b{r.batch}": {
            "drop": r.drop,
            "size": r.size,
            "speed": r.speed,
            "met": r.drop <= GOALS["drop"]
            and r.size >= GOALS["size"]
            and r.speed >= GOALS["speed"],
        }
        for r in chosen
    }
    print(json.dumps(targets, indent=1))
    if given.json:
        whole = {
            "goals": GOALS,
            "load": os.getloadavg()[0],
            "rows": [asdict(r) for r in results],
            "targets": targets,
        }
        Path(given.json).write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
