"""Operators that read images between their elements, and those that spread windows out.

A place along an axis is a float in elements: 0 is the middle of the first. What is read there is a
sum over neighbours, each with a weight.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .....compiler.ir import Tensor
from ..onnx_errors import OnnxError
from ..operator_rows import Row, Rows
from .shape_rows import ints

#: The coefficient of cubic convolution that ONNX takes (Keys 1981).
_CUBIC = -0.75


def picked(x: Tensor, places: list[Tensor]) -> Tensor:
    """x [N, C, space...] at whole places [N, P], an array an axis -> [N, P, C]."""
    rows = np.moveaxis(x.reshape(x.shape[0], x.shape[1], -1), 1, 2)
    flat = places[0]
    for k in range(1, len(places)):
        flat = flat * x.shape[2 + k] + places[k]
    return rows[np.arange(x.shape[0])[:, None], flat]


def reflected(place: Tensor, low: float, high: float) -> Tensor:
    """Places folded back at both ends until they are inside."""
    span = high - low
    if span <= 0:
        return place * 0 + low
    beyond = np.where(place < low, low - place, place - high)
    turns = np.floor(beyond / span)
    rest = beyond - turns * span
    even = turns - 2 * np.floor(turns / 2) == 0
    near_low = np.where(even, low + rest, high - rest)
    near_high = np.where(even, high - rest, low + rest)
    return np.where(place < low, near_low, np.where(place > high, near_high, place))


def neighbours(place: Tensor, mode: str) -> list[tuple[Tensor, Tensor]]:
    """Whole places around each one, with their weights."""
    first = np.floor(place)
    part = place - first
    if mode == "linear":
        return [(first, 1 - part), (first + 1, part)]
    a = _CUBIC
    found = []
    for k in [-1, 0, 1, 2]:
        d = np.abs(part - k)
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        found.append((first + k, near if k in (0, 1) else far))
    return found


def grid_sample(
    x: Tensor,
    grid: Tensor,
    *,
    align_corners: int = 0,
    mode: str = "linear",
    padding_mode: str = "zeros",
) -> Tensor:
    """GridSample: x [N, C, space...] at grid [N, outputs..., rank] of -1..1, last axis first."""
    # As in PyTorch, cubic weights are those of the place outside; only its neighbours are held.
    rank = x.ndim - 2
    rule = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if rule not in ("nearest", "linear", "cubic"):
        raise OnnxError(f"GridSample: the mode {mode!r} is unknown")
    points = grid.reshape(grid.shape[0], -1, rank)
    options = []
    for k in range(rank):
        size = x.shape[2 + k]
        n = points[..., rank - 1 - k]
        low, high = (0.0, size - 1.0) if align_corners else (-0.5, size - 0.5)
        place = (n + 1) / 2 * (size - 1) if align_corners else ((n + 1) * size - 1) / 2
        if rule == "nearest":
            place = np.rint(place)
        if padding_mode == "border" and rule != "cubic":
            place = np.minimum(np.maximum(place, 0), size - 1)
        elif padding_mode == "reflection":
            place = reflected(place, low, high)
        around = [(place, None)] if rule == "nearest" else neighbours(place, rule)
        options.append([_inside(p, w, size, low, high, padding_mode) for p, w in around])
    total = weighted(x, options)
    out = np.moveaxis(total, -1, 1).reshape((x.shape[0], x.shape[1], *grid.shape[1:-1]))
    return out.astype(x.dtype)


def _inside(
    place: Tensor, weight: Tensor, size: int, low: float, high: float, mode: str
) -> tuple[Tensor, Tensor]:
    """A whole place within an axis, and its weight: zero for one outside with zeros around."""
    if mode == "reflection":
        place = np.trunc(reflected(place, low, high))
    held = np.minimum(np.maximum(place, 0), size - 1).astype(np.int64)
    if mode != "zeros":
        return held, weight
    there = ((place >= 0) & (place <= size - 1)).astype(place.dtype)
    return held, there if weight is None else there * weight


def weighted(x: Tensor, options: list[Any]) -> Tensor:
    """The sum over all combinations of an axis's neighbours: [N, P, C]."""
    combinations: list[tuple[list[Tensor], Tensor]] = [([], None)]
    for around in options:
        combinations = [
            ([*places, p], w if weight is None else (weight if w is None else weight * w))
            for places, weight in combinations
            for p, w in around
        ]
    total = None
    for places, weight in combinations:
        value = picked(x, places)
        value = value if weight is None else value * weight[..., None]
        total = value if total is None else total + value
    return total


def roi_align(
    x: Tensor,
    rois: Tensor,
    batch: Tensor,
    *,
    coordinate_transformation_mode: str = "half_pixel",
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Tensor:
    """RoiAlign: regions [R, 4] of x [N, C, H, W] -> [R, C, height, width]."""
    if sampling_ratio < 1:
        raise OnnxError(
            "RoiAlign with sampling_ratio 0 takes as many samples as the data say",
            "give it a sampling_ratio",
        )
    half = coordinate_transformation_mode == "half_pixel"
    edges = rois * spatial_scale - (0.5 if half else 0.0)
    wanted = output_height, output_width
    values = x[batch.astype(np.int64)]
    per_axis = []
    for k in range(2):
        start, span = edges[:, 1 - k], edges[:, 3 - k] - edges[:, 1 - k]
        if not half:
            span = np.maximum(span, 1.0)
        bins = wanted[k] * sampling_ratio
        share = (np.arange(bins) + 0.5).astype(x.dtype) / bins
        per_axis.append(start[:, None] + span[:, None] * share)
    rows, columns = per_axis
    shape = rows.shape[0], rows.shape[1], columns.shape[1]
    ys = np.broadcast_to(rows[:, :, None], shape).reshape(shape[0], -1)
    xs = np.broadcast_to(columns[:, None, :], shape).reshape(shape[0], -1)
    height, width = x.shape[2], x.shape[3]
    outside = (ys < -1) | (ys > height) | (xs < -1) | (xs > width)
    corners = [_corners(ys, height), _corners(xs, width)]
    parts = []
    for row, row_share in corners[0]:
        for column, column_share in corners[1]:
            share = np.where(outside, 0, row_share * column_share)
            parts.append(picked(values, [row, column]) * share[..., None])
    if mode == "avg":
        samples = parts[0] + parts[1] + parts[2] + parts[3]
    else:
        samples = np.maximum(np.maximum(parts[0], parts[1]), np.maximum(parts[2], parts[3]))
    split = (shape[0], output_height, sampling_ratio, output_width, sampling_ratio, x.shape[1])
    samples = samples.reshape(split)
    pooled = np.mean(samples, axis=(2, 4)) if mode == "avg" else np.max(samples, axis=(2, 4))
    return np.moveaxis(pooled, -1, 1).astype(x.dtype)


def _corners(place: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """The two elements around a place, moved into the axis, with their weights."""
    held = np.minimum(np.maximum(place, 0), size - 1)
    low = np.floor(held)
    part = held - low
    high = np.minimum(low + 1, size - 1)
    return [(low.astype(np.int64), 1 - part), (high.astype(np.int64), part)]


def deform_conv(
    x: Tensor,
    kernel: Tensor,
    offset: Tensor,
    bias: Tensor = None,
    mask: Tensor = None,
    *,
    dilations: tuple[int, ...] = (1, 1),
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    offset_group: int = 1,
    pads: tuple[int, ...] = (0, 0, 0, 0),
    strides: tuple[int, ...] = (1, 1),
) -> Tensor:
    """DeformConv of images [N, C, H, W]: each element of the kernel reads at a place of its own."""
    if x.ndim != 4:
        raise OnnxError(f"DeformConv takes images, not shape {list(x.shape)}")
    n, c, h, w = x.shape
    oh, ow = offset.shape[2:]
    kh, kw = kernel.shape[2:]
    moves = offset.reshape(n, offset_group, kh * kw, 2, oh, ow)
    shares = None if mask is None else mask.reshape(n, offset_group, kh * kw, oh * ow)
    each = c // offset_group
    rows = (np.arange(oh) * strides[0] - pads[0])[:, None]
    columns = (np.arange(ow) * strides[1] - pads[1])[None, :]
    taps = []
    for i in [*range(kh * kw)]:
        groups = []
        for g in [*range(offset_group)]:
            y = (rows + (i // kw) * dilations[0]).astype(x.dtype) + moves[:, g, i, 0]
            z = (columns + (i % kw) * dilations[1]).astype(x.dtype) + moves[:, g, i, 1]
            options = []
            for place, size in ((y, h), (z, w)):
                around = neighbours(place.reshape(n, -1), "linear")
                options.append([_inside(p, s, size, 0.0, 0.0, "zeros") for p, s in around])
            read = weighted(x[:, g * each : (g + 1) * each], options)
            groups.append(read if shares is None else read * shares[:, g, i][..., None])
        taps.append(np.concatenate(groups, -1))
    gathered = np.stack(taps, 2).reshape(n, oh * ow, kh * kw, group, c // group)
    weights = kernel.reshape(group, -1, c // group, kh * kw)
    out = np.einsum("npkgc,gock->ngop", gathered, weights).reshape(n, -1, oh, ow)
    return out if bias is None else out + bias.reshape(-1, 1, 1)


def col2im(
    x: Tensor,
    image: Tensor,
    block: Tensor,
    *,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """Col2Im: blocks as columns [N, C block, L], added up in an image [N, C, space...]."""
    sizes, window = ints(image), ints(block)
    rank = len(sizes)
    apart = (1,) * rank if dilations is None else dilations
    step = (1,) * rank if strides is None else strides
    edges = (0,) * (2 * rank) if pads is None else pads
    counts = []
    for k in range(rank):
        room = sizes[k] + edges[k] + edges[k + rank] - apart[k] * (window[k] - 1) - 1
        counts.append(room // step[k] + 1)
    channels = x.shape[1] // math.prod(window)
    parts = x.reshape(x.shape[0], channels, math.prod(window), *counts)
    whole = [sizes[k] + edges[k] + edges[k + rank] for k in range(rank)]
    out = np.zeros((x.shape[0], channels, *whole), x.dtype)
    for i in [*range(math.prod(window))]:
        rest = i
        place: list[int] = []
        for n in window[::-1]:
            place.insert(0, rest % n)
            rest = rest // n
        index = [slice(None), slice(None)]
        for k in range(rank):
            first = place[k] * apart[k]
            index.append(slice(first, first + (counts[k] - 1) * step[k] + 1, step[k]))
        out[tuple(index)] += parts[:, :, i]
    inner = [slice(edges[k], edges[k] + sizes[k]) for k in range(rank)]
    return out[(slice(None), slice(None), *inner)]


def max_unpool(
    x: Tensor,
    indices: Tensor,
    shape: Tensor = None,
    *,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """MaxUnpool: elements at their old places in the pooled tensor, zeros elsewhere."""
    rank = len(kernel_shape)
    step = (1,) * rank if strides is None else strides
    edges = (0,) * (2 * rank) if pads is None else pads
    sizes = [*x.shape[:2]]
    for k in range(rank):
        reach = (x.shape[2 + k] - 1) * step[k] + kernel_shape[k]
        sizes.append(reach - edges[k] - edges[k + rank])
    out = np.zeros(math.prod(sizes), x.dtype)
    out[indices.reshape(-1)] = x.reshape(-1)
    out = out.reshape(tuple(sizes))
    if shape is None:
        return out
    widths = [(0, n - sizes[k]) for k, n in enumerate(ints(shape))]
    return np.pad(out, tuple(widths))


SAMPLING_ROWS: Rows = {
    "Col2Im": Row(col2im, known=(1, 2)),
    "DeformConv": Row(deform_conv),
    "GridSample": Row(grid_sample),
    "MaxUnpool": Row(max_unpool, known=(2,)),
    "RoiAlign": Row(roi_align, since=16),
}
