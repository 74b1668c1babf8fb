"""Which tiles the products of dense.h, descent.h, packed.h and attention.h take.

A product's sizes stand in the text of its call, and from these follow the way that it goes, the
chunks that it falls into and the rows of every tile, on one thread or on several. This is what the
headers decide, for processors with sixteen lanes and tiles of twelve rows, and with nothing tuned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ..call_runs import arguments

#: Sizes of gemm.h and dense.h with sixteen lanes: rows of a tile, of one whose rows have a pointer
#: each, of one of a vector's columns; columns of a vector and of a panel.
ROWS, POINTERS, EDGE = 12, 8, 6
LANES, PANEL = 16, 32
CHUNKS = 16
_PAGE, _CACHE, _OUTER, _STRIPE = 1024, 1 << 18, 1 << 16, 2 * ROWS
#: Constants that a compile may override, by name.
CHOICES = {
    **{"DL_FEW": 3, "DL_THIN": 8192, "DL_SHORT": 64, "DL_TURNED": 32, "DL_STRIPED": 1 << 18},
    "DL_PARALLEL_WORK": 1 << 18,
}
_FEW, _THIN, _SHORT, _TURNED, _STRIPED, _PARALLEL = CHOICES.values()
#: Blocks of attention whose sizes are looked at; where there are more, they may be any.
_BLOCKS_MAX = 4096
#: The first words of calls that take no tile: products of other types.
_OTHERS = frozenset(["f64", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool"])

_CALL = re.compile(r"\bdl_gemm_(\w+)\((.*)\);")
_HEADS = re.compile(r"static const dl_heads sizes = \{(.*)\};")
_FIELD = re.compile(r"\.(\w+) = (\d+)")


def split(rows: int, most: int) -> set[int]:
    """The tiles of some rows, split evenly."""
    blocks = -(-rows // most)
    return {rows // blocks, -(-rows // blocks)} if rows else set()


def span(size: int, unit: int, chunks: int) -> int:
    """As `dl_span`: what one of so many chunks takes."""
    units = -(-size // unit)
    return max(-(-units // chunks), 1) * unit


@dataclass(slots=True)
class Tiles:
    """The ways of a product's tiles: rows of two vectors of columns, of one, and of half of one."""

    halves: bool
    """There are tiles of half a vector (narrow.h)."""
    even: set[int] = field(default_factory=set)
    edge: set[int] = field(default_factory=set)
    half: set[int] = field(default_factory=set)
    ways: set[int] = field(default_factory=set)

    def take(self, text: str) -> bool:
        """Adds what the products in a text take. False where their sizes are not in it."""
        for line in text.splitlines():
            if "dl_gemm_" in line and not self._call(line):
                return False
            found = _HEADS.search(line)
            if found and not self._attention({k: int(v) for k, v in _FIELD.findall(found[1])}):
                return False
        return "dl_heads" not in text or _HEADS.search(text) is not None

    def _call(self, line: str) -> bool:
        found = _CALL.search(line)
        if found is None or line.count("dl_gemm_") > 1:
            return False
        name, given = found[1], arguments(found[2])
        if name in _OTHERS:
            return True
        try:
            if name == "expanded":
                self._expanded(*(_number(given[i]) for i in (0, 1, 2, 4)))
            elif name == "packed":
                self._packed(*(_number(given[i]) for i in (0, 1, 2, 4)))
            elif name in ("f32", "add_f32", "into"):
                self.product(*_sizes(given), name == "add_f32")
            elif name == "step_f32":
                self._step(given[0] != "0", *_sizes(given[1:]))
            elif name == "both_f32":
                self._both(given)
            else:
                return False
        except (ValueError, IndexError):
            return False
        return True

    # -- the ways of a product

    def product(self, m: int, n: int, k: int, am: int, bk: int, bn: int, add: bool) -> None:
        """As `dl_gemm_into`."""
        if not m * n:
            return
        few = m <= _FEW * ROWS
        idle = 4 * m < 3 * -(-m // LANES) * LANES and k * n <= _CACHE
        fits = m <= _TURNED and not idle and k > LANES and k * m <= _OUTER and n >= ROWS
        if bk == 1 and bn != 1 and fits:
            self.ways.add(0)
            for m0, m1, n0, n1 in _chunks(m, n, k, m, 8 * ROWS):
                self._turned(m1 - m0, n1 - n0)
        elif (not few or add) and k * n <= (_OUTER if k <= _SHORT else _THIN):
            self.ways.add(1)
            for m0, m1, _, _ in _chunks(m, n, k, 8 * ROWS, n):
                for rows in split(m1 - m0, ROWS):
                    self._rows(rows, am, n)
        elif few and bn == 1 and not add:
            self.ways.add(2)
            for m0, m1, n0, n1 in _chunks(m, n, k, m, PANEL):
                self._rows(m1 - m0, am, n1 - n0, packed=n < LANES)
        else:
            self._expanded(m, n, k, am)

    def _expanded(self, m: int, n: int, k: int, am: int) -> None:
        """As `dl_gemm_panels`, and products whose B is computed as it is packed."""
        for m0, m1, n0, n1 in _chunks(m, n, k, 8 * ROWS, PANEL):
            at_once = 4 * PANEL
            for columns in {min(n1 - n0, at_once), (n1 - n0) % at_once}:
                self._rows(m1 - m0, am, columns)

    def _turned(self, m: int, n: int) -> None:
        for rows in split(n, ROWS):
            if m > LANES:
                self.even.add(rows)
            else:
                self.edge |= split(rows, EDGE)

    def _rows(self, count: int, am: int, columns: int, packed: bool = True) -> None:
        """As `dl_gemm_rows`."""
        apart = count > ROWS and am % _PAGE == 0
        for rows in split(count, POINTERS if apart else ROWS) if columns else ():
            if columns > LANES:
                self.even.add(rows)
            rest = columns % PANEL
            if packed and rest > LANES:
                continue
            for first in range(0, rest, LANES):
                self._edge(rows, min(rest - first, LANES))

    def _edge(self, rows: int, columns: int) -> None:
        if columns > LANES // 2 or not self.halves:
            self.edge |= split(rows, EDGE)
        else:
            self.half |= {rows} if rows == ROWS else split(rows, EDGE)

    def _packed(self, m: int, n: int, k: int, am: int) -> None:
        for m0, m1, n0, n1 in _chunks(m, n, k, m, PANEL):
            whole = (n1 - n0) // PANEL * PANEL
            self._rows(m1 - m0, am, whole)
            self._rows(m1 - m0, am, n1 - n0 - whole)

    # -- descent

    def _step(self, tile: bool, m: int, n: int, k: int, am: int, bk: int, bn: int) -> None:
        """As `dl_gemm_step_f32`."""
        if not tile or n < LANES or k * n > _OUTER:
            self.product(m, n, k, am, bk, bn, True)

    def _both(self, given: Sequence[str]) -> None:
        """As `dl_gemm_both_f32`."""
        both, step = given[0] != "0", given[1] != "0"
        m, n, k, am, depth, pm, qk, qn = (_number(given[i]) for i in (2, 3, 4, 6, 10, 12, 15, 16))
        if both and k >= LANES and k * m <= _OUTER:
            return
        small = n * k < _STRIPED or n < ROWS or m > _TURNED or k * m > _OUTER
        if small or depth > _SHORT or depth * k > _OUTER:
            self.product(m, n, k, am, 1, k, False)
            self._step(step, n, k, depth, pm, qk, qn)
            return
        stripes = max((n + _STRIPE - ROWS) // _STRIPE, 1)
        for rows in {min(n, _STRIPE), n - (stripes - 1) * _STRIPE}:
            self._turned(m, rows)
            if not (step and k >= LANES):
                self._rows(rows, pm, k)

    # -- attention

    def _attention(self, z: dict[str, int]) -> bool:
        """As `dl_attention_head` and `dl_attention_head_grad`: which of both is not said."""
        t, s, d, e = (z[name] for name in "tsde")
        blocks = -(-t // z["queries"]) * -(-s // z["keys"])
        if blocks > _BLOCKS_MAX:
            return False
        found = set()
        for i0 in range(0, t, z["queries"]):
            rows = min(t - i0, z["queries"])
            reach = min(max(i0 + rows + s - t, 0), s) if z["causal"] else s
            for j0 in range(0, s, z["keys"]):
                seen = min(max(reach - j0, 0), z["keys"])
                found.add((rows, seen, min(-(-seen // PANEL) * PANEL, s - j0)))
        for rows, seen, wide in found:
            if seen:
                for count, columns, apart in (
                    *((rows, wide, d * z["h"]), (rows, wide, e * z["h"])),
                    *((rows, d, z["keys"]), (rows, e, z["keys"]), (seen, e, 1), (seen, d, 1)),
                ):
                    whole = columns // PANEL * PANEL
                    self._rows(count, apart, whole)
                    self._rows(count, apart, columns - whole)
        return True


def _number(text: str) -> int:
    return int(text.strip("()"))


def _sizes(given: Sequence[str]) -> tuple[int, int, int, int, int, int]:
    """m, n, k, then how far apart A's rows are, B's rows and B's columns.

    After m, n and k stand a pointer and two numbers, twice.
    """
    m, n, k, am, _, bk, bn = (_number(given[i]) for i in (0, 1, 2, 4, 5, 7, 8))
    return m, n, k, am, bk, bn


def _chunks(m: int, n: int, k: int, high: int, wide: int) -> Iterator[tuple[int, int, int, int]]:
    """All of a product, and its chunks as of `dl_gemm_run`.

    Rows from and to, columns from and to, for chunks of so many rows and columns at least.
    """
    yield 0, m, 0, n
    if m * n * k < _PARALLEL:
        return
    most = min(m * n * k // (_PARALLEL // 4), CHUNKS)
    across = span(n, wide, most)
    down = span(m, high, max(most // _parts(n, across), 1))
    for m0, m1 in _ranges(m, down):
        for n0, n1 in _ranges(n, across):
            yield m0, m1, n0, n1


def _parts(size: int, each: int) -> int:
    return (size + each - ROWS) // each if size > each else 1


def _ranges(size: int, each: int) -> Iterator[tuple[int, int]]:
    for i in range(_parts(size, each)):
        end = (i + 1) * each
        yield i * each, end if end + ROWS <= size else size
