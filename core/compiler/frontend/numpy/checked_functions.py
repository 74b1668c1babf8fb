"""Functions of NumPy that raise errors which depend on the numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType, Value
from ...traced import ARRAY, SCALAR
from ..definitions import np_arrays, np_numbers, np_orders, np_signals, np_statistics
from ..flow import integer_fits, raises
from ..memory import array_changes
from ..values import Tensor, is_static
from . import arithmetic, elementwise, reductions, shapes
from .formulas import fails, formula, refuses

if TYPE_CHECKING:
    from ..specialise import Specialiser


def ldexp(s: Specialiser, x1: Any, x2: Any) -> Any:
    if type(x2) is Tensor and x2.weak and not (type(x1) is Tensor and x1.weak):
        integer_fits.check_fits(s, x2, DType.I32)  # The type of NumPy's loop.
    if _is_whole(s, x1) and not arithmetic.dtype_of(s, elementwise.array(s, x2))[1]:
        x1 = arithmetic.tensor(s, x1, DType.F16)  # The first of NumPy's loops that takes it.
    return formula(s, np_numbers.ldexp, x1, x2)


def _is_whole(s: Specialiser, x: Any) -> bool:
    """Whether it is an int of Python's."""
    kind, weak = arithmetic.dtype_of(s, elementwise.array(s, x))
    return weak and kind.is_int


def polymul(s: Specialiser, a1: Any, a2: Any) -> Any:
    """NumPy drops leading zeros: where there are some, a call raises an error."""
    made = formula(s, np_signals.polymul, a1, a2)
    for p in (a1, a2):
        first = s.subscript(shapes.ravel(s, elementwise.array(s, p)), 0)
        zero = arithmetic.tensor(s, arithmetic.equal(s, first, 0)).value
        refuses(s, zero, "NumPy's polynomial has no leading zero: its product is shorter here")
    return made


def nan_place(f: Callable[..., Any]) -> Callable[..., Any]:
    """`np.nanargmax` or `np.nanargmin`."""

    def run(s: Specialiser, a: Any, axis: Any = None, *, keepdims: Any = False) -> Any:
        x = arithmetic.tensor(s, elementwise.array(s, a))
        if x.dtype.is_float:
            lost = reductions.all_(s, elementwise.isnan(s, x), axis).value
            fails(s, lost, ValueError, "All-NaN slice encountered")
        return formula(s, getattr(np_statistics, f.__name__), x, axis, keepdims=keepdims)

    return run


def in_range(f: Callable[..., Any], top: int, words: str) -> Callable[..., Any]:
    """`np.quantile` and the like, whose `q` lies from 0 to `top`."""

    def run(
        s: Specialiser,
        a: Any,
        q: Any,
        axis: Any = None,
        *,
        method: Any = "linear",
        keepdims: Any = False,
    ) -> Any:
        x = arithmetic.tensor(s, elementwise.array(s, q))
        inside = [arithmetic.greater_equal(s, x, 0), arithmetic.less_equal(s, x, top)]
        outside = s.emit("not", arithmetic.bitwise_and(s, *inside).value)
        fails(s, outside, ValueError, f"{words} must be in the range [0, {top}]")
        f_of = getattr(np_statistics, f.__name__)
        made = formula(s, f_of, a, q, axis, method=method, keepdims=keepdims)
        values = arithmetic.tensor(s, elementwise.array(s, a))
        typed = values.dtype.is_float and values.dtype is not made.dtype
        if f in (np.nanquantile, np.nanpercentile) and typed and values.type.size:
            lost = formula(s, np_statistics.has_lost_first, values, axis).value
            refuses(s, lost, f"Python gives {values.dtype.value} where the first row is all NaN")
        return made

    return run


def choose(s: Specialiser, a: Any, choices: Any, mode: Any = "raise") -> Any:
    if not isinstance(mode, str):
        raise s.needs_static(mode, "`mode` of np.choose")
    if not isinstance(choices, list | tuple):
        rows = arithmetic.tensor(s, choices)
        if not rows.shape:
            raise s.error("DL119", "np.choose takes a sequence of choices")
        choices = [s.subscript(rows, k) for k in range(rows.shape[0])]
    made = formula(s, np_numbers.choose, a, choices, mode)
    if mode == "raise":
        index = arithmetic.tensor(s, elementwise.array(s, a))
        outside = _outside(s, index, len(choices))
        fails(s, outside, ValueError, "invalid entry in choice array")
    return made


def digitize(s: Specialiser, x: Any, bins: Any, right: Any = False) -> Any:
    """Bins that are not known must grow: where they fall, a call raises an error."""
    rule = np_orders.digitize
    if is_static(bins) and np.ndim(edges := np.asarray(bins)) == 1 and edges.dtype.kind in "biuf":
        steps = np.diff(edges.astype(np.float64))
        if (steps < 0).any() and (steps > 0).any():
            raise s.error("DL119", "bins must be monotonically increasing or decreasing")
        lost = np.isnan(edges)
        if lost.any() and ((steps < 0).any() or (lost[:-1] & ~lost[1:]).any()):
            raise s.error("DL119", "NumPy's search among these bins depends on its NaN")
        rule = np_orders.digitize_downwards if (steps < 0).any() else rule
    else:
        x_bins = arithmetic.tensor(s, elementwise.array(s, bins))
        pair = [s.subscript(x_bins, part) for part in (slice(1, None), slice(None, -1))]
        falls = arithmetic.less(s, *pair).value
        refuses(s, falls, "NumPy has another rule for bins that fall here")
        if x_bins.dtype.is_float:
            after, before = (arithmetic.equal(s, v, v) for v in pair)
            lost = arithmetic.bitwise_and(s, after, arithmetic.invert(s, before)).value
            refuses(s, lost, "Python gives places that depend on a NaN among the bins")
    return formula(s, rule, x, bins, right)


def histogram(
    s: Specialiser,
    a: Any,
    bins: Any = 10,
    range: Any = None,
    density: Any = None,
    weights: Any = None,
) -> Any:
    """Of edges with a NaN among them NumPy counts by differences of places, which are refused."""
    edges = arithmetic.tensor(s, elementwise.array(s, bins)) if not isinstance(bins, str) else None
    if edges is not None and edges.shape and edges.dtype.is_float:
        lost = arithmetic.not_equal(s, edges, edges).value
        refuses(s, lost, "Python gives counts that depend on a NaN among the edges")
    return formula(s, np_orders.histogram, a, bins, range, density, weights)


def nan_to_num(
    s: Specialiser, x: Any, copy: Any = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    if type(copy) is not bool:
        raise s.needs_static(copy, "`copy` of np.nan_to_num")
    value = arithmetic.tensor(s, x)
    ends = (_written(s, end, value) for end in (nan, posinf, neginf))
    made = elementwise.nan_to_num(s, x, *ends)
    if copy:
        return made
    if type(x) is not Tensor or x.kind != ARRAY:
        raise s.error("DL119", "np.nan_to_num changes an array in place", "leave `copy` out")
    return array_changes.out(s, x, made, "`np.nan_to_num`", True)


def _written(s: Specialiser, end: Any, value: Tensor) -> Any:
    """What np.nan_to_num writes into its copy: of the copy's element type and shape."""
    if end is None or not value.dtype.is_float:
        return end
    array_changes.same_kind(s, end, value.dtype, "np.nan_to_num")
    array_changes.fits(s, arithmetic.shape_of(end), value.shape)
    return arithmetic.tensor(s, elementwise.array(s, end), value.dtype)


def geomspace(s: Specialiser, start: Any, stop: Any, num: Any = 50, endpoint: Any = True) -> Any:
    """Of numbers above zero; of others a call raises an error."""
    for end in (start, stop):
        value = arithmetic.tensor(s, elementwise.array(s, end))
        below = arithmetic.less_equal(s, value, 0).value
        refuses(s, below, "a program's np.geomspace takes numbers above zero")
    return formula(s, np_arrays.geomspace, start, stop, num, endpoint)


def kept(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Gives a scalar of NumPy's of one, and an array of an array, also of rank 0."""

    @wraps(handler)
    def run(s: Specialiser, a: Any, *args: Any, **kwargs: Any) -> Any:
        made = handler(s, a, *args, **kwargs)
        if type(made) is not Tensor or made.shape or type(a) is not Tensor:
            return made
        kind = SCALAR if a.kind == SCALAR else ARRAY
        if made.kind != kind:
            if made is a:
                return Tensor(made.value, kind=kind)
            made.kind, made.weak = kind, False  # It may be a view.
        return made

    return run


@kept
def transpose(s: Specialiser, a: Any, axes: Any = None) -> Tensor:
    return shapes.transpose(s, a, axes)


@kept
def imag(s: Specialiser, val: Any) -> Any:
    return formula(s, np_numbers.imag, val)


def unravel_index(s: Specialiser, indices: Any, shape: Any) -> Any:
    flat = _places(s, indices)
    sizes = shapes.shape_argument(s, shape)
    outside = _outside(s, flat, int(np.prod(sizes)))
    asked = arithmetic.any_of(s, outside)
    raises.ask(s, asked, partial(_unravelled, sizes), flat, kind=ValueError)
    return formula(s, np_arrays.unravel_index, indices, shape)


def _unravelled(sizes: Sequence[int], indices: Any) -> None:
    np.unravel_index(indices, tuple(sizes))


def ravel_multi_index(s: Specialiser, multi_index: Any, dims: Any) -> Any:
    sizes = shapes.shape_argument(s, dims)
    if type(multi_index) is Tensor and multi_index.shape:
        multi_index = [s.subscript(multi_index, k) for k in range(multi_index.shape[0])]
    if not isinstance(multi_index, list | tuple) or len(multi_index) != len(sizes):
        raise s.error("DL115", "np.ravel_multi_index: as many indices as axes")
    for index, size in zip(multi_index, sizes, strict=True):
        flat = _places(s, index)
        outside = _outside(s, flat, size)
        fails(s, outside, ValueError, "invalid entry in coordinates array")
    return formula(s, np_arrays.ravel_multi_index, multi_index, dims)


def _places(s: Specialiser, indices: Any) -> Tensor:
    found = arithmetic.tensor(s, elementwise.array(s, indices))
    if found.dtype.is_float or found.dtype is DType.BOOL:
        raise s.error("DL116", f"indices are whole numbers, not {found.dtype.value}")
    return arithmetic.tensor(s, found, DType.I64)


def _outside(s: Specialiser, index: Tensor, size: int) -> Value:
    """Bools: a place is below zero, or not below a size."""
    low = arithmetic.less(s, index, 0)
    high = arithmetic.greater_equal(s, index, size)
    return arithmetic.bitwise_or(s, low, high).value
