"""Choosing a cascade's threshold on held-out examples, and what each threshold would give.

Of n examples a filter's confidence c_i, and whether the small and the large model are right, are
known. At threshold t those with c_i < t go up, so

    share(t)    = #{c_i < t} / n
    accuracy(t) = (sum over c_i < t of large_i  +  sum over the others of small_i) / n

are steps of t, and one pass over the sorted confidences gives them all. For a wanted share the
threshold is the highest that does not send more; for a wanted accuracy the lowest that has it.

That accuracy is one of the examples that chose the threshold, and so a little too good: judge it on
others. `sure` instead asks for a promise: with probability 1 - failure over the examples' draw, the
accuracy on new ones of the same kind is at least what is wanted. Thresholds of a grid that was
fixed beforehand are tested from everything up towards nothing, each at level `failure` by an exact
binomial tail, and the last before the first that fails is taken (fixed sequence testing, as
Angelopoulos, Bates, Candès, Jordan and Lei 2021, "Learn then test", use it). A tail is that of
Clopper and Pearson 1934.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...common.errors import DelianError
from ...compiler.ir import Array
from .hard_examples import EVERYTHING

#: Thresholds that a promise chooses among: every hundredth, and closer and closer to one, where the
#: confidences of trained models are.
GRID = tuple(
    sorted(
        {0.0, 1.0}
        | {round(i / 100, 2) for i in range(1, 100)}
        | {1.0 - 10.0 ** (-i / 8) for i in range(16, 49)}
        | {EVERYTHING},
        reverse=True,
    )
)


@dataclass(frozen=True, slots=True)
class Point:
    """What one threshold gives on the examples: the share that goes up, the cascade's accuracy."""

    threshold: float
    share: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class Held:
    """Held-out examples. Raises DelianError for none, or for unequal lengths."""

    confidence: Array
    """f64[n]; NaN always goes up."""
    small: Array
    """Whether the small model is right, bool[n]."""
    large: Array
    """Whether the large model is right, bool[n]."""

    def __post_init__(self) -> None:
        n = len(self.confidence)
        if not n or len(self.small) != n or len(self.large) != n:
            raise DelianError(
                f"{n} confidences for {len(self.small)} and {len(self.large)} judged answers",
                "as many of each, and at least one",
            )

    def at(self, limit: float) -> Point:
        """What this threshold gives."""
        up = ~(self.confidence >= limit)
        right = np.where(up, self.large, self.small)
        return Point(limit, float(np.mean(up)), float(np.mean(right)))


def curve(held: Held) -> list[Point]:
    """All thresholds that differ on the examples, from nothing sent to everything."""
    levels = np.where(np.isnan(held.confidence), -np.inf, held.confidence)
    order = np.argsort(levels, kind="stable")
    ordered = levels[order]
    n = len(ordered)
    gained = np.concatenate(
        [[0], np.cumsum(held.large[order].astype(np.int64) - held.small[order])]
    )
    right = int(np.sum(held.small)) + gained
    # Before the first of each run of equal ones, and after the last.
    cuts = [0, *(int(i) + 1 for i in np.flatnonzero(ordered[1:] > ordered[:-1])), n]
    points = []
    for cut in cuts:
        limit = float(ordered[cut]) if cut < n else EVERYTHING
        if limit == -math.inf:  # what is not finite goes up whatever the threshold is
            continue
        points.append(Point(limit, cut / n, float(right[cut]) / n))
    return points


def for_share(held: Held, share: float) -> Point:
    """The most to send within this share. Raises DelianError for an impossible share."""
    _check(share, "share")
    found = [p for p in curve(held) if p.share <= share]
    if not found:
        raise DelianError(
            f"more than {share:g} of the answers are not finite, and these always go up"
        )
    return found[-1]


def for_accuracy(held: Held, accuracy: float) -> Point:
    """The least to send for this accuracy. Raises DelianError, naming the best possible."""
    _check(accuracy, "accuracy")
    points = curve(held)
    for point in points:
        if point.accuracy >= accuracy:
            return point
    raise _short(accuracy, max(points, key=lambda p: p.accuracy))


def sure(held: Held, accuracy: float, failure: float = 0.05, grid: Sequence[float] = GRID) -> Point:
    """The smallest share sent up that gives new examples this accuracy.

    It fails with probability `failure` over the held-out examples. grid: thresholds, falling,
    chosen without these examples. Raises DelianError where not even the first of them passes.
    """
    _check(accuracy, "accuracy")
    _check(failure, "failure")
    n = len(held.confidence)
    chosen: Point | None = None
    for limit in grid:
        point = held.at(limit)
        if tail(n, round(point.accuracy * n), accuracy) > failure:
            break
        chosen = point
    if chosen is None:
        raise _short(accuracy, held.at(grid[0]), f", and that promised, of {n} examples")
    return chosen


def tail(n: int, right: int, p: float) -> float:
    """P(X >= right) for X binomial(n, p)."""
    if right <= 0 or p >= 1.0:
        return 1.0
    if p <= 0.0:
        return 0.0
    k = np.arange(right, n + 1)
    logs = [math.lgamma(i + 1) for i in range(n + 1)]
    terms = [logs[n] - logs[int(i)] - logs[n - int(i)] for i in k]
    weighed = np.array(terms) + k * math.log(p) + (n - k) * math.log1p(-p)
    top = float(np.max(weighed))
    return min(1.0, math.exp(top) * float(np.sum(np.exp(weighed - top))))


def _check(value: float, what: str) -> None:
    if not 0.0 <= value <= 1.0:
        raise DelianError(f"a {what} of {value:g}", "from 0 to 1")


def _short(accuracy: float, best: Point, more: str = "") -> DelianError:
    return DelianError(
        f"no threshold has an accuracy of {accuracy:g}{more}; the best has {best.accuracy:.4g},"
        f" with {100 * best.share:.0f}% sent up",
        "ask for less, or train the large model longer",
    )
