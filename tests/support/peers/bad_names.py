"""Bad peers by who they are: certificates that are no good any more or never were, edges that lie,
and those who want to be let in.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import Any

import grpc
import pytest
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.authority.tokens import TokenBook
from delian.core.node.identity.pki.certificates import (
    Role,
    certificate_request,
    new_key,
)
from delian.core.node.net import message_limits
from delian.core.node.storage.codec import envelope_bytes
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import enrolment_pb2, round_pb2
from delian.core.wire.admission_pb2 import EdgeHello, Reject
from delian.core.wire.enrolment_pb2_grpc import EnrolmentStub
from delian.core.wire.operator_pb2 import ListRequest, RunControl
from delian.core.wire.operator_pb2_grpc import OperatorStub
from delian.core.wire.round_pb2 import EdgeSum, EdgeTask
from google.protobuf.message import Message

from support.peers.peer_scene import (
    Row,
    Scene,
    transfer,
)
from support.peers.peer_wires import ANSWER_S, Stream
from support.peers.peer_world import EDGE, FEDERATION, GATHERER

BELOW = ("connections without a call",)


async def expired_stream(scene: Scene) -> None:
    """The certificate runs out while the stream is open. On a machine that stalls it may run out
    before: then another, which lives longer.
    """
    for life_s in (4, 16, 64):
        scene._material = scene.world.material(Role.DEVICE, scene.number, life_s=life_s)
        try:
            async with scene.stream() as stream:
                await scene.honest_end()
                await stream.end()
                assert stream.goodbye == "certificate expired"
                return
        except grpc.aio.AioRpcError as refusal:
            assert refusal.code() is grpc.StatusCode.UNAVAILABLE
    pytest.fail("no certificate lived until its stream was open")


async def expired_handshake(scene: Scene) -> None:
    scene._material = scene.world.material(Role.DEVICE, scene.number, life_s=30, ago_s=60)
    await refused_handshake(scene)


async def other_authority(scene: Scene) -> None:
    other = Authority.create(scene.world.folder / f"other-{scene.number}", FEDERATION)
    scene._material = scene.world.material(Role.DEVICE, scene.number, authority=other)
    await refused_handshake(scene)


async def refused_handshake(scene: Scene) -> None:
    async with Stream(scene.world, scene.who, scene.material, scene.home) as stream:
        assert await stream.refusal() is grpc.StatusCode.UNAVAILABLE
        await scene.honest_end()


async def revoked(scene: Scene) -> None:
    """An open stream ends, and there is no new one."""
    world = scene.world
    async with scene.stream() as stream:
        await stream.say(scene.check_in())
        await stream.hear(Reject)
        await world.revoke(f"device-{scene.number}")
        await stream.end()
        assert stream.goodbye == "revoked"
    await no_way_back(scene)
    await scene.honest_end()


async def no_way_back(scene: Scene) -> None:
    async with Stream(scene.world, scene.who, scene.material, scene.home) as again:
        assert await again.refusal() is grpc.StatusCode.PERMISSION_DENIED


async def revoked_at_work(scene: Scene) -> None:
    """Nobody waits for its answer."""
    world = scene.world
    async with scene.stream() as stream:
        await scene.enlist(stream)
        await world.revoke(f"device-{scene.number}")
        await stream.end()
        await no_way_back(scene)
        await scene.honest_end()


async def plays_operator(scene: Scene) -> None:
    async with scene.world.channel(GATHERER, scene.material) as channel:
        stub = OperatorStub(channel)
        for call in (
            stub.ListRuns(ListRequest()),
            stub.ControlRun(RunControl(run=scene.round.run, action="cancel")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        await scene.honest_end()


async def plays_home(scene: Scene) -> None:
    """A device's certificate where only edges may speak, and the other way round."""
    edge = scene.world.material(Role.EDGE, 7)
    async with Stream(scene.world, Node(Tier.EDGE, 7), edge, EDGE) as stream:
        assert await stream.refusal() is grpc.StatusCode.PERMISSION_DENIED
    await scene.honest_end()


# ---------------------------------------------------------------- edges


@contextlib.asynccontextmanager
async def bad_edge(scene: Scene):
    """A stream of a bad edge to the coordinator."""
    edge = Node(Tier.EDGE, scene.number)
    material = scene.world.material(Role.EDGE, scene.number)
    async with Stream(scene.world, edge, material, CLOUD) as stream:
        yield await stream.connect()


def hello(scene: Scene, sequence: int, *ready: int, **more: Any) -> EdgeHello:
    told = {"edge": scene.number, "incarnation": 1, "sequence": sequence, "protocol": 1}
    return EdgeHello(**{**told, **more}, ready=ready, devices_max=9)


async def edge_with_a_false_sum(scene: Scene, **changed: Any) -> None:
    device = 50_000 + scene.number
    async with bad_edge(scene) as stream:
        await stream.say(hello(scene, 1, device))
        task = (await stream.hear(EdgeTask)).task
        await scene.round.under_way()
        name = {"run": task.run, "round": task.round, "attempt": task.attempt}
        whole = bytes(4 * (task.ring.dimension + 1))
        told = {"edge": scene.number, "devices": [device], "count": 1, "sum": whole}
        await upload_or_say(stream, EdgeSum(**name, **{**told, **changed}))
        await stream.hear(round_pb2.EdgeSumAck)
        await scene.honest_end()


async def upload_or_say(stream: Stream, message: Message) -> None:
    content = envelope_bytes(stream.who, stream.home, message)
    if len(content) > message_limits.INLINE_MAX:
        await transfer(stream, content)
    else:
        await stream.say(content)


async def edge_that_names_another(scene: Scene) -> None:
    async with bad_edge(scene) as stream:
        await stream.say(hello(scene, 10**6, edge=1))
        await stream.say(EdgeSum(run=scene.round.run, round=1, attempt=1, edge=1))
        await scene.honest_end()


async def edge_with_no_round(scene: Scene) -> None:
    """Sums that were not requested."""
    async with bad_edge(scene) as stream:
        for run in (scene.round.run, scene.round.run + 5):
            name = {"run": run, "round": 1, "attempt": 1, "edge": scene.number}
            await stream.say(EdgeSum(**name, devices=[1], count=1, sum=bytes(8)))
            await stream.hear(round_pb2.EdgeSumAck)
        await scene.honest_end()


async def edge_of_an_old_protocol(scene: Scene) -> None:
    async with bad_edge(scene) as stream:
        await stream.say(hello(scene, 1, 50_000 + scene.number, protocol=0))
        await scene.honest_end()


async def edge_that_never_answers(scene: Scene) -> None:
    async with bad_edge(scene) as stream:
        await stream.say(hello(scene, 1, 50_000 + scene.number))
        await stream.hear(EdgeTask)
        await scene.honest_end()


# ---------------------------------------------------------------- enrolment


async def enrol(scene: Scene, token: str, request: bytes, **more: Any) -> Any:
    """Asks for an identity. Raises AioRpcError."""
    async with scene.world.enrolment_channel() as channel:
        told = {"token": token, "tier": 1, "request": request, **more}
        async with asyncio.timeout(ANSWER_S):
            return await EnrolmentStub(channel).Enrol(enrolment_pb2.EnrolRequest(**told))


async def refused_enrolment(scene: Scene, *asked: Any, code: grpc.StatusCode, **more: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await enrol(scene, *asked, **more)
    assert refused.value.code() is code, refused.value


def new_request() -> bytes:
    return certificate_request(new_key())


def new_token(scene: Scene, authority: Any = None, **more: Any) -> str:
    authority = authority or scene.world.authority
    book = TokenBook(authority.folder, authority.lock)
    told = {"now_s": scene.world.now_s(), **more}
    address = scene.world.enrolment_address
    return book.create(Role.DEVICE, FEDERATION, address, authority.root_public, **told)[0].text()


async def token_used_before(scene: Scene) -> None:
    token = await asyncio.to_thread(new_token, scene)
    await enrol(scene, token, new_request())
    for _ in range(3):
        code = grpc.StatusCode.PERMISSION_DENIED
        await refused_enrolment(scene, token, new_request(), code=code)
    await scene.honest_end()


async def token_expired(scene: Scene) -> None:
    token = await asyncio.to_thread(new_token, scene, valid_s=1, now_s=scene.world.now_s() - 60)
    code = grpc.StatusCode.PERMISSION_DENIED
    await refused_enrolment(scene, token, new_request(), code=code)


async def token_of_others(scene: Scene) -> None:
    other = Authority.create(scene.world.folder / f"others-{scene.number}", FEDERATION)
    token = await asyncio.to_thread(new_token, scene, other)
    code = grpc.StatusCode.PERMISSION_DENIED
    await refused_enrolment(scene, token, new_request(), code=code)


async def token_for_a_device_as_edge(scene: Scene) -> None:
    token = await asyncio.to_thread(new_token, scene)
    code = grpc.StatusCode.PERMISSION_DENIED
    await refused_enrolment(scene, token, new_request(), code=code, tier=2)
    await enrol(scene, token, new_request())  # it is still good


async def oversized_request(scene: Scene) -> None:
    token = await asyncio.to_thread(new_token, scene)
    refused = partial(refused_enrolment, scene)
    await refused(token, b"A" * 20_000, code=grpc.StatusCode.INVALID_ARGUMENT)
    await refused(token, b"A" * 40_000, code=grpc.StatusCode.RESOURCE_EXHAUSTED)
    await refused("x" * 9000, new_request(), code=grpc.StatusCode.INVALID_ARGUMENT)
    await refused(token, new_request()[:-40], code=grpc.StatusCode.INVALID_ARGUMENT)
    await scene.honest_end()


async def flood_of_enrolments(scene: Scene) -> None:
    tries = [enrol(scene, "delian1.none", b"none") for _ in range(80)]
    ended = await asyncio.gather(*tries, return_exceptions=True)
    codes = {error.code() for error in ended}
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes
    await scene.honest_end()


ROWS = [
    Row(expired_stream, ("certificate expired",)),
    Row(expired_stream, ("certificate expired",), home=GATHERER),
    Row(expired_handshake, BELOW, BELOW[0], real=True),
    Row(other_authority, BELOW, BELOW[0], real=True),
    Row(revoked, ("revoked",), "revoked from device"),
    Row(revoked, ("revoked",), "revoked from device", home=GATHERER),
    Row(revoked_at_work, ("revoked",), "a certificate was revoked", members=1, real=True),
    Row(plays_operator, ("not allowed",), "not allowed from device-", home=GATHERER),
    Row(plays_home, ("not allowed",), "not allowed from edge-7"),
    *(
        Row(
            partial(edge_with_a_false_sum, **changed),
            ("cloud: record refused sum",),
            "refused_sum: edge",
            home=CLOUD,
            members=1,
        )
        for changed in ({"sum": bytes(400)}, {"count": 2}, {"devices": [1]}, {"part": 3})
    ),
    Row(edge_that_names_another, ("cloud: refused edgehello",), "refused a EdgeHello", home=CLOUD),
    Row(edge_of_an_old_protocol, ("cloud: refused edgehello",), "refused a EdgeHello", home=CLOUD),
    Row(edge_with_no_round, ("cloud: record ignored",), "", home=CLOUD),
    # Only the edge knows its devices: the round waits for it.
    Row(
        edge_that_never_answers,
        ("cloud: record unanswered",),
        "unanswered: edge",
        home=CLOUD,
        members=1,
        deadline_ms=4_000,
        at_deadline=True,
    ),
    Row(token_used_before, ("enrolment: refused",), "enrolment refused", home=CLOUD),
    Row(token_expired, ("enrolment: refused",), "enrolment refused", home=CLOUD),
    Row(token_of_others, ("enrolment: refused",), "enrolment refused", home=CLOUD),
    Row(
        token_for_a_device_as_edge,
        ("enrolment: refused",),
        "enrolment refused",
        home=CLOUD,
    ),
    Row(oversized_request, ("enrolment: malformed",), "malformed enrolment", home=CLOUD),
    # The last of its kind: it leaves no enrolment to others for some seconds.
    Row(flood_of_enrolments, ("enrolment: limited",), "enrolment limited", home=CLOUD),
]
