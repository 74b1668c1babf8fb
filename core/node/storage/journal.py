"""A node's journal: a snapshot of its machine and the events since.

Events are durable before their effects are carried out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

from ...protocol.ports import Content, Record
from .disk import FolderDisk, FolderLock
from .segments import JournalError, Segments

__all__ = ["NO_TAILS", "FileJournal", "Journal", "JournalError", "Tail", "whole"]

T = TypeVar("T")

log = logging.getLogger("delian.node")


class Tail(NamedTuple):
    """How an entry goes on, and the SHA-256 of that: content that is large, and hashed already."""

    content: Content
    digest: bytes


NO_TAILS: Mapping[int, Tail] = MappingProxyType({})


def whole(entries: Sequence[bytes], tails: Mapping[int, Tail]) -> list[bytes]:
    """The entries with their tails."""
    if not tails:
        return list(entries)
    return [
        b"".join((entry, tails[number].content)) if number in tails else entry
        for number, entry in enumerate(entries)
    ]


class Journal(Protocol):
    """A snapshot of a machine and the entries since. One caller at a time."""

    async def load(self) -> tuple[bytes | None, list[bytes]]:
        """The newest snapshot (None: there never was one) and the entries after it.

        Called once, first. Raises JournalError.
        """

    async def append(
        self,
        entries: Sequence[bytes],
        records: Sequence[Record],
        tails: Mapping[int, Tail] = NO_TAILS,
    ) -> None:
        """Adds entries; durable when it returns, all or none of them. Raises JournalError.

        records: facts that came of these entries, for a journal that keeps tables of them too.
        tails: of some entries, by position. A journal needs no sum of its own of them.
        """

    async def checkpoint(self, snapshot: bytes) -> None:
        """Replaces all entries so far. Raises JournalError."""

    async def close(self) -> None:
        """Ends the use of it. May be called twice."""


class FileJournal:
    """A Journal in a folder of its own.

    `load` makes the folder and locks it: raises FolderInUse (of `disk`) while another journal has
    it, in this process or another.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._lock: FolderLock | None = None
        self._disk: FolderDisk | None = None
        self._segments: Segments | None = None
        self._closed = False

    async def load(self) -> tuple[bytes | None, list[bytes]]:
        return await self._on_thread(self._open)

    async def append(
        self,
        entries: Sequence[bytes],
        records: Sequence[Record],
        tails: Mapping[int, Tail] = NO_TAILS,
    ) -> None:
        segments = self._loaded()
        await self._on_thread(lambda: segments.append(whole(entries, tails)))

    async def checkpoint(self, snapshot: bytes) -> None:
        segments = self._loaded()
        await self._on_thread(lambda: segments.checkpoint(snapshot))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        # What is being written ends first: there is one thread.
        await asyncio.get_running_loop().run_in_executor(self._thread, self._release)
        self._thread.shutdown(wait=False)

    def _open(self) -> tuple[bytes | None, list[bytes]]:
        assert self._lock is None, "a journal is loaded once"
        try:
            self._lock = FolderLock(self.folder)
            self._disk = FolderDisk(self.folder)
        except OSError as fault:
            raise JournalError(
                f"no journal can be kept in {self.folder}: {fault}",
                "give the node a folder that it may write to",
            ) from fault
        self._segments = Segments(self._disk)
        found = self._segments.load()
        for remark in self._segments.remarks:
            log.warning("the journal in %s: %s", self.folder, remark)
        return found

    def _release(self) -> None:
        if self._disk is not None:
            self._disk.close()
        if self._lock is not None:
            self._lock.close()

    def _loaded(self) -> Segments:
        if self._segments is None:
            raise JournalError("the journal was not loaded")
        return self._segments

    async def _on_thread(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise JournalError("the journal is closed")
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        # A waiting task may be cancelled; what is being written is not.
        return await asyncio.shield(future)
