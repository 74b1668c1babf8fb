"""Who asks wrongly costs nothing, is told why or sent away, and disturbs nobody else."""

from __future__ import annotations

import asyncio
import contextlib

import grpc
import numpy as np
import pytest
from delian.core.node.net.grpc.grpc_guard import claim
from delian.core.placement.subgraphs.frames.stream_service import RUN
from delian.core.placement.subgraphs.request_limits import CUT_BYTES_MAX, VIOLATIONS_MAX
from delian.core.protocol.ports import Node, Tier
from delian.core.wire.subgraph_pb2 import (
    SUBGRAPH_BUSY,
    SUBGRAPH_DONE,
    SUBGRAPH_LATE,
    SUBGRAPH_MISFIT,
    SUBGRAPH_UNKNOWN,
    BoundaryTensor,
    SubgraphCancel,
    SubgraphChunk,
    SubgraphClose,
    SubgraphReply,
    SubgraphRequest,
)


@pytest.mark.parametrize(
    ("changed", "failure"),
    [
        ({"bundle": bytes([9]) * 32}, SUBGRAPH_UNKNOWN),
        ({"weights": b""}, SUBGRAPH_UNKNOWN),
        ({"program": "evaluate"}, SUBGRAPH_UNKNOWN),
        ({"cut": b""}, SUBGRAPH_MISFIT),
        ({"cut": b"\xff" * 100}, SUBGRAPH_MISFIT),
        ({"cut": bytes(CUT_BYTES_MAX + 1)}, SUBGRAPH_MISFIT),
        ({"tier": 0}, SUBGRAPH_MISFIT),
        ({"tier": 7}, SUBGRAPH_MISFIT),
    ],
)
def test_what_cannot_be_opened_is_refused_with_a_reason(tiers, model, changed, failure):
    async def run():
        cut = tiers.cuts_of(model, tiers=2)[1]
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:
            opened = await peer.opens(model, cut, changed=changed)
            assert (opened.failure, bool(opened.reason)) == (failure, True)
            assert (await peer.opens(model, cut, session=2)).failure == SUBGRAPH_DONE

    asyncio.run(run())


def test_a_cut_of_another_program_is_refused(tiers, model):
    async def run():
        cut = tiers.cuts_of(model, tiers=2)[1]
        longer = type(cut)((*cut.labels, 1), {}, program="infer")
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:
            assert (await peer.opens(model, longer)).failure == SUBGRAPH_MISFIT

    asyncio.run(run())


def test_requests_that_do_not_fit_are_refused_and_right_ones_still_run(tiers, model, x):
    hidden = np.zeros((4, 8), np.float32)

    async def run():
        cut = tiers.cuts_of(model, tiers=2)[1]  # the first product on the device: value 3 goes up
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:
            await peer.opens(model, cut)
            wrong = [
                [],
                [tiers.tensor(4, hidden)],
                [tiers.tensor(3, hidden[:2])],
                [tiers.tensor(3, hidden), tiers.tensor(3, hidden)],
                [BoundaryTensor(index=3, dtype="f32", shape=(4, 8), content=b"abc")],
                [BoundaryTensor(index=3, dtype="f64", shape=(4, 8), content=bytes(256))],
            ]
            for sequence, tensors in enumerate(wrong, 1):
                await peer.request(1, sequence, tensors)
                assert (await peer.hears(SubgraphReply)).failure == SUBGRAPH_MISFIT
            for other in ({"bundle": b"\x09" * 32}, {"program": "evaluate"}, {"phase": 1}):
                await peer.request(1, 50, [tiers.tensor(3, hidden)], **other)
                assert (await peer.hears(SubgraphReply)).failure == SUBGRAPH_MISFIT
            await peer.request(9, 1, [tiers.tensor(3, hidden)])
            assert (await peer.hears(SubgraphReply)).failure == SUBGRAPH_UNKNOWN
            right = x @ model.leaves[0]
            await peer.request(1, 99, [tiers.tensor(3, right)], time_ms=10_000)
            reply = await peer.hears(SubgraphReply)
            assert (reply.failure, reply.sequence) == (SUBGRAPH_DONE, 99)
            got = np.frombuffer(reply.outputs[0].content, np.float32).reshape(4, 5)
            np.testing.assert_allclose(got, tiers.whole(model, x), rtol=1e-3)

    asyncio.run(run())


def test_a_narrow_tensor_whose_numbers_are_none_fails_alone(tiers, model):
    async def run():
        cut = tiers.cuts_of(model, tiers=2, wire="i8")[1]
        bad = BoundaryTensor(index=3, dtype="i8", shape=(4, 8), content=bytes(32), scale=-1.0)
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:
            await peer.opens(model, cut)
            await peer.request(1, 1, [bad], time_ms=10_000)
            assert (await peer.hears(SubgraphReply)).failure not in (SUBGRAPH_DONE, SUBGRAPH_BUSY)
            await peer.request(
                1, 2, [tiers.tensor(3, np.zeros((4, 8), np.float32))], time_ms=10_000
            )
            assert (await peer.hears(SubgraphReply)).failure == SUBGRAPH_DONE

    asyncio.run(run())


def test_a_request_whose_time_is_over_when_it_is_whole_is_late(tiers, model):
    async def run():
        cut = tiers.cuts_of(model, tiers=2)[1]
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:
            await peer.opens(model, cut)
            hidden = tiers.tensor(3, np.zeros((4, 8), np.float32))
            whole = SubgraphRequest(session=1, sequence=1, inputs=[hidden], time_ms=1)
            content = whole.SerializeToString()
            for start in (0, 100):
                piece = content[start:100] if not start else content[100:]
                chunk = SubgraphChunk(
                    session=1, sequence=1, size=len(content), offset=start, content=piece
                )
                await peer.say(chunk=chunk)
                await asyncio.sleep(0.05)
            assert (await peer.hears(SubgraphReply)).failure == SUBGRAPH_LATE

    asyncio.run(run())


def test_an_oversized_request_takes_no_memory_and_enough_of_them_end_the_stream(tiers, model, x):
    async def run():
        cut = tiers.cuts_of(model, tiers=2)[1]
        async with tiers.Upper(tiers.EDGE, [model]) as edge:
            service = edge.parts.service
            async with tiers.device(model, [cut], edge.address) as honest:
                await tiers.until(honest.open)
                async with tiers.raw(edge.address) as peer:
                    await peer.opens(model, cut)
                    line = next(n for n in service.lines.values() if n.name == "device-66")
                    for sequence in range(VIOLATIONS_MAX + 1):
                        chunk = SubgraphChunk(
                            session=1, sequence=sequence, size=60_000_000, content=b"x"
                        )
                        await peer.say(chunk=chunk)
                    await tiers.until(lambda: line.number not in service.lines)
                    assert line.stream.held == 0
                    assert service.faults.counts["oversized request"] == VIOLATIONS_MAX + 1
                await tiers.by_parts(honest, x)

    asyncio.run(run())


def test_too_many_requests_at_once_are_refused_and_none_is_forgotten(tiers, model):
    async def run():
        cut = tiers.cuts_of(model, tiers=2)[1]
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:
            await peer.opens(model, cut)
            for sequence in range(1, 101):  # begun, and never ended
                chunk = SubgraphChunk(session=1, sequence=sequence, size=400, content=b"x")
                await peer.say(chunk=chunk)
            failures = {(await peer.hears(SubgraphReply)).failure for _ in range(36)}
            assert failures == {SUBGRAPH_BUSY}
            for sequence in range(1, 65):
                await peer.say(cancel=SubgraphCancel(session=1, sequence=sequence))
            await peer.request(
                1, 200, [tiers.tensor(3, np.zeros((4, 8), np.float32))], time_ms=9_000
            )
            assert (await peer.hears(SubgraphReply)).failure == SUBGRAPH_DONE

    asyncio.run(run())


def test_a_closed_session_is_not_served(tiers, model):
    async def run():
        cut = tiers.cuts_of(model, tiers=2)[1]
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:
            await peer.opens(model, cut)
            await peer.say(close=SubgraphClose(session=1))
            await peer.request(1, 1, [tiers.tensor(3, np.zeros((4, 8), np.float32))])
            assert (await peer.hears(SubgraphReply)).failure == SUBGRAPH_UNKNOWN

    asyncio.run(run())


@pytest.mark.parametrize("content", [b"\xff\xff\xff", b"", b"\x7a\x00"])
def test_noise_is_counted_and_ends_in_a_goodbye(tiers, model, content):
    async def run():
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:
            with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
                for _ in range(VIOLATIONS_MAX + 2):
                    await peer.put(content)
            await tiers.until(lambda: not edge.parts.service.lines)
            assert sum(edge.parts.service.faults.counts.values()) >= VIOLATIONS_MAX

    asyncio.run(run())


def test_an_edge_serves_devices_and_nobody_else(tiers, model):
    async def run():
        async with tiers.Upper(tiers.EDGE, [model]) as edge:
            for node in (Node(Tier.EDGE, 2), Node(Tier.CLOUD, 0)):
                async with grpc.aio.insecure_channel(edge.address) as channel:
                    call = channel.stream_stream(RUN)(metadata=claim(node))
                    assert await call.code() is grpc.StatusCode.PERMISSION_DENIED

    asyncio.run(run())


def test_a_node_s_oldest_stream_ends_when_it_opens_too_many(tiers, model):
    async def run():
        async with (
            tiers.Upper(tiers.EDGE, [model]) as edge,
            contextlib.AsyncExitStack() as stack,
        ):
            peers = [await stack.enter_async_context(tiers.raw(edge.address)) for _ in range(5)]
            await tiers.until(lambda: len(edge.parts.service.lines) == 4)
            assert await peers[0].call.code() is grpc.StatusCode.ABORTED

    asyncio.run(run())
