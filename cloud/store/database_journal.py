"""A node's journal in the coordinator's database.

    append       pack of the large entries (durable) -> one transaction: rows of all entries, and
                 the rows that the machine's records make (`records`)
    checkpoint   pack of the snapshot if it is large -> one transaction: the snapshot takes the
                 entries' place -> the packs that nothing names any more go

What a reader of the tables sees is therefore what the journal holds: an attempt's row is there
exactly when the event that ended it is. Entries of more than `INLINE_MAX` bytes (updates and sums)
stay out of the database, which would copy them once into its log and once more into its file.

The order of entries is their sequence; it goes on over checkpoints and is never used twice. Each
entry has a checksum, and a gap in the sequence is found: both are damage by another program, for
neither database leaves half of a transaction.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, insert, select

from ...core.common.errors import DelianError
from ...core.node.storage.journal import NO_TAILS, JournalError, Tail
from ...core.protocol.ports import Content, Node, Record
from .database import Database
from .engines import Connection, insertion
from .packs import Packs
from .schema import EntryRow, SnapshotRow

#: A larger entry goes into a pack.
INLINE_MAX = 64 * 1024

_INSERT = insertion(EntryRow, "node", "sequence", "body", "pack", "start", "length", "crc")

Keep = Callable[[Connection, Sequence[Record], int], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Placed:
    """Where an entry or snapshot is: its bytes, or a place in the pack of its batch."""

    body: bytes | None
    start: int
    length: int
    crc: int


class DatabaseJournal:
    """A Journal (`core.node.storage.journal`) of one node.

    Several nodes may share database and packs.

    keep: writes the records' rows, given the time in Unix ms, in the transaction of their entries.
    on_append: called with the seconds that each append took.
    """

    def __init__(
        self,
        database: Database,
        packs: Packs,
        node: Node,
        keep: Keep | None = None,
        on_append: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self.name = f"{node.tier.value}-{node.number}"
        self._database, self._packs, self._keep = database, packs, keep
        self._on_append = on_append
        self._sequence: int | None = None
        self._under_way: asyncio.Future[None] | None = None
        self._closed = False

    async def load(self) -> tuple[bytes | None, list[bytes]]:
        assert self._sequence is None, "a journal is loaded once"

        async def look(connection: Connection) -> tuple[Any, Sequence[Any]]:
            where = SnapshotRow.node == self.name
            snapshot = (await connection.execute(select(SnapshotRow).where(where))).one_or_none()
            asked = select(EntryRow).where(EntryRow.node == self.name).order_by(EntryRow.sequence)
            return snapshot, (await connection.execute(asked)).all()

        snapshot, rows = await self._database.read(look)
        named = {row.pack for row in (*rows, *([snapshot] if snapshot else [])) if row.pack}
        orphans = [n for n in await self._packs.names(f"{self.name}-") if n not in named]
        await self._packs.remove(orphans)
        contents = {name: await self._packs.read(name) for name in sorted(named)}
        last = snapshot.sequence if snapshot else 0
        for number, row in enumerate(rows, last + 1):
            if row.sequence != number:
                raise _damaged(f"{self.name}'s journal: entry {number} is missing")
        self._sequence = last + len(rows)
        state = _content(self.name, snapshot, contents, 0) if snapshot else None
        return state, [_content(self.name, row, contents, row.start) for row in rows]

    async def append(
        self,
        entries: Sequence[bytes],
        records: Sequence[Record],
        tails: Mapping[int, Tail] = NO_TAILS,
    ) -> None:
        await self._shielded(self._append(list(entries), list(records), dict(tails)))

    async def checkpoint(self, snapshot: bytes) -> None:
        await self._shielded(self._checkpoint(snapshot))

    async def close(self) -> None:
        self._closed = True
        if self._under_way is not None:
            await asyncio.wait([self._under_way])

    async def _append(
        self, entries: list[bytes], records: list[Record], tails: dict[int, Tail]
    ) -> None:
        began = time.perf_counter()
        assert self._sequence is not None, "a journal is loaded first"
        first = self._sequence + 1
        placed, large = _place(entries, tails)
        pack, begins = await self._write_pack(first, large)
        rows = [
            {
                "node": self.name,
                "sequence": first + number,
                "body": one.body,
                "pack": None if one.body is not None else pack,
                "start": 0 if one.body is not None else begins + one.start,
                "length": one.length,
                "crc": one.crc,
            }
            for number, one in enumerate(placed)
        ]

        async def work(connection: Connection) -> None:
            if rows:
                await connection.put(_INSERT, rows)
            if records and self._keep is not None:
                await self._keep(connection, records, time.time_ns() // 1_000_000)

        await self._database.transact(work)
        self._sequence += len(entries)
        self._on_append(time.perf_counter() - began)

    async def _checkpoint(self, snapshot: bytes) -> None:
        assert self._sequence is not None, "a journal is loaded first"
        sequence = self._sequence
        (one,), large = _place([snapshot], {})
        # A snapshot's row says no place in a pack.
        pack, _ = await self._write_pack(sequence, large, fresh=True)
        values = {
            "node": self.name,
            "sequence": sequence,
            "body": one.body,
            "pack": pack,
            "length": one.length,
            "crc": one.crc,
        }

        async def work(connection: Connection) -> set[str]:
            old: set[str] = set()
            for table in (EntryRow, SnapshotRow):
                mine = table.node == self.name
                asked = select(table.pack).where(mine, table.pack.is_not(None)).distinct()
                old.update(name for name in (await connection.execute(asked)).scalars() if name)
                await connection.execute(delete(table).where(mine))
            await connection.execute(insert(SnapshotRow).values(**values))
            return old

        await self._packs.remove(await self._database.transact(work))

    async def _write_pack(
        self, first: int, parts: Sequence[Content], fresh: bool = False
    ) -> tuple[str | None, int]:
        """The pack and where in it the parts begin."""
        if not parts:
            return None, 0
        # The random part: what a crash has left under this sequence is another pack.
        name = f"{self.name}-{first:020d}-{secrets.token_hex(8)}"
        return await self._packs.write(name, parts, fresh)

    async def _shielded(self, work: Awaitable[None]) -> None:
        """Runs `work` to its end even when the caller is cancelled.

        Every fault is a JournalError, after which the journal takes nothing more.
        """
        task = asyncio.ensure_future(work)
        if self._closed:
            task.cancel()
            raise JournalError(f"{self.name}'s journal is closed")
        self._under_way = task
        try:
            await asyncio.shield(task)
        except JournalError:
            self._closed = True
            raise
        except DelianError as fault:
            self._closed = True
            raise JournalError(fault.message, fault.hint) from fault


def _place(
    entries: Sequence[bytes], tails: Mapping[int, Tail]
) -> tuple[list[_Placed], list[Content]]:
    """Where each entry goes, and the content of the pack: nothing is copied for it."""
    placed: list[_Placed] = []
    large: list[Content] = []
    start = 0
    for number, entry in enumerate(entries):
        tail = tails.get(number)
        content: Content = b"" if tail is None else tail.content
        crc, length = _sum(entry, tail and tail.digest), len(entry) + len(content)
        if length <= INLINE_MAX:
            placed.append(_Placed(b"".join((entry, content)), 0, length, crc))
        else:
            placed.append(_Placed(None, start, length, crc))
            large += (entry, content)
            start += length
    return placed, large


def _content(name: str, row: Any, packs: dict[str, bytes], start: int) -> bytes:
    content = row.body if row.pack is None else packs[row.pack][start : start + row.length]
    if len(content) != row.length or not _fits(content, row.crc):
        raise _damaged(f"{name}'s journal: entry or snapshot {row.sequence} is damaged")
    return bytes(content)


def _sum(entry: Content, digest: bytes | None) -> int:
    """An entry's checksum, as its row has it: CRC-32 of its bytes.

    Of one whose tail is hashed: CRC-32 of the bytes before that and of the hash, and above 32 bits
    how many these are, and one. To read an update once more takes as long as to copy it four times.
    """
    if digest is None:
        return zlib.crc32(entry)
    return (len(entry) + 1) << 32 | zlib.crc32(digest, zlib.crc32(entry))


def _fits(entry: bytes, crc: int) -> bool:
    """Whether a row's checksum is that of an entry."""
    if crc >> 32 == 0:
        return _sum(entry, None) == crc
    start = (crc >> 32) - 1
    head, tail = memoryview(entry)[:start], memoryview(entry)[start:]
    return _sum(head, hashlib.sha256(tail).digest()) == crc


def _damaged(message: str) -> JournalError:
    return JournalError(message, "restore database, packs and blobs from one backup")
