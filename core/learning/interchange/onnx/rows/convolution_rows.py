"""Convolutions and pooling. ONNX has images [N, C, space...]; Delian has [N, space..., C]."""

from __future__ import annotations

import math

import numpy as np

from .....compiler import ops
from .....compiler.ir import Tensor
from ...channel_axes import channels_first, channels_last
from ..onnx_errors import OnnxError
from ..operator_rows import Row, Rows

Edges = tuple[tuple[int, int], ...]


def space_of(x: Tensor, rank: int) -> int:
    """How many axes a tensor [N, C, space...] has in space. Raises OnnxError if not `rank`."""
    if x.ndim != rank + 2 or rank < 1:
        raise OnnxError(
            f"a window of {rank} axes does not fit shape {list(x.shape)}, which is to be"
            " [N, C, space...]",
            "export the model for a batch",
        )
    return rank


def edges_of(
    auto_pad: str,
    pads: tuple[int, ...] | None,
    sizes: tuple[int, ...],
    spans: tuple[int, ...],
    strides: tuple[int, ...],
) -> Edges:
    """Zeros before and after each axis."""
    rank = len(sizes)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        found = []
        for k in range(rank):
            whole = max((-(-sizes[k] // strides[k]) - 1) * strides[k] + spans[k] - sizes[k], 0)
            less, more = whole // 2, whole - whole // 2
            found.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
        return tuple(found)
    if auto_pad == "VALID" or pads is None:
        return ((0, 0),) * rank
    return tuple([(pads[k], pads[k + rank]) for k in range(rank)])


def convolve(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """Conv: x [N, C, space...], kernel [O, C / group, space...] -> [N, O, space...]."""
    space_of(x, kernel.ndim - 2)
    out = convolve_last(
        channels_last(x),
        kernel,
        bias,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        pads=pads,
        strides=strides,
    )
    return channels_first(out)


def convolve_last(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """Conv of images [N, space..., C] -> [N, space..., O]; the kernel is as ONNX has it."""
    rank = space_of(x, kernel.ndim - 2)
    step = (1,) * rank if strides is None else strides
    apart = (1,) * rank if dilations is None else dilations
    spans = tuple([(kernel.shape[2 + k] - 1) * apart[k] + 1 for k in range(rank)])
    edges = edges_of(auto_pad, pads, x.shape[1:-1], spans, step)
    images, weights = x, np.moveaxis(kernel, (0, 1), (-1, -2))
    if x.dtype == np.float16:
        images, weights = images.astype(np.float32), weights.astype(np.float32)
    out = _convolution(rank, images, weights, step, edges, apart, group)
    return (out if bias is None else out + bias).astype(x.dtype)


def _convolution(
    rank: int,
    x: Tensor,
    kernel: Tensor,
    strides: tuple[int, ...],
    edges: Edges,
    apart: tuple[int, ...],
    groups: int,
) -> Tensor:
    if rank == 1:
        return ops.conv1d(x, kernel, strides, edges, apart, groups)
    if rank == 2:
        return ops.conv2d(x, kernel, strides, edges, apart, groups)
    if rank == 3:
        return ops.conv3d(x, kernel, strides, edges, apart, groups)
    raise OnnxError(f"convolutions have one to three axes in space, not {rank}")


def convolve_transposed(
    x: Tensor,
    kernel: Tensor,
    bias: Tensor = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    output_padding: tuple[int, ...] | None = None,
    output_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """ConvTranspose: x [N, C, space...], kernel [C, O / group, space...] -> [N, O, space...]."""
    rank = space_of(x, kernel.ndim - 2)
    step = (1,) * rank if strides is None else strides
    apart = (1,) * rank if dilations is None else dilations
    more = (0,) * rank if output_padding is None else output_padding
    spans = [(kernel.shape[2 + k] - 1) * apart[k] + 1 for k in range(rank)]
    full = [(x.shape[2 + k] - 1) * step[k] + spans[k] + more[k] for k in range(rank)]
    if output_shape is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        output_shape = tuple([x.shape[2 + k] * step[k] for k in range(rank)])
    if output_shape is not None:
        edges = []
        for k in range(rank):
            whole = full[k] - output_shape[-rank:][k]
            less, most = whole // 2, whole - whole // 2
            edges.append((less, most) if auto_pad == "SAME_UPPER" else (most, less))
    elif pads is None or auto_pad == "VALID":
        edges = [(0, 0)] * rank
    else:
        edges = [(pads[k], pads[k + rank]) for k in range(rank)]
    weights = np.moveaxis(kernel, (0, 1), (-2, -1))
    # All of the result, then what is cut off or left empty: any padding is the same then.
    whole = _transposed(rank, channels_last(x), weights, step, apart, group)
    for k in range(rank):
        before, after = edges[k]
        whole = _fitted(whole, 1 + k, before, full[k] - before - after)
    out = channels_first(whole)
    return out if bias is None else out + bias.reshape((-1,) + (1,) * rank)


def _transposed(
    rank: int,
    x: Tensor,
    kernel: Tensor,
    strides: tuple[int, ...],
    apart: tuple[int, ...],
    groups: int,
) -> Tensor:
    if rank == 1:
        return ops.conv_transpose1d(x, kernel, strides, "VALID", apart, groups)
    if rank == 2:
        return ops.conv_transpose2d(x, kernel, strides, "VALID", apart, groups)
    if rank == 3:
        return ops.conv_transpose3d(x, kernel, strides, "VALID", apart, groups)
    raise OnnxError(f"convolutions have one to three axes in space, not {rank}")


def _fitted(x: Tensor, axis: int, start: int, size: int) -> Tensor:
    """`size` elements of an axis from `start` on, zeros where there are none."""
    before, after = max(-start, 0), max(start + size - x.shape[axis], 0)
    if before + after > 0:
        widths = [(0, 0)] * x.ndim
        widths[axis] = (before, after)
        x = np.pad(x, tuple(widths))
    low = start + before
    return x[(*((slice(None),) * axis), slice(low, low + size))]


def windows_of(
    x: Tensor,
    kernel_shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    dilations: tuple[int, ...] | None,
    auto_pad: str,
    ceil_mode: int,
) -> tuple[tuple[int, ...], tuple[int, ...], Edges]:
    """As `windows_in`, of a tensor [N, C, space...]."""
    space_of(x, len(kernel_shape))
    return windows_in(x.shape, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)


def windows_in(
    shape: tuple[int, ...],
    kernel_shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    dilations: tuple[int, ...] | None,
    auto_pad: str,
    ceil_mode: int,
) -> tuple[tuple[int, ...], tuple[int, ...], Edges]:
    """Strides, dilations and padding of a pooling over [N, C, space...].

    With `ceil_mode` a last window that sticks out counts if it begins inside: the padding after
    grows by what it needs.
    """
    rank = len(kernel_shape)
    step = (1,) * rank if strides is None else strides
    apart = (1,) * rank if dilations is None else dilations
    spans = tuple([(kernel_shape[k] - 1) * apart[k] + 1 for k in range(rank)])
    edges = edges_of(auto_pad, pads, shape[2:], spans, step)
    if ceil_mode:
        wider = []
        for k in range(rank):
            (before, after), size = edges[k], shape[2 + k]
            count = -(-(size + before + after - spans[k]) // step[k]) + 1
            if (count - 1) * step[k] >= size + before:
                count = count - 1
            wider.append((before, max(after, (count - 1) * step[k] + spans[k] - size - before)))
        edges = tuple(wider)
    return step, apart, edges


def stacked_windows(
    x: Tensor, kernel_shape: tuple[int, ...], step: tuple[int, ...], apart: tuple[int, ...]
) -> Tensor:
    """[N, C, space...] -> [window, N, C, outputs...]: the elements of each window, first axis."""
    rank = len(kernel_shape)
    counts = []
    for k in range(rank):
        span = (kernel_shape[k] - 1) * apart[k] + 1
        counts.append((x.shape[2 + k] - span) // step[k] + 1)
    places: list[tuple[int, ...]] = [()]
    for k in range(rank):
        places = [(*p, i) for p in places for i in range(kernel_shape[k])]
    parts = []
    for place in places:
        index = [slice(None), slice(None)]
        for k in range(rank):
            first = place[k] * apart[k]
            index.append(slice(first, first + (counts[k] - 1) * step[k] + 1, step[k]))
        parts.append(x[tuple(index)])
    return np.stack(parts)


def padded(x: Tensor, edges: Edges, value: float) -> Tensor:
    """Padding of the axes in space."""
    return np.pad(x, ((0, 0), (0, 0), *edges), constant_values=value)


def max_pool(
    x: Tensor,
    *,
    kernel_shape: tuple[int, ...],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    storage_order: int = 0,
    strides: tuple[int, ...] | None = None,
    outputs: tuple[bool, ...] = (True,),
) -> tuple[Tensor, ...]:
    """MaxPool: the largest of each window, and its place in the whole tensor on demand."""
    step, apart, edges = windows_of(x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    if x.dtype.kind == "f":
        least = -np.inf
    else:
        least = np.iinfo(x.dtype).min
    if len(outputs) < 2:
        return (channels_first(ops.max_pool(channels_last(x), kernel_shape, step, edges, apart)),)
    found = stacked_windows(padded(x, edges, least), kernel_shape, step, apart)
    first = np.argmax(found, axis=0)
    sizes = x.shape
    space = sizes[2:] if storage_order == 0 else sizes[2:][::-1]
    place = np.arange(math.prod(sizes[2:])).reshape(space)
    if storage_order:
        place = place.T
    offset = np.arange(sizes[0] * sizes[1]) * math.prod(sizes[2:])
    whole = place + offset.reshape((sizes[0], sizes[1]) + (1,) * len(kernel_shape))
    there = stacked_windows(padded(whole, edges, 0), kernel_shape, step, apart)
    chosen = np.take_along_axis(there, first[None], axis=0)[0]
    return np.max(found, axis=0), chosen


def average_pool(
    x: Tensor,
    *,
    kernel_shape: tuple[int, ...],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """AveragePool: the mean of each window, of the elements inside or of the padding too."""
    step, apart, edges = windows_of(x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    _, _, own = windows_of(x, kernel_shape, strides, pads, dilations, auto_pad, 0)
    total = np.sum(stacked_windows(padded(x, edges, 0), kernel_shape, step, apart), axis=0)
    rank = len(kernel_shape)
    counts = np.ones((1,) * (2 + rank))
    for k in range(rank):
        low = -own[k][0] if count_include_pad else 0
        high = x.shape[2 + k] + own[k][1] if count_include_pad else x.shape[2 + k]
        many = []
        for i in range(total.shape[2 + k]):
            start = i * step[k] - edges[k][0]
            inside = [low <= start + j * apart[k] < high for j in range(kernel_shape[k])]
            many.append(sum(inside))
        shape = (1,) * (2 + k) + (-1,) + (1,) * (rank - 1 - k)
        counts = counts * np.array(many, np.float64).reshape(shape)
    return total / counts.astype(x.dtype)


def lp_pool(
    x: Tensor,
    *,
    kernel_shape: tuple[int, ...],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    p: int = 2,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Tensor:
    """LpPool: the p-norm of each window."""
    step, apart, edges = windows_of(x, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode)
    size = padded(np.abs(x), edges, 0)
    powers = np.sum(stacked_windows(size**p, kernel_shape, step, apart), axis=0)
    return np.power(powers, 1.0 / p)


def max_pool_last(
    x: Tensor,
    *,
    kernel_shape: tuple[int, ...],
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    storage_order: int = 0,
    strides: tuple[int, ...] | None = None,
    outputs: tuple[bool, ...] = (True,),
) -> tuple[Tensor, ...]:
    """MaxPool of images [N, space..., C], without places."""
    sizes = (x.shape[0], x.shape[-1], *x.shape[1:-1])
    step, apart, edges = windows_in(
        sizes, kernel_shape, strides, pads, dilations, auto_pad, ceil_mode
    )
    return (ops.max_pool(x, kernel_shape, step, edges, apart),)


def global_average_last(x: Tensor) -> Tensor:
    """GlobalAveragePool of images [N, space..., C]."""
    return np.mean(x, axis=tuple(range(1, x.ndim - 1)), keepdims=True)


def global_average(x: Tensor) -> Tensor:
    """GlobalAveragePool: [N, C, space...] -> [N, C, 1...]."""
    space_of(x, max(x.ndim - 2, 1))
    return np.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True)


def global_max(x: Tensor) -> Tensor:
    """GlobalMaxPool: [N, C, space...] -> [N, C, 1...]."""
    space_of(x, max(x.ndim - 2, 1))
    return np.max(x, axis=tuple(range(2, x.ndim)), keepdims=True)


def global_lp(x: Tensor, *, p: int = 2) -> Tensor:
    """GlobalLpPool: [N, C, space...] -> [N, C, 1...]."""
    space_of(x, max(x.ndim - 2, 1))
    powers = np.sum(np.abs(x) ** p, axis=tuple(range(2, x.ndim)), keepdims=True)
    return np.power(powers, 1.0 / p)


CONVOLUTION_ROWS: Rows = {
    "AveragePool": Row(average_pool),
    "Conv": Row(convolve, last=convolve_last),
    "ConvTranspose": Row(convolve_transposed),
    "GlobalAveragePool": Row(global_average, last=global_average_last),
    "GlobalLpPool": Row(global_lp),
    "GlobalMaxPool": Row(global_max),
    "LpPool": Row(lp_pool),
    "MaxPool": Row(max_pool, several=True, counted=True, last=max_pool_last),
}
