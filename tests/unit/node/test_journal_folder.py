"""The journal in a real folder: it survives its owner, and has one owner at a time."""

from __future__ import annotations

import asyncio
import os

import pytest
from delian.core.node.storage.disk import FolderDisk, FolderInUse, write_all
from delian.core.node.storage.journal import FileJournal, JournalError


def test_entries_and_snapshots_are_there_when_it_is_opened_again(tmp_path):
    async def main():
        journal = FileJournal(tmp_path / "journal")
        assert await journal.load() == (None, [])
        await journal.append([b"one", b"", b"two"], [])
        await journal.close()
        journal = FileJournal(tmp_path / "journal")
        assert await journal.load() == (None, [b"one", b"", b"two"])
        await journal.checkpoint(b"state")
        await journal.append([b"three"], [])
        await journal.close()
        journal = FileJournal(tmp_path / "journal")
        assert await journal.load() == (b"state", [b"three"])
        await journal.close()
        await journal.close()

    asyncio.run(main())


def test_a_checkpoint_leaves_one_snapshot_and_no_old_segments(tmp_path):
    async def main():
        journal = FileJournal(tmp_path)
        await journal.load()
        for number in range(4):
            await journal.append([b"%d" % number], [])
            await journal.checkpoint(b"state %d" % number)
        await journal.close()

    asyncio.run(main())
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "lock",
        "mark",
        "snapshot-00000000000000000004",
    ]


def test_two_journals_never_share_a_folder(tmp_path):
    async def main():
        first, second = FileJournal(tmp_path), FileJournal(tmp_path)
        await first.load()
        with pytest.raises(FolderInUse, match=f"in use by process {os.getpid()}"):
            await second.load()
        await second.close()
        await first.append([b"still mine"], [])
        await first.close()
        third = FileJournal(tmp_path)
        assert await third.load() == (None, [b"still mine"])
        await third.close()

    asyncio.run(main())


def test_large_entries_are_written_as_they_are(tmp_path):
    entry = os.urandom(12 * 2**20)

    async def main():
        journal = FileJournal(tmp_path)
        await journal.load()
        await journal.append([b"small", entry, b"small too"], [])
        await journal.close()
        journal = FileJournal(tmp_path)
        _, (small, large, last) = await journal.load()
        await journal.close()
        assert (small, last) == (b"small", b"small too") and large == entry

    asyncio.run(main())


def test_an_append_whose_caller_is_cancelled_ends_before_the_next_one(tmp_path):
    async def main():
        journal = FileJournal(tmp_path)
        await journal.load()
        first = asyncio.ensure_future(journal.append([b"first"], []))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await journal.append([b"second"], [])
        await journal.close()
        journal = FileJournal(tmp_path)
        _, entries = await journal.load()
        await journal.close()
        assert entries[-1] == b"second" and entries in ([b"first", b"second"], [b"second"])

    asyncio.run(main())


def test_a_journal_that_is_not_open_takes_nothing(tmp_path):
    async def main():
        journal = FileJournal(tmp_path)
        with pytest.raises(JournalError, match="not loaded"):
            await journal.append([b"early"], [])
        await journal.load()
        await journal.close()
        with pytest.raises(JournalError, match="closed"):
            await journal.append([b"late"], [])

    asyncio.run(main())


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("in the way")

    async def main():
        journal = FileJournal(tmp_path / "file" / "journal")
        with pytest.raises(JournalError, match="no journal can be kept"):
            await journal.load()
        await journal.close()

    asyncio.run(main())


def test_many_small_buffers_and_short_writes_come_out_whole(tmp_path, monkeypatch):
    parts = [b"%d," % i for i in range(3000)] + [b"", b"end" * 1000]
    wanted = b"".join(parts)
    disk = FolderDisk(tmp_path)
    disk.append("plain", parts)
    disk.close()
    assert (tmp_path / "plain").read_bytes() == wanted
    if hasattr(os, "writev"):
        whole = os.writev
        monkeypatch.setattr(os, "writev", lambda fd, views: whole(fd, [b"".join(views)[:777]]))
        with (tmp_path / "short").open("wb") as file:
            write_all(file.fileno(), parts)
        assert (tmp_path / "short").read_bytes() == wanted
