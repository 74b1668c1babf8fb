"""Covariances and Pearson correlations of columns, over rows in which none is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..answer import Answer, ResultTable
from ..design import Design
from ..distributions import normal_quantile, t_two_sided
from ..moments import ask_moments
from ..question import Asking, Kept, Question, Step, method
from ..scaled_products import ask_products, measure_products
from ..site_table import Floats, Table
from ..sums import StatisticsError

COLUMNS_MAX = 200


@dataclass(frozen=True, eq=False)
class CorrelationsAnswer(Answer):
    """Arrays are f64[columns, columns], in the order of `names`."""

    names: tuple[str, ...] = ()
    """The columns."""
    means: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[columns]."""
    covariances: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """With divisor n - 1."""
    correlations: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """Pearson's; NaN of a constant column."""
    p_values: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """Of no correlation, two-sided, by Student's t."""
    low: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """Lower ends of Fisher's intervals."""
    high: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """Upper ends."""


@method("correlations")
@dataclass(frozen=True)
class Correlations(Question):
    """Correlates columns of numbers with each other."""

    of: tuple[str, ...]
    """Two columns or more."""
    level: float = 0.95
    """Of the intervals."""

    def __post_init__(self) -> None:
        if not 2 <= len(self.of) <= COLUMNS_MAX or len(set(self.of)) < len(self.of):
            raise StatisticsError(
                f"{len(self.of)} columns to correlate", f"2 to {COLUMNS_MAX}, each once"
            )
        if any(":" in name for name in self.of):
            raise StatisticsError("a column's name with a `:`", "rename it")
        if not 0 < self.level < 1:
            raise StatisticsError(f"a confidence level of {self.level}", "between 0 and 1")

    @property
    def _design(self) -> Design:
        return Design(self.of, intercept=False)

    def columns(self) -> tuple[str, ...]:
        return self.of

    def rows(self, table: Table) -> int:
        return self._design.of(table).rows

    def ask(self) -> Asking:
        width = len(self.of)
        moments = yield from ask_moments(width)
        products = yield from ask_products(moments)
        rows, scaled = products.rows, products.scaled
        covariances = scaled / (rows - 1) * np.outer(moments.scales, moments.scales)
        roots = np.sqrt(np.diag(scaled))
        with np.errstate(divide="ignore", invalid="ignore"):
            correlations = np.clip(scaled / np.outer(roots, roots), -1.0, 1.0)
            np.fill_diagonal(correlations, np.where(roots > 0, 1.0, np.nan))
            t = correlations * np.sqrt((rows - 2) / (1 - correlations**2))
            p_values = np.asarray(t_two_sided(t, rows - 2)) if rows > 2 else np.nan * t
            half = normal_quantile((1 + self.level) / 2) / np.sqrt(max(rows - 3, 1e-300))
            middle = np.arctanh(correlations)
            low, high = np.tanh(middle - half), np.tanh(middle + half)
        pairs = [(i, j) for i in range(width) for j in range(i)]
        table = ResultTable(
            "",
            ("", "", "r", "P>|t|", "low", "high"),
            tuple(
                (
                    self.of[i],
                    self.of[j],
                    *(_number(each[i, j]) for each in (correlations, p_values, low, high)),
                )
                for i, j in pairs
            ),
        )
        notes = [
            f"`{name}` is constant." for name, root in zip(self.of, roots, strict=True) if not root
        ]
        notes += products.notes
        return CorrelationsAnswer(
            "Correlations",
            {
                "sites": products.sites,
                "rows": rows,
                "rows left out": products.left,
                "level": self.level,
            },
            (table,),
            (),
            tuple(notes),
            self.of,
            products.means,
            covariances,
            correlations,
            p_values,
            low,
            high,
        )

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        return measure_products(self._design, table, step, kept)


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
