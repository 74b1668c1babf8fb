"""The log-rank test and its weighted relatives, of counts by stratum, group and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..answer import ResultTable
from ..distributions import chi_squared_tail

Floats = npt.NDArray[np.float64]
WEIGHTINGS = ("log-rank", "wilcoxon", "tarone-ware", "peto", "fleming-harrington")
#: Smallest part of the largest variance at which a difference of groups still has one.
_SINGULAR = 1e-10


@dataclass(frozen=True)
class LogRank:
    """A test that all groups have one survival curve."""

    weighting: str
    groups: tuple[str, ...]
    observed: Floats
    """f64[groups], weighted by the test's weights, as `expected` is."""
    expected: Floats
    statistic: float
    degrees_of_freedom: int
    p_value: float


def log_rank(
    groups: Sequence[str],
    events: Floats,
    at_risk: Floats,
    weighting: str = "log-rank",
    p: float = 0.0,
    q: float = 0.0,
) -> LogRank | None:
    """The test; None where no event has rows of two groups at risk.

    Args:
        groups: names.
        events: f64[strata, groups, times]
        at_risk: the same.
        weighting: of `WEIGHTINGS`; p, q: of fleming-harrington.
    """
    n, d = at_risk.sum(1), events.sum(1)  # [strata, times]
    safe = np.maximum(n, 1.0)
    weights = _weights(weighting, p, q, safe, d)[:, None]
    share = at_risk / safe[:, None]
    due = share * d[:, None]
    tied: Floats = np.where(n > 1, (n - d) / np.maximum(n - 1, 1.0), 1.0) * d
    scaled = share * weights * np.sqrt(tied)[:, None]
    cross = np.einsum("sgt,sht->gh", scaled, scaled)
    own = np.einsum("sgt,st->g", share, weights[:, 0] ** 2 * tied)
    variance = np.diag(own) - cross
    observed = np.einsum("sgt,st->g", events, weights[:, 0])
    expected = np.einsum("sgt,st->g", due, weights[:, 0])
    values, vectors = np.linalg.eigh(variance)
    large = values > _SINGULAR * max(float(values[-1]), 0.0)
    freedom = int(large.sum())
    if not freedom:
        return None
    turned = vectors[:, large].T @ (observed - expected)
    statistic = float(np.sum(turned**2 / values[large]))
    return LogRank(
        weighting,
        tuple(groups),
        observed,
        expected,
        statistic,
        freedom,
        float(chi_squared_tail(statistic, freedom)),
    )


def _weights(weighting: str, p: float, q: float, at_risk: Floats, events: Floats) -> Floats:
    """Weights [strata, times]."""
    if weighting == "wilcoxon":
        return at_risk
    if weighting == "tarone-ware":
        return np.sqrt(at_risk, dtype=np.float64)
    if weighting == "peto":
        return np.cumprod(1 - events / (at_risk + 1), axis=1, dtype=np.float64)
    if weighting == "fleming-harrington":
        behind = np.cumprod(1 - events / at_risk, axis=1, dtype=np.float64)
        before = np.concatenate([np.ones((len(behind), 1)), behind[:, :-1]], axis=1)
        return np.asarray(before**p * (1 - before) ** q, np.float64)
    return np.ones_like(at_risk)


def test_tables(test: LogRank, strata: str) -> tuple[ResultTable, ...]:
    """A test as tables."""
    name = {"log-rank": "log-rank test", "peto": "Peto-Peto test"}.get(
        test.weighting, f"{test.weighting} test"
    )
    if strata:
        name += f", stratified by {strata}"
    rows: tuple[tuple[Any, ...], ...] = tuple(
        zip(test.groups, test.observed.tolist(), test.expected.tolist(), strict=True)
    )
    return (
        ResultTable(name, ("group", "observed", "expected"), rows),
        ResultTable(
            "",
            ("chi-squared", "degrees of freedom", "p"),
            ((test.statistic, test.degrees_of_freedom, test.p_value),),
        ),
    )
