"""ATen's convolutions, pools and resizing: images are [N, C, space...] there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....compiler import ops
from ....compiler.ir import Tensor
from ....compiler.ops.pooling import along, window_means
from ..channel_axes import channels_first, channels_last
from .aten_row import Row


def each(rank: int, value: Any) -> tuple[int, ...]:
    """One number an axis, from one for all or one each."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * rank if len(values) == 1 else values


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    channels: int = 1,
    stored: bool = False,
) -> Tensor:
    """weight: [O, C / groups, space...]; of a transposed one [C, O / groups, space...].

    channels: the axis of channels, 1 or -1. stored: the weight's axes are those of `kernel_axes`.
    """
    rank = weight.ndim - 2
    batched = x.ndim == rank + 2
    if channels == 1:
        x = channels_last(x if batched else x[None])
    kernel = weight if stored else np.transpose(weight, kernel_axes(weight.ndim, transposed))
    strides, apart = each(rank, stride), each(rank, dilation)
    edges = tuple([(p, p) for p in each(rank, padding)])
    if transposed:
        more = each(rank, output_padding)
        function = (ops.conv_transpose1d, ops.conv_transpose2d, ops.conv_transpose3d)[rank - 1]
        y = function(x, kernel, strides, edges, apart, groups, more)
    else:
        y = (ops.conv1d, ops.conv2d, ops.conv3d)[rank - 1](x, kernel, strides, edges, apart, groups)
    y = y if bias is None else y + bias
    return y if channels == -1 else _given_back(y, batched)


def kernel_axes(rank: int, transposed: bool) -> tuple[int, ...]:
    """The axes of a weight as Delian has them: [space..., C / groups, O]."""
    return (*range(2, rank), 0, 1) if transposed else (*range(2, rank), 1, 0)


def _given_back(y: Tensor, batched: bool) -> Tensor:
    return channels_first(y) if batched else channels_first(y)[0]


def _pooled(rank: int, x: Tensor, channels: int) -> tuple[Tensor, bool]:
    batched = x.ndim == rank + 2
    return x if channels == -1 else channels_last(x if batched else x[None]), batched


def max_pool(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    channels: int = 1,
    rank: int = 2,
) -> tuple[Tensor]:
    """Elements that tie for a maximum share its slope, which PyTorch gives to the first."""
    sizes = each(rank, kernel_size)
    strides = each(rank, stride) if stride else sizes
    edges = tuple([(p, p) for p in each(rank, padding)])
    y, batched = _pooled(rank, x, channels)
    if all(p == (0, 0) for p in edges):
        y = ops.max_pool(y, sizes, strides, "VALID", each(rank, dilation), ceil_mode)
    else:
        y = ops.max_pool(y, sizes, strides, edges, each(rank, dilation), ceil_mode)
    return (y if channels == -1 else _given_back(y, batched),)


def max_pool1d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    channels: int = 1,
) -> Tensor:
    return max_pool(x, kernel_size, stride, padding, dilation, ceil_mode, channels, 1)[0]


def max_pool_places(
    x: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    rank: int = 2,
) -> tuple[Tensor, Tensor]:
    """The largest of each window, and its place among the pixels of its channel, i64."""
    strides = each(rank, stride) if stride else each(rank, kernel_size)
    settings = zip(
        each(rank, kernel_size), strides, each(rank, padding), each(rank, dilation), strict=True
    )
    lead = x.ndim - rank
    sizes = x.shape[lead:]
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    values, places = x, np.broadcast_to(numbers, x.shape)
    for k, (size, step, edge, apart) in enumerate(settings):
        axis, length = lead + k, sizes[k]
        span, whole = (size - 1) * apart + 1, (slice(None),) * (lead + k)
        count = (length + 2 * edge - span) // step + 1
        if ceil_mode:
            count = -(-(length + 2 * edge - span) // step) + 1
            count = count - 1 if (count - 1) * step >= length + edge else count
        more = max(edge, (count - 1) * step + span - length - edge)
        widths = [(edge, more) if j == axis else (0, 0) for j in range(x.ndim)]
        least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
        values = np.pad(values, widths, constant_values=least)
        places = np.pad(places, widths)
        parts = [
            (*whole, slice(j * apart, j * apart + (count - 1) * step + 1, step))
            for j in range(size)
        ]
        windows = np.stack([values[part] for part in parts])
        first = np.expand_dims(np.argmax(windows, axis=0), 0)
        numbered = np.stack([places[part] for part in parts])
        values = np.take_along_axis(windows, first, axis=0)[0]
        places = np.take_along_axis(numbered, first, axis=0)[0]
    return values, places


def avg_pool(
    x: Tensor,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    channels: int = 1,
    rank: int = 2,
) -> Tensor:
    sizes = each(rank, kernel_size)
    strides = each(rank, stride) if stride else sizes
    edges = tuple([(p, p) for p in each(rank, padding)])
    y, batched = _pooled(rank, x, channels)
    if divisor_override is not None:
        ones = np.ones((1, *y.shape[1:-1], 1), np.float32)
        count = _window_counts(ones, sizes, strides, edges, ceil_mode)
        mean = ops.avg_pool(y, sizes, strides, edges, False, ceil_mode)
        y = mean * (count / divisor_override).astype(y.dtype)
    elif all(p == (0, 0) for p in edges) and not ceil_mode:
        y = ops.avg_pool(y, sizes, strides, "VALID")
    else:
        y = ops.avg_pool(y, sizes, strides, edges, count_include_pad, ceil_mode)
    return y if channels == -1 else _given_back(y, batched)


def _window_counts(ones: Tensor, sizes: Any, strides: Any, edges: Any, ceil: bool) -> Tensor:
    """How many elements of the input each window has: the ratio of two means of ones."""
    area = 1
    for size in sizes:
        area = area * size
    wide = [
        (before, after + size + stride)
        for (before, after), size, stride in zip(edges, sizes, strides, strict=True)
    ]
    padded = np.pad(ones, ((0, 0), *wide, (0, 0)))
    sums = ops.avg_pool(padded, sizes, strides, "VALID", True, False) * float(area)
    inside = ops.avg_pool(ones, sizes, strides, edges, False, ceil)
    return sums[tuple([slice(0, n) for n in inside.shape])]


def adaptive_avg_pool(x: Tensor, output_size: Any, channels: int = 1) -> Tensor:
    """Means over as many windows as asked for, along the axes of space."""
    sizes = (output_size,) if isinstance(output_size, int) else tuple(output_size)
    rank = len(sizes)
    start = 1 if channels == -1 else x.ndim - rank
    if all(n == 1 for n in sizes):
        return np.mean(x, axis=tuple(range(start, start + rank)), keepdims=True)
    for k in range(rank):
        axis = start + k
        if sizes[k] != x.shape[axis]:
            x = along(window_means(x.shape[axis], sizes[k]).astype(x.dtype), x, axis)
    return x


def adaptive_max_pool(x: Tensor, output_size: Any) -> tuple[Tensor]:
    sizes = (output_size,) if isinstance(output_size, int) else tuple(output_size)
    rank = len(sizes)
    for k in range(rank):
        axis, wanted = x.ndim - rank + k, sizes[k]
        length, whole = x.shape[axis], (slice(None),) * axis
        parts = []
        for i in range(wanted):
            start, stop = i * length // wanted, -(-(i + 1) * length // wanted)
            parts.append(np.max(x[(*whole, slice(start, stop))], axis=axis))
        x = np.stack(parts, axis=axis)
    return (x,)


def max_unpool(
    x: Tensor, indices: Tensor, output_size: Sequence[int], stride: Any = (), padding: Any = ()
) -> Tensor:
    """Zeros with each value at its place. Values of one place all have that place's slope."""
    rank = len(output_size)
    lead = x.shape[: x.ndim - rank]
    rows = math.prod(lead)
    flat, places = np.reshape(x, (rows, -1)), np.reshape(indices, (rows, -1))
    at = np.arange(rows)[:, None], places
    out = np.zeros((rows, math.prod(output_size)), x.dtype)
    still = ops.stop_gradient(flat)
    out[at] = still
    np.add.at(out, at, np.where(np.isfinite(still), flat - still, 0))
    return np.reshape(out, (*lead, *output_size))


def im2col(
    x: Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """[N, C, H, W] -> [N, C * kh * kw, places]."""
    batched = x.ndim == 4
    x = x if batched else x[None]
    (ph, pw), (kh, kw) = each(2, padding), each(2, kernel_size)
    (dh, dw), (sh, sw) = each(2, dilation), each(2, stride)
    x = np.pad(x, ((0, 0), (0, 0), (ph, ph), (pw, pw)))
    rows = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1
    columns = (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
    down = np.arange(kh)[:, None] * dh + np.arange(rows) * sh
    across = np.arange(kw)[:, None] * dw + np.arange(columns) * sw
    taken = np.take(np.take(x, down, axis=2), across, axis=4)
    out = np.transpose(taken, (0, 1, 2, 4, 3, 5))
    out = np.reshape(out, (x.shape[0], x.shape[1] * kh * kw, rows * columns))
    return out if batched else out[0]


def suppressed(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The places of the boxes that remain, as many as the data decide."""
    kept = ops.non_max_suppression(dets, scores, iou_threshold, scores.shape[0])
    return kept[kept >= 0]


ROWS: dict[str, Row] = {
    "convolution": Row(convolution, layout="images first"),
    "max_pool1d": Row(max_pool1d, layout="images first"),
    "max_pool2d_with_indices": Row(
        max_pool,
        results=1,
        whole=max_pool_places,
        fixed={"rank": 2},
        layout="images first",
    ),
    "max_pool3d_with_indices": Row(
        max_pool,
        results=1,
        whole=max_pool_places,
        fixed={"rank": 3},
        layout="images first",
    ),
    "avg_pool1d": Row(avg_pool, fixed={"rank": 1}, layout="images first"),
    "avg_pool2d": Row(avg_pool, fixed={"rank": 2}, layout="images first"),
    "avg_pool3d": Row(avg_pool, fixed={"rank": 3}, layout="images first"),
    "adaptive_avg_pool1d": Row(adaptive_avg_pool, layout="images"),
    "_adaptive_avg_pool2d": Row(adaptive_avg_pool, layout="images"),
    "_adaptive_avg_pool3d": Row(adaptive_avg_pool, layout="images"),
    "adaptive_max_pool1d": Row(adaptive_max_pool, results=1),
    "adaptive_max_pool2d": Row(adaptive_max_pool, results=1),
    "adaptive_max_pool3d": Row(adaptive_max_pool, results=1),
    "max_unpool2d": Row(max_unpool),
    "max_unpool3d": Row(max_unpool),
    "im2col": Row(im2col),
}

#: Operators of torchvision's.
VISION_ROWS: dict[str, Row] = {"torchvision::nms": Row(suppressed)}
