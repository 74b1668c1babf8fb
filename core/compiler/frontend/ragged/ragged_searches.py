"""NumPy's functions whose result is as long as the data decide: places, distinct elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType
from ...ragged import Ragged
from .. import operators
from ..memory import stores
from ..numpy import arithmetic, elementwise, indexing, shapes
from ..numpy.arithmetic import tensor
from ..values import Tensor, describe, is_static
from . import (
    capacity,
    counts,
    new,
    normal,
    number,
    plain,
    ragged_functions,
    ragged_selection,
    rank,
    refused,
    taken,
    valid,
)

if TYPE_CHECKING:
    from ..specialise import Specialiser


def _truths(s: Specialiser, a: Any) -> tuple[Tensor, int]:
    """Where an array is not zero, without the padding; and its rank."""
    if type(a) is Ragged:
        if a.axis:
            raise refused(s, "np.nonzero", a, "transpose it first")
        truths = tensor(s, plain(a), DType.BOOL)
        return arithmetic.bitwise_and(s, truths, valid(s, a)), rank(a)
    x = tensor(s, elementwise.array(s, a))
    if not x.shape:
        text = "np.nonzero of a number fails in NumPy"
        raise s.error("DL115", text, "np.atleast_1d(x) makes an array of it")
    return tensor(s, stores.plain(x), DType.BOOL), len(x.shape)


def nonzero(s: Specialiser, a: Any) -> tuple[Ragged, ...]:
    mask, _ = _truths(s, a)
    found, count = ragged_selection.true_places(s, mask)
    return tuple(new(s, place, count) for place in found)


def flatnonzero(s: Specialiser, a: Any) -> Ragged:
    flat = s.call(np.ravel, a if type(a) is Ragged else tensor(s, elementwise.array(s, a)))
    return nonzero(s, flat)[0]


def argwhere(s: Specialiser, a: Any) -> Ragged:
    found = nonzero(s, a)
    data = s.call(np.stack, [plain(r) for r in found], axis=1)
    return new(s, data, found[0].count)


def where(s: Specialiser, condition: Any, x: Any = None, y: Any = None) -> Any:
    """With one argument the places where it holds."""
    if x is None and y is None:
        return nonzero(s, condition)
    return elementwise.where(s, condition, x, y)


def compress(s: Specialiser, condition: Any, a: Any, axis: Any = None) -> Any:
    """`a` where a condition holds along one axis; it may be shorter than the axis."""
    if is_static(condition):
        kept = operators.python(s, lambda: np.flatnonzero(condition), "`np.compress`")
        return s.call(np.take, s.call(np.ravel, a) if axis is None else a, kept, axis or 0)
    mask: Any = (
        condition if type(condition) is Ragged else tensor(s, elementwise.array(s, condition))
    )
    x = a if type(a) is Ragged else elementwise.array(s, a)
    if axis is None:
        x = s.call(np.ravel, x)
        axis = 0
    if type(mask) is not Ragged and len(mask.shape) != 1:
        raise s.error("DL115", f"np.compress takes a vector of truths, not {describe(mask)}")
    if type(x) is Ragged or type(mask) is Ragged:
        if axis or (type(mask) is Ragged and rank(mask) > 1):
            raise refused(s, "np.compress", x if type(x) is Ragged else mask)
        return s.subscript(x, nonzero(s, mask)[0])  # The mask may be shorter, or longer.
    x = tensor(s, x)
    k = shapes.axis_of(s, x, axis)
    short = mask.shape[0]
    if short > x.shape[k]:
        text = f"np.compress: {describe(mask)} is longer than axis {k} of {describe(x)}"
        raise s.error("DL115", text)
    if short < x.shape[k]:
        x = s.subscript(x, (*(slice(None),) * k, slice(0, short)))
    return s.subscript(x, (*(slice(None),) * k, _as_bools(s, mask)))


def _as_bools(s: Specialiser, mask: Any) -> Any:
    return tensor(s, stores.plain(mask), DType.BOOL)


def extract(s: Specialiser, condition: Any, arr: Any) -> Any:
    return compress(s, s.call(np.ravel, condition), s.call(np.ravel, arr))


def unique(
    s: Specialiser,
    ar: Any,
    return_index: Any = False,
    return_inverse: Any = False,
    return_counts: Any = False,
    axis: Any = None,
    *,
    equal_nan: Any = True,
) -> Any:
    """The distinct elements in order; the first place, the place of each, how often."""
    if axis is not None:
        raise s.error("DL105", "np.unique along an axis is not known", "flatten it: x.ravel()")
    whole: Any = ar if type(ar) is Ragged else tensor(s, elementwise.array(s, ar))
    if return_inverse and type(whole) is Ragged and whole.axis:
        raise refused(s, "the inverse of np.unique", whole, "transpose it first")
    flat = s.call(np.ravel, whole)
    if type(flat) is not Ragged:
        n = flat.shape[0]
        flat = Ragged(stores.plain(flat), number(s.scope.number(n, DType.I64)))
    n = capacity(flat)
    if not n:
        raise s.error("DL115", "np.unique of no elements", "it is empty")
    order = ragged_functions.order(s, flat)
    ordered = Tensor(s.emit("take_along", plain(flat).value, order.value, axis=0))
    starts = _starts(s, Ragged(ordered, flat.count), equal_nan)
    (firsts,), count = ragged_selection.true_places(s, starts)
    values = taken(s, ordered, firsts, count)
    out: list[Any] = [values]
    if return_index:
        out.append(taken(s, order, firsts, count))
    if return_inverse:
        out.append(_inverse(s, flat, order, starts, whole))
    if return_counts:
        out.append(_repeats(s, flat, firsts, count))
    return out[0] if len(out) == 1 else tuple(out)


def _starts(s: Specialiser, r: Ragged, equal_nan: Any) -> Tensor:
    """Of sorted elements: those that differ from the one before."""
    n = capacity(r)
    x = plain(r)
    if n == 1:
        return valid(s, r)
    later = stores.plain(s.subscript(x, slice(1, None)))
    sooner = stores.plain(s.subscript(x, slice(0, n - 1)))
    differs = arithmetic.not_equal(s, later, sooner)
    if x.dtype.is_float and equal_nan:
        known = arithmetic.bitwise_or(
            s, arithmetic.equal(s, later, later), arithmetic.equal(s, sooner, sooner)
        )
        differs = arithmetic.bitwise_and(s, differs, known)
    first = Tensor(s.scope.number(True, DType.BOOL, (1,)))
    every = stores.plain(s.call(np.concatenate, [first, differs]))
    return arithmetic.bitwise_and(s, every, valid(s, r))


def _inverse(s: Specialiser, r: Ragged, order: Tensor, starts: Tensor, whole: Any) -> Any:
    """Which of the distinct elements each element of `whole` is; r has them in a line."""
    n = capacity(r)
    running = s.emit("cumsum", s.emit("convert", starts.value, dtype=DType.I64), axis=0)
    rank_ = s.emit("sub", running, s.scope.number(1, DType.I64, (n,)))
    at = s.emit("put_add", s.scope.number(0, DType.I64, (n,)), order.value, rank_, axis=0)
    if type(whole) is Ragged:
        made = normal(s, Ragged(Tensor(at), r.count)).value
        return new(s, Tensor(indexing.reshape(s, made, whole.data.shape)), whole.count)
    return stores.fresh(s, indexing.reshape(s, at, whole.shape))


def _repeats(s: Specialiser, r: Ragged, firsts: Tensor, count: Tensor) -> Ragged:
    """How far it is from each first place to the next."""
    n = capacity(r)
    every = counts(s, n)
    last = arithmetic.equal(s, every, arithmetic.subtract(s, Tensor(count.value), 1))
    at = arithmetic.minimum(s, arithmetic.add(s, every, 1), n - 1)
    following = Tensor(s.emit("take", firsts.value, at.value, axis=0))
    end = arithmetic.select(s, last, Tensor(r.count.value), following)
    found = Ragged(arithmetic.subtract(s, end, firsts), count)
    return new(s, normal(s, found), count)
