"""A site's rows for a Cox model, and their sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..design import CompleteRows
from ..question import Step
from ..site_table import Table
from .risk_sets import RiskSets
from .time_grid import FollowUp, Places

if TYPE_CHECKING:
    from ..methods.cox import Cox

Floats = npt.NDArray[np.float64]
#: A row with a larger log hazard is counted as steep, and its hazard is that of this.
STEEP = 50.0


@dataclass(frozen=True)
class CoxRows:
    """The usable rows of a site."""

    columns: Floats
    """f64[rows, p], and where there is an offset one more."""
    width: int
    """p"""
    weight: Floats
    """f64[rows]"""
    stratum: Places
    """i64[rows]"""
    cluster: Places
    """i64[rows]: the number of a row's cluster; each its own without clusters."""
    follow: FollowUp
    complete: CompleteRows
    problems: dict[str, int]
    """What every step counts."""

    @staticmethod
    def read(question: Cox, table: Table) -> CoxRows:
        """Of a table. Raises StatisticsError for columns that are absent or text."""
        others = tuple(filter(None, (question.weights, question.offset)))
        design = question.design()
        complete = design.of(table, others)
        known, stratum, unlisted = complete.kept.copy(), np.zeros(table.rows, np.int64), 0
        if question.strata:
            stratum = table.codes(question.strata, question.stratum_names)
            unlisted = int((stratum == -2).sum())
            known &= stratum >= 0
        cluster = np.arange(table.rows)
        if question.cluster:
            texts = table.texts(question.cluster)
            known &= texts != ""
            cluster = np.unique(texts, return_inverse=True)[1].reshape(-1)
        follow = question.clock().read(table, known)
        usable = follow.usable[complete.kept]
        parts = [complete.matrix[usable, 1:]]
        if question.offset:
            parts.append(complete.others[question.offset][usable, None])
        weight = np.ones(int(usable.sum()))
        if question.weights:
            weight = complete.others[question.weights][usable]
        problems = {
            **follow.problems,
            "unlisted": complete.unlisted,
            "unlisted_strata": unlisted,
            "negative_weight": int((weight < 0).sum()),
        }
        # Weights are not negative where the question goes on: it ends after the first step.
        return CoxRows(
            np.concatenate(parts, axis=1),
            design.width - 1,
            np.maximum(weight, 0.0),
            stratum[follow.usable],
            cluster[follow.usable],
            follow,
            CompleteRows(complete.matrix[:0], {}, complete.kept, complete.missing, 0),
            problems,
        )

    def scaled(self, step: Step) -> tuple[Floats, Floats]:
        """Columns, centred and scaled as a step says, f64[rows, p], and the offset f64[rows]."""
        size = self.columns.shape[1]
        means, scales = step.floats("means", size), step.floats("scales", size)
        safe = np.where(scales > 0, scales, 1.0)
        x = (self.columns[:, : self.width] - means[: self.width]) / safe[: self.width]
        if size == self.width:
            return x, np.zeros(len(x))
        return x, self.columns[:, self.width] - means[self.width]

    def hazards(self, x: Floats, offset: Floats, b: Floats) -> tuple[Floats, int]:
        """w exp(x b + o) of each row, and how many of them are steep."""
        log = x @ b + offset
        steep = ~(log <= STEEP)
        # A hazard of e^-50 adds nothing to the others of its risk set.
        size = np.exp(np.clip(np.where(steep, 0.0, log), -STEEP, STEEP))
        return self.weight * size, int(steep.sum())

    def risk(
        self, x: Floats, offset: Floats, b: Floats, sets: RiskSets, ties: str
    ) -> Mapping[str, Any]:
        """The numbers of a `risk` step."""
        r, steep = self.hazards(x, offset, b)
        values = np.concatenate([r[:, None], r[:, None] * x], axis=1)
        of_event = self.weight * sets.event
        made: dict[str, Any] = {
            "steep": steep,
            "unplaced": sets.unplaced,
            "events": sets.at_events(np.ones((len(r), 1)))[:, 0].astype(np.int64),
            "weights": sets.at_events(self.weight[:, None])[:, 0],
            "risk": sets.increments(values),
            "event_x": of_event @ x,
            "event_offset": of_event @ offset,
        }
        if ties == "efron":
            made["tied"] = sets.at_events(values)
        return made

    def information(
        self, x: Floats, offset: Floats, b: Floats, sets: RiskSets, over: Floats, tied: Floats
    ) -> Mapping[str, Any]:
        """The numbers of an `information` step."""
        r, _ = self.hazards(x, offset, b)
        part = r * (sets.over_runs(over) - sets.of_event(tied))
        return {"information": (x.T @ (x * part[:, None]))[np.triu_indices(self.width)]}

    def squares(
        self, x: Floats, offset: Floats, b: Floats, sets: RiskSets, step: Step
    ) -> Mapping[str, Any]:
        """The numbers of a `squares` step."""
        shape = (sets.bins, self.width)
        over, tied = step.floats("over_risk", sets.bins), step.floats("over_events", sets.bins)
        over_x, tied_x = step.floats("over_risk_x", *shape), step.floats("over_events_x", *shape)
        r, _ = self.hazards(x, offset, b)
        event = sets.event[:, None] * (x - sets.rows_of_event(step.floats("event_mean", *shape)))
        part = sets.over_runs(over) - sets.of_event(tied)
        lost = x * part[:, None] - sets.rows_over_runs(over_x) + sets.rows_of_event(tied_x)
        residual = self.weight[:, None] * event - r[:, None] * lost
        clusters = int(self.cluster.max(initial=-1)) + 1
        added = np.zeros((clusters, self.width))
        np.add.at(added, self.cluster, residual)
        return {"squares": (added.T @ added)[np.triu_indices(self.width)]}
