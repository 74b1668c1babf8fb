"""Messages of an edge for the cloud while the cloud cannot be reached: stored, and sent later.

A row is a message's bytes with a priority, a time after which it expires, and perhaps a key: a
message of the same key replaces it, for states (an EdgeHello) are only of interest when new. What
goes beyond the cap costs the least important rows, of these the oldest; so what matters most is
lost last. Rows leave in the order of importance, then of age, and are forgotten only when the
transport has taken them: delivery is at least once.

SQLite in WAL mode with synchronous=FULL: what `put` has returned for survives a power cut. A file
that is damaged is set aside and a new one begun; an outbox is a help, and the protocol repeats what
it must. All methods block; what several threads call goes one after the other, because a task that
waits for a thread (`asyncio.to_thread`) may be cancelled while it goes on.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from ...core.common.errors import DelianError

log = logging.getLogger("delian.edge.service.outbox")

#: One message. A larger one is repeated by the state machine when the cloud is back.
ITEM_BYTES_MAX = 16 << 20
KEY_CHARS_MAX = 200
#: Rows however small: an index entry costs memory too.
ROWS_MAX = 100_000
#: What a row takes in addition to its content, about.
_ROW_BYTES = 128

_SCHEMA = """
CREATE TABLE IF NOT EXISTS outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    priority INTEGER NOT NULL,
    key TEXT UNIQUE,
    expires_ms INTEGER NOT NULL,
    size INTEGER NOT NULL,
    content BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS outbox_order ON outbox (priority DESC, id);
CREATE INDEX IF NOT EXISTS outbox_expiry ON outbox (expires_ms);
"""


class Priority(IntEnum):
    """What goes first, and what is lost last."""

    TELEMETRY = 0  # of devices, passed on
    PROGRESS = 1
    STATE = 2  # which devices are in the pool
    SUM = 3  # devices' work


@dataclass(frozen=True, slots=True)
class Item:
    """A message that waits."""

    id: int
    priority: int
    content: bytes


class Outbox:
    """See the module. bytes_max: cap on what is kept. now_ms: Unix time, for expiry over restarts.

    Raises DelianError when the file cannot be opened or made.
    """

    def __init__(
        self,
        path: Path,
        bytes_max: int = 256 << 20,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        if bytes_max < 1:
            raise DelianError(f"outbox.bytes_max is {bytes_max}", "give at least some bytes")
        self.path, self.bytes_max, self._now_ms = path, bytes_max, now_ms
        self.evicted = self.expired = self.refused = 0
        # A connection has one transaction: of two that are mixed the end of one is that of both.
        self._alone = threading.RLock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._db = self._open()
        except (sqlite3.Error, OSError) as error:
            raise DelianError(
                f"the outbox {path} cannot be opened: {error}", "check its folder and the disk"
            ) from error

    def put(
        self, content: bytes, priority: int, *, key: str | None = None, valid_ms: int = 0
    ) -> bool:
        """Keeps a message, durably.

        key: replaces what has the same. valid_ms: how long it is of use; zero: for ever. False: it
        was not kept, being too large or less important than a full outbox.
        """
        if len(content) > ITEM_BYTES_MAX or (key is not None and len(key) > KEY_CHARS_MAX):
            self.refused += 1
            return False
        expires = self._now_ms() + valid_ms if valid_ms else 1 << 62
        size = len(content) + _ROW_BYTES
        try:
            with self._alone, self._db as db:
                if key is not None:
                    db.execute("DELETE FROM outbox WHERE key = ?", (key,))
                cursor = db.execute(
                    "INSERT INTO outbox (priority, key, expires_ms, size, content)"
                    " VALUES (?, ?, ?, ?, ?)",
                    (int(priority), key, expires, size, content),
                )
                self._expire()
                self._evict()
                found = db.execute("SELECT 1 FROM outbox WHERE id = ?", (cursor.lastrowid,))
                return found.fetchone() is not None
        except sqlite3.Error as error:  # a full disk, most likely
            self.refused += 1
            log.warning("a message was not kept: %s", error)
            return False

    def take(self, rows_max: int = 64, bytes_max: int = 4 << 20) -> list[Item]:
        """The next messages, the most important first, at least one where there is one.

        They stay until `done`.
        """
        items: list[Item] = []
        taken = 0
        query = "SELECT id, priority, size FROM outbox ORDER BY priority DESC, id LIMIT ?"
        with self._alone:
            with self._db:
                self._expire()
            for id, priority, size in self._db.execute(query, (rows_max,)).fetchall():
                taken += size
                if items and taken > bytes_max:
                    break
                row = self._db.execute("SELECT content FROM outbox WHERE id = ?", (id,)).fetchone()
                items.append(Item(id, priority, row[0]))
        return items

    def done(self, ids: Sequence[int]) -> None:
        """These have gone out."""
        with self._alone, self._db as db:
            db.executemany("DELETE FROM outbox WHERE id = ?", [(i,) for i in ids])

    def count(self) -> int:
        """Messages that wait."""
        with self._alone:
            return int(self._db.execute("SELECT count(*) FROM outbox").fetchone()[0])

    def size(self) -> int:
        """Bytes that they take, about."""
        with self._alone:
            return int(self._db.execute("SELECT coalesce(sum(size), 0) FROM outbox").fetchone()[0])

    def close(self) -> None:
        """May be called twice."""
        with self._alone, contextlib.suppress(sqlite3.Error):
            self._db.close()

    # ------------------------------------------------

    def _expire(self) -> None:
        gone = self._db.execute("DELETE FROM outbox WHERE expires_ms <= ?", (self._now_ms(),))
        self.expired += gone.rowcount

    def _evict(self) -> None:
        """Takes away the least important, of these the oldest, until the rest fits the cap."""
        rows, size = self.count(), self.size()
        if size <= self.bytes_max and rows <= ROWS_MAX:
            return
        doomed: list[tuple[int]] = []
        query = "SELECT id, size FROM outbox ORDER BY priority, id"
        for id, its in self._db.execute(query):
            if size <= self.bytes_max and rows <= ROWS_MAX:
                break
            doomed.append((id,))
            size, rows = size - its, rows - 1
        self._db.executemany("DELETE FROM outbox WHERE id = ?", doomed)
        self.evicted += len(doomed)
        log.warning("the outbox is full", extra={"evicted": len(doomed)})

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):  # locked, or no such folder
                raise
            aside = self.path.with_suffix(".damaged")
            log.error("the outbox was damaged and starts empty: %s", error)
            for ending in ("-wal", "-shm"):
                self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
            self.path.replace(aside)
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=5.0, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            db.executescript(_SCHEMA)
            (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
        except sqlite3.Error:
            db.close()
            raise
        return db
