"""Pieces of Arrow tables by rows: groups of a Parquet file, batches of an Arrow file.

A piece is what such a file can give at once. The pieces that were read last stay in memory, within
a limit, so that ranges that follow each other read each piece once.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from ....common.errors import DelianError
from ..rows import Rows, RowType
from ..stored_rows import ROWS_MAX
from .array_rows import check_range
from .arrow_columns import ArrowRows, arrow_errors, sliced

#: What pieces may take while they wait to be read again, and the largest that is read.
KEPT_BYTES_MAX = 256 << 20
PIECE_BYTES_MAX = 1 << 30


def too_large(where: str, group: int, size: int) -> DelianError:
    """What to raise for a group that takes more than `PIECE_BYTES_MAX`."""
    return DelianError(
        f"{where}: group {group} takes {size} bytes in memory; at most {PIECE_BYTES_MAX}",
        "write it with smaller groups (row_group_size)",
    )


class TablePieces:
    """Rows of a table that comes in pieces.

    Args:
        where: the file, for errors.
        rows: of each piece.
        sizes: bytes of each piece in memory, as its file declares them.
        load: gives a piece by its number.
        made: turns tables into rows.
        version: of the data.

    Raises:
        DelianError: a piece declares too much.
    """

    def __init__(
        self,
        where: str,
        rows: list[int],
        sizes: list[int],
        load: Callable[[int], Any],
        made: ArrowRows,
        version: Callable[[], int | None],
    ) -> None:
        self._where, self._load, self._made, self.version = where, load, made, version
        if sizes and max(sizes) > PIECE_BYTES_MAX:
            raise too_large(where, int(np.argmax(sizes)), max(sizes))
        if sum(rows) > ROWS_MAX:
            raise DelianError(f"{where} declares {sum(rows)} rows; at most {ROWS_MAX}", "cut it")
        self._ends = np.cumsum(np.array(rows, np.int64))
        self._counts = rows
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._lock = threading.Lock()
        self.read(0, 1)  # what is wrong with the columns is found here

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return int(self._ends[-1])

    def row_type(self) -> RowType:
        """Of a row of x."""
        assert self._made.kind is not None
        return self._made.kind

    def sized(self, kind: RowType) -> TablePieces:
        """Images as rows of a bundle's type; numbers stay what they are."""
        self._made.sized(kind)
        return self

    def read(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1."""
        check_range(self._where, start, stop, self.rows)
        tables, at = [], start
        with arrow_errors(f"{self._where}, rows {start}..{stop - 1}"):
            while at < stop:
                k = int(np.searchsorted(self._ends, at, "right"))
                begin = int(self._ends[k]) - self._counts[k]
                end = min(stop, int(self._ends[k]))
                tables.append(self._piece(k).slice(at - begin, end - at))
                at = end
            return self._made.rows(sliced(tables), start)

    def _piece(self, k: int) -> Any:
        with self._lock:
            if k in self._kept:
                self._kept.move_to_end(k)
                return self._kept[k]
            found = self._load(k)
            if found.num_rows != self._counts[k]:
                raise DelianError(
                    f"{self._where}: group {k} has {found.num_rows} rows, and the file declares"
                    f" {self._counts[k]}",
                    "it is damaged: write it again",
                )
            self._kept[k] = found
            while len(self._kept) > 1 and self._kept_bytes() > KEPT_BYTES_MAX:
                self._kept.popitem(last=False)
            return found

    def _kept_bytes(self) -> int:
        return sum(int(table.nbytes) for table in self._kept.values())
