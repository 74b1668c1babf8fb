"""A survival curve of counts by time: estimates, intervals, median and mean, and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..answer import Plot, ResultTable
from ..distributions import normal_quantile, special

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
#: Scales on which intervals are symmetric, and how tied events add to the cumulative hazard.
CURVE_INTERVALS = ("log-log", "log", "plain")
HAZARDS = ("nelson-aalen", "fleming-harrington")
#: Times of a table of rows at risk, 0 aside.
_TIMES_AT_RISK = 6


@dataclass(frozen=True)
class Curve:
    """Survival of one group: arrays [times], from time 0 on, where rows leave or enter."""

    name: str
    times: Floats
    at_risk: Places
    """Rows at risk just before a time."""
    events: Places
    censored: Places
    survival: Floats
    """Kaplan-Meier: the share that is event-free behind a time."""
    standard_error: Floats
    """Of `survival`, by Greenwood's formula."""
    low: Floats
    high: Floats
    cumulative_hazard: Floats
    hazard_standard_error: Floats
    hazard_low: Floats
    hazard_high: Floats
    lowest: Floats
    """The curve if all rows censored at a time had been so before its events: the order within
    joined times is not known.
    """
    median: float
    """The first time with survival of at most a half; inf where there is none."""
    median_low: float
    median_high: float
    mean: float
    """Mean time up to `mean_until`."""
    mean_standard_error: float
    mean_until: float

    def survival_at(self, time: float) -> float:
        """Survival behind a time."""
        return float(self.survival[np.searchsorted(self.times, time, side="right") - 1])

    def at_risk_at(self, time: float) -> int:
        """Rows at risk just before a time."""
        place = int(np.searchsorted(self.times, time))
        if place < len(self.times):
            return int(self.at_risk[place])
        return int(self.at_risk[-1] - self.events[-1] - self.censored[-1])


def curve_of(
    name: str,
    times: Floats,
    at_risk: Floats,
    events: Floats,
    leaving: Floats,
    entering: Floats,
    options: tuple[float, str, str],
    until: float,
) -> Curve:
    """A curve of counts f64[times], with options (confidence, intervals, hazard)."""
    kept = (leaving > 0) | (entering > 0)
    kept[0] |= times[0] == 0
    t, n, d, out = times[kept], at_risk[kept], events[kept], leaving[kept]
    if not len(t) or t[0] > 0:  # the curve begins at 0
        t = np.append(0.0, t)
        n, d, out = np.append(at_risk[0], n), np.append(0.0, d), np.append(0.0, out)
    z = normal_quantile(0.5 + options[0] / 2)
    survival, log_variance = _product_limit(n, d)
    low, high = _bounds(survival, log_variance, z, options[1])
    hazard, variance = _hazard(n, d, options[2])
    with np.errstate(invalid="ignore", divide="ignore"):
        width = np.where(hazard > 0, z * np.sqrt(variance) / hazard, 0.0)
    lowest, _ = _product_limit(n - (out - d), d)
    mean, mean_error = _restricted_mean(t, n, d, survival, until)
    return Curve(
        name,
        t,
        n.astype(np.int64),
        d.astype(np.int64),
        (out - d).astype(np.int64),
        survival,
        survival * np.sqrt(log_variance),
        low,
        high,
        hazard,
        np.sqrt(variance),
        hazard * np.exp(-width),
        hazard * np.exp(width),
        lowest,
        _crossing(t, survival),
        _crossing(t, low),
        _crossing(t, high),
        mean,
        mean_error,
        until,
    )


def _product_limit(at_risk: Floats, events: Floats) -> tuple[Floats, Floats]:
    """Kaplan-Meier, and the variance of its logarithm (0 is added where all have the event)."""
    safe = np.maximum(at_risk, 1.0)
    survival = np.cumprod(np.where(events > 0, (safe - events) / safe, 1.0))
    left = safe - events
    variance = np.cumsum(
        np.where((events > 0) & (left > 0), events / safe / np.maximum(left, 1), 0)
    )
    return np.maximum(survival, 0.0), variance


def _bounds(survival: Floats, variance: Floats, z: float, scale: str) -> tuple[Floats, Floats]:
    inside = (survival > 0) & (survival < 1)
    s = np.where(inside, survival, 0.5)
    spread = z * np.sqrt(variance)
    if scale == "log-log":
        low = np.exp(np.log(s) * np.exp(-spread / np.log(s)))
        high = np.exp(np.log(s) * np.exp(spread / np.log(s)))
    elif scale == "log":
        low, high = s * np.exp(-spread), np.minimum(s * np.exp(spread), 1.0)
    else:
        low, high = np.maximum(s - s * spread, 0.0), np.minimum(s + s * spread, 1.0)
    return np.where(inside, low, survival), np.where(inside, high, survival)


def _hazard(at_risk: Floats, events: Floats, kind: str) -> tuple[Floats, Floats]:
    """Cumulative hazard and its variance."""
    n = np.maximum(at_risk, 1.0)
    if kind == "nelson-aalen":
        share = events / n
        return np.cumsum(share), np.cumsum((1 - share) * share / n)
    scipy_special = special()
    last = n - events + 1  # 1/n + 1/(n - 1) + ... + 1/last
    steps = scipy_special.digamma(n + 1) - scipy_special.digamma(last)
    squares = scipy_special.polygamma(1, last) - scipy_special.polygamma(1, n + 1)
    none = events == 0
    return np.cumsum(np.where(none, 0.0, steps)), np.cumsum(np.where(none, 0.0, squares))


def _crossing(times: Floats, values: Floats) -> float:
    """The first time with a value of at most a half, or inf."""
    # Rounding must not move a median: (1 - 1/4) (1 - 1/3) is a half.
    below = np.flatnonzero(values <= 0.5 * (1 + 1e-12))
    return float(times[below[0]]) if len(below) else float("inf")


def _restricted_mean(
    times: Floats, at_risk: Floats, events: Floats, survival: Floats, until: float
) -> tuple[float, float]:
    """Area under the curve up to a time, and its standard error (Klein and Moeschberger, 4.5)."""
    here = times <= until
    t, s, n, d = times[here], survival[here], at_risk[here], events[here]
    areas = np.diff(np.append(t, until)) * s
    behind = np.cumsum(areas[::-1])[::-1]  # area from each time to the end
    left = n - d
    parts = np.where((d > 0) & (left > 0), behind**2 * d / np.maximum(n * left, 1.0), 0.0)
    return float(areas.sum()), float(np.sqrt(parts.sum()))


def curve_tables(
    curves: Sequence[Curve], until: float, at: Sequence[float], confidence: float
) -> tuple[ResultTable, ...]:
    """Groups with medians and means, and rows at risk at some times."""
    level = f"{100 * confidence:g}%"
    names = ("group", "rows", "events", "median", f"{level} low", f"{level} high")
    groups = ResultTable(
        "", (*names, f"mean to {until:g}", "std. err."), tuple(_group_row(c) for c in curves)
    )
    last = max(float(c.times[-1]) for c in curves)
    when = [float(t) for t in at] or np.linspace(0.0, last, _TIMES_AT_RISK + 1).tolist()
    risk = ResultTable(
        "at risk",
        ("group", *(f"{t:.6g}" for t in when)),
        tuple((c.name, *(c.at_risk_at(t) for t in when)) for c in curves),
    )
    survival = ResultTable(
        "survival",
        ("group", *(f"{t:.6g}" for t in when)),
        tuple((c.name, *(c.survival_at(t) for t in when)) for c in curves),
    )
    return groups, risk, survival


def _group_row(curve: Curve) -> tuple[Any, ...]:
    medians = (curve.median, curve.median_low, curve.median_high)
    return (
        curve.name,
        int((curve.events + curve.censored).sum()),
        int(curve.events.sum()),
        *(m if np.isfinite(m) else None for m in medians),
        curve.mean,
        curve.mean_standard_error,
    )


def curve_plots(curves: Sequence[Curve]) -> tuple[Plot, ...]:
    """Survival and cumulative hazard, as steps."""
    return tuple(
        Plot("steps", title, "time", title, {c.name: _series(c, names) for c in curves})
        for title, names in (
            ("survival", ("survival", "low", "high")),
            ("cumulative hazard", ("cumulative_hazard", "hazard_low", "hazard_high")),
        )
    )


def _series(curve: Curve, names: tuple[str, str, str]) -> dict[str, Any]:
    y, low, high = (getattr(curve, name).tolist() for name in names)
    return {"x": curve.times.tolist(), "y": y, "low": low, "high": high}
