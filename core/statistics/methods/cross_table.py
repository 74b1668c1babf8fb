"""Rows by the categories of two columns, and the chi-squared test that these are independent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import categories
from ..answer import Answer, Plot, ResultTable
from ..counting.cells import Levels, arrays_of, ask_levels, cells_of, levels_of
from ..distributions import chi_squared_tail
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Floats, Table
from ..sums import StatisticsError, counts

STEP = "cells"


@dataclass(frozen=True, eq=False)
class CrossTableAnswer(Answer):
    """A cross table and its test."""

    levels: Levels = ()
    """The categories of the first and of the second column."""
    counts: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """f64[first, second]: rows."""
    expected: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """f64[first, second]: rows if the columns were independent."""
    chi_squared: float | None = None
    """Pearson's; None where all rows are in one row or one column of the table."""
    freedom: int = 0
    """Its degrees of freedom."""
    p_value: float | None = None
    """Of independence."""
    cramers_v: float | None = None
    """Cramer's V, without the continuity correction."""


@method("cross_table")
@dataclass(frozen=True)
class CrossTable(Question):
    """Counts rows by two columns of categories."""

    first: str
    """Its categories are the table's rows."""
    second: str
    """Its categories are the table's columns."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The categories of a column, where they are known; others are found first."""
    floor: int = 5
    """Rows of a cell at a site, at least."""
    correction: bool = True
    """Whether a table of two by two has Yates's continuity correction."""

    def __post_init__(self) -> None:
        if self.first == self.second:
            raise StatisticsError("a cross table of a column with itself", "name two columns")
        if self.floor < 1:
            raise StatisticsError(f"a floor of {self.floor} rows", "1 or more")

    def columns(self) -> tuple[str, ...]:
        return (self.first, self.second)

    def ask(self) -> Asking:
        levels = yield from ask_levels(self.columns(), self.categories, self.floor)
        shape = (len(levels[0]), len(levels[1]))
        sums = (counts("rows", *shape), counts("suppressed"), counts("other"))
        totals = yield Step(STEP, sums, arrays_of(levels))
        table = totals["rows"]
        if not table.any():
            raise StatisticsError("no cell has enough rows", "use coarser categories")
        expected, chi, freedom, cramers_v = _tested(table, self.correction)
        p_value = None if chi is None else float(chi_squared_tail(chi, freedom))
        suppressed, other = (int(totals.number(n)) for n in ("suppressed", "other"))
        notes = []
        if suppressed:
            notes.append(
                f"{suppressed:,} rows are in cells of fewer than {self.floor} rows at their site:"
                " they are left out, and the test does not see them."
            )
        if other:
            notes.append(f"{other:,} rows have no category, or one that is not listed.")
        few = int((expected[expected > 0] < 5).sum())
        if few:
            notes.append(f"{few} cells are expected to have fewer than 5 rows: the test is rough.")
        facts: dict[str, Any] = {
            "sites": totals.sites,
            "rows": int(table.sum()),
            "rows left out": suppressed + other,
        }
        if chi is not None:
            facts |= {"chi-squared": chi, "degrees of freedom": freedom, "p-value": p_value}
            facts |= {"Cramer's V": cramers_v}
        return CrossTableAnswer(
            f"{self.first} by {self.second}",
            facts,
            (_shown(self.first, levels, table),),
            (
                Plot(
                    "bars",
                    f"{self.first} by {self.second}",
                    self.first,
                    "rows",
                    {
                        name: {"x": list(levels[0]), "y": column.tolist()}
                        for name, column in zip(levels[1], table.T, strict=True)
                    },
                ),
            ),
            tuple(notes),
            levels,
            table,
            expected,
            chi,
            freedom,
            p_value,
            cramers_v,
        )

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        if categories.is_step(step):
            return categories.measure(table, step, self.columns(), kept)
        if step.name != STEP:
            raise StatisticsError("a step that this method does not have")
        levels = levels_of(step, self.columns())
        cells = cells_of(table, self.columns(), levels, self.floor)
        return {
            "rows": cells.rows.reshape(len(levels[0]), len(levels[1])),
            "suppressed": np.array(cells.suppressed),
            "other": np.array(cells.other),
        }

    def sensitivities(self, step: Step) -> Mapping[str, float]:
        if categories.is_step(step):
            return {"next": 1.0, "missing": 1.0}
        # A row may bring its cell to the floor: all of the cell's rows are counted then.
        return {"rows": float(self.floor), "suppressed": max(self.floor - 1.0, 1.0), "other": 1.0}


def _tested(table: Floats, correction: bool) -> tuple[Floats, float | None, int, float | None]:
    """(expected rows, chi-squared, degrees of freedom, Cramer's V)."""
    rows, columns, total = table.sum(axis=1), table.sum(axis=0), float(table.sum())
    expected = np.outer(rows, columns) / total
    size = (int((rows > 0).sum()), int((columns > 0).sum()))
    freedom = (size[0] - 1) * (size[1] - 1)
    if freedom == 0:
        return expected, None, 0, None
    there = expected > 0
    gone = np.abs(table - expected)[there]
    plain = float((gone**2 / expected[there]).sum())
    if correction and size == (2, 2):
        gone = gone - np.minimum(0.5, gone)
    chi = float((gone**2 / expected[there]).sum())
    return expected, chi, freedom, float(np.sqrt(plain / total / (min(size) - 1)))


def _shown(first: str, levels: Levels, table: Floats) -> ResultTable:
    rows = [(name, *row.tolist(), row.sum()) for name, row in zip(levels[0], table, strict=True)]
    rows.append(("all", *table.sum(axis=0).tolist(), table.sum()))
    return ResultTable("", (first, *levels[1], "all"), tuple(rows))
