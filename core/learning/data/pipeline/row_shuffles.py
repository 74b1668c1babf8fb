"""Random orders of rows: of all rows, or of blocks and of the rows in windows of them."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from ....common.errors import DelianError
from ..stored_order import Windows
from .row_columns import Columns, Key, Numbers, joined, selected
from .row_nodes import Located, OfSource, RowNode, SameLength
from .row_order import key_words, shuffled

#: Orders and windows that are kept: threads that read ahead use two at one time.
_KEPT = 2
#: An order of so many blocks, or fewer, is drawn as a whole.
_BLOCKS_AT_ONCE = 1 << 16
#: What is read at one time, of a window: all of it, and its rows, would take twice its memory.
_PARTS_OF_A_WINDOW = 8


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
class Shuffled(OfSource, SameLength):
    """All rows in a random order, another one in each epoch."""

    before: RowNode
    step: int
    """The place of this step, so that two shuffles differ."""
    fixed: bool = False
    _orders: Kept = field(default_factory=Kept, compare=False)

    def described(self) -> str:
        """That it is a shuffle of all."""
        return f"{self.before.described()}, shuffled"

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows of the order."""
        return self.before.rows(self._order(epoch, key)[numbers], epoch, key)

    def located(self, numbers: Numbers, epoch: int, key: Key) -> Located | None:
        """By the order."""
        return self.before.located(self._order(epoch, key)[numbers], epoch, key)

    def _order(self, epoch: int, key: Key) -> Numbers:
        found = self._orders.get(
            (epoch, key), lambda: shuffled(self.length, self.step, epoch, *key)
        )
        assert isinstance(found, np.ndarray)
        return found


class WindowShuffled(OfSource, SameLength):
    """A shuffle that reads a disk forwards: blocks in a random order, rows within windows of them.

    Blocks of `block` consecutive rows come in a random order; `window` rows of that order are read
    at once and shuffled. The rows after the last whole block are in the last window.

    Raises DelianError for a window that holds no block.
    """

    before: RowNode
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
        self._most = int(np.diff(np.append(self._starts, before.length)).max())
        self._kept, self._orders = Kept(), Kept()

    def described(self) -> str:
        """The sizes."""
        return f"{self.before.described()}, shuffled by {self._block} in {self._window}"

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows of the order; whole windows are read, and kept for the rows around them."""
        windows = np.searchsorted(self._starts, numbers, "right") - 1
        first = int(windows[0])
        if (windows == first).all():
            return self._of_window(first, numbers, epoch, key)
        order = np.argsort(windows, kind="stable")
        parts = []
        for places in np.split(order, np.flatnonzero(np.diff(windows[order])) + 1):
            parts.append(self._of_window(int(windows[places[0]]), numbers[places], epoch, key))
        return selected(joined(parts), np.argsort(order, kind="stable"))

    def located(self, numbers: Numbers, epoch: int, key: Key) -> Located | None:
        """In a window, where they are all in the same one; it is read for this."""
        first, last = np.searchsorted(self._starts, [numbers.min(), numbers.max()], "right") - 1
        return self._place(int(first), numbers, epoch, key) if first == last else None

    def _of_window(self, window: int, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """Rows that are all in one window."""
        found = self._place(window, numbers, epoch, key)
        return selected(found.columns, found.numbers)

    def _place(self, window: int, numbers: Numbers, epoch: int, key: Key) -> Located:
        found = self._kept.get((window, epoch, key), lambda: self._read(window, epoch, key))
        assert isinstance(found, Located)
        return Located(found.columns, found.numbers[numbers - self._starts[window]])

    def _ranges(self, window: int, epoch: int, key: Key) -> list[tuple[int, int]]:
        """The rows of a window, ascending."""
        ranges: list[tuple[int, int]] = []
        order = self._order
        if order is not None and order.blocks > _BLOCKS_AT_ONCE:
            ranges = order.ranges(key_words(self._step, *key), epoch, window)
        elif order is not None:
            words = key_words(self._step, *key)
            found = self._orders.get((epoch, key), lambda: order.all_ranges(words, epoch))
            assert isinstance(found, list)
            ranges = found[window]
        tail = self.length // self._block * self._block
        if window == len(self._starts) - 1 and tail < self.length:
            ranges = [*ranges, (tail, self.length)]
        return ranges

    def _read(self, window: int, epoch: int, key: Key) -> Located:
        """The rows of a window as they are in the data, and their order."""
        numbers = np.concatenate([np.arange(a, b) for a, b in self._ranges(window, epoch, key)])
        count = len(numbers)
        columns: Columns = ()
        at = 0
        for part in np.array_split(numbers, min(_PARTS_OF_A_WINDOW, count)):
            found = self.before.rows(part, epoch, key)
            if not columns:
                # All windows have arrays of one size: a compiled program is one for all of them.
                columns = tuple(np.empty((self._most, *c.shape[1:]), c.dtype) for c in found)
            for whole, given in zip(columns, found, strict=True):
                if given.shape[1:] != whole.shape[1:] or given.dtype != whole.dtype:
                    raise DelianError(
                        f"rows from {part[0]} are {given.dtype}{list(given.shape[1:])}, and"
                        f" others {whole.dtype}{list(whole.shape[1:])}",
                        "all rows have one type",
                    )
                whole[at : at + len(part)] = given
            at += len(part)
        return Located(columns, shuffled(count, self._step, epoch, window, *key))
