"""Where a journal keeps what is too large for a database: in packs, which rows refer to by name,
offset and length.

What is written is durable before the rows that refer to it are committed, and a place in a pack is
written once; a pack is removed after the commit that removes the last of those rows. So a row
always finds its bytes, and a crash leaves at most what no row names: packs of which nothing is
named are removed at the next start.

In a folder a pack takes writes until it has reached a size. One that is removed becomes a spare,
and the next pack is written over it: blocks that a file has already, and pages that the system
still holds, cost a third of the processor's time of new ones, and less than half of the wait for
the disk, for the file system has nothing to note down.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from ...core.node.disk import sync_content, sync_folder, write_all
from ...core.node.journal import JournalError

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


class Packs(Protocol):
    """Large writes by name."""

    async def write(
        self, name: str, parts: Sequence[bytes], fresh: bool = False
    ) -> tuple[str, int]:
        """Keeps parts, one after the other; durable when it returns. Gives where they are: in a
        pack of this new name, or in one that the same node had begun (not if `fresh`), and where
        in it the first one begins. For one node one call at a time. Raises JournalError.
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
        self, name: str, parts: Sequence[bytes], fresh: bool = False
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

    def _write(self, name: str, parts: Sequence[bytes], fresh: bool) -> tuple[str, int]:
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
        rest = -size % _PAGE_BYTES
        # First, for a write that fails may have left something there.
        pack.size += size + rest
        os.lseek(pack.file, start, os.SEEK_SET)
        write_all(pack.file, (*parts, bytes(rest)))
        sync_content(pack.file)
        return pack.name, start

    def _begin(self, name: str) -> _Open:
        path = self._path(name)
        if self._spares:
            self._spares.pop().replace(path)
        file = os.open(path, _WRITE, 0o600)
        sync_folder(self.folder)
        return _Open(name, file, 0)

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
