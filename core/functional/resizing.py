"""Resizing images: known weights along each axis, so it is linear and has every derivative."""

from __future__ import annotations

import numpy as np

from ..ir import Array
from .pooling import along


def resize(
    x: Array, sizes: tuple[int, int], method: str = "bilinear", align_corners: bool = False
) -> Array:
    """Images of another size: [N, H, W, C] -> [N, *sizes, C].

    Args:
        x: floats, or anything with "nearest".
        sizes: height and width.
        method: "nearest" (the source pixel that holds the target's first corner) or "bilinear".
        align_corners: of "bilinear": the corners' centres stay where they are; else pixels are
        squares that fill the image, and centres move.
    """
    if x.ndim != 4 or len(sizes) != 2:
        raise ValueError(f"resize takes images [N, H, W, C] and two sizes, not {list(x.shape)}")
    if method == "nearest":
        rows = nearest_places(x.shape[1], sizes[0])
        columns = nearest_places(x.shape[2], sizes[1])
        return np.take(np.take(x, rows, axis=1), columns, axis=2)
    if method != "bilinear":
        raise ValueError(f'resize: the method is "nearest" or "bilinear", not {method!r}')
    tall = along(linear_weights(x.shape[1], sizes[0], align_corners).astype(x.dtype), x, 1)
    return along(linear_weights(x.shape[2], sizes[1], align_corners).astype(x.dtype), tall, 2)


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
