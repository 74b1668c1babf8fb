"""A chain of steps from stored rows to batches: `dl.data.Pipeline`.

    steps = (
        dl.data.Pipeline("photos/", shape=(224, 224, 3))
        .shuffle()
        .batch(32)
        .map(normalise, on="x")
        .prefetch(4, threads=2)
    )
    for x, y in steps.run(device, round_number, epoch=0):
        ...

Every step gives any of its items by number, in any epoch: nothing has to be read to get to a
place. So the order is a pure function of the integers that `run` is called with and of the epoch,
threads cannot change it, and a place is a few integers (`Reading.state`), from which `resume` goes
on to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ....common.errors import DelianError
from ..formats.opened_rows import open_rows
from ..stored_rows import StoredRows
from .batch_nodes import Batched, BatchMapped, BatchNode, BatchPart, BatchRepeated
from .file_cached import FileCached, NodeRows
from .memory_cached import MemoryCached
from .row_columns import Applied, Columns, Key, column_of
from .row_nodes import ENDLESS, FromSource, Repeated, RowMapped, RowNode, RowPart
from .row_shuffles import Shuffled, WindowShuffled
from .step_chain import Ahead, Chain, Reading, resumed

#: Rows of a block where windows are shuffled, and what a cache in memory may take.
BLOCK_ROWS = 64
CACHE_BYTES = 1 << 30
#: Items that are made ahead, and threads or processes that make them.
AHEAD_MAX = 1 << 12
WORKERS_MAX = 256
_INTEGERS_MAX = 16


class Pipeline:
    """Rows of a source and the steps that they go through. Each method gives another pipeline.

    Before `batch` an item is a row, a tuple of its values, (x, y); from there on it is a tuple of
    arrays [rows, ...].
    """

    def __init__(self, source: Any, **choices: Any) -> None:
        """`source` and `choices` as `dl.data.open_rows` takes them."""
        given = isinstance(source, Chain)
        self._chain = source if given else Chain(FromSource(open_rows(source, **choices)), None, 0)

    # ------------------------------------------------ steps

    def map(
        self,
        function: Callable[..., Any],
        on: str | int | None = None,
        random: bool = False,
    ) -> Pipeline:
        """Calls a function with the values of each row, or after `batch` with the arrays of each.

        Args:
            function: takes x and y and gives as many values as it likes, a tuple of them. After
                `batch`, one that `dl.compile` made runs without Python's lock, and together with
                the gather where it is the first step after `batch`, on x, and rows are in memory.
            on: the one column that it takes and gives: "x", "y", or a place.
            random: whether it also takes a numpy.random.Generator of its own for each row, as its
                last argument. Only before `batch`.
        """
        applied = Applied(function, column_of(on), random)
        if (batches := self._chain.batches) is not None:
            return self._batches(BatchMapped(batches, applied))
        return self._rows(RowMapped(self._before("map"), self._chain.steps, applied))

    def shuffle(self, window: int | None = None, block: int = BLOCK_ROWS) -> Pipeline:
        """A random order of the rows, another one in each epoch.

        Args:
            window: rows that are read at once and shuffled in memory, where two such windows are
                kept; None: all rows are shuffled, and each is read on its own, which a disk is
                slow at.
            block: rows next to each other that stay in one window.

        Raises:
            DelianError: a window that holds no block, or more rows than are shuffled as a whole.
        """
        rows, step = self._before("shuffle"), self._chain.steps
        if window is None or window >= rows.length:
            return self._rows(Shuffled(rows, step))
        return self._rows(WindowShuffled(rows, step, window, block))

    def batch(self, size: int, partial: bool = True) -> Pipeline:
        """`size` rows together. partial: the last ones too, where they are fewer."""
        _check("batch", size, 1, 1 << 32)
        made = Batched(self._before("batch"), size, partial)
        if made.length < 1:
            raise DelianError(f"there are fewer than {size} rows", "batch(size, partial=True)")
        return self._batches(made)

    def repeat(self, times: int | None = None) -> Pipeline:
        """All items `times` times, each in another epoch; None: endlessly."""
        if times is not None:
            _check("repeat", times, 1, ENDLESS)
        times = ENDLESS if times is None else times
        if (batches := self._chain.batches) is not None:
            return self._batches(BatchRepeated(batches, times))
        return self._rows(Repeated(self._before("repeat"), times))

    def take(self, count: int) -> Pipeline:
        """The first `count` items; all where there are fewer."""
        _check("take", count, 1, ENDLESS)
        count = min(count, self._chain.node.length)
        if (batches := self._chain.batches) is not None:
            return self._batches(BatchPart(batches, count))
        return self._rows(RowPart(self._before("take"), 0, count))

    def shard(self, index: int, shards: int) -> Pipeline:
        """Part `index` of `shards` parts of consecutive rows, of nearly the same size.

        Raises DelianError where the part is empty.
        """
        rows = self._before("shard")
        _check("shard", shards, 1, 1 << 32)
        _check("shard", index, 0, shards - 1)
        start, stop = (rows.length * k // shards for k in (index, index + 1))
        if start == stop:
            raise DelianError(f"shard {index} of {shards} of {rows.length} rows is empty", "fewer")
        return self._rows(RowPart(rows, start, stop - start))

    def cache(self, bytes_max: int = CACHE_BYTES, file: str | Path | None = None) -> Pipeline:
        """Makes each row once: what follows a slow source or function.

        Args:
            bytes_max: memory that rows may take; those that do not fit are made each time.
            file: a packed file (`NAME.npz`) in place of memory. It is written when a row is first
                asked for, and used again where the data and the names of the steps are the same.

        Raises:
            DelianError: rows differ between epochs, because of a shuffle or a random function.
        """
        rows = self._before("cache")
        if file is not None:
            return self._rows(FileCached(rows, Path(file)))
        _check("cache", bytes_max, 1, 1 << 50)
        return self._rows(MemoryCached(rows, bytes_max))

    def prefetch(self, items: int = 2, threads: int = 1, processes: int = 0) -> Pipeline:
        """Makes `items` items ahead of their use; the last step.

        Args:
            items: how many.
            threads: that make them. Decoders of images, reads and compiled functions run without
                Python's lock.
            processes: in place of threads, for slow functions in Python. They are forks: not on
                Windows.
        """
        _check("prefetch", items, 1, AHEAD_MAX)
        _check("prefetch", threads, 1, WORKERS_MAX)
        _check("prefetch", processes, 0, WORKERS_MAX)
        if self._chain.ahead is not None:
            raise DelianError("a second prefetch", "one prefetch(), as the last step")
        return Pipeline(replace(self._chain, ahead=Ahead(items, threads, processes)))

    # ------------------------------------------------ use

    def __len__(self) -> int:
        """How many items an epoch has."""
        if self._chain.node.length >= ENDLESS:
            raise DelianError("an endless pipeline has no length", "repeat(times), or take(count)")
        return self._chain.node.length

    def __iter__(self) -> Iterator[Columns]:
        """Epoch 0 of the order without a key."""
        return self.run()

    def __getitem__(self, number: int) -> Columns:
        """Item `number` of epoch 0 without a key."""
        if not 0 <= number < self._chain.node.length:
            raise IndexError(f"item {number} of {self._chain.node.length}")
        return self._chain.item(number, 0, ())

    def run(self, *key: int, epoch: int = 0) -> Reading:
        """Reads all items in order.

        Args:
            key: what the order depends on, such as the seed of the device and the round.
            epoch: the pass over the data.
        """
        return Reading(self._chain, _checked_key(key), epoch, 0)

    def resume(self, state: tuple[int, ...] | list[int]) -> Reading:
        """Goes on where `Reading.state` was taken.

        Raises:
            DelianError: the data or the steps are others than they were.
        """
        return resumed(self._chain, state)

    def stored(self) -> StoredRows:
        """The rows as a data source: what a `python:` function of a device may give.

        Raises DelianError after `batch`, and where rows differ between epochs.
        """
        return NodeRows(self._before("stored"))

    # ------------------------------------------------ inside

    def _rows(self, node: RowNode) -> Pipeline:
        return Pipeline(self._open().with_rows(node))

    def _batches(self, node: BatchNode) -> Pipeline:
        return Pipeline(self._open().with_batches(node))

    def _open(self) -> Chain:
        if self._chain.ahead is not None:
            raise DelianError("a step after prefetch", "prefetch() comes last")
        return self._chain

    def _before(self, step: str) -> RowNode:
        """The step before one that takes rows."""
        if self._chain.rows is None:
            raise DelianError(f"{step} after batch", f"{step}() takes rows: put it before batch()")
        return self._chain.rows


def _check(step: str, number: int, least: int, most: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= most:
        raise DelianError(f"{step} of {number}", f"a whole number from {least} to {most}")


def _checked_key(key: Key) -> Key:
    if len(key) > _INTEGERS_MAX:
        raise DelianError(f"a key of {len(key)} integers", f"at most {_INTEGERS_MAX}")
    return tuple(int(k) for k in key)
