"""A fixed rotation that spreads a vector's length evenly over its coordinates.

    y = H S x / sqrt(b)        block by block of b coordinates

S are fixed random signs and H is Hadamard's matrix of ones and minus ones, so it is orthonormal:
norms stay what they were, and S H y / sqrt(b) gives x back. Whatever x is, coordinates of y are
about |x| / sqrt(b) and hardly ever `SPREAD` times that: where x was not chosen to fit S, the chance
is below 2 exp(-SPREAD^2/2) for each (Hoeffding). So a ring has to have room for coordinates of that
size only, not of |x|, and its steps can be so much finer (Suresh et al. 2017, "Distributed mean
estimation with limited communication", section 3).

H x is made by log2(b) passes of sums and differences. Each result is one tree of additions, the
same wherever it is computed, so all back ends agree on every bit; and it takes no longer than the
two products with matrices of 64 rows that a block of 4096 could be made of.

Written in the compiled language's vocabulary: `rotate` is traced into `client_update`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ...compiler import random

#: Coordinates that are mixed. A power of four: its square root is a power of two, exact.
BLOCK_MAX = 4096
#: Deviations that the ring has room for; a power of two. 2 exp(-32) is 3e-14.
SPREAD = 8.0
_STRIDES = tuple(2**i for i in range(12))


def block_of(dimension: int) -> int:
    """b, for vectors of so many coordinates: no larger than it need be for the small ones."""
    most = min(dimension, BLOCK_MAX) - 1
    return 1 << (most.bit_length() + 1) // 2 * 2


def padded(dimension: int) -> int:
    """Coordinates of a rotated vector: whole blocks."""
    block = block_of(dimension)
    return -(-dimension // block) * block


def peak(dimension: int) -> float:
    """The largest coordinate of a rotated vector of length 1, but for the chance above."""
    return min(1.0, SPREAD / math.sqrt(block_of(dimension)))


@functools.cache
def _signs() -> Any:
    """The signs of a block's coordinates, f32[BLOCK_MAX]; made on first use."""
    odd = random.bits(random.key(0x44454C49414E), (BLOCK_MAX,)) & 1
    return (odd.astype(np.float32) * 2.0 - 1.0).astype(np.float32)


def rotate(x: Any, dimension: int) -> Any:
    """f32[dimension] -> f32[padded(dimension)]."""
    block, total = block_of(dimension), padded(dimension)
    wide = np.concatenate([x, np.zeros(total - dimension, np.float32)])
    mixed = _hadamard(wide.reshape(-1, block) * _signs()[:block], total // block, block)
    return mixed.reshape(-1) * np.float32(1.0 / math.sqrt(block))


def rotate_back(y: Any, dimension: int) -> Any:
    """f32[padded(dimension)] -> f32[dimension]: the inverse, but for rounding to f32."""
    block, total = block_of(dimension), padded(dimension)
    mixed = _hadamard(y.reshape(-1, block), total // block, block) * _signs()[:block]
    flat = mixed.reshape(-1) * np.float32(1.0 / math.sqrt(block))
    return flat[:dimension]


def _hadamard(x: Any, rows: int, block: int) -> Any:
    """f32[rows, block] times H, which is its own transpose."""
    for stride in _STRIDES[: block.bit_length() - 1]:
        pairs = x.reshape(rows, block // (2 * stride), 2, stride)
        left, right = pairs[:, :, 0], pairs[:, :, 1]
        x = np.stack([left + right, left - right], axis=2)
    return x.reshape(rows, block)
