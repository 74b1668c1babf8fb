"""Pooling over the axes between the first and the last, one to three of them: [N, space..., C].

Windows are products of intervals, and a maximum or a sum over a product is one over each axis in
turn: so a window of k^d elements costs d k operations an output, in any dimension. Elements that
tie for a maximum share its gradient.
"""

from __future__ import annotations

import numpy as np

from ..ir import Array
from .convolution import Padding, Sizes, each, edges_of, sizes_of


def max_pool(
    x: Array,
    size: Sizes = 2,
    stride: Sizes | None = None,
    padding: Padding = "VALID",
    dilation: Sizes = 1,
    ceil: bool = False,
) -> Array:
    """The largest of each window: [N, space..., C] -> [N, outputs..., C].

    Args:
        x: with one to three axes between N and C.
        size: of the window, along every axis or along each.
        stride: from window to window; None: their size, so that they lie side by side.
        padding: as of `conv2d`; what is padded is never the largest.
        dilation: the distance between a window's elements.
        ceil: a last window that sticks out counts too, if it begins inside.
    """
    rank = _rank("max_pool", x)
    sizes = sizes_of("max_pool", size, rank, "size")
    strides = sizes if stride is None else sizes_of("max_pool", stride, rank, "stride")
    apart = sizes_of("max_pool", dilation, rank, "dilation")
    if strides == sizes and padding == "VALID" and not ceil and all(d == 1 for d in apart):
        return np.max(_side_by_side(x, sizes), axis=tuple(range(2, 2 * rank + 1, 2)))  # type: ignore[no-any-return]
    spans = tuple((sizes[k] - 1) * apart[k] + 1 for k in range(rank))
    edges = edges_of("max_pool", padding, x.shape[1:-1], spans, strides)
    least = np.iinfo(x.dtype).min if x.dtype.kind in "iu" else -np.inf
    for k in each(rank):
        around = _around(x.shape[1 + k], spans[k], strides[k], edges[k], ceil)
        x = np.max(_windows(x, 1 + k, sizes[k], strides[k], around, least, apart[k]), axis=0)
    return x


def avg_pool(
    x: Array,
    size: Sizes = 2,
    stride: Sizes | None = None,
    padding: Padding = "VALID",
    count_padding: bool = False,
    ceil: bool = False,
) -> Array:
    """The mean of each window: [N, space..., C] -> [N, outputs..., C].

    Args:
        x: as of `max_pool`.
        size: as of `max_pool`.
        stride: as of `max_pool`.
        padding: as of `max_pool`.
        ceil: as of `max_pool`.
        count_padding: what is padded counts as zeros; else a window at the edge has fewer elements.
    """
    rank = _rank("avg_pool", x)
    sizes = sizes_of("avg_pool", size, rank, "size")
    strides = sizes if stride is None else sizes_of("avg_pool", stride, rank, "stride")
    if strides == sizes and padding == "VALID" and not ceil:
        return np.mean(_side_by_side(x, sizes), axis=tuple(range(2, 2 * rank + 1, 2)))  # type: ignore[no-any-return]
    edges = edges_of("avg_pool", padding, x.shape[1:-1], sizes, strides)
    for k in each(rank):
        length, (before, after) = x.shape[1 + k], edges[k]
        around = _around(length, sizes[k], strides[k], edges[k], ceil)
        x = np.sum(_windows(x, 1 + k, sizes[k], strides[k], around, 0, 1), axis=0)
        low, high = (-before, length + after) if count_padding else (0, length)
        starts = [i * strides[k] - before for i in range(x.shape[1 + k])]
        counts = [min(a + sizes[k], high) - max(a, low) for a in starts]
        if all(n == sizes[k] for n in counts):
            x = x / float(sizes[k])
        else:
            over = np.array(counts, np.float32).reshape(-1, *[1] * (rank - k))
            x = x / over.astype(x.dtype)
    return x


def lp_pool(
    x: Array, power: float, size: Sizes = 2, stride: Sizes | None = None, padding: Padding = "VALID"
) -> Array:
    """(sum |x|^p)^(1/p) of each window: [N, space..., C] -> [N, outputs..., C]; p at least 1.

    Where all of a window is zero the derivative is not defined, as of the norm at zero.
    """
    rank = _rank("lp_pool", x)
    count = float(np.prod(np.array(sizes_of("lp_pool", size, rank, "size"), np.float64)))
    mean = avg_pool(np.abs(x) ** power, size, stride, padding, count_padding=True)
    return (mean * count) ** (1.0 / power)


def adaptive_avg_pool(x: Array, sizes: Sizes) -> Array:
    """Means over as many windows as asked for: [N, space..., C] -> [N, sizes..., C].

    Window i of o along an axis of n is floor(i n / o) .. ceil((i + 1) n / o) - 1, so windows may
    overlap by an element, and every element is in one.
    """
    rank = _rank("adaptive_avg_pool", x)
    wanted = sizes_of("adaptive_avg_pool", sizes, rank, "sizes")
    for k in each(rank):
        weights = window_means(x.shape[1 + k], wanted[k]).astype(x.dtype)
        x = along(weights, x, 1 + k)
    return x


def global_avg_pool(x: Array) -> Array:
    """The mean of every channel: [N, space..., C] -> [N, C]."""
    return np.mean(x, axis=tuple(range(1, x.ndim - 1)))  # type: ignore[no-any-return]


def global_max_pool(x: Array) -> Array:
    """The largest of every channel: [N, space..., C] -> [N, C]."""
    return np.max(x, axis=tuple(range(1, x.ndim - 1)))  # type: ignore[no-any-return]


def window_means(size: int, windows: int) -> Array:
    """f64[windows, size]: rows that take `adaptive_avg_pool`'s means; known while compiling."""
    out = np.zeros((windows, size))
    for i in range(windows):
        start, stop = i * size // windows, -(-(i + 1) * size // windows)
        out[i, start:stop] = 1.0 / (stop - start)
    return out


def along(matrix: Array, x: Array, axis: int) -> Array:
    """The matrix [m, n] times every column of `x` along an axis of size n, which becomes m."""
    return np.moveaxis(np.tensordot(matrix, x, axes=((1,), (axis,))), 0, axis)


def _rank(name: str, x: Array) -> int:
    rank = x.ndim - 2
    if not 1 <= rank <= 3:
        raise ValueError(
            f"{name} takes images [N, H, W, C], sequences [N, T, C] or volumes [N, D, H, W, C], "
            f"not shape {list(x.shape)}"
        )
    return rank


def _side_by_side(x: Array, sizes: tuple[int, ...]) -> Array:
    """[N, n, ..., C] -> [N, n // size, size, ..., C]; what does not fill a window is left out."""
    counts = [n // size for n, size in zip(x.shape[1:-1], sizes, strict=True)]
    parts = [slice(0, m * size) for m, size in zip(counts, sizes, strict=True)]
    split = [n for pair in zip(counts, sizes, strict=True) for n in pair]
    return x[(slice(None), *parts)].reshape(x.shape[0], *split, x.shape[-1])


def _around(
    size: int, span: int, stride: int, edges: tuple[int, int], ceil: bool
) -> tuple[int, int]:
    """Padding before an axis, and after it up to where the last window ends.

    ceil: a last window may stick out of the padding, but none begins in that behind the axis.
    """
    before, after = edges
    if not ceil:
        return edges
    count = -(-(size + before + after - span) // stride) + 1
    if (count - 1) * stride >= size + before:
        count = count - 1
    return before, (count - 1) * stride + span - size - before


def _windows(
    x: Array,
    axis: int,
    size: int,
    stride: int,
    edges: tuple[int, int],
    fill: float,
    apart: int,
) -> Array:
    """The window's elements along one axis, stacked first: [elements, N, ..., outputs, ..., C].

    Those before and after the axis for every output are left out, so a window that is far larger
    than the axis costs no more than one of its length.
    """
    before, inside = edges[0], x.shape[axis]
    span = (size - 1) * apart + 1
    padded = inside + edges[0] + edges[1]
    if span > padded:
        raise ValueError(f"a window that spans {span} does not fit {padded} padded elements")
    reach = (padded - span) // stride * stride + 1
    first = max(0, -((reach - 1 - before) // apart))
    last = min(size - 1, (before + inside - 1) // apart)
    if first > last:  # each window lies in the padding
        outputs = (reach - 1) // stride + 1
        return np.full((1, *x.shape[:axis], outputs, *x.shape[axis + 1 :]), fill, x.dtype)
    # Where they begin and end, as places of the axis: only what they need is padded.
    start, stop = first * apart - before, last * apart + reach - before
    whole = (slice(None),) * axis
    x = x[(*whole, slice(max(0, start), min(inside, stop)))]
    around = (max(0, -start), max(0, stop - inside))
    if around != (0, 0):
        none = [(0, 0)] * x.ndim
        x = np.pad(x, (*none[:axis], around, *none[axis + 1 :]), constant_values=fill)
    places = [i * apart for i in range(last - first + 1)]
    return np.stack([x[(*whole, slice(at, at + reach, stride))] for at in places])
