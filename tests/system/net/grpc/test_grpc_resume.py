"""What was being sent when the connection broke goes on where it ended."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest
from delian.core.node.storage.blobs import FolderBlobs
from delian.core.wire.blob_pb2 import FetchBlob
from delian.core.wire.round_pb2 import Upload

SIZE = 20_000_000
#: A cut loses what was on its way in both sockets and in gRPC's windows, and a part that was begun:
#: Linux lets a socket hold 4 MB that go and 6 that came. To begin again would cost more.
LOST_MAX = 10_500_000


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("delian.core.node.net.grpc.grpc_line.PAUSE_S", 0.02)


@pytest.mark.parametrize("cut_after", [1_000_000, 11_000_000, 19_000_000])
def test_a_blob_goes_on_after_a_cut(net, tmp_path, cut_after):
    content = os.urandom(SIZE)
    digest = hashlib.sha256(content).digest()

    async def story():
        above, below = net.Station(net.edge()), net.Station(net.device())
        await above.blobs.put(content)
        store = FolderBlobs(tmp_path / "store", 2 * SIZE)
        below.switch.detach(below.node)
        below.switch.attach(below.node, below.take, store)
        async with net.serving(above) as (_, port), net.Cable(port) as cable:
            cable.cut_after = cut_after
            async with net.dialling(below, {above.node: cable.address}):
                below.send(above.node, FetchBlob(digest=digest))
                (said,) = await below.gets(1)  # though it was asked for once alone
            assert said.digest == digest
            assert await store.read(digest) == content
            assert cable.cuts == 1
            assert SIZE < cable.passed < SIZE + LOST_MAX
        await store.close()

    asyncio.run(story())


@pytest.mark.parametrize("cut_after", [1_000_000, 11_000_000, 19_000_000])
def test_a_large_message_goes_on_after_a_cut(net, cut_after):
    upload = Upload(run=1, device=5, vector=os.urandom(SIZE))

    async def story():
        above, below = net.Station(net.edge()), net.Station(net.device())
        async with net.serving(above) as (hub, port), net.Cable(port) as cable:
            cable.cut_after = cut_after
            async with net.dialling(below, {above.node: cable.address}) as link:
                below.send(above.node, upload)
                assert await above.gets(1) == [upload]
                await net.until(lambda: link._line.transfers._outbox.bytes_held == 0)
            assert cable.cuts == 1
            assert SIZE < cable.passed < SIZE + LOST_MAX
            assert len(hub.transfers.intake) == 0 and hub.transfers.intake.bytes_held == 0

    asyncio.run(story())


def test_a_blob_goes_on_after_a_restart_of_the_receiver(net, tmp_path):
    content = os.urandom(SIZE)
    digest = hashlib.sha256(content).digest()

    async def story():
        above = net.Station(net.edge())
        await above.blobs.put(content)
        async with net.serving(above) as (_, port), net.Cable(port) as cable:
            for life in range(2):
                below = net.Station(net.device())
                store = FolderBlobs(tmp_path / "store", 2 * SIZE)
                below.switch.detach(below.node)
                below.switch.attach(below.node, below.take, store)
                async with net.dialling(below, {above.node: cable.address}):
                    below.send(above.node, FetchBlob(digest=digest))
                    if life == 0:
                        await net.until(lambda: cable.passed > SIZE // 2)
                    else:
                        await below.gets(1)
                        assert await store.read(digest) == content
                await store.close()
            assert SIZE < cable.passed < SIZE + LOST_MAX

    asyncio.run(story())


def test_a_blob_that_is_gone_is_given_up(net):
    async def story():
        above, below = net.Station(net.edge()), net.Station(net.device())
        ref = await above.blobs.put(os.urandom(100_000))
        async with net.serving(above) as (hub, port), net.dialling(below, {above.node: port}) as up:
            above.blobs.read = gone
            below.send(above.node, FetchBlob(digest=ref.digest))
            await net.until(lambda: up.faults.counts["pull ended: not_found"])
            assert hub.faults.counts["blob is gone"] == 1
            assert not hub.transfers.outbox.of(below.node)
            assert ref.digest not in below.blobs.contents

    async def gone(digest, offset=0, length=-1):
        raise OSError("the disk is on fire")

    asyncio.run(story())
