"""Harrell's concordance of scores and times, from counts by time and bin of scores.

A pair of rows is comparable where one has its event while the other is still followed. It is
concordant where that one has the higher score. Pairs in one bin of scores cannot be ordered: they
count a half, and half of them is the bound on the error.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .risk_sets import EventBins, RiskSets

Floats = npt.NDArray[np.float64]
#: Scores beyond +-SCORE_MAX are in the outermost of FINE bins.
SCORE_MAX, FINE = 50.0, 1 << 14


@dataclass(frozen=True)
class Concordance:
    """An index, and by how much the exact one may differ."""

    index: float
    bound: float
    pairs: int


def fine_bins(scores: Floats) -> npt.NDArray[np.int64]:
    """The place of each score in the histogram of all, i64[rows]."""
    steps = np.floor((scores + SCORE_MAX) * (FINE / (2 * SCORE_MAX)))
    return np.clip(steps, 0, FINE - 1).astype(np.int64)


def score_edges(histogram: Floats, bins: int) -> npt.NDArray[np.int64]:
    """Edges in fine bins, i64[at most bins + 1], of about equally many rows each."""
    cumulated = np.cumsum(histogram)
    wanted = cumulated[-1] * np.arange(1, bins) / bins
    inner = np.searchsorted(cumulated, wanted) + 1
    return np.unique(np.concatenate([[0], inner, [FINE]])).astype(np.int64)


def score_counts(
    sets: RiskSets, scores: Floats, edges: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """A site's rows that leave, [2, time bins, score bins]: those with an event, and censored."""
    run = sets.end > sets.begin
    score = np.searchsorted(edges, fine_bins(scores[run]), side="right") - 1
    columns = len(edges) - 1
    flat = (np.where(sets.event[run], 0, sets.bins) + sets.end[run] - 1) * columns + score
    return np.bincount(flat, minlength=2 * sets.bins * columns).reshape(2, sets.bins, columns)


def concordance(counted: Floats, bins: EventBins) -> Concordance | None:
    """Of the totals of `score_counts`; None without comparable pairs."""
    events, censored = counted
    left = events + censored
    later = bins.cumulated(left) - left + censored  # followed longer than the bin's events
    below = np.cumsum(later, axis=1) - later
    concordant = float(np.sum(events * below))
    same = float(np.sum(events * later))
    pairs = float(np.sum(events.sum(1) * later.sum(1)))
    if not pairs:
        return None
    return Concordance((concordant + same / 2) / pairs, same / 2 / pairs, int(pairs))
