"""Means of a column by groups, and the tests that they are equal.

Of one group Student's t against a given mean; of two, t with one variance and with two (Welch
1947); of any number the analysis of variance, that of Welch (1951) with unequal variances, and
Levene's test (1960) that the variances are equal.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .. import categories
from ..answer import Answer, Plot, ResultTable
from ..counting.cells import Levels, arrays_of, ask_levels, cells_of, levels_of
from ..distributions import f_tail, t_quantile, t_two_sided
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Floats, Table
from ..sums import StatisticsError, Sum, Totals, counts

_SUM_BITS, _SQUARE_BITS = (120, 140), (199, 200)
_TRIES_MAX = 5
STEPS = ("means", "squares", "deviations")


@dataclass(frozen=True)
class MeanTest:
    """A test."""

    name: str
    """Which."""
    statistic: float
    """t, or F."""
    freedom: tuple[float, ...]
    """Its degrees of freedom: one of t, two of F."""
    p_value: float
    """Two-sided where it is a t."""


@dataclass(frozen=True, eq=False)
class MeanComparisonAnswer(Answer):
    """Arrays are f64[groups], in the order of `groups`."""

    groups: tuple[str, ...] = ()
    """Categories with rows; one empty text where there are no groups."""
    counts: Floats = field(default_factory=lambda: np.zeros(0))
    """Rows."""
    means: Floats = field(default_factory=lambda: np.zeros(0))
    """Means."""
    deviations: Floats = field(default_factory=lambda: np.zeros(0))
    """Standard deviations, with divisor n - 1."""
    tests: Mapping[str, MeanTest] = field(default_factory=dict)
    """By name: `t`, `welch_t`, `anova`, `welch_anova`, `levene`."""
    difference: float | None = None
    """Of two groups, the first's mean less the second's; of one, its mean less the given one."""
    interval: tuple[float, float] | None = None
    """Of the difference, with two variances."""


@method("mean_comparison")
@dataclass(frozen=True)
class MeanComparison(Question):
    """Compares the means of a column between groups."""

    outcome: str
    """A column of numbers."""
    group: str = ""
    """A column of categories; empty: one group, whose mean is compared with `against`."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The categories of `group`, where they are known; else they are found first."""
    against: float = 0.0
    """The mean that a single group is compared with."""
    floor: int = 5
    """Rows of a group at a site, at least."""
    level: float = 0.95
    """Of the intervals."""

    def __post_init__(self) -> None:
        if self.outcome == self.group:
            raise StatisticsError("a column is compared by its own groups", "name two columns")
        if self.floor < 1 or not 0 < self.level < 1 or not math.isfinite(self.against):
            raise StatisticsError("floor is at least 1, level between 0 and 1")

    def columns(self) -> tuple[str, ...]:
        return (self.outcome, *self._groups)

    @property
    def _groups(self) -> tuple[str, ...]:
        return (self.group,) if self.group else ()

    # ------------------------------------------------ where it is asked

    def ask(self) -> Asking:
        levels = yield from ask_levels(self._groups, self.categories, self.floor)
        totals, n, means, squares, levene = yield from self._sums(levels)
        names = levels[0] if levels else ("",)
        there = n > 0
        if not there.any() or n[there].min() < 2:
            raise StatisticsError(
                "a group has fewer than two rows", "use coarser groups, or list those to compare"
            )
        groups = tuple(name for name, some in zip(names, there, strict=True) if some)
        n, means, squares = n[there], means[there], squares[there]
        deviations = np.sqrt(squares / (n - 1))
        if not squares.any():
            raise StatisticsError(f"`{self.outcome}` is the same in all rows of each group")
        tests, difference, interval = self._tests(n, means, squares, levene)
        suppressed, other = (int(totals.number(k)) for k in ("suppressed", "other"))
        notes = []
        if suppressed:
            notes.append(
                f"{suppressed:,} rows are in groups of fewer than {self.floor} rows at their site,"
                " which are left out."
            )
        if other:
            notes.append(f"{other:,} rows have a missing value, or a category that is not listed.")
        half = np.array([t_quantile((1 + self.level) / 2, k - 1) for k in n])
        half = half * deviations / np.sqrt(n)
        facts: dict[str, Any] = {
            "sites": totals.sites,
            "rows": int(n.sum()),
            "rows left out": suppressed + other,
            "groups": len(groups),
        }
        if difference is not None and interval is not None:
            facts |= {"difference": difference, "low": interval[0], "high": interval[1]}
        return MeanComparisonAnswer(
            f"Means of {self.outcome}" + (f" by {self.group}" if self.group else ""),
            facts,
            self._tables(groups, (n, means, deviations, means - half, means + half), tests),
            (self._plot(groups, means, half),),
            tuple(notes),
            groups,
            n,
            means,
            deviations,
            tests,
            difference,
            interval,
        )

    def _tables(
        self, groups: tuple[str, ...], columns: tuple[Floats, ...], tests: Mapping[str, MeanTest]
    ) -> tuple[ResultTable, ...]:
        rows = ((g, *map(float, row)) for g, *row in zip(groups, *columns, strict=True))
        tested = (
            (t.name, t.statistic, ", ".join(f"{d:.6g}" for d in t.freedom), t.p_value)
            for t in tests.values()
        )
        return (
            ResultTable("", (self.group, "rows", "mean", "std", "low", "high"), tuple(rows)),
            ResultTable("tests", ("", "statistic", "df", "p"), tuple(tested)),
        )

    def _plot(self, groups: tuple[str, ...], means: Floats, half: Floats) -> Plot:
        series = {
            "x": means.tolist(),
            "y": list(groups),
            "low": (means - half).tolist(),
            "high": (means + half).tolist(),
        }
        title = f"Means of {self.outcome}"
        return Plot("intervals", title, self.outcome, self.group, {"mean": series})

    def _sums(
        self, levels: Levels
    ) -> Generator[Step, Totals, tuple[Totals, Floats, Floats, Floats, tuple[float, float]]]:
        """(last totals, rows, means, sums of squares, Levene's sums between and within)."""
        size, texts = len(levels[0]) if levels else 1, arrays_of(levels)
        base = (counts("rows", size), counts("suppressed"), counts("other"))
        for _ in range(_TRIES_MAX):
            first = yield Step("means", (*base, Sum("sums", (size,), *_SUM_BITS)), texts)
            n = first["rows"]
            if not n.any():
                raise StatisticsError("no group has enough rows", "use coarser groups")
            means = first["sums"] / np.maximum(n, 1)
            sums = [Sum("shifts", (size,), *_SUM_BITS), Sum("sizes", (size,), *_SUM_BITS)]
            squares_ = Sum("squares", (size,), *_SQUARE_BITS)
            second = yield Step("squares", (*base, squares_, *sums), {**texts, "means": means})
            middles = second["sizes"] / np.maximum(n, 1)
            third = yield Step(
                "deviations", (*base, squares_), {**texts, "means": means, "middles": middles}
            )
            if all((later["rows"] == n).all() for later in (second, third)):
                off = second["shifts"] / np.maximum(n, 1)  # what rounding took from the mean
                squares = np.maximum(second["squares"] - n * off**2, 0.0)
                squares = np.where(squares > n * (1e-14 * means) ** 2, squares, 0.0)
                between = float(n @ (middles - n @ middles / n.sum()) ** 2)
                return third, n, means + off, squares, (between, float(third["squares"].sum()))
        raise StatisticsError("sites come and go in each step", "ask again later")

    def _tests(
        self, n: Floats, means: Floats, squares: Floats, levene: tuple[float, float]
    ) -> tuple[dict[str, MeanTest], float | None, tuple[float, float] | None]:
        total, groups = float(n.sum()), len(n)
        within, variances = float(squares.sum()), squares / (n - 1)
        errors = variances / n
        tail = (1 + self.level) / 2
        if groups == 1:
            difference, error = float(means[0]) - self.against, math.sqrt(errors[0])
            test = _t("t", difference / error, total - 1)
            half = t_quantile(tail, total - 1) * error
            return {"t": test}, difference, (difference - half, difference + half)
        tests: dict[str, MeanTest] = {}
        gap: float | None = None
        interval: tuple[float, float] | None = None
        if groups == 2:
            gap = difference = float(means[0] - means[1])
            pooled = math.sqrt(within / (total - 2) * float((1 / n).sum()))
            tests["t"] = _t("t, one variance", difference / pooled, total - 2)
            error = math.sqrt(errors.sum())
            freedom = float(errors.sum() ** 2 / (errors**2 / (n - 1)).sum())
            tests["welch_t"] = _t("t, two variances (Welch)", difference / error, freedom)
            half = t_quantile(tail, freedom) * error
            interval = (difference - half, difference + half)
        about = means[0] + n @ (means - means[0]) / total
        between = float(n @ (means - about) ** 2)
        free = (groups - 1.0, total - groups)
        tests["anova"] = _f("analysis of variance", between / free[0] / (within / free[1]), free)
        if (errors > 0).all():
            tests["welch_anova"] = _welch(n, means, errors)
        if levene[1] > 0:
            value = levene[0] / free[0] / (levene[1] / free[1])
            tests["levene"] = _f("equal variances (Levene)", value, free)
        return tests, gap, interval

    # ------------------------------------------------ at a site

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        if categories.is_step(step):
            return categories.measure(table, step, self._groups, kept)
        if step.name not in STEPS:
            raise StatisticsError("a step that this method does not have")
        levels = levels_of(step, self._groups)
        size = len(levels[0]) if levels else 1
        values = table.numbers(self.outcome)
        cells = cells_of(table, self._groups, levels, self.floor, ~np.isnan(values))
        cell, values = cells.cell[cells.inside], values[cells.inside]
        out: dict[str, Any] = {
            "rows": cells.rows,
            "suppressed": np.array(cells.suppressed),
            "other": np.array(cells.other),
        }
        if step.name == "means":
            return {**out, "sums": np.bincount(cell, values, size)}
        gone = values - step.floats("means", size)[cell]
        if step.name == "squares":
            return {
                **out,
                "squares": np.bincount(cell, gone**2, size),
                "shifts": np.bincount(cell, gone, size),
                "sizes": np.bincount(cell, np.abs(gone), size),
            }
        gone = np.abs(gone) - step.floats("middles", size)[cell]
        return {**out, "squares": np.bincount(cell, gone**2, size)}


def _t(name: str, value: float, freedom: float) -> MeanTest:
    return MeanTest(name, value, (freedom,), float(t_two_sided(value, freedom)))


def _f(name: str, value: float, freedom: tuple[float, float]) -> MeanTest:
    return MeanTest(name, value, freedom, float(f_tail(value, *freedom)))


def _welch(n: Floats, means: Floats, errors: Floats) -> MeanTest:
    """Welch's analysis of variance. errors: variances of the means."""
    groups, weights = len(n), 1 / errors
    total = float(weights.sum())
    about = means[0] + weights @ (means - means[0]) / total
    between = float(weights @ (means - about) ** 2) / (groups - 1)
    rest = float(((1 - weights / total) ** 2 / (n - 1)).sum())
    value = between / (1 + 2 * (groups - 2) / (groups**2 - 1) * rest)
    return _f(
        "analysis of variance, unequal variances (Welch)",
        value,
        (groups - 1.0, (groups**2 - 1) / (3 * rest)),
    )
