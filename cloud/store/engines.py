"""How transactions run, for either database.

What is to be done with a connection is a coroutine that awaits its connection and nothing else. On
PostgreSQL it runs on the event loop. SQLite answers at once, so there a thread runs it from BEGIN
to COMMIT in one go: to hand over each statement, and its rows back, costs several times what SQLite
does with it. Such a coroutine therefore changes nothing that belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection as PlainConnection
from sqlalchemy import CursorResult, Engine, Executable, bindparam, create_engine, event, insert
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.orm import DeclarativeBase

from .commits import CommitCount

T = TypeVar("T")

#: How long SQLite waits for another process's transaction, as of a backup.
BUSY_MS = 30_000


class Prepared:
    """A statement that is always the same but for values that it names (`bindparam`).

    SQLAlchemy takes several times as long for a statement as SQLite does; for those of every
    transaction, and of every round, SQLite gets its own text. What is read comes as SQLite has it:
    a column whose type is translated (JSON) as text.
    """

    def __init__(self, statement: Executable) -> None:
        self.statement = statement
        dialect = sqlite.dialect(paramstyle="named")
        compiled: Any = statement.compile(dialect=dialect)  # type: ignore[attr-defined]
        self.sql = str(compiled)
        self._constants: dict[str, Any] = compiled.params
        makers = {name: bind.type.dialect_impl(dialect) for name, bind in compiled.binds.items()}
        found = {name: maker.bind_processor(dialect) for name, maker in makers.items()}
        self._translate = {name: make for name, make in found.items() if make is not None}

    def values(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """What SQLite is to be given for `given`."""
        values = {**self._constants, **given}
        for name, make in self._translate.items():
            values[name] = make(values[name])
        return values


def insertion(table: type[DeclarativeBase], *columns: str) -> Prepared:
    """The insertion of a row, or of several, with these columns."""
    return Prepared(insert(table).values({name: bindparam(name) for name in columns}))


class Connection(Protocol):
    """What there is of a connection in a transaction; of SQLAlchemy's AsyncConnection."""

    async def scalar_of(self, prepared: Prepared, /, **values: Any) -> Any:
        """The first value of the first row that it finds, or None."""

    async def rows_of(self, prepared: Prepared, /, **values: Any) -> Sequence[Any]:
        """What it finds: tuples."""

    async def put(self, prepared: Prepared, rows: Sequence[dict[str, Any]], /) -> None:
        """Runs it for each row."""

    async def execute(
        self, statement: Executable, parameters: Any = None, /
    ) -> CursorResult[Any]: ...

    async def exec_driver_sql(self, statement: str, /) -> CursorResult[Any]: ...

    async def run_sync(self, work: Callable[[PlainConnection], T], /) -> T: ...


#: Awaits its connection, and nothing else.
Work = Callable[[Connection], Coroutine[Any, Any, T]]


class TransactionEngine(Protocol):
    """A few connections to one database."""

    async def run(self, work: Work[T], *, commit: bool) -> T:
        """Does `work` in a transaction of its own, and commits it, or not.

        Raises SQLAlchemyError, OSError, and what `work` raises; then nothing is committed.
        """

    async def close(self) -> None:
        """May be called twice."""


class LoopEngine:
    """Runs transactions on the event loop, over an asynchronous driver.

    answer_s: how long one may take, with the wait for a connection; then it raises TimeoutError.
    """

    def __init__(self, url: URL, connections: int, answer_s: float) -> None:
        self.engine = create_async_engine(
            url, pool_size=connections, max_overflow=0, pool_timeout=2 * answer_s
        )
        self._answer_s = answer_s

    async def run(self, work: Work[T], *, commit: bool) -> T:
        async with asyncio.timeout(self._answer_s), self.engine.connect() as connection:
            result = await work(_Waiting(connection))
            if commit:
                await connection.commit()
            return result

    async def close(self) -> None:
        await self.engine.dispose()


class SqliteEngine:
    """Runs transactions on threads, one for each connection.

    begin: the statement for it. count: of those that are committed.

    A thread keeps its connection: to take one out of a pool, and SQLAlchemy's own beginning and end
    of a transaction, take longer than most transactions do.
    """

    def __init__(
        self, url: URL, connections: int, begin: str, count: CommitCount | None = None
    ) -> None:
        self._engine = _sqlite(url, connections)
        self._begin, self._count = begin, count
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="store")
        self._mine = threading.local()
        self._held: list[_AtOnce] = []

    async def run(self, work: Work[T], *, commit: bool) -> T:
        def transact() -> T:
            held: _AtOnce | None = getattr(self._mine, "held", None)
            if held is None:
                held = self._mine.held = _AtOnce(self._engine.connect())
                self._held.append(held)
            try:
                held.begin(self._begin)
                result = _at_once(work(held))
                held.end(commit, self._count)
            except BaseException:
                self._mine.held = None
                self._held.remove(held)
                held.close()  # takes back what was done
                raise
            return result

        return await asyncio.get_running_loop().run_in_executor(self._threads, transact)

    async def close(self) -> None:
        await asyncio.to_thread(self._threads.shutdown)
        while self._held:
            self._held.pop().close()
        self._engine.dispose()


class _Waiting:
    """A Connection of an asynchronous driver."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection
        self.execute = connection.execute
        self.exec_driver_sql = connection.exec_driver_sql
        self.run_sync = connection.run_sync

    async def scalar_of(self, prepared: Prepared, /, **values: Any) -> Any:
        return (await self._connection.execute(prepared.statement, values)).scalar()

    async def rows_of(self, prepared: Prepared, /, **values: Any) -> Sequence[Any]:
        return (await self._connection.execute(prepared.statement, values)).all()

    async def put(self, prepared: Prepared, rows: Sequence[dict[str, Any]], /) -> None:
        await self._connection.execute(prepared.statement, rows)


class _AtOnce:
    """A Connection whose coroutines never wait.

    SQLAlchemy's part of it is asked where it is needed only; it has a transaction then, which
    SQLite does not see.
    """

    def __init__(self, connection: PlainConnection) -> None:
        self._connection = connection
        self._sqlite: Any = connection.connection.driver_connection

    def begin(self, statement: str) -> None:
        self._sqlite.execute(statement)

    def end(self, commit: bool, count: CommitCount | None) -> None:
        """Commits, or takes back."""
        if commit:
            if count is not None:
                count.stamp(self._sqlite)
            self._sqlite.commit()
            if count is not None:
                count.acknowledge()
        else:
            self._sqlite.rollback()
        if self._connection.in_transaction():
            self._connection.rollback()

    def close(self) -> None:
        self._sqlite.rollback()
        self._connection.close()

    def _asked(self) -> PlainConnection:
        if not self._connection.in_transaction():
            self._connection.begin()
        return self._connection

    async def scalar_of(self, prepared: Prepared, /, **values: Any) -> Any:
        row = self._sqlite.execute(prepared.sql, prepared.values(values)).fetchone()
        return None if row is None else row[0]

    async def rows_of(self, prepared: Prepared, /, **values: Any) -> Sequence[Any]:
        found: Sequence[Any] = self._sqlite.execute(
            prepared.sql, prepared.values(values)
        ).fetchall()
        return found

    async def put(self, prepared: Prepared, rows: Sequence[dict[str, Any]], /) -> None:
        self._sqlite.executemany(prepared.sql, map(prepared.values, rows))

    async def execute(self, statement: Executable, parameters: Any = None, /) -> CursorResult[Any]:
        return self._asked().execute(statement, parameters)

    async def exec_driver_sql(self, statement: str, /) -> CursorResult[Any]:
        return self._asked().exec_driver_sql(statement)

    async def run_sync(self, work: Callable[[PlainConnection], T], /) -> T:
        return work(self._asked())


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine gives that awaits nothing but such a connection."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    work.close()
    raise AssertionError("a transaction awaits its connection, and nothing else")


def _sqlite(url: URL, connections: int) -> Engine:
    engine = create_engine(
        url,
        pool_size=connections,
        max_overflow=0,
        connect_args={"check_same_thread": False},
    )

    @event.listens_for(engine, "connect")
    def _on_connect(connection: Any, record: Any) -> None:
        # Transactions begin where SQLAlchemy says so, not where the driver guesses.
        connection.isolation_level = None
        cursor = connection.cursor()
        for pragma in (
            f"busy_timeout={BUSY_MS}",
            "journal_mode=WAL",
            "synchronous=FULL",
            "foreign_keys=ON",
        ):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    return engine
