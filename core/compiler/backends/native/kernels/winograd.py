"""Which convolutions are computed by minimal filtering (winograd.h), and what they work in.

3x3 and 5x5 kernels without strides, where channels fill vectors and what is saved in products is
more than what tiles cost. Rounding errors are then relative to the largest numbers around a pixel,
and some five times those of sums one after the other, for 5x5 ten: within what `tolerance` allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: The sizes of winograd.h.
_SIDE, _BLOCK_FLOATS, _BLOCK_TILES, _PAD = 4, 147456, 32, 16
#: Channels are multiples of the widest vector's lanes.
_LANES = 16
#: What making a tile of each channel of the image costs, making its pixels, and making the matrices
#: of each pair of channels, in multiply-adds of a place; and the part of a plain convolution's time
#: that is worth it. As measured.
_TILE, _PIXELS, _MATRICES = 8, 6, 4
_WORTH = 0.8
#: Pixels that a gradient by a 5x5 kernel sums at least: the errors of fewer do not average out.
_SUMMED = 256
#: Sides of an image at least, unless the kernel's are smaller.
_IMAGE = 4
_SIZES = ("n", "h", "w", "c", "o", "oh", "ow")


@dataclass(frozen=True, slots=True)
class Tiling:
    """How images fall into tiles: as of `dl_tiling_of`."""

    points: int  #: of a whole tile's side
    down: int
    across: int
    last_down: int  #: points of an image's last tiles
    last_across: int
    rows: int  #: rows of tiles of a strip
    strips: int  #: of an image
    together: int  #: strips of a block
    every: int  #: strips there are

    @classmethod
    def of(cls, d: Mapping[str, int]) -> Tiling:
        """The tiling of a convolution's sizes; a gradient by the input is one whose image is y."""
        points = d["kh"] + 3
        down, across = -(-d["oh"] // _SIDE), -(-d["ow"] // _SIDE)
        most = max(_BLOCK_FLOATS // (points * points * (d["c"] + d["o"])), _BLOCK_TILES)
        rows = max(1, min(most // across, down))
        strips = -(-down // rows)
        rows = -(-down // strips)
        every = d["n"] * strips
        blocks = -(-every // max(1, most // (rows * across)))
        low, narrow = last_points(d["kh"], d["oh"]), last_points(d["kh"], d["ow"])
        return cls(points, down, across, low, narrow, rows, strips, -(-every // blocks), every)

    @property
    def places(self) -> int:
        """Products of an image and a pair of channels."""
        down = (self.down - 1) * self.points + self.last_down
        return down * ((self.across - 1) * self.points + self.last_across)

    def products(self) -> set[int]:
        """How many tiles the products of blocks are over."""
        found = set[int]()
        narrow = int(self.last_across < self.points)
        for first in range(0, self.every, self.together):
            high = low = 0
            for number in range(first, min(first + self.together, self.every)):
                row = number % self.strips * self.rows
                rows = min(self.rows, self.down - row)
                ends = int(row + rows == self.down and self.last_down < self.points)
                high, low = high + rows - ends, low + ends
            wide = self.across - narrow
            found |= {high * self.across, high * wide, (high + low) * wide}
            found.add((high + low) * self.across)
        return found - {0}


def last_points(side: int, size: int) -> int:
    """Points of the last tile of so many output pixels, for kernels of this side."""
    left = size % _SIDE
    if not left:
        return side + 3
    return left + 2 if side == 3 else 6 if left < 3 else 8


def forward(name: str, d: Mapping[str, int]) -> Mapping[str, int]:
    """The sizes of the convolution whose tiles are made; an input gradient is one of y."""
    if name != "conv_input_grad":
        return d
    return {**d, "c": d["o"], "o": d["c"], "oh": d["h"], "ow": d["w"]}


def fits(name: str, d: Mapping[str, int]) -> bool:
    """Whether tiles are faster for these sizes and stay within the tolerance."""
    if not _sums_enough(name, d):
        return False
    square = d["kh"] == d["kw"] and d["kh"] in (3, 5) and d["sh"] == d["sw"] == 1
    filled = d["c"] % _LANES == 0 and d["o"] % _LANES == 0
    if not square or not filled or not all(d[size] for size in _SIZES):
        return False
    made, pairs = forward(name, d), d["c"] * d["o"]
    tiling = Tiling.of(made)
    cost = d["n"] * tiling.places * (pairs + _TILE * made["c"] + _PIXELS * made["o"])
    cost += _MATRICES * tiling.points**2 * pairs
    return cost < _WORTH * d["n"] * d["oh"] * d["ow"] * d["kh"] * d["kw"] * pairs


def _sums_enough(name: str, d: Mapping[str, int]) -> bool:
    """Whether a result's sums have enough terms for the errors of tiles.

    Sums over an image smaller than a kernel have few of its numbers; the errors are of all.
    """
    sides = {"conv": ("h", "w"), "conv_input_grad": ("oh", "ow")}.get(name, ("h", "w", "oh", "ow"))
    if min(d[side] for side in sides) < min(d["kh"], _IMAGE):
        return False
    few = d["kh"] == 5 and d["n"] * d["oh"] * d["ow"] < _SUMMED
    return name != "conv_weight_grad" or not few


def scratch_floats(name: str, d: Mapping[str, int]) -> int:
    """Floats that a convolution, or a gradient of it, works in."""
    places = (d["kh"] + 3) ** 2
    matrices = places * (d["c"] * d["o"] + _PAD)
    block = _block(forward(name, d))
    if name == "conv_input_grad":
        block = max(block, d["kh"] * d["kw"] * d["c"] * d["o"])  # the kernel, exchanged
    return matrices + block


def _block(d: Mapping[str, int]) -> int:
    """Floats of a block: tiles of both sides, and a frame of the wider one."""
    a = Tiling.of(d)
    tiles, edge = a.together * a.rows * a.across, d["kh"] - 1
    frame = (_SIDE * a.rows + edge) * (_SIDE * a.across + edge) * max(d["c"], d["o"])
    return a.points**2 * (tiles * (d["c"] + d["o"]) + 2 * _PAD) + frame
