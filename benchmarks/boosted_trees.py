"""Boosted trees over five sites, beside XGBoost on the pooled rows: seconds, bytes, equal trees.

    python benchmarks/boosted_trees.py [--rows 100000] [--features 30] [--rounds 100] [--json]

Five sites in one process share the rows; every sum goes through a whole session of secure
aggregation (`LocalSites`), one site after the other, so the seconds are those of all sites and of
the coordinator together. Features have 256 different values each, the most that XGBoost's default
keeps apart, so that each histogram has as many numbers as it can have. The trees are compared with
those of `xgboost` (`tree_method="hist"`, two threads) on all rows: features, thresholds, default
directions, and leaves to 1e-6.

NVFlare: its wheel has no way to run XGBoost's secure mode by itself (XGBoost loads a plugin in C++
that is built from NVFlare's sources), so that its encryption is timed alone, where the package
tenseal is installed: the same calls that it makes for horizontal histograms (`ckks_vector` of all
gradients and Hessians of a level, their sum, `decrypt` at each site), with the parameters of its
provisioner (degree 8192, moduli of 60, 40 and 40 bits, scale 2^40), for the histograms of one tree,
times the trees. Building histograms, choosing splits, bytes and messages are left out of it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from typing import Any

import numpy as np
from delian.core.statistics.methods.boosted_trees import BoostedTrees
from delian.core.statistics.question import Step, step_bytes
from delian.core.statistics.sums import SumPlan
from delian.simulations.statistics.local_sites import LocalSites

SITES, VALUES, DEPTH = 5, 256, 6
#: Seconds of all sites and of the coordinator, on two cores.
GOAL_S = 60.0
OBJECTIVE = "binary:logistic"
_CKKS = {"poly_modulus_degree": 8192, "coeff_mod_bit_sizes": [60, 40, 40]}
_CKKS_SCALE = 2**40


def data(rows: int, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Features f64[rows, features] and a target f64[rows] of 0 and 1."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, VALUES, (rows, features)).astype(float)
    signal = np.sin(x[:, 0] / 30) + 0.01 * x[:, 2] * (x[:, 3] > 100) + rng.normal(size=rows)
    return x, (signal > 1).astype(float)


def split_for_split(ours: dict[str, Any], theirs: dict[str, Any]) -> int:
    """How many trees are equal."""
    mine, its = (m["learner"]["gradient_booster"]["model"]["trees"] for m in (ours, theirs))
    equal = 0
    for one, other in zip(mine, its, strict=True):
        same = all(one[k] == other[k] for k in ("left_children", "split_indices", "default_left"))
        if same:
            inner = np.array(other["left_children"]) >= 0
            a, b = (np.array(t["split_conditions"], np.float32) for t in (one, other))
            same = bool((a == b)[inner].all() and np.abs(a - b)[~inner].max() <= 1e-6)
        equal += same
    return equal


def federated(x: np.ndarray, y: np.ndarray, rounds: int, repeat: int) -> dict[str, Any]:
    names = tuple(f"f{i}" for i in range(x.shape[1]))
    tables = [
        {**{n: x[k::SITES, i] for i, n in enumerate(names)}, "y": y[k::SITES]} for k in range(SITES)
    ]
    question = BoostedTrees("y", names, OBJECTIVE, rounds=rounds, max_depth=DEPTH, floor=1)
    seconds, processor, up, down = [], [], 0, 0
    for _ in range(repeat):
        steps: list[tuple[int, int]] = []

        def note(step: Step, steps: list[tuple[int, int]] = steps) -> None:
            steps.append((4 * SumPlan(step.sums, SITES).dimension, len(step_bytes(step))))

        begun, began = time.process_time(), time.perf_counter()
        answer: Any = LocalSites(tables).answer(question, on_step=note)
        seconds.append(time.perf_counter() - began)
        processor.append(time.process_time() - begun)
        up, down = sum(sent for sent, _ in steps), sum(got for _, got in steps)
    return {
        "seconds": min(seconds),
        "processor_s": min(processor),
        "steps": len(steps),
        "site_sends_mb": up / 1e6,
        "site_receives_mb": down / 1e6,
        "logloss": answer.facts["logloss"],
        "model": answer.to_xgboost(),
    }


def pooled(x: np.ndarray, y: np.ndarray, rounds: int, repeat: int) -> dict[str, Any] | None:
    try:
        import xgboost
    except ImportError:
        return None
    settings = {"objective": OBJECTIVE, "tree_method": "hist", "max_depth": DEPTH, "nthread": 2}
    seconds = []
    for _ in range(repeat):
        began = time.perf_counter()
        booster = xgboost.train(settings, xgboost.DMatrix(x, y), rounds)
        seconds.append(time.perf_counter() - began)
    return {
        "version": xgboost.__version__,
        "seconds": min(seconds),
        "model": json.loads(booster.save_raw("json")),
    }


def encrypted(features: int, rounds: int) -> dict[str, Any] | None:
    """Seconds of NVFlare's encryption for all trees, from those of one tree's histograms."""
    try:
        import tenseal
    except ImportError:
        return None
    # Its C++ prints a warning for each vector of several ciphertexts.
    silence = os.open(os.devnull, os.O_WRONLY)
    kept = [os.dup(stream) for stream in (1, 2)]
    try:
        for stream in (1, 2):
            os.dup2(silence, stream)
        seconds, sent = _encrypted(tenseal, features)
    finally:
        for stream, old in zip((1, 2), kept, strict=True):
            os.dup2(old, stream)
    return {
        "one_tree_s": seconds,
        "seconds": rounds * seconds,
        "site_sends_mb": rounds * sent / 1e6,
    }


def _encrypted(tenseal: Any, features: int) -> tuple[float, int]:
    """Seconds and a site's bytes of one tree."""
    context = tenseal.context(tenseal.SCHEME_TYPE.CKKS, **_CKKS)
    context.global_scale = _CKKS_SCALE
    rng = np.random.default_rng(1)
    began, sent = time.perf_counter(), 0
    # Of two siblings one is built: 1, 1, 2, 4, 8 and 16 nodes a level.
    for nodes in [1] + [2**level for level in range(DEPTH - 1)]:
        numbers = rng.normal(size=2 * nodes * features * VALUES).tolist()
        vectors = [tenseal.ckks_vector(context, numbers) for _ in range(SITES)]
        total = vectors[0]
        for vector in vectors[1:]:
            total += vector
        for _ in range(SITES):
            total.decrypt()
        sent += len(vectors[1].serialize())
    return time.perf_counter() - began, sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--features", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    x, y = data(args.rows, args.features)
    ours = federated(x, y, args.rounds, args.repeat)
    theirs = pooled(x, y, args.rounds, args.repeat)
    peer = encrypted(args.features, args.rounds)
    equal = split_for_split(ours.pop("model"), theirs.pop("model")) if theirs else None
    targets = [
        {
            "name": f"{args.rounds} trees, {args.rows:,} rows, {SITES} sites, masked: seconds",
            "goal": GOAL_S,
            "measured": round(ours["seconds"], 2),
            "met": ours["seconds"] <= GOAL_S,
        }
    ]
    if equal is not None:
        targets.append(
            {
                "name": "trees equal to XGBoost's",
                "goal": args.rounds,
                "measured": equal,
                "met": equal == args.rounds,
            }
        )
    report = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "delian": ours,
        "xgboost": theirs or "not installed",
        "nvflare_encryption": peer or "tenseal is not installed",
        "targets": targets,
    }
    print(json.dumps(report, indent=1) if args.json else _shown(report))


def _shown(report: dict[str, Any]) -> str:
    lines = []
    for name in ("delian", "xgboost", "nvflare_encryption"):
        found = report[name]
        if isinstance(found, dict):
            found = ", ".join(
                f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()
            )
        lines.append(f"{name}: {found}")
    return "\n".join([*lines, *(str(target) for target in report["targets"])])


if __name__ == "__main__":
    main()
