"""Joining arrays whose length the data decide: `np.concatenate`, `np.stack` and their kind.

What is joined side by side has one length, which NumPy asks for: nothing broadcasts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType
from ...ragged import Ragged
from .. import operators
from ..memory import stores
from ..numpy import arithmetic, indexing
from ..operators import static_int
from ..values import Tensor, describe
from . import (
    aligned,
    among,
    capacity,
    check,
    new,
    number,
    plain,
    ragged_selection,
    rank,
    refused,
    taken,
    valid,
)
from .ragged_functions import axes_of

if TYPE_CHECKING:
    from ..specialise import Specialiser


#: NumPy's words where arrays that are stacked are not of one length.
_STACKED = "all input arrays must have the same shape"
_NESTED = (
    "setting an array element with a sequence. The requested array has an inhomogeneous shape after"
    " {} dimensions. The detected shape was {} + inhomogeneous part."
)
_JOINED = (
    "all the input array dimensions except for the concatenation axis must match exactly, but along"
    " dimension {}, the array at index 0 has size {} and the array at index {} has size {}"
)


def _of_one_length(
    s: Specialiser, values: Sequence[Any], words: Callable[[int, int, int], str]
) -> list[Any]:
    """The arrays, once the program has checked that the axis of unknown length is as long in all.

    `words`: of the error, by the place of an array, the first one's length and its own.

    Raises:
        ProgramError: DL107, it is not the same axis in all.
    """
    first = next(v for v in values if type(v) is Ragged)
    lengths, out = [], []
    for v in values:
        sizes = v.data.shape if type(v) is Ragged else arithmetic.shape_of(v)
        if len(sizes) != rank(first) or (type(v) is Ragged and v.axis != first.axis):
            raise refused(s, "joining arrays of several shapes", first)
        lengths.append(v.count if type(v) is Ragged else sizes[first.axis])
        out.append(Ragged(v.data, first.count, v.axis) if type(v) is Ragged else v)
    for k, (v, length) in enumerate(zip(values, lengths, strict=True)):
        if k == 0 or (type(v) is Ragged and lengths[0] is length):
            continue

        def make(m: int, n: int, k: int = k) -> BaseException:
            return ValueError(words(k, m, n))

        bad = operators.compare(s, "!=", lengths[0], length)
        check(s, bad, make, lengths[0], length)
    return out


def one_array(s: Specialiser, value: Any) -> Any:
    """A list or tuple with ragged arrays in it as one array."""
    if type(value) not in (list, tuple) or not among(value):
        return value
    items = [one_array(s, v) for v in value]
    return _stacked(s, items, 0, lambda *_: _NESTED.format(1, f"({len(items)},)"))


def concatenate(s: Specialiser, f: Any, arrays: Any, axis: Any = 0) -> Any:
    values = [s.array(v) if isinstance(v, list | tuple) else v for v in arrays]
    ragged = [v for v in values if type(v) is Ragged]
    (k,) = axes_of(s, ragged[0], axis, "np.concatenate")
    if any(r.axis != ragged[0].axis or rank(r) != rank(ragged[0]) for r in ragged):
        raise refused(s, "np.concatenate along several axes", ragged[0])
    for v in values:
        if type(v) is not Ragged and len(arithmetic.shape_of(v)) != rank(ragged[0]):
            text = f"np.concatenate joins arrays of one rank, not {describe(ragged[0])}"
            raise s.error("DL115", f"{text} and {describe(v)}")
    if k != ragged[0].axis:
        own = ragged[0].axis
        values = _of_one_length(s, values, lambda k, m, n: _JOINED.format(own, m, k, n))
        data, count, place = aligned(s, values)
        if count is None:
            return s.call(f, data, axis=k)
        made = s.call(f, data, axis=k)
        return new(s, made, count, len(made.shape) - place)
    masks, parts = [], []
    for v in values:
        r = v
        if type(v) is not Ragged:
            x = arithmetic.tensor(s, v)
            r = Ragged(x, number(s.scope.number(x.shape[k], DType.I64)), k)
        inside = valid(s, r)
        masks.append(Tensor(indexing.reshape(s, inside.value, (capacity(r),))))
        parts.append(plain(r))
    kept = stores.plain(s.call(np.concatenate, masks))
    whole = stores.plain(s.call(np.concatenate, parts, axis=k))
    (order,), count = ragged_selection.true_places(s, kept)
    return taken(s, whole, order, count, k)


def append(s: Specialiser, f: Any, arr: Any, values: Any, axis: Any = None) -> Any:
    some = []
    for v in (arr, values):
        v = s.array(v) if isinstance(v, list | tuple) else v
        if axis is None and type(v) is not Ragged:
            v = s.call(np.ravel, v)
        elif axis is None and rank(v) != 1:
            raise refused(s, "np.append of several axes", v, "say along which axis")
        some.append(v)
    return concatenate(s, np.concatenate, some, 0 if axis is None else axis)


def stacked_rows(s: Specialiser, f: Any, tup: Any) -> Any:
    """`hstack` of vectors, `vstack` of matrices."""
    values = [s.array(v) if isinstance(v, list | tuple) else v for v in tup]
    ranks = {rank(v) if type(v) is Ragged else len(arithmetic.shape_of(v)) for v in values}
    if ranks == {1} and f is np.hstack:
        return concatenate(s, np.concatenate, values, 0)
    if ranks == {2}:
        return concatenate(s, np.concatenate, values, 1 if f is np.hstack else 0)
    return _stacked(s, values, 0, lambda k, m, n: _JOINED.format(1, m, k, n))


def stack(s: Specialiser, f: Any, arrays: Any, axis: Any = 0) -> Any:
    return _stacked(s, arrays, axis, lambda *_: _STACKED)


def _stacked(s: Specialiser, arrays: Any, axis: Any, words: Callable[[int, int, int], str]) -> Any:
    values = [s.array(v) if isinstance(v, list | tuple) else v for v in arrays]
    values = _of_one_length(s, values, words)
    data, count, place = aligned(s, values)
    if any(arithmetic.shape_of(d) != arithmetic.shape_of(data[0]) for d in data):
        raise refused(s, "joining arrays of several shapes", values[0])
    made = s.call(np.stack, data, axis=axis)
    if count is None:
        return made
    whole = len(made.shape)
    at = static_int(s, axis, "an axis") % whole
    own = whole - 1 - place
    return new(s, made, count, own + (at <= own))


def column_stack(s: Specialiser, f: Any, tup: Any) -> Any:
    if any(type(v) is Ragged and rank(v) != 1 for v in tup):
        return concatenate(s, np.concatenate, tup, 1)
    return _stacked(s, tup, 1, lambda k, m, n: _JOINED.format(0, m, k, n))


#: By NumPy's names: handlers of (specialiser, function, arguments).
JOINS: dict[str, Callable[..., Any]] = {
    "concatenate": concatenate,
    "append": append,
    "hstack": stacked_rows,
    "vstack": stacked_rows,
    "stack": stack,
    "column_stack": column_stack,
}
