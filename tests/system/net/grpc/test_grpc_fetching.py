"""Transfers with a home whose connection fails: none holds a place, or a message, for ever."""

from __future__ import annotations

import asyncio
import functools
from types import SimpleNamespace

import pytest
from delian.core.node.net.grpc.grpc_fetching import FETCHING_MAX, Fetching
from delian.core.node.net.message_limits import INLINE_MAX, TRANSFER_IDLE_S, Faults
from delian.core.node.net.switch import Switch
from delian.core.node.net.transfer import Refused
from delian.core.node.storage.codec import node_of
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.protocol.ports import Node, Tier
from delian.core.wire.link_pb2 import TRANSFER_BLOB, Envelope, Offer, Want
from delian.core.wire.round_pb2 import Upload

ME, HOME = Node(Tier.DEVICE, 1), Node(Tier.EDGE, 1)


def in_a_loop(test):
    @functools.wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


class Call:
    """A call on which no part moves. error: raised at once; None: it waits until cancelled."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def _wait(self, *_) -> bytes:
        if self._error is not None:
            raise self._error
        return await asyncio.get_running_loop().create_future()

    read = write = _wait

    def cancel(self) -> None:
        pass

    def add_done_callback(self, _) -> None:
        pass


class Channel:
    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self._error = error

    def _call(self, path):
        def call(*_, **__):
            self.calls.append(path)
            return Call(self._error)

        return call

    stream_unary = unary_stream = _call


def fetching_with(said: list[bytes]) -> Fetching:
    switch = Switch()
    switch._ports[ME] = SimpleNamespace(blobs=MemoryBlobs(), limit=lambda _: 2**30)
    meter = switch.traffic.meter("grpc")
    return Fetching(switch, Faults("test"), meter, HOME, said.append, ())


def blob(number: int) -> Offer:
    return Offer(id=number.to_bytes(32, "big"), size=10, kind=TRANSFER_BLOB)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def offer_many(fetching: Fetching, count: int) -> None:
    for number in range(count):
        fetching.asked.add(ME, blob(number).id)
        fetching.take_offer(blob(number), ME)
        await settle()


@in_a_loop
async def test_fetches_that_have_failed_keep_no_place_from_new_ones():
    fetching = fetching_with([])
    fetching.begin(channel := Channel(TimeoutError()))
    await offer_many(fetching, FETCHING_MAX + 3)
    assert len(channel.calls) == FETCHING_MAX + 3
    fetching.begin(again := Channel(TimeoutError()))  # and the newest go on with a new connection
    await settle()
    assert len(again.calls) == FETCHING_MAX


@in_a_loop
async def test_so_many_fetches_are_under_way_at_most():
    said: list[bytes] = []
    fetching = fetching_with(said)
    fetching.begin(Channel())
    with pytest.raises(Refused, match="so much is being fetched"):
        await offer_many(fetching, FETCHING_MAX + 1)
    assert Envelope.FromString(said[-1]).want.refused
    assert node_of(Envelope.FromString(said[-1]).to) == HOME
    await fetching.pause()


@in_a_loop
async def test_a_push_that_is_cut_off_before_it_begins_goes_on_later():
    fetching = fetching_with([])
    content = bytes(INLINE_MAX + 1)
    fetching.begin(Channel())
    fetching.offer(ME, Upload(), content)
    (out,) = fetching._outbox.of(HOME)
    fetching.take_want(Want(id=out.id, offset=0))
    await fetching.pause()  # in the same turn of the loop
    assert out.users == 0
    fetching.begin(channel := Channel())
    fetching.take_want(Want(id=out.id, offset=0))
    await settle()
    assert len(channel.calls) == 1
    await fetching.pause()
    assert fetching._outbox.expire(out.touched + 2 * TRANSFER_IDLE_S) == [out]
