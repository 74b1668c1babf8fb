"""Products of all pairs of columns over all sites: what correlations and components come from.

One step after `moments`: columns are centred and scaled by these first, so that sums are of numbers
near 1.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .design import CompleteRows, Design
from .moments import SPREADS, SUMS, Moments, measure_moments
from .question import Kept, Step
from .site_table import Floats, Table
from .sums import StatisticsError, Sum, Totals, counts

STEP = "products"
#: Of numbers near 1.
_BITS = (110, 80)


@dataclass(frozen=True)
class ScaledProducts:
    """Of the complete rows of this step, which may be others than the moments'."""

    sites: int
    """Sites that answered."""
    rows: int
    """Complete rows, two at least."""
    left: int
    """Rows left out."""
    means: Floats
    """f64[columns]."""
    scaled: Floats
    """f64[columns, columns]: sums of products of distances from the means, over the scales of both
    columns; 0 for a constant column.
    """
    notes: tuple[str, ...]
    """What a reader must know."""


def ask_products(moments: Moments) -> Generator[Step, Totals, ScaledProducts]:
    """The step; `measure_products` answers it, and the moments' steps, at a site.

    Raises StatisticsError where fewer than two rows are complete.
    """
    width = len(moments.means)
    sums = (
        counts("rows"),
        counts("left"),
        Sum("firsts", (width,), *_BITS),
        Sum("products", (width, width), *_BITS),
    )
    totals = yield Step(STEP, sums, {"means": moments.means, "scales": moments.scales})
    rows = totals.number("rows")
    if rows < 2:
        raise StatisticsError(f"{rows:g} complete rows", "two are needed, and better many more")
    off = totals["firsts"] / rows
    scaled = totals["products"] - rows * np.outer(off, off)
    scaled = np.where(moments.spreads[:, None] * moments.spreads > 0, scaled, 0.0)
    left = int(totals.number("left"))
    same = totals.sites == moments.sites and rows == moments.rows
    notes = () if same else ("sites have dropped out or come back between steps.",)
    means = moments.means + off * moments.scales
    return ScaledProducts(totals.sites, int(rows), left, means, scaled, notes)


def measure_products(design: Design, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
    """A site's sums for a step of the moments' or for this one. Raises StatisticsError."""
    if "complete" not in kept:
        kept["complete"] = design.of(table)
    complete: CompleteRows = kept["complete"]
    if step.name in (SUMS, SPREADS):
        return measure_moments(complete.matrix, step, complete)
    width = complete.matrix.shape[1]
    means, scales = step.floats("means", width), step.floats("scales", width)
    if step.name != STEP or (scales <= 0).any():
        raise StatisticsError("a step that this method does not have")
    scaled = (complete.matrix - means) / scales
    return {
        "rows": np.array(complete.rows),
        "left": np.array(complete.missing + complete.unlisted),
        "firsts": scaled.sum(axis=0),
        "products": scaled.T @ scaled,
    }
