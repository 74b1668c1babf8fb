"""Kaplan-Meier and Nelson-Aalen curves by group, and log-rank tests between them.

Of each curve g (a group within a stratum) and grid point t, sites send how many rows have their
event there, d, how many end there, and, with an entry column, how many enter there. With n rows at
risk at t:

    S(t) = prod (1 - d / n)                       Kaplan and Meier 1958
    var log S(t) = sum d / (n (n - d))            Greenwood 1926
    H(t) = sum d / n                              Nelson 1972, Aalen 1978
    Z_g = sum w (d_g - d n_g / n),  V = sum w^2 (n - d) / (n - 1) d / n^2 (n n_g [g = h] - n_g n_h)

Z' V^- Z is chi-squared with one degree of freedom less than there are groups (Mantel 1966; weights
w of Gehan 1965, Tarone and Ware 1977, Peto and Peto 1972, Fleming and Harrington 1991).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..answer import Answer
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Table
from ..sums import StatisticsError, Totals, counts
from ..survival.curves import CURVE_INTERVALS, HAZARDS, Curve, curve_of, curve_plots, curve_tables
from ..survival.log_rank import WEIGHTINGS, LogRank, log_rank, test_tables
from ..survival.time_grid import (
    LENGTHS,
    Clock,
    FollowUp,
    Places,
    bins_of,
    codes_of,
    counted,
    joined_again,
    read_edges,
    refined_bins,
)

#: Rounds of steps, where sites with longer times come back in between.
TRIES_MAX = 5


@dataclass(frozen=True)
class SurvivalAnswer(Answer):
    """Curves and the test between groups."""

    curves: tuple[Curve, ...] = ()
    """One a group (with strata: over all strata together)."""
    test: LogRank | None = None
    """The test that all groups have one curve; None where no event has two groups at risk."""


@method("survival_curves")
@dataclass(frozen=True)
class SurvivalCurves(Question):
    """Survival by group."""

    time: str
    """Column of the time until the event, or until the row was last seen."""
    event: str
    """Column of 1 where the event was seen, 0 where the row was censored."""
    group: str = ""
    """Column whose categories have a curve each; empty: one curve."""
    strata: str = ""
    """Column within whose categories the test compares groups."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The categories of `group` and `strata`, by column."""
    entry: str = ""
    """Column of the time from which a row is at risk (left truncation)."""
    time_step: float = 1.0
    """Times are rounded to multiples of it."""
    horizon: float = 0.0
    """Rows that are followed longer are censored here; 0: nowhere."""
    least_per_bin: int = 0
    """Grid points are joined until each group has none or so many rows that leave; 0: never."""
    confidence: float = 0.95
    """Of intervals."""
    intervals: str = "log-log"
    """`log-log`, `log` or `plain`: the scale on which Greenwood's interval is symmetric."""
    hazard: str = "nelson-aalen"
    """Tied events: `nelson-aalen` d / n, or `fleming-harrington` 1/n + 1/(n - 1) + ..."""
    weighting: str = "log-rank"
    """Weights of the test: `log-rank`, `wilcoxon`, `tarone-ware`, `peto`, `fleming-harrington`."""
    weighting_p: float = 0.0
    """Fleming and Harrington's p: weights S^p (1 - S)^q."""
    weighting_q: float = 0.0
    """Fleming and Harrington's q."""
    mean_until: float = 0.0
    """Restricted means are up to this time; 0: the shortest of the groups' longest times."""
    at: tuple[float, ...] = ()
    """Times of the table of rows at risk; empty: six even ones."""

    def __post_init__(self) -> None:
        for name in filter(None, (self.group, self.strata)):
            listed = self.categories.get(name)
            if not listed:
                raise StatisticsError(
                    f"the categories of `{name}` are not listed",
                    f'categories={{"{name}": ("a", "b")}}',
                )
            if len(set(listed)) < len(listed):
                raise StatisticsError(f"a category of `{name}` is listed twice", "list each once")
        for name, value, known in (
            ("intervals", self.intervals, CURVE_INTERVALS),
            ("hazard", self.hazard, HAZARDS),
            ("weighting", self.weighting, WEIGHTINGS),
        ):
            if value not in known:
                raise StatisticsError(f"no {name} `{value}`", f"one of {', '.join(known)}")
        if not 0 < self.confidence < 1:
            raise StatisticsError(f"a confidence of {self.confidence:g}", "above 0, below 1")
        if self.least_per_bin < 0 or min(self.weighting_p, self.weighting_q) < 0:
            raise StatisticsError("a negative least_per_bin or weighting", "0 or more")
        if self.least_per_bin and self.entry:
            raise StatisticsError(
                "least_per_bin with an entry column",
                "rows that enter and leave in one bin would never be at risk: leave out one",
            )
        self.clock()

    def clock(self) -> Clock:
        return Clock(self.time, self.event, self.entry, self.time_step, self.horizon)

    def coded(self) -> list[tuple[str, tuple[str, ...]]]:
        """Columns of categories; a curve's code is stratum * groups + group."""
        return [(name, self.categories[name]) for name in (self.strata, self.group) if name]

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(self.categories[self.group]) if self.group else ("all",)

    @property
    def curve_count(self) -> int:
        strata = len(self.categories[self.strata]) if self.strata else 1
        return strata * len(self.groups)

    def cell_floor(self) -> int:
        return max(self.least_per_bin, 1)

    def columns(self) -> tuple[str, ...]:
        return (*self.clock().columns(), *(name for name, _ in self.coded()))

    # At a site.

    def rows(self, table: Table) -> int:
        return self._read(table)[0].problems["rows"]

    def _read(self, table: Table) -> tuple[FollowUp, Places, dict[str, int]]:
        codes, known, unlisted = codes_of(table, self.coded())
        found = self.clock().read(table, known)
        return found, codes[found.usable], unlisted

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        if "read" not in kept:
            kept["read"] = self._read(table)
        found, codes, unlisted = kept["read"]
        if step.name == "leaving":
            edges = read_edges(step, self.curve_count)
            shape = (self.curve_count, len(edges) - 1)
            everyone = np.ones(len(found.end), np.bool_)
            return {"leaving": counted(codes, bins_of(found.end, edges), shape, everyone)}
        made: dict[str, Any] = dict(found.problems)
        made |= {f"unlisted_{place}": n for place, n in enumerate(unlisted.values())}
        if step.name == "range":
            return made | {"lengths": self.clock().lengths(found)}
        if step.name != "times":
            raise StatisticsError(f"survival curves have no step `{step.name[:40]}`")
        edges = read_edges(step, self.curve_count)
        shape = (self.curve_count, len(edges) - 1)
        ends, everyone = bins_of(found.end, edges), np.ones(len(found.end), np.bool_)
        made["beyond"] = int((ends == shape[1]).sum())
        made["events"] = counted(codes, ends, shape, found.event)
        made["leaving"] = counted(codes, ends, shape, everyone)
        if self.entry:
            made["entering"] = counted(codes, bins_of(found.start, edges), shape, everyone)
        return made

    # Where the question is asked.

    def _base(self) -> tuple[Any, ...]:
        unlisted = tuple(counts(f"unlisted_{place}") for place in range(len(self.coded())))
        return (*self.clock().sums(), *unlisted)

    def _check(self, totals: Totals) -> None:
        for place, (name, _) in enumerate(self.coded()):
            if rows := int(totals.number(f"unlisted_{place}")):
                raise StatisticsError(
                    f"{rows} rows have a category of `{name}` that is not listed", "list it"
                )
        self.clock().check(totals)

    def ask(self) -> Asking:
        for _ in range(TRIES_MAX):
            totals = yield Step("range", (*self._base(), counts("lengths", LENGTHS + 1)))
            self._check(totals)
            points = self.clock().reach(totals, self.curve_count)
            edges, widest = np.arange(points + 1), 1
            if self.least_per_bin > 1:
                edges, widest = yield from refined_bins(
                    points, self.curve_count, self.least_per_bin
                )
            found = yield from self._times(edges)
            self._check(found)
            if not found.number("beyond"):
                return self._answer(found, edges, widest, found.sites != totals.sites)
        raise StatisticsError(
            "sites with longer times came between the steps each time", "give a horizon"
        )

    def _times(self, edges: Places) -> Generator[Step, Totals, Totals]:
        names = ("events", "leaving", "entering") if self.entry else ("events", "leaving")
        shape = (self.curve_count, len(edges) - 1)
        sums = (*self._base(), counts("beyond"), *(counts(name, *shape) for name in names))
        totals = yield Step("times", sums, {"edges": edges.astype(np.int64)})
        return totals

    def _answer(self, found: Totals, edges: Places, widest: int, moved: bool) -> SurvivalAnswer:
        events, leaving = found["events"], found["leaving"]
        entering = found["entering"] if self.entry else np.zeros_like(events)
        if self.least_per_bin > 1:  # a site that dropped out leaves fewer rows in a bin
            edges, (events, leaving) = joined_again(
                edges, leaving, (events, leaving), self.least_per_bin
            )
            entering = np.zeros_like(events)
        times = ((edges[1:] - 1) * self.time_step).astype(np.float64)
        strata = (-1, len(self.groups), len(times))
        d, gone, came = (a.reshape(strata) for a in (events, leaving, entering))
        at_risk = _at_risk(gone, came, found.number("rows"), bool(self.entry))
        if not d.sum():
            raise StatisticsError("no row has an event", f"`{self.event}` is 0 in all rows")
        until = self.mean_until or _shared_end(times, gone.sum(0))
        options = (self.confidence, self.intervals, self.hazard)
        curves = tuple(
            curve_of(name, times, n, dead, out, in_, options, until)
            for name, n, dead, out, in_ in zip(
                self.groups, at_risk.sum(0), d.sum(0), gone.sum(0), came.sum(0), strict=True
            )
        )
        test = log_rank(self.groups, d, at_risk, self.weighting, self.weighting_p, self.weighting_q)
        return self._written(found, curves, test, until, (widest, len(times), moved))

    def _written(
        self,
        found: Totals,
        curves: tuple[Curve, ...],
        test: LogRank | None,
        until: float,
        grid: tuple[int, int, bool],
    ) -> SurvivalAnswer:
        widest, bins, moved = grid
        events = sum(int(c.events.sum()) for c in curves)
        facts = self.clock().facts(found)
        facts |= {"events": events, "censored": int(found.number("rows")) - events}
        notes = self.clock().notes(found)
        if self.least_per_bin > 1:
            facts["bins of time"] = bins
            # A curve's last bin reaches to the end of follow-up: its bound is of another size.
            lost = [
                float(np.max((c.survival - c.lowest)[part], initial=0.0))
                for part in (slice(None, -1), slice(-1, None))
                for c in curves
            ]
            half = len(curves)
            notes.append(
                f"times were joined to {bins} bins of at most {widest * self.time_step:g}, so that"
                f" each group has none or at least {self.least_per_bin} rows that leave in each;"
                " events count at a bin's end, before the rows that are censored in it: at bins'"
                f" ends exact curves are lower by at most {max(lost[:half]):.4f}, and at the end"
                f" of the last bin by at most {max(lost[half:]):.4f}"
            )
        if test is None and len(self.groups) > 1:
            notes.append("no test: no event has rows of two groups at risk")
        if moved:
            notes.append("sites came or went between the steps: the answer is of the last step's")
        return SurvivalAnswer(
            title="Survival curves (Kaplan-Meier)",
            facts=facts,
            tables=(
                *curve_tables(curves, until, self.at, self.confidence),
                *(test_tables(test, self.strata) if test else ()),
            ),
            plots=curve_plots(curves),
            notes=tuple(notes),
            curves=curves,
            test=test,
        )


def _at_risk(gone: Any, came: Any, rows: float, late: bool) -> npt.NDArray[np.float64]:
    """Rows at risk at each bin: those that have entered before it and not left before it."""
    left = np.cumsum(gone, -1) - gone
    everyone = gone.sum(-1, keepdims=True)
    if not late:
        found: npt.NDArray[np.float64] = everyone - left
        return found
    entered = np.cumsum(came, -1) - came
    # Those that are there from the beginning are in no bin.
    late_found: npt.NDArray[np.float64] = everyone - came.sum(-1, keepdims=True) + entered - left
    return late_found


def _shared_end(times: npt.NDArray[np.float64], gone: npt.NDArray[np.float64]) -> float:
    """The shortest of the groups' longest times."""
    ends = [float(times[np.flatnonzero(g)[-1]]) for g in gone if g.any()]
    return min(ends)
