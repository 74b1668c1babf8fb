"""Functions of NumPy that raise errors which depend on the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType, Value
from ..definitions import np_arrays, np_numbers, np_signals, np_statistics
from ..flow import raises
from ..values import Tensor
from . import arithmetic, elementwise, reductions, shapes

if TYPE_CHECKING:
    from ..specialise import Specialiser


def ldexp(s: Specialiser, x1: Any, x2: Any) -> Any:
    if type(x2) is Tensor and x2.weak and not (type(x1) is Tensor and x1.weak):
        raises.check_fits(s, x2, DType.I32)  # The type of NumPy's loop.
    return s.call(np_numbers.ldexp, x1, x2)


def polymul(s: Specialiser, a1: Any, a2: Any) -> Any:
    """NumPy drops leading zeros: where there are some, a call raises an error."""
    made = s.call(np_signals.polymul, a1, a2)
    for p in (a1, a2):
        first = s.subscript(shapes.ravel(s, elementwise.array(s, p)), 0)
        zero = arithmetic.tensor(s, arithmetic.equal(s, first, 0)).value
        raises.ask(s, zero, _leading_zero, kind=raises.Uncaught)
    return made


def _leading_zero() -> None:
    raise ArithmeticError("NumPy's polynomial has no leading zero: its product is shorter here")


def nan_place(f: Callable[..., Any]) -> Callable[..., Any]:
    """`np.nanargmax` or `np.nanargmin`."""

    def run(s: Specialiser, a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
        x = arithmetic.tensor(s, elementwise.array(s, a))
        if x.dtype.is_float:
            lost = reductions.all_(s, elementwise.isnan(s, x), axis).value
            raises.ask(s, arithmetic.any_of(s, lost), _all_nan, kind=ValueError)
        return s.call(getattr(np_statistics, f.__name__), x, axis, keepdims=keepdims)

    return run


def _all_nan() -> None:
    raise ValueError("All-NaN slice encountered")


def unravel_index(s: Specialiser, indices: Any, shape: Any) -> Any:
    flat = arithmetic.tensor(s, elementwise.array(s, indices), DType.I64)
    sizes = shapes.shape_argument(s, shape)
    outside = _outside(s, flat, int(np.prod(sizes)))
    raises.ask(s, outside, partial(_unravelled, sizes), flat, kind=ValueError)
    return s.call(np_arrays.unravel_index, indices, shape)


def _unravelled(sizes: Sequence[int], indices: Any) -> None:
    np.unravel_index(indices, tuple(sizes))


def ravel_multi_index(s: Specialiser, multi_index: Any, dims: Any) -> Any:
    sizes = shapes.shape_argument(s, dims)
    if type(multi_index) is Tensor:
        multi_index = [s.subscript(multi_index, k) for k in range(multi_index.shape[0])]
    if not isinstance(multi_index, list | tuple) or len(multi_index) != len(sizes):
        raise s.error("DL115", "np.ravel_multi_index: as many indices as axes")
    for index, size in zip(multi_index, sizes, strict=True):
        flat = arithmetic.tensor(s, elementwise.array(s, index), DType.I64)
        raises.ask(s, _outside(s, flat, size), _no_place, kind=ValueError)
    return s.call(np_arrays.ravel_multi_index, multi_index, dims)


def _no_place() -> None:
    raise ValueError("invalid entry in coordinates array")


def _outside(s: Specialiser, index: Tensor, size: int) -> Value:
    """bool[]: a place is below zero, or not below a size."""
    low = arithmetic.less(s, index, 0)
    high = arithmetic.greater_equal(s, index, size)
    return arithmetic.any_of(s, arithmetic.bitwise_or(s, low, high).value)
