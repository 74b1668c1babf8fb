"""Dropout from an explicit key."""

from __future__ import annotations

import numpy as np

from .. import random
from ..ir import Array


def dropout(x: Array, rate: float, key: Array) -> Array:
    """Each element zero with probability `rate`, else divided by 1 - rate (Srivastava et al. 2014).

    Args:
        x: f32 of any shape.
        rate: 0 <= rate < 1, known while compiling.
        key: u32[2]; the same key drops the same elements, on every tier: whole numbers decide.
    """
    if not 0.0 <= rate < 1.0:
        raise ValueError(f"dropout: the rate is at least 0 and below 1, not {rate}")
    if rate == 0.0:
        return x
    kept = random.bits(key, x.shape) >= np.uint32(min(round(rate * 2**32), 2**32 - 1))
    return np.where(kept, x * (1.0 / (1.0 - rate)), 0)
