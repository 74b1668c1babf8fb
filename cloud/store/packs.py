"""Where a journal keeps what is too large for a database: one file, or object, for each batch.

A pack is written whole and made durable before the rows that refer to it are committed, under a
name that was never used before; it is removed after the commit that removes the last of those rows.
So a row always finds its pack, and a crash leaves at most a pack that no row names: the next start
removes it. No pack is ever changed.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from ...core.node.disk import sync_file, sync_folder, write_all
from ...core.node.journal import JournalError

T = TypeVar("T")

#: What a pack may be called: the node, the first entry in it, and a random part.
NAME = re.compile(r"[a-z]+-[0-9]+-[0-9]{20}-[0-9a-f]{16}")
_DRAFT = ".draft"


class Packs(Protocol):
    """Immutable large writes by name."""

    async def write(self, name: str, parts: Sequence[bytes]) -> None:
        """Keeps a pack; durable, and whole, when it returns. Raises JournalError."""

    async def read(self, name: str) -> bytes:
        """The whole pack. Raises JournalError where there is none."""

    async def names(self, prefix: str) -> list[str]:
        """The packs whose names begin so."""

    async def remove(self, names: Iterable[str]) -> None:
        """Forgets packs; those that are not there are not missed."""


class FolderPacks:
    """Packs as files of a folder, which it makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    async def write(self, name: str, parts: Sequence[bytes]) -> None:
        await self._on_thread(lambda: self._write(name, parts))

    async def read(self, name: str) -> bytes:
        return await self._on_thread(self._path(name).read_bytes)

    async def names(self, prefix: str) -> list[str]:
        def work() -> list[str]:
            return sorted(p.name for p in self.folder.iterdir() if p.name.startswith(prefix))

        return await self._on_thread(work)

    async def remove(self, names: Iterable[str]) -> None:
        paths = [self.folder / name for name in names]

        def work() -> None:
            for path in paths:
                path.unlink(missing_ok=True)

        if paths:
            await self._on_thread(work)

    def _path(self, name: str) -> Path:
        assert NAME.fullmatch(name), name
        return self.folder / name

    def _write(self, name: str, parts: Sequence[bytes]) -> None:
        draft = self.folder / f"{name}{_DRAFT}"
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            write_all(handle, tuple(parts))
            sync_file(handle)
        finally:
            os.close(handle)
        draft.replace(self._path(name))
        sync_folder(self.folder)

    async def _on_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(work)
        except OSError as fault:
            raise JournalError(
                f"the journal's folder {self.folder} failed: {fault}",
                "see that it is there, has room and may be written to",
            ) from fault
