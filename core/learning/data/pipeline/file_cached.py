"""Rows that were made once, in a packed file next to the data, for later epochs and processes."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np

from ....common.errors import DelianError
from ..formats.array_rows import gather, type_of
from ..packed.packed_rows import PackedRows, is_packed
from ..packed.packed_writer import pack
from ..rows import Rows, RowType, number_of
from ..stored_rows import StoredRows
from .row_columns import Columns, Numbers
from .row_nodes import Located, OfSource, RowNode, SameLength, check_fixed


class NodeRows:
    """The rows of a fixed step as stored rows: x and y of each.

    Raises DelianError where rows are no pairs, or differ between epochs.
    """

    def __init__(self, node: RowNode) -> None:
        check_fixed(node)
        self._node = node
        self.classes = tuple(getattr(node.source, "classes", ()))
        self._type: RowType | None = None

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._node.length

    def version(self) -> int | None:
        """Of the source and the steps."""
        return version_of(self._node)

    def row_type(self) -> RowType:
        """Of the first row."""
        if self._type is None:
            first = self.read(0, 1)
            self._type = type_of(first.x, first.y)
        return self._type

    def read(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1."""
        return self.gather(np.arange(start, stop))

    def gather(self, numbers: Numbers) -> Rows:
        """The rows with these numbers."""
        columns = self._node.rows(numbers, 0, ())
        if len(columns) != 2:
            raise DelianError(f"rows of {len(columns)} values", "a row to train on is x and y")
        return Rows(*columns)


def version_of(node: RowNode) -> int | None:
    """Changes with the source's data and the names and sizes of the steps; None: unknown."""
    version = node.source.version()
    return None if version is None else number_of(f"{version} {node.described()}")


class FileCached(OfSource, SameLength):
    """The rows of a step in a packed file, which is written when a row is first asked for.

    A file that was made of other data, or by other steps, is written again. The code of functions
    is not compared: delete the file when a function changes and keeps its name.
    """

    before: RowNode
    fixed = True

    def __init__(self, before: RowNode, path: Path) -> None:
        self._rows, self.before, self._path = NodeRows(before), before, path
        self._packed: StoredRows | None = None
        self._lock = threading.Lock()

    def described(self) -> str:
        """As before: a cache changes nothing."""
        return self.before.described()

    def rows(self, numbers: Numbers, epoch: int, key: tuple[int, ...]) -> Columns:
        """These rows of the file."""
        found = gather(self._opened(), numbers)
        return found.x, found.y

    def located(self, numbers: Numbers, epoch: int, key: tuple[int, ...]) -> Located | None:
        """They are in a file."""
        return None

    def _opened(self) -> StoredRows:
        with self._lock:
            if self._packed is None:
                mark = version_of(self.before)
                if mark is None or not self._is_of(mark):
                    pack(self._rows, self._path, mark=mark or 0)
                self._packed = PackedRows(self._path)
            return self._packed

    def _is_of(self, mark: int) -> bool:
        if not is_packed(self._path):
            return False
        try:
            return PackedRows(self._path).about.mark == mark
        except DelianError:
            return False
