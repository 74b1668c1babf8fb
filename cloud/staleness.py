"""The mean of a buffered run: sums of updates of several ages, made into one step; `buffered` has
the theory and the letters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..core.ports import Floats, Vector
from ..core.privacy import ring
from .state import Attempt


def staleness_weight(tau: int) -> float:
    """s(tau) = 1 / sqrt(1 + tau)."""
    return 1.0 / math.sqrt(1.0 + tau)


def delta(pieces: Iterable[Attempt], round: int, plan: ring.RingPlan) -> tuple[Floats, float]:
    """The step f32[D] of round t + 1, and the sum of weights behind it.

    pieces: of waves, each with a sum. Raises RingError where no honest devices made one of them.
    """
    totals = _totals(pieces, round, plan)
    return step_of([(staleness_weight(tau), total) for tau, total in totals], plan)


def step_of(sums: Iterable[tuple[float, Vector]], plan: ring.RingPlan) -> tuple[Floats, float]:
    """The step f32[D] of sums u32[L], and the sum of weights behind it. Each sum comes with what
    its updates count. Raises RingError.
    """
    means = [(factor, *ring.decode(total, plan)) for factor, total in sums]
    weight = sum(w for _, _, w in means)
    step = np.zeros(plan.dimension, np.float32)
    for factor, mean, share in means:
        mean *= np.float32(factor * share / weight)
        step += mean
    return step, weight


def _totals(pieces: Iterable[Attempt], round: int, plan: ring.RingPlan) -> list[tuple[int, Vector]]:
    """(tau, sum u32[D+1]): one for each model, or more where the ring holds no more in one sum."""
    totals: list[tuple[int, Vector]] = []
    room = 0
    for piece in sorted(pieces, key=lambda p: (p.round, p.attempt)):
        tau, total = round - piece.round, piece.total
        assert total is not None and piece.session is None
        if totals and totals[-1][0] == tau and room >= len(piece.unused):
            ring.add(totals[-1][1], total)
        else:
            totals.append((tau, total.copy()))
            room = plan.clients_max
        room -= len(piece.unused)
    return totals


def take(wave: Attempt) -> Attempt:
    """What is here of a wave, taken out of it."""
    piece = Attempt(
        round=wave.round,
        attempt=wave.attempt,
        evaluates=False,
        weights=wave.weights,
        opened_ns=wave.opened_ns,
        ends_ns=wave.ends_ns,
        total=wave.total,
        unused=wave.unused,
        helpers=wave.helpers,
        seeds=wave.seeds,
    )
    drop(wave)
    return piece


def drop(wave: Attempt) -> None:
    """Forgets what is here of a wave."""
    wave.total, wave.unused, wave.seeds = None, [], []
