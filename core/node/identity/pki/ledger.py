"""Small durable files: what the CA has issued, denied and handed out, and a node's identity.

A `Ledger` is a file of JSON objects, one a line, that only grows. An entry counts once its newline
is on the disk, so a crash in the middle of a write leaves a last line that does not count; the next
writer removes it. Behind each object stands the CRC-32 of all objects up to it, so that a changed
or missing line is found; files of before had none. `LEDGER.mark` says which file has how many bytes
(`core.common.log_mark`), so that a cut is not taken for a crash. Several processes may share a
ledger (the coordinator, and `delian token`): each holds the folder's lock while it reads what the
others have added, decides, and adds. A ledger is rewritten without what has expired when it is
opened, with a random name as its first line; the others notice by that line that the file is
another one and read it from its beginning.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

from ....common.files import sync_folder, write_whole
from ....common.log_mark import MarkFile
from .certificates import IdentityError

log = logging.getLogger("delian.identity")

LEDGER_BYTES_MAX = 1 << 30
LINE_BYTES_MAX = 64 * 1024
_NAME = "ledger"  # key of the line that names a rewritten file
_LINE = re.compile(rb"(\{.*\}) ([0-9a-f]{8})\n", re.DOTALL)

Entry = dict[str, Any]


def write_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Puts a file in place whole, or not at all, whatever crashes; it is durable on return."""
    try:
        write_whole(path, content, mode, durable=True)
    except OSError as error:
        raise IdentityError(f"cannot write {path}: {error.strerror}") from None


def private_folder(folder: Path) -> Path:
    """A folder that only its owner can enter, made where it is absent. Raises IdentityError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise IdentityError(
            f"cannot make the folder {folder}: {error.strerror}", "name a folder that is new"
        ) from None
    return folder


class FolderLock:
    """One writer at a time in a folder, among threads and processes.

    May be held twice by one thread.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._thread = threading.RLock()
        self._depth = 0
        self._handle = -1

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        with self._thread:
            if self._depth == 0:
                try:
                    self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
                except OSError as error:
                    raise IdentityError(f"cannot lock {self._path}: {error.strerror}") from None
                fcntl.flock(self._handle, fcntl.LOCK_EX)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    os.close(self._handle)  # which lets go of the lock


class Ledger:
    """One file of entries. Hold the folder's lock while calling anything but `mark`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mark = MarkFile(path.with_name(path.name + ".mark"))
        self._offset = 0
        self._sum = 0  # CRC-32 of the objects up to there
        self._checked = False  # whether a line had one
        self._first: bytes | None = None  # the first line of what was read

    def mark(self) -> tuple[int, ...]:
        """Changes whenever the file does; may be asked without the lock. Empty: there is none."""
        try:
            status = self.path.stat()
        except OSError:
            return ()
        return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def news(self, reset: Callable[[], None], take: Callable[[Entry], None]) -> None:
        """Calls `take` with every entry that is new since the last call.

        `reset` comes first when the file is another one. Raises IdentityError when the file is
        damaged.
        """
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size > LEDGER_BYTES_MAX:
                    raise IdentityError(f"{self.path} is too large ({status.st_size} bytes)")
                first = file.readline(LINE_BYTES_MAX)
                fresh = first != self._first or status.st_size < self._offset
                if fresh:
                    reset()
                    self._first, self._offset = first, 0
                    self._sum, self._checked = 0, False
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # was never acknowledged
                    self._take(line, take)
                    self._offset += len(line)
                if fresh:
                    self._check_end(first)
        except FileNotFoundError:
            if self._first is not None:
                raise IdentityError(f"{self.path} has gone") from None

    def _check_end(self, first: bytes) -> None:
        """Compares where the file ends with its mark. Raises IdentityError."""
        known = self._mark.read()
        if known is None:
            if self._mark.path.exists():
                log.warning("%s is damaged; the next entry makes it again", self._mark.path)
            return
        tag, size = known >> 32, known & 0xFFFFFFFF
        # A file that was rewritten just before a crash has another first line than its mark says.
        if self._offset < size and (tag == crc32(first) or not first.endswith(b"\n")):
            raise IdentityError(
                f"{self.path} is damaged: it ends at byte {self._offset}, and {size} were written",
                f"restore the folder from a backup; if it is one, remove {self._mark.path}",
            )

    def _take(self, line: bytes, take: Callable[[Entry], None]) -> None:
        try:
            body = self._body(line) if len(line) <= LINE_BYTES_MAX else b""
            entry = json.loads(body)
            if isinstance(entry, dict):
                if _NAME not in entry:
                    take(entry)
                return
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise IdentityError(
            f"{self.path} is damaged at byte {self._offset}",
            "restore it from a backup; its content decides which nodes are trusted",
        )

    def _body(self, line: bytes) -> bytes:
        """The object of a line. Raises ValueError unless it has its sum, or none has one yet."""
        parts = _LINE.fullmatch(line)
        if parts is None:
            if self._checked:
                raise ValueError("no sum")
            self._sum = crc32(line[:-1], self._sum)
            return line
        self._sum, self._checked = crc32(parts[1], self._sum), True
        if self._sum != int(parts[2], 16):
            raise ValueError("another sum")
        return parts[1]

    def append(self, entry: Entry) -> None:
        """Adds an entry; durable on return. Call `news` before it, under the same lock."""
        line, total = _line(entry, self._sum)
        new = not self.path.exists()
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(self.path, flags, 0o600), "r+b") as file:
                file.truncate(self._offset)  # a torn line
                file.seek(self._offset)
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise IdentityError(f"cannot write {self.path}: {error.strerror}") from None
        if new:
            sync_folder(self.path.parent)
        if self._offset == 0:
            self._first = line
        self._wrote(self._offset + len(line), total)

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Replaces the whole file."""
        first, total = _line({_NAME: secrets.token_hex(16)}, 0)
        lines = [first]
        for entry in entries:
            line, total = _line(entry, total)
            lines.append(line)
        content = b"".join(lines)
        write_file(self.path, content, 0o600)
        self._first = first
        self._wrote(len(content), total)

    def _wrote(self, size: int, total: int) -> None:
        """The file has so many bytes, durably, and that sum."""
        self._offset, self._sum, self._checked = size, total, True
        try:
            self._mark.write(crc32(self._first or b"") << 32 | size)
        except OSError as error:
            raise IdentityError(f"cannot write {self._mark.path}: {error.strerror}") from None
        finally:
            self._mark.close()


def _line(entry: Entry, before: int) -> tuple[bytes, int]:
    """A line, and the sum of the objects up to it. before: the sum of those ahead of it."""
    body = json.dumps(entry, separators=(",", ":"), sort_keys=True).encode()
    total = crc32(body, before)
    line = b"%b %08x\n" % (body, total)
    if len(line) > LINE_BYTES_MAX:
        raise IdentityError(f"an entry of {len(line)} bytes is too large")
    return line, total
