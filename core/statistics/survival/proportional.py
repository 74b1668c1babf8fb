"""The test of proportional hazards of Grambsch and Therneau (1994).

A residual is what an event's columns differ by from the mean over its risk set; it is compared
with a transform g of the event's time. With d events, the covariance V of the coefficients, and
U = sum (g - mean g) residual, each column has the statistic d (V U)_k^2 / (V_kk sum (g - mean g)^2)
of one degree of freedom, and all together d U' V U / sum (g - mean g)^2. The covariance is taken
to be the same at all times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..distributions import chi_squared_tail
from .partial_likelihood import Evaluated

Floats = npt.NDArray[np.float64]


def _survival(leaving: Floats, events: Floats) -> Floats:
    """One minus Kaplan-Meier of all rows, behind each time."""
    at_risk = np.maximum(leaving.sum() - (np.cumsum(leaving) - leaving), 1.0)
    return 1 - np.cumprod(1 - events / at_risk, dtype=np.float64)


def _rank(events: Floats) -> Floats:
    """The mean rank of a time's events among all."""
    return np.cumsum(events, dtype=np.float64) - (events - 1) / 2


#: Of a bin's time: by the bins of all times, f64[all bins], of leaving rows and of events in them.
TRANSFORMS: dict[str, Callable[[Floats, Floats, Floats], Floats]] = {
    "km": lambda times, leaving, events: _survival(leaving, events),
    "rank": lambda times, leaving, events: _rank(events),
    "identity": lambda times, leaving, events: times,
    "log": lambda times, leaving, events: np.log(np.maximum(times, 1e-300)),
}


@dataclass(frozen=True)
class Proportional:
    """The test's results."""

    transform: str
    statistics: Floats
    """f64[p]"""
    p_values: Floats
    """f64[p]"""
    statistic: float
    """Of all columns together, p degrees of freedom."""
    p_value: float


def proportional_test(
    transform: str, transformed: Floats, held: Floats, at: Evaluated, covariance: Floats
) -> Proportional | None:
    """The test, of columns as they were scaled for the fit.

    Args:
        transform: its name.
        transformed: f64[bins], g.
        held: f64[p], the sum of g times the columns over events.
        at: the partial likelihood at its maximum.
        covariance: f64[p, p].

    Returns:
        None where all events have one time.
    """
    d = at.events
    events = d.sum()
    centred = transformed - float(d @ transformed) / events
    spread = float(d @ centred**2)
    if spread <= 1e-12 * max(float(d @ transformed**2), 1e-300):
        return None
    # The residuals add up to the slope, which is zero at the maximum.
    residual = held - transformed @ at.mean_x
    residual = residual - (transformed - centred)[0] * at.slope
    turned = covariance @ residual
    statistics = events * turned**2 / (np.diag(covariance) * spread)
    whole = float(events * (residual @ turned) / spread)
    return Proportional(
        transform,
        statistics,
        chi_squared_tail(statistics, 1),
        whole,
        float(chi_squared_tail(whole, len(turned))),
    )
