"""The disk as a journal sees it.

A folder of append-only files, where nothing is durable until it is synced.

`Disk` is the seam: the journal's logic (`segments.py`) runs over a real folder here, and over one
that loses, tears and reorders whatever was not synced in `memory_storage.py`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from ...common.errors import DelianError
from ...common.files import sync_file, sync_folder
from ...protocol.ports import Content

#: Buffers in one writev (IOV_MAX of Linux and macOS).
_PARTS_MAX = 1024
_IS_WINDOWS = sys.platform == "win32"
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Disk(Protocol):
    """A folder. Every method may raise OSError."""

    def append(self, name: str, parts: Sequence[bytes]) -> None:
        """Adds bytes at a file's end; makes the file.

        A crash may keep any part of what was not synced, and none of it.
        """

    def sync(self, name: str) -> None:
        """The file's content is durable. Its name is after `sync_names`."""

    def sync_names(self) -> None:
        """Files made, renamed and removed so far stay so."""

    def put(self, name: str, content: bytes) -> None:
        """Writes a small file over, in place; makes it.

        Not synced: a crash may keep what was there before, or any part of either.
        """

    def rename(self, old: str, new: str) -> None:
        """Replaces `new` where there is one."""

    def remove(self, name: str) -> None: ...

    def list(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...


class FolderDisk:
    """A real folder, which is made when it is not there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, int] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def append(self, name: str, parts: Sequence[bytes]) -> None:
        fd = self._open.get(name)
        if fd is None:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
            fd = self._open[name] = os.open(self.folder / name, flags, 0o600)
        write_all(fd, parts)

    def put(self, name: str, content: bytes) -> None:
        fd = self._open.get(name)
        if fd is None:
            flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0)
            fd = self._open[name] = os.open(self.folder / name, flags, 0o600)
            os.ftruncate(fd, len(content))
        os.lseek(fd, 0, os.SEEK_SET)
        write_all(fd, (content,))

    def sync(self, name: str) -> None:
        fd = self._open.get(name)
        if fd is not None:
            sync_file(fd)
            return
        fd = os.open(self.folder / name, os.O_RDWR)
        try:
            sync_file(fd)
        finally:
            os.close(fd)

    def sync_names(self) -> None:
        sync_folder(self.folder)

    def rename(self, old: str, new: str) -> None:
        self._close(old)
        self._close(new)
        (self.folder / old).replace(self.folder / new)

    def remove(self, name: str) -> None:
        self._close(name)
        (self.folder / name).unlink()

    def list(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self.folder) if entry.is_file())

    def read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def close(self) -> None:
        for name in list(self._open):
            self._close(name)

    def _close(self, name: str) -> None:
        fd = self._open.pop(name, None)
        if fd is not None:
            os.close(fd)


def write_all(fd: int, parts: Sequence[Content]) -> None:
    """Writes buffers one after the other, however little the system takes at a time.

    Large ones are not copied. Raises OSError.
    """
    if _IS_WINDOWS:
        left = memoryview(b"".join(parts))
        while left:
            left = left[os.write(fd, left) :]
        return
    waiting = [memoryview(part) for part in parts if len(part)]
    first = 0
    while first < len(waiting):
        written = os.writev(fd, waiting[first : first + _PARTS_MAX])
        while written:
            size = len(waiting[first])
            if written < size:
                waiting[first] = waiting[first][written:]
                break
            written -= size
            first += 1


def sync_content(fd: int) -> None:
    """`sync_file` without what reading does not need, like the file's times.

    A write over what the file had already is then no work for the file system. Raises OSError.
    """
    if hasattr(os, "fdatasync"):
        os.fdatasync(fd)
    else:
        sync_file(fd)


def is_full(fault: OSError) -> bool:
    """Whether there is no room left: on the disk, or for this user."""
    return fault.errno in _FULL


@contextlib.contextmanager
def state_in(folder: Path) -> Iterator[None]:
    """Turns what the system refuses of a node's folder into a DelianError that names it.

    A folder that is read-only, a file in its place, a full disk. Other OSErrors pass.
    """
    try:
        yield
    except OSError as fault:
        path = (
            Path(os.fsdecode(fault.filename)) if isinstance(fault.filename, str | bytes) else None
        )
        ours = path is not None and (path.is_relative_to(folder) or folder.is_relative_to(path))
        if not ours and not is_full(fault):
            raise
        place = folder if path is None else path
        raise DelianError(
            f"the state of this node cannot be kept in {folder}: {place}: {fault.strerror}",
            "make room on the disk, then start the node again"
            if is_full(fault)
            else "give the node a folder that it may write to",
        ) from fault


class FolderInUse(DelianError):
    """Another process works in this folder."""


class FolderLock:
    """Keeps two processes, or two owners in one process, from working in one folder.

    The system lets go of it when the process ends, however it ends.
    """

    NAME = "lock"

    def __init__(self, folder: Path) -> None:
        """Takes the lock. Raises FolderInUse."""
        folder.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(folder / self.NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(self._fd)
        except OSError as fault:
            held = ""
            with contextlib.suppress(OSError):  # Windows lets no other user read it
                held = os.read(self._fd, 64).decode("ascii", "replace").strip()
            os.close(self._fd)
            self._fd = -1
            owner = f"process {held}" if held else "another process"
            raise FolderInUse(
                f"{folder} is in use by {owner}",
                "stop that one first, or give this one a folder of its own",
            ) from fault
        os.ftruncate(self._fd, 0)
        os.write(self._fd, f"{os.getpid()}\n".encode())

    def close(self) -> None:
        """Lets go. May be called twice. The file stays: removing it would race with a newcomer."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = -1


def _lock(fd: int) -> None:
    """Raises OSError when it is taken."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
