"""What can be iterated: item by item at compile time, or by an index of the running program."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from ...complex_numbers import Complex
from ...ragged import Ragged
from .. import complexes, operators, special_methods
from ..memory import stores
from ..numpy import arithmetic, indexing
from ..values import (
    VIEWS,
    Counted,
    Frame,
    Indexed,
    Once,
    Picked,
    RaggedList,
    Tensor,
    TensorRange,
    describe,
    is_number,
)
from .watches import Watch, reads_frame, refuse_change, unchanged

if TYPE_CHECKING:
    from ..specialise import Specialiser

#: A loop over more items than this is not unrolled.
UNROLL_MAX = 1000

#: Shorter lists are gone through item by item, whatever they hold.
LOOP_MIN = 8

#: Known numbers cost nothing to the program, but a range may be absurdly long.
_NUMBERS_MAX = 1_000_000

_STATIC = (tuple, list, dict, set, frozenset, str, range, bytes)
#: What Python itself implements.
_SLOTS = (types.WrapperDescriptorType, types.MethodDescriptorType)
_VALUES, _PAIRS = VIEWS[1:], VIEWS[2]


def of_object(s: Specialiser, value: Any) -> Any:
    """The iterator that an object's `__iter__` gives; any other value as it is."""
    method = special_methods.find(value, "__iter__")
    if method is None:
        return value
    made = s.call(types.MethodType(method, value))
    if type(made) is not Once:
        text = f"`{type(value).__name__}.__iter__` gives {describe(made)}, which is no iterator"
        raise s.error("DL119", text, "write it with `yield`, or give iter(values)")
    return made


def drawn(s: Specialiser, value: Any) -> Any:
    """What an iterator goes through, which it can do once; any other value as it is."""
    if type(value) is not Once:
        return value
    if _is_spent(s, value):
        return []
    take(s, value)
    at = stores.mark(s)
    made = value.make()
    if value.computes and stores.changed_since(s, at):
        text = "a function that an iterator calls changes an array in place"
        raise s.error("DL111", text, "call it in a loop, or in a list: [f(x) for x in values]")
    return made


def _is_spent(s: Specialiser, value: Once) -> bool:
    return any(value is spent for spent in s.spent)


def take(s: Specialiser, value: Once) -> None:
    """An iterator is gone through: once, and where it was made."""
    if value.used:
        raise _used(s)
    if value.region is not s.region:
        text = "an iterator that was made outside the branch or loop is gone through within"
        raise s.error("DL113", text, _AS_LIST)
    if any(len(source) != size for source, size in value.sizes):
        text = "what an iterator goes through has got another length since it was made"
        raise s.error("DL111", text, "make the iterator where it is gone through, or a list")
    value.used = True


_AS_LIST = "make a list of it first: list(zip(a, b))"


def _used(s: Specialiser) -> Exception:
    text = "an iterator is gone through twice; Python finds what is left of it the second time"
    return s.error("DL113", text, _AS_LIST)


def advance(s: Specialiser, value: Once, default: tuple[Any, ...]) -> Any:
    """`next`: an item, and what goes through the iterator later finds those after it."""
    if value.region is not s.region:
        text = "`next` of an iterator that was made outside the branch or loop"
        raise s.static_needed(text, "use a list and an index, or a loop over known values")
    if s.faults is not None and s.faults.pending():
        text = "`next` stands in a statement of a `try` that may raise an error before"
        raise s.error("DL102", text, "compute the value in a statement before")
    if value.ahead is None:
        items = iter(()) if _is_spent(s, value) else live(s, copy.copy(value))
        value.ahead, value.turns = items, lambda: items
        value.make = lambda: list(items)
        value.computes, value.sources = False, ()
    elif value.used:
        raise _used(s)
    found = next(value.ahead, value)
    if found is not value:
        return found
    if default:
        return default[0]
    raise s.error("DL113", "`next` of an iterator that has no more items") from StopIteration()


def drawn_for_loop(s: Specialiser, value: Any) -> Any:
    """What a loop goes through.

    Python computes an iterator's items between the rounds: where one of them may end in an error or
    prints, its place among the errors and texts of the rounds would be another.
    """
    faults = s.faults
    if faults is None:
        return drawn(s, value)
    before, said = faults.memories[0].value, len(faults.said)
    made = drawn(s, value)
    for does, done in (
        ("may raise an error", before is not faults.memories[0].value),
        ("prints", said != len(faults.said)),
    ):
        if done:
            text = f"an iterator's function {does} between the rounds of a loop"
            raise s.error("DL111", text, "compute the items first: for x in list(values)")
    return made


def partly(s: Specialiser, *values: Any) -> list[list[Any]]:
    """The items of some iterables that Python goes through in turns, or not to their ends.

    So what an iterator's function changes, or the error that it raises, may come at another time,
    or not at all: it is refused.
    """
    columns = []
    for value in (of_object(s, v) for v in values):
        if type(value) is not Once or not value.computes:
            columns.append(items(s, value))
            continue
        watch = Watch(s, value)
        made = drawn_for_loop(s, value)
        unchanged(s, watch, _CHANGES)
        columns.append(items(s, made))
    return columns


def settled(s: Specialiser, inner: list[Watch]) -> None:
    """Refuses an iterator whose function changed what inner iterators' functions may read."""
    for watch in inner:
        unchanged(s, watch, _CHANGES)


def watched(s: Specialiser, *values: Any) -> list[Watch]:
    """What inner iterators' items are computed from."""
    return [Watch(s, v) for v in values if type(v) is Once and v.computes]


_CHANGES = "a function that an iterator calls changes {}"


def live(s: Specialiser, value: Any, limit: int = _NUMBERS_MAX) -> Iterator[Any]:
    """Every item, as Python goes through what may change meanwhile.

    A list is read by its places; a dict, and what an iterator draws from, must not change.
    """
    value = of_object(s, value)
    if type(value) is list:
        k = 0
        while k < len(value):
            if k >= limit:
                raise too_long(s, len(value))
            yield value[k]
            k += 1
        return
    if type(value) is Once and value.turns is not None and not value.computes:
        take(s, value)
        for k, item in enumerate(value.turns()):
            if k >= limit:
                raise too_long(s, k + 1)
            yield item
        return
    sources = value.sources if type(value) is Once else ()
    before = [_held(source) for source in sources]
    size = len(value) if isinstance(value, dict | Sized) and not is_number(value) else None
    watch = Watch(s, value) if computes(value) else None
    at = stores.mark(s)

    def check(last: bool) -> None:
        for source, b in zip(sources, before, strict=True):
            a = _held(source)
            same = len(a) == len(b) and (not last or all(x is y for x, y in zip(a, b, strict=True)))
            if not same:
                raise changed_meanwhile(s)
        if size is not None and len(value) != size:
            raise changed_meanwhile(s)
        if watch is not None:
            closed = watch.is_closed and stores.changed_since(s, at)
            what = "an array" if closed else watch.change()
            refuse_change(s, what, "{} changes in a loop over an iterator that may read it")

    made = drawn_for_loop(s, value)
    if watch is not None:
        unchanged(s, watch, _CHANGES)
    if isinstance(made, _VALUES):  # A value is the dict's when the loop comes to it.
        found = _behind(made)
        drawn_items: Iterable[Any] = (
            (k, found[k]) if isinstance(made, _PAIRS) else found[k] for k in list(found)
        )
    elif (
        type(made) is not list
        and (part := as_indexed(s, made)) is not None
        and part.length <= UNROLL_MAX
    ):  # Each item as it is when drawn.
        drawn_items = (part.item(s, k) for k in range(part.length))
    else:
        drawn_items = items(s, made)
    for item in drawn_items:
        yield item
        check(False)
    check(True)


def not_from_outside(s: Specialiser, value: Any) -> None:
    """Refuses an iterator from outside the program: each call of Python's goes on in it."""
    if isinstance(getattr(type(value), "__next__", None), _SLOTS):
        text = f"this {type(value).__name__} came from outside the function, and is used up"
        raise s.error("DL111", text, "make a list of it outside: items = list(iterator)")


def stays(owner: Any, name: str) -> bool:
    """Whether an attribute is there, and is no iterator: one that is not used is no error."""
    found = getattr(owner, name, None)
    return hasattr(owner, name) and not isinstance(getattr(type(found), "__next__", None), _SLOTS)


def without_names(s: Specialiser, made: list[Any], frame: Frame) -> list[Any]:
    """The items of a generator expression: no function among them may read its names.

    Python calls such a function before the next item, with the names as they are then.
    """
    if len(made) > 1 and any(reads_frame(item, frame) for item in made):
        text = "a generator expression gives functions that read its names, which change"
        raise s.error("DL111", text, "make a list, or give each its own: lambda v, k=k: v + k")
    return made


def changed_meanwhile(s: Specialiser) -> Exception:
    """The error of a loop that changes what it goes through."""
    text = "what a loop goes through changes in the loop"
    return s.error("DL111", text, "go through a copy: for x in list(values)")


def sources_of(*values: Any) -> tuple[Any, ...]:
    """The lists, dicts, sets and views that an iterator over these draws from."""
    found: list[Any] = []
    for value in values:
        if type(value) is Once:
            found += value.sources
        elif isinstance(value, list | dict | set) or type(value) in VIEWS:
            found.append(value)
    return tuple(found)


def _behind(view: Any) -> Mapping[Any, Any]:
    """The dict that a view is of."""
    found: Mapping[Any, Any] = view.mapping
    return found


def _held(source: Any) -> list[Any]:
    """What a source holds; of a view of a dict, keys and values."""
    if isinstance(source, _VALUES):
        return [*_behind(source), *_behind(source).values()]
    return list(source)


def computes(*values: Any) -> bool:
    """Whether an iterator over these calls a function for its items."""
    return any(type(v) is Once and v.computes for v in values)


def items(s: Specialiser, value: Any) -> list[Any]:
    """Every item, at compile time."""
    value = drawn(s, of_object(s, value))
    if isinstance(value, _STATIC + VIEWS):
        if isinstance(value, range) and len(value) > _NUMBERS_MAX:
            raise too_long(s, len(value))
        if isinstance(value, set | frozenset) and not all(type(v) in (int, bool) for v in value):
            # Python's order of strings differs from process to process: any order is one of them.
            return operators.python(s, lambda: sorted(value), "the order of a set")  # type: ignore[no-any-return]
        return list(value)  # type: ignore[call-overload, no-any-return]
    indexed = as_indexed(s, value)
    if indexed is not None:
        if indexed.length > UNROLL_MAX:
            raise too_long(s, indexed.length)
        return [indexed.item(s, i) for i in range(indexed.length)]
    if isinstance(value, Ragged | Counted | RaggedList):
        text = describe(value)
        text += "" if type(value) is RaggedList else ", whose length the data decide"
        raise s.static_needed(
            f"going through {text}, item by item", "write it as a `for` statement"
        )
    if isinstance(value, TensorRange):
        raise s.needs_static(_bound(value), "the number of items")
    if isinstance(value, np.ndarray):
        raise s.error("DL113", "a number cannot be iterated")
    raise s.error("DL119", f"{describe(value)} cannot be iterated")


def collected(kind: Any) -> Callable[..., Any]:
    """`set` or `frozenset`, in Python's order: a set made of a set has another table."""

    def run(s: Specialiser, iterable: Any = ()) -> Any:
        known = isinstance(iterable, set | frozenset | dict)
        values = iterable if known else items(s, iterable)
        s.hashable(tuple(values), "an item of a set")
        made = operators.python(s, lambda: kind(values), f"`{kind.__name__}`")
        return s.own(made) if kind is set else made

    return run


def _bound(value: TensorRange) -> Any:
    parts = (value.start, value.stop, value.step)
    return next(p for p in parts if type(p) is Tensor)


def too_long(s: Specialiser, length: int) -> Exception:
    """The error of a loop with more items than are unrolled."""
    return s.error(
        "DL110",
        f"{length} items are too many to unroll (at most {UNROLL_MAX})",
        "loop over an array or a range in the running program",
    )


def as_indexed(s: Specialiser, value: Any) -> Indexed | None:
    """A sequence whose items an index of the running program can pick, or None."""
    if isinstance(value, Indexed):
        return value
    if isinstance(value, range):
        return Indexed(len(value), lambda s, i: place(s, value.start, i, value.step))
    if type(value) is Picked:
        return Indexed(value.length, lambda s, i: s.subscript(value, i))
    if s.stacking and type(value) in (list, tuple) and len(value) >= LOOP_MIN:
        from ..containers import list_stacks

        return list_stacks.indexed(s, value)
    if type(value) in (Tensor, Complex) or isinstance(value, np.ndarray):
        shape = complexes.shape_of(value)
        if not shape:
            hint = "range(n) counts up to a number"
            raise s.error("DL119", f"{describe(value)} has no axis to iterate over", hint)
        return Indexed(shape[0], lambda s, i: row(s, value, i))
    return None


def row(s: Specialiser, value: Any, index: Any) -> Any:
    """`value[index]` along the first axis; a known number where both are known."""
    if isinstance(value, np.ndarray) and type(index) is int:
        return value[index]
    if complexes.is_any(value):
        return complexes.subscript(s, value, index)
    return indexing.subscript(s, arithmetic.tensor(s, value), index)


def place(s: Specialiser, start: Any, index: Any, step: Any) -> Any:
    """start + index * step."""
    if type(step) is not int or step != 1:
        index = operators.binary(s, "*", index, step)
    if type(start) is int and start == 0:
        return index
    return operators.binary(s, "+", start, index)


def zipped(s: Specialiser, values: list[Any], strict: bool) -> Any:
    """`zip`: by index when every part can be, else item by item."""
    values = [partly(s, v)[0] if type(v) is Once and v.computes else drawn(s, v) for v in values]
    parts = [as_indexed(s, v) for v in values]
    if values and all(p is not None for p in parts):
        known = [p for p in parts if p is not None]
        lengths = [p.length for p in known]
        _check_strict(s, lengths, strict)
        return Indexed(min(lengths), lambda s, i: tuple(p.item(s, i) for p in known))
    if any(type(v) in (Tensor, Complex) for v in values):  # Its elements are read when drawn.
        mixed = [
            p or _listed(v if type(v) is list else items(s, v))
            for p, v in zip(parts, values, strict=True)
        ]
        lengths = [p.length for p in mixed]
        _check_strict(s, lengths, strict)
        return Indexed(min(lengths), lambda s, i: tuple(p.item(s, i) for p in mixed))
    rows = [items(s, v) for v in values]
    _check_strict(s, [len(r) for r in rows], strict)
    return [tuple(r) for r in zip(*rows, strict=False)]


def zipped_in_turns(s: Specialiser, values: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """`zip`, an item of each at a time; it ends where one of them has no other."""
    parts = [live(s, v) for v in values]
    while parts:
        row = []
        for part in parts:
            for item in part:
                row.append(item)
                break
            else:
                return
        yield tuple(row)


def _listed(value: list[Any]) -> Indexed:
    """The items of a list, by known indices alone."""

    def item(s: Specialiser, index: Any) -> Any:
        if type(index) is not int:
            raise s.needs_static(index, "an index into a list")
        return value[index]

    return Indexed(len(value), item)


def _check_strict(s: Specialiser, lengths: list[int], strict: bool) -> None:
    if strict and len(set(lengths)) > 1:
        hint = "cut the longer ones, or leave strict=True out"
        raise s.error("DL113", f"zip(strict=True) of different lengths: {lengths}", hint)


def enumerated(s: Specialiser, value: Any, start: int) -> Any:
    """`enumerate`, by an index of the running program where `value` has one."""
    value = drawn(s, value)
    part = as_indexed(s, value)
    if part is not None:
        return Indexed(part.length, lambda s, i: (place(s, start, i, 1), part.item(s, i)))
    return [(start + k, v) for k, v in enumerate(items(s, value))]


def backwards(s: Specialiser, value: Any) -> Any:
    """`reversed`, by an index of the running program where `value` has one."""
    if isinstance(value, range):
        return value[::-1]
    part = as_indexed(s, value)
    if part is not None:
        last = part.length - 1
        return Indexed(part.length, lambda s, i: part.item(s, operators.binary(s, "-", last, i)))
    return items(s, value)[::-1]
