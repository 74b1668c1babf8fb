"""Files in which a journal keeps what is too large for a database row.

Rows refer to them by name, offset and length.
"""

from __future__ import annotations

import asyncio
import errno
import mmap
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from ...core.common.files import sync_folder
from ...core.node.storage.disk import sync_content, write_all
from ...core.node.storage.journal import JournalError
from ...core.protocol.ports import Content

T = TypeVar("T")

#: What a pack may be called: the node, the first entry in it, and a random part.
NAME = re.compile(r"([a-z]+-[0-9]+)-[0-9]{20}-[0-9a-f]{16}")
#: A pack that has reached this size is followed by another.
PACK_BYTES_MAX = 16 * 2**20
#: Spares of a folder, and how large one may be.
SPARES_MAX = 8
SPARE_BYTES_MAX = 2 * PACK_BYTES_MAX
#: Writes begin on a page of their own: a page that is written whole needs not be read before.
_PAGE_BYTES = 4096
_SPARE = ".spare"
_WRITE = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0)
#: Of a direct write: it goes through a buffer that begins on a page and is written whole pages at a
#: time.
_BUFFER_BYTES = 2 * 2**20


class Packs(Protocol):
    """Large writes by name."""

    async def write(
        self, name: str, parts: Sequence[Content], fresh: bool = False
    ) -> tuple[str, int]:
        """Keeps parts, one after the other; durable when it returns.

        Gives where they are: in a pack of this new name, or in one that the same node had begun
        (not if `fresh`), and where in it the first one begins. For one node one call at a time.
        Raises JournalError.
        """

    async def read(self, name: str) -> bytes:
        """The whole pack. Raises JournalError where there is none."""

    async def names(self, prefix: str) -> list[str]:
        """The packs whose names begin so."""

    async def remove(self, names: Iterable[str]) -> None:
        """Forgets packs; those that are not there are not missed."""


@dataclass(slots=True)
class _Open:
    """A pack that takes more."""

    name: str
    file: int
    size: int
    buffer: mmap.mmap | None  # for direct writes, if it takes them


class FolderPacks:
    """Packs as files of a folder, which it makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: dict[str, _Open] = {}  # by node
        self._spares: list[Path] = []
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in folder.glob(f"*{_SPARE}"):
            left.unlink()

    async def write(
        self, name: str, parts: Sequence[Content], fresh: bool = False
    ) -> tuple[str, int]:
        return await self._on_thread(lambda: self._write(name, parts, fresh))

    async def read(self, name: str) -> bytes:
        return await self._on_thread(self._path(name).read_bytes)

    async def names(self, prefix: str) -> list[str]:
        def work() -> list[str]:
            found = (p.name for p in self.folder.iterdir() if NAME.fullmatch(p.name))
            return sorted(name for name in found if name.startswith(prefix))

        return await self._on_thread(work)

    async def remove(self, names: Iterable[str]) -> None:
        gone = set(names)
        for node, pack in list(self._open.items()):
            if pack.name in gone:
                self._end(node)
        if gone:
            await self._on_thread(lambda: self._spare(gone))

    async def close(self) -> None:
        """Ends the use of it; what is in it stays. May be called twice."""
        for node in list(self._open):
            self._end(node)

    def _path(self, name: str) -> Path:
        assert NAME.fullmatch(name), name
        return self.folder / name

    def _end(self, node: str) -> None:
        os.close(self._open.pop(node).file)

    def _write(self, name: str, parts: Sequence[Content], fresh: bool) -> tuple[str, int]:
        matched = NAME.fullmatch(name)
        assert matched, name
        node = matched[1]
        pack = self._open.get(node)
        if pack is not None and (fresh or pack.size >= PACK_BYTES_MAX):
            self._end(node)
            pack = None
        if pack is None:
            pack = self._open[node] = self._begin(name)
        start = pack.size
        size = sum(len(part) for part in parts)
        parts = (*parts, bytes(-size % _PAGE_BYTES))
        # First, for a write that fails may have left something there.
        pack.size += size + len(parts[-1])
        if pack.buffer is None or not _write_direct(pack.file, start, parts, pack.buffer):
            pack.buffer = None
            os.lseek(pack.file, start, os.SEEK_SET)
            write_all(pack.file, parts)
        sync_content(pack.file)
        return pack.name, start

    def _begin(self, name: str) -> _Open:
        path = self._path(name)
        if self._spares:
            self._spares.pop().replace(path)
        file = os.open(path, _WRITE, 0o600)
        sync_folder(self.folder)
        return _Open(name, file, 0, mmap.mmap(-1, _BUFFER_BYTES) if _past_cache(file) else None)

    def _spare(self, names: Iterable[str]) -> None:
        for name in sorted(names):
            path = self._path(name)
            if not path.exists():
                continue
            if len(self._spares) >= SPARES_MAX or path.stat().st_size > SPARE_BYTES_MAX:
                path.unlink()
                continue
            spare = path.with_name(path.name + _SPARE)
            path.replace(spare)
            self._spares.append(spare)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except OSError as fault:
            raise JournalError(
                f"the journal's folder {self.folder} failed: {fault}",
                "see that it is there, has room and may be written to",
            ) from fault


def _past_cache(file: int) -> bool:
    """Has writes to the file go past the system's cache from now on; False: it cannot."""
    if sys.platform != "linux":
        return False
    return _set_direct(file, True)


def _set_direct(file: int, wanted: bool) -> bool:
    import fcntl

    flags = fcntl.fcntl(file, fcntl.F_GETFL)
    try:
        fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT)
    except OSError as fault:
        if fault.errno == errno.EINVAL:
            return False
        raise
    return True


def _write_direct(file: int, start: int, parts: Sequence[Content], buffer: mmap.mmap) -> bool:
    """Writes whole pages of parts from `start` on, past the system's cache.

    False: this file system takes no such writes after all, and the file is as it was opened. Raises
    OSError.
    """
    try:
        filled = 0
        for content in parts:
            part = memoryview(content)
            while part:
                taken = min(len(part), len(buffer) - filled)
                buffer[filled : filled + taken] = part[:taken]
                part, filled = part[taken:], filled + taken
                if filled == len(buffer):
                    start, filled = _write_pages(file, start, buffer, filled), 0
        _write_pages(file, start, buffer, filled)
    except OSError as fault:
        if fault.errno != errno.EINVAL:
            raise
        _set_direct(file, False)
        return False
    return True


def _write_pages(file: int, start: int, buffer: mmap.mmap, filled: int) -> int:
    """Writes the buffer's beginning; where it ends in the file."""
    with memoryview(buffer) as whole:
        at = 0
        while at < filled:
            at += os.pwrite(file, whole[at:filled], start + at)
    return start + filled
