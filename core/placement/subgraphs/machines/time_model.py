"""How measured times differ from predicted ones: measured = overhead + ratio x predicted.

A node under load, hot or slow in general, takes a multiple of what was predicted; threads, queues
and event loops add the same to each run, however short it is. Which of the two it is matters: a
part of a millisecond that took ten must not let the whole program seem ten times as long. Both are
fitted by least squares over what was measured, the newest weighing most (ridge regression: Hoerl
and Kennard, Technometrics 1970): without measurements there is no difference, small ones are laid
to the overhead, and those that are large against the prediction's own size to the ratio.
"""

from __future__ import annotations

from ....protocol.ports import SECOND

#: Of what is known, so much is kept at each measurement.
KEPT = 0.9
#: How large a ratio's distance from 1 is to be expected beforehand, and an overhead: of a run here,
#: and of a request above, which may find others waiting.
RATIO = 0.3
OVERHEAD_S, OVERHEAD_ABOVE_S = 0.005, 0.2
#: How far single measurements are off: as a share, and in seconds.
NOISE, NOISE_S = 0.1, 0.001
RATIO_MIN, RATIO_MAX = 0.05, 50.0
OVERHEAD_MAX_S = 10.0


class Drift:
    """The fit.

    overhead_s: as it is to be expected. half_ns: what is known counts half after so long without a
    measurement; None: as long as nothing newer comes.
    """

    __slots__ = (
        "_at",
        "_difference",
        "_half",
        "_moment",
        "_one",
        "_predicted",
        "_ridge",
        "_square",
    )

    def __init__(self, overhead_s: float = OVERHEAD_S, half_ns: int | None = None) -> None:
        self._ridge, self._half, self._at = overhead_s**-2, half_ns, 0
        # Weighted sums: of 1, predicted, its square, the difference, and predicted x difference.
        self._one = self._predicted = self._square = self._difference = self._moment = 0.0

    def measured(self, predicted: float, took: float, now: int) -> None:
        """Something of `predicted` seconds took so many."""
        kept = KEPT * self._left(now)
        weight = (NOISE * max(predicted, took) + NOISE_S) ** -2
        gap = took - predicted
        self._one = kept * self._one + weight
        self._predicted = kept * self._predicted + weight * predicted
        self._square = kept * self._square + weight * predicted * predicted
        self._difference = kept * self._difference + weight * gap
        self._moment = kept * self._moment + weight * predicted * gap
        self._at = now

    def seconds(self, predicted: float, now: int) -> float:
        """What is to be expected of something of `predicted` seconds."""
        overhead, ratio = self.fit(now)
        return overhead + ratio * predicted

    def fit(self, now: int) -> tuple[float, float]:
        """(overhead in seconds, ratio)."""
        left = self._left(now)
        a11 = left * self._one + self._ridge
        a12 = left * self._predicted
        a22 = left * self._square + RATIO**-2
        b1, b2 = left * self._difference, left * self._moment
        determinant = a11 * a22 - a12 * a12  # positive, for the ridge is on the diagonal
        overhead = (b1 * a22 - b2 * a12) / determinant
        more = (b2 * a11 - b1 * a12) / determinant
        if overhead < 0:  # nothing is saved by starting
            overhead, more = 0.0, b2 / a22
        ratio = min(RATIO_MAX, max(RATIO_MIN, 1.0 + more))
        return min(OVERHEAD_MAX_S, overhead), ratio

    def _left(self, now: int) -> float:
        """The share of the sums that still counts."""
        if self._half is None:
            return 1.0
        left: float = 0.5 ** ((now - self._at) / self._half)
        return left


#: What a tier above takes is forgotten: it is tried again.
HALF_ABOVE_NS = 5 * SECOND
