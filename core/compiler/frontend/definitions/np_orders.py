"""Order and counting: sorting by several keys, binary search, bins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....common.errors import ProgramError
from ...ir import Tensor


def partition(a: Tensor, kth: Any, axis: Any = -1, kind: Any = "introselect") -> Tensor:
    """Sorted throughout, which every partition may be."""
    _check_places(a, kth, axis, kind)
    return np.sort(a, axis)


def argpartition(a: Tensor, kth: Any, axis: Any = -1, kind: Any = "introselect") -> Tensor:
    _check_places(a, kth, axis, kind)
    return np.argsort(a, axis)


def _check_places(a: Tensor, kth: Any, axis: Any, kind: Any) -> None:
    if kind != "introselect":
        raise ProgramError("DL119", "np.partition knows the kind 'introselect' alone")
    size = np.size(a) if axis is None else np.shape(a)[axis]
    for k in kth if isinstance(kth, tuple | list) else (kth,):
        if isinstance(k, bool | np.bool_) or not isinstance(k, int | np.integer):
            raise ProgramError("DL119", "np.partition takes places that are known whole numbers")
        if not -size <= k < size:
            raise ValueError(f"kth(={k}) out of bounds ({size})")


def lexsort(keys: Sequence[Tensor], axis: int = -1) -> Tensor:
    """The last key counts most: a stable sort by each, from the first."""
    if axis is None or any(np.shape(key) != np.shape(keys[0]) for key in keys):
        raise ProgramError("DL115", "np.lexsort takes keys of one shape, and an axis")
    order = np.argsort(keys[0], axis=axis)
    for k in range(1, len(keys)):
        key = np.take_along_axis(np.asarray(keys[k]), order, axis=axis)
        order = np.take_along_axis(order, np.argsort(key, axis=axis), axis=axis)
    return order


def searchsorted(a: Tensor, v: Tensor, side: str = "left", sorter: Any = None) -> Tensor:
    """A binary search for every number side by side; NaN comes last, as in a sort."""
    if side not in ("left", "right"):
        raise ProgramError("DL119", f"np.searchsorted: side is 'left' or 'right', not {side!r}")
    a, v = np.asarray(a), np.asarray(v)
    if a.ndim != 1:
        raise ProgramError("DL115", f"np.searchsorted searches a vector, not rank {a.ndim}")
    if v.dtype.kind not in "biufc":
        raise ProgramError("DL119", "np.searchsorted: what is searched for is no number")
    if sorter is not None:
        if np.shape(sorter) != a.shape:
            raise ProgramError("DL113", "np.searchsorted: `sorter` has another size than `a`")
        a = np.take(a, sorter)
    n = a.shape[0]
    low = np.zeros(v.shape, np.int64)
    high = np.full(v.shape, n, np.int64)
    for _ in range(n.bit_length()):
        middle = (low + high) >> 1
        at = np.take(a, np.minimum(middle, n - 1))
        if side == "left":
            beyond = (at < v) | (np.isnan(v) & ~np.isnan(at))
        else:
            beyond = (at <= v) | np.isnan(v)
        open_ = low < high
        low = np.where(open_ & beyond, middle + 1, low)
        high = np.where(open_ & ~beyond, middle, high)
    return low


def digitize(x: Tensor, bins: Tensor, right: bool = False) -> Tensor:
    return np.searchsorted(bins, x, side="left" if right else "right")


def digitize_downwards(x: Tensor, bins: Tensor, right: bool = False) -> Tensor:
    """For bins that fall: as many are left out as lie behind the place from the other end."""
    n = np.shape(bins)[0]
    return n - np.searchsorted(np.flip(bins), x, side="left" if right else "right")


def histogram_bin_edges(
    a: Tensor, bins: Any = 10, range: Any = None, weights: Any = None
) -> Tensor:
    if np.ndim(bins) == 1:
        if isinstance(bins, list | tuple | np.ndarray) and any(np.diff(bins) < 0):
            raise ProgramError("DL119", "np.histogram: `bins` must increase monotonically")
        return np.asarray(bins)
    if isinstance(bins, bool | np.bool_):
        raise ProgramError("DL119", "np.histogram: `bins` is a number or edges, not a bool")
    if isinstance(bins, str):
        raise ProgramError("DL119", f"np.histogram: bins={bins!r} depends on the data")
    if bins < 1:
        raise ProgramError("DL113", f"np.histogram: `bins` must be positive, not {bins}")
    a = np.asarray(a) * 1.0
    ends = (np.min(a), np.max(a)) if range is None else range
    first, last = np.asarray(ends[0], a.dtype), np.asarray(ends[1], a.dtype)
    if not (np.isfinite(first) & np.isfinite(last)):
        what = "autodetected" if range is None else "supplied"
        raise ValueError(f"{what} range of [{ends[0]}, {ends[1]}] is not finite")
    same = np.equal(first, last)
    first, last = np.where(same, first - 0.5, first), np.where(same, last + 0.5, last)
    edges = np.linspace(first, last, bins + 1)
    if np.any(edges[:-1] >= edges[1:]):
        words = f"Too many bins for data range. Cannot create {bins} finite-sized bins."
        raise ValueError(words)
    return edges


def histogram(
    a: Tensor, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> tuple[Tensor, Tensor]:
    a = np.ravel(a)
    edges = np.histogram_bin_edges(a, bins, range)
    n = edges.shape[0] - 1
    index: Tensor = np.searchsorted(edges, a, side="right") - 1
    index = np.where(a == edges[-1], n - 1, index)
    index = np.where((a >= edges[0]) & (a <= edges[-1]), index, n)
    heavy = None if weights is None else np.ravel(weights)
    if heavy is not None and heavy.dtype.kind == "b":
        hint = "convert them first: weights.astype(np.float64)"
        raise ProgramError("DL116", "np.histogram: NumPy adds up no weights of bools", hint=hint)
    counts = np.bincount(index, heavy, minlength=n + 1)[:n]
    counts = counts if heavy is None else counts.astype(heavy.dtype)
    if density:
        return counts / np.diff(edges) / np.sum(counts), edges
    return counts, edges


def isin(element: Tensor, test_elements: Tensor, *, invert: bool = False) -> Tensor:
    found = np.any(np.asarray(element)[..., None] == np.ravel(test_elements), axis=-1)
    return ~found if invert else found


def interp(
    x: Tensor, xp: Tensor, fp: Tensor, left: Any = None, right: Any = None, period: Any = None
) -> Tensor:
    x, xp, fp = (np.asarray(v, np.float64) for v in (x, xp, fp))
    if xp.ndim != 1 or xp.shape != fp.shape or xp.shape[0] == 0:
        raise ProgramError("DL115", "np.interp: xp and fp are vectors of one length, not of 0")
    if period is not None:
        x, xp = x % period, xp % period
        order = np.argsort(xp)
        xp, fp = np.take(xp, order), np.take(fp, order)
        xp = np.concatenate([xp[-1:] - period, xp, xp[:1] + period])
        fp = np.concatenate([fp[-1:], fp, fp[:1]])
    n = xp.shape[0]
    if n == 1:
        inside = np.broadcast_to(fp[0], x.shape)
    else:
        k = np.clip(np.searchsorted(xp, x, side="right") - 1, 0, n - 2)
        start, base = np.take(xp, k), np.take(fp, k)
        stop, top = np.take(xp, k + 1), np.take(fp, k + 1)
        slope = (top - base) / (stop - start)
        inside = base + (x - start) * slope
        # An infinite slope: from the other end, or level, or at the place itself, as in NumPy.
        other = top + (x - stop) * slope
        other = np.where(np.isnan(other) & (top == base), base, other)
        inside = np.where(np.isnan(inside), other, inside)
        inside = np.where(x == xp[-1], fp[-1], np.where(x == start, base, inside))
    inside = np.where(x < xp[0], fp[0] if left is None else left, inside)
    inside = np.where(x > xp[-1], fp[-1] if right is None else right, inside)
    return np.where(np.isnan(x), x, inside) if n > 1 else inside
