"""Resizing images: known weights along each axis, so it is linear and has every derivative."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..ir import Array
from .pooling import along


def resize(
    x: Array, sizes: Sequence[int], method: str = "bilinear", align_corners: bool = False
) -> Array:
    """Images, sequences or volumes of another size: [N, space..., C] -> [N, *sizes, C].

    Args:
        x: floats, or anything with "nearest".
        sizes: one an axis between N and C.
        method: "nearest" (the source pixel that holds the target's first corner) or "bilinear"
            (linear along each axis).
        align_corners: of "bilinear": the corners' centres stay where they are; else pixels are
            squares that fill the image, and centres move.
    """
    if method not in ("nearest", "bilinear"):
        raise ValueError(f'resize: the method is "nearest" or "bilinear", not {method!r}')
    if x.ndim < 3 or len(sizes) != x.ndim - 2:
        raise ValueError(
            f"resize takes images [N, H, W, C] and two sizes, sequences [N, T, C] and one, or "
            f"volumes and three, not shape {list(x.shape)} and {len(sizes)} sizes"
        )
    for k, wanted in enumerate(tuple(sizes)):
        if method == "nearest":
            x = np.take(x, nearest_places(x.shape[1 + k], wanted), axis=1 + k)
        else:
            weights = linear_weights(x.shape[1 + k], wanted, align_corners)
            x = along(weights.astype(x.dtype), x, 1 + k)
    return x


def nearest_places(size: int, wanted: int) -> Array:
    """i64[wanted]: which of `size` elements each takes; known while compiling."""
    return np.arange(wanted) * size // wanted


def linear_weights(size: int, wanted: int, align_corners: bool) -> Array:
    """f64[wanted, size]: what each takes of its two neighbours; known while compiling."""
    if align_corners:
        scale = (size - 1) / (wanted - 1) if wanted > 1 else 0.0
        places = np.arange(wanted) * scale
    else:
        places = np.maximum((np.arange(wanted) + 0.5) * (size / wanted) - 0.5, 0.0)
    low = np.minimum(places.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    share = places - low
    out = np.zeros((wanted, size))
    rows = np.arange(wanted)
    np.add.at(out, (rows, low), 1.0 - share)
    np.add.at(out, (rows, high), share)
    return out
