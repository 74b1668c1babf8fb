"""Bad peers by what they say: envelopes and transfers that are not what they must be.

Every one has a certificate of the federation. It does its worst while a round is under way;
`scene.honest_end` lets the honest devices finish with the harm in place, and the harness sees to it
otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib

import grpc
import pytest
from delian.core.node.storage.codec import envelope_bytes
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import admission_pb2, round_pb2
from delian.core.wire.admission_pb2 import EdgeHello, Reject
from delian.core.wire.blob_pb2 import FetchBlob
from delian.core.wire.link_pb2 import TRANSFER_BLOB, Envelope, Goodbye, Part, Want
from delian.core.wire.round_pb2 import EdgeSum, Task, Upload, UploadAck

from support.peers.peer_scene import (
    COUNTED,
    LATE,
    REFUSED,
    Row,
    Scene,
    junk,
    offer_of,
    parts_of,
    transfer,
    upload,
)
from support.peers.peer_wires import Stream
from support.peers.peer_world import EDGE, GATHERER


async def oversized_message(scene: Scene) -> None:
    async with scene.stream() as stream:
        padding = Upload(device=scene.number, vector=bytes(100_000))
        await stream.say(padding)
        await scene.honest_end()
        await stream.say(scene.check_in())
        await stream.hear(Reject)  # what it says else is still heard


async def message_beyond_all_frames(scene: Scene) -> None:
    """gRPC refuses it by its length, before it is there."""
    async with scene.stream() as stream:
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await stream.say(bytes(3 << 20))
        assert await stream.end() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def oversized_offer(scene: Scene) -> None:
    async with scene.stream() as stream:
        for size in (2**20, 2**30, 2**63):
            await stream.say(offer_of(b"", id=bytes(31) + b"x", size=size))
            assert (await stream.hear(Want)).refused
        await scene.honest_end()


async def malformed_offer(scene: Scene) -> None:
    async with scene.stream() as stream:
        for changed in ({"id": b"short"}, {"size": 0}, {"kind": 0}, {"kind": TRANSFER_BLOB}):
            await stream.say(offer_of(b"content", **changed))
            assert (await stream.hear(Want)).refused
        await scene.honest_end()


async def two_sizes_for_one_name(scene: Scene) -> None:
    async with scene.stream() as stream:
        await stream.say(offer_of(junk(70_000)), offer_of(junk(70_000), size=70_001))
        assert not (await stream.hear(Want)).refused
        assert (await stream.hear(Want)).refused


async def garbage(scene: Scene) -> None:
    async with scene.stream() as stream:
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await stream.say(*(b"\xff" + junk(n) for n in range(10, 40)))
        await stream.end()
        assert stream.goodbye == "breaks the protocol"


async def truncated(scene: Scene) -> None:
    whole = envelope_bytes(scene.who, scene.home, scene.check_in())
    async with scene.stream() as stream:
        await stream.say(*(whole[: len(whole) - cut] for cut in range(1, 9)))
        await scene.honest_end()
        await stream.say(scene.check_in())
        await stream.hear(Reject)


async def garbage_instead_of_a_name(scene: Scene) -> None:
    async with Stream(scene.world, scene.who, scene.material, scene.home) as stream:
        assert await stream.refusal(b"\xff\xff\xff") is grpc.StatusCode.INVALID_ARGUMENT


async def unknown_message(scene: Scene) -> None:
    """Field 99 of the envelope, which is not defined."""
    bare = envelope_bytes(scene.who, scene.home, Goodbye())
    bare = bare[: bare.rindex(b"\xd2\x02")]  # field 42
    assert Envelope.FromString(bare).WhichOneof("message") is None
    async with scene.stream() as stream:
        await stream.say(bare, bare + b"\x9a\x06\x03abc")
        await scene.honest_end()


async def somebody_else(scene: Scene) -> None:
    """An honest device's answer, from somebody else."""
    async with scene.stream() as stream:
        for victim in (Node(Tier.DEVICE, 1), EDGE, CLOUD):
            await stream.say(envelope_bytes(victim, scene.home, scene.check_in(device=1)))
        await scene.honest_end()


async def somebody_else_at_first(scene: Scene) -> None:
    async with Stream(scene.world, Node(Tier.DEVICE, 1), scene.material, scene.home) as stream:
        assert await stream.refusal() is grpc.StatusCode.PERMISSION_DENIED


async def somebody_else_inside(scene: Scene) -> None:
    """The envelope is its own; what is in it names another device."""
    async with scene.stream() as stream:
        await stream.say(scene.check_in(device=1))
        await stream.say(Upload(run=scene.round.run, round=1, attempt=1, device=1, vector=b"1234"))
        await scene.honest_end()


async def messages_of_other_tiers(scene: Scene) -> None:
    async with scene.stream() as stream:
        name = {"run": scene.round.run, "round": 1, "attempt": 1}
        await stream.say(EdgeSum(**name, edge=1), to=CLOUD)
        await stream.say(EdgeHello(edge=1, sequence=99), to=CLOUD)
        await stream.say(round_pb2.Flush(**name), Task(**name), UploadAck(**name))
        await stream.say(admission_pb2.Pace(ready_max=0), round_pb2.RoundClosed(**name))
        await scene.honest_end()


async def message_to_a_third(scene: Scene) -> None:
    """To a node that is not there, or not here."""
    async with scene.stream() as stream:
        await stream.say(scene.check_in(), to=Node(Tier.EDGE, 77))
        await scene.honest_end()


async def old_protocol(scene: Scene) -> None:
    async with scene.stream() as stream:
        await stream.say(scene.check_in(willing=True, protocol=0))
        assert (await stream.hear(Reject)).reason == admission_pb2.PROTOCOL_TOO_OLD
        await scene.honest_end()


async def wrong_round(scene: Scene) -> None:
    """Answers to rounds, attempts and runs that are not, by a device that was not asked."""
    async with scene.stream() as stream:
        run = scene.round.run
        for name in ((run, 2, 1), (run, 1, 2), (run + 9, 1, 1), (0, 0, 0), (run, 1, 1)):
            told = dict(zip(("run", "round", "attempt"), name, strict=True))
            await stream.say(Upload(**told, device=scene.number, vector=bytes(8)))
            assert (await stream.hear(UploadAck)).status == LATE
        await scene.honest_end()


async def wrong_length(scene: Scene) -> None:
    async with scene.stream() as stream:
        task = await scene.enlist(stream)
        await stream.say(scene.answer(task, vector=bytes(1000)))
        assert (await stream.hear(UploadAck)).status == REFUSED
        await upload(stream, scene.answer(task))  # an answer is the only one
        assert (await stream.hear(UploadAck)).status == REFUSED


async def replay(scene: Scene) -> None:
    """Takes part in a round, says all again and again, and again in the next round."""
    async with scene.stream() as stream:
        task = await scene.enlist(stream)
        answer = await upload(stream, scene.answer(task))
        assert (await stream.hear(UploadAck)).status == COUNTED
        for _ in range(3):
            await transfer(stream, answer)
            assert (await stream.hear(UploadAck)).status == COUNTED  # that is, once
        await scene.honest_end()
        later = await scene.world.round()
        await later.under_way()
        for _ in range(3):
            await stream.say(scene.check_in())
            await transfer(stream, answer)
            assert (await stream.hear(UploadAck)).status == COUNTED
        await later.end()
        later.check()


async def unasked_blobs(scene: Scene) -> None:
    """Asks for what there is not."""
    async with scene.stream() as stream:
        for n in range(8):
            await stream.say(FetchBlob(digest=junk(32 + n)[:32]), FetchBlob(digest=b"x" * n))
        await scene.honest_end()


# ---------------------------------------------------------------- transfers


async def wrong_digest(scene: Scene) -> None:
    async with scene.stream() as stream:
        content = junk(70_000)
        name = hashlib.sha256(b"something else").digest()
        await stream.say(offer_of(content, id=name))
        await stream.hear(Want)
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.push(parts_of(content, id=name))
        await scene.honest_end()


async def garbage_in_a_transfer(scene: Scene) -> None:
    async with scene.stream() as stream:
        for content in (b"\xff" * 70_000, envelope_bytes(EDGE, CLOUD, EdgeSum(sum=junk(70_000)))):
            await stream.say(offer_of(content))
            await stream.hear(Want)
            with pytest.raises(grpc.aio.AioRpcError):
                await stream.push(parts_of(content))


async def offered_and_never_sent(scene: Scene) -> None:
    async with scene.stream() as stream:
        for n in range(20):
            await stream.say(offer_of(junk(70_000 + n)))
        await scene.honest_end()


async def parts_where_they_do_not_belong(scene: Scene) -> None:
    async with scene.stream() as stream:
        content = junk(76_000)
        name = hashlib.sha256(content).digest()
        whole = Part(id=name, offset=0, content=content)
        for parts in (
            [Part(id=name, offset=50_000, content=content[50_000:])],  # a gap
            [Part(id=name, offset=2**63, content=b"far out")],
            [Part(id=name, offset=0, content=content + b"more")],  # beyond the end
            [Part(id=name, offset=0, content=content[:9000])] * 2,  # twice, so overlapping
            [Part(id=name, offset=8000, content=content[8000:])],  # behind the end
            [Part(id=name, offset=9000, content=b"")],
            [whole] * 50,
        ):
            await stream.say(offer_of(content))
            await stream.hear(Want)
            with pytest.raises(grpc.aio.AioRpcError):
                await stream.push(parts)
        await scene.honest_end()


async def parts_without_an_offer(scene: Scene) -> None:
    async with scene.stream() as stream:
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.push(parts_of(junk(70_000)))
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.pull(junk(32))
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.push([b"\xff\xff"])
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.pull(b"", 2**64 - 1)
        await scene.honest_end()


async def parts_without_a_stream(scene: Scene) -> None:
    async with Stream(scene.world, scene.who, scene.material, scene.home) as stream:
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.push(parts_of(junk(70_000)))
        assert await stream.pushed.code() is grpc.StatusCode.FAILED_PRECONDITION
        await scene.honest_end()


async def silence_within_a_transfer(scene: Scene) -> None:
    async with scene.stream() as stream:
        content = junk(70_000)
        await stream.say(offer_of(content))
        await stream.hear(Want)
        first = Part(id=hashlib.sha256(content).digest(), content=content[:1000])
        pushing = asyncio.create_task(stream.push([first], wait_s=60))
        await scene.honest_end()
        with pytest.raises(grpc.aio.AioRpcError):
            await pushing


ROWS = [
    Row(oversized_message, ("oversized",)),
    Row(message_beyond_all_frames, ("broken off",), "broke off", real=True),
    Row(oversized_offer, ("oversized offer",)),
    Row(oversized_offer, ("oversized offer",), home=GATHERER),
    Row(malformed_offer, ("malformed offer",)),
    Row(two_sizes_for_one_name, ("malformed offer",)),
    Row(garbage, ("malformed",)),
    Row(garbage, ("malformed",), home=GATHERER),
    Row(truncated, ("malformed",)),
    Row(garbage_instead_of_a_name, ("malformed",), "malformed from device-"),
    Row(unknown_message, ("unknown message",)),
    Row(somebody_else, ("wrong sender",)),
    Row(somebody_else_at_first, ("wrong sender",), "wrong sender from device-"),
    Row(
        somebody_else_inside,
        ("node: refused checkin", "node: refused upload"),
        "refused a Upload of device",
    ),
    Row(messages_of_other_tiers, ("not allowed",)),
    Row(message_to_a_third, ("switch: no such receiver",)),
    Row(old_protocol, ("node: record rejected",), "rejected: device"),
    Row(wrong_round, ("node: record late",), "late: device"),
    Row(wrong_round, ("node: record late",), "late: device", home=GATHERER),
    Row(wrong_length, ("node: record misfit",), "misfit: device", members=1),
    Row(replay, ("node: record duplicate",), "duplicate: device", members=1, counted=1),
    Row(unasked_blobs, ("node: record ignored",), ""),
    Row(wrong_digest, ("corrupt transfer",)),
    Row(garbage_in_a_transfer, ("malformed part", "wrong sender")),
    Row(offered_and_never_sent, ("transfer stopped",), inside=True),
    Row(parts_where_they_do_not_belong, ("malformed part",)),
    Row(parts_without_an_offer, ("unknown transfer", "malformed part")),
    Row(parts_without_a_stream, ("no stream",), "no stream from device-"),
    Row(silence_within_a_transfer, ("silent transfer",)),
]
