"""Principal components of columns, from their covariances over all sites."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..answer import Answer, Plot, ResultTable
from ..design import Design
from ..moments import ask_moments
from ..question import Asking, Kept, Question, Step, method
from ..scaled_products import ask_products, measure_products
from ..site_table import Floats, Table
from ..sums import StatisticsError

COLUMNS_MAX = 400


@dataclass(frozen=True, eq=False)
class PCAAnswer(Answer):
    """Principal components, as scikit-learn's `PCA` has them, signs included."""

    names: tuple[str, ...] = ()
    """The columns."""
    means: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[columns]."""
    scales: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[columns]: what columns were divided by; ones without `standardize`."""
    components: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """f64[components, columns]: directions of length one; the largest entry is positive."""
    variances: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[components]: explained variance, with divisor n - 1."""
    ratios: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[components]: the part of all variance."""
    singular_values: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[components]: of the centred matrix."""


@method("pca")
@dataclass(frozen=True)
class PCA(Question):
    """Principal component analysis of columns of numbers, over rows in which none is missing."""

    of: tuple[str, ...]
    """The columns."""
    components: int = 0
    """How many; 0: all."""
    standardize: bool = False
    """Whether columns are divided by their standard deviation (divisor n) first."""

    def __post_init__(self) -> None:
        if not 1 <= len(self.of) <= COLUMNS_MAX or len(set(self.of)) < len(self.of):
            raise StatisticsError(f"{len(self.of)} columns", f"1 to {COLUMNS_MAX}, each once")
        if any(":" in name for name in self.of):
            raise StatisticsError("a column's name with a `:`", "rename it")
        if not 0 <= self.components <= len(self.of):
            raise StatisticsError(f"{self.components} components of {len(self.of)} columns")

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
        if self.standardize and not moments.spreads.all():
            constant = [n for n, s in zip(self.of, moments.spreads, strict=True) if s == 0]
            raise StatisticsError(f"`{constant[0]}` is constant", "leave it out")
        products = yield from ask_products(moments)
        rows = products.rows
        scaled = products.scaled / (rows - 1)
        # Of the rows of this step, which may be others than the moments'.
        spreads = np.sqrt(np.diag(scaled) * (rows - 1) / rows) * moments.scales
        units = spreads if self.standardize else np.ones(width)
        found = scaled * np.outer(moments.scales / units, moments.scales / units)
        values, vectors = np.linalg.eigh((found + found.T) / 2)
        kept = min(self.components or width, rows, width)
        values, components = np.maximum(values[::-1], 0.0), vectors.T[::-1]
        largest = components[np.arange(width), np.abs(components).argmax(axis=1)]
        components = components * np.where(largest < 0, -1.0, 1.0)[:, None]
        whole = float(values.sum())
        if whole == 0:
            raise StatisticsError("all columns are constant", "name columns that vary")
        values, components, ratios = values[:kept], components[:kept], values[:kept] / whole
        tables, plot = self._printed(values, ratios, components)
        return PCAAnswer(
            "Principal components",
            {
                "sites": products.sites,
                "rows": rows,
                "rows left out": products.left,
                "components": kept,
            },
            tables,
            (plot,),
            products.notes,
            self.of,
            products.means,
            units,
            components,
            values,
            ratios,
            np.sqrt(values * (rows - 1)),
        )

    def _printed(
        self, values: Floats, ratios: Floats, components: Floats
    ) -> tuple[tuple[ResultTable, ...], Plot]:
        shown = [f"PC{k + 1}" for k in range(len(values))]
        rows = zip(shown, values.tolist(), ratios.tolist(), np.cumsum(ratios).tolist(), strict=True)
        few = components[:6]
        loadings = tuple((n, *few[:, j].tolist()) for j, n in enumerate(self.of))
        tables = (
            ResultTable("", ("", "variance", "part", "in all"), tuple(rows)),
            ResultTable("loadings", ("", *shown[: len(few)]), loadings),
        )
        series = {"part": {"x": shown, "y": ratios.tolist()}}
        return tables, Plot("bars", "Explained variance", "component", "part", series)

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        return measure_products(self._design, table, step, kept)
