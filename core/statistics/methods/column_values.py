"""The values of columns, with the rows of each: categories, found without looking at rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .. import categories
from ..answer import Answer, Plot, ResultTable
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Table
from ..sums import StatisticsError

_BARS_MAX = 60


@dataclass(frozen=True)
class ValuesAnswer(Answer):
    """The values of each column."""

    values: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By column, the most frequent first."""


@method("values")
@dataclass(frozen=True)
class ColumnValues(Question):
    """The values of columns, the most frequent first."""

    of: tuple[str, ...]
    """Columns of text, or of whole numbers."""
    floor: int = 5
    """Rows that a value has at least, in all sites together."""
    at_most: int = 1000
    """Values of a column; more are an error."""

    def __post_init__(self) -> None:
        if not self.of or self.floor < 1 or not 1 <= self.at_most <= categories.PREFIXES_MAX:
            raise StatisticsError(
                f"values of {len(self.of)} columns, floor {self.floor}, at most {self.at_most}",
                f"a column or more, a floor from 1, at most {categories.PREFIXES_MAX} values",
            )

    def columns(self) -> tuple[str, ...]:
        return self.of

    def ask(self) -> Asking:
        tables, plots, values = [], [], {}
        rare = missing = sites = 0
        for column in self.of:
            asking = categories.find(column, self.floor, self.at_most)
            totals = None
            while True:
                try:
                    step = next(asking) if totals is None else asking.send(totals)
                except StopIteration as end:
                    found: categories.Found = end.value
                    break
                totals = yield step
                sites = totals.sites
            rare, missing = rare + found.rare, missing + found.missing
            values[column] = found.texts
            rows = tuple(zip(found.texts, found.counts, strict=True))
            tables.append(ResultTable("", (column, "rows"), rows))
            if len(rows) <= _BARS_MAX:
                series: dict[str, dict[str, Sequence[Any]]] = {}
                series[column] = {"x": list(found.texts), "y": list(found.counts)}
                plots.append(Plot("bars", f"Values of {column}", column, "rows", series))
        facts = {
            "sites": sites,
            "columns": len(self.of),
            "rows of rare values": rare,
            "rows without a value": missing,
        }
        return ValuesAnswer("Values", facts, tuple(tables), tuple(plots), values=values)

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        return categories.measure(table, step, self.of, kept)

    def sensitivities(self, step: Step) -> Mapping[str, float]:
        return categories.sensitivities(self.floor)
