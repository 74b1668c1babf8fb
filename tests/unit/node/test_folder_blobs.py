"""Blobs in a folder: kept by content, resumed where they ended, never more than their cap."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os

import pytest
from delian.core.node.storage import blobs as module
from delian.core.node.storage.blobs import BlobError, BlobsFull, FolderBlobs
from delian.core.node.storage.disk import FolderInUse
from delian.core.node.storage.memory_storage import MemoryBlobs

CAP = 1000


def content(seed: int, size: int = 300) -> bytes:
    return hashlib.shake_128(b"%d" % seed).digest(size)


def name(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


async def arrive(store, data: bytes, part: int = 100) -> bool:
    partial = await store.begin(name(data), len(data))
    while partial.offset < partial.size:
        await partial.write(data[partial.offset : partial.offset + part])
    return await partial.finish()


def with_store(tmp_path, use, bytes_max: int = CAP):
    async def main():
        store = FolderBlobs(tmp_path, bytes_max)
        try:
            return await use(store)
        finally:
            await store.close()

    return asyncio.run(main())


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_what_is_put_can_be_read_in_pieces_and_dropped(tmp_path, kind):
    async def main():
        store = FolderBlobs(tmp_path, CAP) if kind == "folder" else MemoryBlobs(CAP)
        data = content(1)
        ref = await store.put(data)
        assert (ref.digest, ref.size) == (name(data), 300)
        assert await store.digests() == (ref.digest,) and await store.size(ref.digest) == 300
        assert await store.read(ref.digest) == data
        assert await store.read(ref.digest, 250, 100) == data[250:]
        assert await store.read(ref.digest, 10, 20) == data[10:30]
        await store.drop(ref.digest)
        await store.drop(ref.digest)
        assert await store.digests() == () and await store.size(ref.digest) is None
        with pytest.raises(BlobError, match="not"):
            await store.read(ref.digest)
        assert await arrive(store, data) and await store.read(ref.digest) == data
        again = await store.begin(ref.digest, 300)
        assert again.offset == again.size and await again.finish()

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_pinned_blobs_stay_until_the_last_pin_is_gone(tmp_path, kind):
    async def main():
        store = FolderBlobs(tmp_path, CAP) if kind == "folder" else MemoryBlobs(CAP)
        ref = await store.put(content(1))
        store.pin(ref.digest)
        store.pin(ref.digest)
        await store.drop(ref.digest)
        store.unpin(ref.digest)
        await store.drop(ref.digest)
        assert await store.size(ref.digest) == 300
        store.unpin(ref.digest)
        store.unpin(ref.digest)
        assert await store.size(ref.digest) == 300
        await store.drop(ref.digest)
        assert await store.size(ref.digest) is None

    asyncio.run(main())


@pytest.mark.parametrize("digest", [b"", b"../../etc/passwd", b"x" * 31, b"x" * 33])
def test_a_name_that_is_no_digest_is_refused(tmp_path, digest):
    async def use(store):
        for call in (store.size, store.read, store.drop, lambda d: store.begin(d, 1)):
            with pytest.raises(BlobError, match="32 bytes"):
                await call(digest)
        for pin in (store.pin, store.unpin, store.path):
            with pytest.raises(BlobError, match="32 bytes"):
                pin(digest)

    with_store(tmp_path, use)


def test_a_transfer_goes_on_where_it_ended_also_after_a_restart(tmp_path):
    data = content(1)

    async def first(store):
        partial = await store.begin(name(data), 300)
        assert partial.offset == 0
        await partial.write(data[:120])
        await partial.abort()
        with pytest.raises(BlobError):
            await partial.write(data[120:])
        partial = await store.begin(name(data), 300)
        assert partial.offset == 120
        await partial.write(data[120:150])
        assert await store.size(name(data)) is None and await store.digests() == ()

    async def second(store):
        partial = await store.begin(name(data), 300)
        assert partial.offset == 150
        await partial.write(data[150:])
        assert await partial.finish()
        assert await store.read(name(data)) == data

    with_store(tmp_path, first)
    with_store(tmp_path, second)


def test_a_second_writer_takes_over(tmp_path):
    data = content(1)

    async def use(store):
        old = await store.begin(name(data), 300)
        await old.write(data[:100])
        new = await store.begin(name(data), 300)
        assert new.offset == 100
        with pytest.raises(BlobError, match="another writer"):
            await old.write(data[100:200])
        await old.abort(keep=False)  # what it wrote is the new one's now
        await new.write(data[100:])
        assert await new.finish()

    with_store(tmp_path, use)


def test_what_does_not_hash_to_its_name_is_forgotten(tmp_path):
    data = content(1)

    async def use(store):
        partial = await store.begin(name(data), 300)
        await partial.write(data[:299] + b"\0")
        assert not await partial.finish()
        assert await store.size(name(data)) is None and store.used == 0
        assert (await store.begin(name(data), 300)).offset == 0

    with_store(tmp_path, use)


def test_a_partial_that_a_crash_has_spoilt_is_found_out(tmp_path):
    data = content(1)

    async def first(store):
        await (await store.begin(name(data), 300)).write(data[:200])

    async def second(store):
        partial = await store.begin(name(data), 300)
        await partial.write(data[partial.offset :])
        assert not await partial.finish()
        assert await arrive(store, data)

    with_store(tmp_path, first)
    path = tmp_path / "partial" / name(data).hex()
    path.write_bytes(bytes(50) + path.read_bytes()[50:])
    with_store(tmp_path, second)


def test_more_than_was_announced_or_less_is_refused(tmp_path):
    data = content(1)

    async def use(store):
        partial = await store.begin(name(data), 300)
        await partial.write(data[:100])
        with pytest.raises(BlobError, match="100 bytes of 300"):
            await partial.finish()
        with pytest.raises(BlobError, match="announced"):
            await partial.write(bytes(201))
        assert store.used == 0
        for size in (-1, 2**32 + 1):
            with pytest.raises(BlobError, match="at most"):
                await store.begin(name(data), size)
        await store.put(data)
        with pytest.raises(BlobError, match="300 bytes, not 299"):
            await store.begin(name(data), 299)

    with_store(tmp_path, use)


def test_the_least_recently_used_goes_first_and_the_pinned_never(tmp_path):
    async def use(store):
        refs = [await store.put(content(i)) for i in range(3)]
        await store.read(refs[0].digest)
        store.pin(refs[1].digest)
        new = await store.put(content(3))
        assert set(await store.digests()) == {refs[0].digest, refs[1].digest, new.digest}
        store.pin(refs[0].digest)
        store.pin(new.digest)
        with pytest.raises(BlobsFull, match="900 of 1000"):
            await store.put(content(4))
        with pytest.raises(BlobsFull):
            await store.begin(name(content(4)), 300)
        assert len(await store.digests()) == 3 and store.used == 900

    with_store(tmp_path, use)


def test_the_order_of_use_survives_a_restart(tmp_path):
    async def first(store):
        refs = [await store.put(content(i)) for i in range(3)]
        for number, ref in enumerate(refs):
            os.utime(tmp_path / "whole" / ref.digest.hex(), ns=(number, number))
        await store.read(refs[0].digest)

    async def second(store):
        await store.put(content(3))
        assert await store.size(name(content(0))) == 300
        assert await store.size(name(content(1))) is None

    with_store(tmp_path, first)
    with_store(tmp_path, second)


def test_what_is_on_its_way_takes_its_room_from_the_beginning(tmp_path):
    async def use(store):
        partial = await store.begin(name(content(1, 800)), 800)
        with pytest.raises(BlobsFull):
            await store.put(content(2))
        await partial.abort()  # nobody writes it now, and nothing of it is here
        await store.put(content(2))
        partial = await store.begin(name(content(3)), 300)
        await partial.write(content(3)[:100])
        await partial.abort()
        await store.put(content(4, 700))  # the partial goes before the whole one
        assert len(await store.digests()) == 2 and store.used == 1000

    with_store(tmp_path, use)


def test_a_full_disk_is_a_clear_error_and_keeps_what_is_there(tmp_path, monkeypatch):
    data = content(1)

    def full(fd, parts):
        os.write(fd, parts[0][: len(parts[0]) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    async def use(store):
        partial = await store.begin(name(data), 300)
        await partial.write(data[:100])
        with monkeypatch.context() as patch:
            patch.setattr(module, "write_all", full)
            with pytest.raises(BlobsFull, match="disk is full"):
                await partial.write(data[100:])
            with pytest.raises(BlobsFull, match="disk is full"):
                await store.put(content(2))
        assert partial.offset == 100 and store.used == 300
        await partial.write(data[100:])
        assert await partial.finish() and await store.put(content(2))

    with_store(tmp_path, use)
    assert sorted(p.name for p in (tmp_path / "partial").iterdir()) == []


def test_a_put_that_is_cancelled_leaves_index_and_files_agreeing(tmp_path):
    async def use(store):
        task = asyncio.ensure_future(store.put(content(1)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        files = [path.name for path in (tmp_path / "whole").iterdir()]
        assert files == [digest.hex() for digest in await store.digests()]

    with_store(tmp_path, use)


def test_left_over_and_foreign_files_are_not_taken_for_blobs(tmp_path):
    for folder in ("whole", "partial"):
        (tmp_path / folder).mkdir()
    (tmp_path / "partial" / f"{'ab' * 32}.put").write_bytes(b"half")
    (tmp_path / "whole" / "README").write_bytes(b"mine")

    async def use(store):
        assert await store.digests() == () and store.used == 0

    with_store(tmp_path, use)
    assert not list((tmp_path / "partial").iterdir())
    assert (tmp_path / "whole" / "README").exists()


def test_two_stores_never_share_a_folder(tmp_path):
    async def use(store):
        with pytest.raises(FolderInUse):
            FolderBlobs(tmp_path, CAP)

    with_store(tmp_path, use)
    with_store(tmp_path, lambda store: store.digests())


# ---------------------------------------------------------------- damage


def flip(path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def cut(path, at: int) -> None:
    os.truncate(path, at)


@pytest.mark.parametrize("harm", [flip, cut])
@pytest.mark.parametrize("at", [0, 150, 299])
def test_a_blob_that_was_damaged_while_no_process_ran_is_not_here_and_can_come_again(
    tmp_path, harm, at, caplog
):
    data, other = content(1), content(2)
    whole = tmp_path / "whole"

    async def fill(store):
        await store.put(data)
        await store.put(other)

    async def look(store):
        assert await store.digests() == (name(other),)
        assert await store.size(name(data)) is None
        with pytest.raises(BlobError, match="not in"):
            store.path(name(data))
        assert await arrive(store, data) and await store.read(name(data)) == data

    with_store(tmp_path, fill)
    harm(whole / name(data).hex(), at)
    with_store(tmp_path, look)
    assert (whole / f"{name(data).hex()}.damaged").exists()  # somebody may want to look at it
    assert "damaged" in caplog.text and name(data).hex()[:16] in caplog.text


def test_a_blob_that_is_damaged_or_removed_meanwhile_is_not_here(tmp_path):
    data, other = content(1), content(2)

    async def use(store):
        for blob in (data, other):
            await store.put(blob)
            assert await store.size(name(blob)) == 300
        flip(store.path(name(data)), 7)
        store.path(name(other)).unlink()
        assert await store.size(name(data)) is None and await store.size(name(other)) is None
        assert await arrive(store, data) and await store.size(name(data)) == 300

    with_store(tmp_path, use)


def test_a_blob_is_hashed_once_however_many_ask(tmp_path, monkeypatch):
    data, hashed = content(1), []
    hash_of = module._hash_of

    async def fill(store):
        await store.put(data)

    async def ask(store):
        monkeypatch.setattr(module, "_hash_of", lambda path: hashed.append(path) or hash_of(path))
        assert set(await asyncio.gather(*(store.size(name(data)) for _ in range(50)))) == {300}
        assert await store.read(name(data)) == data and await store.size(name(data)) == 300
        assert len(hashed) == 1

    with_store(tmp_path, fill)
    with_store(tmp_path, ask)
