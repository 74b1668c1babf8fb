"""Quantiles of columns, each with a bracket that surely holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from ..answer import Answer, Plot, ResultTable
from ..counting.counted_steps import CountedSteps
from ..counting.quantile_search import BRACKETS_MAX, Ranked, ask_quantiles, measure_quantiles
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Table
from ..sums import StatisticsError


@dataclass(frozen=True)
class QuantilesAnswer(Answer):
    """Quantiles by column."""

    columns: Mapping[str, Ranked] = field(default_factory=dict)
    """Rows, missing rows and quantiles of each column."""


@method("quantiles")
@dataclass(frozen=True)
class Quantiles(Question):
    """Quantiles as `numpy.quantile` has them, up to brackets of a few rows a site."""

    of: tuple[str, ...]
    """Columns of numbers."""
    quantiles: tuple[float, ...] = (0.25, 0.5, 0.75)
    """From 0 to 1."""
    floor: int = 5
    """Rows of a site that are counted apart from others, at least. 1: quantiles are exact."""

    def __post_init__(self) -> None:
        if not self.of or not self.quantiles:
            raise StatisticsError("no columns, or no quantiles")
        if not all(0 <= q <= 1 for q in self.quantiles):
            raise StatisticsError("quantiles are from 0 to 1")
        if self.floor < 1:
            raise StatisticsError(f"a floor of {self.floor} rows", "1 or more")
        if len(self.of) * 2 * len(self.quantiles) > BRACKETS_MAX:
            raise StatisticsError(f"more than {BRACKETS_MAX // 2} quantiles in all")

    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.of))

    def ask(self) -> Asking:
        steps = CountedSteps()
        found = yield from steps.through(
            ask_quantiles(len(self.columns()), self.quantiles, self.floor)
        )
        by_name = dict(zip(self.columns(), found, strict=True))
        rows = tuple(
            (name, q.q, *map(_finite, (q.estimate, q.low, q.high)), q.rows)
            for name, ranked in by_name.items()
            for q in ranked.quantiles
        )
        empty = [name for name, ranked in by_name.items() if not ranked.rows]
        if len(empty) == len(by_name):
            raise StatisticsError("no column has a value", "name columns that have values")
        notes = ["the quantile is from low to high, among so many rows."]
        if any(not isfinite(q.estimate) for r in found for q in r.quantiles):
            notes.append("sites have too few rows for some ends: ask for other quantiles.")
        series: dict[str, dict[str, list[Any]]] = {
            name: {
                "x": [q.estimate for q in quantiles],
                "y": [f"{q.q:g}" for q in quantiles],
                "low": [q.low for q in quantiles],
                "high": [q.high for q in quantiles],
            }
            for name, quantiles in (
                (name, [q for q in ranked.quantiles if isfinite(q.estimate)])
                for name, ranked in by_name.items()
            )
        }
        return QuantilesAnswer(
            "Quantiles",
            {
                "sites": steps.sites,
                "steps": steps.count,
                "rows": max(r.rows + r.missing for r in found),
                "floor": self.floor,
            },
            (ResultTable("", ("column", "quantile", "estimate", "low", "high", "rows"), rows),),
            (Plot("intervals", "Quantiles", "value", "quantile", series),),
            tuple(notes),
            by_name,
        )

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        return measure_quantiles(table, self.columns(), step, kept, self.floor)


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
