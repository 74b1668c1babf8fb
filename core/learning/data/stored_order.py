"""The order in which stored rows are read: a pure function of integers.

    blocks       `block` consecutive rows each; the last one may be shorter
    an epoch     a random order of all blocks, cut into windows of nearly the same number of blocks
    a window     its blocks by their place in the data, so that a disk reads forwards; what trains
                 on it shuffles its rows (`inner`)

So a place in an epoch is the number of a window, and window k is found without those before it:
each entry of the order of blocks is made on its own (`random.permuted`). Every row is in one window
of an epoch. Data that fits one window is that window, in its own order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from ...compiler import random
from .stored_rows import ROWS_MAX

#: Bytes of a block: long enough that a disk spends its time on reading, and no longer, since the
#: rows of a block stay together.
BLOCK_BYTES = 1 << 18
#: The fewest blocks of a window; with few, rows of one place of the data make up a whole window.
BLOCKS_LEAST = 16
#: Streams of a device's key apart from all others: "stor" and "inne" in ASCII.
_BLOCKS, _INNER = 0x73746F72, 0x696E6E65
#: `random.permuted` orders fewer than this many.
_BLOCKS_MAX = 2**31

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a data set's epochs.

    Raises DelianError for numbers that are not positive, or more blocks than can be shuffled.
    """

    rows: int
    """Rows of the data set."""
    capacity: int
    """The most rows of a window."""
    block: int
    """Rows of a block; at most `capacity`."""

    def __post_init__(self) -> None:
        if not 0 < self.block <= self.capacity or not 0 < self.rows <= ROWS_MAX:
            raise DelianError(
                f"{self.rows} rows in windows of {self.capacity}, by blocks of {self.block}",
                "a window holds at least one block",
            )
        if self.blocks >= _BLOCKS_MAX:
            raise DelianError(
                f"{self.rows} rows make {self.blocks} blocks of {self.block}",
                f"there may be {_BLOCKS_MAX - 1}; make the windows larger",
            )

    @classmethod
    def of(cls, rows: int, capacity: int, row_bytes: int) -> Windows:
        """Windows with blocks of about `BLOCK_BYTES`; row_bytes: of a row of x."""
        most = max(1, capacity // BLOCKS_LEAST)
        return cls(rows, capacity, min(max(1, BLOCK_BYTES // max(1, row_bytes)), most))

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.rows // self.block)

    @property
    def count(self) -> int:
        """How many windows an epoch has."""
        return 1 if self.rows <= self.capacity else -(-self.blocks // (self.capacity // self.block))

    def ranges(self, key: Array, epoch: int, window: int) -> list[tuple[int, int]]:
        """The rows of a window: ranges [start, stop), ascending, and apart from one another.

        key: the device's in this round, u32[2].
        """
        if not 0 <= window < self.count:
            raise DelianError(f"window {window} of {self.count}")
        if self.count == 1:
            return [(0, self.rows)]
        first, last = self._blocks_of(window)
        return self._joined(self._drawn(key, epoch, first, last))

    def all_ranges(self, key: Array, epoch: int) -> list[list[tuple[int, int]]]:
        """`ranges` of every window: drawn at once, which costs hardly more than those of one."""
        if self.count == 1:
            return [[(0, self.rows)]]
        drawn = self._drawn(key, epoch, 0, self.blocks)
        return [self._joined(drawn[slice(*self._blocks_of(k))]) for k in range(self.count)]

    def _blocks_of(self, window: int) -> tuple[int, int]:
        first, last = (self.blocks * k // self.count for k in (window, window + 1))
        return first, last

    def _drawn(self, key: Array, epoch: int, first: int, last: int) -> Array:
        """The blocks at these places of an epoch's order."""
        drawn = random.fold_in(random.fold_in(key, _BLOCKS), epoch)
        return random.permuted(drawn, np.int64(self.blocks), np.arange(first, last))

    def _joined(self, blocks: Array) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for block in np.sort(blocks).tolist():
            start = block * self.block
            stop = min(start + self.block, self.rows)
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], stop)
            else:
                found.append((start, stop))
        return found

    def inner(self, key: Array, epoch: int, window: int, count: int) -> NDArray[np.int64]:
        """A random order of the `count` rows of a window, for what does not shuffle by itself."""
        drawn = random.fold_in(random.fold_in(key, _INNER), epoch)
        return random.permutation(random.fold_in(drawn, window), np.int64(count), count)
