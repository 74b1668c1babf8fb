"""The coordinator's database: its shape, its one writer, and a journal that loses nothing."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os

import pytest

pytest.importorskip("sqlalchemy")

from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from delian.cloud.store import database as database_module
from delian.cloud.store import migrate, records
from delian.cloud.store import packs as packs_module
from delian.cloud.store.database import Database, StoreError, StoreInUse, parse_url
from delian.cloud.store.database_journal import INLINE_MAX, DatabaseJournal
from delian.cloud.store.packs import FolderPacks
from delian.cloud.store.schema import (
    Base,
    EntryRow,
    EvaluationRow,
    EventRow,
    Lease,
    ModelRow,
    NodeRow,
    RoundRow,
    RunRow,
)
from delian.core.node.storage.journal import JournalError, Tail
from delian.core.protocol.ports import CLOUD, Node, Record, Tier
from delian.core.wire.operator_pb2 import PlanMessage
from sqlalchemy import insert, select, update

LARGE = bytes(range(256)) * 512
EDGE = Node(Tier.EDGE, 0)


class Stopped(Exception):
    """The process was killed here."""


def run(main):
    return asyncio.run(asyncio.wait_for(main, 300))


# ---------------------------------------------------------------- the database


def test_the_migrations_lead_to_the_tables_of_the_models(store):
    async def main():
        database = await Database.open(store)

        def compare(connection):
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            return compare_metadata(context, Base.metadata), migrate.current(connection)

        differences, revision = await database.read(lambda c: c.run_sync(compare))
        await database.close()
        assert differences == []
        assert revision == migrate.head() == migrate.HEAD

    run(main())


def test_a_database_of_the_first_version_is_brought_up_to_date_with_its_rows(store, monkeypatch):
    async def main():
        upgrade = migrate.upgrade
        monkeypatch.setattr(migrate, "upgrade", lambda connection: upgrade(connection, "0001"))
        database = await Database.open(store)

        async def fill(connection):
            for line in (
                "INSERT INTO nodes (tier, number, labels, state, serial, certificate_ends_ms,"
                " enrolled_ms, seen_ms) VALUES ('edge', 1, '{}', 'draining', '', 0, 0, 7)",
                "INSERT INTO nodes (tier, number, labels, state, serial, certificate_ends_ms,"
                " enrolled_ms, seen_ms) VALUES ('edge', 2, '{}', 'revoked', '', 0, 0, 8)",
                "INSERT INTO runs (run, plan, phase, round, attempt, weights, weights_size,"
                " created_ms, ended_ms, why) VALUES (4, '', 'done', 1, 1, '', 0, 0, 0, '')",
            ):
                await connection.exec_driver_sql(line)

        await database.transact(fill)
        await database.close()
        monkeypatch.undo()
        database = await Database.open(store)
        nodes = await _rows(database, select(NodeRow).order_by(NodeRow.number))
        (known,) = await _rows(database, select(RunRow))
        assert [(row.state, row.seen_ms) for row in nodes] == [("", 7), ("revoked", 8)]
        assert (known.run, known.request) == (4, None)
        await database.close()

    run(main())


def test_a_database_of_a_newer_version_is_refused(tmp_path):
    async def main():
        database = await Database.open(tmp_path / "s.db")

        async def newer(connection):
            await connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'ffff'")

        await database.transact(newer)
        await database.close()
        with pytest.raises(migrate.StoreTooNew):
            await Database.open(tmp_path / "s.db")

    run(main())


def test_a_second_coordinator_on_one_database_is_refused_and_the_next_one_is_not(
    store, monkeypatch
):
    monkeypatch.setattr(database_module, "TAKE_OVER_S", 1)

    async def main():
        first = await Database.open(store)
        with pytest.raises(StoreInUse):
            await Database.open(store)
        await first.close()
        second = await Database.open(store)
        assert second.generation == first.generation + 1
        await second.close()

    run(main())


def test_a_writer_that_was_overtaken_writes_nothing_more(tmp_path):
    async def main():
        database = await Database.open(tmp_path / "s.db")

        async def overtake(connection):
            await connection.execute(update(Lease).values(generation=Lease.generation + 1))

        async def write(connection):
            await connection.execute(insert(RunRow).values(run=1, **_run()))

        await database.transact(overtake)
        with pytest.raises(StoreInUse):
            await database.transact(write)
        assert database.lost.is_set()
        assert await _rows(database, select(RunRow)) == []
        await database.close()

    run(main())


def test_a_coordinator_whose_lock_breaks_notices_and_is_overtaken(postgres_url, monkeypatch):
    monkeypatch.setattr(database_module, "HEARTBEAT_S", 0.05)
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )

    async def main():
        first = await Database.open(postgres_url)
        await first.read(lambda c: c.exec_driver_sql(kill))
        await asyncio.wait_for(first.lost.wait(), 120)
        second = await Database.open(postgres_url)
        with pytest.raises(StoreInUse):
            await first.transact(lambda c: c.execute(insert(RunRow).values(run=1, **_run())))
        await second.transact(lambda c: c.execute(insert(RunRow).values(run=1, **_run())))
        await first.close()
        await second.close()

    run(main())


def test_sqlite_syncs_every_commit(tmp_path):
    async def main():
        database = await Database.open(tmp_path / "s.db")
        found = {}

        async def ask(connection):
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys"):
                found[name] = (await connection.exec_driver_sql(f"PRAGMA {name}")).scalar()

        await database.transact(ask)
        await database.close()
        assert found["journal_mode"] == "wal" and found["synchronous"] == 2
        assert found["busy_timeout"] > 0 and found["foreign_keys"] == 1

    run(main())


@pytest.mark.parametrize("store", ["mysql://a/b", "sqlite://", "nonsense://", "://"])
def test_a_store_that_cannot_be_kept_is_refused_with_a_hint(store):
    with pytest.raises(StoreError):
        parse_url(store)


# ---------------------------------------------------------------- the journal


def test_a_journal_gives_back_what_was_appended_in_order(store, tmp_path):
    entries = [b"one", LARGE, b"", b"x" * INLINE_MAX, LARGE[::-1], b"y" * (INLINE_MAX + 1)]

    async def main():
        async with opened(store, tmp_path) as (journal, _):
            assert await journal.load() == (None, [])
            await journal.checkpoint(b"first")
            await journal.append(entries[:3], [])
            await journal.append(entries[3:], [])
        async with opened(store, tmp_path) as (journal, _):
            assert await journal.load() == (b"first", entries)
            await journal.append([b"later"], [])
        async with opened(store, tmp_path) as (journal, _):
            assert await journal.load() == (b"first", [*entries, b"later"])

    run(main())


def test_large_entries_stay_out_of_the_database_and_go_with_the_checkpoint(tmp_path):
    async def main():
        async with opened(tmp_path / "s.db", tmp_path) as (journal, database):
            await journal.load()
            await journal.checkpoint(b"first")
            await journal.append([b"small", LARGE, LARGE], [])
            rows = await _rows(database, select(EntryRow))
            assert [row.body for row in rows] == [b"small", None, None]
            (pack,) = (tmp_path / "packs").iterdir()
            assert pack.read_bytes() == LARGE + LARGE
            await journal.append([LARGE[::-1]], [])
            assert pack.read_bytes() == LARGE + LARGE + LARGE[::-1]
            await journal.checkpoint(LARGE)
            after = [p for p in (tmp_path / "packs").iterdir() if not p.name.endswith(".spare")]
            assert [p.read_bytes() for p in after] == [LARGE] and after != [pack]
        async with opened(tmp_path / "s.db", tmp_path) as (journal, _):
            assert await journal.load() == (LARGE, [])

    run(main())


@pytest.mark.parametrize("size", [100, len(LARGE)])
def test_an_entry_that_came_with_its_hash_is_checked_by_it(store, tmp_path, size):
    content = LARGE[:size]
    tails = {1: Tail(memoryview(content), hashlib.sha256(content).digest())}

    async def load():
        async with opened(store, tmp_path) as (journal, _):
            return await journal.load()

    async def main():
        async with opened(store, tmp_path) as (journal, _):
            await journal.load()
            await journal.checkpoint(b"first")
            await journal.append([b"one", b"head", b"two"], [], tails)
        assert (await load())[1] == [b"one", b"head" + content, b"two"]
        for damaged in (b"Head" + content, b"head" + content[:-1] + b"!"):
            async with opened(store, tmp_path) as (journal, database):
                second = update(EntryRow).where(EntryRow.sequence == 2)
                changed = second.values(body=damaged, pack=None)
                await database.transact(lambda c, change=changed: c.execute(change))
            with pytest.raises(JournalError, match="damaged"):
                await load()

    run(main())


@pytest.mark.parametrize("at", ["pack", "commit"])
def test_a_crash_between_pack_and_commit_leaves_the_batch_out_and_no_pack_behind(tmp_path, at):
    async def main():
        async with opened(tmp_path / "s.db", tmp_path) as (journal, database):
            await journal.load()
            await journal.checkpoint(b"first")
            await journal.append([b"kept", LARGE], [])

            async def killed(*_):
                raise Stopped

            if at == "pack":
                inner = journal._packs._write

                def torn(name, parts, fresh):
                    inner(name, [parts[0][:100]], fresh)
                    _stop()

                journal._packs._write = torn
            else:
                database.transact = killed
            with pytest.raises(Stopped):
                await journal.append([b"lost", LARGE[::-1]], [])
        (pack,) = (tmp_path / "packs").iterdir()
        assert pack.stat().st_size > len(LARGE)
        async with opened(tmp_path / "s.db", tmp_path) as (journal, _):
            assert await journal.load() == (b"first", [b"kept", LARGE])
            await journal.append([b"more", LARGE[::-1]], [])
        async with opened(tmp_path / "s.db", tmp_path) as (journal, _):
            assert await journal.load() == (b"first", [b"kept", LARGE, b"more", LARGE[::-1]])

    run(main())


def test_a_crash_between_a_checkpoints_commit_and_the_removal_of_packs_loses_nothing(tmp_path):
    async def main():
        async with opened(tmp_path / "s.db", tmp_path) as (journal, _):
            await journal.load()
            await journal.checkpoint(b"first")
            await journal.append([LARGE], [])

            async def killed(_):
                raise Stopped

            journal._packs.remove = killed
            with pytest.raises(Stopped):
                await journal.checkpoint(b"second")
        async with opened(tmp_path / "s.db", tmp_path) as (journal, _):
            assert await journal.load() == (b"second", [])
            assert await journal._packs.names("") == []

    run(main())


def test_packs_are_written_over_and_over_and_hold_what_was_written_last(tmp_path, monkeypatch):
    monkeypatch.setattr(packs_module, "PACK_BYTES_MAX", 2 * len(LARGE))
    rounds = [[bytes([i]) + LARGE, LARGE + bytes([i])] for i in range(7)]

    async def main():
        async with opened(tmp_path / "s.db", tmp_path) as (journal, _):
            await journal.load()
            for i, entries in enumerate(rounds):
                await journal.checkpoint(bytes([i]) + LARGE if i % 2 else b"small")
                for entry in entries:
                    await journal.append([entry], [])
                journal._closed, journal._sequence = False, None
                snapshot, found = await journal.load()
                assert found == entries and snapshot[-1:] in (b"l", LARGE[-1:])
        # What is there is what the last two rounds needed at most, for ever.
        assert len(list((tmp_path / "packs").iterdir())) <= 6
        async with opened(tmp_path / "s.db", tmp_path) as (journal, _):
            assert (await journal.load())[1] == rounds[-1]
        assert not list((tmp_path / "packs").glob("*.spare"))

    run(main())


def test_a_damaged_pack_is_found(tmp_path):
    async def main():
        async with opened(tmp_path / "s.db", tmp_path) as (journal, _):
            await journal.load()
            await journal.checkpoint(b"first")
            await journal.append([LARGE], [])
        (pack,) = (tmp_path / "packs").iterdir()
        content = bytearray(pack.read_bytes())
        content[5] ^= 1
        pack.write_bytes(content)
        async with opened(tmp_path / "s.db", tmp_path) as (journal, _):
            with pytest.raises(JournalError, match="damaged"):
                await journal.load()

    run(main())


def test_an_append_whose_caller_is_cancelled_is_whole(tmp_path):
    async def main():
        async with opened(tmp_path / "s.db", tmp_path) as (journal, _):
            await journal.load()
            await journal.checkpoint(b"first")
            task = asyncio.create_task(journal.append([b"one", LARGE], []))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with opened(tmp_path / "s.db", tmp_path) as (journal, _):
            assert await journal.load() == (b"first", [b"one", LARGE])

    run(main())


def _no_direct(monkeypatch):
    """As on a system that knows no such writes."""
    monkeypatch.setattr(packs_module.sys, "platform", "other")


def _direct_refused(monkeypatch):
    """As on a file system that takes the setting, and then no such write."""

    def refuse(file, content, at):
        raise OSError(errno.EINVAL, "no")

    monkeypatch.setattr(packs_module.os, "pwrite", refuse)


def _one_page_at_a_time(monkeypatch):
    pwrite = os.pwrite
    monkeypatch.setattr(packs_module, "_BUFFER_BYTES", 2 * 4096)
    monkeypatch.setattr(packs_module.os, "pwrite", lambda f, c, at: pwrite(f, c[:4096], at))


@pytest.mark.parametrize("where", [_no_direct, _direct_refused, _one_page_at_a_time])
def test_packs_hold_the_same_whether_or_not_writes_go_past_the_cache(tmp_path, monkeypatch, where):
    where(monkeypatch)
    writes = [[LARGE, b"a" * 4096], [b"b" * 9000], [LARGE[::-1] * 3]]

    async def main():
        packs = FolderPacks(tmp_path / "packs")
        name = f"edge-0-{1:020d}-{0:016x}"
        for parts in writes:
            pack, start = await packs.write(name, parts)
            content = await packs.read(pack)
            whole = b"".join(parts)
            assert pack == name and start % 4096 == 0
            assert content[start : start + len(whole)] == whole
            assert not any(content[start + len(whole) :]) and len(content) % 4096 == 0
        assert content.startswith(LARGE)
        await packs.close()

    run(main())


def test_two_nodes_share_a_database_without_mixing(tmp_path):
    async def main():
        database = await Database.open(tmp_path / "s.db")
        packs = FolderPacks(tmp_path / "packs")
        cloud, edge = (DatabaseJournal(database, packs, node) for node in (CLOUD, EDGE))
        for journal, first in ((cloud, b"c"), (edge, b"e")):
            await journal.load()
            await journal.checkpoint(first)
        for _ in range(3):
            await asyncio.gather(
                cloud.append([b"cloud", LARGE], []), edge.append([b"edge", LARGE[::-1]], [])
            )
        await database.close()
        database = await Database.open(tmp_path / "s.db")
        cloud, edge = (DatabaseJournal(database, packs, node) for node in (CLOUD, EDGE))
        assert await cloud.load() == (b"c", [b"cloud", LARGE] * 3)
        assert await edge.load() == (b"e", [b"edge", LARGE[::-1]] * 3)
        await database.close()

    run(main())


# ---------------------------------------------------------------- records


def test_an_attempts_row_is_there_exactly_when_its_entry_is(store, tmp_path):
    async def main():
        async with opened(store, tmp_path) as (journal, database):
            await _begin(database, 1)
            await journal.load()
            await journal.checkpoint(b"first")
            await journal.append(
                [b"e"],
                [_phase("waiting"), _round(1, 1, b""), _round(1, 2, b"m" * 32), _evaluation(1)],
            )

            async def killed(*_):
                raise Stopped

            real, journal._keep = journal._keep, killed
            with pytest.raises(Stopped):
                await journal.append([b"f"], [_round(2, 1, b"n" * 32)])
            journal._keep, journal._closed = real, False
            await journal.append([b"g"], [_phase("done")])
            rounds = await _rows(database, select(RoundRow).order_by(RoundRow.id))
            events = await _rows(database, select(EventRow))
            (model,) = await _rows(database, select(ModelRow))
            (row,) = await _rows(database, select(RunRow))
            (evaluation,) = await _rows(database, select(EvaluationRow))
        assert [(r.round, r.attempt, r.succeeded) for r in rounds] == [(1, 1, False), (1, 2, True)]
        assert [e.sequence for e in events] == [1, 2, 3, 4, 5]
        assert [e.kind for e in events] == ["phase", "round", "round", "evaluation", "phase"]
        told = json.loads(events[2].facts)
        assert told["selected"] == 3 and told["refused"] == {"no_data": 1}
        assert model.digest == b"m" * 32 and model.metrics == {"personalised_loss": 0.5}
        assert (row.phase, row.round, row.attempt) == ("done", 2, 1) and row.ended_ms > 0
        assert evaluation.devices == 2
        async with opened(store, tmp_path) as (journal, _):
            assert await journal.load() == (b"first", [b"e", b"g"])

    run(main())


def test_an_order_that_the_machine_refuses_ends_its_run(tmp_path):
    async def main():
        async with opened(tmp_path / "s.db", tmp_path) as (journal, database):
            await _begin(database, 4)
            await journal.load()
            await journal.checkpoint(b"first")
            refused = Record("refused_order", {"run": 4, "why": "16 runs are active"})
            await journal.append([b"e"], [refused])
            (row,) = await _rows(database, select(RunRow))
            assert (row.phase, row.why) == ("failed", "16 runs are active")

    run(main())


# ---------------------------------------------------------------- helpers


async def _rows(database, asked):
    async def work(connection):
        return (await connection.execute(asked)).all()

    return await database.read(work)


class opened:
    """A journal of the cloud's, with its database."""

    def __init__(self, store, folder):
        self.store, self.folder = store, folder

    async def __aenter__(self):
        self.database = await Database.open(self.store)
        packs = FolderPacks(self.folder / "packs")
        self.journal = DatabaseJournal(self.database, packs, CLOUD, records.keep)
        return self.journal, self.database

    async def __aexit__(self, *_):
        await self.journal.close()
        await self.journal._packs.close()
        await self.database.close()


def _stop():
    raise Stopped


def _run():
    return {
        "plan": PlanMessage(name="t").SerializeToString(),
        "phase": "new",
        "weights": os.urandom(32),
        "weights_size": 4,
        "created_ms": 1,
    }


async def _begin(database, number):
    async def work(connection):
        await connection.execute(insert(RunRow).values(run=number, **_run()))

    await database.transact(work)


def _phase(name):
    return Record("phase", {"run": 1, "phase": name, "why": ""})


def _evaluation(round):
    metrics = {"personalised_loss": 0.5, "global_loss": float("nan")}
    fields = {"run": 1, "round": round, "model": b"m" * 32, "metrics": metrics, "devices": 2}
    return Record("evaluation", fields)


def _round(round, attempt, model):
    return Record(
        "round",
        {
            "run": 1,
            "round": round,
            "attempt": attempt,
            "succeeded": bool(model),
            "why": "" if model else "too few devices reported",
            "selected": [1, 2, 3],
            "reported": [1, 2],
            "refused": {3: 6},
            "target_met": False,
            "weight": 1.5,
            "opened_ns": 5_000_000,
            "parent": b"p" * 32,
            "model": model,
            "model_size": 4 if model else 0,
        },
    )


@pytest.mark.parametrize("fault", [TimeoutError(), OSError()])
def test_a_fault_of_the_database_without_a_text_still_gives_a_reason(tmp_path, fault):
    async def main():
        database = await Database.open(tmp_path / "s.db")
        try:

            async def work(connection):
                raise fault

            with pytest.raises(StoreError) as error:
                await database.transact(work)
        finally:
            await database.close()
        why = "did not answer in time" if isinstance(fault, TimeoutError) else "OSError"
        assert why in error.value.message

    run(main())
