"""NumPy's functions that take elements by their places, pad arrays, and subtract neighbours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType
from ...traced import SCALAR
from .. import operators
from ..flow import integer_fits
from ..operators import static_int
from ..values import Tensor, describe, is_static
from . import arithmetic, indexing, shapes
from .arithmetic import tensor

if TYPE_CHECKING:
    from ..specialise import Specialiser


def take(s: Specialiser, a: Any, indices: Any, axis: Any = None, *, mode: Any = "raise") -> Tensor:
    """An index out of range is moved to the end that is near, as `mode="clip"` says."""
    x = tensor(s, a) if axis is not None else shapes.ravel(s, a)
    k = shapes.axis_of(s, x, 0 if axis is None else axis)
    index = whole_numbers(s, indices, "np.take")
    if arithmetic.dtype_of(s, index) == (DType.U64, False):
        index = tensor(s, index, DType.I64)  # Without a check, as NumPy casts them.
    if mode == "wrap":
        value = arithmetic.remainder(s, tensor(s, index, DType.I64), x.shape[k]).value
    elif mode == "clip":
        value = tensor(s, index, DType.I64).value
    else:
        value = indexing.wrapped(s, index, x.shape[k], k)
    return shapes.same(x, s.emit("take", x.value, value, axis=k))


def whole_numbers(s: Specialiser, indices: Any, what: str) -> Any:
    """Indices as numbers or an array of integers; `what` names the function in the error."""
    if isinstance(indices, tuple | list) and is_static(indices):
        indices = operators.python(s, lambda: np.asarray(indices), f"`{what}`")
    elif isinstance(indices, tuple | list):
        indices = shapes.array(s, indices)
    kind = arithmetic.dtype_of(s, indices)[0]
    if not kind.is_int:
        raise s.error("DL114", f"{what} takes whole numbers as indices, not {kind.value}")
    return indices


def take_along_axis(s: Specialiser, arr: Any, indices: Any, axis: Any = -1) -> Tensor:
    x = tensor(s, arr) if axis is not None else shapes.ravel(s, arr)
    index = tensor(s, whole_numbers(s, indices, "np.take_along_axis"))
    k = shapes.axis_of(s, x, 0 if axis is None else axis)
    if len(index.shape) != len(x.shape):
        text = f"np.take_along_axis: {describe(x)} and indices {describe(index)} differ in rank"
        raise s.error("DL115", text, "x[:, None] adds an axis to the indices")
    # Off the axis the two broadcast against each other.
    off = [n if m == 1 else m for m, n in zip(x.shape, index.shape, strict=True)]
    for d, (m, n) in enumerate(zip(x.shape, index.shape, strict=True)):
        if d != k and m != n and 1 not in (m, n):
            text = f"{describe(x)} and indices {describe(index)} differ along axis {d}"
            raise s.error("DL115", f"np.take_along_axis: {text}")
    wide = tuple(off[:k]), tuple(off[k + 1 :])
    x = shapes.broadcast_to(s, x, (*wide[0], x.shape[k], *wide[1]))
    index = shapes.broadcast_to(s, index, (*wide[0], index.shape[k], *wide[1]))
    value = indexing.wrapped(s, index, x.shape[k], k)
    return shapes.same(x, s.emit("take_along", x.value, value, axis=k))


#: np.pad's modes that repeat elements of the array.
_REPEATING = ("edge", "reflect", "symmetric", "wrap")
#: The modes that a keyword is for.
_MODES_OF = {"constant_values": ("constant",), "reflect_type": ("reflect", "symmetric")}


def pad(
    s: Specialiser,
    array: Any,
    pad_width: Any,
    mode: Any = "constant",
    *,
    constant_values: Any = None,
    reflect_type: Any = None,
) -> Tensor:
    x = tensor(s, array)
    rank = len(x.shape)
    if is_static(pad_width) and np.asarray(pad_width).dtype.kind != "i":
        raise s.error("DL119", f"np.pad: {describe(pad_width)} is no whole number")
    given = np.asarray(pad_width)
    widths = [static_int(s, w, "a pad width") for w in given.ravel().tolist()]
    if min(widths, default=-1) < 0:  # Of an array without axes too.
        raise s.error("DL115", "a pad width cannot be negative", "slice instead")
    try:
        ends = np.broadcast_to(np.reshape(widths, given.shape), (rank, 2))
    except ValueError:
        raise s.error(
            "DL115", f"pad_width {describe(pad_width)} does not fit {describe(x)}"
        ) from None
    low, high = map(tuple, ends.T.tolist())
    given_for = {"constant_values": constant_values, "reflect_type": reflect_type}
    for name, value in given_for.items():
        if value is not None and mode not in _MODES_OF[name]:
            raise s.error("DL105", f"np.pad has no `{name}` in the mode {describe(mode)}")
    if mode in _REPEATING and reflect_type in (None, "even"):
        for k, sides in enumerate(zip(low, high, strict=True)):
            if any(sides):  # NumPy says which element stands where.
                x = take(s, x, _padded_places(s, x.shape[k], sides, mode), k)
        return x
    if mode not in ("constant", "empty"):
        known = ", ".join(("constant", "empty", *_REPEATING))
        raise s.error("DL119", f"np.pad knows the modes {known}, not {describe(mode)}")
    return _pad_numbers(s, x, low, high, 0 if constant_values is None else constant_values)


def _padded_places(s: Specialiser, size: int, ends: tuple[int, int], mode: str) -> Any:
    return operators.python(s, lambda: np.pad(np.arange(size), ends, mode), "`np.pad`")  # type: ignore[call-overload]


def _padding(value: Any, dtype: Any) -> Any:
    """A number as NumPy writes it around an array."""
    made = np.zeros(1, dtype)
    made[:] = np.asarray(value)[()]
    return made[0]


def _pad_numbers(
    s: Specialiser, x: Tensor, low: tuple[int, ...], high: tuple[int, ...], values: Any
) -> Tensor:
    """One number, or one for each end of each axis, the later axes over the earlier."""
    rank = len(x.shape)
    if arithmetic.shape_of(values) == () and not isinstance(values, tuple | list):
        if type(values) is Tensor:
            integer_fits.check_fits(s, Tensor(values.value, kind=SCALAR), x.dtype, item=True)
        else:
            values = operators.python(s, lambda: _padding(values, x.dtype.numpy), "`np.pad`")
        value = arithmetic.materialise(s, arithmetic.strong(values), x.dtype, ())
        return shapes.same(
            x, s.emit("pad", x.value, value, low=low, high=high, interior=(0,) * rank)
        )
    ends = shapes.broadcast_to(s, shapes.strong_sequence(s, values), (rank, 2))
    for k, sides in enumerate(zip(low, high, strict=True)):
        for side, width in enumerate(sides):
            only = tuple(width if d == k else 0 for d in range(rank))
            edges = (only, (0,) * rank) if side == 0 else ((0,) * rank, only)
            x = _pad_numbers(s, x, *edges, indexing.subscript(s, ends, (k, side)))
    return x


def diff(
    s: Specialiser, a: Any, n: Any = 1, axis: Any = -1, prepend: Any = None, append: Any = None
) -> Tensor:
    x = tensor(s, a)
    k = shapes.axis_of(s, x, axis)
    before = (slice(None),) * k
    order = static_int(s, n, "the order of a difference")
    if order < 0:
        raise s.error("DL119", f"the order of a difference cannot be {order}")
    if order == 0:
        return x
    if prepend is not None or append is not None:
        ends = [None if v is None else _one_row(s, x, k, v) for v in (prepend, append)]
        x = shapes.concatenate(s, [v for v in (ends[0], x, ends[1]) if v is not None], k)
    for _ in range(min(order, x.shape[k])):  # After that many nothing is left to subtract.
        later = indexing.subscript(s, x, (*before, slice(1, None)))
        sooner = indexing.subscript(s, x, (*before, slice(None, -1)))
        minus = arithmetic.not_equal if x.dtype is DType.BOOL else arithmetic.subtract
        x = minus(s, later, sooner)
    return x


def _one_row(s: Specialiser, x: Tensor, axis: int, value: Any) -> Any:
    """A number as long as the other axes are."""
    if arithmetic.shape_of(value) or isinstance(value, tuple | list):
        return value
    return shapes.broadcast_to(s, value, (*x.shape[:axis], 1, *x.shape[axis + 1 :]))
