"""Blobs in an object store with a cache before it, and a node's view of a shared store."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

pytest.importorskip("obstore")

from delian.cloud.service import objects
from delian.cloud.service.objects import NodeBlobs, ObjectBlobs, ObjectPacks
from delian.core.common.errors import DelianError
from delian.core.node.storage.blobs import BlobError, FolderBlobs
from delian.core.node.storage.memory_storage import MemoryBlobs

SMALL = b"weights" * 100
LARGE = bytes(range(256)) * 4 * 10_500  # more than one part


def digest_of(content):
    return hashlib.sha256(content).digest()


def run(main):
    return asyncio.run(asyncio.wait_for(main, 300))


@pytest.fixture(scope="module")
def bucket():
    """URL and options of a bucket on a server of this process."""
    server_module = pytest.importorskip("moto.server")
    server = server_module.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
        "region": "us-east-1",
        "endpoint": f"http://{host}:{port}",
        "client_options": {"allow_http": True},
    }
    import urllib.request

    asked = urllib.request.Request(f"http://{host}:{port}/delian", method="PUT")
    urllib.request.urlopen(asked, timeout=60).close()
    yield "s3://delian/federation", options
    server.stop()


@pytest.fixture(params=["memory", "s3"])
def connected(request):
    if request.param == "memory":
        return objects.connect("memory:///")
    url, options = request.getfixturevalue("bucket")
    return objects.connect(f"{url}/{request.node.name}", **options)


def test_what_is_put_is_read_in_whole_and_in_parts_also_by_the_next_process(connected, tmp_path):
    async def main():
        cache = FolderBlobs(tmp_path / "a", 2**30)
        blobs = await ObjectBlobs.open(connected, cache)
        for content in (SMALL, LARGE):
            ref = await blobs.put(content)
            assert (ref.digest, ref.size) == (digest_of(content), len(content))
            assert await blobs.put(content) == ref
        await blobs.close()
        cache = FolderBlobs(tmp_path / "b", 2**30)
        blobs = await ObjectBlobs.open(connected, cache)
        assert await blobs.digests() == tuple(sorted(map(digest_of, (SMALL, LARGE))))
        assert await blobs.read(digest_of(LARGE), 5, 70) == LARGE[5:75]
        assert await cache.digests() == ()  # a range is not worth a whole blob
        assert await blobs.read(digest_of(LARGE)) == LARGE
        assert await cache.digests() == (digest_of(LARGE),)
        assert await blobs.read(digest_of(SMALL), 690, 50) == SMALL[690:]
        await blobs.close()

    run(main())


def test_a_transfer_goes_on_where_it_ended_and_is_refused_when_it_does_not_hash(
    connected, tmp_path
):
    async def main():
        blobs = await ObjectBlobs.open(connected, FolderBlobs(tmp_path, 2**30))
        partial = await blobs.begin(digest_of(SMALL), len(SMALL))
        await partial.write(SMALL[:100])
        await partial.abort()
        assert await blobs.size(digest_of(SMALL)) is None
        partial = await blobs.begin(digest_of(SMALL), len(SMALL))
        assert partial.offset == 100
        await partial.write(SMALL[100:])
        assert await partial.finish()
        assert await blobs.size(digest_of(SMALL)) == len(SMALL)
        again = await blobs.begin(digest_of(SMALL), len(SMALL))
        assert again.offset == len(SMALL) and await again.finish()
        wrong = await blobs.begin(digest_of(b"x"), 3)
        await wrong.write(b"abc")
        assert not await wrong.finish()
        assert await blobs.size(digest_of(b"x")) is None
        await blobs.close()

    run(main())


def test_a_pinned_blob_is_not_dropped(connected, tmp_path):
    async def main():
        blobs = await ObjectBlobs.open(connected, FolderBlobs(tmp_path, 2**30))
        ref = await blobs.put(SMALL)
        blobs.pin(ref.digest)
        await blobs.drop(ref.digest)
        assert await blobs.read(ref.digest) == SMALL
        blobs.unpin(ref.digest)
        await blobs.drop(ref.digest)
        with pytest.raises(BlobError):
            await blobs.read(ref.digest)
        assert await (await ObjectBlobs.open(connected, blobs.cache)).digests() == ()
        await blobs.close()

    run(main())


def test_a_blob_that_the_cache_cannot_hold_is_read_by_ranges(tmp_path):
    async def main():
        store = objects.connect("memory:///")
        blobs = await ObjectBlobs.open(store, FolderBlobs(tmp_path / "a", 2**30))
        ref = await blobs.put(SMALL)
        await blobs.close()
        blobs = await ObjectBlobs.open(store, FolderBlobs(tmp_path / "b", 10))
        assert await blobs.read(ref.digest) == SMALL
        await blobs.close()

    run(main())


def test_packs_are_kept_listed_and_removed(connected):
    async def main():
        packs = ObjectPacks(connected)
        names = [f"cloud-0-{n:020d}-{'a' * 16}" for n in (1, 2)]
        for name in names:
            assert await packs.write(name, [b"one", b"two"]) == (name, 0)
        assert await packs.names("cloud-0-") == names
        assert await packs.names("edge-0-") == []
        assert await packs.read(names[0]) == b"onetwo"
        await packs.remove(names[:1])
        assert await packs.names("cloud-0-") == names[1:]

    run(main())


def test_a_bucket_that_is_not_there_is_an_error_with_a_hint(bucket, tmp_path):
    async def main():
        url, options = bucket
        store = objects.connect(url.replace("delian", "elsewhere"), **options)
        with pytest.raises(BlobError, match="object store"):
            await ObjectBlobs.open(store, FolderBlobs(tmp_path, 2**20))

    run(main())


@pytest.mark.parametrize("url", ["http://example.org/x", "ftp://a/b", "nonsense://"])
def test_only_object_stores_are_taken(url):
    with pytest.raises(DelianError):
        objects.connect(url)


def test_a_node_sees_of_a_shared_store_what_it_asks_for():
    async def main():
        shared = MemoryBlobs()
        one = await shared.put(b"one")
        other = await shared.put(b"other")
        view = NodeBlobs(shared, lambda: [one.digest, b"gone" * 8])
        assert await view.digests() == (one.digest,)
        assert await NodeBlobs(shared).digests() == ()
        assert await view.read(other.digest) == b"other"

    run(main())
