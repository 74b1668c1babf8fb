"""A coordinator's SQLite files after kill -9, and damage to any of them: the newest state, or a
refusal that touches nothing."""

from __future__ import annotations

import asyncio
import random
import shutil

import pytest

pytest.importorskip("sqlalchemy")

from delian.cloud.service.fleet_registry import Fleet
from delian.cloud.store import commits
from delian.cloud.store.database import Database, StoreError
from delian.cloud.store.migrate import StoreTooNew
from delian.core.common.log_mark import MARK_BYTES
from delian.core.protocol.ports import Tier

LAST = 12


def run(main):
    return asyncio.run(asyncio.wait_for(main, 300))


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """The files that a process leaves that is killed: the last transactions are in the log only."""
    folder, left = tmp_path_factory.mktemp("running"), tmp_path_factory.mktemp("killed")

    async def main():
        database = await Database.open(folder / "s.db")
        fleet = Fleet(database)
        for number in range(1, LAST + 1):
            assert await fleet.register(Tier.DEVICE, {"place": f"barn {number}"}, 1) == number
        for name in ("s.db", "s.db-wal", "s.db-shm", "s.db.mark"):
            shutil.copy(folder / name, left / name)
        await database.close()

    run(main())
    assert (left / "s.db-wal").stat().st_size > 0
    return left


def newest(folder):
    """The last number that the store knows; the next one would be given out."""

    async def main():
        database = await Database.open(folder / "s.db")
        try:
            return (await Fleet(database).last_numbers())[Tier.DEVICE]
        finally:
            await database.close()

    return run(main())


def copied(killed, folder):
    return shutil.copytree(killed, folder / "copy")


def contents(folder):
    kept = ("s.db", "s.db-wal", "s.db.mark")  # -shm is made again from the log
    return {name: (folder / name).read_bytes() for name in kept if (folder / name).exists()}


def test_what_a_killed_process_leaves_is_its_newest_state(killed, tmp_path):
    folder = copied(killed, tmp_path)
    assert newest(folder) == LAST
    assert newest(folder) == LAST  # as does what an orderly end leaves


def spots(size):
    draw = random.Random(21)
    return sorted({0, 8, 31, 32, size - 1} | {draw.randrange(size) for _ in range(25)})


def test_no_damage_of_the_log_gives_out_a_number_again(killed, tmp_path):
    size = (killed / "s.db-wal").stat().st_size
    refused = 0
    for at in spots(size):
        for cut in (False, True):
            folder = copied(killed, tmp_path)
            content = bytearray((folder / "s.db-wal").read_bytes())
            if cut:
                del content[at:]
            else:
                content[at] ^= 1 << at % 8
            (folder / "s.db-wal").write_bytes(content)
            before = contents(folder)
            try:
                assert newest(folder) == LAST
            except StoreError as fault:
                assert "transactions before" in fault.message and fault.hint
                assert contents(folder) == before
                refused += 1
            shutil.rmtree(folder)
    assert refused > 40


def test_no_damage_of_the_file_itself_loses_a_number(killed, tmp_path):
    ended = copied(killed, tmp_path / "ended")
    assert newest(ended) == LAST  # and all of the log is in the file now
    assert not (ended / "s.db-wal").exists()
    content = (ended / "s.db").read_bytes()
    refused = 0
    for at in [*spots(len(content)), *range(0, len(content), 4096)]:
        for damaged in (
            content[:at],
            content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :],
        ):
            folder = copied(ended, tmp_path)
            (folder / "s.db").write_bytes(damaged)
            try:
                assert newest(folder) == LAST
            except (StoreError, StoreTooNew) as fault:
                assert fault.hint
                assert (folder / "s.db").read_bytes() == damaged
                refused += 1
            shutil.rmtree(folder)
    assert refused > len(content) // 4096  # each cut, and the damage that SQLite sees


@pytest.mark.parametrize("gone", ["s.db-wal", "s.db"])
def test_a_file_that_is_gone_is_no_new_store(killed, tmp_path, gone):
    folder = copied(killed, tmp_path)
    (folder / gone).unlink()
    with pytest.raises(StoreError, match="transactions before"):
        newest(folder)


def test_an_older_copy_is_refused_until_its_operator_says_so(killed, tmp_path):
    folder = copied(killed, tmp_path)
    assert newest(folder) == LAST
    for name in ("s.db", "s.db-wal"):
        shutil.copy(killed / name, folder / name)
    with pytest.raises(StoreError, match="older copy") as caught:
        newest(folder)
    assert "s.db.mark" in caught.value.hint
    (folder / "s.db.mark").unlink()
    assert newest(folder) == LAST


@pytest.mark.parametrize("content", [b"", bytes(MARK_BYTES), b"x"])
def test_a_damaged_mark_is_said_and_made_again(killed, tmp_path, caplog, content):
    folder = copied(killed, tmp_path)
    (folder / "s.db.mark").write_bytes(content)
    assert newest(folder) == LAST
    assert "s.db.mark is damaged" in caplog.text
    caplog.clear()
    assert newest(folder) == LAST and "damaged" not in caplog.text


def test_a_count_that_begins_again_is_not_behind(killed, tmp_path, monkeypatch):
    folder = copied(killed, tmp_path)
    monkeypatch.setattr(commits, "_COUNTS", 8)
    assert newest(folder) == LAST
    assert newest(folder) == LAST
