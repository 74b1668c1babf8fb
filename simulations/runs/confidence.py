"""Means over seeds and what they are worth: intervals by Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: Two-sided 95 % quantiles of Student's t, for one degree of freedom and up.
# fmt: off
_T95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on
_T95_MANY = 1.960


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and how far to each side its 95 % confidence interval goes; None of one value."""

    mean: float
    margin: float | None
    count: int

    @property
    def low(self) -> float:
        return self.mean - (self.margin or 0.0)

    @property
    def high(self) -> float:
        return self.mean + (self.margin or 0.0)


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent values: at least one."""
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Estimate(mean, None, count)
    variance = math.fsum((v - mean) ** 2 for v in values) / (count - 1)
    freedom = count - 1
    quantile = _T95[freedom - 1] if freedom <= len(_T95) else _T95_MANY
    return Estimate(mean, quantile * math.sqrt(variance / count), count)


def spread_of(values: Sequence[float]) -> tuple[float, float]:
    """The tenth and the ninetieth percentile (nearest rank), for a round's `Spread`."""
    ranked = sorted(values)
    last = len(ranked) - 1
    return ranked[round(last * 0.1)], ranked[round(last * 0.9)]
