"""Items of and by arrays whose length the data decide: `x[mask]`, `x[places]`, `y[1:]`, `y[k]`.

A mask becomes the places where it is true, in order: their number is a running sum of the mask, and
each place is put where that sum says. So a selection takes time in proportion to the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType
from ...ragged import Ragged
from .. import operators
from ..memory import array_changes, stores
from ..numpy import arithmetic, indexing
from ..numpy.indexing import is_mask
from ..values import Tensor, describe, is_number
from . import (
    aligned,
    capacity,
    check,
    new,
    normal,
    number,
    padded,
    places,
    plain,
    rank,
    refused,
    same_count,
    taken,
    valid,
    words,
)

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: Up to so long an axis the length of a slice is looked for exactly.
_EXACT_MAX = 4096


# Masks to places


def true_places(s: Specialiser, mask: Tensor) -> tuple[list[Tensor], Tensor]:
    """Where a mask is true, in row-major order: the places along each axis, and how many there are.

    Behind them the first place is repeated; where there is none, 0.
    """
    for scope in s.open:
        if mask.value in scope.selections:
            return scope.selections[mask.value]  # type: ignore[no-any-return]
    n = mask.type.size
    if not n:
        empty = [Tensor(s.scope.number(0, DType.I64, (0,))) for _ in mask.shape]
        return empty, number(s.scope.number(0, DType.I64))
    flat = indexing.reshape(s, mask.value, (n,))
    running = s.emit("cumsum", s.emit("convert", flat, dtype=DType.I64), axis=0)
    count = number(s.emit("take", running, s.scope.number(n - 1, DType.I64), axis=0))
    zero = s.scope.number(0, DType.I64, (n,))
    at = s.emit("sub", running, s.scope.number(1, DType.I64, (n,)))
    every = s.emit("iota", dtype=DType.I64, shape=(n,), axis=0)
    # A place that is not taken adds 0.
    put = s.emit("put_add", zero, at, s.emit("select", flat, every, zero), axis=0)
    order = s.emit("take", put, places(s, n, count).value, axis=0)
    s.natural.known[order] = 0, n - 1
    found: list[Tensor] = []
    rest = Tensor(order)
    for k in range(len(mask.shape) - 1, -1, -1):
        if k == 0:
            found.insert(0, rest)
        else:
            size = mask.shape[k]
            found.insert(0, arithmetic.remainder(s, rest, size))
            rest = arithmetic.floor_divide(s, rest, size)
    s.scope.selections[mask.value] = found, count
    return found, count


# Reading


def of_array(s: Specialiser, x: Tensor, index: Any) -> Any:
    """`x[index]`, where masks of the running program or ragged arrays are in the index."""
    given = list(index) if isinstance(index, tuple) else [index]
    items, count, where = _as_places(s, x, given)
    expanded, dots = indexing.expanded(s, x, tuple(items))
    at = [k for k, i in enumerate(expanded) if indexing.is_index(i)]
    _check_others(s, [expanded[k] for k in at], where, given[0])
    data = indexing.subscript(s, x, tuple(items))
    return new(s, padded(s, data, count), count, indexing.front_of(expanded, at, dots))


def _check_others(
    s: Specialiser, arrays: Sequence[Any], where: Sequence[Tensor], given: Any
) -> None:
    """Refuses an index array among those of a length that the data decide, but of one place."""
    for array in arrays:
        shape = arithmetic.shape_of(array)
        if shape not in ((), (1,)) and not any(array is i for i in where):
            raise refused(s, "an index with an array of another length", given)


def _as_places(
    s: Specialiser, x: Tensor, given: list[Any]
) -> tuple[list[Any], Tensor, list[Tensor]]:
    """An index without masks and ragged arrays, how long these are, and what they became."""
    out: list[Any] = []
    found: list[Ragged] = []
    width = sum(len(i.shape) if is_mask(i) else i is not None and i is not Ellipsis for i in given)
    axis = 0
    for item in given:
        if is_mask(item):
            some, count = _mask_at(s, x, item, axis)
            found += [Ragged(v, count) for v in some]
            out += some
            axis += len(some)
        elif type(item) is Ragged:
            at = _index(s, item)
            found.append(Ragged(at, item.count))
            out.append(at)
            axis += 1
        else:
            out.append(item)
            axis += len(x.shape) - width if item is Ellipsis else item is not None
    first = found[0]
    for other in found[1:]:
        if capacity(other) != capacity(first):
            raise refused(s, "an index with an array of another length", other)
        first = Ragged(first.data, _common_count(s, first, other))
    return out, first.count, [r.data for r in found]


def _mask_at(s: Specialiser, x: Tensor, mask: Tensor, axis: int) -> tuple[list[Tensor], Tensor]:
    if mask.shape != x.shape[axis : axis + len(mask.shape)]:
        text = f"a mask of shape {list(mask.shape)} does not fit {describe(x)} at axis {axis}"
        raise s.error("DL114", text)
    return true_places(s, mask)


def _index(s: Specialiser, r: Ragged) -> Tensor:
    """A ragged array as an index."""
    if r.data.dtype is DType.BOOL:
        text = "a mask whose length the data decide"
        raise refused(s, text, r, "select from an array that was selected in the same way")
    if r.data.dtype.is_float:
        hint = "convert it: x.astype(np.int64)"
        raise s.error("DL114", f"an index must be a whole number, not {describe(r)}", hint)
    if r.axis:
        raise refused(s, "an index", r, "transpose it first")
    at = normal(s, r)
    if r.data.value in s.natural:
        s.natural.known[at.value] = s.natural.of(r.data.value)
    return at


def _common_count(s: Specialiser, a: Ragged, b: Ragged) -> Tensor:
    """How many places two arrays of places give: one place is repeated, as its padding is."""
    joint: Tensor = a.count
    if same_count(a, b):
        return joint
    m, n = Tensor(a.count.value), Tensor(b.count.value)
    one = arithmetic.equal(s, m, 1)
    alike = arithmetic.bitwise_or(s, arithmetic.equal(s, m, n), arithmetic.equal(s, n, 1))

    def make(m: int, n: int) -> BaseException:
        text = "shape mismatch: indexing arrays could not be broadcast together"
        return IndexError(f"{text} with shapes ({m},) ({n},) ")

    check(s, arithmetic.invert(s, arithmetic.bitwise_or(s, one, alike)), make, a.count, b.count)
    joint = number(arithmetic.select(s, one, n, m).value)
    return joint


# Items of a ragged array


def _is_whole(item: Any) -> bool:
    bounds = (item.start, item.stop, item.step) if isinstance(item, slice) else (0,)
    return all(bound is None for bound in bounds)


def subscript(s: Specialiser, r: Ragged, index: Any) -> Any:
    """`r[index]`."""
    items = list(index) if isinstance(index, tuple) else [index]
    part = _subscript(s, r, items)
    if any(i is Ellipsis for i in items) and type(part) is Tensor and not part.shape:
        return stores.guarded(s, part.value, [r.data])  # An array of no axes, and no number.
    return part


def _subscript(s: Specialiser, r: Ragged, items: list[Any]) -> Any:
    items = [s.array(i) if isinstance(i, list) else i for i in items]
    used = sum(1 for i in items if i is not None and i is not Ellipsis)
    if used > rank(r):
        raise s.error("DL114", f"{used} indices for {describe(r)}, which has rank {rank(r)}")
    missing = [slice(None)] * (rank(r) - used)
    dots = next((k for k, i in enumerate(items) if i is Ellipsis), None)
    items = [*items, *missing] if dots is None else [*items[:dots], *missing, *items[dots + 1 :]]
    at = [k for k, item in enumerate(items) if item is not None][r.axis]
    own, others = items[at], [*items[:at], slice(None), *items[at + 1 :]]
    plainly = all(i is None or _is_whole(i) for i in others)
    if isinstance(own, slice):
        cut = sliced(s, r, own)
        return cut if plainly and None not in others else _others(s, cut, others, at, True)
    if not (plainly and None not in others) and r.axis:
        raise refused(s, "an index along several axes", r, "take one axis first: x[:, mask][0]")
    part = _entries(s, r, own)
    if plainly and None not in others:
        return part
    if type(part) is Ragged:
        return _others(s, part, others, at, False)
    rest = others[at + 1 :]
    lead = [] if arithmetic.shape_of(own) == () else [slice(None)]
    return s.subscript(part, (*others[:at], *lead, *rest))


def _others(s: Specialiser, r: Ragged, items: list[Any], at: int, view: bool) -> Any:
    """By an index of the other axes; NumPy makes a view of it where no array is in the index."""
    arrays = [i for i in items if not (i is None or isinstance(i, slice | int | np.integer))]
    if len(arrays) > 1 or any(type(i) is Ragged or is_mask(i) for i in arrays):
        raise refused(s, "an index by several arrays", r, "take one axis first: x[mask][:, 0]")
    data = s.subscript(plain(r), tuple(items))
    axis = 0
    for item in items[:at]:
        axis += 1 if item is None or isinstance(item, slice) else len(arithmetic.shape_of(item))
    if not view or any(arithmetic.shape_of(i) for i in arrays):
        return new(s, data, r.count, axis)
    s.ragged = True
    return Ragged(stores.guarded(s, data.value, [r.data]), r.count, axis)


def _entries(s: Specialiser, r: Ragged, item: Any) -> Any:
    """The entries of its axis that a number or an array takes."""
    if isinstance(item, np.ndarray) and item.dtype == np.bool_:
        item = arithmetic.tensor(s, item)
    if is_mask(item):
        return _by_mask(s, r, _of_length(s, r, item))
    if type(item) is Ragged and item.data.dtype is DType.BOOL:
        return _by_mask(s, r, item)
    if type(item) is Ragged:
        at = position(s, r, _index(s, item), item.count)
        return taken(s, plain(r), at, item.count, r.axis)
    if not is_number(item) or arithmetic.dtype_of(s, item)[0].is_float:
        raise s.error("DL114", f"an array cannot be indexed with {describe(item)}")
    if arithmetic.dtype_of(s, item)[0] is DType.BOOL:
        raise refused(s, "an index by a single truth", r)
    at = position(s, r, indexing.place_of(s, item, np.empty(0).__getitem__))
    if not capacity(r):
        raise s.error("DL114", f"{describe(r)} has no entry", "it is empty")
    value = s.emit("take", r.data.value, at.value, axis=r.axis)
    if not value.shape:
        return Tensor(value)
    return stores.fresh(s, value) if at.shape else stores.guarded(s, value, [r.data])


def position(s: Specialiser, r: Ragged, at: Tensor, many: Any = None) -> Tensor:
    """A place counted from the front; the caller gets an IndexError where there is none.

    many: only so many of the places are there.
    """
    count, n = Tensor(r.count.value), capacity(r)
    below = arithmetic.less(s, at, 0)
    counted = arithmetic.select(s, below, arithmetic.add(s, at, count), at)
    bad = arithmetic.bitwise_or(
        s, arithmetic.less(s, counted, 0), arithmetic.less_equal(s, count, counted)
    )
    axis = r.axis
    if many is not None:
        every = Tensor(s.scope.array(np.arange(at.shape[0]), DType.I64))
        bad = arithmetic.bitwise_and(s, bad, arithmetic.less(s, every, Tensor(many.value)))
    if at.shape:
        wrong = indexing.reshape(s, bad.value, (at.type.size,))
        flat = indexing.reshape(s, at.value, (at.type.size,))
        first = s.emit("argmax", s.emit("convert", wrong, dtype=DType.I32), axis=0)
        shown = Tensor(s.emit("take", flat, first, axis=0))
    else:
        shown = at

    def make(index: int, length: int) -> BaseException:
        text = f"index {index} is out of bounds for axis {axis} with size {length}"
        return IndexError(text)

    check(s, bad, make, shown, r.count)
    last = arithmetic.subtract(s, count, 1)
    moved = arithmetic.maximum(s, arithmetic.minimum(s, counted, last), 0)
    s.natural.known[moved.value] = 0, max(n - 1, 0)
    return moved


def _of_length(s: Specialiser, r: Ragged, mask: Tensor) -> Ragged:
    """A mask of a known length for a ragged array: they must be of one length."""
    have = mask.shape[0]
    count = number(s.scope.number(have, DType.I64))
    order = s.scope.array(np.minimum(np.arange(capacity(r)), max(have - 1, 0)), DType.I64)
    if not have:
        raise refused(s, "a mask of no elements", r)
    return Ragged(Tensor(s.emit("take", mask.value, order, axis=0)), count)


def _by_mask(s: Specialiser, r: Ragged, mask: Ragged) -> Ragged:
    if rank(mask) != 1 or capacity(mask) != capacity(r):
        raise refused(s, "a mask of another shape", r)
    _check_mask(s, r, mask)
    kept = arithmetic.bitwise_and(s, plain(mask), valid(s, Ragged(mask.data, r.count)))
    (order,), count = true_places(s, kept)
    return taken(s, plain(r), order, count, r.axis)


def _check_mask(s: Specialiser, r: Ragged, mask: Ragged) -> None:
    if same_count(r, mask):
        return
    axis = r.axis

    def make(m: int, n: int) -> BaseException:
        text = f"boolean index did not match indexed array along axis {axis}; size of axis is {n}"
        return IndexError(f"{text} but size of corresponding boolean axis is {m}")

    bad = arithmetic.not_equal(s, Tensor(mask.count.value), Tensor(r.count.value))
    check(s, bad, make, mask.count, r.count)


def sliced(s: Specialiser, r: Ragged, item: slice) -> Ragged:
    """The entries that a slice takes: `slice.indices` of the count, in the program."""
    if _is_whole(item):
        return r
    step = 1 if item.step is None else operators.static_index(s, item.step, "a slice's step")
    if step == 0:
        raise s.error("DL113", "a slice's step cannot be 0")
    start, stop = item.start, item.stop
    n = capacity(r)
    most = n
    if all(v is None or type(v) is int for v in (start, stop)) and n <= _EXACT_MAX:
        most = max(len(range(*slice(start, stop, step).indices(c))) for c in range(n + 1))
    count = Tensor(r.count.value)
    low, high = (0, count) if step > 0 else (-1, arithmetic.subtract(s, count, 1))
    first = _bound(s, start, count, low, high, low if step > 0 else high)
    last = _bound(s, stop, count, low, high, high if step > 0 else low)
    span = arithmetic.subtract(s, last, first) if step > 0 else arithmetic.subtract(s, first, last)
    steps = arithmetic.floor_divide(s, arithmetic.add(s, span, abs(step) - 1), abs(step))
    length = number(arithmetic.maximum(s, steps, 0).value)
    s.natural.known[length.value] = 0, most
    if not most or not n:
        return new(s, Tensor(_nothing(s, r, most)), length, r.axis)
    order = arithmetic.multiply(s, places(s, most, length), step)
    order = arithmetic.add(s, order, first)
    order = arithmetic.minimum(s, arithmetic.maximum(s, order, 0), n - 1)
    s.natural.known[order.value] = 0, n - 1
    made = taken(s, plain(r), order, length, r.axis)
    return Ragged(stores.guarded(s, made.data.value, [r.data]), length, r.axis)


def _nothing(s: Specialiser, r: Ragged, most: int) -> Any:
    sizes = (*r.data.shape[: r.axis], most, *r.data.shape[r.axis + 1 :])
    return s.scope.number(0, r.data.dtype, sizes)


def _bound(s: Specialiser, value: Any, count: Tensor, low: Any, high: Any, default: Any) -> Any:
    if value is None:
        return arithmetic.tensor(s, default, DType.I64)
    if not is_number(value) or arithmetic.shape_of(value) != ():
        raise s.error("DL114", f"a slice's bounds must be whole numbers, not {describe(value)}")
    at = indexing.place_of(s, value, int)
    below = arithmetic.less(s, at, 0)
    at = arithmetic.select(s, below, arithmetic.add(s, at, count), at)
    return arithmetic.minimum(s, arithmetic.maximum(s, at, low), high)


# Writing


def store(s: Specialiser, r: Ragged, index: Any, value: Any) -> None:
    """`r[index] = value`."""
    stores.changeable(s, r.data)
    whole = index is Ellipsis or _is_whole(index)
    if whole and type(value) is Ragged:
        from . import write

        write(s, r, value, "an assignment")
        return
    if whole:
        array_changes.store(s, r.data, index, value)
        return
    if type(index) is Ragged and index.data.dtype is DType.BOOL and rank(index) == 1 and not r.axis:
        _check_mask(s, r, index)
        inside = valid(s, Ragged(index.data, r.count))
        mask = arithmetic.bitwise_and(s, plain(index), inside)
        store_masked(s, r.data, mask, value)
        return
    if is_number(index) and arithmetic.shape_of(index) == () and not r.axis and capacity(r):
        at = position(s, r, indexing.place_of(s, index, np.empty(0).__getitem__))
        array_changes.store(s, r.data, at, value)
        return
    text = f"an assignment to some entries of {describe(r)}"
    raise s.error(
        "DL111", text, "assign by a number or a mask of its length: y[k] = v, y[y < 0] = 0"
    )


def update_item(s: Specialiser, op: str, owner: Any, index: Any, value: Any) -> None:
    """`owner[index] op= value`, where one of owner and index is ragged or a mask."""
    stores.changeable(s, owner.data if type(owner) is Ragged else owner)
    old = s.subscript(owner, index)
    made = operators.binary(s, op, old, value)
    held = owner.data if type(owner) is Ragged else owner
    array_changes.same_kind(s, made.data if type(made) is Ragged else made, held.dtype, f"`{op}=`")
    if type(owner) is Ragged:
        store(s, owner, index, made)
    else:
        array_changes.store(s, owner, index, made)


def store_masked(s: Specialiser, x: Tensor, mask: Tensor, value: Any) -> None:
    """`x[mask] = values`: one for each place where the mask is true, in order."""
    width = len(mask.shape)
    if isinstance(value, tuple | list):
        value = s.array(value)
    rest = x.shape[width:]
    have = len(value.data.shape) if type(value) is Ragged else len(arithmetic.shape_of(value))
    if have <= len(rest):
        array_changes.store_masked(s, x, mask, value)
        return
    if have != len(rest) + 1 or (type(value) is Ragged and value.axis):
        raise array_changes.masked(s)
    if type(value) is not Ragged:
        given = arithmetic.tensor(s, value)
        length = number(s.scope.number(given.shape[0], DType.I64))
        value = Ragged(given, length)
    if not capacity(value) or not mask.type.size:
        raise array_changes.masked(s)
    _check_values(s, mask, value, rest)
    flat = indexing.reshape(s, mask.value, (mask.type.size,))
    running = s.emit("cumsum", s.emit("convert", flat, dtype=DType.I64), axis=0)
    order = arithmetic.subtract(s, Tensor(running), 1)
    order = arithmetic.minimum(s, arithmetic.maximum(s, order, 0), capacity(value) - 1)
    single = arithmetic.equal(s, Tensor(value.count.value), 1)
    order = arithmetic.select(s, single, Tensor(s.scope.number(0, DType.I64)), order)
    spread = s.emit("take", value.data.value, order.value, axis=0)
    spread = indexing.reshape(s, spread, (*mask.shape, *spread.shape[1:]))
    array_changes.store_masked(s, x, mask, Tensor(spread), True)


def _check_values(s: Specialiser, mask: Tensor, value: Ragged, rest: Sequence[int]) -> None:
    _, count = true_places(s, mask)
    if same_count(value, Ragged(value.data, count)):
        return
    have, want = Tensor(value.count.value), Tensor(count.value)
    bad = arithmetic.bitwise_and(
        s, arithmetic.not_equal(s, have, want), arithmetic.not_equal(s, have, 1)
    )

    def make(m: int, n: int) -> BaseException:
        if rest:
            own, made = words([(m, *value.data.shape[1:])]), words([(n, *rest)])
            text = f"shape mismatch: value array of shape {own} could not be broadcast"
            return ValueError(f"{text} to indexing result of shape {made}")
        text = "NumPy boolean array indexing assignment cannot assign"
        return ValueError(
            f"{text} {m} input values to the {n} output values where the mask is true"
        )

    check(s, bad, make, value.count, count)


def is_ragged_store(index: Any, value: Any) -> bool:
    """Whether `x[index] = value` has a ragged array in it, or a mask among other indices."""
    if type(value) is Ragged or type(index) is Ragged:
        return True
    return isinstance(index, tuple) and any(is_mask(i) or type(i) is Ragged for i in index)


def store_in(s: Specialiser, x: Tensor, index: Any, value: Any) -> None:
    """`x[index] = value` on a whole array."""
    if is_mask(index):
        store_masked(s, x, index, value)
        return
    items = index if isinstance(index, tuple) else (index,)
    if any(is_mask(i) or type(i) is Ragged for i in items):
        _scatter(s, x, list(items), value)
        return
    target = indexing.place(s, x, index)
    data, count, _ = aligned(s, [value, stores.plain(target)])
    if count is not None:
        raise refused(s, "an assignment", value)
    array_changes.store(s, x, index, data[0])


def _scatter(s: Specialiser, x: Tensor, items: list[Any], value: Any) -> None:
    """At places whose number the data decide, one after the other."""
    last = max(k for k, i in enumerate(items) if is_mask(i) or type(i) is Ragged)
    behind = items[last + 1 :]
    if behind and all(map(_is_basic, behind)):  # x[mask, :3] = v writes to the view x[:, :3].
        axes = sum(len(i.shape) if is_mask(i) else 1 for i in items[: last + 1])
        x = indexing.place(s, x, (*[slice(None)] * axes, *behind))
        items = items[: last + 1]
    found, count, where = _as_places(s, x, items)
    single = is_number(value) and arithmetic.shape_of(value) == ()
    if not single and any(not (any(i is w for w in where) or type(i) is int) for i in found):
        text = f"an assignment at several axes of {describe(x)}"
        raise s.error("DL111", text, "assign by places along the first axes: x[rows, columns] = v")
    expanded, _ = indexing.expanded(s, x, tuple(found))
    _check_others(s, [i for i in expanded if indexing.is_index(i)], where, items[0])
    n = where[0].shape[0]
    if not n:
        return
    if single:
        array_changes.scatter(s, x, tuple(found), value, None, count.value)
        return
    rest = x.shape[len(found) :]
    if isinstance(value, tuple | list):
        value = s.array(value)
    have = len(value.data.shape) if type(value) is Ragged else len(arithmetic.shape_of(value))
    if have > len(rest):
        value = _one_each(s, value, count, n, rest)
    array_changes.scatter(s, x, tuple(found), value, None, count.value)


def _is_basic(item: Any) -> bool:
    """Whether an entry of an index gives a view."""
    if type(item) is Tensor:
        return not item.shape and item.dtype is not DType.BOOL
    return item is None or item is Ellipsis or type(item) in (int, slice)


def _one_each(s: Specialiser, value: Any, count: Tensor, n: int, rest: Sequence[int]) -> Tensor:
    """Values for `count` of n places: as many, or one for all."""
    if type(value) is not Ragged:
        given = stores.plain(arithmetic.tensor(s, value))
        value = Ragged(given, number(s.scope.number(given.shape[0], DType.I64)))
    if rank(value) != len(rest) + 1 or value.axis or not capacity(value):
        raise refused(s, "an assignment", value, "select the values as the places are selected")
    have, want = Tensor(value.count.value), Tensor(count.value)
    single = arithmetic.equal(s, have, 1)
    if not same_count(value, Ragged(value.data, count)):
        differs = arithmetic.not_equal(s, have, want)
        bad = arithmetic.bitwise_and(s, differs, arithmetic.invert(s, single))
        shape = value.data.shape[1:]

        def make(m: int, k: int) -> BaseException:
            own, made = words([(m, *shape)]), words([(k, *rest)])
            text = f"shape mismatch: value array of shape {own} could not be broadcast"
            return ValueError(f"{text} to indexing result of shape {made}")

        check(s, bad, make, value.count, count)
    every = Tensor(s.scope.array(np.minimum(np.arange(n), capacity(value) - 1), DType.I64))
    order = arithmetic.select(s, single, Tensor(s.scope.number(0, DType.I64)), every)
    return Tensor(s.emit("take", value.data.value, order.value, axis=0))
