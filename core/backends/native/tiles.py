"""Which tiles of products a program has any use for.

Tiles are functions of their own for every number of rows, and take a compiler a third of its time
for a small network, while what has fixed sizes uses a few of them. Here those are found, and what
is not among them is made of smaller ones (`gemm.h`, `dense.h`): a number too many costs a kilobyte,
one too few some speed, and none a result. That counts for tiles of twelve rows and sixteen lanes,
which are the most; with fewer all are compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .winograd import Tiling, turned

#: Sizes of gemm.h and dense.h with sixteen lanes.
_ROWS, _POINTERS, _EDGE = 12, 8, 6
_LANES, _PANEL = 16, 32
_UNIT, _CHUNKS = 8 * _ROWS, 16
_TURNED = 32
#: Headers whose products are those that are named in the file: others have tiles of their own.
_NAMED = frozenset(["vector", "pool", "elementwise", "reduce", "transpose", "narrow", "gemm"]) | {
    *("dense", "plain", "conv", "winograd", "depthwise", "order", "solve", "lists", "halves")
}
_CONVOLUTION = re.compile(r"\bdl_(conv(?:_input_grad|_weight_grad)?)_f32\(\(dl_sizes \+ (\d+)\)")
_TILED = re.compile(r"\bdl_wino_(conv\w*)\(&\w+, \(dl_sizes \+ (\d+)\)")
_PRODUCT = re.compile(r"\bdl_gemm_(?:f32|add_f32|into)\((\d+), (\d+), (\d+), ")
_FIELD = re.compile(r"\.(\w+) = (-?\d+)")


def defined(texts: Sequence[str], sizes: Sequence[str], headers: Iterable[str]) -> list[str]:
    """The lines that say which tiles there are. texts: all that is written of a file but its
    headers; sizes: the fields of each dl_conv.
    """
    fields = [{name: int(n) for name, n in _FIELD.findall(text)} for text in sizes]
    wide, narrow = set[int](), set[int]()
    for text in texts:
        for name, index in _CONVOLUTION.findall(text):
            d = fields[int(index)]
            columns = d["c"] if name == "conv_input_grad" else d["o"]
            rows = set(_convolution(name, d))
            if columns > _LANES:
                wide |= rows
            if 0 < columns % _PANEL <= _LANES:
                narrow |= rows
    lines = [_define("ROWS_WIDE", wide), _define("ROWS_NARROW", narrow)]
    tiled = [found for text in texts for found in _TILED.findall(text)]
    if tiled:
        tilings = [_tiling(name, fields[int(index)]) for name, index in tiled]
        lasts = {(p, a.points) for a in tilings for p in (a.last_down, a.last_across)}
        lines.append(_define("WINO_SHORT", {last for last, whole in lasts if last < whole}))
    products = [match.groups() for text in texts for match in _PRODUCT.finditer(text)]
    all_named = len(products) == sum(text.count("dl_gemm_") for text in texts)
    if all_named and _NAMED.issuperset(headers):
        even = {r for m, n, _ in products for r in _product(int(m), int(n))}
        edged = set(even)
        for name, index in tiled:
            d = fields[int(index)]
            rows = set(_places(name, d))
            even |= rows
            edged |= rows if d["c" if name == "conv_input_grad" else "o"] % _PANEL else set()
        edge = {part for rows in edged for part in _split(rows, _EDGE)}
        lines += [_define("ROWS_EVEN", even), _define("ROWS_EDGE", edge)]
    return lines


def _define(name: str, rows: Iterable[int]) -> str:
    return f"#define DL_{name} {sum(1 << r for r in rows):#x}"


def _split(rows: int, most: int) -> set[int]:
    """The tiles of some rows, split evenly."""
    blocks = -(-rows // most)
    return {rows // blocks, -(-rows // blocks)} if rows else set()


def _span(size: int, unit: int, chunks: int) -> int:
    """As `dl_span`: what one of so many chunks takes."""
    units = -(-size // unit)
    return max(-(-units // chunks), 1) * unit


def _product(m: int, n: int) -> Iterator[int]:
    """Rows of the tiles of a product of m rows and n columns, however it is cut into chunks."""
    for rows in (m, n) if m <= _TURNED else (m,):
        for chunks in range(1, _CHUNKS + 1):
            span = _span(rows, _UNIT, chunks)
            last = rows % span
            for part in {min(rows, span), last, last + span if last < _ROWS < rows else last}:
                yield from _split(part, _ROWS)
                if part > _ROWS:
                    yield from _split(part, _POINTERS)


def _places(name: str, d: Mapping[str, int]) -> Iterator[int]:
    """Rows of the tiles of products of a convolution that goes by tiles of pixels: a sum over
    these has the channels as rows, the others have them, block by block as of `dl_tiling_of`.
    """
    if name == "conv_weight_grad":
        yield from _split(d["c"], _ROWS)
        return
    for tiles in _tiling(name, d).products():
        yield from _split(tiles, _ROWS)


def _tiling(name: str, d: Mapping[str, int]) -> Tiling:
    return Tiling.of(turned(d) if name == "conv_input_grad" else d)


def _convolution(name: str, d: Mapping[str, int]) -> Iterator[int]:
    """Rows of the tiles of a convolution, as of `dl_rows_from`; 0 is a tile by one pointer."""
    if name == "conv":
        yield from _rows(0, d["oh"] * d["ow"], d["ow"], d["sw"] * d["c"])
    elif name == "conv_input_grad":
        for high in _kinds(d["h"], d["sh"], d["top"]):
            for across in _kinds(d["w"], d["sw"], d["left"]):
                yield from _rows(0, high * across, across, d["o"])
    else:
        rows = d["kh"] * d["kw"] * d["c"]
        for step in {max(rows, 1), _span(rows, _ROWS, _CHUNKS // 2)}:
            for begin in range(0, rows, step):
                yield from _rows(begin, min(rows - begin, step), d["kw"] * d["c"], 1)


def _kinds(size: int, stride: int, before: int) -> set[int]:
    """How many elements of an axis each place of a stride meets."""
    firsts = ((kind - before) % stride for kind in range(stride))
    return {-(-(size - first) // stride) for first in firsts if first < size}


def _rows(begin: int, count: int, line: int, step: int) -> Iterator[int]:
    end = begin + count
    while begin < end:
        left = end - begin
        if step == 1 and left >= _ROWS and begin % line + _ROWS <= line:
            yield 0
            begin += _ROWS
        else:
            rows = -(-left // -(-left // _POINTERS))
            yield rows
            begin += rows
