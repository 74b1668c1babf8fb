"""The way to the cloud with an outbox behind it: what happens while there is no cloud."""

from __future__ import annotations

import asyncio

from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire.admission_pb2 import EdgeHello
from delian.core.wire.blob_pb2 import FetchBlob
from delian.core.wire.round_pb2 import EdgeProgress, EdgeSum
from delian.edge.service import outlink as module
from delian.edge.service.outbox import Outbox
from delian.edge.service.outlink import OutboxLink
from support.virtual_time import run as run_virtually

EDGE = Node(Tier.EDGE, 3)


class Up:
    """A link that is there or not."""

    def __init__(self) -> None:
        self.up = False
        self.sent: list = []
        self.blobs: list = []

    def reaches(self, to) -> bool:
        return self.up

    def send(self, sender, to, message, traceparent="") -> None:
        assert (sender, to) == (EDGE, CLOUD)
        self.sent.append(message)

    def send_blob(self, sender, to, digest, blobs) -> None:
        self.blobs.append(digest)


def scene(tmp_path, play) -> tuple[Up, OutboxLink]:
    up = Up()

    async def run() -> OutboxLink:
        link = OutboxLink(EDGE, up, Outbox(tmp_path / "o.db"))
        work = asyncio.create_task(link.run())
        await play(up, link)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        await link.close()
        return link

    return up, run_virtually(run())


async def until(true) -> None:
    while not true():
        await asyncio.sleep(0.01)


def sums(number: int, content: bytes = b"1234") -> EdgeSum:
    return EdgeSum(run=1, round=number, attempt=1, edge=3, devices=[1], count=1, sum=content)


def test_with_a_cloud_messages_go_straight_through(tmp_path):
    async def play(up, link):
        up.up = True
        link.send(EDGE, CLOUD, sums(1))
        link.send_blob(EDGE, CLOUD, b"d" * 32, None)

    up, link = scene(tmp_path, play)
    assert up.sent == [sums(1)] and up.blobs == [b"d" * 32]
    assert link.kept == 0
    assert link.reaches(CLOUD) and not link.reaches(Node(Tier.DEVICE, 1))


def test_what_waited_goes_first_when_the_cloud_is_back_the_important_before_the_rest(tmp_path):
    async def play(up, link):
        link.send(EDGE, CLOUD, EdgeHello(edge=3, sequence=1))
        link.send(EDGE, CLOUD, EdgeProgress(run=1, round=1, attempt=1, edge=3, counted=1))
        link.send(EDGE, CLOUD, sums(1))
        link.send(EDGE, CLOUD, sums(1))
        link.send(EDGE, CLOUD, sums(2))
        link.send(EDGE, CLOUD, EdgeHello(edge=3, sequence=2))
        link.send(EDGE, CLOUD, FetchBlob(digest=b"d" * 32))
        await until(lambda: link.kept == 6)
        up.up = True
        link.connected()
        await until(lambda: len(up.sent) == 4)

    up, _ = scene(tmp_path, play)
    assert up.sent == [
        sums(1),
        sums(2),
        EdgeHello(edge=3, sequence=2),
        EdgeProgress(run=1, round=1, attempt=1, edge=3, counted=1),
    ]


def test_what_waits_survives_the_end_of_the_process_and_is_sent_by_the_next(tmp_path):
    async def first(up, link):
        link.send(EDGE, CLOUD, sums(7))  # not yet written down when the end comes

    async def second(up, link):
        up.up = True
        link.connected()
        await until(lambda: up.sent)

    scene(tmp_path, first)
    up, link = scene(tmp_path, second)
    assert up.sent == [sums(7)] and link.sent_late == 1
    up, _ = scene(tmp_path, lambda up, link: asyncio.sleep(0))
    assert not up.sent


def test_what_is_about_to_be_written_down_when_the_end_comes_is_sent_by_the_next(tmp_path):
    async def first() -> None:
        link = OutboxLink(EDGE, Up(), Outbox(tmp_path / "o.db"))
        work = asyncio.create_task(link.run())
        async with link._disk:  # something else is being written
            link.send(EDGE, CLOUD, sums(7))
            await until(link._waiting.empty)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        await link.close()

    async def second(up, link):
        up.up = True
        link.connected()
        await until(lambda: up.sent)

    run_virtually(first())
    up, _ = scene(tmp_path, second)
    assert up.sent == [sums(7)]


def test_a_sum_that_is_too_large_and_a_crowd_are_left_to_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "ITEM_BYTES_MAX", 100)

    async def play(up, link):
        link.send(EDGE, CLOUD, sums(1, b"x" * 101))
        for i in range(module.WAITING_MAX + 5):
            link.send(EDGE, CLOUD, sums(i))

    _, link = scene(tmp_path, play)
    assert link.dropped == 1 + 5
