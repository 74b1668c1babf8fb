"""Kernels written with loops that change arrays in place: Delian beside Numba, on the same source.

    python benchmarks/in_place.py [--seconds 2] [--kernel lu] [--gradients] [--json]

The kernels of `in_place_kernels.py` (a Sobel filter, Floyd-Warshall, LU decompositions without and
with pivots, a Kalman filter with one observed number after the other, a heat stencil, insertion
sort) on f64, at several sizes, on one core. Both
engines compile the same functions and are checked against plain Python first, at the smallest size.
They take turns, one timed batch of calls each, until the time is up, so that a noisy machine is
noisy for both. Times are processor times of a call with all that belongs to it: arguments checked,
results made. Quoted are the least and the median; ratios are of the least (min/min). A call that
computes nothing shows what a call costs by itself. Where Numba is not installed its columns are
absent, and so are the ratios.

--gradients times the gradient of the sum of what a kernel gives, squared, by all its floats beside
that sum itself, in Delian alone; the ratio is gradient over function. Each is checked against
forward mode first, at a small size.

--json ends in `targets`: each kernel at each size, Delian's time over Numba's, at most 1.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import delian as dl
import numpy as np
from in_place_kernels import KERNELS, arguments

SIZES = {
    "sobel": (64, 256, 1024),
    "floyd_warshall": (32, 64, 256),
    "lu": (64, 256, 512),
    "lu_pivoted": (64, 256),
    "kalman": (4, 8, 16),
    "heat": (64, 256),
    "insertion_sort": (64, 256, 1024),
}
#: With --gradients.
GRADIENT_SIZES = {
    "sobel": (64, 256),
    "floyd_warshall": (32, 64, 128),
    "lu": (32, 64, 128),
    "lu_pivoted": (32, 64),
    "kalman": (4, 8, 16),
    "heat": (64, 256),
    "insertion_sort": (64, 256),
}
#: The gradients' sizes for a check against forward mode, which runs once for each number.
CHECKED_SIDE = 4
RATIO_MAX = 1.0
TOLERANCE = 1e-9
#: Calls that are timed together take at least so long.
BATCH_SECONDS = 2e-3
ROUNDS_MIN = 5


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def nothing(x: Any) -> Any:
    return x


def peer() -> tuple[str, Callable[..., Any]] | None:
    """Numba's version and compiler, where it is installed."""
    try:
        import numba
    except ImportError:
        say("numba is not installed: its columns are absent")
        return None
    return numba.__version__, numba.njit


def engines(f: Callable[..., Any], theirs: Callable[..., Any] | None) -> dict[str, Any]:
    made = {"delian": dl.compile(f, threads=1)}
    if theirs is not None:
        made["numba"] = theirs(f)
    return made


def check(name: str, size: int, made: dict[str, Any]) -> None:
    """Every engine gives what plain Python gives."""
    given = arguments(name, size)
    want = KERNELS[name](*given)
    for engine, run in made.items():
        got = run(*given)
        pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
        for a, b in pairs:
            np.testing.assert_allclose(a, b, TOLERANCE, TOLERANCE, err_msg=engine)


def measured(
    made: dict[str, Any], given: tuple[Any, ...], seconds: float
) -> dict[str, dict[str, float]]:
    """Microseconds a call of each engine, in turns."""
    batch = {engine: _batch(run, given) for engine, run in made.items()}
    times: dict[str, list[float]] = {engine: [] for engine in made}
    end = time.monotonic() + seconds
    while time.monotonic() < end or min(map(len, times.values())) < ROUNDS_MIN:
        for engine, run in made.items():
            times[engine].append(_timed(run, given, batch[engine]))
    return {
        engine: {"least": 1e6 * min(t), "median": 1e6 * statistics.median(t)}
        for engine, t in times.items()
    }


def _timed(run: Callable[..., Any], given: tuple[Any, ...], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        run(*given)
    return (time.process_time() - start) / calls


def _batch(run: Callable[..., Any], given: tuple[Any, ...]) -> int:
    run(*given)  # It is compiled, or read.
    return max(1, int(BATCH_SECONDS / max(_timed(run, given, 2), 1e-7)))


def row(name: str, size: int, made: dict[str, Any], seconds: float) -> dict[str, Any]:
    given = (np.ones(1),) if name == "nothing" else arguments(name, size)
    times = measured(made, given, seconds)
    found: dict[str, Any] = {"kernel": name, "size": size, "us": times}
    if "numba" in times:
        found["ratio"] = times["delian"]["least"] / times["numba"]["least"]
    return found


def with_gradient(name: str) -> tuple[dict[str, Any], Callable[..., Any]]:
    """The sum of squares of what a kernel gives, and its gradient; the same in forward mode."""

    def loss(*args: Any) -> Any:
        made = KERNELS[name](*args)
        made = made[0] if name == "lu_pivoted" else made
        return np.sum(made * made)

    floats = tuple(i for i, v in enumerate(arguments(name, 2)) if isinstance(v, np.ndarray))
    gradient = dl.compile(dl.grad(loss, argnums=floats), threads=1)
    return (
        {"function": dl.compile(loss, threads=1), "gradient": gradient},
        dl.compile(dl.jacfwd(loss, argnums=floats), threads=1),
    )


def gradient_rows(names: Sequence[str], seconds: float) -> list[dict[str, Any]]:
    rows = []
    for name in names:
        made, forward = with_gradient(name)
        small = arguments(name, CHECKED_SIDE)
        for a, b in zip(made["gradient"](*small), forward(*small), strict=True):
            np.testing.assert_allclose(a, b, TOLERANCE, TOLERANCE, err_msg=name)
        for size in GRADIENT_SIZES[name]:
            times = measured(made, arguments(name, size), seconds)
            ratio = times["gradient"]["least"] / times["function"]["least"]
            rows.append({"kernel": name, "size": size, "us": times, "ratio": ratio})
            say(table(rows[-1:]).splitlines()[1])
    return rows


def targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "goal": f"{r['kernel']} {r['size']}: time over Numba's",
            "most": RATIO_MAX,
            "measured": round(r["ratio"], 3),
            "met": r["ratio"] <= RATIO_MAX,
        }
        for r in rows
        if "ratio" in r and r["kernel"] in KERNELS
    ]


def table(rows: list[dict[str, Any]]) -> str:
    names = list(rows[0]["us"])
    lines = [f"{'kernel':>15}{'size':>6}" + "".join(f"{n:>22}" for n in names) + f"{'ratio':>8}"]
    for r in rows:
        cells = [f"{r['us'][n]['least']:.1f} ({r['us'][n]['median']:.1f}) us" for n in names]
        ratio = f"{r['ratio']:8.2f}" if "ratio" in r else ""
        lines.append(
            f"{r['kernel']:>15}{r['size']:>6}" + "".join(f"{c:>22}" for c in cells) + ratio
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each kernel and size")
    parser.add_argument("--kernel", choices=sorted(KERNELS), help="this one alone")
    parser.add_argument("--gradients", action="store_true", help="gradients beside functions")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.gradients:
        rows = gradient_rows([options.kernel] if options.kernel else list(KERNELS), options.seconds)
        print(json.dumps({"rows": rows}, indent=1) if options.json else table(rows))
        return 0
    found = peer()
    theirs = None if found is None else found[1]
    rows = []
    for name in [options.kernel] if options.kernel else KERNELS:
        made = engines(KERNELS[name], theirs)
        check(name, SIZES[name][0], made)
        for size in SIZES[name]:
            rows.append(row(name, size, made, options.seconds))
            say(table(rows[-1:]).splitlines()[1])
    rows.append(row("nothing", 1, engines(nothing, theirs), options.seconds))
    machine = {
        "processor": platform.processor() or platform.machine(),
        "load": os.getloadavg(),
        "numba": None if found is None else found[0],
    }
    goals = targets(rows)
    if options.json:
        print(json.dumps({"machine": machine, "rows": rows, "targets": goals}, indent=1))
    else:
        print(table(rows))
        print(f"load {machine['load'][0]:.1f}, numba {machine['numba']}")
        missed = [g["goal"] for g in goals if not g["met"]]
        print(f"targets missed: {', '.join(missed) or 'none'}" if goals else "no peer, no targets")
    return 0 if all(g["met"] for g in goals) else 1


if __name__ == "__main__":
    sys.exit(main())
