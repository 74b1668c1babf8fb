"""What a question for trees gives: the trees, what they predict, which features they use."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..answer import Answer, Plot, ResultTable
from ..site_table import Table
from .bins import F32, Cuts
from .forest import Forest
from .objectives import F64, objective_of
from .search_steps import Begun
from .site_rows import Reading
from .xgboost_json import xgboost_model

_MOST_IMPORTANT = 20


@dataclass(frozen=True)
class TreesAnswer(Answer):
    """Boosted trees."""

    reading: Reading = field(kw_only=True, repr=False)
    objective: str = field(kw_only=True)
    forest: Forest = field(kw_only=True, repr=False)
    base_score: F32 = field(kw_only=True)
    """As XGBoost's, f32[outputs]."""
    base_margin: F32 = field(kw_only=True)
    losses: F64 = field(kw_only=True, repr=False)
    """The metric after 0, 1, 2... rounds, of rows that grow trees and of rows held out,
    f64[rounds + 1, 2].
    """
    cuts: Cuts = field(kw_only=True, repr=False)

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.reading.names

    def margins(self, table: Any) -> F32:
        """What the trees add up to, f32[rows, outputs]. table: what `Table.of` takes."""
        columns = self.reading.columns(Table.of(table))
        return self.forest.margins(np.stack(columns), self.base_margin)

    def predict(self, table: Any) -> F32:
        """Predictions: f32[rows], or probabilities f32[rows, classes] of multi:softprob.

        table: what `Table.of` takes. Raises StatisticsError for one without the features.
        """
        made = objective_of(self.objective).transform(self.margins(table))
        return made if self.forest.outputs > 1 else made[:, 0]

    def to_xgboost(self) -> dict[str, Any]:
        """The model as XGBoost's JSON, without sums of Hessians."""
        return xgboost_model(self.forest, self.feature_names, self.objective, self.base_score)

    def save_model(self, path: str | Path) -> None:
        """Writes `to_xgboost` as a file that `xgboost.Booster.load_model` reads."""
        Path(path).write_text(json.dumps(self.to_xgboost()), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "model": self.to_xgboost()}


def importance_table(forest: Forest, names: Sequence[str]) -> ResultTable:
    """Features by the gain of their splits, the mean of a split as in XGBoost."""
    gains, splits = forest.importance(len(names))
    order = np.argsort(-gains, kind="stable")[:_MOST_IMPORTANT]
    whole = float(gains.sum())
    return ResultTable(
        "Importance of features",
        ("feature", "share of gain", "mean gain", "splits"),
        tuple(
            (
                names[f],
                float(gains[f]) / whole if whole > 0 else 0.0,
                float(gains[f]) / int(splits[f]),
                int(splits[f]),
            )
            for f in order.tolist()
            if splits[f]
        ),
    )


def rounds_plot(metric: str, losses: F64, held_out: bool) -> Plot:
    """The metric by round."""
    rounds = list(range(len(losses)))
    series = {"rows of trees": {"x": rounds, "y": losses[:, 0].tolist()}}
    if held_out:
        series["rows held out"] = {"x": rounds, "y": losses[:, 1].tolist()}
    return Plot("lines", f"{metric} by round", "round", metric, series)


def notes_of_bins(
    names: Sequence[str], begun: Begun, declared: Mapping[str, tuple[float, ...]]
) -> list[str]:
    """What a reader must know about bins."""
    notes = []
    ranges = [name for f, name in enumerate(names) if not begun.exact[f]]
    if ranges:
        some = ", ".join(ranges[:5]) + (", ..." if len(ranges) > 5 else "")
        which = "1 feature has" if len(ranges) == 1 else f"{len(ranges)} features have"
        notes.append(f"{which} bins of several values: {some}")
    for name in declared:
        strange = int(begun.undeclared[list(names).index(name)])
        if strange:
            notes.append(f"{strange:,} rows have a `{name}` that was not declared")
    for f, name in enumerate(names):
        if not begun.known[f]:
            notes.append(f"`{name}` is missing in all rows")
    return notes
