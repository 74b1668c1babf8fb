"""A histogram of a column of numbers."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..answer import Answer, Plot, ResultTable
from ..counting.quantile_search import STEP as BRACKETS
from ..counting.quantile_search import ask_quantiles, measure_quantiles
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Floats, Table
from ..sums import StatisticsError, Totals, counts

BINS_MAX = 2000
STEP = "bins"


@dataclass(frozen=True, eq=False)
class HistogramAnswer(Answer):
    """Bins are closed below and open above, the last closed, as `numpy.histogram` has them."""

    edges: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[bins + 1]."""
    counts: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[bins]: rows."""
    suppressed: int = 0
    """Rows in bins of fewer rows than the floor at their site; they are in no count."""
    outside: int = 0
    """Rows below the first edge or above the last."""


@method("histogram")
@dataclass(frozen=True)
class Histogram(Question):
    """Counts the rows of a column by bins."""

    column: str
    """A column of numbers."""
    edges: tuple[float, ...] = ()
    """Ends of the bins, rising; empty: so many bins of one width from the least to the largest
    value (from the brackets of these).
    """
    bins: int = 20
    """Bins, where `edges` is empty."""
    floor: int = 5
    """Rows of a bin at a site, at least."""

    def __post_init__(self) -> None:
        edges = np.asarray(self.edges, np.float64)
        if len(edges) == 1 or not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
            raise StatisticsError("the edges of bins are two numbers or more, and rise")
        if not 1 <= self.bins <= BINS_MAX or len(edges) > BINS_MAX + 1:
            raise StatisticsError(f"{max(self.bins, len(edges))} bins", f"1 to {BINS_MAX}")
        if self.floor < 1:
            raise StatisticsError(f"a floor of {self.floor} rows", "1 or more")

    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def ask(self) -> Asking:
        edges = np.asarray(self.edges, np.float64)
        if not len(edges):
            edges = yield from self._edges()
        sums = (*map(counts, ("missing", "suppressed", "outside")), counts("bins", len(edges) - 1))
        totals = yield Step(STEP, sums, {"edges": edges})
        rows = totals["bins"]
        suppressed, outside = (int(totals.number(n)) for n in ("suppressed", "outside"))
        if not rows.any():
            raise StatisticsError(
                "no bin has enough rows", "give fewer and wider bins, or a smaller floor"
            )
        notes = []
        if suppressed:
            notes.append(
                f"{suppressed:,} rows are in bins of fewer than {self.floor} rows at their site,"
                " which are left out."
            )
        if outside:
            notes.append(f"{outside:,} rows are outside of the edges.")
        x = ((edges[1:] + edges[:-1]) / 2).tolist()
        return HistogramAnswer(
            f"Histogram of {self.column}",
            {
                "sites": totals.sites,
                "rows": int(rows.sum()),
                "rows left out": int(totals.number("missing")) + suppressed + outside,
                "missing": int(totals.number("missing")),
            },
            (
                ResultTable(
                    "",
                    ("from", "to", "rows"),
                    tuple(zip(edges[:-1].tolist(), edges[1:].tolist(), rows.tolist(), strict=True)),
                ),
            ),
            (
                Plot(
                    "bars",
                    f"Histogram of {self.column}",
                    self.column,
                    "rows",
                    {"rows": {"x": x, "y": rows.tolist()}},
                ),
            ),
            tuple(notes),
            edges,
            rows,
            suppressed,
            outside,
        )

    def _edges(self) -> Generator[Step, Totals, Floats]:
        (ranked,) = yield from ask_quantiles(1, (0.0, 1.0), self.floor)
        if not ranked.rows:
            raise StatisticsError(f"`{self.column}` has no value")
        low, high = ranked.quantiles[0].low, ranked.quantiles[1].high
        if not np.isfinite(high - low):
            raise StatisticsError(
                f"`{self.column}` has too few rows to find its range", "give the edges of bins"
            )
        if low == high:
            low, high = low - 0.5, high + 0.5
        made: Floats = np.linspace(low, high, self.bins + 1)
        return made

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        if step.name == BRACKETS:
            return measure_quantiles(table, (self.column,), step, kept, self.floor)
        edges = step.arrays.get("edges", np.zeros(0))
        if step.name != STEP or not 2 <= len(edges) <= BINS_MAX + 1:
            raise StatisticsError("a step that this method does not have")
        edges = step.floats("edges", len(edges))
        if (np.diff(edges) <= 0).any():
            raise StatisticsError("the edges of bins do not rise")
        values = table.numbers(self.column)
        known = values[~np.isnan(values)]
        rows, _ = np.histogram(known, edges)
        few = rows < self.floor
        return {
            "missing": np.array(table.rows - len(known)),
            "suppressed": np.array(int(rows[few].sum())),
            "outside": np.array(len(known) - int(rows.sum())),
            "bins": np.where(few, 0, rows),
        }

    def sensitivities(self, step: Step) -> Mapping[str, float]:
        if step.name != STEP:
            raise StatisticsError("brackets of quantiles have no noise", "give the edges of bins")
        # A row may bring its bin to the floor: all of the bin's rows are counted then.
        few = max(self.floor - 1.0, 1.0)
        return {"bins": float(self.floor), "suppressed": few, "outside": 1.0, "missing": 1.0}
