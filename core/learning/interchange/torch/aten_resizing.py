"""ATen's resizing of images, [N, C, space...]: known weights along each axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....compiler.ir import Array, Tensor
from ....compiler.ops.pooling import along
from .aten_row import Row


def _steps(size: int, wanted: int, align_corners: bool, scale: float | None) -> Array:
    """f64[wanted]: where the outputs' centres lie among the inputs."""
    if align_corners:
        return np.arange(wanted) * ((size - 1) / (wanted - 1) if wanted > 1 else 0.0)
    ratio = size / wanted if scale is None or scale <= 0 else 1.0 / scale
    return (np.arange(wanted) + 0.5) * ratio - 0.5


def linear_matrix(size: int, wanted: int, align_corners: bool, scale: float | None) -> Array:
    """f64[wanted, size]: what each output takes of its two neighbours."""
    places = np.maximum(_steps(size, wanted, align_corners, scale), 0.0)
    low = np.minimum(places.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    share = np.minimum(places - low, 1.0)
    out, rows = np.zeros((wanted, size)), np.arange(wanted)
    np.add.at(out, (rows, low), 1.0 - share)
    np.add.at(out, (rows, high), share)
    return out


def cubic_matrix(size: int, wanted: int, align_corners: bool, scale: float | None) -> Array:
    """f64[wanted, size]: cubic convolution with a = -0.75 (Keys 1981), edges repeated."""
    places, a = _steps(size, wanted, align_corners, scale), -0.75
    low = np.floor(places).astype(np.int64)
    share = places - low
    out, rows = np.zeros((wanted, size)), np.arange(wanted)
    for k in range(4):
        far = np.abs(share + 1 - k)
        near = ((a + 2) * far - (a + 3)) * far * far + 1
        outer = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
        weights = np.where(far <= 1, near, outer)
        np.add.at(out, (rows, np.clip(low - 1 + k, 0, size - 1)), weights)
    return out


def _resized(
    x: Tensor,
    kind: Any,
    output_size: Any,
    align_corners: bool,
    scales: Sequence[float | None],
    channels: int,
) -> Tensor:
    rank, start = x.ndim - 2, 1 if channels == -1 else 2
    for k in range(rank):
        size, scale = x.shape[start + k], scales[k] if len(scales) else None
        wanted = int(size * scales[k]) if output_size is None else output_size[k]
        if wanted != size or scale is not None:
            matrix = kind(size, wanted, align_corners, scale)
            x = along(matrix.astype(x.dtype), x, start + k)
    return x


def upsample_linear_by(
    x: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None, channels: int = 1
) -> Tensor:
    return _resized(x, linear_matrix, output_size, align_corners, scale_factors or (), channels)


def upsample_linear(
    x: Tensor, output_size: Any, align_corners: bool, *scales: Any, channels: int = 1
) -> Tensor:
    return _resized(x, linear_matrix, output_size, align_corners, scales, channels)


def upsample_cubic_by(
    x: Tensor, output_size: Any, align_corners: bool, scale_factors: Any = None, channels: int = 1
) -> Tensor:
    return _resized(x, cubic_matrix, output_size, align_corners, scale_factors or (), channels)


def upsample_cubic(
    x: Tensor, output_size: Any, align_corners: bool, *scales: Any, channels: int = 1
) -> Tensor:
    return _resized(x, cubic_matrix, output_size, align_corners, scales, channels)


def _nearest(
    x: Tensor, output_size: Any, scales: Sequence[float | None], offset: float, channels: int
) -> Tensor:
    """Nearest neighbours; ATen computes the places in f32."""
    rank, start = x.ndim - 2, 1 if channels == -1 else 2
    for k in range(rank):
        size, scale = x.shape[start + k], scales[k] if len(scales) else None
        wanted = int(size * scales[k]) if output_size is None else output_size[k]
        ratio = size / wanted if scale is None or scale <= 0 else 1.0 / scale
        steps = (np.arange(wanted).astype(np.float32) + np.float32(offset)) * np.float32(ratio)
        places = np.minimum(np.floor(steps).astype(np.int64), size - 1)
        x = np.take(x, places, axis=start + k)
    return x


def upsample_nearest_by(
    x: Tensor, output_size: Any, scale_factors: Any = None, channels: int = 1
) -> Tensor:
    return _nearest(x, output_size, scale_factors or (), 0.0, channels)


def upsample_nearest(x: Tensor, output_size: Any, *scales: Any, channels: int = 1) -> Tensor:
    return _nearest(x, output_size, scales, 0.0, channels)


def upsample_nearest_exact_by(
    x: Tensor, output_size: Any, scale_factors: Any = None, channels: int = 1
) -> Tensor:
    return _nearest(x, output_size, scale_factors or (), 0.5, channels)


def upsample_nearest_exact(x: Tensor, output_size: Any, *scales: Any, channels: int = 1) -> Tensor:
    return _nearest(x, output_size, scales, 0.5, channels)


_BY = {
    "upsample_nearest": upsample_nearest_by,
    "_upsample_nearest_exact": upsample_nearest_exact_by,
}
_TO = {"upsample_nearest": upsample_nearest, "_upsample_nearest_exact": upsample_nearest_exact}
_LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")

ROWS: dict[str, Row] = {
    **{f"{name}{d}d.vec": Row(f, layout="images") for name, f in _BY.items() for d in (1, 2, 3)},
    **{f"{name}{d}d": Row(f, layout="images") for name, f in _TO.items() for d in (1, 2, 3)},
    **{f"{name}.vec": Row(upsample_linear_by, layout="images") for name in _LINEAR},
    **{name: Row(upsample_linear, layout="images") for name in _LINEAR},
    "upsample_bicubic2d.vec": Row(upsample_cubic_by, layout="images"),
    "upsample_bicubic2d": Row(upsample_cubic, layout="images"),
}
