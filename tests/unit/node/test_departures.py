"""Devices that have lost their connection: which of them are gone."""

from __future__ import annotations

import asyncio

from delian.core.node.service.departures import GONE_S, Departures
from delian.core.protocol.ports import Node, Tier
from support.virtual_time import run as run_virtually

DEVICE, EDGE = Node(Tier.DEVICE, 4), Node(Tier.EDGE, 4)


def gone(*changes, here=(), close_s=None):
    """What is gone after changes (seconds, node, whether it is here), and when."""
    told = []

    async def scene():
        loop = asyncio.get_running_loop()
        began = loop.time()
        watch = Departures(lambda: here, lambda node: told.append((node, loop.time() - began)))
        for at, node, is_here in changes:
            await asyncio.sleep(at - (loop.time() - began))
            watch.peer(node, is_here)
        if close_s is not None:
            watch.close()
        await asyncio.sleep(60)

    run_virtually(scene())
    return [(node, round(at)) for node, at in told]


def test_a_device_that_stays_away_is_gone():
    assert gone((1, DEVICE, False)) == [(DEVICE, 1 + GONE_S)]


def test_one_that_is_back_in_time_is_not():
    assert gone((1, DEVICE, False), (9, DEVICE, True)) == []


def test_one_that_is_there_over_another_link_is_not():
    assert gone((1, DEVICE, False), here=(DEVICE,)) == []


def test_one_that_comes_and_goes_has_all_the_time_anew():
    assert gone((0, DEVICE, False), (5, DEVICE, True), (6, DEVICE, False)) == [(DEVICE, 16)]


def test_edges_are_not_its_affair_and_after_its_end_none_are():
    assert gone((0, EDGE, False)) == []
    assert gone((0, DEVICE, False), close_s=0) == []
