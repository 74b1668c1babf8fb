"""Where messages and blobs go within a process, and which link they leave by."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from delian.core.node.net.message_limits import MESSAGE_BYTES_DEFAULT, TRACEPARENT_MAX
from delian.core.node.net.switch import Switch
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.protocol.ports import CLOUD, Node, Received, Tier
from delian.core.wire.admission_pb2 import CheckIn
from delian.core.wire.blob_pb2 import Blob

EDGE, DEVICE = Node(Tier.EDGE, 0), Node(Tier.DEVICE, 7)
HELLO = CheckIn(device=7)


class Inbox:
    def __init__(self) -> None:
        self.events: list[Received] = []
        self.traces: list[str] = []
        self.sizes: list[int] = []

    def __call__(self, event: Received, traceparent: str = "", size: int = 0) -> None:
        self.events.append(event)
        self.traces.append(traceparent)
        self.sizes.append(size)


class Wire:
    """A link that reaches the nodes that it is told."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = set(nodes)
        self.sent: list[object] = []

    def reaches(self, to: Node) -> bool:
        return to in self.nodes

    def send(self, sender: Node, to: Node, message: object, traceparent: str = "") -> None:
        self.sent.append((sender, to, message, traceparent))

    def send_blob(self, sender: Node, to: Node, digest: bytes, blobs: object) -> None:
        self.sent.append((sender, to, digest, blobs))


def test_a_message_to_a_node_of_the_process_goes_into_its_inbox():
    switch, inbox = Switch(), Inbox()
    switch.attach(EDGE, inbox, MemoryBlobs())
    switch.send(CLOUD, EDGE, HELLO, "00-trace")
    assert inbox.events == [Received(CLOUD, HELLO)] and inbox.traces == ["00-trace"]
    assert inbox.events[0].message is HELLO


def test_other_messages_leave_by_the_first_link_that_reaches_their_node():
    switch, one, two = Switch(), Wire(), Wire(DEVICE)
    switch.attach(EDGE, Inbox(), MemoryBlobs())
    switch.add_link(one)
    switch.add_link(two)
    switch.send(EDGE, DEVICE, HELLO, "00-trace")
    one.nodes.add(DEVICE)
    switch.send(EDGE, DEVICE, HELLO)
    assert two.sent == [(EDGE, DEVICE, HELLO, "00-trace")] and one.sent == [
        (EDGE, DEVICE, HELLO, "")
    ]
    switch.remove_link(one)
    switch.send_blob(EDGE, DEVICE, bytes(32))
    assert two.sent[1][:3] == (EDGE, DEVICE, bytes(32))
    switch.remove_link(two)
    switch.send(EDGE, DEVICE, HELLO)
    switch.send_blob(EDGE, DEVICE, bytes(32))
    assert switch.faults.counts == {"unreachable": 2}


def test_what_a_link_delivers_to_a_node_that_is_gone_is_counted():
    switch, inbox = Switch(), Inbox()
    switch.attach(EDGE, inbox, MemoryBlobs())
    assert switch.deliver(EDGE, Received(DEVICE, HELLO), "00-trace", 9)
    assert not switch.deliver(CLOUD, Received(DEVICE, HELLO))
    switch.detach(EDGE)
    assert not switch.deliver(EDGE, Received(DEVICE, HELLO))
    assert inbox.events == [Received(DEVICE, HELLO)]
    assert (inbox.traces, inbox.sizes) == (["00-trace"], [9])
    assert switch.faults.counts == {"no such receiver": 2}


def test_a_trace_context_that_is_too_long_is_left_out():
    switch, inbox = Switch(), Inbox()
    switch.attach(EDGE, inbox, MemoryBlobs())
    switch.deliver(EDGE, Received(DEVICE, HELLO), "x" * (TRACEPARENT_MAX + 1))
    assert inbox.traces == [""]


def test_without_a_limit_of_its_own_a_node_takes_nothing_large():
    switch = Switch()
    switch.attach(EDGE, Inbox(), MemoryBlobs())
    assert switch.port(EDGE).limit(DEVICE) == MESSAGE_BYTES_DEFAULT
    assert switch.port(CLOUD) is None


def test_a_link_waits_while_the_receiver_has_no_room():
    async def story():
        switch, inbox, room = Switch(), Inbox(), asyncio.Event()

        async def offer(event, traceparent="", size=0):
            await room.wait()
            inbox(event, traceparent, size)
            return True

        switch.attach(EDGE, inbox, MemoryBlobs(), offer=offer)
        waiting = asyncio.create_task(switch.hand_over(EDGE, Received(DEVICE, HELLO), "t", 5))
        await asyncio.sleep(0)
        assert not inbox.events
        room.set()
        assert await waiting
        assert (inbox.events, inbox.sizes) == ([Received(DEVICE, HELLO)], [5])
        assert not await switch.hand_over(CLOUD, Received(DEVICE, HELLO))

    asyncio.run(story())


@pytest.mark.parametrize("shared", [True, False])
def test_a_blob_between_nodes_of_the_process_is_in_the_store_before_it_is_told(shared):
    content = bytes(range(256)) * 4000

    async def story():
        switch, inbox, store = Switch(), Inbox(), MemoryBlobs()
        other = store if shared else MemoryBlobs()
        switch.attach(CLOUD, Inbox(), store)
        switch.attach(EDGE, inbox, other)
        ref = await store.put(content)
        switch.send_blob(CLOUD, EDGE, ref.digest)
        switch.send_blob(CLOUD, EDGE, ref.digest)  # while the first is under way
        async with asyncio.timeout(60):
            while not inbox.events:
                await asyncio.sleep(0)
        assert inbox.events == [Received(CLOUD, Blob(digest=ref.digest, size=len(content)))]
        assert other.contents[ref.digest] == content
        await switch.close()

    asyncio.run(story())


def test_a_blob_that_cannot_be_copied_is_counted():
    async def story():
        switch, inbox = Switch(), Inbox()
        source, small = MemoryBlobs(), MemoryBlobs(bytes_max=10)
        switch.attach(CLOUD, Inbox(), source)
        switch.attach(EDGE, inbox, small)
        ref = await source.put(bytes(100))
        forged = hashlib.sha256(b"something else").digest()
        source.contents[forged] = b"12345"
        for digest in (ref.digest, forged, bytes(32)):
            switch.send_blob(CLOUD, EDGE, digest)
        async with asyncio.timeout(60):
            while switch.faults.counts.total() < 3:
                await asyncio.sleep(0)
        assert switch.faults.counts == {
            "store failed": 1,
            "blob does not hash to its digest": 1,
            "blob is gone": 1,
        }
        assert not inbox.events and not small.contents
        await switch.close()

    asyncio.run(story())
