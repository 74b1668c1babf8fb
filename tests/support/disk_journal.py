"""A journal on the caller's own thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from delian.core.node.storage.disk import Disk
from delian.core.node.storage.journal import NO_TAILS, Tail, whole
from delian.core.node.storage.segments import Segments
from delian.core.protocol.ports import Record


class DiskJournal:
    """A Journal over any `Disk`, on the caller's own thread: it never waits."""

    def __init__(self, disk: Disk, salt: Callable[[int], bytes]) -> None:
        self.segments = Segments(disk, salt)

    async def load(self) -> tuple[bytes | None, list[bytes]]:
        return self.segments.load()

    async def append(
        self,
        entries: Sequence[bytes],
        records: Sequence[Record],
        tails: Mapping[int, Tail] = NO_TAILS,
    ) -> None:
        self.segments.append(whole(entries, tails))

    async def checkpoint(self, snapshot: bytes) -> None:
        self.segments.checkpoint(snapshot)

    async def close(self) -> None:
        """Holds nothing."""
