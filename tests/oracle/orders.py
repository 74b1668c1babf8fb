"""Sums and products of floats in another order: what a disturbed program calls (`causes`).

Sums of floats are not associative. Where large terms cancel or overflow, the order decides the
result and not only its last bits: 1e30 - 1e30 + 3 is 3 or 0 in f32, and 3e38 + 3e38 - 3e38 is
infinite or not. NumPy's order follows the layout of an array; compiled code has another one. A
matrix product may also have fused steps, which round `sum + x * y` once: 1e60 - inf is -inf
there, and NaN in f32 where the product is rounded to an infinity first.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

#: Functions and methods that sum or multiply along an axis.
_REDUCTIONS = ("sum", "mean", "average", "prod", "var", "std")
_NAN_REDUCTIONS = ("nansum", "nanmean", "nanprod", "nanvar", "nanstd")
#: Those that take a mean away first.
_SPREADS = ("var", "std", "nanvar", "nanstd")
#: Functions and methods that sum or multiply along an axis and give each step.
_RUNNING = ("cumsum", "cumprod")
#: Functions and methods that multiply matrices and vectors.
_PRODUCTS = ("matmul", "dot", "inner", "vdot")
#: A type that holds the product of two floats, by their size.
_WIDER: dict[int, Any] = {2: np.float64, 4: np.float64, 8: np.longdouble}
#: How a product's sums are rounded: with each product and sum, with each sum, at the end.
_STEPS, _FUSED, _AT_THE_END = range(3)


def reordered(rng: random.Random, function: Any) -> Any:
    """The function, with sums in another order; itself where it has none."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if isinstance(owner, np.ndarray):
        if name in _REDUCTIONS:
            return _of_method(rng, owner, name)
        if name in _RUNNING:
            return lambda *given, **keywords: _running(rng, function, owner, *given, **keywords)
        if name == "dot":
            return lambda *given, **keywords: _product(rng, function, owner, *given, **keywords)
    if function is operator.matmul or (name in _PRODUCTS and function is getattr(np, name)):
        return lambda *given, **keywords: _product(rng, function, *given, **keywords)
    if function in (np.convolve, np.polymul):
        return lambda *given, **keywords: _convolution(rng, function, *given, **keywords)
    if (name in _RUNNING and function is getattr(np, name)) or (
        name == "accumulate" and owner in (np.add, np.multiply)
    ):
        return lambda *given, **keywords: _running(rng, function, *given, **keywords)
    if name == "reduce" and owner in (np.add, np.multiply):
        return _of_function(rng, function, first=0)
    if name in (*_REDUCTIONS, *_NAN_REDUCTIONS) and function is getattr(np, name):
        return _of_function(rng, function, first=None)
    return function


def _of_method(rng: random.Random, owner: np.ndarray, name: str) -> Callable[..., Any]:
    def method(*args: Any, **keywords: Any) -> Any:
        axis = args[0] if args else keywords.get("axis")
        array = owner if "where" in keywords else _shuffled(rng, owner, axis)
        made = getattr(array, name)(*args, **keywords)
        if name not in _SPREADS or len(args) > 1 or {"dtype", "out"} & set(keywords):
            return made
        return _once_rounded(rng, made, array, lambda wide: getattr(wide, name)(*args, **keywords))

    return method


def _of_function(rng: random.Random, reduction: Any, first: int | None) -> Callable[..., Any]:
    """first: the axis where none is given."""

    def function(*args: Any, **keywords: Any) -> Any:
        axis = args[1] if len(args) > 1 else keywords.get("axis", first)
        if args and not {"where", "weights"} & set(keywords) and len(args) < 3:
            args = (_shuffled(rng, args[0], axis), *args[1:])
        made = reduction(*args, **keywords)
        spreads = getattr(reduction, "__name__", "") in _SPREADS
        if not spreads or len(args) > 2 or {"dtype", "out"} & set(keywords):
            return made
        return _once_rounded(
            rng, made, args[0], lambda wide: reduction(wide, *args[1:], **keywords)
        )

    return function


def _once_rounded(
    rng: random.Random, made: Any, given: Any, reduction: Callable[[Any], Any]
) -> Any:
    """A spread that is rounded at its end, or not: that of equal numbers is 0, or nearly so."""
    array = np.asarray(given)
    if array.dtype.kind != "f" or rng.random() < 0.5:
        return made
    other = np.asarray(reduction(array.astype(_WIDER[array.dtype.itemsize]))).astype(array.dtype)
    return other if isinstance(made, np.ndarray) else other[()]


def _shuffled(rng: random.Random, given: Any, axis: Any) -> Any:
    """The array with its elements in another order within each sum along the axis or axes."""
    array = np.asarray(given)
    if array.dtype.kind not in "iufc":
        return given
    if axis is None:
        return array.ravel()[_order(rng, array.size)].reshape(array.shape)
    for k in axis if isinstance(axis, tuple) else (axis,):
        if not -array.ndim <= k < array.ndim:
            return given  # NumPy raises an error.
        array = np.take(array, _order(rng, array.shape[k]), k)
    return array


def _order(rng: random.Random, count: int) -> list[int]:
    return rng.sample(range(count), count)


def _running(rng: random.Random, function: Any, *given: Any, **keywords: Any) -> Any:
    """A running sum of floats that is rounded at the end of each step, or not."""
    is_method = isinstance(getattr(function, "__self__", None), np.ndarray)
    made = function(*given[is_method:], **keywords)
    settings = {**dict(zip(("axis", "dtype", "out"), given[1:], strict=False)), **keywords}
    if (
        not isinstance(made, np.ndarray)
        or made.dtype.kind != "f"
        or settings.get("out") is not None
    ):
        return made
    if rng.random() < 0.5:
        return made
    settings["dtype"] = wider = _WIDER[made.dtype.itemsize]
    array = np.asarray(given[0]).astype(made.dtype).astype(wider)
    wide = getattr(array, function.__name__) if is_method else partial(function, array)
    made[...] = wide(**settings).astype(made.dtype)
    return made


def _product(rng: random.Random, function: Any, *given: Any, **keywords: Any) -> Any:
    """A product of matrices or vectors of real floats; of others, the function's own."""
    arrays = [np.asarray(x) for x in given[:2]]
    is_method = isinstance(getattr(function, "__self__", None), np.ndarray)
    made = function(*given[is_method:], **keywords)
    kinds = [x.dtype.kind for x in arrays]
    if not isinstance(made, np.ndarray | np.floating) or made.dtype.kind != "f":
        return made
    if len(arrays) != 2 or not all(x.ndim in (1, 2) for x in arrays) or "f" not in kinds:
        return made
    a, b = arrays
    if function is np.inner:
        b = b.T
    if function is np.vdot:
        a, b = a.ravel(), b.ravel()
    other = _summed(rng, a, b, np.result_type(a, b)).astype(made.dtype)
    if isinstance(made, np.ndarray):
        made[...] = other.reshape(made.shape)
        return made
    return other.reshape(())[()]


def _convolution(rng: random.Random, function: Any, *given: Any, **keywords: Any) -> Any:
    """A full convolution of real floats; of others, and of parts of it, the function's own."""
    made = function(*given, **keywords)
    arrays = [np.atleast_1d(np.asarray(x)) for x in given]
    if len(arrays) != 2 or not isinstance(made, np.ndarray) or made.dtype.kind != "f" or keywords:
        return made
    if function is np.polymul:
        arrays = [np.trim_zeros(x, "f") for x in arrays]
    a, b = arrays
    if not len(a) or not len(b) or len(made) != len(a) + len(b) - 1:
        return made
    for k in range(len(made)):
        first, stop = max(0, k - len(b) + 1), min(len(a), k + 1)
        row, column = a[first:stop], b[k - stop + 1 : k - first + 1][::-1]
        made[k] = _summed(rng, row, column, made.dtype)[0, 0]
    return made


def _summed(rng: random.Random, a: np.ndarray, b: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """A product of two matrices; a vector is a matrix of one row or column."""
    wider, rounding = _WIDER[dtype.itemsize], rng.choice((_STEPS, _FUSED, _AT_THE_END))
    a, b = (x.astype(dtype).astype(wider) for x in (a, b))
    a, b = np.atleast_2d(a), b if b.ndim == 2 else b[:, None]
    total = np.zeros((len(a), b.shape[1]), wider)
    for k in _order(rng, len(b)):
        term = a[:, k, None] * b[k]
        total = total + (term.astype(dtype) if rounding == _STEPS else term)
        total = total if rounding == _AT_THE_END else total.astype(dtype).astype(wider)
    return total.astype(dtype)


__all__ = ["reordered"]
