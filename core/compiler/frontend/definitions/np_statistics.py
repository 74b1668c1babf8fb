"""Quantiles, reductions that pass over NaN, and moments."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....common.errors import ProgramError
from ...ir import Tensor
from .np_arrays import place


def ptp(a: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    return np.max(a, axis, keepdims=keepdims) - np.min(a, axis, keepdims=keepdims)


def _floating(a: Tensor) -> Tensor:
    a = np.asarray(a)
    return a.astype(np.float64) if a.dtype.kind in "biu" else a


def _kept(a: Tensor, axis: Any, result: Tensor, keepdims: bool) -> Tensor:
    """The result of lanes, whose last axes are those of `a` without the reduced ones, in place."""
    if not keepdims:
        return result
    rank = np.ndim(a)
    if axis is None:
        axes = tuple(range(rank))
    else:
        axes = tuple(place(k, rank) for k in (axis if isinstance(axis, tuple | list) else (axis,)))
    shape = tuple(1 if k in axes else n for k, n in enumerate(np.shape(a)))
    extra = np.ndim(result) - (rank - len(axes))
    return np.reshape(result, np.shape(result)[:extra] + shape)


def _lanes(a: Tensor, axis: Any) -> Tensor:
    """The reduced axes as the first, sorted; NaN lies last."""
    if axis is None:
        return np.sort(np.ravel(a), axis=0)
    axes = [place(k, np.ndim(a)) for k in (axis if isinstance(axis, tuple | list) else (axis,))]
    moved = np.moveaxis(a, axes, list(range(len(axes))))
    return np.sort(moved.reshape((-1, *moved.shape[len(axes) :])), axis=0)


def median(a: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    values = _floating(a)
    lanes = _lanes(values, axis)
    n = lanes.shape[0]
    if n == 0:
        raise ProgramError("DL115", "np.median: there is no median of no elements")
    middle = np.mean(lanes[(n - 1) // 2 : n // 2 + 1], axis=0)
    if values.dtype.kind == np.asarray(a).dtype.kind:
        middle = np.where(np.isnan(lanes[-1]), np.nan, middle)
    return _kept(a, axis, middle, keepdims)


#: Methods of Hyndman and Fan 1996 that interpolate: name -> (alpha, beta).
_METHODS = {
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
    "interpolated_inverted_cdf": (0.0, 1.0),
}


def _position(q: Tensor, n: Tensor, method: Any) -> tuple[Tensor, Tensor]:
    """Where a quantile lies among n sorted elements: a whole number, and how far to the next."""
    if method in _METHODS:
        alpha, beta = _METHODS[method]
        exact = np.clip(n * q + (alpha + q * (1 - alpha - beta)) - 1, 0, n - 1)
    else:
        exact = q * (n - 1)
    below = np.floor(exact)
    part = exact - below
    if method == "lower":
        return below, part * 0
    if method == "higher":
        return np.ceil(exact), part * 0
    if method == "nearest":
        return np.rint(exact), part * 0
    if method == "midpoint":
        return below, np.ceil(part) / 2
    if method != "linear" and method not in _METHODS:
        known = ["linear", "lower", "higher", "nearest", "midpoint", *_METHODS]
        raise ProgramError("DL119", f"np.quantile knows the methods {', '.join(known)}")
    return below, part


#: Methods that give an element.
_WHOLE = ("lower", "higher", "nearest")


def _subtracted(a: Tensor) -> Tensor:
    """What quantiles are taken of: numbers that NumPy subtracts, as it does to interpolate."""
    a = np.asarray(a)
    if a.dtype.kind == "b":
        hint = "convert it first: a.astype(np.float64)"
        raise ProgramError("DL116", "NumPy takes no quantiles of bools", hint=hint)
    return a


def _between(low: Tensor, high: Tensor, part: Tensor) -> Tensor:
    """As NumPy interpolates: from the nearer end. The gap of integers wraps around."""
    gap = high - low
    return np.where(part < 0.5, low + gap * part, high - gap * (1 - part))


def _is_weak(q: Any) -> bool:
    """Whether it is a number of Python's own: an interpolation by it is in the array's type."""
    return type(q) is int or type(q) is float


def quantile(
    a: Tensor, q: Any, axis: Any = None, *, method: Any = "linear", keepdims: bool = False
) -> Tensor:
    return _quantile(a, np.asarray(q), axis, method, keepdims, _is_weak(q))


def percentile(
    a: Tensor, q: Any, axis: Any = None, *, method: Any = "linear", keepdims: bool = False
) -> Tensor:
    return _quantile(a, np.asarray(q) / 100, axis, method, keepdims, _is_weak(q))


def _quantile(a: Tensor, q: Tensor, axis: Any, method: Any, keepdims: bool, weak: bool) -> Tensor:
    a = _subtracted(a)
    lanes = _lanes(a, axis)
    n = lanes.shape[0]
    if method == "linear" and q.dtype.kind in "biu":
        # 0 or 1: NumPy takes elements, and interpolates nothing.
        result = np.take(lanes, np.asarray(q * (n - 1), np.int64), axis=0)
    else:
        below, part = _position(q * 1.0, n, method)
        first = below.astype(np.int64)
        part = np.reshape(part, q.shape + (1,) * (lanes.ndim - 1))
        low = np.take(lanes, first, axis=0)
        high = np.take(lanes, np.minimum(first + 1, n - 1), axis=0)
        result = low if method in _WHOLE else _between(low, high, _typed(part, a, weak))
    if a.dtype.kind == "f":
        if result.ndim == 0 and result.dtype != a.dtype and np.isnan(lanes[-1]):
            raise ArithmeticError(_OF_NAN)
        result = np.where(np.isnan(lanes[-1]), np.nan, result)
    return _kept(a, axis, result, keepdims)


#: Of single numbers alone NumPy gives the array's own NaN.
_OF_NAN = "NumPy's quantile of NaN has the array's type, and others that of q: pass q as a float"


def _typed(part: Tensor, a: Tensor, weak: bool) -> Tensor:
    return part.astype(a.dtype) if weak and a.dtype.kind == "f" else part


def nanquantile(
    a: Tensor, q: Any, axis: Any = None, *, method: Any = "linear", keepdims: bool = False
) -> Tensor:
    return _nanquantile(a, np.asarray(q), axis, method, keepdims, _is_weak(q))


def nanpercentile(
    a: Tensor, q: Any, axis: Any = None, *, method: Any = "linear", keepdims: bool = False
) -> Tensor:
    return _nanquantile(a, np.asarray(q) / 100, axis, method, keepdims, _is_weak(q))


def _nanquantile(
    a: Tensor, q: Tensor, axis: Any, method: Any, keepdims: bool, weak: bool
) -> Tensor:
    """Each lane has as many elements as are not NaN."""
    a = _subtracted(a)
    if a.dtype.kind in "iu":
        return _quantile(a, q, axis, method, keepdims, weak)
    lanes = _lanes(a, axis)
    rest = lanes.shape[1:]
    count = np.sum(~np.isnan(lanes), axis=0)
    last = np.maximum(count - 1, 0)
    flat = np.reshape(q, (-1, *(1 for _ in rest)))
    if method == "linear" and q.dtype.kind in "biu":
        result = np.take_along_axis(lanes, np.asarray(flat * last, np.int64), axis=0)
    else:
        below, part = _position(flat * 1.0, count.astype((flat * 1.0).dtype), method)
        first = np.maximum(below, 0).astype(np.int64)
        low = np.take_along_axis(lanes, np.minimum(first, last), axis=0)
        high = np.take_along_axis(lanes, np.minimum(first + 1, last), axis=0)
        result = low if method in _WHOLE else _between(low, high, _typed(part, a, weak))
    return _kept(a, axis, np.reshape(result, q.shape + rest), keepdims)


def has_lost_first(a: Tensor, axis: Any) -> Tensor:
    """Whether the first lane has nothing but NaN, of whose type NumPy then makes the result."""
    lanes = _lanes(a, axis)
    return np.all(np.isnan(np.reshape(lanes, (lanes.shape[0], -1))[:, 0]))


def nanmedian(a: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    """The mean of the two in the middle, or the one: between infinities nothing is interpolated."""
    a = _floating(a)
    lanes = _lanes(a, axis)
    count = np.sum(~np.isnan(lanes), axis=0)
    last = np.maximum(count - 1, 0)
    low = np.take_along_axis(lanes, np.minimum(last // 2, last)[None], axis=0)[0]
    high = np.take_along_axis(lanes, np.minimum(count // 2, last)[None], axis=0)[0]
    return _kept(a, axis, np.where(count % 2 == 1, low, (low + high) / 2), keepdims)


def _filled(a: Tensor, value: float) -> Tensor:
    return np.where(np.isnan(a), value, a)


def nansum(a: Tensor, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    return np.sum(_filled(a, 0), axis, dtype=dtype, keepdims=keepdims)


def nanprod(a: Tensor, axis: Any = None, dtype: Any = None, keepdims: bool = False) -> Tensor:
    return np.prod(_filled(a, 1), axis, dtype=dtype, keepdims=keepdims)


def nancumsum(a: Tensor, axis: Any = None, dtype: Any = None) -> Tensor:
    return np.cumsum(_filled(a, 0), axis, dtype=dtype)


def nancumprod(a: Tensor, axis: Any = None, dtype: Any = None) -> Tensor:
    return np.cumprod(_filled(a, 1), axis, dtype=dtype)


def _count(a: Tensor, axis: Any, keepdims: bool) -> Tensor:
    return np.sum(~np.isnan(a), axis, keepdims=keepdims).astype(a.dtype)


def nanmean(a: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    a = _floating(a)
    return np.sum(_filled(a, 0), axis, keepdims=keepdims) / _count(a, axis, keepdims)


def nanvar(a: Tensor, axis: Any = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
    if np.asarray(a).dtype.kind in "biu":
        return np.var(a, axis, ddof=ddof, keepdims=keepdims)
    a = _floating(a)
    apart = np.where(np.isnan(a), 0, a - np.nanmean(a, axis, keepdims=True))
    total = np.sum(apart * apart, axis, keepdims=keepdims)
    freedom = _count(a, axis, keepdims) - ddof
    return np.where(freedom > 0, total / freedom, np.nan)


def nanstd(a: Tensor, axis: Any = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
    return np.sqrt(np.nanvar(a, axis, ddof=ddof, keepdims=keepdims))


def _nan_where_all(a: Tensor, axis: Any, keepdims: bool, result: Tensor) -> Tensor:
    return np.where(np.all(np.isnan(a), axis, keepdims=keepdims), np.nan, result)


def nanmax(a: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    if np.asarray(a).dtype.kind in "biu":
        return np.max(a, axis, keepdims=keepdims)
    largest = np.max(_filled(a, -np.inf), axis, keepdims=keepdims)
    return _nan_where_all(a, axis, keepdims, largest)


def nanmin(a: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
    if np.asarray(a).dtype.kind in "biu":
        return np.min(a, axis, keepdims=keepdims)
    least = np.min(_filled(a, np.inf), axis, keepdims=keepdims)
    return _nan_where_all(a, axis, keepdims, least)


def nanargmax(a: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    if np.asarray(a).dtype.kind in "biu":
        return np.argmax(a, axis, keepdims=keepdims)
    return np.argmax(_filled(a, -np.inf), axis, keepdims=keepdims)


def nanargmin(a: Tensor, axis: Any = None, *, keepdims: bool = False) -> Tensor:
    if np.asarray(a).dtype.kind in "biu":
        return np.argmin(a, axis, keepdims=keepdims)
    return np.argmin(_filled(a, np.inf), axis, keepdims=keepdims)


def cumulative_sum(
    x: Tensor, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    total = np.cumsum(x, _only_axis(x, axis), dtype=dtype)
    return _with_initial(total, _only_axis(x, axis), 0) if include_initial else total


def cumulative_prod(
    x: Tensor, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    total = np.cumprod(x, _only_axis(x, axis), dtype=dtype)
    return _with_initial(total, _only_axis(x, axis), 1) if include_initial else total


def _only_axis(x: Tensor, axis: Any) -> int:
    if axis is None and np.ndim(x) != 1:
        raise ProgramError("DL119", f"an axis must be named for rank {np.ndim(x)}")
    return 0 if axis is None else place(axis, np.ndim(x))


def _with_initial(x: Tensor, axis: int, value: int) -> Tensor:
    first = np.full((*x.shape[:axis], 1, *x.shape[axis + 1 :]), value, x.dtype)
    return np.concatenate([first, x], axis=axis)


def cov(
    m: Tensor,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
) -> Tensor:
    rows = _rows(m, rowvar)
    if rows.shape[0] == 0:  # Whatever `y` is.
        return np.zeros((0, 0))
    if y is not None:
        rows = np.concatenate([rows, _rows(y, rowvar)])
    freedom = ddof if ddof is not None else 0 if bias else 1
    if fweights is None and aweights is None:
        apart = rows - np.mean(rows, axis=1, keepdims=True)
        return np.squeeze(apart @ apart.T / max(rows.shape[1] - freedom, 0))
    often = np.ones(rows.shape[1]) if fweights is None else np.asarray(fweights, np.float64)
    weights = often if aweights is None else often * aweights
    total = np.sum(weights)
    apart = rows - (np.sum(rows * weights, axis=1) / total)[:, None]
    lost = freedom if aweights is None else freedom * np.sum(weights * aweights) / total
    return np.squeeze(apart @ (apart * weights).T / np.maximum(total - lost, 0))


def _rows(m: Tensor, rowvar: bool) -> Tensor:
    rows = np.atleast_2d(_floating(m)).astype(np.float64)
    single = np.ndim(m) < 2 or (rows.shape[0] == 1 and not _TURNS_ROWS)
    return rows if rowvar or single else rows.T


#: Whether this NumPy takes a matrix of one row as other matrices, where `rowvar` is false.
_TURNS_ROWS = np.ndim(np.cov(np.zeros((1, 2)), rowvar=False, ddof=0)) == 2


def corrcoef(x: Tensor, y: Any = None, rowvar: bool = True) -> Tensor:
    c = np.cov(x, y, rowvar)
    if c.ndim == 0:
        return c / c
    spread = np.sqrt(np.diagonal(c))
    return np.clip(c / spread[:, None] / spread, -1, 1)
