"""Resizing: each axis times a matrix of weights that is known.

A target's place in the source is linear in its index; the weights are those of the neighbours of
that place, by the nearest, linear or cubic rule, wider where a picture shrinks with `antialias`.
"""

from __future__ import annotations

import numpy as np

from .....compiler.ir import Tensor
from .....compiler.ops.pooling import along
from ..onnx_errors import OnnxError
from ..operator_rows import Row, Rows
from .shape_rows import ints, placed


def resize(
    x: Tensor,
    roi: Tensor = None,
    scales: Tensor = None,
    sizes: Tensor = None,
    *,
    antialias: int = 0,
    axes: tuple[int, ...] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    """Resize, from version 11."""
    rank = len(x.shape)
    chosen = tuple(range(rank)) if axes is None else tuple([placed(a, rank) for a in axes])
    given = scales if scales is not None and scales.size > 0 else None
    if given is not None:
        factors = [float(v) for v in given]
        lengths = [int(np.floor(x.shape[a] * factors[k])) for k, a in enumerate(chosen)]
    else:
        lengths = [*ints(sizes)]
        factors = [lengths[k] / x.shape[a] for k, a in enumerate(chosen)]
        if keep_aspect_ratio_policy != "stretch":
            least = keep_aspect_ratio_policy == "not_larger"
            factor = min(factors) if least else max(factors)
            lengths = [int(np.floor(factor * x.shape[a] + 0.5)) for a in chosen]
            factors = [factor] * len(chosen)
    kind = x.dtype
    y = x
    for k, axis in enumerate(chosen):
        size = x.shape[axis]
        crops = coordinate_transformation_mode == "tf_crop_and_resize"
        begin = float(roi[k]) if crops else 0.0
        end = float(roi[len(chosen) + k]) if crops else 1.0
        if lengths[k] == size and factors[k] == 1 and (begin, end) == (0.0, 1.0):
            continue
        places = source_places(
            size, lengths[k], factors[k], coordinate_transformation_mode, (begin, end)
        )
        if mode == "nearest":
            y = np.take(y, nearest(places, nearest_mode, size), axis=axis)
        else:
            narrow = min(factors[k], 1.0) if antialias else 1.0
            weights = weights_of(places, size, mode, cubic_coeff_a, narrow, bool(exclude_outside))
            y = along(weights.astype(np.float64 if kind == np.float64 else np.float32), y, axis)
        if crops:
            outside = (places < 0) | (places > size - 1)
            shape = (1,) * axis + (-1,) + (1,) * (rank - 1 - axis)
            y = np.where(outside.reshape(shape), extrapolation_value, y)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        y = np.minimum(np.maximum(np.rint(y), limits.min), limits.max)
    return y.astype(kind)


def source_places(
    size: int, wanted: int, factor: float, mode: str, crop: tuple[float, float]
) -> Tensor:
    """f64[wanted]: where each target lies in the source.

    Args:
        size: of the source.
        wanted: size of the target.
        factor: by which the source grows; the target may be cut off a larger one.
        mode: ONNX's coordinate transformation.
        crop: of "tf_crop_and_resize": begin and end of the source, of 0..1.
    """
    target = np.arange(wanted).astype(np.float64)
    whole = factor * size
    begin, end = crop
    if mode == "align_corners":
        return target * (size - 1) / (whole - 1) if whole != 1 else target * 0
    if mode == "asymmetric":
        return _over(target, size, wanted, factor)
    if mode == "tf_crop_and_resize":
        if whole == 1:
            return target * 0 + (end - begin) * (size - 1) / 2 + begin * (size - 1)
        return target * (end - begin) * (size - 1) / (whole - 1) + begin * (size - 1)
    if mode == "pytorch_half_pixel" and whole <= 1:
        return target * 0 - 0.5
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return _over(target + 0.5, size, wanted, factor) - 0.5
    if mode == "half_pixel_symmetric":
        offset = size / 2 * (1 - wanted / whole)
        return offset + _over(target + 0.5, size, wanted, factor) - 0.5
    if mode == "tf_half_pixel_for_nn":
        return _over(target + 0.5, size, wanted, factor)
    raise OnnxError(f"Resize: the coordinate transformation {mode!r} is unknown")


def _over(target: Tensor, size: int, wanted: int, factor: float) -> Tensor:
    """target / factor, where the factor is one of sizes without its own rounding error.

    The middle of an image would else lie just before an element, and `floor` take another one.
    """
    return target * size / wanted if factor == wanted / size else target / factor


def nearest(places: Tensor, mode: str, size: int) -> Tensor:
    """i64: the nearest element to each place."""
    if mode == "floor":
        found = np.floor(places)
    elif mode == "ceil":
        found = np.ceil(places)
    elif mode == "round_prefer_ceil":
        found = np.floor(places + 0.5)
    elif mode == "round_prefer_floor":
        found = np.ceil(places - 0.5)
    else:
        raise OnnxError(f"Resize: the nearest mode {mode!r} is unknown")
    return np.clip(found, 0, size - 1).astype(np.int64)


def weights_of(
    places: Tensor, size: int, mode: str, a: float, narrow: float, excluded: bool
) -> Tensor:
    """f64[wanted, size]: what each target takes of each source.

    Args:
        places: f64[wanted], in the source.
        size: of the source.
        mode: "linear" or "cubic".
        a: the cubic rule's coefficient (Keys 1981).
        narrow: at most 1; the rule is wider by its inverse.
        excluded: elements outside the source count nowhere; else the one at the edge counts.
    """
    if mode not in ("linear", "cubic"):
        raise OnnxError(f"Resize: the mode {mode!r} is unknown")
    reach = (1 if mode == "linear" else 2) / narrow
    first = np.floor(places).astype(np.int64)
    span = int(np.ceil(reach))
    total = np.zeros((places.shape[0], size))
    sums = np.zeros((places.shape[0], 1))
    source = np.arange(size)
    for k in [*range(-span, span + 2)]:
        element = first + k
        share = _rule(np.abs(element - places) * narrow, mode, a)
        if excluded:
            share = np.where((element < 0) | (element >= size), 0.0, share)
        taken = np.clip(element, 0, size - 1)[:, None] == source
        total = total + np.where(taken, share[:, None], 0.0)
        sums = sums + share[:, None]
    if excluded or narrow < 1:
        total = total / np.where(sums == 0, 1.0, sums)
    return total


def _rule(distance: Tensor, mode: str, a: float) -> Tensor:
    """The weight at a distance."""
    d = distance
    if mode == "linear":
        return np.maximum(1 - d, 0)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def old_resize(x: Tensor, scales: Tensor, *, mode: str = "nearest") -> Tensor:
    """Resize of version 10 and Upsample: the place is the index over the scale."""
    if mode == "nearest" and min([float(v) for v in scales]) < 1:
        raise OnnxError(
            "Resize of version 10 to a smaller image: ONNX leaves open which element is nearest",
            "convert the model to version 11 or newer",
        )
    return resize(
        x,
        None,
        scales,
        coordinate_transformation_mode="asymmetric",
        mode=mode,
        nearest_mode="floor",
    )


def old_upsample(x: Tensor, *, scales: tuple[float, ...], mode: str = "nearest") -> Tensor:
    """Upsample of version 7: the scales are an attribute."""
    return old_resize(x, np.array(scales), mode=mode)


RESIZE_ROWS: Rows = {
    "Resize": (Row(old_resize, known=(1,), since=10), Row(resize, known=(1, 2, 3), since=11)),
    "Upsample": (Row(old_upsample, since=7), Row(old_resize, known=(1,), since=9)),
}
