"""Random forests of masked sums: bootstrapped trees, each node split by some of the features.

A step is a level of all trees, so that a forest takes about as many steps as it is deep (Breiman
2001). Trees are grown from histograms, as boosted trees are, and share their bins.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..answer import Answer
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Table
from ..sums import StatisticsError
from ..trees.bagging import Bagging, ForestSettings, level_numbers, score_numbers
from ..trees.bins import F32
from ..trees.forest import Forest
from ..trees.objectives import objective_of
from ..trees.search_steps import Begun, begin, begin_numbers, cells_numbers, declared_values
from ..trees.site_model import keep_rows, kept_rows
from ..trees.site_rows import Reading, SiteRows
from ..trees.trees_answer import importance_table, notes_of_bins
from ..trees.xgboost_json import xgboost_forest

DEPTH_MAX = 32
TREES_MAX = 1000


@dataclass(frozen=True)
class RandomForestAnswer(Answer):
    """A random forest."""

    reading: Reading = field(kw_only=True, repr=False)
    forest: Forest = field(kw_only=True, repr=False)
    out_of_bag: float = field(kw_only=True)
    """The accuracy, or the R^2, of rows by the trees that they are not in; NaN: of no rows."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.reading.names

    @property
    def classes(self) -> tuple[str, ...]:
        """What the columns of `predict` are the probabilities of."""
        numbers = range(self.forest.outputs if self.forest.outputs > 1 else 0)
        return self.reading.classes or tuple(map(str, numbers))

    def predict(self, table: Any) -> F32:
        """Predictions: f32[rows], or the classes' probabilities f32[rows, classes].

        table: what `Table.of` takes. Raises StatisticsError for one without the features.
        """
        columns = np.stack(self.reading.columns(Table.of(table)))
        nothing = np.zeros(self.forest.outputs, np.float32)
        whole = self.forest.margins(columns, nothing) / np.float32(self.forest.trees)
        return whole if self.forest.outputs > 1 else whole[:, 0]

    def to_xgboost(self) -> dict[str, Any]:
        """The model as XGBoost's JSON, without sums of rows; classes are targets."""
        return xgboost_forest(self.forest, self.feature_names)

    def save_model(self, path: str | Path) -> None:
        """Writes `to_xgboost` as a file that `xgboost.Booster.load_model` reads."""
        Path(path).write_text(json.dumps(self.to_xgboost()), encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        return {**super().to_dict(), "model": self.to_xgboost()}


@method("random_forest")
@dataclass(frozen=True)
class RandomForest(Question):
    """A random forest; settings have scikit-learn's names. Missing features are missing."""

    target: str
    """The column that is learnt."""
    features: tuple[str, ...]
    """The columns that it is learnt from."""
    classes: tuple[str, ...] = ()
    """The values of a target of text."""
    num_class: int = 0
    """Classes, where the target is their numbers from 0 on. Without classes numbers are learnt."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Features of text: a 0/1 feature for each value listed."""
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Features whose values are known: (first, last) or (first, last, step)."""
    n_estimators: int = 100
    """Trees."""
    max_depth: int = 10
    """Splits from the root to a leaf at most; a forest takes about as many steps."""
    min_samples_leaf: int = 5
    """Different rows of a leaf at least: a leaf of one row would say what its target is."""
    max_features: float = 0.0
    """The share of the features that a node chooses among; 0: the square root of their number for
    classes, all for numbers.
    """
    bootstrap: bool = True
    """Whether each tree has its own draw of the rows; else it has all."""
    max_bin: int = 64
    """Bins of a feature at most."""
    floor: int = 5
    """Rows that a bin has at least."""
    seed: int = 0
    """Of all draws."""

    def cell_floor(self) -> int:
        return 1

    def columns(self) -> tuple[str, ...]:
        return (self.target, *self.features)

    def rows(self, table: Table) -> int:
        if self.classes:
            return int((table.codes(self.target, self.classes) != -1).sum())
        return int((~np.isnan(table.numbers(self.target))).sum())

    @property
    def _reading(self) -> Reading:
        return Reading(self.target, self.features, self.categories, self.classes)

    @property
    def _settings(self) -> ForestSettings:
        outputs = len(self.classes) or self.num_class or 1
        features = len(self._reading.names)
        some = math.isqrt(features) if outputs > 1 else features
        if self.max_features:
            some = int(self.max_features * features)
        return ForestSettings(
            objective_of("multi:softprob" if outputs > 1 else "reg:squarederror"),
            outputs,
            self.n_estimators,
            self.max_depth,
            max(1, min(some, features)),
            float(self.min_samples_leaf),
            self.bootstrap,
        )

    def check(self) -> None:
        """Raises StatisticsError for settings that make no sense."""
        self._reading.check()
        ranges = {
            "n_estimators": (1, TREES_MAX),
            "max_depth": (1, DEPTH_MAX),
            "min_samples_leaf": (1, 1 << 30),
            "max_features": (0, 1),
            "floor": (1, 1 << 30),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise StatisticsError(f"{name} is {value:g}", f"from {low:g} to {high:g}")
        classes = len(self.classes) or self.num_class
        if classes and not 2 <= classes <= 256:
            raise StatisticsError(f"{classes} classes", "2 to 256, or none for numbers")

    def _declared(self) -> dict[int, F32]:
        return declared_values(self.values, self._reading.names)

    def ask(self) -> Asking:
        self.check()
        settings, names = self._settings, self._reading.names
        begun = yield from begin(
            settings.objective,
            settings.outputs,
            len(names),
            self._declared(),
            self.max_bin,
            self.floor,
        )
        mean = float(begun.labels[0]) / begun.rows
        around = begun.squares / begun.rows - mean * mean
        # A difference of large numbers may be too small by their rounding.
        spread = math.sqrt(max(around, begun.squares / begun.rows * 2.0**-40))
        centre = 0.0 if settings.is_classes else mean
        forest = Bagging(settings, begun.cuts, begun.rows, centre, begun.rows * spread, self.seed)
        yield from forest.grow()
        loss, judged = yield from forest.score()
        return self._answer(forest, begun, loss, judged, around)

    def _answer(
        self, bagging: Bagging, begun: Begun, loss: float, judged: float, variance: float
    ) -> RandomForestAnswer:
        settings, names = self._settings, self._reading.names
        forest = Forest.of(bagging.trees, [-1] * settings.trees, settings.outputs)
        name = "accuracy" if settings.is_classes else "R^2"
        relative = loss if settings.is_classes else loss / max(variance, 1e-300)
        found = 1.0 - relative if judged else math.nan
        facts: dict[str, Any] = {
            "sites": bagging.sites,
            "rows": int(bagging.rows),
            "rows left out": int(begun.left_out),
            "trees": settings.trees,
            "leaves": int((forest.feature < 0).sum()),
            "features a node": settings.features_a_node,
        }
        if judged:
            facts[f"{name} out of bag"] = found
        notes = notes_of_bins(names, begun, self.values)
        if bagging.begins or bagging.sites != begun.sites:
            notes.append(
                f"sites came or went: bins are of {begun.sites} sites, trees of {bagging.sites}"
            )
        return RandomForestAnswer(
            "Random forest",
            facts,
            (importance_table(forest, names),),
            (),
            tuple(notes),
            reading=self._reading,
            forest=forest,
            out_of_bag=found,
        )

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        rows = kept_rows(kept, table) or self._read(table, kept)
        settings = self._settings
        if step.name == "begin":
            return begin_numbers(rows, settings.outputs, self._declared())
        if step.name == "bins":
            return cells_numbers(rows, step, kept)
        if step.name == "level":
            return level_numbers(settings, step, rows, kept)
        if step.name == "score":
            return score_numbers(settings, step, rows, kept)
        raise StatisticsError(f"a random forest has no step `{step.name[:40]}`")

    def _read(self, table: Table, kept: Kept) -> SiteRows:
        self.check()
        settings = self._settings
        rows = self._reading.rows(table, settings.objective, settings.outputs, seed=self.seed)
        keep_rows(kept, table, rows)
        return rows
