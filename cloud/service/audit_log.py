"""Signs the chain of aggregates, and reads it out (`cloud.service.audit` says what it is).

Entries are in the store as soon as an attempt's end is; this signs the newest one a moment later,
again when the chain is requested, and when the coordinator starts after a crash in between.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from sqlalchemy import func, insert, select

from ...core.node.identity.pki.certificates import TlsMaterial
from ...core.wire.operator_pb2 import PlanMessage
from ..store.database import Database
from ..store.engines import Connection
from ..store.records import append_entry
from ..store.schema import AuditCheckpointRow, AuditEntryRow
from .audit import Checkpoint, run_entry

log = logging.getLogger("delian.cloud.service.audit")

#: Entries that are read at once.
ENTRIES_AT_ONCE = 256
#: New entries are signed together when they come faster than this.
SIGN_EVERY_S = 1.0


class AuditLog:
    """The audit log's file.

    material: the coordinator's key and certificate, read at each signature. None: it has none, and
    nothing is signed.
    """

    def __init__(self, database: Database, material: Callable[[], TlsMaterial] | None) -> None:
        self._database, self._material = database, material
        self._grown = asyncio.Event()
        self._signing = asyncio.Lock()

    def grown(self) -> None:
        """There is a new entry."""
        self._grown.set()

    async def append(self, make: Callable[[tuple[int, bytes]], bytes]) -> int:
        """Adds an entry; durable on return.

        make: gives its line for its sequence and the hash of the entry before. Gives the sequence.
        Raises StoreError.
        """
        sequence = await self._database.transact(lambda c: append_entry(c, make))
        self.grown()
        return sequence

    async def publish(self, run: int, plan: PlanMessage) -> None:
        """Adds the entry of a run that is about to begin, and signs the chain.

        Both are durable on return. Raises StoreError, IdentityError.
        """
        now_ms = time.time_ns() // 1_000_000
        await self.append(lambda at: run_entry(run, plan, *at, now_ms))
        await self.sign()

    async def run(self) -> None:
        """Signs as entries come, until it is cancelled. Raises StoreError."""
        while True:
            await self.sign()
            await self._grown.wait()
            self._grown.clear()
            await asyncio.sleep(SIGN_EVERY_S)

    async def sign(self) -> None:
        """Signs the newest entry, unless it is signed.

        Durable on return. Raises StoreError, IdentityError.
        """
        if self._material is None:
            return
        async with self._signing:
            newest = await self._database.read(_unsigned)
            if newest is None:
                return
            sequence, head = newest
            material = await asyncio.to_thread(self._material)
            made = Checkpoint.sign(material, sequence, head, time.time_ns() // 1_000_000)
            row = {name: getattr(made, name) for name in Checkpoint.__slots__}

            async def work(connection: Connection) -> None:
                await connection.execute(insert(AuditCheckpointRow).values(**row))

            await self._database.transact(work)
            log.debug("the chain was signed", extra={"sequence": sequence})

    async def page(self, after: int) -> tuple[list[bytes], int]:
        """The next lines after entry `after`, with their checkpoints, and the last entry's number.

        Empty at the end. Raises StoreError.
        """
        found = await self._database.read(lambda c: _page(c, after))
        return [line for _, line in found], found[-1][0] if found else after


async def _unsigned(connection: Connection) -> tuple[int, bytes] | None:
    """The newest entry's sequence and hash, when no checkpoint is of it."""
    asked = select(AuditEntryRow.sequence, AuditEntryRow.hash)
    last = asked.order_by(AuditEntryRow.sequence.desc()).limit(1)
    newest = (await connection.execute(last)).one_or_none()
    signed = (await connection.execute(select(func.max(AuditCheckpointRow.sequence)))).scalar()
    if newest is None or newest.sequence == signed:
        return None
    return int(newest.sequence), bytes(newest.hash)


async def _page(connection: Connection, after: int) -> list[tuple[int, bytes]]:
    """Of the next entries: the sequence, and the line of the entry or of its checkpoint."""
    asked = (
        select(AuditEntryRow.sequence, AuditEntryRow.body, AuditCheckpointRow)
        .outerjoin(AuditCheckpointRow, AuditCheckpointRow.sequence == AuditEntryRow.sequence)
        .where(AuditEntryRow.sequence > after)
        .order_by(AuditEntryRow.sequence)
        .limit(ENTRIES_AT_ONCE)
    )
    found: list[tuple[int, bytes]] = []
    for row in (await connection.execute(asked)).all():
        found.append((row.sequence, bytes(row.body)))
        if row.signature is not None:
            made = Checkpoint(row.sequence, row.head, row.time_ms, row.certificate, row.signature)
            found.append((row.sequence, made.line()))
    return found
