"""Means and spreads of columns over all sites: what later steps centre and scale columns by.

Two steps: rows and sums, then squares of distances from the mean. So a column of any unit, from
1e-25 to 1e25, and of a mean far larger than its spread, enters later sums as numbers near 1.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .design import CompleteRows
from .question import Step
from .site_table import Floats
from .sums import StatisticsError, Sum, Totals, counts

#: Names of the two steps.
SUMS, SPREADS = "moment_sums", "moment_spreads"
#: Sums of columns, and of squares: for columns of 1e-25 to 1e25, 2^30 rows, relative error 1e-16.
_SUM_BITS, _SQUARE_BITS = (120, 140), (199, 200)
#: A spread that is smaller relative to the mean is that of rounding: a constant column.
_CONSTANT = 1e-13


@dataclass(frozen=True)
class Moments:
    """Of each column, over the complete rows of all sites."""

    sites: int
    """Sites that answered."""
    rows: int
    """Complete rows."""
    missing: int
    """Rows in which a value is missing."""
    unlisted: int
    """Rows with a category that is not listed."""
    means: Floats
    """f64[columns]."""
    spreads: Floats
    """f64[columns]: root of the mean squared distance from the mean; 0 for a constant column."""

    @property
    def scales(self) -> Floats:
        """f64[columns], above 0: the spread, for a constant column the mean, or 1."""
        sizes = np.where(self.means == 0, 1.0, np.abs(self.means))
        return np.where(self.spreads > 0, self.spreads, sizes)


def ask_moments(width: int) -> Generator[Step, Totals, Moments]:
    """The two steps for so many columns; `measure_moments` answers them at a site.

    Raises StatisticsError where no site has a complete row.
    """
    first = yield Step(
        SUMS,
        (
            counts("rows"),
            counts("missing"),
            counts("unlisted"),
            Sum("sums", (width,), *_SUM_BITS),
        ),
    )
    rows = int(first.number("rows"))
    if rows == 0:
        left = int(first.number("missing") + first.number("unlisted"))
        raise StatisticsError(
            f"no complete row at {first.sites} sites; {left:,} rows have a missing value or a"
            " category that is not listed",
            "name columns that have values, and list their categories",
        )
    means = first["sums"] / rows
    second = yield Step(
        SPREADS, (counts("rows"), Sum("squares", (width,), *_SQUARE_BITS)), {"means": means}
    )
    spreads = np.sqrt(np.maximum(second["squares"], 0) / max(second.number("rows"), 1))
    spreads = np.where(spreads > _CONSTANT * np.abs(means), spreads, 0.0)
    return Moments(
        first.sites,
        rows,
        int(first.number("missing")),
        int(first.number("unlisted")),
        means,
        spreads,
    )


def measure_moments(values: Floats, step: Step, complete: CompleteRows) -> Mapping[str, Any]:
    """A site's sums for either step.

    Args:
        values: f64[rows, columns], complete rows.
        step: the step, named `moment_sums` or `moment_spreads`.
        complete: which rows were left out.
    """
    rows = np.array(len(values))
    if step.name == SUMS:
        missing, unlisted = np.array(complete.missing), np.array(complete.unlisted)
        return {"rows": rows, "missing": missing, "unlisted": unlisted, "sums": values.sum(axis=0)}
    if step.name == SPREADS:
        off = values - step.floats("means", values.shape[1])
        return {"rows": rows, "squares": np.square(off, out=off).sum(axis=0)}
    raise StatisticsError(f"the method has no step `{step.name[:40]}`")
