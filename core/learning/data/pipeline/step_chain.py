"""The steps of a pipeline so far, and the passes over their items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ....common.errors import DelianError
from ..rows import number_of
from ..stored_rows import StoredRows
from .batch_nodes import BatchNode
from .read_ahead import Items, MadeByThreads, MadeNow
from .row_columns import Columns, Key
from .row_nodes import RowNode


@dataclass(frozen=True, slots=True)
class Ahead:
    """What makes items ahead of their use."""

    items: int
    threads: int
    processes: int


@dataclass(frozen=True, slots=True)
class Chain:
    """The last step, which has those before it."""

    rows: RowNode | None
    """None: from `batch` on."""
    batches: BatchNode | None
    steps: int
    """How many there are: the number of the next one."""
    ahead: Ahead | None = None

    @property
    def node(self) -> RowNode | BatchNode:
        """The last step."""
        found = self.batches if self.rows is None else self.rows
        assert found is not None
        return found

    @property
    def source(self) -> StoredRows:
        """Where the rows come from."""
        return self.node.source

    def with_rows(self, node: RowNode) -> Chain:
        """With one more step that gives rows."""
        return Chain(node, None, self.steps + 1)

    def with_batches(self, node: BatchNode) -> Chain:
        """With one more step that gives batches."""
        return Chain(None, node, self.steps + 1)

    def mark(self) -> int:
        """A number below 2^63 for the data and the steps."""
        return number_of(f"{self.source.version()} {self.node.described()}")

    def item(self, number: int, epoch: int, key: Key) -> Columns:
        """An item by its number."""
        if self.batches is not None:
            return self.batches.batch(number, epoch, key)
        assert self.rows is not None
        return tuple(column[0] for column in self.rows.rows(np.array([number]), epoch, key))

    def items(self, epoch: int, key: Key) -> Items:
        """What makes the items of an epoch."""

        def make(number: int) -> Columns:
            return self.item(number, epoch, key)

        if self.ahead is None:
            return MadeNow(make)
        if self.ahead.processes:
            from .forked_items import MadeByProcesses

            return MadeByProcesses(make, self.ahead.items, self.ahead.processes)
        return MadeByThreads(make, self.ahead.items, self.ahead.threads)


class Reading:
    """One pass over a pipeline's items. An iterator; close it, or read it to its end."""

    def __init__(self, chain: Chain, key: Key, epoch: int, place: int) -> None:
        self._chain, self._key, self._epoch, self._place = chain, key, epoch, place
        self._end = chain.node.length
        self._items: Items | None = None

    def __iter__(self) -> Reading:
        return self

    def __next__(self) -> Columns:
        if self._place >= self._end:
            self.close()
            raise StopIteration
        if self._items is None:
            self._items = self._chain.items(self._epoch, self._key)
        try:
            found = self._items.take(self._place, self._end)
        except BaseException:
            self.close()
            raise
        self._place += 1
        return found

    def state(self) -> tuple[int, ...]:
        """The place: what `Pipeline.resume` takes, for the item that comes next."""
        return (self._chain.mark(), self._epoch, self._place, *self._key)

    def close(self) -> None:
        """Ends threads and processes that make items ahead."""
        if self._items is not None:
            self._items.close()
            self._items = None

    def __enter__(self) -> Reading:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def resumed(chain: Chain, state: tuple[int, ...] | list[int]) -> Reading:
    """A reading that goes on at a place; see `Pipeline.resume`."""
    if len(state) < 3 or any(isinstance(n, bool) or int(n) != n for n in state):
        raise DelianError(f"{len(state)} integers are no place", "give what Reading.state gave")
    mark, epoch, place, *key = map(int, state)
    if mark != chain.mark() or not 0 <= place <= chain.node.length:
        raise DelianError(
            "the data or the steps of the pipeline have changed since this place was taken",
            "start the epoch again",
        )
    return Reading(chain, tuple(key), epoch, place)
