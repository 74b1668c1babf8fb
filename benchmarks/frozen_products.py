"""Products with frozen weights in few bits, beside torch, in one process and on one thread.

    python benchmarks/frozen_products.py [--seconds 20] [--json frozen.json]

Each product is a forward one, x @ W, or an input's gradient, g @ W^T, of f32 rows with a weight of
768 x 768, 768 x 3072 or 3072 x 768 (GPT-2's). Engines: Delian with the weight in f32, bf16, i8 and
i4; torch eager with f32, and with rows and weight in bf16. All take turns, one timed call each,
until the time of a product is up, so that a noisy machine is noisy for all; quoted is the least.
Results are checked against f64 of the numbers that a weight stands for. The report says the load of
the machine before and after: figures of a busy one are none.

--json ends in `targets`, by 512 rows: weights in few bits against Delian's f32, and torch's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SHAPES = ((512, 768, 768), (512, 768, 3072), (512, 3072, 768), (64, 768, 3072), (8, 768, 3072))
KINDS = ("bf16", "i8", "i4")
#: Rows from which on targets count: those of a training step.
ROWS_MIN = 512
#: At most so many times the time of Delian's f32, and at least so many times as fast as torch's.
SLOWER_MAX = 1.1
FASTER_MIN = 1.0
TOLERANCE = 2e-6
ROUNDS_MIN = 5


def confine() -> None:
    """One processor and one thread, before anything starts more."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "DELIAN_THREADS"):
        os.environ[name] = "1"


def engines(m: int, k: int, n: int, back: bool) -> dict[str, Callable[[], Any]]:
    """Calls of one product by engine, each checked."""
    import delian as dl
    import numpy as np
    import torch

    rng = np.random.default_rng(m + k + n)
    weight = (rng.standard_normal((k, n)) * 0.02).astype(np.float32)
    rows = rng.standard_normal((m, n if back else k)).astype(np.float32)

    def product(x: Any, w: Any) -> Any:
        return x @ w.T if back else x @ w

    made: dict[str, Callable[[], Any]] = {}
    for kind in ("f32", *KINDS):
        given = weight if kind == "f32" else dl.quantise_weight(weight, kind)
        numbers = weight if kind == "f32" else given.expanded()
        run = dl.compile(product, threads=1)
        wanted = product(rows.astype(np.float64), numbers.astype(np.float64))
        error = np.abs(run(rows, given) - wanted).max() / np.abs(wanted).max()
        assert error < TOLERANCE, (kind, m, k, n, back, error)
        made[kind] = lambda run=run, given=given: run(rows, given)
    torch.set_num_threads(1)
    x, w = torch.from_numpy(rows), torch.from_numpy(weight)
    made["torch f32"] = lambda: product(x, w)
    halves = x.bfloat16(), w.bfloat16()
    made["torch bf16"] = lambda: product(*halves)
    return made


def times(calls: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """The least microseconds of each, in turns."""
    best = dict.fromkeys(calls, float("inf"))
    end, rounds = time.perf_counter() + seconds, 0
    while rounds < ROUNDS_MIN or time.perf_counter() < end:
        for name, call in calls.items():
            begun = time.process_time()
            call()
            best[name] = min(best[name], (time.process_time() - begun) * 1e6)
        rounds += 1
    return best


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for kind in KINDS:
        counted = [r["us"] for r in rows if r["shape"][0] >= ROWS_MIN]
        slower = max(us[kind] / us["f32"] for us in counted)
        faster = min(us["torch f32"] / us[kind] for us in counted)
        name = f"{kind}, {ROWS_MIN} rows"
        found.append(
            _target(f"{name}: times Delian's f32", SLOWER_MAX, slower, slower <= SLOWER_MAX)
        )
        found.append(
            _target(f"{name}: as fast as torch f32", FASTER_MIN, faster, faster >= FASTER_MIN)
        )
    return found


def _target(name: str, goal: float, measured: float, met: bool) -> dict[str, Any]:
    return {"name": name, "goal": goal, "measured": round(measured, 3), "met": met}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="for all products together")
    parser.add_argument("--json", type=Path, help="file for the report")
    args = parser.parse_args()
    confine()
    load = [os.getloadavg()]
    rows = []
    for shape in SHAPES:
        for back in (False, True):
            us = times(engines(*shape, back), args.seconds / (2 * len(SHAPES)))
            rows.append({"shape": shape, "gradient": back, "us": us})
            told = ", ".join(f"{name} {value:,.0f}" for name, value in us.items())
            print(f"{shape} {'gradient' if back else 'forward'}: {told} us", file=sys.stderr)
    load.append(os.getloadavg())
    report = {"products": rows, "load": load, "targets": targets(rows)}
    for target in report["targets"]:
        print(target)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
