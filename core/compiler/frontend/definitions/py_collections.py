"""Classes of `collections`, written in Python: a program makes objects of these instead.

Their structure is known while compiling, as that of lists and dicts. Words of errors are CPython's.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any


def fixed(items: Any) -> Iterator[Any]:
    """An iterator over a container that may not change meanwhile (`vocabulary_collections`)."""
    return iter(items)


class Deque:
    """`collections.deque`."""

    _delian_stands_for = collections.deque

    def __init__(self, iterable: Any = (), maxlen: Any = None) -> None:
        if maxlen is not None and maxlen < 0:
            raise ValueError("maxlen must be non-negative")
        self.maxlen = maxlen
        self._items: list[Any] = []
        for item in iterable:
            self.append(item)

    def append(self, item: Any) -> None:
        self._items.append(item)
        if self.maxlen is not None and len(self._items) > self.maxlen:
            del self._items[0]

    def appendleft(self, item: Any) -> None:
        self._items.insert(0, item)
        if self.maxlen is not None and len(self._items) > self.maxlen:
            del self._items[-1]

    def pop(self) -> Any:
        if len(self._items) == 0:
            raise IndexError("pop from an empty deque")
        return self._items.pop()

    def popleft(self) -> Any:
        if len(self._items) == 0:
            raise IndexError("pop from an empty deque")
        return self._items.pop(0)

    def extend(self, iterable: Any) -> None:
        for item in list(iterable):
            self.append(item)

    def extendleft(self, iterable: Any) -> None:
        for item in list(iterable):
            self.appendleft(item)

    def insert(self, place: int, item: Any) -> None:
        if self.maxlen is not None and len(self._items) >= self.maxlen:
            raise IndexError("deque already at its maximum size")
        self._items.insert(place, item)

    def rotate(self, n: int = 1) -> None:
        if len(self._items) > 0:
            n = n % len(self._items)
            self._items[:] = self._items[-n:] + self._items[:-n] if n else self._items[:]

    def remove(self, value: Any) -> None:
        if value not in self._items:
            raise ValueError("deque.remove(x): x not in deque")
        self._items.remove(value)

    def index(self, value: Any, *bounds: int) -> int:
        return self._items.index(value, *bounds)

    def count(self, value: Any) -> int:
        return self._items.count(value)

    def clear(self) -> None:
        self._items.clear()

    def reverse(self) -> None:
        self._items.reverse()

    def copy(self) -> Any:
        return Deque(self._items, self.maxlen)

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        return len(self._items) > 0

    def __iter__(self) -> Iterator[Any]:
        return fixed(self._items)

    def __reversed__(self) -> Any:
        return reversed(self._items)

    def __contains__(self, value: Any) -> bool:
        return value in self._items

    def _checked(self, place: Any) -> Any:
        if isinstance(place, slice):
            raise TypeError("sequence index must be integer, not 'slice'")
        if not -len(self._items) <= place < len(self._items):
            raise IndexError("deque index out of range")
        return place

    def __getitem__(self, place: Any) -> Any:
        return self._items[self._checked(place)]

    def __setitem__(self, place: Any, value: Any) -> None:
        self._items[self._checked(place)] = value

    def __delitem__(self, place: Any) -> None:
        del self._items[self._checked(place)]

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, collections.deque):
            return NotImplemented
        return self._items == list(other)

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, collections.deque):
            raise TypeError("can only concatenate deque to deque")
        made = self.copy()
        made.extend(other)
        return made

    def __iadd__(self, other: Any) -> Any:
        self.extend(other)
        return self


class _OfDict:
    """What the mappings below share: the dict that they hold."""

    _items: dict[Any, Any]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._items[key] = value

    def __delitem__(self, key: Any) -> None:
        del self._items[key]

    def __contains__(self, key: Any) -> bool:
        return key in self._items

    def __len__(self) -> int:
        return len(self._items)

    def __bool__(self) -> bool:
        return len(self._items) > 0

    def __iter__(self) -> Iterator[Any]:
        return fixed(self._items)

    def __eq__(self, other: object) -> Any:
        return self._items == dict(other) if isinstance(other, dict) else NotImplemented

    def get(self, key: Any, default: Any = None) -> Any:
        return self._items.get(key, default)

    def keys(self) -> Any:
        return self._items.keys()

    def values(self) -> Any:
        return self._items.values()

    def items(self) -> Any:
        return self._items.items()

    def setdefault(self, key: Any, default: Any = None) -> Any:
        return self._items.setdefault(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        return self._items.pop(key, *default)

    def clear(self) -> None:
        self._items.clear()


class DefaultDict(_OfDict):
    """`collections.defaultdict`."""

    _delian_stands_for = collections.defaultdict

    def __init__(
        self, default_factory: Callable[[], Any] | None = None, /, *given: Any, **more: Any
    ) -> None:
        if default_factory is not None and not callable(default_factory):
            raise TypeError("first argument must be callable or None")
        self.default_factory = default_factory
        self._items = dict(*given, **more)

    def __getitem__(self, key: Any) -> Any:
        if key not in self._items:
            if self.default_factory is None:
                raise KeyError(key)
            self._items[key] = self.default_factory()
        return self._items[key]

    def update(self, *given: Any, **more: Any) -> None:
        self._items.update(dict(*given, **more))

    def popitem(self) -> Any:
        return self._items.popitem()

    def copy(self) -> Any:
        return DefaultDict(self.default_factory, self._items)


class OrderedDict(_OfDict):
    """`collections.OrderedDict`."""

    _delian_stands_for = collections.OrderedDict

    def __init__(self, *given: Any, **more: Any) -> None:
        self._items = dict(*given, **more)

    def __getitem__(self, key: Any) -> Any:
        return self._items[key]

    def __reversed__(self) -> Any:
        return reversed(list(self._items))

    def __eq__(self, other: object) -> Any:
        if isinstance(other, collections.OrderedDict):
            return list(self._items.items()) == list(other.items())
        return self._items == other if isinstance(other, dict) else NotImplemented

    def update(self, *given: Any, **more: Any) -> None:
        self._items.update(dict(*given, **more))

    def move_to_end(self, key: Any, last: bool = True) -> None:
        value = self._items.pop(key)
        if last:
            self._items[key] = value
        else:
            rest = dict(self._items)
            self._items.clear()
            self._items[key] = value
            self._items.update(rest)

    def popitem(self, last: bool = True) -> Any:
        if len(self._items) == 0:
            raise KeyError("dictionary is empty")
        key = list(self._items)[-1 if last else 0]
        return key, self._items.pop(key)

    def copy(self) -> Any:
        return OrderedDict(self._items)


class Counter(_OfDict):
    """`collections.Counter`."""

    _delian_stands_for = collections.Counter

    def __init__(self, iterable: Any = None, /, **more: Any) -> None:
        self._items = {}
        self.update(iterable, **more)

    def __getitem__(self, key: Any) -> Any:
        return self._items.get(key, 0)

    def __delitem__(self, key: Any) -> None:
        if key in self._items:
            del self._items[key]

    def _add(self, iterable: Any, sign: int) -> None:
        if iterable is None:
            return
        if isinstance(iterable, dict):
            if sign > 0 and len(self._items) == 0:
                self._items.update(dict(iterable))
                return
            for key, count in list(iterable.items()):
                self._items[key] = count + self[key] if sign > 0 else self[key] - count
        else:
            for key in iterable:
                self._items[key] = self[key] + sign

    def update(self, iterable: Any = None, /, **more: Any) -> None:
        self._add(iterable, 1)
        self._add(more, 1)

    def subtract(self, iterable: Any = None, /, **more: Any) -> None:
        self._add(iterable, -1)
        self._add(more, -1)

    def elements(self) -> Iterator[Any]:
        for key, count in self._items.items():
            for _ in range(count):
                yield key

    def most_common(self, n: Any = None) -> Any:
        found = sorted(self._items.items(), key=lambda pair: pair[1], reverse=True)
        return found if n is None else found[: max(n, 0)]

    def total(self) -> Any:
        return sum(self._items.values())

    def copy(self) -> Any:
        return Counter(self._items)

    def __eq__(self, other: object) -> Any:
        """A key that is not there counts zero."""
        if isinstance(other, collections.Counter):
            return all(self[key] == other[key] for c in (self, other) for key in c)
        return self._items == other if isinstance(other, dict) else NotImplemented

    def _positive(self, other: Any, join: Callable[[Any, Any], Any], alone: int) -> Any:
        """The counts of both that are above zero. alone: the sign of those of `other` alone."""
        if not isinstance(other, collections.Counter):
            return NotImplemented
        made = Counter()
        for key, count in self._items.items():
            joined = join(count, other[key])
            if joined > 0:
                made[key] = joined
        for key, count in other.items():
            if key not in self and alone > 0 and count > 0:
                made[key] = count
            elif key not in self and alone < 0 and count < 0:
                made[key] = 0 - count
        return made

    def __add__(self, other: Any) -> Any:
        return self._positive(other, lambda a, b: a + b, 1)

    def __sub__(self, other: Any) -> Any:
        return self._positive(other, lambda a, b: a - b, -1)

    def __or__(self, other: Any) -> Any:
        return self._positive(other, lambda a, b: b if a < b else a, 1)

    def __and__(self, other: Any) -> Any:
        return self._positive(other, lambda a, b: a if a < b else b, 0)

    def __pos__(self) -> Any:
        return self + Counter()

    def __neg__(self) -> Any:
        return Counter() - self

    def _kept(self) -> Any:
        """What an operator in place gives: itself, without counts that are not above zero."""
        for key, count in list(self._items.items()):
            if not count > 0:
                del self._items[key]
        return self

    def __iadd__(self, other: Any) -> Any:
        for key, count in other.items():
            self[key] += count
        return self._kept()

    def __isub__(self, other: Any) -> Any:
        for key, count in list(other.items()):
            self[key] -= count
        return self._kept()

    def __ior__(self, other: Any) -> Any:
        for key, count in other.items():
            if count > self[key]:
                self[key] = count
        return self._kept()

    def __iand__(self, other: Any) -> Any:
        for key, count in list(self._items.items()):
            if other[key] < count:
                self[key] = other[key]
        return self._kept()
