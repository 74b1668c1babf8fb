"""What keeps few rows of a site from showing in its sums.

A sum over all rows shows a few of them where only these count: a column that differs from one value
in a few rows alone (an indicator of a person), or weights that are large for a few rows alone
(coefficients that were chosen to that end). A site refuses both, by its owner's floor.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .sums import StatisticsError


class TooFewRows(StatisticsError):
    """A number would be about fewer rows of a site than its owner's floor."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is about fewer rows of a site than its owner's floor",
            "join categories, or leave it out",
        )


def check_column(values: npt.NDArray[Any], floor: int, name: str) -> None:
    """Raises TooFewRows for a column that is known, or differs from one value, in few rows.

    Args:
        values: f64[n], NaN for what is missing.
        floor: the owner's.
        name: the column, for the error.
    """
    if floor < 2:
        return
    known = values[~np.isnan(values)]
    if not len(known):
        return
    # A value of more than half of the rows is their median.
    middle = np.partition(known, len(known) // 2)[len(known) // 2]
    others = int(np.count_nonzero(known != middle))
    if len(known) < floor or 0 < others < floor:
        raise TooFewRows(f"column `{name[:40]}`")


def check_weights(weights: npt.NDArray[np.float64], floor: int) -> None:
    """Raises TooFewRows for weights that are large for few rows alone.

    As many rows count as the squared sum over the sum of squares says (Kish's effective size).
    """
    if floor < 2 or not len(weights):
        return
    if not is_enough(weights, floor):
        raise TooFewRows("a step's sum")


def is_enough(weights: npt.NDArray[np.float64], floor: int) -> bool:
    """Whether at least so many rows count in a weighted sum."""
    largest = float(np.abs(weights).max(initial=0.0))
    if floor < 2 or not largest > 0:
        return True
    scaled = np.abs(weights) / largest  # no square overflows
    return bool(scaled.sum() ** 2 >= floor * (scaled @ scaled))
