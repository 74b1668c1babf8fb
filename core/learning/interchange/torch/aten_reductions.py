"""ATen's reductions, cumulative operators and orders."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....compiler import ops
from ....compiler.ir import Tensor
from .aten_row import Row


def axes(x: Tensor, dim: Any) -> tuple[int, ...]:
    """The axes that ATen means: all of them for None and for an empty list."""
    if dim is None or (isinstance(dim, list | tuple) and len(dim) == 0):
        return tuple(range(x.ndim))
    return tuple(dim) if isinstance(dim, list | tuple) else (dim,)


def over(x: Tensor, dim: Any) -> tuple[Tensor, tuple[int, ...]]:
    """An array that has the axes: ATen lets a number have an axis 0."""
    found = axes(x, dim)
    return (x.reshape(1), (0,)) if x.ndim == 0 and found else (x, found)


def total(x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    if dtype is None:
        dtype = np.int64 if x.dtype.kind in "iub" else x.dtype
    rank = x.ndim
    x, found = over(x, dim)
    summed = np.sum(x.astype(dtype), axis=found, keepdims=keepdim, dtype=dtype)
    return summed.reshape(()) if rank == 0 else summed


def total_all(x: Tensor, dtype: Any = None) -> Tensor:
    return total(x, None, False, dtype)


def mean(x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    if dtype is not None:
        x = x.astype(dtype)
    rank = x.ndim
    x, found = over(x, dim)
    averaged = np.mean(x, axis=found, keepdims=keepdim)
    return averaged.reshape(()) if rank == 0 else averaged


def mean_all(x: Tensor, dtype: Any = None) -> Tensor:
    return mean(x, None, False, dtype)


def amax(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return x if x.ndim == 0 else np.max(x, axis=axes(x, dim), keepdims=keepdim)


def amin(x: Tensor, dim: Any = (), keepdim: bool = False) -> Tensor:
    return x if x.ndim == 0 else np.min(x, axis=axes(x, dim), keepdims=keepdim)


def _at(x: Tensor, places: Tensor, dim: int, keepdim: bool) -> tuple[Tensor, Tensor]:
    """The elements at one place along an axis, and the places."""
    wide = np.expand_dims(places, dim)
    values = np.take_along_axis(x, wide, axis=dim)
    return (values, wide) if keepdim else (np.squeeze(values, axis=dim), places)


def max_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Of equals the first, which alone has the slope."""
    if x.ndim == 0:
        return x, np.zeros((), np.int64)
    return _at(x, np.argmax(x, axis=dim), dim, keepdim)


def min_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if x.ndim == 0:
        return x, np.zeros((), np.int64)
    return _at(x, np.argmin(x, axis=dim), dim, keepdim)


def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    if x.ndim == 0:
        return np.zeros((), np.int64)
    return np.argmax(x, axis=dim, keepdims=keepdim)


def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    if x.ndim == 0:
        return np.zeros((), np.int64)
    return np.argmin(x, axis=dim, keepdims=keepdim)


def any_of(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return x != 0 if x.ndim == 0 else np.any(x != 0, axis=axes(x, dim), keepdims=keepdim)


def all_of(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
    return x != 0 if x.ndim == 0 else np.all(x != 0, axis=axes(x, dim), keepdims=keepdim)


def product(x: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Tensor:
    if dtype is None:
        dtype = np.int64 if x.dtype.kind in "iub" else x.dtype
    if x.ndim == 0:
        return x.astype(dtype)
    return np.prod(x.astype(dtype), axis=axes(x, dim), keepdims=keepdim, dtype=dtype)


def product_all(x: Tensor, dtype: Any = None) -> Tensor:
    return product(x, None, False, dtype)


def variance(x: Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Tensor:
    """Divided by n - correction, 1 where it is not given."""
    found = axes(x, dim)
    count = 1
    for axis in found:
        count = count * x.shape[axis]
    less = 1 if correction is None else correction
    centred = x - np.mean(x, axis=found, keepdims=True)
    return np.sum(centred * centred, axis=found, keepdims=keepdim) / max(count - less, 0)


def safe_sqrt(x: Tensor) -> Tensor:
    """The root, with slope 0 at 0."""
    return np.where(x == 0, 0, np.sqrt(np.where(x == 0, 1, x)))


def deviation(x: Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False) -> Tensor:
    return safe_sqrt(variance(x, dim, correction, keepdim))


def var_mean(
    x: Tensor, dim: Any = None, correction: Any = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    return variance(x, dim, correction, keepdim), mean(x, dim, keepdim)


def vector_norm(
    x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    """The p-norm, with slope 0 where it is 0."""
    if dtype is not None:
        x = x.astype(dtype)
    if x.ndim == 0:
        return (x != 0).astype(x.dtype) if ord == 0 else np.abs(x)
    found = axes(x, dim)
    if ord == 0:
        return np.sum((x != 0).astype(x.dtype), axis=found, keepdims=keepdim)
    if ord == np.inf:
        return np.max(np.abs(x), axis=found, keepdims=keepdim)
    if ord == -np.inf:
        return np.min(np.abs(x), axis=found, keepdims=keepdim)
    if ord == 1:
        return np.sum(np.abs(x), axis=found, keepdims=keepdim)
    if ord == 2:
        return safe_sqrt(np.sum(x * x, axis=found, keepdims=keepdim))
    inside = np.where(x == 0, 1, np.abs(x))
    powers = np.where(x == 0, 0, inside**ord) if ord > 0 else np.abs(x) ** ord
    summed = np.sum(powers, axis=found, keepdims=keepdim)
    return np.where(summed == 0, 0, np.where(summed == 0, 1, summed) ** (1.0 / ord))


def norm(x: Tensor, p: Any = 2, dim: Any = None, keepdim: bool = False) -> Tensor:
    return vector_norm(x, 2 if p is None else p, dim, keepdim)


def cumsum(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    if dtype is None:
        dtype = np.int64 if x.dtype.kind in "iub" else x.dtype
    return x.astype(dtype) if x.ndim == 0 else np.cumsum(x.astype(dtype), axis=dim)


def cumprod(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    if dtype is None:
        dtype = np.int64 if x.dtype.kind in "iub" else x.dtype
    return x.astype(dtype) if x.ndim == 0 else np.cumprod(x.astype(dtype), axis=dim)


def softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return np.ones_like(x) if x.ndim == 0 else ops.softmax(x, dim)


def safe_softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """Zero where all along the axis are minus infinity."""
    x = x if dtype is None else x.astype(dtype)
    nothing = np.all(x == -np.inf, axis=dim, keepdims=True)
    return np.where(nothing, 0, ops.softmax(np.where(nothing, 0, x), dim))


def log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    return np.zeros_like(x) if x.ndim == 0 else ops.log_softmax(x, dim)


def logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Tensor:
    rank = x.ndim
    x, found = over(x, dim)
    top = ops.stop_gradient(np.max(x, axis=found, keepdims=True))
    top = np.where(np.isfinite(top), top, 0)
    summed = np.log(np.sum(np.exp(x - top), axis=found, keepdims=True)) + top
    return summed if keepdim and rank else np.squeeze(summed, axis=found)


def order(x: Tensor, dim: int, descending: bool) -> Tensor:
    """Places in stable order, i64; NaN counts as larger than all numbers."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    # The stable falling order is the rising one of the reversed array, reversed.
    rising = np.argsort(np.flip(x, axis=dim), axis=dim, kind="stable")
    return x.shape[dim] - 1 - np.flip(rising, axis=dim)


def sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    if x.ndim == 0:
        return x, np.zeros((), np.int64)
    places = order(x, dim, descending)
    return np.take_along_axis(x, places, axis=dim), places


def sort_stable(
    x: Tensor, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Tensor, Tensor]:
    return sort(x, dim, descending)


def argsort(x: Tensor, dim: int = -1, descending: bool = False) -> Tensor:
    return sort(x, dim, descending)[1]


def topk(
    x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[Tensor, Tensor]:
    if x.ndim == 0:
        return x, np.zeros((), np.int64)
    places = np.take(order(x, dim, largest), np.arange(k), axis=dim)
    return np.take_along_axis(x, places, axis=dim), places


def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    if x.ndim == 0:
        return x, np.zeros((), np.int64)
    return _at(x, np.take(order(x, dim, False), k - 1, axis=dim), dim, keepdim)


def median_dim(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """The lower of two medians; NaN where there is any."""
    if x.ndim == 0:
        return x, np.zeros((), np.int64)
    places = order(x, dim, False)
    middle = np.take(places, (x.shape[dim] - 1) // 2, axis=dim)
    if x.dtype.kind == "f":
        last = np.argmax(np.isnan(x), axis=dim)
        middle = np.where(np.any(np.isnan(x), axis=dim), last, middle)
    return _at(x, middle, dim, keepdim)


def median(x: Tensor) -> Tensor:
    return median_dim(x.reshape(-1), 0)[0]


def count_nonzero(x: Tensor, dim: Any = None) -> Tensor:
    return total((x != 0).astype(np.int64), dim)


def max_all(x: Tensor) -> Tensor:
    return amax(x)


def min_all(x: Tensor) -> Tensor:
    return amin(x)


def cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running(x, dim, np.maximum.accumulate)


def cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _running(x, dim, np.minimum.accumulate)


def _running(x: Tensor, dim: int, accumulate: Any) -> tuple[Tensor, Tensor]:
    """Running extremes and the places of the last element that is one."""
    if x.ndim == 0:
        return x, np.zeros((), np.int64)
    best = ops.stop_gradient(accumulate(x, axis=dim))
    count = np.arange(x.shape[dim]).reshape(-1, *[1] * ((x.ndim - 1 - dim) % x.ndim))
    here = (x == best) | (np.isnan(x) if x.dtype.kind == "f" else False)
    places = np.maximum.accumulate(np.where(here, count, 0), axis=dim)
    return np.take_along_axis(x, places, axis=dim), places


ROWS: dict[str, Row] = {
    "sum": Row(total, layout="axes"),
    "sum.default": Row(total_all),
    "mean": Row(mean, layout="axes"),
    "mean.default": Row(mean_all),
    "amax": Row(amax, layout="axes"),
    "amin": Row(amin, layout="axes"),
    "max": Row(max_all),
    "min": Row(min_all),
    "max.dim": Row(max_dim, results=2),
    "min.dim": Row(min_dim, results=2),
    "argmax": Row(argmax),
    "argmin": Row(argmin),
    "any": Row(any_of),
    "all": Row(all_of),
    "prod": Row(product),
    "prod.default": Row(product_all),
    "var.correction": Row(variance, layout="axes"),
    "std.correction": Row(deviation, layout="axes"),
    "var_mean.correction": Row(var_mean, results=2),
    "linalg_vector_norm": Row(vector_norm),
    "norm.ScalarOpt_dim": Row(norm),
    "norm.Scalar": Row(norm),
    "cumsum": Row(cumsum),
    "cumprod": Row(cumprod),
    "cummax": Row(cummax, results=2),
    "cummin": Row(cummin, results=2),
    "_softmax": Row(softmax, "float"),
    "_safe_softmax": Row(safe_softmax),
    "_log_softmax": Row(log_softmax, "float"),
    "logsumexp": Row(logsumexp, "float"),
    "sort": Row(sort, results=2),
    "sort.stable": Row(sort_stable, results=2),
    "argsort": Row(argsort),
    "topk": Row(topk, results=2),
    "kthvalue": Row(kthvalue, results=2),
    "median": Row(median),
    "median.dim": Row(median_dim, results=2),
    "count_nonzero": Row(count_nonzero),
}
