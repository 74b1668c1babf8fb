"""`threefry`: counter-based random bits, the same on every tier (Salmon et al. 2011, "Parallel random numbers: as easy
as 1, 2, 3"; 2x32 words, 20 rounds)."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import Block, DType, TensorType, Type
from .checks import differ, fail, scalar
from .table import Attrs, Primitive


def _threefry_type(
    types: Sequence[Type], attrs: Attrs, regions: Sequence[Block]
) -> tuple[Type, ...]:
    k0, k1, c0, c1 = types
    scalar("threefry", k0, DType.U32, "the first half of the key")
    scalar("threefry", k1, DType.U32, "the second half of the key")
    if type(c0) is not TensorType or c0.dtype is not DType.U32:
        fail("threefry", f"the counters must be u32, not {c0}")
    if c0 != c1:
        differ("threefry", c0, c1)
    return (c0, c0)


ROWS = (Primitive("threefry", _threefry_type, None, None, None, lambda op: 0, operands=4),)
