"""`x[...]` on tensors, with NumPy's rules: basic slices, None, Ellipsis, and whole-number arrays.

A slice becomes `slice` and `reverse`; an index that the running program computes becomes `take`.
Negative indices are wrapped here (the IR's `take` clamps), unless they are known not to be
negative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType, Value
from ...ragged import Ragged
from ...traced import ARRAY
from .. import operators
from ..flow import integer_fits, raises
from ..memory import stores
from ..memory.views_of_arrays import Lens, Reshape, Reverse, Stride, Transpose, Window
from ..values import Tensor, describe
from . import arithmetic

if TYPE_CHECKING:
    from ..specialise import Specialiser


def subscript(s: Specialiser, x: Tensor, index: Any) -> Tensor:
    """NumPy's x[index]: a view of x where it is one in NumPy."""
    x, index = opened(s, x, index)
    if _selects(index):
        from ..ragged import ragged_selection

        return ragged_selection.of_array(s, x, index)  # type: ignore[no-any-return]
    if _holds_known_array(index):
        made = _found(s, x, index)
        return stores.fresh(s, made.value) if made.kind == ARRAY or made.shape else made
    return _found(s, x, index)


def _found(s: Specialiser, x: Tensor, index: Any) -> Tensor:
    """A view of x, where no array indexes it."""
    items, dots = expanded(s, x, index)
    if any(_is_array(i) for i in items):
        return _advanced(s, x, items, dots)
    made = _basic(s, x, items)
    if made.shape != ():
        return made
    # One element is a number, unless an ellipsis asks for an array without axes.
    if dots is None:
        return Tensor(made.value)
    if made.kind == ARRAY:
        return made
    is_number = not made.kind & ARRAY
    return stores.fresh(s, made.value) if is_number else stores.guarded(s, made.value, [x])


def opened(s: Specialiser, x: Tensor, index: Any) -> tuple[Tensor, Any]:
    """x and an index in fewer forms: sequences as lists, masks for single truths.

    A single truth stands for an axis of its own, with one entry or none: `x[m]` is
    `x[None][np.array([m])]`.
    """
    items = index if isinstance(index, tuple) else (index,)
    if any(isinstance(i, range | tuple) for i in items):
        items = tuple(list(i) if isinstance(i, range | tuple) else i for i in items)
        index = items if isinstance(index, tuple) else items[0]
    if not any(map(_is_truth, items)):
        return x, index
    axes: list[Any] = []
    for item in items:
        if _is_truth(item):
            axes.append(None)
        elif item is Ellipsis:
            axes.append(Ellipsis)
        elif item is not None:
            axes += [slice(None)] * _width(item)
    masks = tuple(_line(s, i) if _is_truth(i) else i for i in items)
    return _with_axes(s, x, axes), masks if isinstance(index, tuple) else masks[0]


def _is_truth(item: Any) -> bool:
    """Whether it is a single truth, known or of the running program."""
    if type(item) is Tensor:
        return item.dtype is DType.BOOL and item.shape == ()
    array = isinstance(item, np.ndarray) and item.dtype == np.bool_ and item.ndim == 0
    return array or isinstance(item, bool | np.bool_)


def _line(s: Specialiser, truth: Any) -> Any:
    """A single truth as a mask of one element."""
    return _with_axes(s, truth, [None]) if type(truth) is Tensor else np.array([bool(truth)])


def _with_axes(s: Specialiser, x: Tensor, index: list[Any]) -> Tensor:
    """`x[index]`, where the index only adds axes; of a number too."""
    items, _ = expanded(s, x, tuple(index))
    if stores.is_array(x):
        return _basic(s, x, items)
    return Tensor(reshape(s, x.value, tuple(1 for i in items if i is None)))


def _selects(index: Any) -> bool:
    """Whether an index has a mask of the running program or a ragged array in it."""
    if isinstance(index, tuple):
        return any(map(_selects, index))
    return type(index) is Ragged or is_mask(index)


def is_mask(value: Any) -> bool:
    """Whether it is a mask of the running program."""
    return type(value) is Tensor and value.dtype is DType.BOOL and value.shape != ()


def place(s: Specialiser, x: Tensor, index: Any) -> Tensor:
    """The part of x that `x[index] = value` writes to, as a view; no arrays index it."""
    items, _ = expanded(s, x, index)
    if any(_is_array(i) for i in items):
        return _by_numbers(s, x, items)
    return _basic(s, x, items)


def takes_arrays(s: Specialiser, x: Tensor, index: Any) -> bool:
    """Whether arrays index x, so that x[index] is a copy."""
    items = [_as_mask(s, i) for i in (index if isinstance(index, tuple) else (index,))]
    return any(isinstance(i, list) or (_is_array(i) and i.shape != ()) for i in items)


def copies(s: Specialiser, x: Tensor, index: Any) -> bool:
    """Whether x[index] is a copy, as by a known array without axes too."""
    return _holds_known_array(index) or takes_arrays(s, x, index)


def _holds_known_array(index: Any) -> bool:
    """Whether a known array without axes is in it; NumPy copies, as by other arrays."""
    items = index if isinstance(index, tuple) else (index,)
    return any(isinstance(i, np.ndarray) and i.ndim == 0 for i in items)


def places(
    s: Specialiser, x: Tensor, index: Any
) -> tuple[Tensor, list[Value], int, tuple[int, ...]]:
    """What arrays index: (x, places, axis, shape).

    x has the indexed axes first, as a view; the places are those along each of them. The shape is
    that of the arrays' axes, which stand in x[index] before that one of the other axes.
    """
    items, dots = expanded(s, x, index)
    base = _basic(s, x, [slice(None) if is_index(i) else i for i in items])
    at = [k for k, i in enumerate(items) if is_index(i)]
    arrays = [items[k] for k in at]
    rest = [k for k in range(len(base.shape)) if k not in at]
    moved = _permuted(s, base, (*at, *rest))
    shape = arithmetic.broadcast_shapes(s, arrays)
    found = []
    for axis, array in zip(at, arrays, strict=True):
        if type(array) is int:
            number = whole(s, array, base.shape[axis], axis, base)
            found.append(s.scope.number(number, DType.I64, shape))
        else:
            found.append(arithmetic.broadcast(s, wrapped(s, array, base.shape[axis], axis), shape))
    return moved, found, front_of(items, at, dots), shape


def front_of(items: Sequence[Any], at: Sequence[int], dots: int | None) -> int:
    """Before which of the axes that no array indexes the arrays' own stand."""
    parted = dots is not None and at[0] < dots <= at[-1]
    side_by_side = at[-1] - at[0] == len(at) - 1 and not parted
    return at[0] if side_by_side else 0


def _permuted(s: Specialiser, x: Tensor, perm: tuple[int, ...]) -> Tensor:
    if perm == tuple(range(len(perm))):
        return x
    lens = Transpose(perm)
    return stores.view(s, x, lens.get(s, x.value), (lens,))


def _basic(s: Specialiser, x: Tensor, items: Sequence[Any]) -> Tensor:
    """By slices and known numbers alone."""
    starts, stops, steps, reversed_axes, shape = [], [], [], [], []
    axis = 0
    for item in items:
        if item is None:
            shape.append(1)
            continue
        size = x.shape[axis]
        if isinstance(item, slice):
            start, stop, step, count = _bounds(s, item, size)
            shape.append(count)
            if step < 0:
                reversed_axes.append(axis)
                start, stop, step = start + (count - 1) * step, start + 1, -step
        else:
            start = whole(s, item, size, axis, x)
            stop, step = start + 1, 1
        starts.append(start)
        stops.append(max(stop, start))
        steps.append(step)
        axis += 1
    lenses: list[Lens] = []
    if any(n != 1 for n in steps):
        lenses.append(Stride(tuple(starts), tuple(stops), tuple(steps)))
    elif (starts, stops) != ([0] * axis, list(x.shape)):
        sizes = tuple(b - a for a, b in zip(starts, stops, strict=True))
        lenses.append(Window(tuple(starts), sizes))
    if reversed_axes:
        lenses.append(Reverse(tuple(reversed_axes)))
    value = x.value
    for lens in lenses:
        value = lens.get(s, value)
    if value.shape != tuple(shape):
        lenses.append(Reshape(tuple(shape)))
        value = lenses[-1].get(s, value)
    return stores.view(s, x, value, lenses)


def _by_numbers(s: Specialiser, x: Tensor, items: Sequence[Any]) -> Tensor:
    """By numbers of which the running program knows some, and slices: a view."""
    base = _basic(s, x, [slice(None) if is_index(i) else i for i in items])
    starts: list[int | Value] = [0] * len(base.shape)
    sizes = list(base.shape)
    at = [k for k, i in enumerate(items) if is_index(i)]
    for k in at:
        item = items[k]
        known = type(item) is int
        starts[k] = whole(s, item, sizes[k], k, base) if known else wrapped(s, item, sizes[k], k)
        sizes[k] = 1
    window = Window(tuple(starts), tuple(sizes))
    shape = tuple(n for k, n in enumerate(sizes) if k not in at)
    lenses = (window, Reshape(shape))
    value = reshape(s, window.get(s, base.value), shape)
    return stores.view(s, base, value, lenses)


def reshape(s: Specialiser, value: Value, shape: tuple[int, ...]) -> Value:
    """A value in another shape of as many elements; not an operation where it has it."""
    return value if value.shape == shape else s.emit("reshape", value, shape=shape)


def _is_array(item: Any) -> bool:
    return type(item) is Tensor or isinstance(item, np.ndarray)


def expanded(s: Specialiser, x: Tensor, index: Any) -> tuple[list[Any], int | None]:
    """The index as one entry an axis (None is an extra axis).

    Whatever was left out is filled up with whole slices. Also before which entry the ellipsis
    stood, if there was one.
    """
    items = [_entry(s, i) for i in _without_masks(s, x, index)]
    used = sum(1 for i in items if i is not None and i is not Ellipsis)
    if used > len(x.shape):
        raise s.error("DL114", f"{used} indices for {describe(x)}, which has rank {len(x.shape)}")
    missing = [slice(None)] * (len(x.shape) - used)
    dots = [k for k, i in enumerate(items) if i is Ellipsis]
    if len(dots) > 1:
        raise s.error("DL114", "an index can have only one Ellipsis (`...`)")
    if dots:
        return [*items[: dots[0]], *missing, *items[dots[0] + 1 :]], dots[0]
    return [*items, *missing], None


def _without_masks(s: Specialiser, x: Tensor, index: Any) -> list[Any]:
    """Masks that are known now, as the places where they are true: an array for each axis."""
    items = [_as_mask(s, i) for i in (index if isinstance(index, tuple) else (index,))]
    if not any(map(_is_mask, items)):
        return items
    out: list[Any] = []
    axis = 0
    for item in items:
        if item is Ellipsis:
            axis += len(x.shape) - sum(map(_width, items))
        if not _is_mask(item):
            out.append(item)
        elif item.shape != x.shape[axis : axis + item.ndim]:
            text = f"a mask of shape {list(item.shape)} does not fit {describe(x)} at axis {axis}"
            raise s.error("DL114", text)
        else:
            out += item.nonzero()
        axis += _width(item)
    return out


def _as_mask(s: Specialiser, item: Any) -> Any:
    """A list of truths is an array of them."""
    if not isinstance(item, list) or not _holds_truths(item):
        return item
    return operators.python(s, lambda: np.asarray(item), "a mask")


def _holds_truths(item: Any) -> bool:
    if isinstance(item, list):
        return bool(item) and all(map(_holds_truths, item))
    return isinstance(item, bool | np.bool_)


def _is_mask(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.dtype == np.bool_ and item.ndim > 0


def _width(item: Any) -> int:
    """The axes that an entry of an index stands for."""
    if item is None or item is Ellipsis:
        return 0
    return len(item.shape) if _is_mask(item) or is_mask(item) else 1


def _entry(s: Specialiser, item: Any) -> Any:
    if isinstance(item, list):
        item = _as_places(s, item)
    if isinstance(item, np.ndarray) and item.ndim == 0:
        item = item[()]
    if item is None or item is Ellipsis or isinstance(item, slice):
        return item
    if isinstance(item, IntEnum):
        return int(item)
    if not arithmetic.is_operand(item):
        raise s.error("DL114", f"an array cannot be indexed with {describe(item)}")
    dtype, _ = arithmetic.dtype_of(s, item)
    if dtype is DType.BOOL:
        raise s.error(
            "DL114",
            "a boolean mask cannot select: the result's shape would depend on the data",
            "keep the shape and choose with np.where(mask, x, 0), or weigh the rows with the mask",
        )
    if dtype.is_float:
        hint = "convert it: x.astype(np.int64)"
        raise s.error("DL114", f"an index must be a whole number, not {describe(item)}", hint)
    return item if _is_array(item) else int(item)


def _as_places(s: Specialiser, item: list[Any]) -> Any:
    """A list of an index as an array; NumPy takes an empty one as one of integers."""
    if _holds_tensor(item):
        return s.array(item)
    made = operators.python(s, lambda: np.asarray(item), "an index")
    return made if made.size else made.astype(np.int64)


def _holds_tensor(item: Any) -> bool:
    if isinstance(item, list | tuple):
        return any(map(_holds_tensor, item))
    return type(item) is Tensor


def _bounds(s: Specialiser, item: slice, size: int) -> tuple[int, int, int, int]:
    """A slice's start, stop, step, and how many it takes."""
    for bound in (item.start, item.stop, item.step):
        if type(bound) is Tensor:
            raise s.needs_static(
                bound,
                "a slice's bounds",
                "for a window of fixed size use x[start + np.arange(size)]",
            )
        if bound is not None and not isinstance(bound, int | np.integer):
            raise s.error("DL114", f"a slice's bounds must be whole numbers, not {describe(bound)}")
    if item.step == 0:
        raise s.error("DL114", "a slice's step cannot be 0")
    start, stop, step = item.indices(size)
    return start, stop, step, len(range(start, stop, step))


def whole(s: Specialiser, index: int, size: int, axis: int, x: Tensor) -> int:
    """A static index, counted from the front; refused when out of range."""
    if not -size <= index < size:
        message = f"index {index} is out of range for axis {axis} of {describe(x)}"
        words = f"index {index} is out of bounds for axis {axis} with size {size}"
        hint = f"it has {size} entries: {-size} to {size - 1}"
        raise s.error("DL114", message, hint) from IndexError(words)
    return index + size if index < 0 else index


def _at_empty(index: Any) -> None:
    np.empty(0)[index]


def place_of(s: Specialiser, index: Any, compute: Callable[..., Any]) -> Tensor:
    """An index as i64. A single one of u64 that i64 has not is an error, of an array it wraps.

    `compute`: raises Python's error.
    """
    if type(index) is Tensor and index.dtype is DType.U64 and not index.shape:
        integer_fits.ask_whole(s, index, compute)
        last = s.scope.number(np.iinfo(np.int64).max, DType.U64)
        index = Tensor(s.emit("min", index.value, last))
    return arithmetic.tensor(s, index, DType.I64)


def wrapped(s: Specialiser, index: Any, size: int, axis: int) -> Value:
    """An index array as i64, negative entries counted from the end; checked to lie in its axis."""
    if isinstance(index, np.ndarray) and index.size:
        far = int(index.max() if index.max() >= size else index.min())
        if not -size <= far < size:
            message = f"index {far} is out of range for an axis of {size}"
            raise s.error("DL114", message, f"it has {size} entries: {-size} to {size - 1}")
        index = np.where(index < 0, index + size, index) if index.min() < 0 else index
    value = place_of(s, index, _at_empty).value
    raises.check_index(s, value, size, axis)
    if value in s.scope.natural:
        return value
    negative = s.emit("lt", value, s.scope.number(0, DType.I64, value.shape))
    moved = s.emit("add", value, s.scope.number(size, DType.I64, value.shape))
    return s.emit("select", negative, moved, value)


def _advanced(s: Specialiser, x: Tensor, items: Sequence[Any], dots: int | None) -> Tensor:
    """With at least one array: slices first, then the arrays, broadcast together, in one `take`.

    Integers among arrays count as arrays. Where the arrays' axes follow one another, their result
    stands in their place, otherwise in front: NumPy's rule. An ellipsis parts them even where it
    stands for no axis.
    """
    made = _taken(s, x, items, dots)
    numbers = [i for i in items if _is_array(i)]
    if any(i.shape != () for i in numbers):
        return stores.fresh(s, made.value)
    if made.shape == () and dots is None:
        return made
    if not stores.is_array(x):
        return Tensor(made.value, kind=ARRAY)
    if made.shape == () or any(map(stores.is_array, numbers)):
        # An array without axes: NumPy copies by one, and gives one for an ellipsis.
        return stores.guarded(s, made.value, [x])
    lenses = _by_numbers(s, x, items).lenses[len(x.lenses) :]
    return stores.view(s, x, made.value, lenses)


def _taken(s: Specialiser, x: Tensor, items: Sequence[Any], dots: int | None) -> Tensor:
    """The elements that arrays take."""
    basic = tuple(slice(None) if is_index(i) else i for i in items)
    x = stores.plain(_basic(s, x, basic))
    places = [k for k, i in enumerate(items) if is_index(i)]
    arrays = [items[k] for k in places]
    if len(places) == 1:
        axis = places[0]
        index = wrapped(s, arrays[0], x.shape[axis], axis)
        return Tensor(s.emit("take", x.value, index, axis=axis))
    rest = [k for k in range(len(x.shape)) if k not in places]
    front = front_of(items, places, dots)
    order = (*rest[:front], *places, *rest[front:])
    value = x.value
    if order != tuple(range(len(order))):
        value = s.emit("transpose", value, perm=order)
    sizes = [x.shape[k] for k in places]
    merged = 1
    for size in sizes:
        merged *= size
    shape = value.shape
    value = reshape(s, value, (*shape[:front], merged, *shape[front + len(places) :]))
    flat = _flat_index(s, arrays, sizes, x, places)
    return Tensor(s.emit("take", value, flat, axis=front))


def is_index(item: Any) -> bool:
    """Whether an entry of an index takes its axis away: an array or a number."""
    return _is_array(item) or type(item) is int


def _flat_index(
    s: Specialiser, arrays: Sequence[Any], sizes: Sequence[int], x: Tensor, places: Sequence[int]
) -> Value:
    """Row-major position in the merged axes."""
    shape = arithmetic.broadcast_shapes(s, arrays)
    total: Value | None = None
    for array, size, axis in zip(arrays, sizes, places, strict=True):
        if type(array) is int:
            value = s.scope.number(whole(s, array, size, axis, x), DType.I64, shape)
        else:
            value = arithmetic.broadcast(s, wrapped(s, array, size, axis), shape)
        if total is None:
            total = value
        else:
            scaled = s.emit("mul", total, s.scope.number(size, DType.I64, shape))
            total = s.emit("add", scaled, value)
    assert total is not None
    return total
