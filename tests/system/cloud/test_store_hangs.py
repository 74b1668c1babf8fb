"""A PostgreSQL that does not answer: it is waited for, and given up with a reason."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

pytest.importorskip("sqlalchemy")

from delian.cloud.service.fleet_registry import Fleet
from delian.cloud.store import database as database_module
from delian.cloud.store.database import Database, StoreError
from delian.core.protocol.ports import Tier


def run(main):
    return asyncio.run(asyncio.wait_for(main, 300))


async def write(database):
    await Fleet(database).register(Tier.DEVICE, {}, 1)


class hung:
    """PostgreSQL's backend of the connection that holds the lock stops, and goes on again."""

    def __init__(self, database):
        self.database = database

    async def __aenter__(self):
        connection = self.database._lock_connection
        (self.pid,) = (await connection.exec_driver_sql("SELECT pg_backend_pid()")).one()
        os.kill(self.pid, signal.SIGSTOP)

    async def __aexit__(self, *_):
        os.kill(self.pid, signal.SIGCONT)


async def logged(caplog, what):
    while what not in caplog.text:
        await asyncio.sleep(0.01)


def test_a_postgresql_that_hangs_is_waited_for(postgres_url, monkeypatch, caplog):
    monkeypatch.setattr(database_module, "HEARTBEAT_S", 0.2)

    async def main():
        database = await Database.open(postgres_url)
        async with hung(database):
            await logged(caplog, "the store does not answer")
        await logged(caplog, "the store answers again")
        assert not database.lost.is_set()
        await write(database)
        await database.close()

    run(main())


def test_a_postgresql_that_hangs_for_too_long_is_given_up_with_a_reason(postgres_url, monkeypatch):
    async def main():
        monkeypatch.setattr(database_module, "HEARTBEAT_S", 0.2)
        database = await Database.open(postgres_url)
        monkeypatch.setattr(database_module, "ANSWER_S", 0.5)
        async with hung(database):
            await database.lost.wait()
            assert "did not answer in time" in database.why_lost
            await database.close()

    run(main())


def test_a_transaction_that_postgresql_does_not_answer_fails_with_a_reason(
    postgres_url, monkeypatch
):
    async def main():
        first = await Database.open(postgres_url)
        await first.close()
        monkeypatch.setattr(database_module, "ANSWER_S", 3.0)
        database = await Database.open(postgres_url)

        async def stop(connection):
            (pid,) = (await connection.exec_driver_sql("SELECT pg_backend_pid()")).one()
            os.kill(pid, signal.SIGSTOP)
            try:
                await connection.exec_driver_sql("SELECT 1")
            finally:
                os.kill(pid, signal.SIGCONT)

        with pytest.raises(StoreError, match="did not answer in time"):
            await database.transact(stop)
        await write(database)
        await database.close()

    run(main())
