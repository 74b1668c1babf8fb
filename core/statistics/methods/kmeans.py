"""k-means by Lloyd's algorithm (1982): a step assigns each row to its nearest centre."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..answer import Answer, Plot, ResultTable
from ..counting.counted_steps import CountedSteps
from ..design import CompleteRows, Design
from ..moments import SPREADS, SUMS, Moments, ask_moments, measure_moments
from ..question import Asking, Kept, Question, Step, method
from ..site_table import Floats, Places, Table
from ..sums import StatisticsError, Sum, Totals, counts

STEP = "assign"
CLUSTERS_MAX, COLUMNS_MAX = 256, 256
#: Of numbers near 1.
_BITS = (110, 80)
#: Rows whose distances are computed at once: 16 MiB with 32 centres.
_BLOCK = 1 << 16
#: A centre that moves less than this, in spreads, has not moved.
_STILL = 1e-13


@dataclass(frozen=True, eq=False)
class KMeansAnswer(Answer):
    """Clusters, in the order of their starting centres."""

    names: tuple[str, ...] = ()
    """The columns."""
    centres: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """f64[clusters, columns]."""
    counts: Floats = field(default_factory=lambda: np.zeros(0))
    """f64[clusters]: rows nearest to each."""
    inertia: float = 0.0
    """Sum of squared distances to the nearest centre; with `standardize`, in spreads."""
    iterations: int = 0
    """Lloyd's iterations of the start that was kept."""


@dataclass(frozen=True, eq=False)
class Lloyd:
    """Where Lloyd's algorithm ended, in scaled columns."""

    centres: Floats
    """f64[clusters, columns]."""
    totals: Totals
    """Of the last step."""
    iterations: int
    """Steps."""


@method("kmeans")
@dataclass(frozen=True)
class KMeans(Question):
    """Clusters rows by columns of numbers."""

    of: tuple[str, ...]
    """The columns."""
    clusters: int
    """How many."""
    start: tuple[tuple[float, ...], ...] = ()
    """A centre each; empty: drawn from normal distributions of the columns' means and spreads."""
    seed: int = 0
    """Of the draws."""
    starts: int = 5
    """Draws, of which the one with the least inertia is kept."""
    standardize: bool = False
    """Whether columns are divided by their spread (standard deviation) first."""
    iterations: int = 300
    """At most, of each start."""

    def __post_init__(self) -> None:
        check_columns(self.of, self.clusters, self.start)
        if not 1 <= self.starts <= 100 or not 1 <= self.iterations <= 10_000:
            raise StatisticsError("starts from 1 to 100, and iterations from 1 to 10,000")

    @property
    def design(self) -> Design:
        """The columns as a matrix."""
        return Design(self.of, intercept=False)

    def columns(self) -> tuple[str, ...]:
        return self.of

    def rows(self, table: Table) -> int:
        return self.design.of(table).rows

    def ask(self) -> Asking:
        steps = CountedSteps()
        moments = yield from steps.through(ask_moments(len(self.of)))
        scales = scales_of(moments, self.standardize)
        best: Lloyd | None = None
        for begin in starts_of(moments, scales, self):
            found = yield from steps.through(
                ask_lloyd(moments.means, scales, begin, self.iterations)
            )
            if best is None or found.totals.number("inertia") < best.totals.number("inertia"):
                best = found
        assert best is not None
        unit = 1.0 if self.standardize else float(scales[0])
        counts_ = best.totals["counts"]
        centres = moments.means + best.centres * scales
        notes = []
        if steps.changed:
            notes.append("sites have dropped out or come back between steps.")
        if not counts_.all():
            notes.append("a cluster has no row: its centre is where it was last.")
        names = [str(k) for k in range(len(centres))]
        return KMeansAnswer(
            "k-means",
            {
                "sites": best.totals.sites,
                "rows": int(best.totals.number("rows")),
                "rows left out": int(best.totals.number("left")),
                "inertia": best.totals.number("inertia") * unit**2,
                "iterations": best.iterations,
                "steps": steps.count,
            },
            (
                ResultTable(
                    "",
                    ("cluster", "rows", *self.of),
                    tuple(
                        (name, int(rows), *row)
                        for name, rows, row in zip(names, counts_, centres.tolist(), strict=True)
                    ),
                ),
            ),
            (
                Plot(
                    "bars",
                    "Clusters",
                    "cluster",
                    "rows",
                    {"rows": {"x": names, "y": counts_.tolist()}},
                ),
            ),
            tuple(notes),
            self.of,
            centres,
            counts_,
            best.totals.number("inertia") * unit**2,
            best.iterations,
        )

    def measure(self, table: Table, step: Step, kept: Kept) -> Mapping[str, Any]:
        complete = complete_rows(self.design, table, kept)
        if step.name in (SUMS, SPREADS):
            return measure_moments(complete.matrix, step, complete)
        if step.name != STEP:
            raise StatisticsError("a step that this method does not have")
        return measure_lloyd(complete, step, self.clusters, table.floor)


def check_columns(of: Sequence[str], clusters: int, start: Sequence[Sequence[float]]) -> None:
    """Raises StatisticsError for columns, clusters and centres that do not fit each other."""
    if not 1 <= len(of) <= COLUMNS_MAX or len(set(of)) < len(of) or any(":" in n for n in of):
        raise StatisticsError(f"{len(of)} columns", f"1 to {COLUMNS_MAX}, each once")
    if not 1 <= clusters <= CLUSTERS_MAX:
        raise StatisticsError(f"{clusters} clusters", f"1 to {CLUSTERS_MAX}")
    if start and (len(start) != clusters or any(len(row) != len(of) for row in start)):
        raise StatisticsError(
            f"{len(start)} starting centres for {clusters} clusters of {len(of)} columns",
            "give each cluster one number a column",
        )
    if start and not np.isfinite(np.array(start, np.float64)).all():
        raise StatisticsError("a starting centre is not finite")


def scales_of(moments: Moments, standardize: bool) -> Floats:
    """What columns are divided by: their spreads, or one number for all, which moves no centre."""
    if standardize:
        return moments.scales
    most = float(moments.spreads.max()) or float(np.abs(moments.means).max()) or 1.0
    return np.full(len(moments.means), most)


def starts_of(moments: Moments, scales: Floats, question: Any) -> list[Floats]:
    """Scaled centres to start from, f64[clusters, columns] each."""
    if question.start:
        return [(np.array(question.start, np.float64) - moments.means) / scales]
    draw = np.random.default_rng(question.seed)
    shape = (question.clusters, len(moments.means))
    return [draw.normal(size=shape) * moments.spreads / scales for _ in range(question.starts)]


def complete_rows(design: Design, table: Table, kept: Kept) -> CompleteRows:
    """A site's complete rows, read once."""
    if "complete" not in kept:
        kept["complete"] = design.of(table)
    found: CompleteRows = kept["complete"]
    return found


def ask_lloyd(
    means: Floats, scales: Floats, centres: Floats, most: int
) -> Generator[Step, Totals, Lloyd]:
    """Lloyd's algorithm from scaled centres. Raises StatisticsError where there are no rows."""
    clusters, width = centres.shape
    sums = (
        counts("rows"),
        counts("left"),
        counts("counts", clusters),
        Sum("sums", (clusters, width), *_BITS),
        Sum("inertia", (), *_BITS),
    )
    before: tuple[float, int] | None = None
    for iteration in range(1, most + 2):
        totals = yield Step(STEP, sums, {"means": means, "scales": scales, "centres": centres})
        if totals.number("rows") == 0:
            raise StatisticsError("no complete row at any site")
        key = (totals.number("rows"), totals.sites)
        rows = totals["counts"][:, None]
        moved = np.where(rows > 0, totals["sums"] / np.maximum(rows, 1), centres)
        still = float(np.abs(moved - centres).max()) <= _STILL
        if (still and before in (key, None)) or iteration > most:
            return Lloyd(centres, totals, iteration - 1)
        before, centres = key, moved
    raise AssertionError("the last iteration returns")


def nearest(scaled: Floats, centres: Floats) -> tuple[Places, Floats]:
    """(i64[n], f64[n]): the nearest centre of each row, and the squared distance to it."""
    where, least = np.zeros(len(scaled), np.int64), np.zeros(len(scaled))
    for begin in range(0, len(scaled), _BLOCK):
        block = scaled[begin : begin + _BLOCK]
        away = np.stack([((block - centre) ** 2).sum(axis=1) for centre in centres], axis=1)
        where[begin : begin + _BLOCK] = away.argmin(axis=1)
        least[begin : begin + _BLOCK] = away.min(axis=1)
    return where, least


def measure_lloyd(
    complete: CompleteRows, step: Step, clusters: int, floor: int = 1
) -> Mapping[str, Any]:
    """A site's sums for a step; clusters of fewer rows than the floor are left out.

    Raises StatisticsError.
    """
    width = complete.matrix.shape[1]
    means, scales = step.floats("means", width), step.floats("scales", width)
    if (scales <= 0).any():
        raise StatisticsError("a step's scales are not above 0")
    scaled = (complete.matrix - means) / scales
    where, least = nearest(scaled, step.floats("centres", clusters, width))
    sums = np.zeros((clusters, width))
    np.add.at(sums, where, scaled)
    counts = np.bincount(where, minlength=clusters)
    few = counts < floor
    sums[few], counts[few] = 0.0, 0
    least = least[~few[where]]
    return {
        "rows": np.array(complete.rows),
        "left": np.array(complete.missing + complete.unlisted),
        "counts": counts,
        "sums": sums,
        "inertia": least.sum(),
    }
