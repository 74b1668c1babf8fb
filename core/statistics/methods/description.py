"""Columns in numbers: rows, missing rows, mean, spread, shape, and quantiles in brackets.

The mean comes first, then sums of powers of distances from it, so that nothing cancels. The least
and the largest value are one row each: of them a bracket is given that holds several rows.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..answer import Answer, ResultTable
from ..counting.counted_steps import CountedSteps
from ..counting.quantile_search import STEP as BRACKETS
from ..counting.quantile_search import Ranked, ask_quantiles, measure_quantiles
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Floats, Table
from ..sums import StatisticsError, Sum, Totals, counts

#: Bits of sums, and of sums of squares: as in `moments`.
_SUM_BITS, _SQUARE_BITS = (120, 140), (199, 200)
#: Of powers of numbers near 1.
_POWER_BITS = (150, 80)
COLUMNS_MAX = 50
_TRIES_MAX = 5
_QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True, eq=False)
class DescriptionAnswer(Answer):
    """Arrays are f64[columns], in the order of `names`; NaN where a column has too few rows."""

    names: tuple[str, ...] = ()
    """The columns."""
    rows: Floats = field(default_factory=lambda: np.zeros(0))
    """Rows with a value."""
    missing: Floats = field(default_factory=lambda: np.zeros(0))
    """Rows without one."""
    means: Floats = field(default_factory=lambda: np.zeros(0))
    """Their mean."""
    variances: Floats = field(default_factory=lambda: np.zeros(0))
    """With divisor n - 1."""
    skewness: Floats = field(default_factory=lambda: np.zeros(0))
    """G1 of Joanes and Gill (1998), as pandas has it."""
    kurtosis: Floats = field(default_factory=lambda: np.zeros(0))
    """Excess, G2 of Joanes and Gill (1998), as pandas has it."""
    quantiles: Mapping[str, Ranked] = field(default_factory=dict)
    """By column: the least value, the quartiles, and the largest, each in a bracket."""


@method("description")
@dataclass(frozen=True)
class Description(Question):
    """Describes columns of numbers, each by all rows that have a value in it."""

    of: tuple[str, ...]
    """The columns."""
    floor: int = 5
    """Rows of a site that are counted apart from others in quantiles, at least."""

    def __post_init__(self) -> None:
        if not 0 < len(self.of) <= COLUMNS_MAX or len(set(self.of)) < len(self.of):
            raise StatisticsError(
                f"{len(self.of)} columns to describe", f"1 to {COLUMNS_MAX}, each once"
            )
        if self.floor < 1:
            raise StatisticsError(f"a floor of {self.floor} rows", "1 or more")

    def columns(self) -> tuple[str, ...]:
        return self.of

    def ask(self) -> Asking:
        steps = CountedSteps()
        found = yield from steps.through(self._moments())
        ranked = yield from steps.through(ask_quantiles(len(self.of), _QUANTILES, self.floor))
        quantiles = dict(zip(self.of, ranked, strict=True))
        rows, missing, means, variances, skewness, kurtosis = found
        notes = ["the least and the largest value are in brackets of several rows."]
        if any(not np.isfinite(q.estimate) for r in ranked for q in r.quantiles if r.rows):
            notes.append("sites have too few rows for some of the brackets.")
        if steps.changed:
            notes.append("sites have dropped out or come back between steps.")
        columns = ("", "rows", "missing", "mean", "std", "skew", "kurtosis")
        table = ResultTable(
            "",
            columns,
            tuple(
                (name, int(rows[i]), int(missing[i]), *map(_number, row))
                for i, (name, *row) in enumerate(
                    zip(self.of, means, np.sqrt(variances), skewness, kurtosis, strict=True)
                )
            ),
        )
        brackets = ResultTable(
            "quantiles",
            ("", "min", "25%", "50%", "75%", "max"),
            tuple(
                (
                    name,
                    _bracket(q[0].low, q[0].high),
                    *(_number(each.estimate) for each in q[1:4]),
                    _bracket(q[4].low, q[4].high),
                )
                for name, q in ((name, quantiles[name].quantiles) for name in self.of)
            ),
        )
        return DescriptionAnswer(
            "Description",
            {
                "sites": steps.sites,
                "steps": steps.count,
                "rows": int((rows + missing).max()),
                "rows left out": 0,
            },
            (table, brackets),
            (),
            tuple(notes),
            names=self.of,
            rows=rows,
            missing=missing,
            means=means,
            variances=variances,
            skewness=skewness,
            kurtosis=kurtosis,
            quantiles=quantiles,
        )

    def _moments(self) -> Generator[Step, Totals, tuple[Floats, ...]]:
        """(rows, missing, means, variances, skewness, kurtosis), f64[columns] each."""
        width = len(self.of)
        base = (counts("known", width), counts("missing", width))
        for _ in range(_TRIES_MAX):
            first = yield Step("sums", (*base, Sum("sums", (width,), *_SUM_BITS)))
            n = first["known"]
            if not n.any():
                raise StatisticsError("no column has a value", "name columns that have values")
            means = first["sums"] / np.maximum(n, 1)
            second = yield Step(
                "squares", (*base, Sum("squares", (width,), *_SQUARE_BITS)), {"means": means}
            )
            spreads = np.sqrt(second["squares"] / np.maximum(n, 1))
            spreads = np.where(spreads > 1e-14 * np.abs(means), spreads, 0.0)
            scales = np.where(spreads > 0, spreads, 1.0)
            third = yield Step(
                "shapes",
                (*base, Sum("powers", (4, width), *_POWER_BITS)),
                {"means": means, "scales": scales},
            )
            if all((later["known"] == n).all() for later in (second, third)):
                constant = (spreads == 0) & (n > 0)
                return (n, first["missing"], *_moments(n, means, scales, third, constant))
        raise StatisticsError("sites come and go in each step", "ask again later")

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        if step.name == BRACKETS:
            return measure_quantiles(table, self.of, step, kept, self.floor)
        width = len(self.of)
        columns = [values[~np.isnan(values)] for values in map(table.numbers, self.of)]
        known = np.array([len(values) for values in columns])
        out: dict[str, Any] = {"known": known, "missing": table.rows - known}
        if step.name == "sums":
            return {**out, "sums": np.array([values.sum() for values in columns])}
        means = step.floats("means", width)
        gone = [values - mean for values, mean in zip(columns, means, strict=True)]
        if step.name == "squares":
            return {**out, "squares": np.array([each @ each for each in gone])}
        scales = step.floats("scales", width)
        if step.name != "shapes" or (scales <= 0).any():
            raise StatisticsError("a step that this method does not have")
        gone = [each / scale for each, scale in zip(gone, scales, strict=True)]
        powers = [[float((each**k).sum()) for each in gone] for k in (1, 2, 3, 4)]
        return {**out, "powers": np.array(powers)}


def _moments(
    n: Floats, means: Floats, scales: Floats, third: Totals, constant: npt.NDArray[np.bool_]
) -> tuple[Floats, Floats, Floats, Floats]:
    """(means, variances, skewness, kurtosis) from sums of powers of (x - mean) / scale."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # The mean was rounded: m1 is what it is off by, in scales.
        m1, s2, s3, s4 = third["powers"] / n
        m2 = np.where(constant, 0.0, s2 - m1**2)
        m3 = s3 - 3 * m1 * s2 + 2 * m1**3
        m4 = s4 - 4 * m1 * s3 + 6 * m1**2 * s2 - 3 * m1**4
        g1, g2 = m3 / m2**1.5, m4 / m2**2 - 3
        return (
            np.where(n > 0, means, np.nan),
            np.where(n > 1, m2 * scales**2 * n / (n - 1), np.nan),
            np.where((n > 2) & ~constant, np.sqrt(n * (n - 1)) / (n - 2) * g1, np.nan),
            np.where(
                (n > 3) & ~constant,
                (n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * g2 + 6),
                np.nan,
            ),
        )


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _bracket(low: float, high: float) -> str:
    if not np.isfinite(low - high):
        return _one_end(low, high)
    return f"{low:.5g}" if low == high else f"{low:.5g} .. {high:.5g}"


def _one_end(low: float, high: float) -> str:
    if np.isfinite(high):
        return f"<= {high:.5g}"
    return f">= {low:.5g}" if np.isfinite(low) else ""
