"""Gradient-boosted trees by histograms, split for split those of XGBoost's `hist` on pooled rows.

A step is a level of the trees of a round: sites add up gradients and Hessians of their rows by
node, feature and bin (Chen and Guestrin 2016, arXiv 1603.02754), of two siblings only the lighter
one. Bins are found before from counts of ranges (`trees.bins`). Gradients are rounded to fixed
point row by row, so that totals are exact, and do not depend on which site has which row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..question import Asking, Kept, Question, Step, method
from ..site_table import Table
from ..sums import StatisticsError
from ..trees.bins import F32
from ..trees.boosting import Boosting, BoostingSettings, level_numbers, score_numbers
from ..trees.forest import TREES_MAX, Forest
from ..trees.growth import Frame
from ..trees.objectives import OBJECTIVES, RT_EPS, estimated_base_score, mean_loss, objective_of
from ..trees.search_steps import Begun, begin, begin_numbers, cells_numbers, declared_values
from ..trees.site_model import keep_rows, kept_rows
from ..trees.site_rows import Reading, SiteRows
from ..trees.splits import Penalties, f32
from ..trees.trees_answer import TreesAnswer, importance_table, notes_of_bins, rounds_plot

DEPTH_MAX = 16
#: XGBoost's max_delta_step for counts.
_POISSON_STEP = 0.7


@method("boosted_trees")
@dataclass(frozen=True)
class BoostedTrees(Question):
    """Boosted trees; settings have XGBoost's names. Missing features are missing, not left out."""

    target: str
    """The column that is learnt."""
    features: tuple[str, ...]
    """The columns that it is learnt from."""
    objective: str = "reg:squarederror"
    """reg:squarederror, binary:logistic, multi:softprob or count:poisson."""
    rounds: int = 100
    """Rounds of boosting: trees, or trees of each class."""
    classes: tuple[str, ...] = ()
    """The values of a target of text, in order: two for binary:logistic."""
    num_class: int = 0
    """Classes of multi:softprob, where the target is their numbers from 0 on."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Features of text: a 0/1 feature for each value listed."""
    values: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Features whose values are known: (first, last) or (first, last, step)."""
    weights: str = ""
    """A column of the rows' weights; empty: all are 1."""
    max_depth: int = 6
    """Splits from the root to a leaf at most; a round takes as many steps."""
    eta: float = 0.3
    """What leaves are multiplied with."""
    reg_lambda: float = 1.0
    """The penalty of leaves' squares."""
    reg_alpha: float = 0.0
    """The penalty of leaves' absolute values."""
    gamma: float = 0.0
    """What a split gains at least."""
    min_child_weight: float = 1.0
    """The sum of Hessians of a leaf at least: of rows for reg:squarederror."""
    scale_pos_weight: float = 1.0
    """What the gradients of rows with the label 1 are multiplied with, of binary:logistic."""
    max_delta_step: float | None = None
    """None: 0.7 for count:poisson, else no limit."""
    subsample: float = 1.0
    """The share of rows of each tree, drawn by each site for itself."""
    colsample_bytree: float = 1.0
    """The share of features of each round."""
    max_bin: int = 256
    """Bins of a feature at most."""
    floor: int = 5
    """Rows that a bin has at least; 1: bins are XGBoost's where values occur less often, too."""
    base_score: float | None = None
    """None: XGBoost's own estimate."""
    monotone_constraints: Mapping[str, int] = field(default_factory=dict)
    """By feature: 1: predictions may only rise with it, -1: fall."""
    held_out: float = 0.0
    """The share of rows that only judge, drawn by each site for itself."""
    early_stopping_rounds: int = 0
    """Ends after so many rounds without a lower loss of the rows held out; 0: never."""
    seed: int = 0
    """Of all draws."""

    def cell_floor(self) -> int:
        return 1

    def columns(self) -> tuple[str, ...]:
        return (self.target, *self.features, *([self.weights] if self.weights else []))

    def rows(self, table: Table) -> int:
        if self.classes:
            return int((table.codes(self.target, self.classes) != -1).sum())
        return int((~np.isnan(table.numbers(self.target))).sum())

    @property
    def _reading(self) -> Reading:
        return Reading(self.target, self.features, self.categories, self.classes, self.weights)

    @property
    def _outputs(self) -> int:
        if self.objective != "multi:softprob":
            return 1
        return len(self.classes) or self.num_class

    @property
    def _settings(self) -> BoostingSettings:
        step = self.max_delta_step
        if step is None:
            step = _POISSON_STEP if self.objective == "count:poisson" else 0.0
        return BoostingSettings(
            objective_of(self.objective),
            self._outputs,
            f32(step),
            self.subsample,
            bool(self.weights),
        )

    def check(self) -> None:
        """Raises StatisticsError for settings that make no sense."""
        objective_of(self.objective)
        reading = self._reading
        reading.check()
        ranges = {
            "rounds": (1, TREES_MAX // max(self._outputs, 1)),
            "max_depth": (1, DEPTH_MAX),
            "eta": (1e-6, 10),
            "reg_lambda": (0, 1e30),
            "reg_alpha": (0, 1e30),
            "gamma": (0, 1e30),
            "min_child_weight": (0, 1e30),
            "scale_pos_weight": (1e-6, 1e6),
            "subsample": (1e-3, 1),
            "colsample_bytree": (1e-3, 1),
            "held_out": (0, 0.9),
            "early_stopping_rounds": (0, TREES_MAX),
            "floor": (1, 1 << 30),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            if not low <= value <= high:
                raise StatisticsError(f"{name} is {value:g}", f"from {low:g} to {high:g}")
        several = self.objective == "multi:softprob"
        if several and not 2 <= self._outputs <= 256:
            raise StatisticsError(
                f"multi:softprob with {self._outputs} classes", "say classes, or num_class"
            )
        two = self.objective == "binary:logistic" and len(self.classes) == 2
        if self.classes and not (several or two):
            raise StatisticsError(
                f"{self.objective} with {len(self.classes)} classes",
                "two classes for binary:logistic, more for multi:softprob",
            )
        if self.scale_pos_weight != 1 and self.objective != "binary:logistic":
            raise StatisticsError(f"{self.objective} with a scale_pos_weight")
        if self.early_stopping_rounds and not self.held_out:
            raise StatisticsError(
                "early_stopping_rounds without rows to judge by", "say held_out=0.2"
            )
        for name, sign in self.monotone_constraints.items():
            if name not in reading.names or sign not in (-1, 0, 1):
                raise StatisticsError(
                    f"monotone_constraints of {name!r} is {sign}", "1, 0 or -1 of a feature"
                )

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
        if self.held_out and not begun.held_out:
            raise StatisticsError("no rows are held out", "give a larger share, or more rows")
        score = self._base_score(begun)
        base = settings.objective.margin(score)
        boosting = Boosting(settings, base, begun.rows, _first_sizes(settings, base, begun))
        draw = np.random.Generator(np.random.Philox(key=self.seed & ((1 << 64) - 1)))
        frame = self._frame(begun, np.arange(len(names)))
        best, best_round = math.inf, 0
        for number in range(self.rounds):
            if self.colsample_bytree < 1:
                count = max(1, int(self.colsample_bytree * len(names)))
                frame = self._frame(begun, np.sort(draw.permutation(len(names))[:count]))
            yield from boosting.grow(frame)
            if self.early_stopping_rounds:
                # Before this round: the loss of the trees so far.
                loss = boosting.losses[-1][1]
                if loss < best:
                    best, best_round = loss, number
                if number - best_round >= self.early_stopping_rounds:
                    break
        else:
            boosting.losses.append((yield from boosting.score(frame)))
        if self.early_stopping_rounds:
            kept = int(np.argmin([loss for _, loss in boosting.losses]))
            del boosting.trees[max(kept, 1) * settings.outputs :]
        return self._answer(boosting, begun, score)

    def _base_score(self, begun: Begun) -> F32:
        settings = self._settings
        if self.base_score is None:
            one_step = abs(self.scale_pos_weight - 1) > RT_EPS
            return estimated_base_score(settings.objective, begun.weight, begun.labels, one_step)
        given = np.full(settings.outputs, self.base_score, np.float32)
        if self.objective == "binary:logistic" and not 0 < self.base_score < 1:
            raise StatisticsError("base_score of binary:logistic is a probability")
        if self.objective == "count:poisson" and not self.base_score > 0:
            raise StatisticsError("base_score of count:poisson is a positive rate")
        return given

    def _frame(self, begun: Begun, features: Any) -> Frame:
        monotone = np.zeros(len(self._reading.names), np.int64)
        for name, sign in self.monotone_constraints.items():
            monotone[self._reading.names.index(name)] = sign
        penalties = Penalties(
            f32(self.reg_lambda),
            f32(self.reg_alpha),
            f32(self.gamma),
            f32(self.min_child_weight),
            self._settings.max_delta_step,
            monotone,
        )
        return Frame(begun.cuts, features, penalties, self.eta, self.max_depth)

    def _answer(self, boosting: Boosting, begun: Begun, score: F32) -> TreesAnswer:
        settings, names = self._settings, self._reading.names
        count = len(boosting.trees)
        forest = Forest.of(
            boosting.trees, [t % settings.outputs for t in range(count)], settings.outputs
        )
        metric = settings.objective.metric
        losses = np.array(
            [
                [mean_loss(settings.objective, loss, 1.0) for loss in pair]
                for pair in boosting.losses
            ]
        )
        rounds = count // settings.outputs
        facts: dict[str, Any] = {
            "objective": self.objective,
            "sites": begun.sites,
            "rows": int(boosting.rows),
            "rows left out": int(begun.left_out),
            "rounds": rounds,
            "trees": count,
            f"{metric}": float(losses[rounds, 0]),
        }
        if self.held_out:
            facts["rows held out"] = int(boosting.held_out)
            facts[f"{metric} held out"] = float(losses[rounds, 1])
        notes = notes_of_bins(names, begun, self.values)
        if boosting.begins or len(boosting.sites | {begun.sites}) > 1:
            notes.append(
                f"sites came or went: rounds are of {min(boosting.sites)} to"
                f" {max(boosting.sites | {begun.sites})} sites,"
                f" {boosting.begins} of them began again"
            )
        return TreesAnswer(
            "Boosted trees",
            facts,
            (importance_table(forest, names),),
            (rounds_plot(metric, losses, bool(self.held_out)),),
            tuple(notes),
            reading=self._reading,
            objective=self.objective,
            forest=forest,
            base_score=score,
            base_margin=boosting.base,
            losses=losses,
            cuts=begun.cuts,
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
        raise StatisticsError(f"boosted trees have no step `{step.name[:40]}`")

    def _read(self, table: Table, kept: Kept) -> SiteRows:
        self.check()
        rows = self._reading.rows(
            table,
            OBJECTIVES[self.objective],
            self._outputs,
            seed=self.seed,
            held_out=self.held_out,
            positive=self.scale_pos_weight,
        )
        keep_rows(kept, table, rows)
        return rows


def _first_sizes(settings: BoostingSettings, base: F32, begun: Begun) -> Any:
    """About what absolute gradients and Hessians add up to before the first round."""
    rows, name = begun.weight, settings.objective.name
    if name == "reg:squarederror":
        mean, total = float(base[0]), float(begun.labels[0])
        around = begun.squares - 2 * mean * total + rows * mean * mean
        # A difference of large numbers may be too small by their rounding.
        return np.array([[math.sqrt(rows * max(around, begun.squares * 2.0**-40)), rows]])
    if name == "count:poisson":
        rate = rows * math.exp(min(float(base[0]), 80.0))
        step = math.exp(settings.max_delta_step)
        return np.array([[rate + float(begun.labels[0]), rate * step]])
    return np.full((settings.outputs, 2), [rows, rows * settings.objective.hessian_max])
