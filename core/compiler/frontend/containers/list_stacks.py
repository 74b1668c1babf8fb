"""Lists of numbers of one type as arrays of the program, so that loops over them need not unroll.

Only in programs that would be unrolled too far (`tracing`):

    a = [[1.0, 2.0], [x, y]]   lists of one length, numbers of one type: `Whole`, an f64[2,2]
    a[i]                       with an index of the running program: `Picked`, one of the rows
    a[i][j]                    an element of the whole
    a[i][j] = v                the whole with another element; the items of all rows are then parts
                               of the new whole (`Part`): slices that are made when they are read

Lists stay lists: `Picked` names the objects that it may be, and a store changes each of them, so
all names and containers see it (`containers`). What a branch or loop changed of one whole is joined
as one value (`Group`). Anything else that Python does with a list needs the list itself: it is
refused here, and the loop is unrolled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from ....common.errors import ProgramError
from ...ir import TensorType, Value
from ...traced import ARRAY
from ..definitions.py_collections import Deque
from ..flow import iteration, joins, raises
from ..memory import array_changes, stores
from ..numpy import arithmetic, indexing
from ..values import Indexed, Picked, Tensor, Whole, is_number, kind_of
from . import containers

if TYPE_CHECKING:
    from ..scope import Scope
    from ..specialise import Specialiser

#: Elements that differ from a whole at most, to be written into it one by one.
_PATCHES_MAX = 8


class Part:
    """An element of a whole: the value of a `Tensor` that is computed when it is read."""

    __slots__ = ("place", "s", "whole")

    def __init__(self, s: Specialiser, whole: Whole, place: tuple[int, ...]) -> None:
        self.s = s
        self.whole = whole
        self.place = place

    def read(self, x: Tensor) -> Value:
        if x.seen:
            return x.held
        value = indexing.subscript(self.s, Tensor(self.whole.value), self.place).value
        if self.s.scope is self.whole.scope:  # Elsewhere it would be a value of that region alone.
            x.held, x.seen = value, 1
        return value


class Group:
    """The innermost lists of one whole, in order: a branch or loop changes them as one value."""

    __slots__ = ("lists", "shape")

    def __init__(self, lists: tuple[list[Any], ...], shape: tuple[int, ...]) -> None:
        self.lists = lists
        self.shape = shape


def regular(value: Any) -> tuple[tuple[int, ...], list[Any]] | None:
    """The shape and the numbers of nested lists of one length each; None for anything else."""
    if type(value) is not list or not value:
        return None
    if type(value[0]) is not list:
        return ((len(value),), value) if all(map(is_element, value)) else None
    rows = [regular(row) for row in value]
    shapes = {None if row is None else row[0] for row in rows}
    inner = shapes.pop()
    if shapes or inner is None:
        return None
    return (len(value), *inner), [v for row in rows if row is not None for v in row[1]]


def is_element(value: Any) -> bool:
    """Whether it is a single number."""
    return is_number(value) and not kind_of(value) & ARRAY


def whole(s: Specialiser, value: Any) -> Whole | None:
    """The numbers of nested lists as one array, where they are of one type and class."""
    found = regular(value)
    if found is None:
        return None
    shape, leaves = found
    known = _of_parts(s, leaves, shape) or _of_columns(s, leaves, shape)
    if known is not None:
        return known
    try:
        slots = {joins.slot_of(s, v) for v in leaves}
    except ProgramError:  # An int that no type holds.
        return None
    if len(slots) != 1:
        return None
    slot = slots.pop()
    dtype = slot.type.dtype
    if not any(type(v) is Tensor for v in leaves):
        try:
            array = np.array(leaves, dtype.numpy).reshape(shape)
        except OverflowError:  # An int of more than 64 bits.
            return None
        return Whole(s.scope.array(array, dtype), slot.kind, s.scope)
    given = {id(v): v.value for v in leaves if type(v) is Tensor}
    home, own = _home(s, given.values())
    with _in(s, home):
        values = [given.get(id(v)) or arithmetic.tensor(s, v, dtype).value for v in leaves]
        made = Whole(_joined(s, values, shape), slot.kind, s.scope)
    for leaf, place in zip(leaves, _places(shape), strict=True):
        if type(leaf) is Tensor and leaf.part is None and leaf.held in own:
            leaf.part, leaf.seen = Part(s, made, place), 1
    return made


def _places(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return product(*map(range, shape))


def _of_parts(s: Specialiser, leaves: Sequence[Any], shape: tuple[int, ...]) -> Whole | None:
    """The whole that the elements are parts of, or a part of it; with a few others written in."""
    parts = [v.part if type(v) is Tensor else None for v in leaves]
    first = parts[0] or parts[-1]
    if first is None or first.whole.type.shape[-len(shape) :] != shape:
        return None
    of = first.whole
    prefix = first.place[: -len(shape)]
    others = [
        (place, leaf)
        for part, leaf, place in zip(parts, leaves, _places(shape), strict=True)
        if part is None or part.whole is not of or part.place != (*prefix, *place)
    ]
    if len(others) > _PATCHES_MAX:
        return None
    same = joins.Slot(TensorType(of.type.dtype), of.kind)
    if any(joins.slot_of(s, leaf) != same for _, leaf in others):
        return None
    value = of.value
    if prefix:
        value = indexing.subscript(s, Tensor(value), prefix).value
    if others:
        array = stores.fresh(s, value)
        for place, leaf in others:
            array_changes.store(s, array, place, arithmetic.tensor(s, leaf))
        value = array.value
    return of if value is of.value else Whole(value, of.kind, s.scope)


def _of_columns(s: Specialiser, leaves: Sequence[Any], shape: tuple[int, ...]) -> Whole | None:
    """The same of what `zip(*rows)` gives: the columns of a whole."""
    if len(shape) != 2:
        return None
    turned = [leaves[k * shape[1] + j] for j in range(shape[1]) for k in range(shape[0])]
    of = _of_parts(s, turned, shape[::-1])
    if of is None:
        return None
    return Whole(s.emit("transpose", of.value, perm=(1, 0)), of.kind, s.scope)


def _home(s: Specialiser, values: Iterable[Value]) -> tuple[Scope, set[Value]]:
    """The outermost region that has all of these values, and those that are its own."""
    needed = set(values)
    for scope in s.open:
        before = set(needed)
        needed.difference_update(scope.inputs)
        for op in scope.ops:
            needed.difference_update(op.results)
        if not needed:
            return scope, before
    return s.scope, set()


@contextmanager
def _in(s: Specialiser, scope: Scope) -> Iterator[None]:
    before, s.scope = s.scope, scope
    try:
        yield
    finally:
        s.scope = before


def _joined(s: Specialiser, values: Sequence[Value], shape: tuple[int, ...]) -> Value:
    """Single numbers as one array, a row at a time."""
    width = shape[-1]
    rows = []
    for k in range(0, len(values), width):
        ones = [indexing.reshape(s, v, (1,)) for v in values[k : k + width]]
        rows.append(s.emit("concat", *ones, axis=0) if width > 1 else ones[0])
    flat = s.emit("concat", *rows, axis=0) if len(rows) > 1 else rows[0]
    return indexing.reshape(s, flat, shape)


# Reading


def picked(s: Specialiser, owner: Any, index: Any) -> Any:
    """`owner[index]` of a list, by an index of the running program; None where that cannot be."""
    if type(owner) is Picked:
        index = _checked(s, index, owner.length, "list index out of range")
        return _element(s, owner.base, (*owner.places, index), owner.shape)
    found = regular(owner)
    if found is None:
        return None
    index = _checked(s, index, len(owner), "list index out of range")
    return _element(s, list(owner), (index,), found[0])


def indexed(s: Specialiser, value: list[Any] | tuple[Any, ...]) -> Indexed | None:
    """Numbers, lists of numbers or tuples of numbers, by an index of the running program."""
    if regular(list(value)) is not None:
        owner = value if type(value) is list else list(value)
        return Indexed(len(value), lambda s, i: s.subscript(owner, i))
    if not all(type(row) is tuple and len(row) == len(value[0]) for row in value):
        return None
    parts = [list(row) for row in value]
    if len(value[0]) < iteration.LOOP_MIN:  # Each place has a type of its own.
        columns = [list(column) for column in zip(*value, strict=True)]
        if not columns or not all(map(regular, columns)):
            return None
        return Indexed(len(value), lambda s, i: tuple(s.subscript(c, i) for c in columns))
    of = whole(s, parts)
    if of is None:
        return None

    def item(s: Specialiser, i: Any) -> tuple[Any, ...]:
        row = indexing.subscript(s, Tensor(of.value), i).value
        return tuple(items_of(s, Whole(row, of.kind, s.scope)))

    return Indexed(len(value), item)


def _checked(s: Specialiser, index: Any, size: int, text: str) -> Any:
    """An index into a list, with Python's error where it is out of range."""
    if type(index) is int:
        if -size <= index < size:
            return index
        raise s.error("DL114", text, f"it has {size} items")
    value = indexing.place_of(s, index, [].__getitem__)
    raises.check_index(s, value.value, size, 0, text)
    return value


#: Functions that take a list which the running program picks as it is.
_LAZY: frozenset[Any] = frozenset((len, zip, enumerate, reversed, isinstance, type))


def as_lists(s: Specialiser, f: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Arguments of a function of the vocabulary: a list that is picked as its present items.

    NumPy takes a deque as a list too.
    """
    if any(type(a) is Picked for a in args) and f not in _LAZY:
        args = [iteration.items(s, a) if type(a) is Picked else a for a in args]
    if any(type(a) is Deque for a in args) and str(f.__module__).startswith("numpy"):
        args = [list(iteration.items(s, a)) if type(a) is Deque else a for a in args]
    return args


def _element(
    s: Specialiser, base: list[Any], places: tuple[Any, ...], shape: tuple[int, ...]
) -> Any:
    if len(places) < len(shape):
        return Picked(base, places, shape)
    of = whole(s, base)
    if of is None:
        return None
    value = indexing.subscript(s, Tensor(of.value), places).value
    return Tensor(value, kind=of.kind)


# Changing


def store(s: Specialiser, owner: Any, index: Any, value: Any) -> bool:
    """`owner[index] = value` by an index of the running program; False where that cannot be."""
    base = owner.base if type(owner) is Picked else owner
    places = (*owner.places, index) if type(owner) is Picked else (index,)
    of = whole(s, base)
    if of is None or len(places) != len(of.type.shape) or not is_element(value):
        return False
    lists = list(_innermost(base))
    if len({id(v) for v in lists}) < len(lists):
        return False
    containers.check_errors(s, base)
    index = _checked(s, index, of.type.shape[len(places) - 1], "list assignment index out of range")
    places = (*places[:-1], index)
    fits, slot = joins.join_leaf(s, joins.Slot(TensorType(of.type.dtype), of.kind), value)
    if not fits:
        return False
    dtype = slot.type.dtype
    array = stores.fresh(s, arithmetic.convert(s, of.value, dtype))
    array_changes.store(s, array, places, Tensor(arithmetic.materialise(s, value, dtype, ())))
    put(s, Group(tuple(lists), of.type.shape), array.value, slot.kind)
    return True


def _innermost(value: list[Any]) -> Iterator[list[Any]]:
    if type(value[0]) is not list:
        yield value
        return
    for row in value:
        yield from _innermost(row)


def put(s: Specialiser, group: Group, value: Value, kind: int) -> None:
    """Makes the items of lists parts of a new whole."""
    items = items_of(s, Whole(value, kind, s.scope))
    width = group.shape[-1]
    for k, owner in enumerate(group.lists):
        containers.put(s, owner, items[k * width : (k + 1) * width])


def items_of(s: Specialiser, of: Whole) -> list[Tensor]:
    """All elements of a whole, in order."""
    type_ = TensorType(of.type.dtype)
    items = []
    for place in _places(of.type.shape):
        item = Tensor(Value(type_), kind=of.kind)
        item.part = Part(s, of, place)
        items.append(item)
    return items


def are_all_of(leaves: Sequence[Any], of: Whole) -> bool:
    """Whether these are all elements of a whole, in order."""
    return len(leaves) == of.type.size and all(
        _has_part(v) and v.part.whole is of and v.part.place == place
        for v, place in zip(leaves, _places(of.type.shape), strict=True)
    )


# Where paths meet


def units(s: Specialiser, contents: containers.Contents) -> list[Any]:
    """The containers that a region changed, those of one whole as a group."""
    if not s.stacking:
        return [owner for owner, _ in contents.values()]
    wholes: dict[int, tuple[Whole, dict[tuple[int, ...], Any]]] = {}
    for owner, content in contents.values():
        found = _row_of(content)
        if found is not None:
            wholes.setdefault(id(found[0]), (found[0], {}))[1][found[1]] = owner
    groups = []
    for of, rows in wholes.values():
        wanted = list(_places(of.type.shape[:-1]))
        if len(rows) == len(wanted):
            groups.append(Group(tuple(rows[p] for p in wanted), of.type.shape))
    grouped = {id(v) for group in groups for v in group.lists}
    return [*groups, *(owner for key, (owner, _) in contents.items() if key not in grouped)]


def _row_of(content: Any) -> tuple[Whole, tuple[int, ...]] | None:
    """The whole that a list is a row of, and which."""
    first = content[0].part if type(content) is list and content and _has_part(content[0]) else None
    if first is None or first.whole.type.shape[-1] != len(content):
        return None
    prefix = first.place[:-1]
    same = all(
        _has_part(v) and v.part.whole is first.whole and v.part.place == (*prefix, k)
        for k, v in enumerate(content)
    )
    return (first.whole, prefix) if same else None


def _has_part(value: Any) -> bool:
    return type(value) is Tensor and value.part is not None


def members(unit: Any) -> tuple[Any, ...]:
    """The lists that a branch or loop changes as one value."""
    return unit.lists if type(unit) is Group else (unit,)


def content(s: Specialiser, unit: Any, contents: containers.Contents) -> Any:
    """What a unit holds at a region's end: the content of a container, or a whole."""
    if type(unit) is not Group:
        return contents[id(unit)][1] if id(unit) in contents else containers.copied(unit)
    rows = [contents[id(v)][1] if id(v) in contents else list(v) for v in unit.lists]
    of = whole(s, rows if len(rows) > 1 or len(unit.shape) > 1 else rows[0])
    if of is None or of.type.size != np.prod(unit.shape):
        text = "a list that a loop or branch changes holds numbers of several types"
        raise s.static_needed(text, "start with numbers of the type that is stored: 0.0")
    if of.type.shape == unit.shape:
        return of
    return Whole(indexing.reshape(s, of.value, unit.shape), of.kind, s.scope)
