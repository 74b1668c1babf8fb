"""Positions as rotations of queries and keys (Su et al. 2021, RoFormer)."""

from __future__ import annotations

import numpy as np

from ..ir import Array

#: Su et al. 2021, section 3.2.2: wavelengths go from 2 pi to about this times 2 pi.
_LONGEST = 10_000.0


def rotary(x: Array, base: float = _LONGEST, first: int = 0) -> Array:
    """Vectors turned by angles that grow with their position: f32[..., T, D] -> f32[..., T, D].

    Element i of the first half and of the second are a pair, as in Llama's models, and position t
    turns it by (first + t) base^(-2 i / D). So a query's product with a key depends on how far they
    are apart. Raises ValueError for an odd D.
    """
    if x.shape[-1] % 2:
        raise ValueError(f"rotary takes vectors of an even length, not {x.shape[-1]}")
    half = x.shape[-1] // 2
    frequencies = base ** (-np.arange(half) / half)
    angles = np.arange(first, first + x.shape[-2])[:, None] * frequencies
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=-1)
