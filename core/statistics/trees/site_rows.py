"""What trees read of a table: features as f32, and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..site_table import Chosen, Table
from ..sums import StatisticsError
from .bins import F32
from .forest import FEATURES_MAX
from .histograms import RowDraws, content_of
from .objectives import Objective

CLASSES_MAX = 256


@dataclass(frozen=True)
class SiteRows:
    """A site's rows that have a label."""

    columns: list[F32]
    """f32[rows] a feature, NaN where missing."""
    label: F32
    """f32[rows]; a class is its number."""
    weight: F32 | None
    """What a row counts for in losses, f32[rows]; None: 1."""
    pull: F32 | None
    """What its gradients are multiplied with, f32[rows]; None: 1."""
    left_out: int
    """Rows without a label or a weight."""
    unlisted: int
    """Rows whose label the objective or the list of classes does not have."""
    draws: RowDraws
    held_out: Chosen
    """Rows that only judge the trees, bool[rows]."""


@dataclass(frozen=True)
class Reading:
    """Which columns are read, and how."""

    target: str
    features: tuple[str, ...]
    categories: Mapping[str, tuple[str, ...]]
    """Columns of text: a feature for each of these values."""
    classes: tuple[str, ...]
    """The values of a target of text; empty: it is numbers."""
    weights: str = ""
    """A column of weights; empty: all are 1."""

    def check(self) -> None:
        """Raises StatisticsError for what cannot be read."""
        if not self.features or len(set(self.features)) < len(self.features):
            raise StatisticsError("trees need features, each of them once")
        if self.target in self.features:
            raise StatisticsError(f"`{self.target}` is the target and a feature")
        if self.weights in self.features or self.weights == self.target:
            raise StatisticsError(f"`{self.weights}` is the weights and something else")
        for name in self.categories:
            if name not in self.features:
                raise StatisticsError(f"categories of `{name}`, which is no feature")
        if len(self.names) > FEATURES_MAX:
            raise StatisticsError(f"{len(self.names)} features", f"at most {FEATURES_MAX}")
        if len(set(self.classes)) < len(self.classes) or len(self.classes) > CLASSES_MAX:
            raise StatisticsError(
                f"{len(self.classes)} classes", f"each once, at most {CLASSES_MAX}"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The features' names, those of categories as column[value]."""
        return tuple(
            made
            for name in self.features
            for made in (
                [f"{name}[{value}]" for value in self.categories[name]]
                if name in self.categories
                else [name]
            )
        )

    def columns(self, table: Table) -> list[F32]:
        """The features, f32[rows] each, NaN where missing. Raises StatisticsError."""
        made: list[F32] = []
        for name in self.features:
            if name in self.categories:
                codes = table.codes(name, self.categories[name])
                for k in range(len(self.categories[name])):
                    made.append(np.where(codes == -1, np.nan, codes == k).astype(np.float32))
                continue
            with np.errstate(over="ignore"):
                column = table.numbers(name).astype(np.float32)
            if np.isinf(column).any():
                raise StatisticsError(
                    f"column `{name}` has values beyond what f32 holds at a site",
                    "give it in a larger unit",
                )
            made.append(column)
        return made

    def rows(
        self,
        table: Table,
        objective: Objective,
        outputs: int,
        *,
        seed: int,
        held_out: float = 0.0,
        positive: float = 1.0,
    ) -> SiteRows:
        """A site's rows. Raises StatisticsError.

        held_out: the share of rows that only judge. positive: what the gradients of rows with the
        label 1 are multiplied with.
        """
        label, known = self._labels(table)
        weight: F32 | None = None
        if self.weights:
            given = table.numbers(self.weights)
            if (given < 0).any():
                raise StatisticsError(f"column `{self.weights}` has negative weights at a site")
            known &= ~np.isnan(given)
            weight = given.astype(np.float32)
        with np.errstate(over="ignore"):
            short = label.astype(np.float32)
        listed = known & np.isfinite(short)
        listed[listed] = objective.is_label(short[listed], outputs)
        columns = [column[listed] for column in self.columns(table)]
        short = short[listed]
        weight = None if weight is None else weight[listed]
        pull = weight
        if positive != 1.0:
            ones = np.ones(len(short), np.float32) if weight is None else weight
            pull = np.where(short == 1, ones * np.float32(positive), ones)
        draws = RowDraws(content_of([*columns, short]), len(short), seed)
        judging = (
            draws.share("held out", 0, held_out) if held_out > 0 else np.zeros(len(short), np.bool_)
        )
        return SiteRows(
            columns,
            short,
            weight,
            pull,
            int((~known).sum()),
            int((known & ~listed).sum()),
            draws,
            judging,
        )

    def _labels(self, table: Table) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], Chosen]:
        if self.classes:
            codes = table.codes(self.target, self.classes)
            return np.where(codes >= 0, codes, np.nan).astype(np.float64), codes != -1
        values = table.numbers(self.target)
        return values, ~np.isnan(values)
