"""Elastic net on sums: the minimum of a quadratic plus l1 and l2 penalties, by coordinates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..site_table import Floats
from ..sums import StatisticsError

_SWEEPS_MAX = 20_000
#: A sweep that moves no coefficient further than this, relative to the largest, is the last.
_TOLERANCE = 1e-14
#: After so many sweeps the chosen coefficients are solved for at once.
_SOLVE_EVERY = 8


@dataclass(frozen=True)
class Penalty:
    """The penalty: sum of l1 |b| + l2 b^2 / 2, f64[p] each; 0 where a coefficient has none."""

    l1: Floats
    """f64[p]."""
    l2: Floats
    """f64[p]."""

    def __bool__(self) -> bool:
        return bool(self.l1.any() or self.l2.any())

    def of(self, at: Floats) -> float:
        """The penalty of coefficients."""
        return float(self.l1 @ np.abs(at) + self.l2 @ at**2 / 2)

    def direction(self, at: Floats, score: Floats, information: Floats) -> Floats:
        """The step d to the minimum of -score d + d' information d / 2 + penalty(at + d).

        Friedman, Hastie and Tibshirani (2010), section 2: one coefficient after the other, and
        once the set of those that are not 0 and their signs rest, all of them at once.

        Raises StatisticsError where it does not end.
        """
        curved = information + np.diag(self.l2)
        # The quadratic in b = at + d: b' curved b / 2 - linear b.
        linear = score + information @ at
        if not self.l1.any():
            solved: Floats = np.linalg.solve(curved, linear) - at
            return solved
        b, diagonal = at.copy(), np.maximum(np.diag(curved), 1e-300)
        for sweep in range(1, _SWEEPS_MAX):
            moved = 0.0
            for j in range(len(b)):
                rest = linear[j] - curved[j] @ b + curved[j, j] * b[j]
                new = np.sign(rest) * max(abs(rest) - self.l1[j], 0.0) / diagonal[j]
                moved, b[j] = max(moved, abs(new - b[j])), new
            if moved <= _TOLERANCE * max(1e-3, float(np.abs(b).max())):
                return b - at
            if sweep % _SOLVE_EVERY == 0:
                whole = self._solved(b, linear, curved)
                if whole is not None:
                    return whole - at
        raise StatisticsError(
            "the elastic net has not converged", "give a larger penalty, or fewer predictors"
        )

    def _solved(self, b: Floats, linear: Floats, curved: Floats) -> Floats | None:
        """The minimum with these signs, if it has them and meets the conditions of a minimum."""
        free = (b != 0) | (self.l1 == 0)
        signs = np.where(self.l1 > 0, np.sign(b), 0.0)[free]
        made = np.zeros(len(b))
        try:
            made[free] = np.linalg.solve(
                curved[np.ix_(free, free)], linear[free] - self.l1[free] * signs
            )
        except np.linalg.LinAlgError:
            return None
        slack = np.abs(linear - curved @ made)[~free] <= self.l1[~free] * (1 + 1e-12)
        kept = (np.sign(made[free]) == signs) | (signs == 0)
        return made if bool(slack.all() and kept.all()) else None
