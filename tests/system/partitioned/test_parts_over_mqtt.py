"""Parts in envelopes: over a real broker, and what the frames of a visit may and may not do."""

from __future__ import annotations

import asyncio
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
from delian.core.node.identity.pki.identity_folder import HomeAddress
from delian.core.node.net.mqtt import broker as brokers
from delian.core.node.net.switch import Switch
from delian.core.node.service.hosting import Tasks, Who
from delian.core.node.service.prometheus import Sources
from delian.core.node.service.uplinks import Hubs, Uplinks
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.placement.subgraphs.frames.enveloped import EnvelopedService, EnvelopedUpstream
from delian.core.placement.subgraphs.frames.stream import Whole
from delian.core.placement.subgraphs.machines.part_ports import Link
from delian.core.placement.subgraphs.parts_host import PartsHost
from delian.core.protocol.ports import Node, Tier
from delian.core.wire.subgraph_pb2 import SubgraphCancel, SubgraphChunk, SubgraphFrame


def no_inbox(event, traceparent="", size=0):
    raise AssertionError("no machine is here")


class Lines:
    """An owner of a service that only writes down."""

    def __init__(self):
        self.told = []

    def came(self, line):
        self.told.append("came")

    def gone(self, line):
        self.told.append(f"gone: {line.why}")

    def admit(self, line, key, size):
        return True

    def said(self, line, frame):
        self.told.append(frame.WhichOneof("frame"))

    def asked(self, line, request):
        assert isinstance(request, Whole)
        self.told.append(len(request.content))


@pytest.fixture
def below():
    """A service without links: what it is told, and how to speak to it."""
    edge, device = Node(Tier.EDGE, 1), Node(Tier.DEVICE, 3)

    def make():
        switch, owner = Switch(), Lines()
        switch.attach(edge, no_inbox, MemoryBlobs())
        service = EnvelopedService(owner, switch, edge, itertools.count(1))

        def says(visit, count, sender=device, **frame):
            switch.take_relayed(sender, edge, SubgraphFrame(visit=visit, count=count, **frame))

        return SimpleNamespace(says=says, owner=owner, service=service)

    return make


CANCEL = {"cancel": SubgraphCancel(session=1, sequence=1)}


def test_a_frame_that_comes_twice_is_taken_once(below):
    async def run():
        made = below()
        for count in (1, 1, 2, 1, 2):
            made.says(7, count, **CANCEL)
        assert made.owner.told == ["came", "cancel", "cancel"]

    asyncio.run(run())


def test_a_frame_that_is_missing_ends_the_visit_and_a_new_one_begins_anew(below):
    async def run():
        made = below()
        made.says(7, 1, **CANCEL)
        made.says(7, 3, **CANCEL)
        made.says(7, 4, **CANCEL)  # of a visit that is over
        made.says(8, 1, **CANCEL)
        gone = "gone: a frame is missing"
        assert made.owner.told == ["came", "cancel", gone, "came", "cancel"]
        made.says(9, 1, **CANCEL)
        assert made.owner.told[5:] == ["gone: replaced by a newer visit", "came", "cancel"]

    asyncio.run(run())


def test_what_is_too_large_for_envelopes_or_from_somebody_else_is_refused(below):
    async def run():
        made = below()
        made.says(0, 1, **CANCEL)
        made.says(7, 1, sender=Node(Tier.EDGE, 2), **CANCEL)
        assert made.owner.told == [] and made.service.faults.counts["malformed"] == 2
        made.says(7, 1, chunk=SubgraphChunk(session=1, sequence=1, size=65_537, content=b"x"))
        assert made.owner.told == ["came", "gone: oversized request"]

    asyncio.run(run())


@pytest.fixture(scope="module")
def broker():
    if brokers.mosquitto_path() is None:
        pytest.skip("mosquitto is not installed")
    return brokers.BrokerSettings(port=0, kind="mosquitto")


def test_requests_over_a_broker_are_answered_by_both_tiers(tiers, model, x, broker):
    async def run():
        running = brokers.Broker(broker)
        await running.start()
        edge, device = Who(tiers.EDGE, "insecure"), Who(tiers.DEVICE, "insecure")
        switch, tasks = Switch(), Tasks()
        parts = PartsHost([model], tiers.EDGE, tiers.guard, "insecure", False, backend="reference")
        parts.attach([], tasks, Sources(), switch)
        switch.attach(tiers.EDGE, no_inbox, MemoryBlobs())
        hubs = Hubs(switch, edge, tiers.guard, broker=running.address)
        await hubs.start()

        def upstream(owner):
            here = Switch()
            here.attach(tiers.DEVICE, no_inbox, MemoryBlobs())
            uplinks = Uplinks(here, device, [HomeAddress(tiers.EDGE, mqtt=running.address)], "mqtt")
            here.add_link(uplinks)
            uplinks.start(add=False)
            return EnvelopedUpstream(here, tiers.DEVICE, tiers.EDGE, owner, uplinks)

        cuts = tiers.cuts_of(model, tiers=2)[1:-1]
        try:
            link = Link(up=1e6, down=1e6, latency_s=1.0)  # so that a busy machine is not given up
            async with tiers.device(model, cuts, None, upstream=upstream, link=link) as asking:
                await tiers.until(asking.open)
                for _ in range(20):
                    answered = await tiers.by_parts(asking, x)
                    np.testing.assert_array_equal(answered.results[0], tiers.whole(model, x))
                await hubs.close()
                answered = await asking.driver.request((x,), 10.0)
                np.testing.assert_array_equal(answered.results[0], tiers.whole(model, x))
        finally:
            await hubs.close()
            await parts.close()
            await tasks.close()
            await running.close()

    asyncio.run(run())
