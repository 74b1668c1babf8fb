"""Follow-up on a grid of times: until when a row was followed, and whether its event was seen.

A time t becomes the grid point rint(t / step). How far the grid reaches is found by a histogram of
the points' numbers of bits: a power of two leaves, and no row's largest time. All that methods of
survival ask are counts by grid point, or by bins of neighbouring points.

Bins with a floor (`refined_bins`): from one bin for all points, a bin is cut in two where each
curve has no row or at least the floor in it; what leaves is how many rows end in each half, not
which of them had an event. Bins are then joined until each curve has no row or at least the
floor in each, and only these are asked for anything else.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..question import Step
from ..site_table import Table
from ..sums import StatisticsError, Sum, Totals, counts

Places = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]
#: Numbers of bits of a grid point that a histogram has: points below 2^40.
LENGTHS = 41
#: Grid points, times curves, of a question.
CELLS_MAX = 1 << 21
#: How far from a grid point, in steps, a time still counts as being on it.
ON_GRID = 1e-6
#: Rows by what is wrong with them; a row counts for the first that applies.
PROBLEMS = ("incomplete", "negative", "not_binary", "never_at_risk")


@dataclass(frozen=True)
class FollowUp:
    """A site's rows on the grid."""

    usable: Chosen
    """bool[rows]: what nothing is wrong with. What follows has these rows alone."""
    start: Places
    """i64[usable]: a row is at risk behind this grid point; -1 from the beginning."""
    end: Places
    """i64[usable]: a row is at risk up to this grid point, with it."""
    event: Chosen
    """bool[usable]: whether the event was seen at `end`."""
    problems: dict[str, int]
    """Rows by what is wrong with them, and "rounded": usable ones that were off the grid."""

    def chosen(self, rows: Chosen) -> FollowUp:
        """Of some usable rows, bool[usable]."""
        usable = self.usable.copy()
        usable[usable] = rows
        return FollowUp(
            usable, self.start[rows], self.end[rows], self.event[rows], dict(self.problems)
        )


@dataclass(frozen=True)
class Clock:
    """Which columns have a row's follow-up, and the grid."""

    time: str
    event: str
    entry: str
    step: float
    horizon: float
    """Follow-up ends here for all rows; 0: nowhere."""

    def __post_init__(self) -> None:
        if not (np.isfinite(self.step) and self.step > 0):
            raise StatisticsError(f"times in steps of {self.step:g}", "time_step is above 0")
        if not (np.isfinite(self.horizon) and self.horizon >= 0):
            raise StatisticsError(f"a horizon of {self.horizon:g}", "it is above 0, or 0 for none")

    def columns(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.time, self.event, self.entry)))

    def sums(self) -> tuple[Sum, ...]:
        """What each step counts of a site's rows: `rows` and the problems."""
        return tuple(counts(name) for name in ("rows", *PROBLEMS, "rounded"))

    def read(self, table: Table, known: Chosen) -> FollowUp:
        """A site's rows. known: bool[rows], rows with no missing value in other columns."""
        time, event = table.numbers(self.time), table.numbers(self.event)
        entry = table.numbers(self.entry) if self.entry else None
        complete = known & ~np.isnan(time) & ~np.isnan(event)
        if entry is not None:
            complete &= ~np.isnan(entry)
        end, off_end = self._points(np.where(complete, time, 0.0))
        start = np.full(len(end), -1, np.int64)
        off, below = off_end, time < 0
        if entry is not None:
            start, off_start = self._points(np.where(complete, entry, 0.0))
            start[start == 0] = -1
            off, below = off | off_start, below | (entry < 0)
        binary = (event == 0) | (event == 1)
        late = start >= end
        usable = complete & ~below & binary & ~late
        negative = complete & below
        problems = {
            "rows": int(usable.sum()),
            "incomplete": int((~complete).sum()),
            "negative": int(negative.sum()),
            "not_binary": int((complete & ~below & ~binary).sum()),
            "never_at_risk": int((complete & ~below & binary & late).sum()),
            "rounded": int((usable & off).sum()),
        }
        seen = event == 1
        if self.horizon:
            last = self.last
            seen = seen & (end <= last)
            usable = usable & (start < last)
            problems["never_at_risk"] += problems["rows"] - int(usable.sum())
            problems["rows"] = int(usable.sum())
            end = np.minimum(end, last)
        return FollowUp(usable, start[usable], end[usable], seen[usable], problems)

    def _points(self, times: npt.NDArray[np.float64]) -> tuple[Places, Chosen]:
        """Grid points, and whether a time was off them."""
        steps = np.clip(times / self.step, -1.0, float(1 << LENGTHS))
        points = np.rint(steps)
        return points.astype(np.int64), np.abs(steps - points) > ON_GRID

    @property
    def last(self) -> int:
        """The horizon's grid point."""
        return int(min(np.rint(self.horizon / self.step), float(1 << LENGTHS)))

    def lengths(self, found: FollowUp) -> Places:
        """Rows by the number of bits of their last point, i64[LENGTHS + 1]."""
        bits = np.ceil(np.log2(found.end + 1.0)).astype(np.int64)
        return np.bincount(np.minimum(bits, LENGTHS), minlength=LENGTHS + 1)

    def reach(self, totals: Totals, curves: int) -> int:
        """How many grid points there are, from a total of `lengths`. Raises StatisticsError."""
        used = np.flatnonzero(totals["lengths"])
        points = self.last + 1 if self.horizon else 1 << int(used[-1] if len(used) else 0)
        if points * curves > CELLS_MAX or (len(used) and used[-1] >= LENGTHS):
            raise StatisticsError(
                f"times of up to {points:,} steps of {self.step:g}"
                + (f", for {curves} curves" if curves > 1 else ""),
                f"at most {CELLS_MAX // max(curves, 1):,}: give a longer time_step, or a horizon",
            )
        return points

    def check(self, totals: Totals) -> None:
        """Raises StatisticsError for rows that make no sense, or if none is left."""
        for name, what, hint in (
            ("negative", "a negative time", "times are counted from the beginning of follow-up"),
            ("not_binary", f"a value of `{self.event}` that is neither 0 nor 1", "1: an event"),
        ):
            rows = int(totals.number(name))
            if rows:
                raise StatisticsError(f"{rows} rows have {what}", hint)
        if totals.number("rows") == 0:
            raise StatisticsError(
                "no row can be used",
                f"{int(totals.number('incomplete'))} have missing values and"
                f" {int(totals.number('never_at_risk'))} are never at risk",
            )

    def facts(self, totals: Totals) -> dict[str, float]:
        """Facts that every answer has."""
        left_out = totals.number("incomplete") + totals.number("never_at_risk")
        return {
            "sites": totals.sites,
            "rows": int(totals.number("rows")),
            "rows left out": int(left_out),
            "time step": self.step,
        }

    def notes(self, totals: Totals) -> list[str]:
        made = []
        if late := int(totals.number("never_at_risk")):
            made.append(f"{late} rows enter no earlier than they leave, and were left out")
        if off := int(totals.number("rounded")):
            made.append(
                f"{off} rows have times between grid points: they were rounded to the nearest"
                f" multiple of {self.step:g}; a smaller time_step changes less"
            )
        return made


def bins_of(points: Places, edges: Places) -> Places:
    """The bin of each point, where bin j has the points from edges[j] to edges[j + 1] - 1.

    -1 and len(edges) - 1 are below and above all bins.
    """
    return np.searchsorted(edges, points, side="right") - 1


def read_edges(step: Step, curves: int) -> Places:
    """A step's bins, at a site: increasing i64[bins + 1]. Raises StatisticsError."""
    edges = step.integers("edges", -1)
    if len(edges) < 2 or (len(edges) - 1) * curves > CELLS_MAX or np.any(np.diff(edges) < 1):
        raise StatisticsError("a step's bins of time are not increasing, or too many")
    return edges


def counted(curve: Places, bins: Places, shape: tuple[int, int], chosen: Chosen) -> Places:
    """Chosen rows by curve and bin, i64[curves, bins]; rows outside all bins are not counted."""
    inside = chosen & (bins >= 0) & (bins < shape[1])
    flat = curve[inside] * shape[1] + bins[inside]
    return np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)


def leaving_step(edges: Places, curves: int) -> Step:
    """Asks how many rows of each curve end in each bin."""
    return Step("leaving", (counts("leaving", curves, len(edges) - 1),), {"edges": edges})


def refined_bins(
    points: int, curves: int, least: int
) -> Generator[Step, Totals, tuple[Places, int]]:
    """Edges of bins in which each curve has no row or at least `least` that leave.

    Yields `leaving` steps. Raises StatisticsError where a curve has fewer rows.

    Returns:
        i64[bins + 1] edges, and the largest number of points in a bin.
    """
    edges = np.array([0, points], np.int64)
    totals = yield leaving_step(edges, curves)
    while True:
        here = totals["leaving"]
        if np.any((here > 0) & (here < least)) and len(edges) == 2:
            raise StatisticsError(
                f"a group has fewer than {least} rows", "join groups, or lower least_per_bin"
            )
        splits = _splits(edges, here, least)
        if not len(splits):
            break
        edges = np.union1d(edges, splits)
        totals = yield leaving_step(edges, curves)
    edges = joined(edges, here, least)
    return edges, int(np.diff(edges).max())


def _splits(edges: Places, leaving: npt.NDArray[np.float64], least: int) -> Places:
    """Points at which bins with enough rows are cut in two."""
    width = np.diff(edges)
    enough = np.all((leaving == 0) | (leaving >= least), axis=0) & np.any(leaving > 0, axis=0)
    wide = enough & (width > 1)
    found: Places = (edges[:-1] + (width + 1) // 2)[wide]
    return found


def joined(edges: Places, leaving: npt.NDArray[np.float64], least: int) -> Places:
    """Edges of as many joined bins as can be, no curve with 1 to least - 1 rows in one."""
    upto = np.concatenate([np.zeros((len(leaving), 1)), np.cumsum(leaving, axis=1)], axis=1)
    bins = len(edges) - 1
    most, came = np.full(bins + 1, -1, np.int64), np.zeros(bins + 1, np.int64)
    most[0] = 0
    for j in range(1, bins + 1):
        held = upto[:, j : j + 1] - upto[:, :j]
        fit = np.all((held == 0) | (held >= least), axis=0) & (most[:j] >= 0)
        if fit.any():  # of equally many bins, the one whose last bin is shortest
            best = np.where(fit, most[:j], -1)
            came[j] = j - 1 - int(np.argmax(best[::-1]))
            most[j] = best[came[j]] + 1
    ends = [bins]
    while ends[-1]:
        ends.append(int(came[ends[-1]]))
    found: Places = np.asarray(edges)[ends[::-1]].astype(np.int64)
    return found


def joined_again(
    edges: Places,
    cells: npt.NDArray[np.float64],
    parts: Sequence[npt.NDArray[np.float64]],
    least: int,
) -> tuple[Places, list[npt.NDArray[np.float64]]]:
    """Bins joined once more, where a site that dropped out has left cells with few rows.

    Args:
        edges: i64[bins + 1]
        cells: f64[cells, bins], rows.
        parts: arrays [..., bins] that are added up alike.
        least: the floor.
    """
    fewer = joined(edges, cells, least)
    starts = np.searchsorted(edges, fewer[:-1])
    return fewer, [np.add.reduceat(part, starts, axis=-1) for part in parts]


def codes_of(
    table: Table, columns: Sequence[tuple[str, Sequence[str]]]
) -> tuple[Places, Chosen, dict[str, int]]:
    """One code a row of several columns with listed categories.

    Returns:
        i64[rows] codes (0 where missing), bool[rows] whether all are known, and by column how
        many rows have a category that is not listed.
    """
    code, known = np.zeros(table.rows, np.int64), np.ones(table.rows, np.bool_)
    unlisted: dict[str, int] = {}
    for name, categories in columns:
        places = table.codes(name, categories)
        unlisted[name] = int((places == -2).sum())
        known &= places >= 0
        code = code * len(categories) + np.maximum(places, 0)
    return code, known, unlisted
