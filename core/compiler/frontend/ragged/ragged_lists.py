"""Lists whose length the data decide: `[x for x in v if x > t]`.

A list comprehension whose condition the running program decides gives a `RaggedList`: an array of
all items with their number, as `x[mask]` is one, whose elements are numbers of one class of
Python's. It does not change. It can be gone through, indexed and reduced, NumPy's functions take it
for an array, and a compiled call returns it as a list. Of items that are no numbers, as tuples and
rows, only the number is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir import DType
from ...ragged import Ragged
from ...traced import ARRAY
from .. import operators
from ..flow import iteration
from ..memory import array_changes, stores
from ..numpy import arithmetic
from ..numpy.formulas import fails, refuses
from ..values import (
    NO_NUMBERS,
    Counted,
    Method,
    Once,
    RaggedList,
    Tensor,
    TensorRange,
    describe,
    is_number,
    kind_of,
)
from . import new, normal, plain

if TYPE_CHECKING:
    from ..specialise import Specialiser
    from ..vocabulary.vocabulary_table import Row


#: How many items a list of a range has at most.
_ROOM_MAX = 1_000_000


class Again(Exception):
    """The loop is made again: now the type of the first item is known, or how many there may be."""


class _Room:
    """An array that a loop fills.

    sizes: how many items each `for` goes through at most, by its place. data: None before the type
    is known, and where none is kept.
    """

    def __init__(self, most: int) -> None:
        self.sizes = {0: most}
        self.dtype: DType | None = None
        self.data: Tensor | None = None
        self.is_kept = True
        self.kind = 0

    @property
    def most(self) -> int:
        return math.prod(self.sizes.values())

    def start(self, s: Specialiser) -> None:
        """Before the loop is made."""
        if self.dtype is not None:
            self.data = stores.fresh(s, s.scope.number(0, self.dtype, (self.most,)), True)

    def inner(self, s: Specialiser, _: None, depth: int, source: Any) -> Any:
        """What an inner `for` goes through."""
        source = _drawn(s, source)
        size = _most(s, source)
        if size > self.sizes.get(depth, -1):
            self.sizes[depth] = size
            if self.most > _ROOM_MAX:
                text = f"a list comprehension that may give {self.most} items"
                raise s.static_needed(f"{text}, and the data decide which", _HINT)
            if self.data is not None:
                raise Again
        return source

    def put(self, s: Specialiser, _: None, count: Any, item: Any) -> Any:
        """The number of items after another one."""
        if self.is_kept and self.data is None:
            self.is_kept = _is_element(item)
            if self.is_kept:
                self.dtype = arithmetic.tensor(s, item).dtype
            raise Again
        if self.data is not None:
            if not _is_element(item):
                raise _alike(s, item, self.data)
            element = arithmetic.tensor(s, item)
            if element.dtype is not self.data.dtype:
                raise _alike(s, item, self.data)
            self.kind |= kind_of(item)
            place = Tensor(arithmetic.tensor(s, count).value, True)
            s.natural.known[place.value] = 0, self.most - 1  # Another one is stored before.
            array_changes.store(s, self.data, place, arithmetic.strong(element))
        return operators.binary(s, "+", count, 1)

    def made(self, s: Specialiser, _: None, count: Any) -> RaggedList:
        """The list at the end of the loop."""
        number = Tensor(arithmetic.tensor(s, count).value, True)
        s.natural.known[number.value] = 0, self.most
        s.ragged = True
        if self.data is None:
            return RaggedList(NO_NUMBERS, number)
        found = Ragged(self.data, number)
        return RaggedList(new(s, normal(s, found), number), number, self.kind)


def _is_element(item: Any) -> bool:
    return is_number(item) and arithmetic.shape_of(item) == () and not kind_of(item) & ARRAY


def _alike(s: Specialiser, item: Any, data: Tensor) -> Exception:
    text = f"a list whose length the data decide holds {data.dtype.value} and {describe(item)}"
    return s.error("DL108", text, "give all items one type: float(x), int(x)")


def collected(
    s: Specialiser, source: Any, loop: Callable[[Any, Mapping[str, Any]], Any]
) -> RaggedList:
    """The list of a comprehension. loop: runs it over a source, given what it reads."""
    source = _drawn(s, source)
    found: RaggedList = filled(s, _Room(_most(s, source)), source, loop)
    return found


def filled(
    s: Specialiser, room: Any, source: Any, loop: Callable[[Any, Mapping[str, Any]], Any]
) -> Any:
    """What a loop makes of a room for its items; it is made again as long as that asks for it."""
    methods: dict[str, Any] = {n: getattr(room, n, None) for n in ("put", "made", "inner")}
    helpers = {name: Method("list", None, method) for name, method in methods.items() if method}
    state, changed = s.state(), s.container_log.count
    while True:
        try:
            room.start(s)
            return loop(source, helpers)
        except Again:
            s.restore(state)
            if s.container_log.count != changed:
                text = (
                    "a list comprehension with a condition of the program changes a list or object"
                )
                raise s.static_needed(text, _HINT) from None


_HINT = "write it as a `for` statement"


def _drawn(s: Specialiser, source: Any) -> Any:
    """What a `for` of a comprehension goes through."""
    if type(source) is Once and source.computes:
        text = "a list comprehension over an iterator's function, with a condition of the program"
        raise s.static_needed(text, "make a list of the iterator first: list(map(f, xs))")
    return iteration.drawn(s, iteration.of_object(s, source))


def _most(s: Specialiser, source: Any) -> int:
    """How many items there are at most."""
    if type(source) is Ragged:
        return int(source.data.shape[0])
    if type(source) is Counted:
        return source.most
    if type(source) is RaggedList:
        return counted(s, source).most
    if type(source) is TensorRange and type(source.stop) is Tensor and source.step == 1:
        last = s.natural.of(source.stop.value)[1]
        if type(source.start) is int and source.start >= 0 and last <= _ROOM_MAX:
            return max(last - source.start, 0)
    part = iteration.as_indexed(s, source)
    return len(iteration.items(s, source)) if part is None else part.length


def of_array(s: Specialiser, r: Ragged, kind: int) -> RaggedList:
    """The elements of an array of one axis as a list."""
    return RaggedList(new(s, plain(r), r.count), r.count, kind)


def counted(s: Specialiser, values: RaggedList) -> Counted:
    """Its items, as a loop of the program goes through them."""
    array = _array(s, values, "a loop over it")

    def item(s: Specialiser, i: Any) -> Any:
        return Tensor(s.subscript(plain(array), i).value, kind=values.kind)

    return Counted(values.count, array.data.shape[0], item)


def _array(s: Specialiser, values: RaggedList, what: str) -> Ragged:
    """The items as an array."""
    if type(values.array) is not Ragged:
        text = f"{what} of {describe(values)}, and whose items are no real numbers"
        raise s.static_needed(text, "write it as a `for` statement; `len` counts the items")
    return new(s, plain(values.array), values.count)


def as_array(s: Specialiser, values: RaggedList, what: str, typed: bool = False) -> Ragged:
    """The list as NumPy takes it. typed: NumPy does not choose the element type."""
    found = _array(s, values, what)
    dtype = found.data.dtype
    if not typed and dtype is not DType.F64:
        none = arithmetic.equal(s, Tensor(values.count.value), 0)
        words = f"Python gives float64 for {what} of an empty list, and a program {dtype.value}"
        refuses(s, none.value, f"{words}: pass a dtype, or test the length before")
    return found


def item(s: Specialiser, values: RaggedList, index: Any) -> Any:
    """`values[index]`."""
    index = int(index) if isinstance(index, np.integer) else index
    whole = type(index) is int or (type(index) is Tensor and index.dtype is DType.I64)
    if not whole or arithmetic.shape_of(index) != ():
        raise refused(s, "such an index", values)
    part = counted(s, values)
    place = index
    if type(index) is Tensor or index < 0:
        below = arithmetic.less(s, index, 0)
        moved = operators.binary(s, "+", values.count, index)
        place = arithmetic.tensor(s, arithmetic.select(s, below, moved, index))
    place = Tensor(arithmetic.tensor(s, place).value, True)
    outside = arithmetic.bitwise_or(
        s, arithmetic.less(s, place, 0), arithmetic.less_equal(s, values.count, place)
    )
    fails(s, outside.value, IndexError, "list index out of range")
    last = max(part.most - 1, 0)
    low = arithmetic.maximum(s, Tensor(place.value), Tensor(s.scope.number(0, DType.I64)))
    at = arithmetic.minimum(s, low, Tensor(s.scope.number(last, DType.I64)))
    s.natural.known[at.value] = 0, last
    return part.item(s, Tensor(at.value, True))


def refused(s: Specialiser, what: str, values: RaggedList) -> Exception:
    """The error of what such a list does not take."""
    return s.static_needed(f"{what} of {describe(values)}", operators.OF_ITEMS)


# Functions


def among(args: Sequence[Any], kwargs: Mapping[str, Any]) -> RaggedList | None:
    """The first such list among arguments."""
    given = (*args, *kwargs.values())
    return next((v for v in given if type(v) is RaggedList), None)


def call(s: Specialiser, row: Row, f: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A function of the vocabulary that is given such a list."""
    values = args[0] if args else None
    if row.name == "len" and type(values) is RaggedList:
        return values.count
    if row.name == "bool" and type(values) is RaggedList:
        return operators.compare(s, "!=", values.count, 0)
    if row.name in _LIKE_A_LIST and type(values) is RaggedList:
        return row(s, f, [[], *args[1:]], kwargs)
    if row.name == "list" and type(values) is RaggedList:
        return values
    if row.name in _REDUCED and type(values) is RaggedList:
        reduced = {**_REDUCED, **_WITH_DEFAULT} if "default" in kwargs else _REDUCED
        return s.call(reduced[row.name], values, *args[1:], **kwargs)
    if row.name in ("enumerate", "zip"):
        parts = [counted(s, v) if type(v) is RaggedList else v for v in args]
        from .ragged_python import PYTHON

        return PYTHON[row.name](s, *parts, **kwargs)
    if row.name.startswith("np."):

        def array(value: Any) -> Any:
            if type(value) is not RaggedList:
                return value
            return as_array(s, value, f"`{row.name}`", "dtype" in kwargs)

        return row(s, f, [*map(array, args)], {k: array(v) for k, v in kwargs.items()})
    found = among(args, kwargs)
    assert found is not None
    raise refused(s, f"`{row.name}`", found)


#: Functions that ask about the class.
_LIKE_A_LIST = frozenset(("isinstance", "type", "hasattr", "callable"))


def _sum(values: Any, start: Any = 0) -> Any:
    return sum((x for x in values), start)


def _any(values: Any) -> Any:
    return any(x for x in values)


def _all(values: Any) -> Any:
    return all(x for x in values)


def _min(values: Any, key: Any = None) -> Any:
    return min((x for x in values), key=key)


def _max(values: Any, key: Any = None) -> Any:
    return max((x for x in values), key=key)


def _min_or(values: Any, default: Any, key: Any = None) -> Any:
    return min((x for x in values), key=key, default=default)


def _max_or(values: Any, default: Any, key: Any = None) -> Any:
    return max((x for x in values), key=key, default=default)


#: What reduces such a list, and with a default.
_REDUCED: dict[str, Callable[..., Any]] = {
    "sum": _sum,
    "any": _any,
    "all": _all,
    "min": _min,
    "max": _max,
}
_WITH_DEFAULT: dict[str, Callable[..., Any]] = {"min": _min_or, "max": _max_or}


__all__ = [
    "among",
    "as_array",
    "call",
    "collected",
    "counted",
    "item",
    "of_array",
    "refused",
]
