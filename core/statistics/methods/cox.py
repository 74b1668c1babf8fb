"""Cox proportional hazards regression, as it would be of all rows in one place.

The partial likelihood needs sums over risk sets (`partial_likelihood.py`), at the bins of time that
have events (`time_grid.py`). Steps: means and spreads of columns; how far times reach; rows that
leave, for bins with a floor; events by bin; then two a Newton iteration (`cox_maximum.py`), and at
the end one each for the test of proportional hazards and for concordance.

Sources: Cox 1972; Breslow 1974; Efron 1977; Grambsch and Therneau 1994; Harrell et al. 1996.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..design import Design
from ..few_rows import check_weights
from ..moments import SPREADS, SUMS, Moments, ask_moments, measure_moments
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Table
from ..sums import StatisticsError, Sum, Totals, counts
from ..survival.concordance import (
    FINE,
    Concordance,
    concordance,
    fine_bins,
    score_counts,
    score_edges,
)
from ..survival.cox_answer import CoxAnswer, Fitted, cox_answer
from ..survival.cox_maximum import Moved, Search, same_rows
from ..survival.cox_rows import CoxRows
from ..survival.partial_likelihood import RISK_BITS, TIES, squares_step, symmetric
from ..survival.proportional import TRANSFORMS
from ..survival.risk_sets import EventBins, RiskSets
from ..survival.time_grid import (
    CELLS_MAX,
    LENGTHS,
    Clock,
    Places,
    bins_of,
    counted,
    joined_again,
    read_edges,
    refined_bins,
)

#: Rounds of steps, where sites with other times come back in between.
TRIES_MAX = 5


@method("cox")
@dataclass(frozen=True)
class Cox(Question):
    """Cox proportional hazards regression."""

    time: str
    """Column of the time until the event, or until the row was last seen."""
    event: str
    """Column of 1 where the event was seen, 0 where the row was censored."""
    predictors: tuple[str, ...]
    """Terms: columns, categorical columns `C(arm)`, products `age:C(arm)`."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Categories by column, the reference first; those of `strata` too."""
    strata: str = ""
    """Column whose categories have a baseline hazard each."""
    entry: str = ""
    """Column of the time from which a row is at risk (left truncation)."""
    weights: str = ""
    """Column of rows' weights, 0 or more."""
    offset: str = ""
    """Column that is added to the log hazard."""
    ties: str = "efron"
    """Of events at one time: `efron` or `breslow`."""
    penalizer: float = 0.0
    """Ridge: half of it, times the number of rows, on each squared coefficient of a column of
    standard deviation 1.
    """
    time_step: float = 1.0
    """Times are rounded to multiples of it."""
    horizon: float = 0.0
    """Rows that are followed longer are censored here; 0: nowhere."""
    least_per_bin: int = 0
    """Times are joined until each stratum has none or so many rows that leave; 0: never."""
    robust: bool = False
    """Whether standard errors are those of Lin and Wei, which hold for wrong models too."""
    cluster: str = ""
    """Column of clusters whose rows depend on each other, each at one site: errors are robust."""
    confidence: float = 0.95
    """Of intervals."""
    proportional: str = "km"
    """The test of proportional hazards: residuals against `km`, `rank`, `identity` or `log` of the
    time; empty: no test.
    """
    score_bins: int = 128
    """Bins of scores, of which the concordance index is computed; 0: no index."""

    def __post_init__(self) -> None:
        if not self.predictors:
            raise StatisticsError("a Cox model without predictors", "name at least one")
        if self.strata and not self.categories.get(self.strata):
            raise StatisticsError(
                f"the categories of `{self.strata}` are not listed",
                f'categories={{"{self.strata}": ("a", "b")}}',
            )
        for name, value, known in (
            ("ties", self.ties, TIES),
            ("proportional", self.proportional, (*TRANSFORMS, "")),
        ):
            if value not in known:
                raise StatisticsError(f"no {name} `{value}`", f"one of {', '.join(known)}")
        if not 0 < self.confidence < 1:
            raise StatisticsError(f"a confidence of {self.confidence:g}", "above 0, below 1")
        if not 0 <= self.score_bins <= FINE or self.least_per_bin < 0:
            raise StatisticsError("score_bins or least_per_bin out of range", "0 or more")
        if not (np.isfinite(self.penalizer) and self.penalizer >= 0):
            raise StatisticsError(f"a penalizer of {self.penalizer:g}", "0 or more")
        if self.least_per_bin and self.entry:
            raise StatisticsError(
                "least_per_bin with an entry column",
                "rows that enter and leave in one bin would never be at risk: leave out one",
            )
        self.clock()
        self.design()

    def clock(self) -> Clock:
        return Clock(self.time, self.event, self.entry, self.time_step, self.horizon)

    def design(self) -> Design:
        """Of the predictors; its first column, the intercept, is not used."""
        return Design(self.predictors, self.categories)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the coefficients."""
        return self.design().names[1:]

    @property
    def stratum_names(self) -> tuple[str, ...]:
        return tuple(self.categories[self.strata]) if self.strata else ("",)

    def cell_floor(self) -> int:
        return max(self.least_per_bin, 1)

    def columns(self) -> tuple[str, ...]:
        others = (
            *self.clock().columns(),
            self.strata,
            self.weights,
            self.offset,
            self.cluster,
        )
        return tuple(dict.fromkeys((*filter(None, others), *self.design().columns())))

    # At a site.

    def rows(self, table: Table) -> int:
        return CoxRows.read(self, table).problems["rows"]

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        if "rows" not in kept:
            kept["rows"] = CoxRows.read(self, table)
        rows: CoxRows = kept["rows"]
        if step.name in (SUMS, SPREADS):
            return measure_moments(rows.columns, step, rows.complete)
        strata = len(self.stratum_names)
        if step.name == "leaving":
            return {"leaving": self._cells(rows, read_edges(step, self._cell_count))}
        made: dict[str, Any] = dict(rows.problems)
        if step.name == "range":
            return made | {"lengths": self.clock().lengths(rows.follow)}
        if step.name == "events":
            edges = read_edges(step, strata)
            place = bins_of(rows.follow.end, edges)
            shape = (strata, len(edges) - 1)
            made["beyond"] = int((place == shape[1]).sum())
            made["events"] = counted(rows.stratum, place, shape, rows.follow.event)
            everyone = np.ones(len(place), np.bool_)
            made["leaving"] = counted(rows.stratum, place, shape, everyone)
            return made
        sets = RiskSets.of(EventBins.read(step, strata), rows.follow, rows.stratum, strata)
        return {**made, **self._of_sets(rows, step, sets, table.floor)}

    def _of_sets(self, rows: CoxRows, step: Step, sets: RiskSets, floor: int) -> Mapping[str, Any]:
        """A site's numbers for the steps that have bins of events."""
        b = step.floats("coefficients", len(self.names))
        x, offset = rows.scaled(step)
        risk = x @ b + offset
        check_weights(np.exp(risk - risk.max(initial=-np.inf)) * rows.weight, floor)
        if step.name == "risk":
            return rows.risk(x, offset, b, sets, self.ties)
        if step.name == "information":
            over = step.floats("over_risk", sets.bins)
            tied = step.floats("over_events", sets.bins)
            return rows.information(x, offset, b, sets, over, tied)
        if step.name == "squares":
            return rows.squares(x, offset, b, sets, step)
        if step.name == "held":
            weight = sets.of_event(step.floats("transformed", sets.bins)) * rows.weight
            return {"held": weight @ x}
        if step.name == "scores":
            scores = x @ b + offset
            return {"scores": np.bincount(fine_bins(scores), minlength=FINE)}
        if step.name == "pairs":
            edges = step.integers("edges", -1)
            if len(edges) < 2 or len(edges) * sets.bins > CELLS_MAX or np.any(np.diff(edges) < 1):
                raise StatisticsError("a step's bins of scores are not increasing, or too many")
            if edges[0] != 0 or edges[-1] != FINE:
                raise StatisticsError("a step's bins of scores do not hold all scores")
            return {"pairs": score_counts(sets, x @ b + offset, edges)}
        raise StatisticsError(f"a Cox model has no step `{step.name[:40]}`")

    @property
    def _cell_count(self) -> int:
        """Cells of a bin that have a floor each: strata, for Efron's sums with events apart."""
        return len(self.stratum_names) * (2 if self.ties == "efron" else 1)

    def _cells(self, rows: CoxRows, edges: Places) -> Places:
        cell = rows.stratum
        if self.ties == "efron":
            cell = 2 * cell + rows.follow.event
        shape = (self._cell_count, len(edges) - 1)
        everyone = np.ones(len(cell), np.bool_)
        return counted(cell, bins_of(rows.follow.end, edges), shape, everyone)

    # Where the question is asked.

    def _base(self) -> tuple[Sum, ...]:
        more = ("unlisted", "unlisted_strata", "negative_weight")
        return (*self.clock().sums(), *(counts(name) for name in more))

    def _check(self, totals: Totals) -> None:
        for name, what in (
            ("unlisted", "a category of a predictor that is not listed"),
            ("unlisted_strata", f"a category of `{self.strata}` that is not listed"),
            ("negative_weight", f"a negative weight in `{self.weights}`"),
        ):
            if rows := int(totals.number(name)):
                raise StatisticsError(f"{rows} rows have {what}", "list it, or leave them out")
        self.clock().check(totals)

    def ask(self) -> Asking:
        for _ in range(TRIES_MAX):
            totals = yield Step("range", (*self._base(), counts("lengths", LENGTHS + 1)))
            self._check(totals)
            moments = yield from ask_moments(len(self.names) + bool(self.offset))
            constant = [n for n, s in zip(self.names, moments.spreads, strict=False) if s == 0]
            if constant:
                raise StatisticsError(
                    f"`{constant[0]}` has one value in all rows", "leave it out of the predictors"
                )
            try:
                return (yield from self._fit(moments, totals))
            except Moved:
                continue
        raise StatisticsError(
            "sites came or went between the steps each time", "ask again once they are up"
        )

    def _events(self, totals: Totals) -> Generator[Step, Totals, tuple[Places, int, Totals]]:
        """Bins of time, the widest, and events and leaving rows in each. Raises Moved."""
        points = self.clock().reach(totals, len(self.stratum_names))
        edges, widest = np.arange(points + 1, dtype=np.int64), 1
        if self.least_per_bin > 1:
            edges, widest = yield from refined_bins(points, self._cell_count, self.least_per_bin)
        shape = (len(self.stratum_names), len(edges) - 1)
        sums = (counts("beyond"), counts("events", *shape), counts("leaving", *shape))
        found = yield Step("events", (*self._base(), *sums), {"edges": edges})
        self._check(found)
        if found.number("beyond"):
            raise Moved
        if self.least_per_bin > 1:
            events, leaving = found["events"], found["leaving"]
            cells = leaving
            if self.ties == "efron":
                cells = np.concatenate([events, leaving - events])
            again = joined_again(edges, cells, (events, leaving), self.least_per_bin)
            edges, (found["events"], found["leaving"]) = again
        if not found["events"].any():
            raise StatisticsError("no row has an event", f"`{self.event}` is 0 in all rows")
        return edges, widest, found

    def _fit(self, moments: Moments, totals: Totals) -> Generator[Step, Totals, CoxAnswer]:
        edges, widest, found = yield from self._events(totals)
        stratum, place = np.nonzero(found["events"])
        bins = EventBins(stratum, edges[place], edges[place + 1] - 1)
        if len(bins) * (len(self.names) + 1) > CELLS_MAX:
            raise StatisticsError(
                f"{len(bins)} times with events and {len(self.names)} columns",
                "give a longer time_step",
            )
        arrays: dict[str, Any] = {"means": moments.means, "scales": moments.scales}
        search = Search(self._base(), bins, arrays, self.names, self.ties, self.penalizer)
        maximum = yield from search.maximum()
        self._check(maximum.totals)
        if maximum.moved and self.penalizer:  # the ridge is by spreads of the first rows
            raise Moved
        sent = {**arrays, **bins.arrays(), "coefficients": maximum.coefficients}
        transformed, held = yield from self._held(sent, found, edges, place, maximum.totals)
        squares = None
        if self.robust or self.cluster:
            step = squares_step(self._base(), maximum.at)
            totals = yield Step(step.name, step.sums, {**sent, **step.arrays})
            if not same_rows(totals, maximum.totals):
                raise Moved
            squares = symmetric(totals["squares"], len(self.names))
        index = yield from self._index(sent, bins)
        grid = (widest, len(edges) - 1)
        fitted = Fitted(bins, moments, maximum, squares, transformed, held, index, *grid)
        return cox_answer(self, fitted)

    def _held(
        self,
        arrays: Mapping[str, Any],
        found: Totals,
        edges: Places,
        place: Places,
        last: Totals,
    ) -> Generator[Step, Totals, tuple[Any, Any]]:
        """Events' columns, summed with a transform of their times: f64[bins] and f64[p].

        None where rows are not those of the fit's last step.
        """
        if not self.proportional:
            return None, None
        leaving, events = found["leaving"].sum(0), found["events"].sum(0)
        times = ((edges[1:] - 1) * self.time_step).astype(np.float64)
        weights = TRANSFORMS[self.proportional](times, leaving, events)[place].astype(np.float64)
        sums = (*self._base(), Sum("held", (len(self.names),), *RISK_BITS))
        totals = yield Step("held", sums, {**arrays, "transformed": weights})
        return (weights, totals["held"]) if same_rows(totals, last) else (None, None)

    def _index(
        self, arrays: Mapping[str, Any], bins: EventBins
    ) -> Generator[Step, Totals, Concordance | None]:
        """The concordance index; None where cells with few rows must not be asked."""
        if not self.score_bins or self.least_per_bin > 1:
            return None
        fine = yield Step("scores", (*self._base(), counts("scores", FINE)), arrays)
        width = max(min(self.score_bins, CELLS_MAX // (2 * len(bins)) - 1), 1)
        edges = score_edges(fine["scores"], width)
        shape = (2, len(bins), len(edges) - 1)
        pairs = yield Step(
            "pairs", (*self._base(), counts("pairs", *shape)), {**arrays, "edges": edges}
        )
        return concordance(pairs["pairs"], bins)
