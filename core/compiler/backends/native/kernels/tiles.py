"""Which tiles of products a program has any use for.

Tiles are functions of their own for every number of rows, and take a compiler a third of its time
for a small network, while what has fixed sizes uses a few of them. Here those are found, and the
others are not compiled: were one missed, rows would go one by one (`gemm.h`, `dense.h`), with the
same numbers. That counts for tiles of twelve rows and sixteen lanes, which are the most; with fewer
all are compiled, and so they are where a compiler is given other sizes than the headers'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..epilogues import strip_rows
from .dense import CHOICES, CHUNKS, EDGE, LANES, PANEL, POINTERS, ROWS, Tiles, span, split
from .winograd import Tiling, forward

_CONVOLUTION = re.compile(
    r"\bdl_(conv(?:_input_grad|_weight_grad)?)_f32\(\(dl_sizes \+ (\d+)\)(.*, &then)?"
)
_TILED = re.compile(r"\bdl_wino_(conv\w*)\(&\w+, \(dl_sizes \+ (\d+)\)")
_FIELD = re.compile(r"\.(\w+) = (-?\d+)")


def defined(texts: Sequence[str], sizes: Sequence[str], headers: Iterable[str]) -> list[str]:
    """The lines that say which tiles there are. sizes: the fields of each dl_conv."""
    fields = [{name: int(n) for name, n in _FIELD.findall(text)} for text in sizes]
    wide, narrow = set[int](), set[int]()
    for text in texts:
        for name, index, then in _CONVOLUTION.findall(text):
            d = fields[int(index)]
            columns = d["c"] if name == "conv_input_grad" else d["o"]
            rows = set(_convolution(name, d, bool(then)))
            if columns > LANES:
                wide |= rows
            if 0 < columns % PANEL <= LANES:
                narrow |= rows
    lines = [_define("DL_ROWS_WIDE", wide), _define("DL_ROWS_NARROW", narrow)]
    tiled = [(name, fields[int(index)]) for text in texts for name, index in _TILED.findall(text)]
    dense = Tiles("narrow" in headers)
    if all(dense.take(text) for text in texts):
        for name, d in tiled:
            _places(dense, name, d)
        lines += [_define("DL_ROWS_EVEN", dense.even), _define("DL_ROWS_EDGE", dense.edge)]
        lines += [_define("DL_ROWS_HALF", dense.half), _define("DL_WAYS", dense.ways)]
    defaults = " && ".join(f"(!defined({k}) || {k} == {v})" for k, v in CHOICES.items())
    return [*_short(tiled), f"#if {defaults}", *lines, "#endif"]


def _short(tiled: Iterable[tuple[str, Mapping[str, int]]]) -> list[str]:
    """The line that says which points short tiles of pixels have."""
    tilings = [_tiling(name, d) for name, d in tiled]
    lasts = {(p, a.points) for a in tilings for p in (a.last_down, a.last_across)}
    bits = {last for last, whole in lasts if last < whole}
    return [_define("DL_WINO_SHORT", bits)] if tilings else []


def _define(name: str, bits: Iterable[int]) -> str:
    return f"#define {name} {sum(1 << bit for bit in bits):#x}u"


def _places(dense: Tiles, name: str, d: Mapping[str, int]) -> None:
    """Adds what products of a convolution take that goes by tiles of pixels.

    A sum over these has the channels as rows, the others have them, block by block.
    """
    if name == "conv_weight_grad":
        _place(dense, d["c"], d["o"])
        return
    for tiles in _tiling(name, d).products():
        _place(dense, tiles, d["o" if name == "conv" else "c"])


def _tiling(name: str, d: Mapping[str, int]) -> Tiling:
    return Tiling.of(forward(name, d))


def _place(dense: Tiles, rows: int, columns: int) -> None:
    """As `dl_wino_product`."""
    dense.even |= split(rows, ROWS)
    if columns % PANEL:
        for part in split(rows, ROWS):
            dense.edge |= split(part, EDGE)


def _convolution(name: str, d: Mapping[str, int], followed: bool) -> Iterator[int]:
    """Rows of a convolution's tiles (`dl_rows_from`). followed: by a loop over its result."""
    if name == "conv":
        high = strip_rows(d, d["kh"] * d["kw"] * d["c"]) if followed else d["oh"]
        for rows in {high, d["oh"] % high}:
            yield from _rows(0, rows * d["ow"], d["ow"], d["sw"] * d["c"])
    elif name == "conv_input_grad":
        for high in _kinds(d["h"], d["sh"], d["top"]):
            for across in _kinds(d["w"], d["sw"], d["left"]):
                yield from _rows(0, high * across, across, d["o"])
    else:
        rows = d["kh"] * d["kw"] * d["c"]
        for step in {max(rows, 1), span(rows, ROWS, CHUNKS // 2)}:
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
        if step == 1 and left >= ROWS and begin % line + ROWS <= line:
            yield 0
            begin += ROWS
        else:
            rows = -(-left // -(-left // POINTERS))
            yield rows
            begin += rows
