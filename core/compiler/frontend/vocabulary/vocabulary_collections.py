"""Rows of `collections`, `heapq`, `bisect`, `copy` and class methods.

Containers of known structure and known order.
"""

from __future__ import annotations

import bisect
import collections
import copy
import heapq
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import operators
from ..containers import containers, copied_values, program_objects
from ..definitions import py_collections
from ..flow import iteration, itertools_calls
from ..values import Once
from .vocabulary_table import Row

if TYPE_CHECKING:
    from ..specialise import Specialiser

_CLASSES: dict[Any, type] = {
    collections.deque: py_collections.Deque,
    collections.defaultdict: py_collections.DefaultDict,
    collections.OrderedDict: py_collections.OrderedDict,
    collections.Counter: py_collections.Counter,
}


def _constructed(cls: type) -> Callable[..., Any]:
    def run(s: Specialiser, *args: Any, **kwargs: Any) -> Any:
        return program_objects.construct(s, cls, args, kwargs)

    return run


def _fixed(s: Specialiser, items: Any) -> Once:
    return Once(lambda: items, s.region, iteration.sources_of(items), sized=True)


def _fromkeys(s: Specialiser, keys: Any, value: Any = None) -> Any:
    made = iteration.items(s, keys)
    for key in made:
        s.hashable(key, "a dict's key")
    return s.own(dict.fromkeys(made, value))


def _known(f: Any) -> Callable[..., Any]:
    """A function of a list whose items have a known order; it may change the list."""

    def run(s: Specialiser, items: Any, *args: Any, **kwargs: Any) -> Any:
        what = f"`{f.__module__.strip('_')}.{f.__name__}`"
        if not isinstance(items, list):
            raise s.error("DL119", f"{what} takes a list")
        if kwargs.get("key") is not None:
            raise s.error("DL105", f"{what}: `key` is not known here", "keep pairs: (key, item)")
        if f not in _READING:
            containers.may_change(s, items)
        return operators.python(s, lambda: f(items, *args, **kwargs), what)

    return run


_READING = (bisect.bisect_left, bisect.bisect_right)
_OF_LISTS = (
    *(heapq.heappush, heapq.heappop, heapq.heapify, heapq.heapreplace, heapq.heappushpop),
    *(*_READING, bisect.insort_left, bisect.insort_right),
)


def _first(reverse: bool) -> Callable[..., Any]:
    """`heapq.nsmallest` and `nlargest`: the first in an order."""

    def run(s: Specialiser, n: Any, iterable: Any, key: Any = None) -> Any:
        count = max(operators.static_index(s, n, "a number of items"), 0)
        return s.own(s.call(sorted, iterable, key=key, reverse=reverse)[:count])

    return run


def rows() -> list[Row]:
    """A row for each class and function."""
    made = [
        Row(cls, f"collections.{cls.__name__}", _constructed(ours), False, None)
        for cls, ours in _CLASSES.items()
    ]
    made.append(Row(py_collections.fixed, "iter", _fixed, False, None))
    for f in _OF_LISTS:
        module = f.__module__.strip("_")
        made.append(Row(f, f"{module}.{f.__name__}", _known(f), False, None))
    made.append(Row(copy.copy, "copy.copy", copied_values.shallow, False, None))
    made.append(Row(copy.deepcopy, "copy.deepcopy", copied_values.deep, False, None))
    made.append(Row(dict.fromkeys, "dict.fromkeys", _fromkeys, False, None))
    chained = itertools.chain.from_iterable
    made.append(
        Row(chained, "itertools.chain.from_iterable", itertools_calls.from_iterable, False, None)
    )
    made.append(Row(heapq.nsmallest, "heapq.nsmallest", _first(False), False, None))
    made.append(Row(heapq.nlargest, "heapq.nlargest", _first(True), False, None))
    return made
