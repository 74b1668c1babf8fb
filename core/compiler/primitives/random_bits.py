"""`threefry`: counter-based random bits, the same on every tier.

Threefry-2x32 with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import Array, Block, DType, Op, TensorType, Type
from . import batching
from .table import Attrs, Primitive
from .type_checks import differ, fail, scalar


def _threefry_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    k0, k1, c0, c1 = types
    # One key for all counters, or a key for each.
    if k0 != c0 or k1 != c0 or k0 != TensorType(DType.U32, getattr(c0, "shape", ())):
        scalar("threefry", k0, DType.U32, "the first half of the key")
        scalar("threefry", k1, DType.U32, "the second half of the key")
    if type(c0) is not TensorType or c0.dtype is not DType.U32:
        fail("threefry", f"the counters must be u32, not {c0}")
    if c0 != c1:
        differ("threefry", c0, c1)
    return (c0, c0)


# The paper's: rotation distances of eight rounds, and the word that the third key is made with.
ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
PARITY = np.uint32(0x1BD11BDA)
ROUNDS = 20
#: Rounds between two additions of the key.
ROUNDS_A_KEY = 4
#: A round adds, shifts twice, ors and xors; keys and a counter are added five times, first keys.
_OPERATIONS = ROUNDS * 5 + (ROUNDS // ROUNDS_A_KEY) * 3 + 2


def _rotate(x: Array, distance: int) -> Array:
    return (x << np.uint32(distance)) | (x >> np.uint32(32 - distance))


def _threefry(args: Sequence[Any], attrs: Attrs) -> Sequence[Any]:
    k0, k1, c0, c1 = args
    keys = (k0, k1, k0 ^ k1 ^ PARITY)
    with np.errstate(over="ignore"):
        x, y = c0 + k0, c1 + k1
        for i in range(ROUNDS):
            x = x + y
            y = _rotate(y, ROTATIONS[i % len(ROTATIONS)]) ^ x
            if i % ROUNDS_A_KEY == ROUNDS_A_KEY - 1:
                n = i // ROUNDS_A_KEY + 1
                x = x + keys[n % 3]
                y = y + keys[(n + 1) % 3] + np.uint32(n)
    return np.asarray(x), np.asarray(y)


def _cost(op: Op) -> int:
    return op.results[0].tensor.size * _OPERATIONS


ROWS = (
    Primitive(
        "threefry",
        _threefry_type,
        _threefry,
        None,
        None,
        _cost,
        operands=4,
        batch=batching.threefry,
    ),
)
