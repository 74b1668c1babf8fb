"""The entries of a certificate log on disk, and the tree of them.

One file that only grows: a header of 64 bytes, then a record of 64 bytes for each entry: the entry
(57 bytes) and the first 7 bytes of its leaf's hash. A record counts once it is whole on the disk.
So a crash during a write leaves a last record that is short or does not match its hash; readers
leave it out and the next writer removes it. Any other record that does not match is damage, and an
error.

The tree is made when it is first asked for (64 bytes of memory for each entry, some seconds for a
million): a command that only appends does not need it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from ....common.merkle_tree import SIZE_MAX, Tree, leaf_hash
from ..pki.certificates import IdentityError
from ..pki.ledger import write_file
from .log_entries import ENTRY_BYTES, LogError

RECORD_BYTES: Final = 64
_HEADER: Final = b"delian certificate log 1\n".ljust(RECORD_BYTES, b"\0")
_READ_RECORDS: Final = 16_384  # at a time, 1 MiB


class LogFile:
    """The file and its tree.

    One process writes at a time: the caller holds the folder's lock while it calls `append` or
    `cut`. Reading needs no lock. Safe for several threads.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tree: Tree | None = None
        self._places: dict[bytes, int] = {}
        self._thread = threading.RLock()

    def size(self) -> int:
        """Entries on the disk. Raises IdentityError."""
        with self._thread:
            return self._count(self._bytes())

    def append(self, entries: Iterable[bytes]) -> int:
        """Adds entries; durable on return. Gives the index of the first. Raises IdentityError."""
        records = b"".join(map(_record, entries))
        with self._thread:
            length = self._bytes()
            count = self._count(length)
            if count + len(records) // RECORD_BYTES > SIZE_MAX:
                raise LogError(f"{self.path} is full")
            if not length:
                write_file(self.path, _HEADER + records, 0o600)
                return 0
            at = RECORD_BYTES * (count + 1)
            try:
                with self.path.open("r+b") as file:
                    file.truncate(at)  # a torn record
                    file.seek(at)
                    file.write(records)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise IdentityError(f"cannot write {self.path}: {error.strerror}") from None
            return count

    def cut(self, size: int) -> None:
        """Removes the entries from `size` on: a copy that was not what was signed."""
        with self._thread:
            if self.size() <= size:
                return
            self._tree, self._places = None, {}
            try:
                with self.path.open("r+b") as file:
                    file.truncate(RECORD_BYTES * (size + 1))
                    os.fsync(file.fileno())
            except OSError as error:
                raise IdentityError(f"cannot write {self.path}: {error.strerror}") from None

    def entries(self, first: int, count: int) -> list[bytes]:
        """The entries [first, first + count), or as many as there are. Raises IdentityError."""
        with self._thread:
            count = max(0, min(count, self.size() - first))
            if count == 0:  # of a log without entries there is no file
                return []
            return [record[:ENTRY_BYTES] for record in self._records(first, count)]

    def tree(self) -> Tree:
        """The tree of all entries on the disk, as new as they are. Raises IdentityError."""
        with self._thread:
            tree = Tree() if self._tree is None else self._tree
            size = self.size()
            if size < tree.size:
                raise LogError(f"{self.path} has become shorter", "restore it from its newest copy")
            while tree.size < size:
                many = min(_READ_RECORDS, size - tree.size)
                for record in self._records(tree.size, many):
                    leaf = leaf_hash(record[:ENTRY_BYTES])
                    self._places[leaf] = tree.append(leaf)
            self._tree = tree
            return tree

    def place(self, leaf: bytes) -> int | None:
        """Where in the tree this leaf is, by its hash; None: nowhere."""
        with self._thread:
            self.tree()
            return self._places.get(leaf)

    def _bytes(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise IdentityError(f"cannot read {self.path}: {error.strerror}") from None

    def _count(self, length: int) -> int:
        """Whole records in a file of so many bytes. The last one may be torn."""
        count = length // RECORD_BYTES - 1
        if length == 0:
            return 0
        if count < 0 or self._read(0, 1) != _HEADER:
            raise LogError(f"{self.path} is no certificate log of this version of delian")
        if count and not _is_whole(self._read(count, 1)):
            return count - 1
        return count

    def _records(self, first: int, count: int) -> list[bytes]:
        content = self._read(first + 1, count)
        found = [
            content[at : at + RECORD_BYTES] for at in range(0, count * RECORD_BYTES, RECORD_BYTES)
        ]
        for index, record in enumerate(found, first):
            if not _is_whole(record):
                raise LogError(
                    f"{self.path} is damaged at entry {index}",
                    "restore it from its newest copy: devices refuse a log that was changed",
                )
        return found

    def _read(self, record: int, count: int) -> bytes:
        try:
            with self.path.open("rb") as file:
                file.seek(record * RECORD_BYTES)
                return file.read(count * RECORD_BYTES)
        except OSError as error:
            raise IdentityError(f"cannot read {self.path}: {error.strerror}") from None


def _record(entry: bytes) -> bytes:
    if len(entry) != ENTRY_BYTES:
        raise LogError(f"an entry of {len(entry)} bytes")
    return entry + leaf_hash(entry)[: RECORD_BYTES - ENTRY_BYTES]


def _is_whole(record: bytes) -> bool:
    return len(record) == RECORD_BYTES and record == _record(record[:ENTRY_BYTES])
