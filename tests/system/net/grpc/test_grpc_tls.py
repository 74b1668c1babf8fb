"""Mutual TLS: who a peer is comes from its certificate, and every call is allowed or ends."""

from __future__ import annotations

import asyncio
import contextlib
import time

import grpc
import pytest
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.authority.deny_list import FOR_GOOD, DenyList
from delian.core.node.identity.pki.certificates import (
    Role,
    TlsMaterial,
    certificate_request,
    channel_credentials,
    channel_options,
    key_pem,
    new_key,
    server_credentials,
)
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_ending import Ending
from delian.core.node.net.grpc.grpc_guard import claim
from delian.core.node.net.grpc.grpc_link import GrpcUplink
from delian.core.node.net.grpc.grpc_peer import PULL, PUSH
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.storage.codec import envelope_bytes
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import operator_pb2, operator_pb2_grpc
from delian.core.wire.admission_pb2 import Accept, CheckIn, EdgeHello
from delian.core.wire.operator_pb2 import ListRequest, RunEvent, RunList, WatchRequest


@pytest.fixture(scope="module")
def farm(tmp_path_factory) -> Authority:
    return Authority.create(tmp_path_factory.mktemp("farm"), "farm")


@pytest.fixture(scope="module")
def rival(tmp_path_factory) -> Authority:
    """Another federation that calls itself the same."""
    return Authority.create(tmp_path_factory.mktemp("rival"), "farm")


def material(authority: Authority, node: Node, **more: object) -> TlsMaterial:
    key = new_key()
    role, request = Role(node.tier.value), certificate_request(key)
    issued = authority.issue(request, role, node.number, **more)
    return TlsMaterial(key_pem(key), issued.chain, authority.pem)


@contextlib.asynccontextmanager
async def serving(station, authority, **more):
    denied = more.pop("denied", DenyList)
    here = station.node.tier
    hub = GrpcHub(
        station.switch,
        "127.0.0.1:0",
        server_credentials(material(authority, station.node)),
        Guard("farm", here, denied),
        **more,
    )
    port = await hub.start()
    station.switch.add_link(hub)
    try:
        yield hub, port
    finally:
        await hub.close()


@contextlib.asynccontextmanager
async def dialling(station, home, port, shown):
    link = GrpcUplink(
        station.switch,
        station.node,
        {home: f"127.0.0.1:{port}"},
        lambda: channel_credentials(shown),
        "farm",
    )
    station.switch.add_link(link)
    try:
        yield link
    finally:
        await link.close()


def test_both_ends_know_each_other_by_their_certificates(net, farm):
    async def story():
        above, below = net.Station(net.edge()), net.Station(net.device())
        shown = material(farm, below.node)
        async with (
            serving(above, farm) as (hub, port),
            dialling(below, above.node, port, shown) as link,
        ):
            below.send(above.node, CheckIn(device=5))
            await above.gets(1)
            above.send(below.node, Accept(sequence=1))
            await below.gets(1)
            assert not hub.faults.counts and not link.faults.counts

    asyncio.run(story())


def test_a_device_that_says_it_is_another_is_refused(net, farm):
    async def story():
        above, below = net.Station(net.edge()), net.Station(net.device())
        shown = material(farm, net.device(6))
        async with (
            serving(above, farm) as (hub, port),
            dialling(below, above.node, port, shown) as link,
        ):
            link.start()
            await net.until(lambda: hub.faults.counts["wrong sender"])
            await net.until(lambda: link.faults.counts["connection ended: permission_denied"])
            assert hub.peers == ()

    asyncio.run(story())


@pytest.mark.parametrize("who", ["a rival", "somebody expired", "an edge", "nobody"])
def test_who_may_not_connect_does_not(net, farm, rival, who):
    async def story():
        above, below = net.Station(net.edge()), net.Station(net.device())
        shown = {
            "a rival": lambda: material(rival, below.node),
            "somebody expired": lambda: material(
                farm, below.node, life_s=60, now_s=time.time() - 7200
            ),
            "an edge": lambda: material(farm, net.edge(4)),
            "nobody": lambda: None,
        }[who]()
        async with serving(above, farm) as (hub, port):
            if shown is None:
                options = channel_options("farm", above.node)
                trust = grpc.ssl_channel_credentials(farm.pem)
                channel = grpc.aio.secure_channel(f"127.0.0.1:{port}", trust, options)
                with pytest.raises(grpc.RpcError):
                    call = channel.stream_stream("/delian.wire.Link/Connect")(
                        metadata=claim(below.node)
                    )
                    await call.read()
                await channel.close()
            else:
                shown = TlsMaterial(shown.key, shown.certificate, farm.pem)
                async with dialling(below, above.node, port, shown) as link:
                    link.start()
                    await net.until(lambda: link.faults.counts.total() > 0)
            assert hub.peers == ()
            if who == "an edge":
                assert hub.faults.counts["not allowed"] == 1

    asyncio.run(story())


def test_an_edge_cannot_pass_for_another(net, farm):
    async def story():
        above, below = net.Station(net.edge(4)), net.Station(net.device())
        async with (
            serving(above, farm) as (hub, port),
            dialling(below, net.edge(3), port, material(farm, below.node)) as link,
        ):
            link.start()
            await net.until(lambda: link.faults.counts.total() > 0)
            assert hub.peers == ()

    asyncio.run(story())


def test_the_coordinator_is_edge_0_too(net, farm):
    async def story():
        above, below = net.Station(CLOUD), net.Station(net.device())
        gatherer = net.Station(Node(Tier.EDGE, 0))
        above.switch.attach(gatherer.node, gatherer.take, gatherer.blobs)
        async with (
            serving(above, farm) as (_, port),
            dialling(below, gatherer.node, port, material(farm, below.node)),
        ):
            below.send(gatherer.node, CheckIn(device=5))
            await gatherer.gets(1)

    asyncio.run(story())


@pytest.mark.parametrize("why", ["revoked", "certificate expired"])
def test_who_is_no_longer_trusted_is_sent_away(net, farm, why):
    async def story():
        above, below = net.Station(net.edge()), net.Station(net.device())
        shown = material(farm, below.node)
        name = shown.identity().tier, shown.identity().number
        lists = [DenyList()]
        async with (
            serving(above, farm, denied=lambda: lists[-1]) as (hub, port),
            dialling(below, above.node, port, shown) as link,
        ):
            below.send(above.node, CheckIn(device=5))
            await above.gets(1)
            if why == "revoked":
                lists.append(DenyList(1, {name: FOR_GOOD}))
            else:
                hub._door._policy._clock = lambda: shown.identity().not_after + 1.0
            hub.review()
            await net.until(lambda: hub.peers == () and link.home is None)
            assert hub.faults.counts[why] == 1

    asyncio.run(story())


class _Operator(operator_pb2_grpc.OperatorServicer):
    async def ListRuns(self, request, context):
        return RunList(runs=[operator_pb2.RunInfo(run=request.limit)])

    async def WatchRun(self, request, context):
        for sequence in (1, 2):
            yield RunEvent(run=request.run, sequence=sequence)


@pytest.mark.parametrize("role", ["operator", "device", "edge"])
def test_other_services_stand_behind_the_same_door(net, farm, role):
    async def story():
        above = net.Station(CLOUD)
        key, issued = issue_to(farm, Role(role), 5)
        creds = channel_credentials(TlsMaterial(key, issued.chain, farm.pem))

        def add(server):
            operator_pb2_grpc.add_OperatorServicer_to_server(_Operator(), server)

        async with serving(above, farm, servicers=[add]) as (hub, port):
            options = channel_options("farm", CLOUD)
            async with grpc.aio.secure_channel(f"127.0.0.1:{port}", creds, options) as channel:
                stub = operator_pb2_grpc.OperatorStub(channel)
                if role == "operator":
                    assert (await stub.ListRuns(ListRequest(limit=3))).runs[0].run == 3
                    watched = [e.sequence async for e in stub.WatchRun(WatchRequest(run=3))]
                    assert watched == [1, 2]
                    return
                with pytest.raises(grpc.RpcError) as caught:
                    await stub.ListRuns(ListRequest(limit=3))
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
                with pytest.raises(grpc.RpcError):
                    await stub.WatchRun(WatchRequest(run=3)).read()
                assert hub.faults.counts["not allowed"] == 2

    asyncio.run(story())


def test_a_message_that_is_larger_than_any_is_refused_by_grpc_itself(net, farm, caplog):
    async def story():
        above, below = net.Station(net.edge()), net.Station(net.device())
        async with serving(above, farm) as (hub, port):
            creds = channel_credentials(material(farm, below.node))
            options = channel_options("farm", above.node)
            async with grpc.aio.secure_channel(f"127.0.0.1:{port}", creds, options) as channel:
                call = channel.stream_stream("/delian.wire.Link/Connect")()
                ending = Ending(call)
                with pytest.raises(grpc.RpcError):
                    await call.write(bytes(3 << 20))  # which may fail before all of it has gone
                    while await call.read() is not grpc.aio.EOF:
                        pass
                assert await ending.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert hub.peers == ()
            while not hub.faults.counts["broken off"]:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(story(), 120))
    (said,) = [r for r in caplog.records if "broken off" in r.getMessage()]
    assert "device-" in said.getMessage()


def test_a_stream_that_begins_with_no_envelope_is_logged_by_its_certificate(net, farm, caplog):
    async def story():
        above, below = net.Station(net.edge()), net.Station(net.device())
        async with serving(above, farm) as (hub, port):
            creds = channel_credentials(material(farm, below.node))
            options = channel_options("farm", above.node)
            async with grpc.aio.secure_channel(f"127.0.0.1:{port}", creds, options) as channel:
                call = channel.stream_stream("/delian.wire.Link/Connect")()
                await call.write(b"\xff" * 40)
                assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert hub.faults.counts["malformed"] == 1

    asyncio.run(story())
    (said,) = [r for r in caplog.records if "malformed" in r.getMessage()]
    assert "device-" in said.getMessage() and "127.0.0.1" not in said.getMessage()


@pytest.mark.parametrize("call", ["ListRuns", "WatchRun", "Push", "Pull"])
@pytest.mark.parametrize("content", [bytes(3 << 20), b"\xff" * 40], ids=["too large", "garbage"])
def test_a_request_that_cannot_be_read_is_counted_for_its_caller(net, farm, caplog, call, content):
    caplog.set_level("INFO", "delian.net")

    async def story():
        above, below = net.Station(CLOUD), net.Station(net.edge())

        def add(server):
            operator_pb2_grpc.add_OperatorServicer_to_server(_Operator(), server)

        async with serving(above, farm, servicers=[add]) as (hub, port):
            options = channel_options("farm", CLOUD)
            creds = channel_credentials(material(farm, below.node))
            if call in ("ListRuns", "WatchRun"):
                key, issued = issue_to(farm, Role.OPERATOR, 5)
                creds = channel_credentials(TlsMaterial(key, issued.chain, farm.pem))
            async with grpc.aio.secure_channel(f"127.0.0.1:{port}", creds, options) as channel:
                if call in ("Push", "Pull"):
                    stream = channel.stream_stream("/delian.wire.Link/Connect")()
                    await stream.write(envelope_bytes(below.node, CLOUD, EdgeHello(edge=3), ""))
                    await stream.initial_metadata()
                with pytest.raises(grpc.RpcError) as caught:
                    if call == "Push":
                        await channel.stream_unary(PUSH)(iter([content]))
                    elif call == "Pull":
                        await channel.unary_stream(PULL)(content).read()
                    elif call == "WatchRun":
                        await channel.unary_stream("/delian.wire.Operator/WatchRun")(content).read()
                    else:
                        await channel.unary_unary("/delian.wire.Operator/ListRuns")(content)
                large = len(content) > 100
                codes = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT
                assert caught.value.code() is codes[not large]
                kinds = {"broken off"} if large else {"malformed", "malformed part"}
                await net.until(lambda: kinds & set(hub.faults.counts))

    asyncio.run(asyncio.wait_for(story(), 120))
    said = [r.getMessage() for r in caplog.records if "broke" in r.getMessage()]
    said += [r.getMessage() for r in caplog.records if "malformed" in r.getMessage()]
    assert said and all("operator-5" in x or "edge" in x for x in said), said
