"""Quantiles of columns, bracketed by counts: no bracket says where fewer rows than a floor are.

Numbers are read as 64 bits whose order is that of the numbers (IEEE 754 with the sign turned).
A bracket is a prefix of these bits. Each step asks how many rows are below a bracket, and in each
of its parts; the part that holds the wanted rank is the next bracket. At a site, a part
of fewer rows than the floor is not counted: its rows are in one number, `unsplit`. So ranks are
known up to these rows, and the search ends where they leave a choice between parts, or at one
number.

What comes out is a bracket that surely holds the wanted row, and an estimate within it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..question import Kept, Step
from ..site_table import Floats, Table
from ..sums import StatisticsError, Totals, counts

STEP = "brackets"
#: Bits of sign and exponent, which the first step asks for at once.
_FIRST_BITS = 12
#: Bits of later steps at most; a part is to have several times the floor at each site.
_BITS_MAX = 10
_ROWS_PER_PART = 4
#: Brackets in a step.
BRACKETS_MAX = 512
_RESTARTS_MAX = 5
_TOP = np.uint64(1 << 63)

Keys = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]


def keys_of(values: Floats) -> Keys:
    """Numbers as unsigned integers in the same order, u64[n]; minus zero is zero."""
    bits = np.ascontiguousarray(values + 0.0).view(np.uint64)
    keys: Keys = np.where(bits & _TOP, ~bits, bits | _TOP)
    return keys


def number_of(key: int) -> float:
    """The reverse of `keys_of` for one key; infinite where no number has it."""
    bits = np.uint64(key)
    back = bits ^ _TOP if bits & _TOP else ~bits
    found = float(np.array([back], np.uint64).view(np.float64)[0])
    return (np.inf if key >> 63 else -np.inf) if np.isnan(found) else found


@dataclass(frozen=True)
class Quantile:
    """A quantile of a column: that of `numpy.quantile`, linear between two rows."""

    q: float
    """From 0 to 1."""
    estimate: float
    """Within the bracket, as if its rows were spread evenly; NaN where it has no end."""
    low: float
    """No larger than the quantile."""
    high: float
    """No smaller than the quantile."""
    rows: int
    """Rows that the bracket may hold: the larger one's where the quantile is between two."""


@dataclass(frozen=True)
class Ranked:
    """Quantiles of one column."""

    rows: int
    """Rows with a value."""
    missing: int
    """Rows without one."""
    quantiles: tuple[Quantile, ...]
    """As they were asked for."""


@dataclass
class _Search:
    """The way to one row: its column, its rank from 0, and the bracket so far."""

    column: int
    rank: int
    prefix: int = 0
    depth: int = 0
    before: float = 0.0
    """Rows below the bracket, about."""
    inside: int = 0
    """Rows in the bracket, those of `unsplit` included."""
    bits: int = _FIRST_BITS
    """What the next step asks for."""
    leap: int = _BITS_MAX
    """The most bits of the next step: fewer after one whose parts were too small."""
    ends: tuple[int, int] | None = None
    """First and last key, once the search has ended."""

    def end(self, first: int, last: int) -> None:
        """Ends at parts of the bracket: prefixes of self.depth + self.bits bits."""
        shift = 64 - self.depth - self.bits
        base = self.prefix << self.bits
        self.ends = ((base + first) << shift, ((base + last + 1) << shift) - 1)

    def take(
        self, below: int, parts: Places, unsplit: tuple[int, int], floor: int, sites: int
    ) -> None:
        """Goes on with what a step has counted.

        Args:
            below: rows below the bracket.
            parts: i64[parts] rows in each part.
            unsplit: rows that are not counted: in the bracket, and below it.
            floor: as the step had it.
            sites: how many have answered.
        """
        inner, outer = unsplit
        least = below + np.concatenate([[0], np.cumsum(parts)])
        most = least + inner + outer
        sure = np.flatnonzero((most[:-1] <= self.rank) & (self.rank < least[1:]))
        if len(sure):
            part = int(sure[0])
            self.prefix, self.depth = (self.prefix << self.bits) | part, self.depth + self.bits
            self.before, self.inside = float(least[part] + most[part]) / 2, int(parts[part]) + inner
            if self.depth == 64:
                self.ends = (self.prefix, self.prefix)
                return
            wanted = max(self.inside // (_ROWS_PER_PART * floor * max(sites, 1)), 2)
            # Many parts cost nothing where rows lie in one of them, or none is too small.
            together = floor == 1 or np.count_nonzero(parts) == 1
            self.leap = min(2 * self.leap, _BITS_MAX)
            bits = self.leap if together else wanted.bit_length() - 1
            self.bits = min(bits, _BITS_MAX, 64 - self.depth)
        elif self.bits > 1:
            self.bits = self.leap = max(self.bits // 3, 1)
        else:
            possible = (least[:-1] <= self.rank) & (self.rank < most[1:])
            first, *_, last = np.flatnonzero(possible)[[0, -1]].tolist()
            self.inside = int(parts[first : last + 1].sum()) + inner
            self.before = float(least[first] + most[first]) / 2
            self.end(first, last)


@dataclass
class _Column:
    rows: int = -1
    missing: int = 0
    searches: dict[int, _Search] = field(default_factory=dict)


def ask_quantiles(
    columns: int, wanted: Sequence[float], floor: int
) -> Generator[Step, Totals, tuple[Ranked, ...]]:
    """Asks for quantiles of so many columns, all at once.

    Args:
        columns: how many; `measure_quantiles` has their names.
        wanted: quantiles, from 0 to 1.
        floor: rows of a site that are counted in a part of a bracket, at least.

    Raises:
        StatisticsError: a column has no value, or sites come and go in each step.
    """
    if columns * 2 * len(wanted) > BRACKETS_MAX:
        raise StatisticsError(
            f"{len(wanted)} quantiles of {columns} columns", f"at most {BRACKETS_MAX // 2} in all"
        )
    for _ in range(_RESTARTS_MAX):
        found = yield from _asked_once(columns, wanted, floor)
        if found is not None:
            return found
    raise StatisticsError("sites come and go, so that no ranks can be counted", "ask again later")


def _asked_once(
    columns: int, wanted: Sequence[float], floor: int
) -> Generator[Step, Totals, tuple[Ranked, ...] | None]:
    """One search with the same rows in all steps; None where they change."""
    state = [_Column() for _ in range(columns)]
    root = {(c, 0, 0): _FIRST_BITS for c in range(columns)}
    totals = yield _step(root, floor, columns)
    for place, column in enumerate(state):
        column.rows = int(totals["rows"][place])
        column.missing = int(totals["missing"][place])
        for q in wanted:
            first = int(np.floor(q * (column.rows - 1))) if column.rows else 0
            for rank in (first, min(first + 1, max(column.rows - 1, 0))):
                column.searches[rank] = _Search(place, rank)
        if column.rows:
            for search in column.searches.values():
                _give(search, root, totals, floor)
    while True:
        open_ = [s for c in state if c.rows for s in c.searches.values() if s.ends is None]
        if not open_:
            return tuple(_ranked(column, wanted) for column in state)
        asked = {(s.column, s.prefix, s.depth): s.bits for s in open_}
        totals = yield _step(asked, floor, columns)
        if any(int(totals["rows"][i]) != c.rows for i, c in enumerate(state)):
            return None
        for search in open_:
            _give(search, asked, totals, floor)


def _step(asked: Mapping[tuple[int, int, int], int], floor: int, columns: int) -> Step:
    most = max(asked.values())
    brackets = np.array([[c, p, d, b] for (c, p, d), b in asked.items()], np.int64)
    return Step(
        STEP,
        (
            counts("rows", columns),
            counts("missing", columns),
            counts("parts", len(asked), 1 << most),
            counts("below", len(asked)),
            counts("unsplit", len(asked), 2),
        ),
        {"brackets": brackets, "floor": np.array([floor], np.int64)},
    )


def _give(
    search: _Search, asked: Mapping[tuple[int, int, int], int], totals: Totals, floor: int
) -> None:
    key = (search.column, search.prefix, search.depth)
    place = list(asked).index(key)
    search.bits = asked[key]
    parts = totals["parts"][place, : 1 << search.bits].astype(np.int64)
    inner, outer = map(int, totals["unsplit"][place])
    search.take(int(totals["below"][place]), parts, (inner, outer), floor, totals.sites)


def _ranked(column: _Column, wanted: Sequence[float]) -> Ranked:
    made = []
    for q in wanted:
        if not column.rows:
            made.append(Quantile(q, np.nan, np.nan, np.nan, 0))
            continue
        place = q * (column.rows - 1)
        first = int(np.floor(place))
        one, two = (column.searches[r] for r in (first, min(first + 1, column.rows - 1)))
        part = place - first
        if part == 0:
            two = one
        assert one.ends is not None and two.ends is not None
        ends = [[number_of(key) for key in s.ends or ()] for s in (one, two)]
        low, high = (_between(ends[0][k], ends[1][k], part) for k in (0, 1))
        middle = np.nan
        if np.isfinite(high - low):
            guess = [_within(s, *e) for s, e in zip((one, two), ends, strict=True)]
            middle = min(max(_between(guess[0], guess[1], part), low), high)
        made.append(Quantile(q, middle, low, high, max(one.inside, two.inside)))
    return Ranked(column.rows, column.missing, tuple(made))


def _between(one: float, two: float, part: float) -> float:
    """Linear between two ends as `numpy.quantile` has it; they may be infinite."""
    if one == two or not part:
        return one
    if np.isinf(one) or np.isinf(two):
        return one if np.isinf(one) else two
    return one + (two - one) * part if part < 0.5 else two - (two - one) * (1 - part)


def _within(search: _Search, low: float, high: float) -> float:
    """Where a row is, if a bracket's rows are spread evenly."""
    if low == high:
        return low
    part = (search.rank - search.before + 0.5) / max(search.inside, 1)
    return low + (high - low) * min(max(part, 0.0), 1.0)


def measure_quantiles(
    table: Table, names: Sequence[str], step: Step, kept: Kept, least: int
) -> Mapping[str, Any]:
    """A site's counts for a step.

    Args:
        table: the site's rows.
        names: the columns.
        step: of `ask_quantiles`; it may be hostile.
        kept: sorted columns are kept in it.
        least: the least floor.

    Raises:
        StatisticsError: the step has no brackets of these columns.
    """
    brackets = step.integers("brackets", -1, 4)
    floor = int(step.integers("floor", 1)[0])
    column, prefix, depth, bits = brackets.T
    plain = (
        0 < len(brackets) <= BRACKETS_MAX
        and floor >= least
        and ((column >= 0) & (column < len(names))).all()
        and ((depth >= 0) & (bits >= 1) & (depth + bits <= 64)).all()
        and (bits <= _FIRST_BITS).all()
        and ((prefix >= 0) & ((depth >= 63) | (prefix < (1 << np.minimum(depth, 62))))).all()
    )
    if not plain:
        raise StatisticsError("a step without brackets of the columns that were named")
    parts = 1 << int(bits.max())
    if "keys" not in kept:
        kept["keys"] = [np.sort(keys_of(v[~np.isnan(v)])) for v in map(table.numbers, names)]
    found = np.zeros((len(brackets), parts), np.int64)
    below = np.zeros(len(brackets), np.int64)
    unsplit = np.zeros((len(brackets), 2), np.int64)
    for place, (c, p, d, b) in enumerate(brackets.tolist()):
        shift = 64 - d - b
        ends = [(((p << b) + i) << shift) for i in range((1 << b) + 1)]
        edges = np.array(ends[:-1], np.uint64)
        keys = kept["keys"][c]
        last = len(keys) if ends[-1] >= 1 << 64 else int(np.searchsorted(keys, np.uint64(ends[-1])))
        inside = np.diff([*np.searchsorted(keys, edges).tolist(), last])
        few = inside < floor
        before = last - int(inside.sum())
        unsplit[place] = inside[few].sum(), before if before < floor else 0
        below[place] = before if before >= floor else 0
        found[place, : 1 << b] = np.where(few, 0, inside)
    rows = np.array([len(keys) for keys in kept["keys"]])
    return {
        "rows": rows,
        "missing": table.rows - rows,
        "parts": found,
        "below": below,
        "unsplit": unsplit,
    }
