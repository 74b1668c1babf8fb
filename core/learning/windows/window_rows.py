"""Windows of stored rows, as the programs of a bundle take them.

A window has the form of a SampleSet: `x`, `y` [capacity, ...], `support`, `query`. One to train on
has support rows alone, one to judge by has query rows alone. Which rows judge is decided by each
row's content, as in `data.fit`, or by the data's own split. So a row has the same side in every
pass, whatever other rows there are, and nothing about rows is kept in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from ..bundle import Leaf
from ..data.fit import SAMPLES, MisfitError, dtype_of, judges_by_content, row_hashes, shaped_rows
from ..data.rows import Rows, check_size
from ..data.stored_order import Windows
from ..data.stored_rows import StoredRows

#: What is read at once, and copied into a window: small compared with one.
PIECE_BYTES = 4 << 20
#: Windows in memory at once: one is trained on while the next is read.
WINDOWS_HELD = 2

Array = NDArray[Any]


class UnreadableError(DelianError):
    """Stored rows cannot be read, do not fit, or have changed."""


@dataclass(frozen=True, slots=True)
class Window:
    """A window that was read."""

    arrays: list[Array]
    """As the programs take it: x, y, support, query. The next window but one is read into them."""
    rows: int
    """How many of its rows count."""


class WindowRows:
    """Stored rows for a bundle with windows.

    Args:
        source: the rows.
        wanted: the leaves of the manifest's data; their capacity is a window's.
        classes: how many labels the model has, where it learns labels.
        query_fraction: the share of the rows that judge.
        bytes_max: what `WINDOWS_HELD` windows may take in memory.

    Raises DelianError where they would take more; MisfitError where the bundle takes no rows.
    """

    def __init__(
        self,
        source: StoredRows,
        wanted: Sequence[Leaf],
        *,
        classes: int | None,
        query_fraction: float,
        bytes_max: int,
    ) -> None:
        if tuple(leaf.name.rpartition(".")[2] for leaf in wanted) != SAMPLES:
            raise MisfitError("the bundle takes episodes, and not rows", "give a file of drawings")
        self.source, self._wanted = source, tuple(wanted)
        self._classes, self._fraction = classes, query_fraction
        self._version = source.version()
        x, y = wanted[:2]
        sizes = [leaf.size * dtype_of(leaf).itemsize for leaf in (x, y)]
        check_size(f"{WINDOWS_HELD} windows of rows", WINDOWS_HELD * sum(sizes), bytes_max)
        self.capacity = x.shape[0]
        row_bytes = math.prod(x.shape[1:]) * dtype_of(x).itemsize
        self.windows = Windows.of(source.rows, self.capacity, row_bytes)
        self._piece = max(1, PIECE_BYTES // max(1, row_bytes))

    def version(self) -> int | None:
        """That of the data when it was opened; None: unknown."""
        return self._version

    def has_changed(self) -> bool:
        """Whether it is known that the data is no longer what was opened."""
        return self.source.version() != self._version

    def buffers(self) -> list[Array]:
        """Room for one window."""
        x, y = self._wanted[:2]
        counts = [np.zeros((), np.int64) for _ in range(2)]
        return [np.zeros(leaf.shape, dtype_of(leaf)) for leaf in (x, y)] + counts

    def training(self, key: Array, epoch: int, window: int, into: list[Array]) -> Window:
        """The rows of a window that are trained on, read into `into`.

        key: the device's in this round, u32[2]. Raises UnreadableError.
        """
        filled = 0
        for start, stop in self.windows.ranges(key, epoch, window):
            for rows, judges in self._pieces(start, stop):
                filled = self._put(rows, ~judges, filled, into)
        return self._finished(filled, into, judging=False)

    def judging(self, into: Sequence[list[Array]]) -> Iterator[Window]:
        """All rows that judge, in their own order: windows that are full but for the last.

        They are read into the buffers of `into` by turns. Raises as `training`.
        """
        filled, turn = 0, 0
        for rows, judges in self._pieces(0, self.source.rows):
            places = np.flatnonzero(judges)
            while len(places) > (room := self.capacity - filled):
                taken = np.zeros(len(judges), bool)
                taken[places[:room]] = True
                places = places[room:]
                here = into[turn % len(into)]
                yield self._finished(self._put(rows, taken, filled, here), here, judging=True)
                filled, turn = 0, turn + 1
            taken = np.zeros(len(judges), bool)
            taken[places] = True
            filled = self._put(rows, taken, filled, into[turn % len(into)])
        if filled:
            yield self._finished(filled, into[turn % len(into)], judging=True)

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[Rows, NDArray[np.bool_]]]:
        """Rows of a range as the bundle takes them, a piece at a time, and which of them judge."""
        for first in range(start, stop, self._piece):
            last = min(first + self._piece, stop)
            try:
                given = self.source.read(first, last)
                if len(given.x) != last - first:
                    raise DelianError(f"{len(given.x)} rows came", "a range has all of its rows")
                x, y = shaped_rows(given, self._wanted, self._classes)
            except DelianError as error:
                where = f"rows {first}..{last - 1}: {error.message}"
                raise UnreadableError(where, error.hint) from error
            except Exception as error:  # of the owner's own code, whatever it is
                if isinstance(error, MemoryError):
                    raise
                what = f"rows {first}..{last - 1}: {type(error).__name__}: {error}"
                raise UnreadableError(what, "try the data source with plain Python") from error
            if given.query is not None:
                judges = given.query.astype(bool)
            else:
                judges = judges_by_content(row_hashes(x, y), self._fraction)
            yield Rows(x, y), judges

    def _put(self, rows: Rows, taken: NDArray[np.bool_], filled: int, into: list[Array]) -> int:
        """The rows that are taken, behind those that fill the window already."""
        count = int(np.count_nonzero(taken))
        whole = count == len(taken)
        for array, given in zip(into, (rows.x, rows.y), strict=False):
            array[filled : filled + count] = given if whole else given[taken]
        return filled + count

    def _finished(self, filled: int, into: list[Array], judging: bool) -> Window:
        """The window with its counts, and zeros where it has no rows, whatever was there before."""
        x, y, support, query = into
        was = int(support) + int(query)
        if was > filled:
            x[filled:was] = 0
            y[filled:was] = 0
        support[...], query[...] = (0, filled) if judging else (filled, 0)
        return Window(into, filled)
