"""Statements and functions that change arrays in place, with NumPy's rules (`stores`).

`x[i] = v` converts v to x's type as `astype` does; `x op= v`, `out=` and `np.copyto` convert within
a kind alone (f64 to f32, not float to int). What is written broadcasts to the place where it is
written; an array never grows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...complex_numbers import Complex
from ...ir import DType, Value
from ...ragged import Ragged
from .. import complexes, operators
from ..flow import integer_fits
from ..numpy import arithmetic, indexing, shapes
from ..ragged import ragged_selection
from ..scope import close, free_values
from ..values import Tensor, describe, is_number
from . import stores
from .views_of_arrays import Reshape

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: So many elements are written one after the other; more of them in a loop of the program.
_UNROLLED = 4


def store(s: Specialiser, x: Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`."""
    stores.changeable(s, x)
    x, index = indexing.opened(s, x, index)
    if ragged_selection.is_ragged_store(index, value):
        ragged_selection.store_in(s, x, index, value)
        return
    if indexing.is_mask(index):
        ragged_selection.store_masked(s, x, index, value)
        return
    if indexing.takes_arrays(s, x, index):
        scatter(s, x, index, value, None)
        return
    target = indexing.place(s, x, index)
    stores.check_overlap(s, target, value)
    stores.put(s, target, converted(s, _item(s, value, x.dtype), target.shape, x.dtype))


def _item(s: Specialiser, value: Any, dtype: DType) -> Any:
    """What is written to a place: a scalar of NumPy's too must fit signed integers."""
    if type(value) is not Tensor or value.shape:
        if not isinstance(value, tuple | list):
            _check_known(s, [value], dtype)
        return value
    integer_fits.check_fits(s, value, dtype, item=True)
    return arithmetic.strong(value)


def _check_known(s: Specialiser, value: Any, dtype: DType) -> None:
    """Refuses a number, or a list of them, that NumPy does not convert to an array's integers."""
    plain = (bool, int, float, np.generic)
    items = value if isinstance(value, tuple | list) else [value]
    if not dtype.is_int or not all(isinstance(item, plain) for item in items):
        return
    try:
        np.array(value, dtype.numpy)
    except (OverflowError, ValueError, TypeError) as e:
        raise s.error("DL116", f"{describe(value)} in an array of {dtype.value}: {e}") from None


def update(s: Specialiser, op: str, x: Tensor, value: Any) -> None:
    """`x op= value` on an array: the result in x's type and shape."""
    stores.changeable(s, x)
    result = operators.binary(s, op, stores.plain(x), value)
    write(s, x, result, f"`{op}=`")


def update_item(s: Specialiser, op: str, x: Tensor, index: Any, make: Callable[[], Any]) -> None:
    """`x[index] op= value`."""
    stores.changeable(s, x)
    x, index = indexing.opened(s, x, index)
    if indexing.is_mask(index):
        value = make()
        if is_number(value) and arithmetic.shape_of(value) == ():
            wide = operators.binary(s, op, stores.plain(x), value)
            same_kind(s, wide, x.dtype, f"`{op}=`")
            store_masked(s, x, index, wide, True)
            return
        ragged_selection.update_item(s, op, x, index, value)
        return
    old = s.subscript(x, index)
    value = make()
    if type(old) is Tensor and stores.is_array(old) and not indexing.copies(s, x, index):
        update(s, op, old, value)
        return
    if type(old) is Ragged:
        ragged_selection.update_item(s, op, x, index, value)
        return
    result = operators.binary(s, op, old, value)
    if type(old) is Tensor and old.shape != ():
        same_kind(s, result, x.dtype, f"`{op}=`")
        fits(s, arithmetic.shape_of(result), old.shape, f"`{op}=`")
    store(s, x, index, result)


def write(s: Specialiser, x: Tensor, result: Any, what: str) -> None:
    """A result into an array, as `out=` does."""
    same_kind(s, result, x.dtype, what)
    shape = arithmetic.shape_of(result)
    if shape != x.shape:
        fits(s, shape, x.shape, what)
    stores.put(s, x, arithmetic.materialise(s, result, x.dtype, x.shape))


def same_kind(s: Specialiser, value: Any, dtype: DType, what: str) -> None:
    """NumPy's casting rule of operators that write into an array."""
    have, weak = arithmetic.dtype_of(s, value)
    if have is dtype:
        return
    if weak and type(value) is not Tensor:
        have = DType.of(np.result_type(dtype.numpy, type(value)(0)))
    both_floats = have.is_float and dtype.is_float
    if not both_floats and not np.can_cast(have.numpy, dtype.numpy, "same_kind"):
        raise s.error(
            "DL116",
            f"{what} gives {have.value}, which does not convert to {dtype.value} in place",
            "assign a new array to the name, or convert: x[...] = (x / n).astype(x.dtype)",
        )


def fits(
    s: Specialiser, have: tuple[int, ...], want: tuple[int, ...], what: str = "an assignment"
) -> None:
    """Refuses what does not broadcast to a shape: an array does not grow."""
    aligned = (1,) * (len(want) - len(have)) + have
    if len(aligned) != len(want) or any(
        n not in (1, m) for n, m in zip(aligned, want, strict=True)
    ):
        text = f"{what} of shape {list(have)} does not fit a place of shape {list(want)}"
        raise s.error(
            "DL115", text, "what is written must broadcast to the place, which never grows"
        )


def converted(s: Specialiser, value: Any, shape: tuple[int, ...], dtype: DType) -> Value:
    """What an assignment writes: NumPy converts it to the array's type, whatever its own."""
    if isinstance(value, tuple | list):
        value = s.array(value, dtype.numpy if dtype.is_int else None)
    if not is_number(value):
        raise s.error("DL119", f"an array cannot hold {describe(value)}")
    have = arithmetic.shape_of(value)
    if len(have) > len(shape):
        ones = len(have) - len(shape)
        if have[:ones] == (1,) * ones and shape:
            made = arithmetic.tensor(s, value)
            value = Tensor(indexing.reshape(s, made.value, have[ones:]))
            have = have[ones:]
    fits(s, have, shape)
    if isinstance(value, float | np.floating) and dtype.is_int:
        if not np.isfinite(value):
            raise s.error("DL116", f"{value} has no value in {dtype.value}")
        of_numpy = isinstance(value, np.floating) and abs(value) < 2.0**63
        # NumPy's own numbers wrap around.
        value = np.int64(value).astype(dtype.numpy) if of_numpy else int(value)
    return arithmetic.materialise(s, value, dtype, shape)


def masked(s: Specialiser) -> Exception:
    """The error of as many new values as a mask of the running program chooses."""
    return s.error(
        "DL114",
        "what is written through a mask of the running program must be one number, or broadcast"
        " to the rows that the mask chooses: how many there are is not known",
        "choose from whole arrays: x[...] = np.where(mask, new, x)",
    )


def _check_mask(s: Specialiser, x: Tensor, mask: Tensor) -> None:
    """Refuses a mask within the array that is changed: NumPy reads it while it changes."""
    if x.dtype is not DType.BOOL or not stores.is_array(mask):
        return
    memory, other = stores.memory_of(s, x), stores.memory_of(s, mask)
    if memory is None or other is None or memory not in stores.sources_of([other]):
        return
    if memory is other and list(x.lenses) == list(mask.lenses):
        return
    raise s.error(
        "DL111",
        "NumPy reads this mask while it changes the array that the mask is a view of",
        "copy the mask: x[mask.copy()] = value",
    )


def store_masked(s: Specialiser, x: Tensor, mask: Tensor, value: Any, whole: bool = False) -> None:
    """`x[mask] = value`; `whole`: the value has x's shape, and the mask chooses from it."""
    rank = len(mask.shape)
    _check_mask(s, x, mask)
    if mask.shape != x.shape[:rank]:
        text = f"a mask of shape {list(mask.shape)} does not fit {describe(x)}"
        raise s.error("DL114", text)
    if isinstance(value, tuple | list):
        value = s.array(value)
    if not whole:
        have, rest = arithmetic.shape_of(value), x.shape[rank:]
        if len(have) == len(rest) + 1 and have[0] == 1:
            made = arithmetic.tensor(s, value)
            value = Tensor(indexing.reshape(s, made.value, have[1:]))
        if len(arithmetic.shape_of(value)) > len(rest):
            raise masked(s)
    new = converted(s, value, x.shape, x.dtype)
    wide = mask.value
    if rank < len(x.shape):
        wide = s.emit("broadcast", wide, shape=x.shape, dims=tuple(range(rank)))
    stores.put(s, x, s.emit("select", wide, new, x.value))


def scatter(
    s: Specialiser,
    x: Tensor,
    index: Any,
    value: Any,
    combine: Callable[[Specialiser, Tensor, Tensor], Any] | None,
    bound: Value | None = None,
) -> None:
    """`x[arrays] = value`, one element after the other: of equal places the last one wins.

    `combine` makes what is written of what is there and the value, in the type of both
    (`np.add.at`); `bound`: only so many of the places are there.
    """
    base, arrays, where, shape = indexing.places(s, x, index)
    count = int(np.prod(shape, dtype=np.int64))
    front = len(arrays)
    rest = base.shape[front:]
    full = (*rest[:where], *shape, *rest[where:])
    kept = arithmetic.dtype_of(s, value)[0] if combine is not None else x.dtype
    new = converted(s, value, full, kept)
    order = (
        *range(where, where + len(shape)),
        *range(where),
        *range(where + len(shape), len(full)),
    )
    if order != tuple(range(len(full))):
        new = s.emit("transpose", new, perm=order)
    if count == 0 or 0 in rest:
        return
    rows = indexing.reshape(s, new, (count, *rest))
    flat = [indexing.reshape(s, arithmetic.broadcast(s, a, shape), (count,)) for a in arrays]

    def step(whole: Value, k: int | Value) -> Value:
        at = _pick(s, flat, k)
        starts = (*at, *(s.scope.number(0, DType.I64) for _ in rest))
        window = (1,) * front + rest
        row = _row(s, rows, k, rest)
        part = indexing.reshape(s, row, window)
        if combine is not None:
            old = s.emit("dynamic_slice", whole, *starts, sizes=window)
            part = arithmetic.materialise(s, combine(s, Tensor(old), Tensor(part)), x.dtype, window)
        return s.emit("dynamic_update", whole, part, *starts)

    whole = base.value
    if bound is not None:
        whole = _loop(s, bound, whole, step)
    elif count <= _UNROLLED:
        for k in range(count):
            whole = step(whole, k)
    else:
        whole = _loop(s, s.scope.number(count, DType.I64), whole, step)
    stores.put(s, base, whole)


def _pick(s: Specialiser, flat: Sequence[Value], k: int | Value) -> list[Value]:
    place = s.scope.number(k, DType.I64) if isinstance(k, int) else k
    return [s.emit("take", a, place, axis=0) for a in flat]


def _row(s: Specialiser, rows: Value, k: int | Value, rest: tuple[int, ...]) -> Value:
    place = s.scope.number(k, DType.I64) if isinstance(k, int) else k
    return s.emit("take", rows, place, axis=0)


def _loop(
    s: Specialiser, count: Value, start: Value, step: Callable[[Value, int | Value], Value]
) -> Value:
    """A `for` of the IR that carries one value."""
    bounds = s.scope.number(0, DType.I64), count
    index, carry = Value(bounds[0].type), Value(start.type)
    s.natural.index(index, *bounds)
    with s.inside(s.new_scope()) as scope:
        end = step(carry, index)
    free = free_values(scope.ops, (index, carry), (end,))
    block = close(scope, (index,), free, (carry,), (end,))
    return s.scope.emit("for", (*bounds, *free, start), {"consts": len(free)}, (block,))[0]


# Functions


def _array(s: Specialiser, x: Any, what: str) -> Tensor:
    if type(x) is not Tensor:
        raise s.error(
            "DL111",
            f"{what} would change {describe(x)}, which came from outside the function",
            "copy it first: x = x.copy()",
        )
    stores.changeable(s, x)
    return x


def at(ufunc: Any, handler: Callable[..., Any]) -> Callable[..., None]:
    """`ufunc.at(a, indices, b)`: unbuffered, so that equal places add up."""

    def run(s: Specialiser, a: Any, indices: Any, b: Any) -> None:
        x = _array(s, a, f"np.{ufunc.__name__}.at")
        value = arithmetic.strong(arithmetic.tensor(s, b))  # Of Python's an array of its own type.
        name = f"np.{ufunc.__name__}.at"
        same_kind(s, handler(s, Tensor(s.scope.number(0, x.dtype)), _one(s, value)), x.dtype, name)
        if indexing.takes_arrays(s, x, indices):
            scatter(s, x, indices, Tensor(value.value), handler)
            return
        target = indexing.place(s, x, indices)
        fits(s, value.shape, target.shape)
        stores.put(
            s,
            target,
            arithmetic.materialise(
                s, handler(s, stores.plain(target), value), x.dtype, target.shape
            ),
        )

    return run


def _one(s: Specialiser, x: Tensor) -> Tensor:
    return Tensor(s.scope.number(1, x.dtype))


def copyto(
    s: Specialiser, dst: Any, src: Any, casting: Any = "same_kind", where: Any = True
) -> None:
    x = _array(s, dst, "np.copyto")
    if casting not in ("same_kind", "unsafe"):
        raise s.error(
            "DL119", f"np.copyto knows same_kind and unsafe casts, not {describe(casting)}"
        )
    value = s.array(src) if isinstance(src, tuple | list) else src
    if casting == "same_kind":
        same_kind(s, value, x.dtype, "np.copyto")
    fits(s, arithmetic.shape_of(value), x.shape)
    stores.check_overlap(s, x, value)
    new = converted(s, arithmetic.cast(s, value), x.shape, x.dtype)
    if where is not True:
        fits(s, arithmetic.shape_of(where), x.shape)
        mask = arithmetic.materialise(s, arithmetic.tensor(s, where), DType.BOOL, x.shape)
        new = s.emit("select", mask, new, x.value)
    stores.put(s, x, new)


def fill_diagonal(s: Specialiser, a: Any, val: Any, wrap: Any = False) -> None:
    x = _array(s, a, "np.fill_diagonal")
    if len(x.shape) != 2 or wrap:
        raise s.error("DL119", f"np.fill_diagonal takes a matrix, and no `wrap`: {describe(x)}")
    value = s.array(val) if isinstance(val, tuple | list) else val
    if arithmetic.shape_of(value) != ():
        raise s.error(
            "DL119", "np.fill_diagonal takes one number", "x[i, i] = v with i = np.arange"
        )
    rows, columns = x.shape
    mask = Tensor(s.scope.array(_eye(rows, columns), DType.BOOL))
    new = converted(s, value, x.shape, x.dtype)
    stores.put(s, x, s.emit("select", mask.value, new, x.value))


def _eye(rows: int, columns: int) -> Any:
    return np.eye(rows, columns, dtype=np.bool_)


def fill(s: Specialiser, x: Tensor, value: Any) -> None:
    stores.changeable(s, x)
    if isinstance(value, tuple | list) or arithmetic.shape_of(value) != ():
        raise s.error("DL119", f"x.fill takes one number, not {describe(value)}")
    stores.put(s, x, converted(s, _item(s, value, x.dtype), x.shape, x.dtype))


def sort(s: Specialiser, x: Tensor, axis: Any = -1) -> None:
    from ..numpy import reductions

    stores.changeable(s, x)
    if not x.shape or axis is None:
        raise s.error("DL119", f"x.sort sorts along an axis: {describe(x)}")
    stores.put(s, x, reductions.sort(s, stores.plain(x), axis).value)


def out(s: Specialiser, target: Any, result: Any, what: str, exact: bool, where: Any = True) -> Any:
    """What a call with `out=target` gives: its result, written there.

    `exact`: the array's type must be the result's, for NumPy may compute in the array's type.
    `where`: the places that are written.
    """
    if isinstance(target, tuple) and len(target) == 1:
        target = target[0]
    if isinstance(target, tuple):
        raise s.error("DL105", f"{what}: `out` of several arrays is not known here", "assign each")
    if where is not True and type(target) is Complex:
        raise s.error("DL116", f"{what}: `where` is not known here for complex numbers")
    if type(target) is Complex:
        return complexes.out(s, target, result, what, exact)
    x = _array(s, target, what)
    if not is_number(result):
        raise s.error("DL105", f"{what}: `out` takes one result, not {describe(result)}")
    shape = arithmetic.shape_of(result)
    if shape != x.shape:
        fits(s, shape, x.shape, what)
        if exact:
            text = f"{what} gives an array of shape {list(shape)}, and `out` has {list(x.shape)}"
            raise s.error("DL115", text, "assign instead: out[...] = result")
    have = arithmetic.dtype_of(s, result)[0]
    if exact and have is not x.dtype:
        text = f"{what} gives {have.value}, and `out` holds {x.dtype.value}"
        raise s.error("DL116", text, "assign instead: out[...] = result")
    if exact and have is DType.F16 and what == "`np.mean`":
        text = f"{what} rounds the sum of f16 to f16 in `out`, and adds up in f32 without it"
        raise s.error("DL116", text, "assign instead: out[...] = np.mean(x)")
    if where is True:
        write(s, x, result, what)
        return x
    mask = arithmetic.tensor(s, where)
    if mask.dtype is not DType.BOOL:
        raise s.error("DL116", f"{what}: `where` takes bools, not {describe(where)}")
    same_kind(s, result, x.dtype, what)
    fits(s, mask.shape, x.shape, f"`where` of {what}")
    new = arithmetic.materialise(s, result, x.dtype, x.shape)
    test = arithmetic.broadcast(s, mask.value, x.shape)
    stores.put(s, x, s.emit("select", test, new, x.value))
    return x


def put(s: Specialiser, a: Any, ind: Any, v: Any, mode: Any = "raise") -> None:
    x = _array(s, a, "np.put")
    if mode != "raise":
        raise s.error("DL119", f"np.put knows mode='raise', not {describe(mode)}")
    places = s.array(ind) if isinstance(ind, tuple | list) else ind
    if not is_number(places):
        raise s.error("DL114", f"np.put takes whole numbers as places, not {describe(ind)}")
    places = arithmetic.tensor(s, places)
    if places.dtype.is_float and not isinstance(ind, tuple | list):
        raise s.error("DL114", f"np.put takes whole numbers as places, not {describe(ind)}")
    if places.dtype is DType.U64:
        raise s.error("DL119", "np.put takes no uint64 as places", "convert them: x.astype(int)")
    count = int(np.prod(places.shape, dtype=np.int64))
    values = _flat(s, v, x.dtype)
    if count == 0 or 0 in values.shape:
        return
    at = np.arange(count) % values.shape[0]
    scatter(s, _line(s, x), _flat(s, places), _taken(s, values, at), None)


def putmask(s: Specialiser, a: Any, mask: Any, values: Any) -> None:
    x, truths, given = _masked_line(s, "np.putmask", a, mask, values)
    if 0 in given.shape:
        return
    at = np.arange(x.shape[0]) % given.shape[0]
    new = converted(s, _taken(s, given, at), x.shape, x.dtype)
    stores.put(s, x, s.emit("select", truths.value, new, x.value))


def place(s: Specialiser, arr: Any, mask: Any, vals: Any) -> None:
    x, truths, given = _masked_line(s, "np.place", arr, mask, vals)
    if 0 in given.shape:
        raise s.error("DL105", "np.place cannot insert from an empty array")
    counted = s.emit("cumsum", s.emit("convert", truths.value, dtype=DType.I64), axis=0)
    before = s.emit("sub", counted, s.scope.number(1, DType.I64, x.shape))
    size = s.scope.number(given.shape[0], DType.I64, x.shape)
    at = Tensor(s.emit("mod", before, size))
    new = converted(s, _taken(s, given, at), x.shape, x.dtype)
    stores.put(s, x, s.emit("select", truths.value, new, x.value))


def _masked_line(
    s: Specialiser, what: str, a: Any, mask: Any, values: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """An array, a mask and values as vectors; NumPy converts arrays of values safely alone."""
    x = _array(s, a, what)
    truths, given = _flat(s, mask), _flat(s, values, x.dtype)
    size = int(np.prod(x.shape, dtype=np.int64))
    if truths.shape != (size,):
        raise s.error("DL114", f"{what}: mask and data must be the same size")
    have, weak = arithmetic.dtype_of(s, values) if is_number(values) else (x.dtype, True)
    if not weak and not np.can_cast(have.numpy, x.dtype.numpy, "safe"):
        text = f"{what} does not convert {have.value} to {x.dtype.value}"
        raise s.error("DL116", text, "convert it: values.astype(x.dtype)")
    if truths.dtype is not DType.BOOL:
        zero = s.scope.number(0, truths.dtype, truths.shape)
        truths = Tensor(s.emit("ne", truths.value, zero))
    return _line(s, x), truths, given


def _flat(s: Specialiser, value: Any, fit: DType | None = None) -> Tensor:
    """Numbers as a vector, in row-major order; Python's fit a type."""
    made = value
    if isinstance(value, tuple | list):
        made = s.array(value) if fit is None else shapes.array(s, value, fit.numpy)
    elif fit is not None:
        _check_known(s, value, fit)
        integer_fits.check_fits(s, made, fit)
    if not is_number(made):
        raise s.error("DL119", f"an array cannot hold {describe(value)}")
    x = arithmetic.tensor(s, made)
    size = int(np.prod(x.shape, dtype=np.int64))
    return Tensor(indexing.reshape(s, x.value, (size,)))


def _line(s: Specialiser, x: Tensor) -> Tensor:
    """All elements of an array in row-major order, to be changed."""
    lens = Reshape((int(np.prod(x.shape, dtype=np.int64)),))
    return stores.view(s, x, lens.get(s, x.value), (lens,))


def _taken(s: Specialiser, x: Tensor, at: Any) -> Tensor:
    index = arithmetic.tensor(s, at, DType.I64)
    return Tensor(s.emit("take", x.value, index.value, axis=0))
