"""What a server update is given, and whether that follows from the sums behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ....cloud.protocol.run_plan import RunPlan
from ....core.privacy.mechanisms import ring
from ....core.protocol.ports import Vector
from .edge_book import Name, OracleFailure


@dataclass(slots=True)
class Step:
    """What a server update was given: the sums, and the round."""

    round: int
    sums: list[tuple[Name, Vector, tuple[int, ...]]]
    masked: frozenset[Name]
    """Waves whose sums are in and cannot be read yet."""


def check_step(
    plan: RunPlan, step: Step, factors: list[float] | None, mean: Any, weight: float
) -> None:
    """Whether the step follows from the sums: the mean, or FedBuff's sum over ages.

    factors: what the updates of each sum count, where that is not by their age. Raises
    OracleFailure.
    """
    total, expected = 0.0, np.zeros(plan.ring.dimension)
    for at, (name, plain, _) in enumerate(step.sums):
        signed = ring.settled(plain, plan.ring).view(np.int32).astype(np.float64)
        tau = step.round - name[1]
        _check(tau == 0 or plan.buffered, f"round {step.round} uses {name}")
        _check(tau <= plan.round.staleness_max, f"an update of age {tau} is used")
        factor = factors[at] if factors else 1.0 / np.sqrt(1.0 + tau)
        expected += factor * signed[:-1] / plan.ring.scale
        total += float(signed[-1]) / plan.ring.weight_scale
    fits = abs(total - weight) < 1e-6 * total
    fits = fits and np.allclose(mean, expected / total, rtol=1e-4, atol=1e-9)
    _check(bool(fits), f"the step of round {step.round} is another one")


def _check(holds: bool, what: str) -> None:
    if not holds:
        raise OracleFailure("sum", what)
