"""The tables of NumPy's ziggurats, measured.

Their last bits are those of the machine that once computed them, so they follow from no formula. A
PCG64 is put into the state that gives a known word next: then a draw is that word times a layer's
width, and whether a second word was taken says whether the layer accepted it.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from ...ir import Array

#: Where the last layers end: Doornik 2005; Marsaglia and Tsang 2000.
NORMAL_TAIL = 3.6541528853610088
EXPONENTIAL_TAIL = 7.69711747013104972

_LAYERS = 256
_FACTOR = (0x2360ED051FC65DA4 << 64) | 0x4385DF649FCCF645
_BITS = 2**128 - 1
_BACK = pow(_FACTOR, -1, 2**128)


class Tables(NamedTuple):
    """A ziggurat of 256 layers."""

    accepts: Array
    """Words below these are in a layer for certain, u64[256]."""
    widths: Array
    """What a word is multiplied by, f64[256]."""
    heights: Array
    """The density at a layer's end, f64[256]."""


def _measured(draw: str, places: tuple[int, int], bits: int, tail: float, height: Any) -> Tables:
    """The ziggurat of a method of NumPy's generators.

    places: where in a word the layer is, and where the `bits` that the width multiplies. tail: the
    last layer's end. height: the density.
    """
    source: Any = np.random.PCG64(0)
    drawn = getattr(np.random.Generator(source), draw)
    state = source.state
    inner = state["state"]

    def of(layer: int, number: int) -> tuple[float, bool]:
        """(what is drawn where this word is next, whether it took no other word)."""
        after = number << places[1] | layer << places[0]  # an upper half of zero turns nothing
        inner["state"] = (after - inner["inc"]) * _BACK & _BITS
        source.state = state
        found = float(drawn())
        return found, source.state["state"]["state"] == after

    widths = [abs(of(layer, 1)[0]) for layer in range(_LAYERS)]
    ends = [width * 2**bits for width in widths]
    accepts = []
    for layer in range(_LAYERS):
        inner_end = tail if layer == 0 else 0.0 if layer == 1 else ends[layer - 1]
        least = int(inner_end / ends[layer] * 2**bits)
        while least and not of(layer, least - 1)[1]:
            least -= 1
        while of(layer, least)[1]:
            least += 1
        accepts.append(least)
    heights = [1.0, *(height(end) for end in ends[1:])]
    return Tables(np.array(accepts, np.uint64), np.array(widths), np.array(heights))


@functools.cache
def normal_tables() -> Tables:
    """Of the half-normal density exp(-x^2 / 2); a word's lowest 8 bits, a sign, 52 bits."""
    return _measured("standard_normal", (0, 9), 52, NORMAL_TAIL, lambda x: math.exp(-0.5 * x * x))


@functools.cache
def exponential_tables() -> Tables:
    """Of the density exp(-x); a word without its lowest 3 bits: 8 bits, 53 bits."""
    return _measured("standard_exponential", (3, 11), 53, EXPONENTIAL_TAIL, lambda x: math.exp(-x))
