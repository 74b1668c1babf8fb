"""NumPy's functions that make arrays and move their elements about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType, Value
from ...traced import ARRAY
from .. import operators, special_methods
from ..flow import integer_fits, iteration
from ..memory import stores
from ..memory.views_of_arrays import Reverse, Transpose
from ..operators import static_int, static_ints
from ..values import Once, Tensor, describe, is_static
from . import arithmetic, indexing
from .arithmetic import numpy_dtype, tensor

if TYPE_CHECKING:
    from ..specialise import Specialiser


def axis_of(s: Specialiser, x: Any, axis: Any, what: str = "an axis", extra: int = 0) -> int:
    """An axis counted from the front; `extra` axes are about to be added."""
    rank = len(arithmetic.shape_of(x)) + extra
    k = static_int(s, axis, what)
    if not -rank <= k < rank:
        raise s.error(
            "DL115", f"axis {k} is out of range for {describe(x)}, of rank {rank - extra}"
        )
    return k + rank if k < 0 else k


def axes_of(s: Specialiser, x: Any, axis: Any) -> tuple[int, ...]:
    """Sorted axes; None is all of them."""
    rank = len(arithmetic.shape_of(x))
    if axis is None:
        return tuple(range(rank))
    axes = tuple(sorted(axis_of(s, x, a) for a in static_ints(s, axis, "an axis")))
    if len(set(axes)) != len(axes):
        raise s.error("DL115", f"an axis is named twice in {describe(axis)}")
    return axes


def same(x: Tensor, value: Value) -> Tensor:
    """Another value that is as weak as a tensor."""
    return Tensor(value, x.weak)


# Making


def shape_argument(s: Specialiser, shape: Any) -> tuple[int, ...]:
    """Sizes that are known while compiling and not negative; a number is one size."""
    sizes = static_ints(s, shape, "a shape")
    if any(n < 0 for n in sizes):
        raise s.error("DL115", f"a shape has no negative sizes: {describe(sizes)}")
    return sizes


def full(s: Specialiser, shape: Any, fill_value: Any, dtype: Any = None) -> Tensor:
    sizes = shape_argument(s, shape)
    kind = arithmetic.dtype_of(s, fill_value)[0] if dtype is None else numpy_dtype(s, dtype)
    return _filled(s, fill_value, kind, sizes)


def zeros(s: Specialiser, shape: Any, dtype: Any = float) -> Tensor:
    kind = numpy_dtype(s, dtype)
    return Tensor(s.scope.number(0, kind, shape_argument(s, shape)))


def ones(s: Specialiser, shape: Any, dtype: Any = float) -> Tensor:
    kind = numpy_dtype(s, dtype)
    return Tensor(s.scope.number(1, kind, shape_argument(s, shape)))


def _like(s: Specialiser, a: Any, dtype: Any, shape: Any) -> tuple[DType, tuple[int, ...]]:
    kind = arithmetic.dtype_of(s, a)[0] if dtype is None else numpy_dtype(s, dtype)
    return kind, arithmetic.shape_of(a) if shape is None else shape_argument(s, shape)


def zeros_like(s: Specialiser, a: Any, dtype: Any = None, *, shape: Any = None) -> Tensor:
    return Tensor(s.scope.number(0, *_like(s, a, dtype, shape)))


def ones_like(s: Specialiser, a: Any, dtype: Any = None, *, shape: Any = None) -> Tensor:
    return Tensor(s.scope.number(1, *_like(s, a, dtype, shape)))


def full_like(
    s: Specialiser, a: Any, fill_value: Any, dtype: Any = None, *, shape: Any = None
) -> Tensor:
    kind, sizes = _like(s, a, dtype, shape)
    return _filled(s, fill_value, kind, sizes)


def _filled(s: Specialiser, value: Any, kind: DType, sizes: tuple[int, ...]) -> Tensor:
    given = tensor(s, arithmetic.cast(s, value), kind)
    return Tensor(arithmetic.materialise(s, given, kind, sizes))


#: No array is longer.
_LENGTH_MAX = 2**48
#: Nor an array that is computed while compiling: it is part of the program.
_KNOWN_LENGTH_MAX = 2**24


def arange(s: Specialiser, start: Any, stop: Any = None, step: Any = 1, dtype: Any = None) -> Any:
    if stop is None:
        start, stop = 0, start
    for bound in (start, stop, step):
        if type(bound) is Tensor:
            hint = "make it as long as it can get, and mask: np.arange(capacity) < n"
            raise s.needs_static(bound, "the length of np.arange", hint)
        if not isinstance(bound, int | float | np.number) or abs(complex(bound)) >= _LENGTH_MAX:
            raise s.error("DL119", f"np.arange takes numbers, not {describe(bound)}")
    if step == 0:
        raise s.error("DL113", "np.arange: the step cannot be 0")
    if stop < start and np.result_type(start, stop).kind == "u":
        raise s.error("DL119", f"np.arange: {stop} - {start} has no value among unsigned numbers")
    whole = all(isinstance(v, int | np.integer) for v in (start, stop, step))
    if dtype is not None:
        kind = numpy_dtype(s, dtype)
    else:
        # Of scalars of NumPy's it is theirs; of u64 and an int it is f64.
        given: list[Any] = [*(type(bound)(0) for bound in (start, stop)), type(step)(1)]
        first, last, by = given
        kind = DType.of(np.arange(first, last, by).dtype)
        whole = whole and kind.is_int
    if not whole and not (stop - start) / step <= _KNOWN_LENGTH_MAX:
        hint = "count whole numbers, and multiply: np.arange(n) * step"
        raise s.error("DL119", f"np.arange makes up to {_KNOWN_LENGTH_MAX} floats", hint)
    length = len(range(start, stop, step)) if whole else len(np.arange(start, stop, step))
    if kind is DType.BOOL:
        ends: tuple[Any, ...] = (start, stop, step)
        made = operators.python(s, lambda: np.arange(*ends, dtype=np.bool_), "`np.arange`")
        return tensor(s, made)
    most = 2 ** (np.finfo(kind.numpy).nmant + 1) if kind.is_float else np.iinfo(kind.numpy).max
    least = -most if kind.is_float else np.iinfo(kind.numpy).min
    if not (whole and all(least <= v <= most for v in (start, stop, step))):
        # NumPy takes the first two elements in the type, and counts on by their difference.
        ends = (start, stop, step)
        made = operators.python(s, lambda: np.arange(*ends, dtype=kind.numpy), "`np.arange`")
        return tensor(s, made)
    value = iota(s, length, kind)
    if step != 1:
        value = s.emit("mul", value, s.scope.number(step, kind, (length,)))
    if start != 0:
        value = s.emit("add", value, s.scope.number(start, kind, (length,)))
    return Tensor(value)


def iota(s: Specialiser, length: int, kind: DType = DType.I64) -> Value:
    """0, 1, ..., length - 1."""
    return s.emit("iota", dtype=kind, shape=(length,), axis=0)


def linspace(
    s: Specialiser,
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: Any = True,
    retstep: Any = False,
    dtype: Any = None,
    axis: Any = 0,
) -> Any:
    count = static_int(s, num, "the number of points")
    if count < 0:
        raise s.error("DL119", f"np.linspace: there are no {count} points")
    if is_static((start, stop)):
        made = operators.python(
            s,
            lambda: np.linspace(start, stop, count, endpoint, retstep, dtype, axis),
            "`np.linspace`",
        )
        return (tensor(s, made[0]), made[1]) if retstep else tensor(s, made)
    first, last = (tensor(s, strong_sequence(s, v)) for v in (start, stop))
    kind = arithmetic.result_dtype(s, (first, last, 1.0))[0]
    if not (first.dtype.is_float and last.dtype.is_float):
        first, last = (tensor(s, v, kind) for v in (first, last))
    span = arithmetic.subtract(s, last, first)
    gaps = count - 1 if endpoint else count
    step = arithmetic.divide(s, span, gaps)
    place = Tensor(iota(s, count))
    if rank := len(span.shape):
        place = expand_dims(s, place, tuple(range(1, rank + 1)))
    places = tensor(s, place, kind)
    offset = arithmetic.multiply(s, places, step if gaps else span)
    if gaps > 0:  # Steps that underflow, for which NumPy divides first, in all columns.
        small = arithmetic.multiply(s, arithmetic.divide(s, places, gaps), span)
        zero = Tensor(arithmetic.any_of(s, tensor(s, arithmetic.equal(s, step, 0)).value))
        offset = arithmetic.select(s, zero, small, offset)
    points = arithmetic.add(s, offset, first)
    if endpoint and gaps > 0:  # Not what the sum is rounded to.
        points = arithmetic.select(s, arithmetic.equal(s, place, gaps), last, points)
    if axis != 0:
        points = moveaxis(s, points, 0, axis)
    if dtype is not None:
        wanted = numpy_dtype(s, dtype)
        if wanted.is_int:
            points = Tensor(s.emit("floor", points.value))
        points = tensor(s, points, wanted)
    return (points, step if gaps > 0 else np.nan) if retstep else points


def strong_sequence(s: Specialiser, value: Any) -> Any:
    """A list or tuple as an array, which is not weak; anything else as it is."""
    return array(s, value) if isinstance(value, tuple | list) else value


def _rows_and_columns(s: Specialiser, rows: int, columns: int, k: int) -> tuple[Value, Value]:
    """Row number plus k, and column number, both i64[rows, columns]."""
    shape = (rows, columns)
    i = s.emit("iota", dtype=DType.I64, shape=shape, axis=0)
    j = s.emit("iota", dtype=DType.I64, shape=shape, axis=1)
    if k:
        i = s.emit("add", i, s.scope.number(k, DType.I64, shape))
    return i, j


def eye(s: Specialiser, N: Any, M: Any = None, k: Any = 0, dtype: Any = float) -> Tensor:
    rows = static_int(s, N, "a size")
    columns = rows if M is None else static_int(s, M, "a size")
    i, j = _rows_and_columns(s, rows, columns, static_int(s, k, "a diagonal"))
    return Tensor(arithmetic.convert(s, s.emit("eq", i, j), numpy_dtype(s, dtype)))


def identity(s: Specialiser, n: Any, dtype: Any = float) -> Tensor:
    return eye(s, n, None, 0, dtype)


def tri(s: Specialiser, N: Any, M: Any = None, k: Any = 0, dtype: Any = float) -> Tensor:
    rows = static_int(s, N, "a size")
    columns = rows if M is None else static_int(s, M, "a size")
    i, j = _rows_and_columns(s, rows, columns, _diagonal(s, k))
    return Tensor(arithmetic.convert(s, s.emit("le", j, i), numpy_dtype(s, dtype)))


def _diagonal(s: Specialiser, k: Any) -> int:
    """Of a triangle: NumPy computes with it in its own type, where it may overflow."""
    if isinstance(k, np.generic | np.ndarray) and k.dtype != np.int64:
        text = f"`k` is of {k.dtype}, and NumPy computes with it in that type"
        raise s.error("DL119", text, "give int(k)")
    return static_int(s, k, "a diagonal")


def _triangle(s: Specialiser, m: Any, k: Any, lower: bool) -> Tensor:
    x = tensor(s, m)
    if len(x.shape) < 2:
        raise s.error("DL115", f"a triangle is taken of a matrix, not of {describe(x)}")
    rows, columns = x.shape[-2:]
    i, j = _rows_and_columns(s, rows, columns, _diagonal(s, k))
    keep = s.emit("le", j, i) if lower else s.emit("le", i, j)
    return arithmetic.select(s, Tensor(keep), x, Tensor(s.scope.number(0, x.dtype)))


def tril(s: Specialiser, m: Any, k: Any = 0) -> Tensor:
    return _triangle(s, m, k, True)


def triu(s: Specialiser, m: Any, k: Any = 0) -> Tensor:
    return _triangle(s, m, k, False)


def array(
    s: Specialiser, object: Any, dtype: Any = None, copy: Any = None, *, ndmin: Any = 0
) -> Any:
    """np.array of numbers, tensors, or nested sequences of them."""
    if ndmin:
        x = array(s, object, dtype)
        missing = static_int(s, ndmin, "`ndmin`") - len(x.shape)
        return reshape(s, x, (1,) * missing + x.shape) if missing > 0 else x
    kind = None if dtype is None else numpy_dtype(s, dtype)
    if copy is False:
        _check_uncopied(s, object, kind)
    made = object
    if type(object) is not Tensor and not isinstance(object, np.ndarray):
        made = _nested(s, object, kind if kind is not None and kind.is_int else None)
    return tensor(s, made, kind if kind is not None else tensor(s, made).dtype)


def _check_uncopied(s: Specialiser, value: Any, kind: DType | None) -> None:
    is_array = isinstance(value, np.ndarray) or (type(value) is Tensor and value.kind == ARRAY)
    if not is_array or (kind is not None and kind is not arithmetic.dtype_of(s, value)[0]):
        text = f"`copy=False`: NumPy makes no array of {describe(value)} without a copy"
        raise s.error("DL113", text, "leave `copy` out: np.asarray(x) copies where it must")


def _nested(s: Specialiser, value: Any, kind: DType | None, item: bool = False) -> Any:
    """An array of what is nested. kind: integers that each number must fit.

    item: it is one of a list, where NumPy asks that of its own scalars too.
    """
    if is_static(value):
        dtype = None if kind is None else kind.numpy

        def known() -> Any:
            return np.asarray([value], dtype)[0, ...] if item else np.asarray(value, dtype)

        return operators.python(s, known, "`np.array`")
    if isinstance(value, tuple | list):
        return stack(s, [_nested(s, v, kind, True) for v in value])
    made = arithmetic.strong(arithmetic.one_type(s, value))
    if kind is None:
        return made
    integer_fits.check_fits(s, value, kind, item=True)
    return tensor(s, made, kind)  # each number by itself: in one type they might lose digits


# Shapes


def reshape(s: Specialiser, a: Any, *shape: Any, order: str = "C") -> Tensor:
    """`x.reshape(2, 3)`, `x.reshape((2, 3))` and `np.reshape(x, (2, 3))`; one size may be -1."""
    if not shape:
        raise s.error("DL105", "reshape is called without a shape", "of no axes: x.reshape(())")
    x = tensor(s, a)
    sizes = list(static_ints(s, shape[0] if len(shape) == 1 else shape, "a shape"))
    if order == "F":
        return transpose(s, reshape(s, transpose(s, x), sizes[::-1]))
    if order != "C":
        raise s.error("DL119", f"reshape knows the orders C and F, not {describe(order)}")
    if sizes.count(-1) > 1 or any(n < -1 for n in sizes):
        raise s.error("DL115", f"a shape can leave one size open (-1), not {describe(sizes)}")
    total = x.type.size
    known = 1
    for n in sizes:
        known *= n if n != -1 else 1
    if -1 in sizes and known and total % known == 0:
        sizes[sizes.index(-1)] = total // known
    elif known != total or -1 in sizes:
        text = f"{describe(x)} with {total} elements does not reshape to {sizes}"
        shown = str(tuple(sizes)).replace(" ", "")
        words = f"cannot reshape array of size {total} into shape {shown}"
        hint = "the sizes must multiply to the same number"
        raise s.error("DL115", text, hint) from None if -1 in sizes else ValueError(words)
    return stores.reshaped(s, x, indexing.reshape(s, x.value, tuple(sizes)))


def ravel(s: Specialiser, a: Any, order: str = "C") -> Tensor:
    x = tensor(s, a)
    if order not in ("C", "F"):
        from ..memory import shared_memory

        if order not in ("A", "K") or not shared_memory.all_row_major([x]):
            text = f"ravel knows the orders C and F, not {describe(order)}"
            raise s.error("DL119", text, "and K and A of arrays that lie row by row")
    if order == "F":
        x = transpose(s, x)
    value = reshape(s, stores.plain(x), -1).value
    return stores.reshaped(s, x, value, contiguous=True)


def transpose(s: Specialiser, a: Any, *axes: Any) -> Tensor:
    x = tensor(s, a)
    rank = len(x.shape)
    if not axes or axes == (None,):
        perm = tuple(reversed(range(rank)))
    else:
        given = static_ints(s, axes[0] if len(axes) == 1 else axes, "an axis")
        perm = tuple(axis_of(s, x, k) for k in given)
        if sorted(perm) != list(range(rank)):
            raise s.error("DL115", f"axes {list(given)} are no order of the axes of {describe(x)}")
    return permuted(s, x, perm)


def permuted(s: Specialiser, x: Tensor, perm: Sequence[int]) -> Tensor:
    """A view with the axes in another order; the tensor itself where they keep theirs."""
    if tuple(perm) == tuple(range(len(perm))):
        return x
    lens = Transpose(tuple(perm))
    return stores.view(s, x, lens.get(s, x.value), (lens,))


def swapaxes(s: Specialiser, a: Any, axis1: Any, axis2: Any) -> Tensor:
    x = tensor(s, a)
    i, j = axis_of(s, x, axis1), axis_of(s, x, axis2)
    perm = list(range(len(x.shape)))
    perm[i], perm[j] = j, i
    return permuted(s, x, perm)


def moveaxis(s: Specialiser, a: Any, source: Any, destination: Any) -> Tensor:
    x = tensor(s, a)
    sources = [axis_of(s, x, k) for k in static_ints(s, source, "an axis")]
    places = [axis_of(s, x, k) for k in static_ints(s, destination, "an axis")]
    if len(sources) != len(places):
        raise s.error("DL115", "np.moveaxis: as many destinations as sources, please")
    rest = iter([k for k in range(len(x.shape)) if k not in sources])
    perm = [sources[places.index(k)] if k in places else next(rest) for k in range(len(x.shape))]
    return permuted(s, x, perm)


def expand_dims(s: Specialiser, a: Any, axis: Any) -> Tensor:
    x = tensor(s, a)
    given = static_ints(s, axis, "an axis")
    places = {axis_of(s, x, k, extra=len(given)) for k in given}
    if len(places) < len(given):
        raise s.error("DL115", f"np.expand_dims: {list(given)} names an axis twice")
    sizes = iter(x.shape)
    rank = len(x.shape) + len(given)
    shape = tuple(1 if k in places else next(sizes) for k in range(rank))
    return stores.reshaped(s, x, indexing.reshape(s, x.value, shape))


def squeeze(s: Specialiser, a: Any, axis: Any = None) -> Tensor:
    x = tensor(s, a)
    if axis is None:
        axes: tuple[int, ...] = tuple(k for k, n in enumerate(x.shape) if n == 1)
    else:
        axes = axes_of(s, x, operators.no_list(s, axis))
        if wide := [k for k in axes if x.shape[k] != 1]:
            raise s.error(
                "DL115", f"axis {wide[0]} of {describe(x)} cannot be squeezed: it is not 1"
            )
    shape = tuple(n for k, n in enumerate(x.shape) if k not in axes)
    return stores.reshaped(s, x, indexing.reshape(s, x.value, shape))


def broadcast_to(s: Specialiser, array: Any, shape: Any) -> Tensor:
    x = tensor(s, array)
    sizes = shape_argument(s, shape)
    fits = len(x.shape) <= len(sizes) and all(
        n in (1, m) for n, m in zip(reversed(x.shape), reversed(sizes), strict=False)
    )
    if not fits:
        raise s.error("DL115", f"{describe(x)} does not broadcast to {list(sizes)}")
    return same(x, arithmetic.broadcast(s, x.value, sizes))


def atleast_1d(s: Specialiser, *arys: Any) -> Any:
    values = [tensor(s, a) for a in arys]
    wide = tuple(x if x.shape else reshape(s, x, 1) for x in values)
    return wide[0] if len(wide) == 1 else wide


# Joining and splitting


def sequence(s: Specialiser, arrays: Any) -> list[Any]:
    """The arrays to be joined, at least one; numbers in them are not weak."""
    if type(arrays) is Once or special_methods.find(arrays, "__iter__"):
        hint = "make a list of it: np.stack(list(values))"
        raise s.error("DL119", f"NumPy joins a list or a tuple, not {describe(arrays)}", hint)
    values = iteration.items(s, arrays)
    if not values:
        raise s.error("DL119", "needs at least one array")
    return [array(s, v) if isinstance(v, list | tuple) else arithmetic.strong(v) for v in values]


def concatenate(s: Specialiser, arrays: Any, axis: Any = 0, *, dtype: Any = None) -> Tensor:
    values = sequence(s, arrays)
    if axis is None:
        values, axis = [ravel(s, v) for v in values], 0
    kind, weak = arithmetic.result_dtype(s, values)
    if dtype is not None:
        kind, weak = numpy_dtype(s, dtype), False
        for have in (arithmetic.dtype_of(s, arithmetic.strong(v))[0] for v in values):
            if not np.can_cast(have.numpy, kind.numpy, "same_kind"):
                text = f"NumPy does not join {have.value} as {kind.value}"
                raise s.error("DL116", text, "convert it first: x.astype(dtype)")
    k = axis_of(s, values[0], axis)
    first = arithmetic.shape_of(values[0])
    for v in values:
        shape = arithmetic.shape_of(v)
        if len(shape) != len(first) or (shape[:k], shape[k + 1 :]) != (first[:k], first[k + 1 :]):
            text = f"{describe(values[0])} and {describe(v)} do not join along axis {k}"
            raise s.error("DL115", text, "they must agree on every other axis")
    parts = [arithmetic.materialise(s, v, kind, arithmetic.shape_of(v)) for v in values]
    if len(parts) == 1:
        return Tensor(parts[0], weak)
    return Tensor(s.emit("concat", *parts, axis=k), weak)


def stack(s: Specialiser, arrays: Any, axis: Any = 0, *, dtype: Any = None) -> Tensor:
    values = sequence(s, arrays)
    shapes = {arithmetic.shape_of(v) for v in values}
    if len(shapes) > 1:
        text = " and ".join(str(list(x)) for x in sorted(shapes))
        raise s.error("DL115", f"arrays of shapes {text} do not stack", "they must be alike")
    return concatenate(s, [expand_dims(s, v, axis) for v in values], axis, dtype=dtype)


def vstack(s: Specialiser, tup: Any) -> Tensor:
    rows = [tensor(s, v) for v in sequence(s, tup)]
    wide = [reshape(s, x, (1, -1)) if len(x.shape) < 2 else x for x in rows]
    return concatenate(s, wide, 0)


def hstack(s: Specialiser, tup: Any) -> Tensor:
    columns = [atleast_1d(s, v) for v in sequence(s, tup)]
    return concatenate(s, columns, 0 if len(columns[0].shape) == 1 else 1)


def split(s: Specialiser, ary: Any, indices_or_sections: Any, axis: Any = 0) -> list[Tensor]:
    x = tensor(s, ary)
    k = axis_of(s, x, axis)
    size = x.shape[k]
    if isinstance(indices_or_sections, tuple | list) or np.ndim(indices_or_sections) == 1:
        cuts = list(static_ints(s, indices_or_sections, "where to split"))
    else:
        count = static_int(s, indices_or_sections, "the number of parts")
        if count < 1 or size % count:
            raise s.error(
                "DL115", f"axis {k} of {describe(x)} does not split into {count} equal parts"
            )
        cuts = [size // count * i for i in range(1, count)]
    out = []
    for a, b in zip([None, *cuts], [*cuts, None], strict=True):
        index = (slice(None),) * k + (slice(a, b),)
        out.append(indexing.subscript(s, x, index))
    return s.own(out)  # type: ignore[no-any-return]


def repeat(s: Specialiser, a: Any, repeats: Any, axis: Any = None) -> Tensor:
    x = tensor(s, a) if axis is not None else ravel(s, a)
    k = axis_of(s, x, 0 if axis is None else axis)
    counts = static_ints(s, repeats, "the number of repeats")
    if min(counts, default=0) < 0:
        raise s.error("DL119", f"nothing is repeated {min(counts)} times")
    shape = x.shape
    if len(counts) > 1:
        if len(counts) != shape[k]:
            raise s.error("DL115", f"{len(counts)} repeats for axis {k} of {describe(x)}")
        places = s.scope.array(np.repeat(np.arange(shape[k]), counts), DType.I64)
        return same(x, s.emit("take", x.value, places, axis=k))
    (count,) = counts or (0,)
    spread = broadcast_to(s, expand_dims(s, x, k + 1), (*shape[: k + 1], count, *shape[k + 1 :]))
    return reshape(s, spread, (*shape[:k], shape[k] * count, *shape[k + 1 :]))


def tile(s: Specialiser, A: Any, reps: Any) -> Tensor:
    x = tensor(s, A)
    counts = static_ints(s, reps, "the number of repeats")
    rank = max(len(counts), len(x.shape))
    counts = (1,) * (rank - len(counts)) + counts
    shape = (1,) * (rank - len(x.shape)) + x.shape
    narrow = reshape(s, x, tuple(n for size in shape for n in (1, size)))
    wide = broadcast_to(
        s, narrow, tuple(n for c, z in zip(counts, shape, strict=True) for n in (c, z))
    )
    return reshape(s, wide, tuple(c * z for c, z in zip(counts, shape, strict=True)))


def flip(s: Specialiser, m: Any, axis: Any = None) -> Tensor:
    x = tensor(s, m)
    axes = axes_of(s, x, axis)
    lenses = (Reverse(axes),) if axes else ()
    return stores.view(s, x, lenses[0].get(s, x.value), lenses) if lenses else x


def roll(s: Specialiser, a: Any, shift: Any, axis: Any = None) -> Tensor:
    x = tensor(s, a)
    if axis is None:
        return reshape(s, roll(s, ravel(s, x), shift, 0), x.shape)
    axes = [axis_of(s, x, k) for k in static_ints(s, axis, "an axis")]
    shifts = static_ints(s, shift, "the shift")
    if len(shifts) == 1:
        shifts = shifts * len(axes)
    if len(shifts) != len(axes):
        text = f"np.roll: {len(shifts)} shifts for {len(axes)} axes"
        raise s.error("DL119", text, "give as many of one as of the other")
    for k, n in zip(axes, shifts, strict=True):
        size = x.shape[k]
        if size == 0 or n % size == 0:
            continue
        before = (slice(None),) * k
        cut = size - n % size
        parts = [(*before, slice(cut, None)), (*before, slice(None, cut))]
        x = concatenate(s, [indexing.subscript(s, x, p) for p in parts], k)
    return x


def astype(
    s: Specialiser,
    x: Any,
    dtype: Any,
    order: Any = "K",
    casting: Any = "unsafe",
    subok: Any = True,
    copy: Any = True,
) -> Tensor:
    if order not in ("C", "K", "A") or casting != "unsafe":
        text = f"`astype` knows order='K' and casting='unsafe', not {order!r} and {casting!r}"
        raise s.error("DL105", text)
    return tensor(s, x, numpy_dtype(s, dtype))


def view(s: Specialiser, x: Any, dtype: Any) -> Tensor:
    value = tensor(s, x).value
    return Tensor(s.emit("bitcast", value, dtype=numpy_dtype(s, dtype)))


def copy(s: Specialiser, a: Any) -> Tensor:
    return tensor(s, a)
