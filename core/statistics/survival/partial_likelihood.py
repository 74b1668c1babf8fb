"""Cox's partial likelihood, of sums over risk sets.

With r = w exp(x b + o) of a row, and at a bin of d events, of weights W in all:

    S0, S1   sums of r, r x over the rows at risk
    T0, T1   the same over the rows that have their event
    log L  = sum over events w (x b + o)  -  sum (W/d) sum_l log P_l,   P_l = S0 - f_l T0

with f_l = 0 (Breslow 1974) or l / d (Efron 1977), l = 0 .. d - 1. With Z_l = S1 - f_l T1, the
slope is  sum over events w x - sum (W/d) sum_l Z_l / P_l,  and the information

    sum over rows r x x' (A of the row's run of bins - B of its event's bin)
        - sum (W/d) sum_l Z_l Z_l' / P_l^2

where A = (W/d) sum_l 1 / P_l and B = (W/d) sum_l f_l / P_l of a bin.

So one step gives S and T, p + 1 numbers a bin each, and a second one the first sum of the
information, p (p + 1) / 2 numbers in all: sums of r x x' are never asked by bin.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..question import Step
from ..sums import StatisticsError, Sum, Totals, counts
from .risk_sets import EventBins

Floats = npt.NDArray[np.float64]
#: Bits of sums of r and r x: r is below e^50 < 2^73, and as small as e^-30.
RISK_BITS = (110, 90)
#: Bits of the information: r times up to events / (smallest P).
INFORMATION_BITS = (110, 90)
WEIGHT_BITS = (80, 80)
TIES = ("efron", "breslow")
#: Events that Efron's sums are made for: one number each at the analyst.
EVENTS_MAX = 1 << 25


def risk_sums(bins: int, width: int, ties: str) -> tuple[Sum, ...]:
    """What a `risk` step asks for, with the counts of rows."""
    tied = (Sum("tied", (bins, width + 1), *RISK_BITS),) if ties == "efron" else ()
    return (
        counts("steep"),
        counts("unplaced"),
        counts("events", bins),
        Sum("weights", (bins,), *WEIGHT_BITS),
        Sum("risk", (bins, width + 1), *RISK_BITS),
        Sum("event_x", (width,), *RISK_BITS),
        Sum("event_offset", (), *RISK_BITS),
        *tied,
    )


@dataclass(frozen=True)
class Evaluated:
    """The partial likelihood at some coefficients."""

    coefficients: Floats
    """f64[p], of centred and scaled columns."""
    likelihood: float
    slope: Floats
    """f64[p]"""
    outer: Floats
    """f64[p, p]: the second sum of the information."""
    over_risk: Floats
    """f64[bins]: A."""
    over_events: Floats
    """f64[bins]: B."""
    mean_x: Floats
    """f64[bins, p]: (W/d) sum_l Z_l / P_l, what events' x are compared with."""
    over_risk_x: Floats
    """f64[bins, p]: (W/d) sum_l Z_l / P_l^2, as `over_risk` has 1 / P_l."""
    over_events_x: Floats
    """f64[bins, p]: the same with f_l Z_l / P_l^2."""
    weights: Floats
    """f64[bins]: W."""
    hazard: Floats
    """f64[bins]: W / S0, the steps of the baseline's cumulative hazard (Breslow 1974)."""
    events: Floats
    """f64[bins]"""
    at_risk: Floats
    """f64[bins]: S0."""


def evaluate(totals: Totals, bins: EventBins, coefficients: Floats, ties: str) -> Evaluated:
    """Of the totals of a `risk` step. Raises StatisticsError for too many events."""
    risk = bins.cumulated(totals["risk"])
    tied = totals["tied"] if ties == "efron" else np.zeros_like(risk)
    d, weight = totals["events"], totals["weights"]
    # A bin without events, or with events of weight 0, adds nothing.
    here = np.flatnonzero((d > 0) & (weight > 0) & (risk[:, 0] > 0))
    if ties == "breslow":
        at, share, mean_weight = here, np.zeros(len(here)), weight[here][:, None]
    else:
        if d[here].sum() > EVENTS_MAX:
            raise StatisticsError(
                f"more than {EVENTS_MAX:,} events with Efron's ties", 'ties="breslow"'
            )
        repeats = d[here].astype(np.int64)
        at = np.repeat(here, repeats)
        place = np.arange(len(at)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        share, mean_weight = place / d[at], (weight[at] / d[at])[:, None]
    below = risk[at, :1] - share[:, None] * tied[at, :1]
    above = (risk[at, 1:] - share[:, None] * tied[at, 1:]) / below
    scaled = above * np.sqrt(mean_weight)
    one = (mean_weight / below)[:, 0]
    size = len(bins)
    mean_x = np.zeros((size, risk.shape[1] - 1))
    np.add.at(mean_x, at, mean_weight * above)
    risk_x, events_x = np.zeros_like(mean_x), np.zeros_like(mean_x)
    np.add.at(risk_x, at, one[:, None] * above)
    np.add.at(events_x, at, (one * share)[:, None] * above)
    logs = float(np.sum(mean_weight * np.log(below)))
    return Evaluated(
        coefficients,
        float(totals["event_x"] @ coefficients) + totals.number("event_offset") - logs,
        totals["event_x"] - mean_x.sum(0),
        scaled.T @ scaled,
        np.bincount(at, one, size).astype(np.float64),
        np.bincount(at, one * share, size).astype(np.float64),
        mean_x,
        risk_x,
        events_x,
        weight,
        np.where(d > 0, weight / np.where(risk[:, 0] > 0, risk[:, 0], 1.0), 0.0),
        d,
        risk[:, 0],
    )


def information_step(counted: tuple[Sum, ...], bins: EventBins, found: Evaluated) -> Step:
    """Asks for the first sum of the information, its upper triangle by rows."""
    width = len(found.coefficients)
    return Step(
        "information",
        (*counted, Sum("information", (width * (width + 1) // 2,), *INFORMATION_BITS)),
        {
            **bins.arrays(),
            "coefficients": found.coefficients,
            "over_risk": found.over_risk,
            "over_events": found.over_events,
        },
    )


def squares_step(counted: tuple[Sum, ...], found: Evaluated) -> Step:
    """Asks for the sum of squared residuals of the score (Lin and Wei 1989), its upper triangle.

    A row's residual is w (event (x - mean) - r/w (x A - A_x - event (x B - B_x))), where A and A_x
    are sums over its run of bins; those of a cluster are added up before they are squared.
    """
    width = len(found.coefficients)
    weights = np.where(found.weights > 0, found.weights, 1.0)
    return Step(
        "squares",
        (*counted, Sum("squares", (width * (width + 1) // 2,), *INFORMATION_BITS)),
        {
            "over_risk": found.over_risk,
            "over_events": found.over_events,
            "over_risk_x": found.over_risk_x,
            "over_events_x": found.over_events_x,
            "event_mean": found.mean_x / weights[:, None],
        },
    )


def symmetric(upper: Floats, width: int) -> Floats:
    """f64[p, p] of its upper triangle by rows."""
    made = np.zeros((width, width))
    made[np.triu_indices(width)] = upper
    whole: Floats = made + np.triu(made, 1).T
    return whole


def information(totals: Totals, found: Evaluated) -> Floats:
    """f64[p, p], of the totals of an `information` step."""
    whole: Floats = symmetric(totals["information"], len(found.coefficients)) - found.outer
    return whole
