"""Rows that were made once and stay in memory."""

from __future__ import annotations

import threading

import numpy as np

from .row_columns import Columns, Key, Numbers, selected
from .row_nodes import Located, OfSource, RowNode, SameLength, check_fixed


class MemoryCached(OfSource, SameLength):
    """Rows that were made once stay in memory, as many as fit; the first rows, not the last used.

    Raises DelianError where what is cached is not the same in every epoch.
    """

    before: RowNode
    fixed = True

    def __init__(self, before: RowNode, bytes_max: int) -> None:
        check_fixed(before)
        self.before, self._bytes_max = before, bytes_max
        self._columns: Columns | None = None
        self._has = np.zeros(0, bool)
        self._lock = threading.Lock()

    def described(self) -> str:
        """As before: a cache changes nothing."""
        return self.before.described()

    def rows(self, numbers: Numbers, epoch: int, key: Key) -> Columns:
        """These rows, made now where they are not here."""
        columns, has = self._columns, self._has
        # Looked at once: another thread may add rows between two looks.
        within = numbers < len(has)
        known = np.zeros(len(numbers), bool)
        known[within] = has[numbers[within]]
        if columns is not None and known.all():
            return selected(columns, numbers)
        made = self.before.rows(numbers[~known], 0, ())
        columns, room = self._room_for(made)
        out = tuple(np.empty((len(numbers), *c.shape[1:]), c.dtype) for c in made)
        for target, new, old in zip(out, made, columns, strict=True):
            target[~known] = new
            target[known] = old[numbers[known]]
        self._keep(numbers[~known], made, columns, room)
        return out

    def located(self, numbers: Numbers, epoch: int, key: Key) -> Located | None:
        """Where all of them are kept."""
        columns, has = self._columns, self._has
        if columns is None or int(numbers.max()) >= len(has) or not has[numbers].all():
            return None
        return Located(columns, numbers)

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
