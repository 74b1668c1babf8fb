"""Both ends of a link count the same, over gRPC and MQTT, and traces travel with every message."""

from __future__ import annotations

import asyncio
import os
from collections import Counter

import pytest
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_link import GrpcUplink
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.loopback import INSECURE
from delian.core.protocol.ports import Node, Tier
from delian.core.wire import admission_pb2, blob_pb2, round_pb2

DEVICE, EDGE = Node(Tier.DEVICE, 5), Node(Tier.EDGE, 3)
CHECK_IN = admission_pb2.CheckIn(device=5, sequence=1)
TRACES = [f"00-{letter * 32}-{'1' * 16}-01" for letter in "abc"]
UPLOAD_BYTES, BLOB_BYTES = 500_000, 300_000


async def over_grpc(mqtt, edge, device, broker):
    hub = GrpcHub(edge.switch, "127.0.0.1:0", None, Guard(INSECURE, Tier.EDGE))
    port = await hub.start()
    edge.switch.add_link(hub)
    up = GrpcUplink(device.switch, DEVICE, {EDGE: f"127.0.0.1:{port}"}, None)
    device.switch.add_link(up)
    up.start()
    return hub, up


async def over_mqtt(mqtt, edge, device, broker):
    return mqtt.hub(edge, broker.url), mqtt.uplink(device, {EDGE: broker.url})


def totals(station, direction):
    """(kind -> messages, kind -> bytes)."""
    messages, octets = Counter(), Counter()
    for way, count, size in station.switch.traffic:
        if way.direction == direction:
            messages[way.kind] += count
            octets[way.kind] += size
    return messages, octets


@pytest.mark.parametrize("link", ["grpc", "mqtt"])
def test_what_one_end_sends_the_other_receives(mqtt, link, request):
    broker = request.getfixturevalue("mosquitto") if link == "mqtt" else None

    async def main():
        edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
        links = await (over_mqtt if link == "mqtt" else over_grpc)(mqtt, edge, device, broker)
        async with mqtt.closing(*links):
            device.switch.send(DEVICE, EDGE, CHECK_IN, TRACES[0])
            await edge.gets(1)
            edge.switch.send(EDGE, DEVICE, admission_pb2.Accept(sequence=1), TRACES[1])
            await device.gets(1)
            large = round_pb2.Upload(run=1, device=5, vector=os.urandom(UPLOAD_BYTES))
            device.switch.send(DEVICE, EDGE, large, TRACES[2])
            await edge.gets(2)
            ref = await edge.blobs.put(os.urandom(BLOB_BYTES))
            device.send(EDGE, blob_pb2.FetchBlob(digest=ref.digest))
            await edge.gets(3)
            edge.switch.send_blob(EDGE, DEVICE, ref.digest)
            await device.gets(2)
            await mqtt.until(
                lambda: (
                    totals(device, "sent") == totals(edge, "received")
                    and totals(edge, "sent") == totals(device, "received")
                )
            )
            assert edge.traces == [TRACES[0], TRACES[2], ""] and device.traces == [TRACES[1], ""]
        for station, peer, parts_sent in ((device, "edge", UPLOAD_BYTES), (edge, "device", 0)):
            ways = [way for way, _, _ in station.switch.traffic]
            assert {way.peer for way in ways} == {peer} and {way.link for way in ways} == {link}
            sent = totals(station, "sent")[1]
            blob = 0 if parts_sent else BLOB_BYTES
            assert parts_sent + blob < sent["part"] < 1.01 * (parts_sent + blob) + 1_000
            assert 0 < sent["envelope"] < 2_000

    asyncio.run(asyncio.wait_for(main(), 300))


def test_the_coordinator_s_own_edge_is_the_coordinator(mqtt):
    async def main():
        edge, device = mqtt.Station(Node(Tier.EDGE, 0)), mqtt.Station(DEVICE)
        hub = GrpcHub(edge.switch, "127.0.0.1:0", None, Guard(INSECURE, Tier.CLOUD))
        port = await hub.start()
        up = GrpcUplink(device.switch, DEVICE, {edge.node: f"127.0.0.1:{port}"}, None)
        device.switch.add_link(up)
        async with mqtt.closing(hub, up):
            device.send(edge.node, CHECK_IN)
            await edge.gets(1)
        assert {way.peer for way, _, _ in device.switch.traffic} == {Tier.CLOUD}

    asyncio.run(asyncio.wait_for(main(), 300))
