"""Messages and blobs between a hub and its uplinks."""

from __future__ import annotations

import asyncio
import os

import pytest
from delian.core.common.errors import DelianError
from delian.core.node.identity.pki.roles import MESSAGES, Guard
from delian.core.node.net.grpc.grpc_link import GrpcUplink
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.loopback import INSECURE
from delian.core.node.net.switch import Switch
from delian.core.node.storage.codec import MESSAGE_FIELDS
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire.admission_pb2 import Accept, CheckIn, EdgeHello
from delian.core.wire.blob_pb2 import Blob, FetchBlob
from delian.core.wire.round_pb2 import EdgeTask, Task, Upload, UploadAck


def sayable(sender: Tier, to: Tier) -> list[object]:
    """One message of each kind that machines of one tier send to those of another."""
    kinds = {field: kind for kind, field in MESSAGE_FIELDS.items()}
    allowed = MESSAGES[sender, to] & set(kinds) - {"blob"}
    return [kinds[field]() for field in sorted(allowed)]


@pytest.mark.parametrize("lower", [Tier.DEVICE, Tier.EDGE])
def test_every_message_of_the_contract_passes_in_its_direction(net, lower):
    upper = net.edge() if lower is Tier.DEVICE else CLOUD

    async def story():
        above, below = net.Station(upper), net.Station(Node(lower, 5))
        async with net.serving(above) as (_, port), net.dialling(below, {upper: port}):
            up, down = sayable(lower, upper.tier), sayable(upper.tier, lower)
            for message in up:
                below.send(upper, message, "00-up")
            assert await above.gets(len(up)) == up
            for message in down:
                above.send(below.node, message, "00-down")
            assert await below.gets(len(down)) == down
            assert {e.sender for e in above.received} == {below.node}
            assert {e.sender for e in below.received} == {upper}
            assert set(above.traces) == {"00-up"} and set(below.traces) == {"00-down"}
        for faults in (above.switch.faults, below.switch.faults):
            assert not faults.counts

    asyncio.run(story())


def test_large_messages_pass_in_both_directions(net):
    async def story():
        above, below = net.Station(CLOUD), net.Station(net.edge())
        async with net.serving(above) as (hub, port), net.dialling(below, {CLOUD: port}) as link:
            hello = EdgeHello(edge=3, ready=range(100_000))
            below.send(CLOUD, hello)
            assert await above.gets(1) == [hello]
            task = EdgeTask(task=Task(run=1), devices=range(1 << 40, (1 << 40) + 50_000))
            above.send(below.node, task)
            assert await below.gets(1) == [task]
            await net.until(lambda: hub.transfers.outbox.bytes_held == 0)
            assert len(hub.transfers.intake) == 0
            assert not hub.faults.counts and not link.faults.counts

    asyncio.run(story())


def test_a_large_message_that_is_repeated_while_it_waits_travels_once(net):
    async def story():
        above, below = net.Station(net.edge()), net.Station(net.device())
        async with net.serving(above) as (_, port), net.dialling(below, {above.node: port}):
            upload = Upload(device=5, vector=os.urandom(4 << 20))
            for _ in range(3):
                below.send(above.node, upload)
            below.send(above.node, CheckIn(device=5))
            await net.until(lambda: upload in above.messages)
            sent = sum(below.switch.traffic.bytes.values())
            assert sent < 5 << 20
            # Its answer may have been lost, so that it is sent once more: then it comes once more.
            await net.until(lambda: not (link_outbox(below)))
            below.send(above.node, upload)
            await net.until(lambda: above.messages.count(upload) == 2)

    def link_outbox(station):
        (link,) = station.switch._links
        return link._line.transfers._outbox.of(net.edge())

    asyncio.run(story())


def test_a_blob_that_was_asked_for_goes_into_the_store(net):
    content = os.urandom(3_000_001)

    async def story():
        above, below = net.Station(net.edge()), net.Station(net.device())
        ref = await above.blobs.put(content)
        async with net.serving(above) as (hub, port), net.dialling(below, {above.node: port}):
            below.send(above.node, FetchBlob(digest=ref.digest))
            assert await below.gets(1) == [Blob(digest=ref.digest, size=len(content))]
            assert below.blobs.contents[ref.digest] == content
            # Whole already: said again without a byte of it.
            moved = sum(above.switch.traffic.bytes.values())
            below.send(above.node, FetchBlob(digest=ref.digest))
            assert len(await below.gets(2)) == 2
            assert sum(above.switch.traffic.bytes.values()) - moved < 1_000
            await net.until(lambda: not hub.transfers.outbox.of(below.node))
        assert above.blobs._pins[ref.digest] == 0

    asyncio.run(story())


def test_a_message_may_be_sent_before_there_is_a_connection(net):
    async def story():
        above, below = net.Station(net.edge()), net.Station(net.device())
        async with net.serving(above) as (_, port), net.dialling(below, {above.node: port}):
            for i in range(1, 11):
                below.send(above.node, CheckIn(device=5, sequence=i))
            assert [m.sequence for m in await above.gets(10)] == list(range(1, 11))

    asyncio.run(story())


def test_who_speaks_to_another_home_goes_there(net, monkeypatch):
    monkeypatch.setattr("delian.core.node.net.grpc.grpc_line.LEAVE_S", 0.02)
    first, second = Node(Tier.EDGE, 1), Node(Tier.EDGE, 2)

    async def story():
        one, two, below = net.Station(first), net.Station(second), net.Station(net.device())
        async with (
            net.serving(one) as (hub_1, port_1),
            net.serving(two) as (hub_2, port_2),
            net.dialling(below, {first: port_1, second: port_2}) as link,
        ):
            below.send(first, CheckIn(device=5, sequence=1))
            await one.gets(1)
            assert link.home == first
            below.send(second, CheckIn(device=5, sequence=2))
            await two.gets(1)
            assert link.home == second and hub_2.peers == (below.node,)
            await net.until(lambda: hub_1.peers == ())
            two.send(below.node, Accept(sequence=2))
            assert await below.gets(1) == [Accept(sequence=2)]
            assert not hub_1.faults.counts

    asyncio.run(story())


def test_a_home_that_comes_back_is_found_again(net, monkeypatch):
    monkeypatch.setattr("delian.core.node.net.grpc.grpc_line.PAUSE_S", 0.02)

    async def story():
        above, below, told = net.Station(net.edge()), net.Station(net.device()), []
        async with net.serving(above) as (hub, port):
            target = {above.node: f"127.0.0.1:{port}"}
            async with net.dialling(below, target, on_connected=told.append) as link:
                link.start()
                await net.until(lambda: told == [above.node])
                assert link.reaches(above.node)
                await hub.close()
                await net.until(lambda: not link.reaches(above.node))
                guard = Guard(INSECURE, Tier.EDGE)
                again = GrpcHub(above.switch, f"127.0.0.1:{port}", None, guard)
                above.switch.remove_link(hub)
                await again.start()
                above.switch.add_link(again)
                await net.until(lambda: told == [above.node] * 2)
                above.send(below.node, UploadAck(device=5))
                assert await below.gets(1) == [UploadAck(device=5)]
                await again.close()

    asyncio.run(story())


def test_goodbye_says_when_to_come_back(net, monkeypatch):
    monkeypatch.setattr("delian.core.node.net.grpc.grpc_line.PAUSE_S", 1000.0)

    async def story():
        above, below, told = net.Station(net.edge()), net.Station(net.device()), []
        async with (
            net.serving(above, on_peer=lambda _, here: told.append(here)) as (hub, port),
            net.dialling(below, {above.node: port}) as up,
        ):
            up.start()
            await net.until(lambda: up.home == above.node)
            hub.forget(below.node, "make room", retry_ms=30)
            # Not after the pause of its own.
            await net.until(lambda: told == [True, False, True] and up.home == above.node)
            assert not hub.faults.counts and not up.faults.counts

    asyncio.run(story())


def test_a_renewed_certificate_is_shown_on_a_new_connection(net):
    async def story():
        above, below, told = net.Station(net.edge()), net.Station(net.device()), []
        async with (
            net.serving(above) as (hub, port),
            net.dialling(below, {above.node: port}, on_connected=told.append) as link,
        ):
            link.start()
            await net.until(lambda: len(told) == 1)
            link.redial()
            await net.until(lambda: len(told) == 2)
            assert hub.peers == (below.node,)
            below.send(above.node, CheckIn(device=5))
            await above.gets(1)

    asyncio.run(story())


def test_a_second_stream_of_a_node_ends_the_first(net):
    async def story():
        above = net.Station(net.edge())
        one, two = net.Station(net.device()), net.Station(net.device())
        async with (
            net.serving(above) as (hub, port),
            net.dialling(one, {above.node: port}) as first,
        ):
            one.send(above.node, CheckIn(device=5, sequence=1))
            await above.gets(1)
            async with net.dialling(two, {above.node: port}):
                two.send(above.node, CheckIn(device=5, sequence=2))
                await above.gets(2)
                await net.until(lambda: first.home is None)
                above.send(two.node, Accept(sequence=2))
                assert await two.gets(1) == [Accept(sequence=2)]
                assert hub.peers == (two.node,)

    asyncio.run(story())


def test_comings_and_goings_are_told(net):
    async def story():
        above, below, told = net.Station(net.edge()), net.Station(net.device()), []
        async with net.serving(above, on_peer=lambda n, here: told.append((n, here))) as (_, port):
            async with net.dialling(below, {above.node: port}) as link:
                link.start()
                await net.until(lambda: told == [(below.node, True)])
            await net.until(lambda: told == [(below.node, True), (below.node, False)])

    asyncio.run(story())


def test_without_certificates_nothing_leaves_the_machine(net):
    with pytest.raises(DelianError, match="not on this machine"):
        GrpcHub(Switch(), "0.0.0.0:0", None, Guard(INSECURE, Tier.EDGE))
    with pytest.raises(DelianError, match="not on this machine"):
        GrpcUplink(Switch(), net.device(), {net.edge(): "192.0.2.1:7443"}, None)


def test_an_address_that_is_taken_is_an_error_with_a_hint(net):
    async def story():
        above = net.Station(net.edge())
        async with net.serving(above) as (_, port):
            guard = Guard(INSECURE, Tier.EDGE)
            with pytest.raises(DelianError, match="cannot serve"):
                await GrpcHub(Switch(), f"127.0.0.1:{port}", None, guard).start()

    asyncio.run(story())
