"""Graphs of benchmarks/placement.py, and how long the solver takes for them."""

from __future__ import annotations

import statistics
import time
from itertools import pairwise
from typing import Any

import numpy as np
from delian.core.placement.cut.flow import cut
from delian.core.placement.cut.flow_network import build
from delian.core.placement.cut.problem import Hop, Item, Problem, Tensor, Wire
from delian.core.placement.cut.problem_table import Table

COUNT = 5_000
GRAPHS = ("chain", "residual", "window", "random")
#: Operations that a residual connection spans, and that a window reads from.
SPAN, WINDOW = 8, 20


def graph(kind: str, tiers: int, count: int = COUNT, seed: int = 1) -> Problem:
    """A problem of the kind; the same for the same seed."""
    rng = np.random.default_rng(seed)
    readers: list[set[int]] = [set() for _ in range(count)]
    for j in range(1, count):
        readers[j - 1].add(j)
        if kind == "residual" and j % SPAN == 0:
            readers[j - SPAN].add(j)
        elif kind in ("window", "random"):
            first = max(0, j - WINDOW) if kind == "window" else 0
            for i in rng.integers(first, j, rng.integers(0, 3)):
                readers[i].add(j)
    items = tuple(Item(_seconds(kind, tiers, rng)) for _ in range(count))
    tensors = [Tensor(None, (0,), (Wire("f32", 600_000),))]
    for i in range(count):
        shrinking = rng.lognormal(10, 1) * np.exp(-3 * i / count)
        size = int(rng.uniform(4, 300) if kind == "random" else shrinking) + 4
        wires = (Wire("f32", size), Wire("f16", size // 2, 1e-9 * size))
        tensors.append(Tensor(i, tuple(sorted(readers[i])), wires, result=i == count - 1))
    slowest = 1e7 if kind == "random" else 1e5
    hops = tuple(Hop(slowest * 10**k, 2 * slowest * 10**k, 0.02) for k in range(tiers - 1))
    return Problem(items, tuple(tensors), hops)


def _seconds(kind: str, tiers: int, rng: np.random.Generator) -> tuple[float, ...]:
    if kind == "random":  # as fast here as there, and half of them nothing
        return tuple(float(s) for s in rng.uniform(0, 2e-3, tiers) * (rng.random(tiers) < 0.5))
    device = float(rng.lognormal(-8, 1))
    return tuple(device / 5**t for t in range(tiers))


def solver_times(repeats: int) -> list[dict[str, Any]]:
    """Of each kind over two and three tiers: milliseconds of the processor, which is one thread's,
    least and median, and of the run with the least its parts.
    """
    rows = []
    for kind in GRAPHS:
        for tiers in (2, 3):
            problem, runs = graph(kind, tiers), []
            for _ in range(repeats):
                marks = [time.process_time()]
                table = Table.of(problem)
                marks.append(time.process_time())
                network = build(table, table.allowed)
                marks.append(time.process_time())
                found = cut(table, network)
                marks.append(time.process_time())
                assert found.optimal
                runs.append([1e3 * (b - a) for a, b in pairwise(marks)])
            best = min(runs, key=sum)
            rows.append(
                {
                    "graph": kind,
                    "tiers": tiers,
                    "least_ms": sum(best),
                    "median_ms": statistics.median(map(sum, runs)),
                    "arrays_ms": best[0],
                    "network_ms": best[1],
                    "cut_ms": best[2],
                }
            )
    return rows
