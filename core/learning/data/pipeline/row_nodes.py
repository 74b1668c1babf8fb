"""Steps before `batch`: each gives any of its rows by number, in any epoch.

    node.rows(numbers, epoch, key) -> columns

What depends on nothing but the number is `fixed`, and can be cached. A step that only renumbers
rows says which rows of the source they are (`resolved`), so that a gather from memory and the
function after it become one compiled program.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ....common.errors import DelianError
from ..formats.array_rows import ArrayRows, gather
from ..stored_order import Windows
from ..stored_rows import StoredRows
from .row_columns import Applied, Array, Columns, Key, Numbers, joined, selected, stacked
from .row_order import bits, key_words, shuffled

#: How many items an endless repetition has.
ENDLESS = 1 << 62
#: Orders and windows that are kept: those that threads, which read ahead, use at one time.
_KEPT = 3


class RowNode(Protocol):
    """A step that gives rows."""

    @property
    def length(self) -> int:
        """How many rows there are."""

    @property
    def fixed(self) -> bool:
        """Whether a row is the same in every epoch and for every key."""

    @property
    def source(self) -> StoredRows:
        """Where the rows come from."""

    def described(self) -> str:
        """The steps in words: what a place in the order is only right for."""

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows."""

    def resolved(self, numbers: Numbers, epoch: int, key: Key) -> Numbers | None:
        """The numbers of the source's rows that these are; None: they were changed."""


@dataclass(frozen=True)
class FromSource:
    """The rows of a source as they are."""

    source: StoredRows
    fixed: bool = True

    @property
    def length(self) -> int:
        """How many rows there are."""
        return self.source.rows

    def described(self) -> str:
        """How many rows it has."""
        return f"{self.source.rows} rows"

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows."""
        found = gather(self.source, numbers)
        return found.x, found.y

    def resolved(self, numbers: Numbers, epoch: int, key: Key) -> Numbers | None:
        """The same numbers."""
        return numbers


@dataclass(frozen=True)
class Part:
    """Consecutive rows: a shard, or the first ones."""

    before: RowNode
    start: int
    length: int

    @property
    def fixed(self) -> bool:
        """As before."""
        return self.before.fixed

    @property
    def source(self) -> StoredRows:
        """As before."""
        return self.before.source

    def described(self) -> str:
        """Which rows."""
        return f"{self.before.described()}, {self.start}+{self.length}"

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows."""
        return self.before.rows(numbers + self.start, epoch, key)

    def resolved(self, numbers: Numbers, epoch: int, key: Key) -> Numbers | None:
        """Rows further on."""
        return self.before.resolved(numbers + self.start, epoch, key)


@dataclass(frozen=True)
class Repeated:
    """The rows again and again, each time in another epoch."""

    before: RowNode
    times: int

    @property
    def length(self) -> int:
        """How many rows there are in all."""
        return min(ENDLESS, self.before.length * self.times)

    @property
    def fixed(self) -> bool:
        """As before: a fixed row has no epoch."""
        return self.before.fixed

    @property
    def source(self) -> StoredRows:
        """As before."""
        return self.before.source

    def described(self) -> str:
        """How often."""
        return f"{self.before.described()}, {self.times} times"

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows, from the epochs that they are in."""
        turns, within = np.divmod(numbers, self.before.length)
        first = int(turns[0])
        if (turns == first).all():
            return self.before.rows(within, epoch * self.times + first, key)
        order = np.argsort(turns, kind="stable")
        parts = []
        for places in np.split(order, np.flatnonzero(np.diff(turns[order])) + 1):
            turn = epoch * self.times + int(turns[places[0]])
            parts.append(self.before.rows(within[places], turn, key))
        return selected(joined(parts), np.argsort(order, kind="stable"))

    def resolved(self, numbers: Numbers, epoch: int, key: Key) -> Numbers | None:
        """Where they are all in one epoch."""
        turns, within = np.divmod(numbers, self.before.length)
        first = int(turns[0])
        if not (turns == first).all():
            return None
        return self.before.resolved(within, epoch * self.times + first, key)


class Kept:
    """What was made last, for several threads: each is made once. Keys name what is made."""

    def __init__(self, most: int = _KEPT) -> None:
        self._most = most
        self._made: OrderedDict[object, Future[object]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: object, make: Callable[[], object]) -> object:
        """What has this name; what `make` raises reaches all that wait for it."""
        with self._lock:
            future = self._made.get(name)
            mine = future is None
            if future is None:
                future = self._made[name] = Future()
                while len(self._made) > self._most:
                    self._made.popitem(last=False)
            else:
                self._made.move_to_end(name)
        if mine:
            try:
                future.set_result(make())
            except BaseException as error:
                with self._lock:
                    if self._made.get(name) is future:
                        del self._made[name]
                future.set_exception(error)
        return future.result()


@dataclass(frozen=True)
class Shuffled:
    """All rows in a random order, another one in each epoch."""

    before: RowNode
    step: int
    """The place of this step, so that two shuffles differ."""
    fixed: bool = False
    _orders: Kept = field(default_factory=Kept, compare=False)

    @property
    def length(self) -> int:
        """As before."""
        return self.before.length

    @property
    def source(self) -> StoredRows:
        """As before."""
        return self.before.source

    def described(self) -> str:
        """That it is a shuffle of all."""
        return f"{self.before.described()}, shuffled"

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows of the order."""
        return self.before.rows(self._order(epoch, key)[numbers], epoch, key)

    def resolved(self, numbers: Numbers, epoch: int, key: Key) -> Numbers | None:
        """By the order."""
        return self.before.resolved(self._order(epoch, key)[numbers], epoch, key)

    def _order(self, epoch: int, key: Key) -> Numbers:
        found = self._orders.get(
            (epoch, key), lambda: shuffled(self.length, self.step, epoch, *key)
        )
        assert isinstance(found, np.ndarray)
        return found


class WindowShuffled:
    """A shuffle that reads a disk forwards: blocks in a random order, rows within windows of them.

    Blocks of `block` consecutive rows come in a random order; `window` rows of that order are read
    at once and shuffled. The rows after the last whole block are in the last window.

    Raises DelianError for a window that holds no block.
    """

    fixed = False

    def __init__(self, before: RowNode, step: int, window: int, block: int) -> None:
        if not 0 < block <= window:
            raise DelianError(
                f"windows of {window} rows by blocks of {block}", "a window holds at least a block"
            )
        self.before, self._step, self._window, self._block = before, step, window, block
        whole = before.length // block
        self._order = Windows(whole * block, window, block) if whole else None
        count = self._order.count if self._order is not None else 1
        self._starts = whole * np.arange(count, dtype=np.int64) // count * block
        self._kept = Kept()

    @property
    def length(self) -> int:
        """As before."""
        return self.before.length

    @property
    def source(self) -> StoredRows:
        """As before."""
        return self.before.source

    def described(self) -> str:
        """The sizes."""
        return f"{self.before.described()}, shuffled by {self._block} in {self._window}"

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows of the order; whole windows are read, and kept for the rows around them."""
        windows = np.searchsorted(self._starts, numbers, "right") - 1
        first = int(windows[0])
        if (windows == first).all():
            return selected(self._content(first, epoch, key), numbers - self._starts[first])
        order = np.argsort(windows, kind="stable")
        parts = []
        for places in np.split(order, np.flatnonzero(np.diff(windows[order])) + 1):
            window = int(windows[places[0]])
            content = self._content(window, epoch, key)
            parts.append(selected(content, numbers[places] - self._starts[window]))
        return selected(joined(parts), np.argsort(order, kind="stable"))

    def resolved(self, numbers: Numbers, epoch: int, key: Key) -> Numbers | None:
        """Windows are read as a whole."""
        return None

    def _content(self, window: int, epoch: int, key: Key) -> Columns:
        found = self._kept.get((window, epoch, key), lambda: self._read(window, epoch, key))
        assert isinstance(found, tuple)
        return found

    def _read(self, window: int, epoch: int, key: Key) -> Columns:
        ranges: list[tuple[int, int]] = []
        if self._order is not None:
            ranges = self._order.ranges(key_words(self._step, *key), epoch, window)
        tail = self.length // self._block * self._block
        if window == len(self._starts) - 1 and tail < self.length:
            ranges = [*ranges, (tail, self.length)]
        parts = [self.before.rows(np.arange(a, b), epoch, key) for a, b in ranges]
        whole = joined(parts)
        return selected(whole, shuffled(len(whole[0]), self._step, epoch, window, *key))


@dataclass(frozen=True)
class RowMapped:
    """A function of a row's values."""

    before: RowNode
    step: int
    applied: Applied

    @property
    def length(self) -> int:
        """As before."""
        return self.before.length

    @property
    def fixed(self) -> bool:
        """Whether nothing random is in it."""
        return self.before.fixed and not self.applied.random

    @property
    def source(self) -> StoredRows:
        """As before."""
        return self.before.source

    def described(self) -> str:
        """The function's name."""
        return f"{self.before.described()}, {self.applied.name}"

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """What the function gives for these rows."""
        given = self.before.rows(numbers, epoch, key)
        made = []
        for k, number in enumerate(numbers.tolist()):
            more: tuple[np.random.Generator, ...] = ()
            if self.applied.random:
                more = (np.random.Generator(bits(self.step, epoch, number, *key)),)
            row = tuple(column[k] for column in given)
            made.append(self.applied(row, f"row {number}", *more))
        return stacked(made, numbers, self.applied.name)

    def resolved(self, numbers: Numbers, epoch: int, key: Key) -> Numbers | None:
        """They are changed."""
        return None


class MemoryCached:
    """Rows that were made once stay in memory, as many as fit; the first rows, not the last used.

    Raises DelianError where what is cached is not the same in every epoch.
    """

    fixed = True

    def __init__(self, before: RowNode, bytes_max: int) -> None:
        check_fixed(before)
        self.before, self._bytes_max = before, bytes_max
        self._columns: Columns | None = None
        self._has = np.zeros(0, bool)
        self._lock = threading.Lock()

    @property
    def length(self) -> int:
        """As before."""
        return self.before.length

    @property
    def source(self) -> StoredRows:
        """As before."""
        return self.before.source

    def described(self) -> str:
        """As before: a cache changes nothing."""
        return self.before.described()

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows, made now where they are not here."""
        columns, has = self._columns, self._has
        room = len(has)
        if columns is not None and int(numbers.max()) < room and has[numbers].all():
            return selected(columns, numbers)
        within = numbers < room
        known = np.zeros(len(numbers), bool)
        known[within] = has[numbers[within]]
        made = self.before.rows(numbers[~known], 0, ())
        columns, room = self._room_for(made)
        out = tuple(np.empty((len(numbers), *c.shape[1:]), c.dtype) for c in made)
        for target, new, old in zip(out, made, columns, strict=True):
            target[~known] = new
            target[known] = old[numbers[known]]
        self._keep(numbers[~known], made, columns, room)
        return out

    def resolved(self, numbers: Numbers, epoch: int, key: Key) -> Numbers | None:
        """They are elsewhere."""
        return None

    def _room_for(self, made: Columns) -> tuple[Columns, int]:
        with self._lock:
            if self._columns is None:
                each = sum(column.nbytes for column in made) // len(made[0])
                room = min(self.length, self._bytes_max // max(1, each))
                self._columns = tuple(np.empty((room, *c.shape[1:]), c.dtype) for c in made)
                self._has = np.zeros(room, bool)
            return self._columns, len(self._has)

    def _keep(self, numbers: Numbers, made: Columns, columns: Columns, room: int) -> None:
        fits = numbers < room
        with self._lock:
            for kept, new in zip(columns, made, strict=True):
                kept[numbers[fits]] = new[fits]
            self._has[numbers[fits]] = True


def check_fixed(before: RowNode) -> None:
    """Raises DelianError where rows differ between epochs, or never end."""
    if not before.fixed:
        raise DelianError(
            "a cache after a shuffle, or after a random function, would repeat one epoch",
            "put cache() before shuffle() and before map(..., random=True)",
        )
    if before.length >= ENDLESS:
        raise DelianError("a cache of endless rows", "put cache() before repeat()")


def memory_arrays(source: StoredRows) -> tuple[Array, Array] | None:
    """x and y where all rows are in memory, in C's order; None: elsewhere."""
    if isinstance(source, ArrayRows):
        x, y = source.all.x, source.all.y
        if x.flags.c_contiguous and x.dtype.isnative:
            return x, y
    return None
