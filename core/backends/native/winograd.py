"""Which convolutions are computed by minimal filtering (winograd.h), and what they work in.

3x3 and 5x5 kernels without strides, where channels fill vectors and what is saved in products is
more than what tiles cost. Rounding errors are then relative to the largest numbers around a pixel,
and some five times those of sums one after the other: within what `tolerance` allows.
"""

from __future__ import annotations

from collections.abc import Mapping

#: The sizes of winograd.h.
_PLACES = 36
_BLOCK_FLOATS, _BLOCK_TILES, _PAD = 4096, 32, 16
#: Channels are multiples of the widest vector's lanes.
_LANES = 16
#: What making a tile of each channel of the image costs, making its pixels, and making the matrices
#: of each pair of channels, in multiply-adds; and the part of a plain convolution's time that is
#: worth it. As measured.
_TILE, _PIXELS, _MATRICES = 300, 200, 150
_WORTH = 0.8


def fits(d: Mapping[str, int]) -> bool:
    """Whether a convolution of these sizes (or a gradient of it) is faster so."""
    square = d["kh"] == d["kw"] and d["kh"] in (3, 5) and d["sh"] == d["sw"] == 1
    filled = d["c"] % _LANES == 0 and d["o"] % _LANES == 0
    if not square or not filled or d["n"] * d["c"] * d["o"] * d["oh"] * d["ow"] == 0:
        return False
    side = 7 - d["kh"]
    tiles = d["n"] * -(-d["oh"] // side) * -(-d["ow"] // side)
    pairs = d["c"] * d["o"]
    cost = tiles * (_PLACES * pairs + _TILE * d["c"] + _PIXELS * d["o"]) + _MATRICES * pairs
    return cost < _WORTH * d["n"] * d["oh"] * d["ow"] * d["kh"] * d["kw"] * pairs


def scratch_floats(name: str, d: Mapping[str, int]) -> int:
    """Floats that a convolution, or a gradient of it, works in."""
    matrices = _PLACES * (d["c"] * d["o"] + _PAD)
    if name == "conv":
        return matrices + _block(d)
    if name == "conv_input_grad":
        turned = {"c": d["o"], "o": d["c"], "oh": d["h"], "ow": d["w"]}
        return matrices + max(_block({**d, **turned}), d["kh"] * d["kw"] * d["c"] * d["o"])
    return matrices + _block(d, summed=True)


def _block(d: Mapping[str, int], summed: bool = False) -> int:
    """Floats of a block: tiles of both sides, and a frame of the wider one. `summed`: over all
    images, which may be one high one.
    """
    side, edge = 7 - d["kh"], d["kh"] - 1
    down, across = -(-d["oh"] // side), -(-d["ow"] // side)
    most = max(_BLOCK_FLOATS // (d["c"] + d["o"]), _BLOCK_TILES)
    rows = max(1, min(most // across, down))
    images = d["n"]
    below = d["oh"] + edge - d["top"] - d["h"]
    period = max(d["oh"], d["h"] + max(d["top"], below))
    high = -(-((images - 1) * period + d["oh"]) // side)
    if summed and images > 1 and high < images * down:
        images, down = 1, high
    strips = -(-down // rows)
    rows = -(-down // strips)
    every = images * strips
    blocks = -(-every // max(1, most // (rows * across)))
    tiles = -(-every // blocks) * rows * across
    frame = (side * rows + edge) * (side * across + edge) * max(d["c"], d["o"])
    return _PLACES * (tiles * (d["c"] + d["o"]) + 2 * _PAD) + frame
