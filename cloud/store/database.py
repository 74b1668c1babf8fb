"""A database of the coordinator's, open: connections, migrations, and one writer.

SQLite by default, in WAL mode with every commit synced; PostgreSQL by URL. Two coordinators on one
database would each act as the federation's only store, so the second is refused: on SQLite by a
lock on a file next to it, on PostgreSQL by an advisory lock; the system lets go of either when the
process ends, however it ends. A connection to PostgreSQL can also break while the process goes on,
and with it the lock: then `lost` is set, with the reason in `why_lost`, and the generation in the
`lease` row, which every transaction asks for, lets nothing more be written once another coordinator
has taken over. A PostgreSQL that hangs is waited for, up to ANSWER_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
import socket
import sqlite3
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Executable, insert, select, text, update
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from ...core.common.errors import DelianError
from ...core.common.install_hint import install
from ...core.node.storage.disk import FolderLock
from . import migrate
from .commits import CommitCount
from .engines import Connection, LoopEngine, Prepared, SqliteEngine, TransactionEngine, Work
from .schema import Lease

log = logging.getLogger("delian.cloud.store")

T = TypeVar("T")

#: How long a new coordinator waits for PostgreSQL to notice that the one before has died.
TAKE_OVER_S = 5
#: How often it is asked whether the lock is still ours; an answer that takes longer is logged.
HEARTBEAT_S = 5.0
#: How long PostgreSQL may take to answer. One that is only slow costs time: the lock is its own to
#: give, and each transaction asks whether another coordinator has taken over.
ANSWER_S = 120.0
READERS = 4
_LOCK_KEY = int.from_bytes(hashlib.sha256(b"delian coordinator").digest()[:8], "big", signed=True)

#: What a database that fails raises.
FAULTS = (SQLAlchemyError, sqlite3.Error, OSError)
#: Asked in each transaction; made once, for it takes longer to make than to answer.
_LEASE = select(Lease.generation).where(Lease.id == 1)
_GENERATION = Prepared(_LEASE)
#: Where another may take over: that one waits for this transaction.
_GENERATION_HELD = Prepared(_LEASE.with_for_update(read=True))


class StoreError(DelianError):
    """The database cannot be opened, read or written."""


class StoreInUse(StoreError):
    """Another coordinator works on this database."""


def parse_url(store: str | Path) -> URL:
    """The URL of a store as people write it: a file, sqlite:///FILE or postgresql://...

    Raises StoreError.
    """
    given = str(store)
    if "://" not in given:
        return URL.create("sqlite", database=given)
    try:
        url = make_url(given)
    except ArgumentError as fault:
        raise StoreError(f"the store's URL cannot be read: {fault}") from None
    kind = url.drivername.partition("+")[0]
    if kind == "sqlite" and url.database and url.database != ":memory:":
        return url.set(drivername="sqlite")
    if kind in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+asyncpg")
    raise StoreError(
        f"no store can be kept in {url.render_as_string()}",
        "name a file, or postgresql://USER@HOST/DATABASE",
    )


class Database:
    """Made by `Database.open`. `on_write` is called with the seconds that each transaction took."""

    def __init__(self, url: URL) -> None:
        self.url = url
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.lost = asyncio.Event()
        self.why_lost = ""
        self.generation = 0
        self.on_write: Callable[[float], None] = lambda seconds: None
        self._writing = asyncio.Lock()
        self._under_way: set[asyncio.Task[Any]] = set()
        self._file_lock: FolderLock | None = None
        self._lock_connection: AsyncConnection | None = None
        self._count: CommitCount | None = None
        self._heart: asyncio.Task[None] | None = None
        self._writer: TransactionEngine
        self._reader: TransactionEngine
        if self.is_sqlite:
            self._count = CommitCount(Path(url.database or ""))
            self._writer = SqliteEngine(url, 1, "BEGIN IMMEDIATE", self._count)
            self._reader = SqliteEngine(url, READERS, "BEGIN")
        else:
            self._writer = LoopEngine(url, 1, ANSWER_S)
            self._reader = LoopEngine(url, READERS, ANSWER_S)
        self._closed = False

    @classmethod
    async def open(cls, store: str | Path) -> Database:
        """Locks the database, brings its tables up to date and takes the next generation.

        Raises StoreError, StoreInUse.
        """
        url = parse_url(store)
        try:
            database = cls(url)
        except (ImportError, ArgumentError) as fault:
            raise StoreError(
                f"the store {url.render_as_string()} needs a driver that is not installed: {fault}",
                f"{install('cloud')}, and for PostgreSQL: {install('cloud', 'postgres')}",
            ) from None
        try:
            await database._take()
        except BaseException:
            await database.close()
            raise
        return database

    async def close(self) -> None:
        """Waits for what is being written. May be called twice."""
        if self._closed:
            return
        self._closed = True
        if self._under_way:
            await asyncio.wait(self._under_way)
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.gather(self._heart, return_exceptions=True)
        if self._lock_connection is not None:
            with contextlib.suppress(SQLAlchemyError, OSError):
                await self._lock_connection.close()
        await self._writer.close()
        await self._reader.close()
        if self._count is not None:
            self._count.close()
        if self._file_lock is not None:
            self._file_lock.close()

    async def read(self, work: Work[T]) -> T:
        """What `work` finds, with a connection that sees one state of the database.

        Raises StoreError.
        """
        try:
            return await self._reader.run(work, commit=False)
        except FAULTS as fault:
            raise self._fault(fault) from fault

    async def rows(self, asked: Executable) -> Sequence[Any]:
        """What one question finds. Raises StoreError."""

        async def work(connection: Connection) -> Sequence[Any]:
            return (await connection.execute(asked)).all()

        return await self.read(work)

    async def transact(self, work: Work[T]) -> T:
        """Does `work` in a transaction of its own, one at a time; durable when this returns.

        A caller that is cancelled leaves it running to its end. Raises StoreError.
        """
        if self._closed:
            raise StoreError("the store is closed")
        task = asyncio.ensure_future(self._transact(work))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return await asyncio.shield(task)

    async def _transact(self, work: Work[T]) -> T:
        async with self._writing:
            began = time.perf_counter()
            try:
                result = await self._writer.run(lambda c: self._ours(c, work), commit=True)
            except StoreInUse as fault:
                self._lose(fault.message)
                raise
            except FAULTS as fault:
                raise self._fault(fault) from fault
            self.on_write(time.perf_counter() - began)
            return result

    async def _ours(self, connection: Connection, work: Work[T]) -> T:
        """Does `work` if this coordinator is the newest one. Raises StoreInUse."""
        asked = _GENERATION if self.is_sqlite else _GENERATION_HELD
        if await connection.scalar_of(asked) != self.generation:
            raise StoreInUse("another coordinator has taken over this database")
        return await work(connection)

    def _fault(self, fault: Exception) -> StoreError:
        cause = getattr(fault, "orig", None) or fault
        # A timeout has no text of its own.
        why = "it did not answer in time" if isinstance(cause, TimeoutError) else str(cause)
        damaged = type(cause) is sqlite3.DatabaseError  # its kinds are of busy, full, ...
        return StoreError(
            f"the store {self.url.render_as_string()} failed: {why or type(cause).__name__}",
            "its file is damaged: restore the whole folder from one backup"
            if damaged
            else "see that the database is there, has room and may be written to",
        )

    # ------------------------------------------------ one writer

    async def _take(self) -> None:
        try:
            if self.is_sqlite:
                self._lock_file()
                await asyncio.to_thread(self._check_count)
            else:
                await self._lock_advisory()
            self.generation = await self._writer.run(_upgrade, commit=True)
        except FAULTS as fault:
            raise self._fault(fault) from fault
        if not self.is_sqlite:
            self._heart = asyncio.get_running_loop().create_task(self._beat())
        facts = {"store": self.url.render_as_string(), "generation": self.generation}
        log.info("store open", extra=facts)

    def _lock_file(self) -> None:
        path = Path(self.url.database or "")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._file_lock = FolderLock(path.with_name(path.name + ".writer"))
        except DelianError as fault:
            raise StoreInUse(
                f"another coordinator works on {path}: {fault.message}", "stop that one first"
            ) from None

    def _check_count(self) -> None:
        assert self._count is not None
        if lost := self._count.lost():
            path = self._count.path
            raise StoreError(
                f"the store {path} ends {lost} transactions before the newest that it has"
                f" acknowledged: it, or {path.name}-wal, is damaged or an older copy",
                "nothing was changed; restore the whole folder from one backup. To go on from an"
                f" older copy on purpose, remove {self._count.mark.path} and follow"
                " `Backup and restore` in docs/operating.md",
            )

    async def _lock_advisory(self) -> None:
        assert isinstance(self._reader, LoopEngine)
        connection = await self._reader.engine.connect()
        self._lock_connection = await connection.execution_options(isolation_level="AUTOCOMMIT")
        await self._lock_connection.execute(text(f"SET lock_timeout = '{TAKE_OVER_S}s'"))
        try:
            await self._lock_connection.execute(text(f"SELECT pg_advisory_lock({_LOCK_KEY})"))
        except SQLAlchemyError as fault:
            if getattr(getattr(fault, "orig", None), "sqlstate", "") != "55P03":  # lock_timeout
                raise
            raise StoreInUse(
                f"another coordinator works on {self.url.render_as_string()}",
                "stop that one first",
            ) from None

    async def until_lost(self) -> None:
        """Raises StoreError when another coordinator may write."""
        await self.lost.wait()
        raise StoreError(
            f"the store is lost: {self.why_lost}",
            "see that the database answers, and that no other process works on it",
        )

    def _lose(self, why: str) -> None:
        if not self.lost.is_set():
            log.error("the store is lost: %s", why)
            self.why_lost = why
            self.lost.set()

    async def _beat(self) -> None:
        """Notices that the connection which holds the lock has broken, or does not answer."""
        assert self._lock_connection is not None
        try:
            while True:
                await asyncio.sleep(HEARTBEAT_S)
                await _answered(self._lock_connection.execute(text("SELECT 1")))
        except (SQLAlchemyError, OSError, TimeoutError) as fault:
            self._lose(self._fault(fault).message)


async def _answered(asked: Coroutine[Any, Any, Any]) -> None:
    """Waits for an answer, and logs that it takes long. Raises TimeoutError after ANSWER_S."""
    task = asyncio.ensure_future(asked)
    try:
        async with asyncio.timeout(ANSWER_S):
            done, _ = await asyncio.wait([task], timeout=HEARTBEAT_S)
            if not done:
                log.warning("the store does not answer; it is waited for for %.0f s", ANSWER_S)
            await task
            if not done:
                log.warning("the store answers again")
    finally:
        task.cancel()


async def _upgrade(connection: Connection) -> int:
    await connection.run_sync(migrate.upgrade)
    return await _next_generation(connection)


async def _next_generation(connection: Connection) -> int:
    owner = f"{socket.gethostname()} {os.getpid()}"[:256]
    since = time.time_ns() // 1_000_000
    before = (await connection.execute(_LEASE.with_for_update())).scalar()
    if before is None:
        values = {"id": 1, "generation": 1, "owner": owner, "since_ms": since}
        await connection.execute(insert(Lease).values(**values))
        return 1
    values = {"generation": before + 1, "owner": owner, "since_ms": since}
    await connection.execute(update(Lease).where(Lease.id == 1).values(**values))
    return int(before) + 1
