"""Bins of features: where XGBoost cuts, found from counts of ranges alone.

A value is taken as f32, whose bits in the order of the values make a key of 32 bits. A *cell* is
the range of all keys with one prefix. A search begins at the cell of all keys; in each step sites
count the rows in the parts of the cells that are open, and a part stays open

- while the feature has at most `max_bin` parts that are not empty: it may be one value;
- else only if a quantile lies in it, and it has more than a small share of the rows;

and never if it has fewer rows than the floor. A feature of at most `max_bin` values ends with
these, and has XGBoost's cuts; another ends with cuts near XGBoost's quantiles, which are ends of
ranges and no row's values. Ranges below the floor share a bin with the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..sums import StatisticsError

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
U16 = npt.NDArray[np.uint16]

KEY_BITS = 32
#: Counts of a step of the search, about: 4 MB of ring elements.
STEP_COUNTS = 1 << 20
#: Bits of a prefix that a step adds at most.
STEP_BITS = 8
#: Bins of a feature at most, so that a bin fits u16, and one more for missing values.
BINS_MAX = 4096
#: A cell with less than this part of a bin's share of rows holds a quantile well enough.
_SHARE = 8
_SIGN = np.uint32(1 << 31)
#: Keys of the smallest and the largest finite f32.
_KEY_MIN, _KEY_MAX = 0x00800000, 0xFF7FFFFF
#: XGBoost's distance of the outer cuts from values of 0: an f32, added in f64.
_AROUND = float(np.float32(1e-5))


def keys_of(values: F32) -> npt.NDArray[np.uint32]:
    """f32 values as keys of the same order; -0 is 0. No NaN among them."""
    bits = (values + np.float32(0)).view(np.uint32)
    return np.where(bits & _SIGN, ~bits, bits | _SIGN)


def value_of(key: int) -> np.float32:
    """The value of a key: the reverse of `keys_of`."""
    bits = key ^ int(_SIGN) if key & int(_SIGN) else ~key & 0xFFFFFFFF
    return np.float32(np.array(bits, np.uint32).view(np.float32))


@dataclass(frozen=True)
class Cuts:
    """Upper ends of the bins of each feature: bin b holds values from cut b-1 on, below cut b."""

    starts: I64
    """Feature f has the cuts starts[f] to starts[f + 1], i64[features + 1]."""
    values: F32
    """Rising within a feature, f32[cuts]. The last of a feature is above all its values."""
    lowest: F32
    """Below all values of a feature, f32[features]: a split that only missing values pass."""
    first: F32
    """The least value of a feature, or the lower end of its range, f32[features]."""
    exact: npt.NDArray[np.bool_]
    """Whether the bins of a feature are its values, bool[features]."""

    @property
    def features(self) -> int:
        return len(self.starts) - 1

    def of(self, feature: int) -> F32:
        return self.values[self.starts[feature] : self.starts[feature + 1]]

    def threshold(self, feature: int, split: int) -> float:
        """What the values left of a split after bin `split` are below; -1: of none."""
        return float(self.lowest[feature] if split < 0 else self.of(feature)[split])

    def middle(self, feature: int, last: int, after: int) -> tuple[int, float]:
        """A split half-way between two bins with none of a node's rows between them.

        last, after: the bins. Returns the last bin on the left, and what its values are below.
        """
        cuts = self.of(feature)
        if after <= last:
            return last, float(cuts[last])
        if not self.exact[feature]:
            split = (last + after - 1) // 2
            return split, float(cuts[split])
        low, high = (float(cuts[b - 1]) if b else float(self.first[feature]) for b in (last, after))
        half = np.float32((low + high) / 2)
        if not low < half <= high:
            return last, float(cuts[last])
        return int(np.searchsorted(cuts, half, side="left")), float(half)

    def binned(self, columns: Sequence[F32]) -> tuple[U16, npt.NDArray[np.bool_]]:
        """A site's values as bins.

        columns: f32[rows] a feature, NaN where missing. Returns u16[features, rows], where a
        missing value is as many as the feature has bins; and which features miss any.
        """
        out = np.empty((self.features, len(columns[0])), np.uint16)
        for f, column in enumerate(columns):
            cuts = self.of(f)
            places = np.minimum(np.searchsorted(cuts, column, side="right"), len(cuts) - 1)
            out[f] = np.where(np.isnan(column), len(cuts), places)
        missing = np.array([bool(np.isnan(column).any()) for column in columns])
        return out, missing


def cuts_of(starts: I64, values: npt.NDArray[np.float64], features: int) -> Cuts:
    """Cuts that a site was sent. Raises StatisticsError for what are none."""
    sizes = np.diff(starts)
    if len(starts) != features + 1 or int(starts[0]) != 0 or int(starts[-1]) != len(values):
        raise StatisticsError("cuts of another number of features")
    if not ((sizes >= 1) & (sizes <= BINS_MAX)).all():
        raise StatisticsError(f"a feature has 1 to {BINS_MAX} bins")
    with np.errstate(over="ignore"):
        made = values.astype(np.float32)
    rising = np.diff(made) > 0
    rising[starts[1:-1] - 1] = True
    if not rising.all() or not np.isfinite(made).all():
        raise StatisticsError("cuts of a feature that do not rise")
    nothing = np.zeros(features, np.float32)
    return Cuts(starts, made, nothing, nothing, np.zeros(features, np.bool_))


def counted(keys: Sequence[npt.NDArray[np.uint32]], cells: I64, length: int, bits: int) -> I64:
    """How many of a site's rows are in each part of the cells, i64[cells, 2^bits].

    keys: u32[rows] a feature, in order, without the missing values. cells: (feature, prefix) of
    `length` bits, i64[cells, 2], rising.
    """
    if not (0 <= length < KEY_BITS and 1 <= bits <= min(STEP_BITS, KEY_BITS - length)):
        raise StatisticsError(f"cells of {length} and {bits} bits")
    if len(cells) << bits > STEP_COUNTS or len(cells) == 0:
        raise StatisticsError(f"{len(cells)} cells of {1 << bits} parts")
    feature, prefix = cells[:, 0], cells[:, 1]
    order = (feature << KEY_BITS) + prefix
    if not ((feature >= 0) & (feature < len(keys))).all() or not (np.diff(order) > 0).all():
        raise StatisticsError("cells that are not in order, or of no feature")
    if not ((prefix >= 0) & (prefix < 1 << length)).all():
        raise StatisticsError("a cell of no key")
    out = np.zeros((len(cells), 1 << bits), np.int64)
    for f in np.unique(feature).tolist():
        first, last = np.searchsorted(feature, [f, f + 1])
        parts = keys[f].astype(np.int64) >> (KEY_BITS - length - bits)
        places = np.searchsorted(prefix[first:last], parts >> bits)
        inside = places < last - first
        inside[inside] = prefix[first + places[inside]] == parts[inside] >> bits
        within = (places[inside] << bits) + (parts[inside] & ((1 << bits) - 1))
        size = int(last - first) << bits
        out[first:last] = np.bincount(within, minlength=size).reshape(-1, 1 << bits)
    return out


@dataclass
class _Cell:
    prefix: int
    length: int
    rows: int

    @property
    def low(self) -> int:
        return self.prefix << (KEY_BITS - self.length)

    @property
    def high(self) -> int:
        """The last key in the cell."""
        return self.low + (1 << (KEY_BITS - self.length)) - 1


class CutSearch:
    """The search for cuts, where the question is asked: sees counts over all sites.

    max_bin: bins of a feature at most. floor: rows of a range that is looked into, and of a bin.
    """

    def __init__(self, features: int, max_bin: int, floor: int) -> None:
        self.max_bin, self.floor = max_bin, floor
        self.length = 0
        """Bits of the open cells' prefixes."""
        self._cells: list[list[_Cell]] = [[_Cell(0, 0, -1)] for _ in range(features)]
        self._open: list[list[_Cell]] = [list(cells) for cells in self._cells]

    def declare(self, feature: int, values: F32, rows: npt.NDArray[np.float64]) -> None:
        """The values of a feature are known, f32[n], and how many rows have each, f64[n]."""
        keys = keys_of(np.asarray(values, np.float32)).tolist()
        pairs = sorted(zip(keys, rows.tolist(), strict=True))
        self._cells[feature] = [_Cell(k, KEY_BITS, int(n)) for k, n in pairs if n > 0]
        self._open[feature] = []

    @property
    def open(self) -> I64:
        """The open cells, (feature, prefix), i64[n, 2]; n is 0 at the end of the search."""
        pairs = [(f, cell.prefix) for f, cells in enumerate(self._open) for cell in cells]
        return np.array(pairs, np.int64).reshape(-1, 2)

    @property
    def bits(self) -> int:
        """Bits that the next step adds to prefixes."""
        cells = sum(map(len, self._open))
        room = (STEP_COUNTS // max(cells, 1)).bit_length() - 1
        return max(1, min(STEP_BITS, KEY_BITS - self.length, room))

    def take(self, counts: npt.NDArray[np.float64], bits: int) -> None:
        """The totals of a step: f64[open cells, 2^bits]."""
        at, length = 0, self.length + bits
        for f, cells in enumerate(self._open):
            if not cells:
                continue
            parts: dict[int, list[_Cell]] = {}
            for cell in cells:
                row = counts[at]
                at += 1
                parts[cell.prefix] = [
                    _Cell((cell.prefix << bits) + int(k), length, int(row[k]))
                    for k in np.flatnonzero(row)
                ]
            opened = {cell.prefix for cell in cells}
            kept: list[_Cell] = []
            for cell in self._cells[f]:
                is_open = cell.length == self.length and cell.prefix in opened
                kept += parts[cell.prefix] if is_open else [cell]
            self._cells[f] = kept
            self._open[f] = self._to_open(kept, length)
        self.length = length

    def _to_open(self, cells: list[_Cell], length: int) -> list[_Cell]:
        if length == KEY_BITS:
            return []
        newest = [c for c in cells if c.length == length and c.rows >= max(self.floor, 1)]
        if len(cells) <= self.max_bin:
            return newest
        rows = sum(cell.rows for cell in cells)
        ends = np.cumsum([cell.rows for cell in cells])
        targets = _targets(rows, self.max_bin)
        wide = rows / (self.max_bin * _SHARE)
        holding = {int(i) for i in np.searchsorted(ends, targets, side="left")}
        return [
            cell
            for i, cell in enumerate(cells)
            if i in holding and cell.length == length and cell.rows >= max(self.floor, wide, 1)
        ]

    def cuts(self) -> Cuts:
        """The cuts. The search is at its end."""
        values, lowest, starts = [], [], [0]
        for cells in self._cells:
            made, low = _cuts_of(cells, self.max_bin, self.floor)
            values += made
            lowest.append(low)
            starts.append(len(values))
        firsts = [value_of(max(c[0].low, _KEY_MIN)) if c else 0.0 for c in self._cells]
        return Cuts(
            np.array(starts, np.int64),
            np.array(values, np.float32),
            np.array(lowest, np.float32),
            np.array(firsts, np.float32),
            np.array([self.is_exact(f) for f in range(len(self._cells))], np.bool_),
        )

    def rows(self, feature: int) -> int:
        """Rows where the feature is not missing."""
        return sum(max(cell.rows, 0) for cell in self._cells[feature])

    def is_exact(self, feature: int) -> bool:
        """Whether the bins of a feature are its values."""
        cells = self._cells[feature]
        return len(cells) <= self.max_bin and all(
            c.length == KEY_BITS and c.rows >= self.floor for c in cells
        )


def _targets(rows: int, max_bin: int) -> npt.NDArray[np.float64]:
    made: npt.NDArray[np.float64] = np.arange(1, max_bin).astype(np.float64) * (rows / max_bin)
    return made


def _cuts_of(cells: list[_Cell], max_bin: int, floor: int) -> tuple[list[np.float32], np.float32]:
    """The cuts of a feature, and what is below all its values, as XGBoost makes them."""
    cells = [cell for cell in cells if cell.rows > 0]
    if not cells:
        return [_rounded(3 * _AROUND)], _rounded(_AROUND)
    first = float(value_of(max(cells[0].low, _KEY_MIN)))
    last = float(value_of(min(cells[-1].high, _KEY_MAX)))
    lowest, above = _rounded(first - abs(first) - _AROUND), _rounded(last + (abs(last) + _AROUND))
    chosen = list(range(1, len(cells)))
    ends = np.cumsum([cell.rows for cell in cells])
    if len(cells) > max_bin:
        # The end of a cell that is nearest to each quantile.
        targets = _targets(int(ends[-1]), max_bin)
        places = np.clip(np.searchsorted(ends, targets, side="left"), 0, len(cells) - 1)
        before = np.where(places > 0, ends[places - 1], 0)
        nearest = np.where(targets - before < ends[places] - targets, places, places + 1)
        chosen = sorted({int(i) for i in nearest if 0 < i < len(cells)})
    cuts: list[np.float32] = []
    begin = 0
    for i in chosen:
        rows_of_bin = int(ends[i - 1]) - begin
        rows_after = int(ends[-1]) - int(ends[i - 1])
        if rows_of_bin >= floor and rows_after >= floor:
            cuts.append(value_of(cells[i].low))
            begin = int(ends[i - 1])
    # Where the values end at the largest f32, no cut is above them: the last bin takes them in.
    return [cut for cut in cuts if cut < above] + [above], lowest


def _rounded(value: float) -> np.float32:
    highest = float(np.finfo(np.float32).max)
    return np.float32(min(max(value, -highest), highest))
