"""Who asks for much, or for ever, leaves others what they need."""

from __future__ import annotations

import asyncio
import threading
from time import monotonic

import numpy as np
from delian.core.placement.cut.cut import Cut
from delian.core.placement.subgraphs import request_limits
from delian.core.placement.subgraphs.request_limits import PREPARES_BURST, SESSIONS_PER_PEER
from delian.core.protocol.ports import Node, Tier
from delian.core.wire.subgraph_pb2 import (
    SUBGRAPH_BUSY,
    SUBGRAPH_DONE,
    SUBGRAPH_FAILED,
    SUBGRAPH_LATE,
    SUBGRAPH_UNKNOWN,
    SubgraphClose,
    SubgraphOpened,
    SubgraphReply,
)

HIDDEN = np.zeros((4, 8), np.float32)
OTHER = Node(Tier.DEVICE, 67)


def cuts(model, count):
    """As many cuts as are wanted, all different, with the same parts."""
    return [Cut((0, 1, 1, 1, 1), {}, bundle=f"{n + 1:064x}", program="infer") for n in range(count)]


def test_one_node_opens_so_many_cuts_and_others_still_open_theirs(tiers, model):
    async def run():
        many = cuts(model, SESSIONS_PER_PEER + 1)
        async with (
            tiers.Upper(tiers.EDGE, [model]) as edge,
            tiers.raw(edge.address) as first,
            tiers.raw(edge.address) as second,
            tiers.raw(edge.address, OTHER) as other,
        ):
            half = SESSIONS_PER_PEER // 2
            for session, cut in enumerate(many[:half], 1):
                assert (await first.opens(model, cut, session)).failure == SUBGRAPH_DONE
            for session, cut in enumerate(many[half:-1], 1):
                assert (await second.opens(model, cut, session)).failure == SUBGRAPH_DONE
            told = await second.opens(model, many[-1], 999)
            assert (told.failure, told.reason) == (SUBGRAPH_BUSY, "too many cuts are open")
            assert (await other.opens(model, many[-1])).failure == SUBGRAPH_DONE
            # What is ready costs nothing: with one closed there is room for it.
            await first.say(close=SubgraphClose(session=1))
            await first.request(1, 1, [tiers.tensor(3, HIDDEN)])
            assert (await first.hears(SubgraphReply)).failure == SUBGRAPH_UNKNOWN
            assert (await second.opens(model, many[-1], 999)).failure == SUBGRAPH_DONE

    asyncio.run(run())


def test_cuts_that_come_and_go_are_not_compiled_for_ever(tiers, model):
    async def run():
        many = cuts(model, PREPARES_BURST + 1)
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:
            failures = []
            for session, cut in enumerate(many, 1):
                failures.append((await peer.opens(model, cut, session)).failure)
                await peer.say(close=SubgraphClose(session=session))
            assert failures == [SUBGRAPH_DONE] * PREPARES_BURST + [SUBGRAPH_BUSY]
            assert (await peer.opens(model, many[0], 999)).failure == SUBGRAPH_DONE

    asyncio.run(run())


def test_cuts_of_several_nodes_are_compiled_in_turn_and_those_of_who_left_not_at_all(tiers, model):
    async def run():
        many = cuts(model, 9)
        prepared, gate = [], threading.Event()
        async with tiers.Upper(tiers.EDGE, [model]) as edge:
            programs = edge.parts.driver.preparing.programs
            prepare = programs.prepare

            def slow(model, cut, tier):
                gate.wait(tiers.WAIT_S)
                prepared.append(cut.bundle)
                return prepare(model, cut, tier)

            programs.prepare = slow
            async with tiers.raw(edge.address) as greedy, tiers.raw(edge.address, OTHER) as other:
                for session, cut in enumerate(many[:8], 1):
                    await greedy.say(open=tiers.opening(model, cut, session))
                await tiers.until(lambda: len(edge.parts.driver.preparing.under_way) == 8)
                await other.say(open=tiers.opening(model, many[8]))
                await tiers.until(lambda: len(edge.parts.driver.preparing.under_way) == 9)
                greedy.call.cancel()
                await tiers.until(lambda: len(edge.parts.service.lines) == 1)
                gate.set()
                assert (await other.hears(SubgraphOpened)).failure == SUBGRAPH_DONE
                await tiers.until(lambda: not edge.parts.driver.preparing.under_way)
            assert prepared == [many[0].bundle, many[8].bundle]

    asyncio.run(run())


def test_a_fault_while_a_cut_is_prepared_is_told_to_who_waits_for_it(tiers, model, monkeypatch):
    async def run():
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:

            def broken(model, cut, tier):
                raise RuntimeError("a fault")

            monkeypatch.setattr(edge.parts.driver.preparing.programs, "prepare", broken)
            cut = cuts(model, 1)[0]
            assert (await peer.opens(model, cut)).failure == SUBGRAPH_FAILED
            monkeypatch.undo()
            assert (await peer.opens(model, cut)).failure == SUBGRAPH_DONE

    asyncio.run(run())


def test_two_sessions_may_count_their_requests_alike(tiers, model):
    async def run():
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:
            for session, cut in enumerate(cuts(model, 2), 1):
                await peer.opens(model, cut, session)
            for session in (1, 2):
                await peer.request(session, 1, [tiers.tensor(3, HIDDEN)], time_ms=9_000)
            replies = [await peer.hears(SubgraphReply) for _ in range(2)]
            assert {(r.session, r.failure) for r in replies} == {
                (1, SUBGRAPH_DONE),
                (2, SUBGRAPH_DONE),
            }

    asyncio.run(run())


def test_another_node_s_session_is_unknown(tiers, model):
    async def run():
        async with (
            tiers.Upper(tiers.EDGE, [model]) as edge,
            tiers.raw(edge.address) as owner,
            tiers.raw(edge.address, OTHER) as thief,
        ):
            await owner.opens(model, cuts(model, 1)[0], 7)
            await thief.request(7, 1, [tiers.tensor(3, HIDDEN)])
            assert (await thief.hears(SubgraphReply)).failure == SUBGRAPH_UNKNOWN

    asyncio.run(run())


def test_no_request_is_kept_for_longer_than_the_limit(tiers, model, monkeypatch):
    monkeypatch.setattr(request_limits, "TIME_S_MAX", 1e-9)

    async def run():
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:
            await peer.opens(model, cuts(model, 1)[0])
            await peer.request(1, 1, [tiers.tensor(3, HIDDEN)], time_ms=2**32 - 1)
            assert (await peer.hears(SubgraphReply)).failure == SUBGRAPH_LATE

    asyncio.run(run())


def test_who_holds_a_message_up_is_sent_away_when_nodes_are_reviewed(tiers, model):
    async def run():
        async with tiers.Upper(tiers.EDGE, [model]) as edge, tiers.raw(edge.address) as peer:
            await peer.opens(model, cuts(model, 1)[0])
            (line,) = edge.parts.service.lines.values()
            edge.parts.service.review()
            assert line.why is None
            line.stream.send((1, 1), b"reply")
            await tiers.until(lambda: line.stream.waiting > 5)
            line.stream._clock = lambda: monotonic() + 100.0
            edge.parts.service.review()
            await tiers.until(lambda: not edge.parts.service.lines)
            assert edge.parts.service.faults.counts["stalled"] == 1

    asyncio.run(run())
