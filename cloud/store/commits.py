"""Counts the transactions of a SQLite database, in the database and in a mark next to it.

SQLite recovers from a crash by reading its log (FILE-wal) up to the first frame that is not whole.
It takes damage anywhere in the log for the end of it, so it would go on from an older state and say
nothing. The count is part of each transaction (PRAGMA user_version: it needs no table), and the
mark (`core.common.log_mark`) has that of the last one that was acknowledged. A database whose count
is behind its mark has lost transactions. It is looked at before anything writes: SQLite may not
even recover it, for that would remove what is left of its log.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from pathlib import Path
from typing import Any

from ...core.common.log_mark import MarkFile

log = logging.getLogger("delian.cloud.store")

#: What `user_version` holds. The count begins again behind it; half of it separates before from
#: after.
_COUNTS = 2**31
SUFFIX = ".mark"


class CommitCount:
    """Of one database file. One transaction at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.mark = MarkFile(path.with_name(path.name + SUFFIX))
        self._count = 0

    def lost(self) -> int:
        """How many acknowledged transactions the database lacks, at least.

        Blocks. Changes nothing that belongs to the database. Raises OSError, and sqlite3.Error also
        where tables and indices do not fit: rows would be missing.
        """
        known = self.mark.read()
        if known is None and self.mark.path.exists():
            log.warning("%s is damaged; it is made again", self.mark.path)
        self._count = self._found() if self.path.exists() else 0
        if known is None:
            return 0
        behind = (known - self._count) % _COUNTS
        return behind if behind < _COUNTS // 2 else 0

    def stamp(self, connection: Any) -> None:
        """Counts the transaction that goes on."""
        connection.execute(f"PRAGMA user_version = {(self._count + 1) % _COUNTS}")

    def acknowledge(self) -> None:
        """The transaction is durable. Raises OSError."""
        self._count = (self._count + 1) % _COUNTS
        self.mark.write(self._count)

    def close(self) -> None:
        """May be called twice."""
        self.mark.close()

    def _found(self) -> int:
        # Read-only: it neither moves the log's pages into the file nor removes the log.
        where = f"{self.path.resolve().as_uri()}?mode=ro"
        with contextlib.closing(sqlite3.connect(where, uri=True)) as connection:
            count = int(connection.execute("PRAGMA user_version").fetchone()[0])
            (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        return count
