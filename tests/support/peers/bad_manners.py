"""Bad peers by what they do not say, by how much they say, and those that speak no gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import grpc
import pytest
from delian.core.node.identity.pki.tls_contexts import client_context
from delian.core.node.net import message_limits
from delian.core.node.net.grpc.grpc_peer import CONNECT, PULL
from delian.core.node.storage.codec import envelope_bytes
from delian.core.wire import round_pb2
from delian.core.wire.admission_pb2 import Reject
from delian.core.wire.blob_pb2 import FetchBlob
from delian.core.wire.link_pb2 import Offer, PullRequest

from support.peers.peer_scene import (
    Row,
    Scene,
)
from support.peers.peer_wires import Stream, tls_connection
from support.peers.peer_world import GATHERER

#: What TLS, or gRPC's core, refuses before anybody here is asked.
BELOW = ("connections without a call",)
#: A round ends without a device's answer.
UNANSWERED = ("node: record unanswered",)


async def silent_stream(scene: Scene) -> None:
    async with Stream(scene.world, scene.who, scene.material, scene.home) as stream:
        stream.open()
        await scene.honest_end()
        assert await stream.end() is grpc.StatusCode.DEADLINE_EXCEEDED


async def never_answers(scene: Scene) -> None:
    async with scene.stream() as stream:
        await scene.enlist(stream)
        await scene.honest_end()
        await stream.hear(round_pb2.RoundClosed)


async def fetches_and_never_answers(scene: Scene) -> None:
    """It gives a sign of life, again and again."""
    async with scene.stream() as stream:
        task = await scene.enlist(stream)
        for _ in range(20):
            await stream.say(FetchBlob(digest=task.weights.digest))
        await scene.honest_end()
        await stream.hear(round_pb2.RoundClosed)


async def never_reads(scene: Scene) -> None:
    """Asks on, and leaves no room for an answer, not even in the transport."""
    world = scene.world
    before = (await world.counts(scene.home)).get("grpc: goodbye not taken", 0)
    async with world.unread(scene.home, scene.material, CONNECT) as call:
        for sequence in range(1, 2 * message_limits.QUEUE_ENVELOPES_MAX):
            said = scene.check_in(sequence)
            await call.say(envelope_bytes(scene.who, scene.home, said))
        await scene.honest_end()
        await world.counted(scene.home, "grpc: goodbye not taken", before)


async def never_reads_a_blob(scene: Scene) -> None:
    """Wants the weights, and takes none of them."""
    world = scene.world
    before = (await world.counts(scene.home)).get("grpc: slow reader", 0)
    async with scene.stream() as stream:
        task = await scene.enlist(stream)
        await stream.say(FetchBlob(digest=task.weights.digest))
        offer = await stream.hear(Offer)
        async with world.unread(scene.home, scene.material, PULL) as call:
            await call.say(PullRequest(id=offer.id).SerializeToString(), last=True)
            await scene.honest_end()
            await world.counted(scene.home, "grpc: slow reader", before)


# ---------------------------------------------------------------- too much


async def flood(scene: Scene) -> None:
    last = 3 * message_limits.RATE_BURST + 2 * message_limits.RATE_DROPPED_MAX
    heard = min(400, message_limits.RATE_BURST - message_limits.QUEUE_ENVELOPES_MAX // 2)
    async with scene.stream() as stream:
        # It reads its answers: where messages are few (`hasten`) no more of them wait than may.
        for sequence in range(1, heard):
            await stream.say(scene.check_in(sequence))
            await stream.hear(Reject)
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            for sequence in range(heard, last):
                await stream.say(scene.check_in(sequence))
        await scene.honest_end()
        await stream.end()


async def flood_of_lies(scene: Scene) -> None:
    """Each is a refusal of the machine's; the log must not fill."""
    async with scene.stream() as stream:
        for sequence in range(1, message_limits.RATE_BURST - 20):
            await stream.say(scene.check_in(sequence, device=1))
        await scene.honest_end()


async def flood_of_calls(scene: Scene) -> None:
    """More calls on a connection than there may be; none of them says a word."""
    before = (await scene.world.counts(scene.home)).get("grpc: silent stream", 0)
    async with Stream(scene.world, scene.who, scene.material, scene.home) as stream:
        calls = [stream.channel.stream_stream(CONNECT)() for _ in range(300)]
        await scene.honest_end()
        await scene.world.counted(scene.home, "grpc: silent stream", before + 60)
        for call in calls:
            call.cancel()


async def second_stream(scene: Scene) -> None:
    async with scene.stream() as first, scene.stream() as second:
        await first.end()
        assert first.goodbye == "replaced by a newer stream"
        await second.say(scene.check_in())
        await second.hear(Reject)
        await scene.honest_end()


# ---------------------------------------------------------------- below gRPC


async def half_open(scene: Scene) -> None:
    """Connections that say nothing at all."""
    host, _, port = scene.world.address(scene.home).rpartition(":")
    sockets = [socket.create_connection((host, int(port))) for _ in range(50)]
    try:
        await scene.honest_end()
    finally:
        for each in sockets:
            each.close()


async def without_tls(scene: Scene) -> None:
    address = scene.world.address(scene.home)
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.stream_stream(CONNECT)()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call.write(envelope_bytes(scene.who, scene.home, scene.check_in()))
            await call.read()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    await scene.honest_end()


async def speaks_http_1(scene: Scene) -> None:
    files = scene.world.files(f"device-{scene.number}", scene.material)
    context = client_context(files)
    reader, writer = await tls_connection(scene.world, context, scene.home)
    writer.write(b"GET / HTTP/1.1\r\nHost: edge\r\n\r\n")
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        async with asyncio.timeout(60):
            await reader.read()
    await scene.honest_end()
    writer.transport.abort()


ROWS = [
    Row(silent_stream, ("silent stream",), "silent stream from device-"),
    Row(never_answers, UNANSWERED, "unanswered", members=1),
    Row(fetches_and_never_answers, UNANSWERED, "unanswered", members=1),
    Row(never_reads, ("slow reader",)),
    Row(never_reads_a_blob, ("slow reader",), members=1),
    Row(flood, ("too many messages",), slowed=True),
    Row(flood, ("too many messages",), home=GATHERER, slowed=True),
    Row(flood_of_lies, ("node: refused checkin",), "refused a CheckIn"),
    Row(flood_of_calls, ("silent stream",), "silent stream from device-", real=True),
    Row(second_stream, ("replaced",), "replaced by a newer stream"),
    Row(half_open, BELOW, BELOW[0], real=True),
    Row(without_tls, BELOW, BELOW[0], real=True),
    Row(speaks_http_1, BELOW, BELOW[0], real=True),
]
