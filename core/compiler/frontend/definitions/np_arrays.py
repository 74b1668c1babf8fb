"""Making arrays and moving their elements about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....common.errors import ProgramError
from ...ir import Tensor


def place(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    if not -rank <= axis < rank:
        raise ProgramError("DL115", f"axis {axis} is out of range for rank {rank}")
    return axis % rank


def atleast_2d(*arys: Tensor) -> Tensor:
    wide = [np.asarray(a) for a in arys]
    wide = [a if a.ndim >= 2 else a.reshape((1, -1)) for a in wide]
    return wide[0] if len(wide) == 1 else tuple(wide)


def atleast_3d(*arys: Tensor) -> Tensor:
    wide = [np.atleast_2d(a) for a in arys]
    wide = [
        a if a.ndim >= 3 else a[:, :, None] if np.ndim(given) == 2 else a.reshape((1, -1, 1))
        for a, given in zip(wide, arys, strict=True)
    ]
    return wide[0] if len(wide) == 1 else tuple(wide)


def fromiter(iter: Any, dtype: Any, count: int = -1) -> Tensor:
    items = list(iter) if count < 0 else [v for _, v in zip(range(count), iter, strict=False)]
    if len(items) < count:
        text = f"iterator too short: Expected {count} but iterator had only {len(items)} items."
        raise ValueError(text)
    return np.array(items, dtype)


def dstack(tup: Sequence[Tensor]) -> Tensor:
    return np.concatenate([np.atleast_3d(a) for a in tup[:]], axis=2)  # No iterator has a slice.


def column_stack(tup: Sequence[Tensor]) -> Tensor:
    tall = [a if np.ndim(a) >= 2 else np.reshape(a, (-1, 1)) for a in tup[:]]
    return np.concatenate(tall, axis=1)


#: Of `array_split`: each is an array of the program.
_PARTS_MAX = 10_000


def array_split(ary: Tensor, indices_or_sections: Any, axis: int = 0) -> Any:
    if isinstance(indices_or_sections, list | tuple | np.ndarray):
        return np.split(ary, list(indices_or_sections), axis)
    size, count = np.shape(ary)[axis], int(indices_or_sections)
    if count < 1:
        raise ProgramError("DL119", "np.array_split: at least one part, please")
    if count > _PARTS_MAX:
        text = f"np.array_split makes at most {_PARTS_MAX} parts in a program, not {count:.6g}"
        raise ProgramError("DL119", text)
    each, more = size // count, size % count
    cuts = [each * k + min(k, more) for k in range(1, count)]
    return np.split(ary, cuts, axis)


def vsplit(ary: Tensor, indices_or_sections: Any) -> Any:
    if np.ndim(ary) < 2:
        raise ProgramError("DL115", "np.vsplit takes an array of at least two axes")
    return np.split(ary, indices_or_sections, 0)


def hsplit(ary: Tensor, indices_or_sections: Any) -> Any:
    return np.split(ary, indices_or_sections, 1 if np.ndim(ary) > 1 else 0)


def dsplit(ary: Tensor, indices_or_sections: Any) -> Any:
    if np.ndim(ary) < 3:
        raise ProgramError("DL115", "np.dsplit takes an array of at least three axes")
    return np.split(ary, indices_or_sections, 2)


def unstack(x: Tensor, /, *, axis: int = 0) -> Any:
    x = np.moveaxis(x, axis, 0)
    return tuple(x[k] for k in range(x.shape[0]))


def flipud(m: Tensor) -> Tensor:
    return np.flip(m, 0)


def fliplr(m: Tensor) -> Tensor:
    return np.flip(m, 1)


def rot90(m: Tensor, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    first, second = place(axes[0], np.ndim(m)), place(axes[1], np.ndim(m))
    if first == second:
        raise ProgramError("DL115", "np.rot90 turns from one axis to another")
    turns = k % 4
    if turns not in (0, 1, 2, 3):
        raise ProgramError("DL115", "np.rot90 turns by a whole number of right angles")
    if turns == 2:
        return np.flip(m, (first, second))
    if turns == 1:
        m = np.flip(m, second)
    if turns == 3:
        m = np.flip(m, first)
    return m if turns == 0 else np.swapaxes(m, first, second)


def rollaxis(a: Tensor, axis: int, start: int = 0) -> Tensor:
    rank = np.ndim(a)
    axis = place(axis, rank)
    start = start + rank if start < 0 else start
    return np.moveaxis(a, axis, start - 1 if axis < start else start)


def append(arr: Tensor, values: Tensor, axis: Any = None) -> Tensor:
    if axis is None:
        return np.concatenate([np.ravel(arr), np.ravel(values)])
    return np.concatenate([arr, values], axis=axis)


def delete(arr: Tensor, obj: Any, axis: Any = None) -> Tensor:
    """`obj` must be known."""
    arr, axis = (np.ravel(arr), 0) if axis is None else (arr, axis)
    # By an empty array with as many rows, of which NumPy knows what stays.
    kept = np.delete(np.asarray(range(np.shape(arr)[axis])), obj)
    return np.take(arr, kept, axis=axis)


def insert(arr: Tensor, obj: Any, values: Tensor, axis: Any = None) -> Tensor:
    """`obj` must be known. The new rows come last, and one `take` puts all in order."""
    arr, axis = (np.ravel(arr), 0) if axis is None else (np.asarray(arr), axis)
    axis, n = place(axis, arr.ndim), arr.shape[axis]
    single = np.ndim(obj) == 0
    values = np.asarray(values, dtype=arr.dtype)
    if single and values.ndim == arr.ndim:
        count = values.shape[axis]
    elif single and arr.ndim == 1:
        count = values.size
    else:
        count = 1 if single else len(obj)
        if values.ndim == arr.ndim - 1 and values.ndim > 0:
            values = np.expand_dims(values, axis)
    shape = (*arr.shape[:axis], count, *arr.shape[axis + 1 :])
    new = np.broadcast_to(values, shape)
    order = np.insert(np.asarray(range(n)), obj, np.asarray(range(n, n + count)))
    return np.take(np.concatenate([arr, new], axis=axis), order, axis=axis)


def resize(a: Tensor, new_shape: Any) -> Tensor:
    shape = new_shape if isinstance(new_shape, tuple | list) else (new_shape,)
    flat = np.ravel(a)
    total = 1
    for n in shape:
        total *= int(n)
    copies = -(-total // flat.shape[0]) if flat.shape[0] else 0
    return np.tile(flat, copies)[:total].reshape(shape) if copies else np.zeros(shape, flat.dtype)


def block(arrays: Any) -> Tensor:
    if isinstance(arrays, tuple):
        raise ProgramError("DL119", "np.block takes lists, not a tuple")
    depth, at = 0, arrays
    while isinstance(at, list):
        depth, at = depth + 1, at[0]
    return _block(arrays, depth)


def _block(arrays: Any, depth: int) -> Tensor:
    if not isinstance(arrays, list):
        if depth:
            raise ProgramError("DL115", "np.block: lists of other depths than the first")
        return np.asarray(arrays)
    parts = [_block(a, depth - 1) for a in arrays]
    rank = max(depth, *[p.ndim for p in parts])
    parts = [p.reshape((1,) * (rank - p.ndim) + p.shape) for p in parts]
    return np.concatenate(parts, axis=-depth)


def broadcast_arrays(*args: Tensor) -> Any:
    shape = np.broadcast_shapes(*[np.shape(a) for a in args])
    return tuple(np.broadcast_to(a, shape) for a in args)


def meshgrid(*xi: Tensor, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> Any:
    if indexing not in ("xy", "ij"):
        raise ProgramError("DL119", f"np.meshgrid: indexing is 'xy' or 'ij', not {indexing!r}")
    n = len(xi)
    places = [1, 0, *range(2, n)] if indexing == "xy" and n > 1 else list(range(n))
    shapes = [tuple(-1 if k == at else 1 for k in range(n)) for at in places]
    grids = [np.reshape(x, shape) for x, shape in zip(xi, shapes, strict=True)]
    return tuple(grids) if sparse else np.broadcast_arrays(*grids)


def indices(dimensions: Sequence[int], dtype: Any = int, sparse: bool = False) -> Any:
    n = len(dimensions)
    shapes = [tuple(-1 if k == at else 1 for k in range(n)) for at in range(n)]
    rows = [np.arange(m, dtype=dtype).reshape(s) for m, s in zip(dimensions, shapes, strict=True)]
    if sparse:
        return tuple(rows)
    return np.stack([np.broadcast_to(r, tuple(dimensions)) for r in rows])


def ix_(*args: Tensor) -> Any:
    n = len(args)
    for a in args:
        if np.ndim(a) != 1:
            raise ProgramError("DL115", "np.ix_: each index must have one dimension")
        if np.asarray(a).dtype.kind == "b":
            hint = "np.flatnonzero(mask) gives the places; or choose with np.where(mask, x, 0)"
            raise ProgramError(
                "DL107", "np.ix_ of a mask has a length that the data decide", hint=hint
            )
    return tuple(
        np.reshape(a, tuple(-1 if k == at else 1 for k in range(n))) for at, a in enumerate(args)
    )


#: NumPy's offsets are ints of 32 bits.
_OFFSET_MAX = 2**31 - 1


def diagonal(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
    """Every (columns + 1)-th element of the flat matrix."""
    if offset > _OFFSET_MAX:
        raise OverflowError("signed integer is greater than maximum")
    if offset < -_OFFSET_MAX - 1:
        raise OverflowError("signed integer is less than minimum")
    a = np.moveaxis(np.asarray(a), (axis1, axis2), (-2, -1))
    rows, columns = a.shape[-2:]
    count = min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns)
    count, step = max(count, 0), columns + 1
    start = offset if offset >= 0 else -offset * columns
    flat = a.reshape((*a.shape[:-2], rows * columns))
    return flat[..., start : start + count * step : step]


def trace(a: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Tensor:
    return np.sum(np.diagonal(a, offset, axis1, axis2), axis=-1, dtype=dtype)


def diag(v: Tensor, k: int = 0) -> Tensor:
    v = np.asarray(v)
    if v.ndim == 2:
        return np.diagonal(v, k)
    if v.ndim != 1:
        raise ProgramError("DL115", f"np.diag takes a vector or a matrix, not rank {v.ndim}")
    size = v.shape[0] + abs(k)
    wide = np.pad(v, (0, abs(k)))
    rows = wide[:, None] if k >= 0 else wide
    return np.where(np.eye(size, k=k, dtype=bool), rows, np.zeros((), v.dtype))


def diagflat(v: Tensor, k: int = 0) -> Tensor:
    return np.diag(np.ravel(v), k)


def kron(a: Tensor, b: Tensor) -> Tensor:
    a, b = np.asarray(a), np.asarray(b)
    rank = max(a.ndim, b.ndim)
    m = (1,) * (rank - a.ndim) + a.shape
    n = (1,) * (rank - b.ndim) + b.shape
    left = a.reshape(tuple(z for x in m for z in (x, 1)))
    right = b.reshape(tuple(z for x in n for z in (1, x)))
    return (left * right).reshape(tuple(x * y for x, y in zip(m, n, strict=True)))


def vander(x: Tensor, N: Any = None, increasing: bool = False) -> Tensor:
    if np.ndim(x) != 1:
        raise ProgramError("DL115", f"np.vander takes a vector, not rank {np.ndim(x)}")
    count = np.shape(x)[0] if N is None else N
    if isinstance(count, bool):
        raise ProgramError("DL119", "np.vander takes a number of columns, not a bool")
    x = np.asarray(x, np.promote_types(np.result_type(x), np.int64))
    powers = [x**k if k else np.ones_like(x) for k in range(count)]
    return np.stack(powers if increasing else powers[::-1], axis=-1)


def unravel_index(indices: Tensor, shape: Any) -> Any:
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    at, rest = [], np.asarray(indices, np.int64)
    for n in reversed(sizes):
        at.append(rest % n)
        rest = rest // n
    return tuple(at[::-1])


def ravel_multi_index(multi_index: Sequence[Tensor], dims: Sequence[int]) -> Tensor:
    total = np.asarray(multi_index[0], np.int64)
    for index, n in zip(multi_index[1:], dims[1:], strict=True):
        total = total * n + np.asarray(index, np.int64)
    return total


def logspace(
    start: Tensor, stop: Tensor, num: int = 50, endpoint: bool = True, base: float = 10.0
) -> Tensor:
    if np.ndim(base):
        hint = "one base a call: np.stack([np.logspace(a, b, base=k) for k in bases])"
        raise ProgramError("DL119", "np.logspace takes one base", hint=hint)
    return base ** np.linspace(start, stop, num, endpoint=endpoint)


def geomspace(start: Tensor, stop: Tensor, num: int = 50, endpoint: bool = True) -> Tensor:
    """Of numbers above zero, in f64 as NumPy's."""
    first, last = (np.log(np.asarray(v, np.float64)) for v in (start, stop))
    made = np.exp(np.linspace(first, last, num, endpoint=endpoint)).copy()
    if num > 0:  # The ends are exact, also infinite ones.
        made[0] = start
    if num > 1 and endpoint:
        made[-1] = np.where(np.isnan(first), first, stop)
    return made


def fromfunction(
    function: Callable[..., Tensor], shape: Sequence[int], *, dtype: Any = float, **kwargs: Any
) -> Tensor:
    grid = np.indices(shape, dtype=dtype)
    return function(*[grid[k] for k in range(len(shape))], **kwargs)


def permute_dims(a: Tensor, axes: Any = None) -> Tensor:
    return np.transpose(a, axes)


def matrix_transpose(x: Tensor, /) -> Tensor:
    return np.swapaxes(x, -1, -2)
