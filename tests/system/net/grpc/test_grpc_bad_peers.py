"""Peers that break the rules: each is refused and counted, and the others go on."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os

import grpc
import pytest
from delian.core.node.net.grpc.grpc_guard import claim
from delian.core.node.net.grpc.grpc_server import VIOLATIONS_MAX
from delian.core.node.net.message_limits import (
    PART_BYTES,
    PART_BYTES_MAX,
    QUEUE_ENVELOPES_MAX,
    PeerTimes,
)
from delian.core.node.net.transfer import part_bytes
from delian.core.node.storage.codec import envelope_bytes
from delian.core.protocol.ports import CLOUD
from delian.core.wire.admission_pb2 import Accept, CheckIn, EdgeHello
from delian.core.wire.blob_pb2 import Blob
from delian.core.wire.link_pb2 import (
    TRANSFER_BLOB,
    TRANSFER_ENVELOPE,
    Envelope,
    Offer,
    PullRequest,
    Want,
)
from delian.core.wire.round_pb2 import Task, Upload


def bad(net, story, **more):
    """Runs `story(stranger, hub, above)` beside a good device, which must go on undisturbed."""

    async def run():
        above, good = net.Station(net.edge()), net.Station(net.device(1))
        async with (
            net.serving(above, **more) as (hub, port),
            net.dialling(good, {above.node: port}) as link,
        ):
            good.send(above.node, CheckIn(device=1, sequence=1))
            await above.gets(1)
            stranger = net.Stranger(port, net.device(66))
            try:
                await story(stranger, hub, above)
                above.received.clear()
                good.send(above.node, CheckIn(device=1, sequence=2))
                assert await above.gets(1) == [CheckIn(device=1, sequence=2)]
                above.send(good.node, Accept(sequence=2))
                assert await good.gets(1) == [Accept(sequence=2)]
                assert link.home == above.node and not link.faults.counts
            finally:
                await stranger.close()

    asyncio.run(run())


async def code_of(call) -> grpc.StatusCode:
    """How a call ends."""
    with contextlib.suppress(grpc.RpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return await call.code()


async def answer(call, field: str):
    """The next envelope of a stream, which must say this."""
    said = Envelope.FromString(await call.read())
    assert said.WhichOneof("message") == field
    return getattr(said, field)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\xff" * 40, "malformed"),
        (b"", "malformed"),
        (b"\x0a\x02\x08", "malformed"),
        (Envelope().SerializeToString(), "malformed"),
        (envelope_bytes(CLOUD, CLOUD, EdgeHello()), "not allowed"),
        (bytes(70_000), "malformed"),
    ],
)
def test_a_stream_must_begin_with_who_it_is(net, content, kind):
    async def story(stranger, hub, above):
        code = await code_of(await stranger.connect(content))
        assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED)
        assert hub.faults.counts[kind] == 1
        assert hub.peers == (net.device(1),)

    bad(net, story)


def test_what_does_not_belong_is_counted_and_the_stream_goes_on(net):
    edge, other = net.edge(), net.device(67)

    def said(kind: str, stranger) -> bytes:
        return {
            "malformed": b"\x0a\xff\xff",
            "wrong sender": envelope_bytes(other, edge, CheckIn(device=67)),
            "not allowed": envelope_bytes(stranger.node, edge, Task()),
            "unknown message": Envelope(
                sender=Envelope.FromString(stranger.says()).sender
            ).SerializeToString(),
            "oversized": stranger.says(Upload(vector=bytes(70_000))),
            "malformed offer": stranger.says(Offer(id=b"short", size=1, kind=TRANSFER_ENVELOPE)),
        }[kind]

    async def story(stranger, hub, above):
        call = await stranger.connect()
        await net.until(lambda: stranger.node in hub.peers)
        kinds = ["malformed", "wrong sender", "not allowed", "unknown message", "oversized"]
        for kind in [*kinds, "malformed offer"]:
            await call.write(said(kind, stranger))
            await net.until(lambda kind=kind: hub.faults.counts[kind] == 1)
        # A field of a later version: nothing that is known.
        await call.write(stranger.says() + b"\xba\x06\x00")
        await net.until(lambda: hub.faults.counts["unknown message"] == 2)
        await call.write(stranger.says(CheckIn(device=66)))
        await net.until(lambda: CheckIn(device=66) in above.messages)
        assert len(above.received) == 2

    bad(net, story)


def test_a_call_that_this_node_has_not_is_counted_by_its_caller(net, caplog):
    async def story(stranger, hub, above):
        path = "/delian.wire.Operator/ListRuns"
        call = stranger._channel.unary_unary(path)(b"", metadata=claim("operator-3"))
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        call = stranger._channel.unary_unary(path)(b"")  # of a caller that does not say who it is
        assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
        assert hub.faults.counts["unknown call"] == 2

    bad(net, story)
    assert any("unknown call from operator-3" in r.getMessage() for r in caplog.records)


def test_a_device_cannot_speak_to_the_cloud_past_its_edge(net):
    async def story(stranger, hub, above):
        call = await stranger.connect()
        await call.write(stranger.says(EdgeHello(edge=3), to=CLOUD))
        await net.until(lambda: hub.faults.counts["not allowed"] == 1)

    bad(net, story)


def test_a_message_to_a_node_that_is_not_here_is_counted(net):
    async def story(stranger, hub, above):
        call = await stranger.connect()
        await call.write(stranger.says(CheckIn(device=66), to=net.edge(9)))
        await net.until(lambda: above.switch.faults.counts["no such receiver"] == 1)

    bad(net, story)


def test_who_breaks_the_rules_again_and_again_is_sent_away(net):
    async def story(stranger, hub, above):
        call = await stranger.connect()
        for _ in range(VIOLATIONS_MAX + 1):
            await call.write(b"\x0a\xff\xff")
        goodbye = await answer(call, "goodbye")
        assert goodbye.reason == "breaks the protocol"
        await net.until(lambda: stranger.node not in hub.peers)

    bad(net, story)


def test_a_stream_that_says_nothing_is_ended(net):
    async def story(stranger, hub, above):
        # Now that the good device has said its first.
        hub.times = PeerTimes(first_s=0.05)
        assert await code_of(stranger.mute()) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert hub.faults.counts["silent stream"] == 1

    bad(net, story)


def test_a_flood_of_messages_is_dropped_and_then_ended(net, monkeypatch):
    monkeypatch.setattr("delian.core.node.net.message_limits.RATE_BURST", 20)
    monkeypatch.setattr("delian.core.node.net.message_limits.RATE_PER_S", 0.001)
    monkeypatch.setattr("delian.core.node.net.message_limits.RATE_DROPPED_MAX", 10)

    async def story(stranger, hub, above):
        call = await stranger.connect()
        for i in range(1, 32):
            await call.write(stranger.says(CheckIn(device=66, sequence=i)))
        assert (await answer(call, "goodbye")).reason == "too many messages"
        assert hub.faults.counts["too many messages"] >= 10
        assert sum(m.device == 66 for m in above.messages) == 20
        await net.until(lambda: stranger.node not in hub.peers)

    bad(net, story)


def test_replayed_envelopes_are_handed_on_for_the_machines_ignore_them(net):
    async def story(stranger, hub, above):
        call = await stranger.connect()
        for _ in range(3):
            await call.write(stranger.says(CheckIn(device=66, sequence=1)))
        await net.until(lambda: above.messages.count(CheckIn(device=66, sequence=1)) == 3)

    bad(net, story)


def test_a_slow_reader_loses_messages_and_then_its_stream(net, monkeypatch):
    async def story(stranger, hub, above):
        await stranger.connect()  # and it never reads
        await net.until(lambda: stranger.node in hub.peers)
        task = Task(rng_key=bytes(60_000))
        while stranger.node in hub.peers:
            above.send(stranger.node, task)
            await asyncio.sleep(0)
            assert hub.faults.counts["slow reader"] < 2 * QUEUE_ENVELOPES_MAX
        assert hub.faults.counts["slow reader"] > 0

    bad(net, story)


# ---------------------------------------------------------------- transfers


def offered(content: bytes) -> Offer:
    return Offer(id=hashlib.sha256(content).digest(), size=len(content), kind=TRANSFER_ENVELOPE)


@pytest.mark.parametrize("kind", ["oversized offer", "malformed offer"])
def test_an_offer_that_nobody_expects_is_refused_at_once(net, kind):
    offers = {
        "oversized offer": Offer(id=bytes(32), size=2**40, kind=TRANSFER_ENVELOPE),
        "malformed offer": Offer(id=bytes(32), size=1000, kind=TRANSFER_BLOB),
    }

    async def story(stranger, hub, above):
        call = await stranger.connect()
        await call.write(stranger.says(offers[kind]))
        want = await answer(call, "want")
        assert want.refused and want.id == bytes(32)
        assert hub.faults.counts[kind] == 1 and len(hub.transfers.intake) == 0

    bad(net, story)


def test_too_many_offers_do_not_fill_the_memory(net):
    async def story(stranger, hub, above):
        call = await stranger.connect()
        for i in range(50):
            offer = Offer(id=bytes([i] * 32), size=30 << 20, kind=TRANSFER_ENVELOPE)
            await call.write(stranger.says(offer))
            await answer(call, "want")
        assert hub.transfers.intake.bytes_held <= 64 << 20

    bad(net, story)


def test_parts_must_fit_their_offer(net):
    content = os.urandom(PART_BYTES_MAX + 1000)
    id = hashlib.sha256(content).digest()

    async def refused(stranger, *parts: bytes) -> None:
        with pytest.raises(grpc.RpcError):
            await stranger.push(*parts)
        assert await stranger.pushed.code() is grpc.StatusCode.INVALID_ARGUMENT

    async def story(stranger, hub, above):
        call = await stranger.connect()
        await refused(stranger, part_bytes(id, 0, content[:1000]))
        assert hub.faults.counts["unknown transfer"] == 1
        await call.write(stranger.says(offered(content)))
        assert (await answer(call, "want")).offset == 0
        await refused(stranger, part_bytes(id, 1000, content[:1000]))
        await refused(stranger, part_bytes(id, 0, b""))
        await refused(stranger, part_bytes(id, 0, content))  # longer than a part
        await refused(stranger, b"\xff" * 100)
        assert hub.faults.counts["malformed part"] == 4
        # It is still open, and what is there so far is said.
        whole = (
            part_bytes(id, 0, content[:PART_BYTES]),
            part_bytes(id, PART_BYTES, content[PART_BYTES:]),
        )
        await refused(stranger, *whole)  # random bytes are no envelope
        assert hub.faults.counts["malformed part"] == 5
        assert len(hub.transfers.intake) == 0

    bad(net, story)


def test_what_does_not_hash_to_its_name_is_dropped(net):
    content = os.urandom(100_000)

    async def story(stranger, hub, above):
        call = await stranger.connect()
        offer = offered(content)
        await call.write(stranger.says(offer))
        await answer(call, "want")
        with pytest.raises(grpc.RpcError):
            await stranger.push(part_bytes(offer.id, 0, bytes(100_000)))
        assert hub.faults.counts["corrupt transfer"] == 1
        assert len(hub.transfers.intake) == 0 and len(above.received) == 1

    bad(net, story)


@pytest.mark.parametrize("kind", ["wrong sender", "not allowed"])
def test_a_transfer_carries_only_what_its_sender_may_say(net, kind):
    async def story(stranger, hub, above):
        sender = stranger.node if kind == "not allowed" else net.device(1)
        message = Task if kind == "not allowed" else Upload
        said = message(rng_key=bytes(90_000)) if message is Task else message(vector=bytes(90_000))
        content = envelope_bytes(sender, above.node, said)
        call = await stranger.connect()
        await call.write(stranger.says(offered(content)))
        await answer(call, "want")
        with pytest.raises(grpc.RpcError):
            await stranger.push(part_bytes(offered(content).id, 0, content))
        assert hub.faults.counts[kind] == 1 and len(above.received) == 1

    bad(net, story)


def test_transfers_need_a_stream_and_their_own_offer(net):
    async def story(stranger, hub, above):
        # Without a part: writing races with the refusal, and may end in gRPC's own CANCELLED.
        with pytest.raises(grpc.RpcError):
            await stranger.push(end=False)
        assert await stranger.pushed.code() is grpc.StatusCode.FAILED_PRECONDITION
        # Somebody else's offer is not there for it.
        ref = await above.blobs.put(os.urandom(1000))
        above.switch.send_blob(above.node, net.device(1), ref.digest)
        await stranger.connect()
        await net.until(lambda: stranger.node in hub.peers)
        call = stranger.pull(PullRequest(id=ref.digest).SerializeToString())
        assert await code_of(call) is grpc.StatusCode.NOT_FOUND
        call = stranger.pull(b"\xff\xff")
        assert await code_of(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert hub.faults.counts["unknown transfer"] == 1

    async def run():
        above, idle = net.Station(net.edge()), net.Stranger
        async with net.serving(above) as (hub, port):
            one, two = idle(port, net.device(1)), idle(port, net.device(66))
            await one.connect()
            await net.until(lambda: net.device(1) in hub.peers)
            await story(two, hub, above)
            await one.close()
            await two.close()

    asyncio.run(run())


def test_a_push_that_stops_is_ended_and_may_go_on(net, monkeypatch):
    monkeypatch.setattr("delian.core.node.net.grpc.grpc_serving.PART_S", 1.0)

    async def story(stranger, hub, above):
        content = stranger.says(Upload(device=66, vector=os.urandom(100_000)))
        call = await stranger.connect()
        offer = offered(content)
        await call.write(stranger.says(offer))
        assert (await answer(call, "want")).offset == 0
        with pytest.raises(grpc.RpcError):
            await stranger.push(part_bytes(offer.id, 0, content[:60_000]), end=False)
        assert await stranger.pushed.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert hub.faults.counts["silent transfer"] == 1
        monkeypatch.undo()
        await call.write(stranger.says(offer))
        assert (await answer(call, "want")).offset == 60_000
        await stranger.push(part_bytes(offer.id, 60_000, content[60_000:]))
        assert above.messages[-1].device == 66

    bad(net, story)


def test_what_nobody_fetches_is_forgotten(net):
    async def story(stranger, hub, above):
        await stranger.connect()
        await net.until(lambda: stranger.node in hub.peers)
        above.send(stranger.node, Task(rng_key=bytes(100_000)))
        assert hub.transfers.outbox.bytes_held > 100_000
        hub.transfers.outbox._idle_s = -1.0
        hub.review()
        assert hub.transfers.outbox.bytes_held == 0
        assert hub.faults.counts["not fetched"] == 1

    bad(net, story)


# ---------------------------------------------------------------- a bad home


async def home_says(net, below, *said: bytes):
    """An uplink's faults after its home, a bare server, has said these."""
    heard: list[Envelope] = []

    async def connect(_, context):
        await context.read()
        await context.send_initial_metadata(())
        for content in said:
            await context.write(content)
        while (content := await context.read()) is not grpc.aio.EOF:
            heard.append(Envelope.FromString(content))

    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(connect)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("delian.wire.Link", {"Connect": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with net.dialling(below, {net.edge(): port}) as link:
        link.start()
        await net.until(lambda: below.received)
    await server.stop(0)
    return link.faults.counts, heard


def test_a_device_believes_its_home_no_more_than_that(net):
    edge, device = net.edge(), net.device()

    async def story():
        below = net.Station(device)
        counts, heard = await home_says(
            net,
            below,
            b"\xff\xff",
            envelope_bytes(net.edge(9), device, Accept(sequence=1)),
            envelope_bytes(edge, device, CheckIn(device=1)),
            envelope_bytes(edge, device, Blob(digest=bytes(32), size=1, content=b"x")),
            envelope_bytes(edge, device, Offer(id=bytes(32), size=10, kind=TRANSFER_BLOB)),
            envelope_bytes(edge, device, Offer(id=bytes(32), size=2**40, kind=TRANSFER_ENVELOPE)),
            envelope_bytes(edge, device, Want(id=bytes(32), refused=True)),
            envelope_bytes(edge, device, Accept(sequence=7)),
        )
        assert below.messages == [Accept(sequence=7)]
        assert counts["malformed"] == 1
        assert counts["wrong sender"] == 1
        assert counts["not allowed"] == 2
        assert counts["offer of a blob that was not requested"] == 1
        assert counts["oversized offer"] == 1
        assert [e.want.refused for e in heard if e.HasField("want")] == [True, True]

    asyncio.run(story())


def test_a_home_that_answers_nothing_is_left_for_a_while(net, monkeypatch):
    monkeypatch.setattr("delian.core.node.net.grpc.grpc_line.DIAL_S", 0.1)

    async def story():
        below = net.Station(net.device())
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with net.dialling(below, {net.edge(): port}) as link:
            below.send(net.edge(), CheckIn(device=5))
            await net.until(lambda: link.faults.counts["no answer"])
            assert not link.reaches(net.edge())
        server.close()

    asyncio.run(story())
