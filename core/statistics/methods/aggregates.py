"""Counts, sums, means and spreads, of all rows or by groups: what a SELECT asks for.

Groups are the combinations of the groups' categories. A site leaves out its groups of fewer rows
than the floor, and adds their rows to one number, `suppressed`: so no total over sites says
anything of fewer rows at a site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import categories
from ..answer import Answer, Plot, ResultTable
from ..counting.cells import arrays_of, ask_levels, cells_of, levels_of
from ..distributions import normal_quantile
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Table
from ..sums import StatisticsError, Sum, Totals, counts

FUNCTIONS = ("count", "sum", "avg", "var", "stddev")
_LEVEL = 0.95
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AggregatesAnswer(Answer):
    """A row a group."""

    groups: tuple[tuple[str, ...], ...] = ()
    """The groups' categories."""
    values: Floats = field(default_factory=lambda: np.empty((0, 0)))
    """f64[groups, measures]; NaN where a group has no value."""
    counts: Floats = field(default_factory=lambda: np.empty(0))
    """Rows of each group, f64[groups]."""


@method("aggregates")
@dataclass(frozen=True)
class Aggregates(Question):
    """Counts, sums, means and spreads by groups."""

    measures: tuple[tuple[str, str], ...] = (("count", "*"),)
    """What is asked for: a function (count, sum, avg, var, stddev) and a column; count(*) counts
    rows.
    """
    groups: tuple[str, ...] = ()
    """Columns whose categories make the groups. Empty: all rows are one."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The categories of such a column, where they are known; others are found first."""
    floor: int = 5
    """Rows of a group at a site, at least."""
    limits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """The lowest and the highest value of a column. Values beyond count as these: without limits a
    column's sums cannot have noise.
    """

    def __post_init__(self) -> None:
        if not self.measures:
            raise StatisticsError("nothing is asked for", "as count(*), avg(age)")
        for function, column in self.measures:
            if function not in FUNCTIONS or (column == "*" and function != "count"):
                raise StatisticsError(
                    f"there is no {function}({column})", f"functions are {', '.join(FUNCTIONS)}"
                )
        for column, (low, high) in self.limits.items():
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise StatisticsError(f"limits of `{column}` from {low} to {high}")
        if self.floor < 1:
            raise StatisticsError(f"a floor of {self.floor} rows", "1 or more")

    def columns(self) -> tuple[str, ...]:
        measured = (column for _, column in self.measures if column != "*")
        return tuple(dict.fromkeys((*self.groups, *measured)))

    @property
    def _numbers(self) -> tuple[str, ...]:
        """Columns of which more than the number of values is asked for."""
        return tuple(dict.fromkeys(c for f, c in self.measures if f != "count"))

    @property
    def _counted(self) -> tuple[str, ...]:
        """Columns whose values are counted."""
        return tuple(dict.fromkeys(c for _, c in self.measures if c != "*"))

    @property
    def _spread(self) -> tuple[str, ...]:
        """Columns whose spread is asked for, or the interval of a mean."""
        return tuple(dict.fromkeys(c for f, c in self.measures if f in ("avg", "var", "stddev")))

    # ------------------------------------------------ where it is asked

    def ask(self) -> Asking:
        levels = yield from ask_levels(self.groups, self.categories, self.floor)
        known, size = dict(zip(self.groups, levels, strict=True)), math.prod(map(len, levels))
        texts = arrays_of(levels)
        first = yield Step("cells", self._cells(size), texts)
        means, totals = self._means(first, size), first
        if self._spread:
            # Squares about each group's mean: about zero they would cancel.
            arrays = {**texts, "means": np.stack([means[c] for c in self._spread])}
            sums = (*self._cells(size), *(_wide(f"squares_{c}", size) for c in self._spread))
            totals = yield Step("spread", _numbered(sums, self._spread), arrays)
        return self._answer(known, first, totals, means, size)

    def _cells(self, size: int) -> tuple[Sum, ...]:
        values = (counts(f"known_{i}", size) for i in range(len(self._counted)))
        numbers = (_wide(f"sum_{i}", size) for i in range(len(self._numbers)))
        return (
            counts("rows", size),
            counts("suppressed"),
            counts("other"),
            *values,
            *numbers,
        )

    def _means(self, totals: Totals, size: int) -> dict[str, Floats]:
        means = {}
        for i, column in enumerate(self._numbers):
            known = totals[f"known_{self._counted.index(column)}"]
            means[column] = np.where(known > 0, totals[f"sum_{i}"] / np.maximum(known, 1), 0.0)
        return means

    def _answer(
        self,
        known: Mapping[str, tuple[str, ...]],
        first: Totals,
        totals: Totals,
        means: Mapping[str, Floats],
        size: int,
    ) -> Answer:
        rows = totals["rows"]
        keys = list(product(*(known[g] for g in self.groups)))
        columns: list[Floats] = []
        headers: list[str] = []
        half = normal_quantile((1 + _LEVEL) / 2)
        for function, column in self.measures:
            headers.append(f"{function}({column})")
            columns.append(self._measure(function, column, totals, means))
            if function == "avg":
                value = totals[f"known_{self._counted.index(column)}"]
                spread = self._measure("stddev", column, totals, means)
                error = half * spread / np.sqrt(np.maximum(value, 1))
                headers += ["low", "high"]
                columns += [columns[-1] - error, columns[-1] + error]
        there = [rows[place] > 0 or not self.groups for place in range(size)]
        values = np.stack(columns, axis=1)
        shown = [place for place in range(size) if there[place]]
        table = ResultTable(
            "",
            (*self.groups, *headers),
            tuple((*keys[p], *(_cell(v) for v in values[p])) for p in shown),
        )
        suppressed, other = int(totals.number("suppressed")), int(totals.number("other"))
        notes = []
        if suppressed > 0:
            notes.append(
                f"{suppressed} rows are in groups of fewer than {self.floor} rows at their site,"
                " which are left out"
            )
        if other > 0:
            notes.append(f"{other} rows have no category, or one that is not listed")
        if totals.sites != first.sites:
            notes.append("sites came or went between the steps: means and spreads may not agree")
        return AggregatesAnswer(
            "Aggregates",
            {"sites": totals.sites, "rows": int(rows.sum()), "rows left out": suppressed + other},
            (table,),
            self._plots(keys, headers, values, shown),
            tuple(notes),
            groups=tuple(keys[p] for p in shown),
            values=values[shown],
            counts=rows[shown],
        )

    def _measure(
        self, function: str, column: str, totals: Totals, means: Mapping[str, Floats]
    ) -> Floats:
        if column == "*":
            return totals["rows"]
        known = totals[f"known_{self._counted.index(column)}"]
        if function == "count":
            return known
        number = totals[f"sum_{self._numbers.index(column)}"]
        with np.errstate(divide="ignore", invalid="ignore"):
            if function == "sum":
                return np.where(known > 0, number, np.nan)
            if function == "avg":
                return np.where(known > 0, number / known, np.nan)
            about = means[column]
            squares = totals[f"squares_{self._spread.index(column)}"]
            shifted = number - known * about  # zero, unless sites came or went
            variance = (squares - shifted**2 / known) / (known - 1)
            variance = np.where(known > 1, np.maximum(variance, 0.0), np.nan)
            return variance if function == "var" else np.sqrt(variance)

    def _plots(
        self,
        keys: list[tuple[str, ...]],
        headers: list[str],
        values: Floats,
        shown: list[int],
    ) -> tuple[Plot, ...]:
        if not self.groups or len(shown) > 60:
            return ()
        names = [", ".join(keys[p]) for p in shown]
        plots = []
        for place, header in enumerate(headers):
            if header in ("low", "high"):
                continue
            series: dict[str, Any] = {"x": names, "y": values[shown, place].tolist()}
            interval = header.startswith("avg(")
            if interval:
                series["low"] = values[shown, place + 1].tolist()
                series["high"] = values[shown, place + 2].tolist()
            kind = "intervals" if interval else "bars"
            by = ", ".join(self.groups)
            plots.append(Plot(kind, f"{header} by {by}", by, header, {header: series}))  # type: ignore[arg-type]
        return tuple(plots)

    # ------------------------------------------------ at a site

    def sensitivities(self, step: Step) -> Mapping[str, float]:
        if categories.is_step(step):
            return categories.sensitivities(self.floor)
        # A row may bring its group to the floor: all of the group's rows are counted then.
        most = float(self.floor)
        found = {"rows": most, "suppressed": max(most - 1, 1.0), "other": 1.0}
        found |= {f"known_{i}": most for i in range(len(self._counted))}
        for prefix, columns in (("sum", self._numbers), ("squares", self._spread)):
            for i, column in enumerate(columns):
                if column not in self.limits:
                    raise StatisticsError(
                        f"sums of `{column}` have no noise without its limits",
                        "give the lowest and the highest value: --limit column=low:high",
                    )
                low, high = self.limits[column]
                widest = max(abs(low), abs(high))
                each = widest if prefix == "sum" else (high - low) ** 2
                found[f"{prefix}_{i}"] = most * each
        return found

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        if categories.is_step(step):
            return categories.measure(table, step, self.groups, kept)
        if step.name not in ("cells", "spread"):
            raise StatisticsError("a step that this method does not have")
        levels = levels_of(step, self.groups)
        size = math.prod(map(len, levels))
        cells = cells_of(table, self.groups, levels, self.floor)
        cell, inside = cells.cell, cells.inside
        out: dict[str, Any] = {
            "rows": cells.rows,
            "suppressed": np.array(cells.suppressed),
            "other": np.array(cells.other),
        }
        for i, column in enumerate(self._counted):
            known = inside & self._has(table, column)
            out[f"known_{i}"] = np.bincount(cell[known], minlength=size)
        for i, column in enumerate(self._numbers):
            values = self._values(table, column)
            known = inside & ~np.isnan(values)
            out[f"sum_{i}"] = np.bincount(cell[known], values[known], minlength=size)
        if step.name == "spread":
            means = step.floats("means", len(self._spread), size)
            for i, column in enumerate(self._spread):
                values = self._values(table, column)
                known = inside & ~np.isnan(values)
                about = means[i]
                if column in self.limits:
                    about = np.clip(about, *self.limits[column])
                gone = (values[known] - about[cell[known]]) ** 2
                out[f"squares_{i}"] = np.bincount(cell[known], gone, minlength=size)
        return out

    def _has(self, table: Table, column: str) -> npt.NDArray[np.bool_]:
        if column in self._numbers:
            return ~np.isnan(table.numbers(column))
        found: npt.NDArray[np.bool_] = table.texts(column) != ""
        return found

    def _values(self, table: Table, column: str) -> Floats:
        values = table.numbers(column)
        return np.clip(values, *self.limits[column]) if column in self.limits else values


def _wide(name: str, size: int) -> Sum:
    """Sums of numbers of any unit."""
    return Sum(name, (size,), before=100, after=40)


def _numbered(sums: tuple[Sum, ...], spread: tuple[str, ...]) -> tuple[Sum, ...]:
    """Sums of squares by the places of their columns: names of columns are no names of sums."""
    plain = sums[: len(sums) - len(spread)]
    return (*plain, *(_wide(f"squares_{i}", s.shape[0]) for i, s in enumerate(sums[len(plain) :])))


def _cell(value: float) -> Any:
    if not math.isfinite(value):
        return None
    return int(value) if value == int(value) else float(value)
