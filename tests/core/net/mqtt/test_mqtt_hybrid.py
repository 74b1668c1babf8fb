"""Messages over MQTT, what is large over gRPC, and over MQTT where there is no gRPC."""

from __future__ import annotations

import asyncio
import os

from delian.core.net.mqtt_hybrid import HybridUplink, is_bulk
from delian.core.net.mqtt_link import MqttIdentity, MqttUplink
from delian.core.net.traffic import Traffic
from delian.core.ports import Node, Tier
from delian.core.wire import admission_pb2, blob_pb2, round_pb2

DEVICE, EDGE = Node(Tier.DEVICE, 5), Node(Tier.EDGE, 3)
CHECK_IN = admission_pb2.CheckIn(device=5, sequence=1)
LARGE = round_pb2.Upload(device=5, vector=bytes(100_000))


class Wire:
    """A link that only remembers."""

    def __init__(self, up=True):
        self.up, self.sent, self.closed = up, [], False
        self.meter = Traffic().meter("grpc")

    def start(self):
        pass

    def reaches(self, to):
        return self.up

    def send(self, sender, to, message, traceparent=""):
        self.sent.append(message)

    def expect(self, node, at, digest):
        self.sent.append(("expects", digest))

    async def close(self):
        self.closed = True


def test_what_is_large_goes_over_grpc_and_the_rest_over_mqtt():
    async def main():
        control, bulk = Wire(), Wire()
        link = HybridUplink(control, lambda: bulk)
        fetch = blob_pb2.FetchBlob(digest=bytes(32))
        small = round_pb2.Upload(device=5, vector=bytes(20))  # sums of metrics
        for message in (CHECK_IN, LARGE, fetch, small):
            link.send(DEVICE, EDGE, message)
        assert control.sent == [CHECK_IN, ("expects", fetch.digest), small]
        assert bulk.sent == [LARGE, fetch]
        await link.close()
        assert control.closed and bulk.closed

    asyncio.run(main())


def test_an_edge_s_sum_is_large_when_it_has_numbers():
    assert is_bulk(round_pb2.EdgeSum(sum=bytes(100_000))) and not is_bulk(round_pb2.EdgeSum())


def test_nothing_is_dialled_until_something_large_is_to_move():
    async def main():
        link = HybridUplink(Wire(), lambda: Wire())
        link.send(DEVICE, EDGE, CHECK_IN)
        assert link.bulk is None

    asyncio.run(main())


def test_without_grpc_everything_goes_over_mqtt():
    async def main():
        control, bulk = Wire(), Wire(up=False)
        link = HybridUplink(control, lambda: bulk)
        link.send(DEVICE, EDGE, LARGE)
        assert control.sent == [LARGE] and bulk.sent == []
        await link.close()

    asyncio.run(main())


class Moving:
    """The meter of a link over which something moves between any two of some looks at it."""

    def __init__(self, looks):
        self.looks, self._parts = looks, 0

    @property
    def parts(self):
        if self.looks:
            self.looks, self._parts = self.looks - 1, self._parts + 1
        return self._parts


def test_grpc_ends_when_nothing_large_moves_any_more(mqtt):
    async def main():
        bulks = [Wire(), Wire()]
        bulks[0].meter = Moving(looks=6)
        made = iter(bulks)
        link = HybridUplink(Wire(), lambda: next(made), idle_s=0.02)
        link.send(DEVICE, EDGE, LARGE)
        await mqtt.until(lambda: bulks[0].closed and link.bulk is None)
        assert bulks[0].meter.looks == 0, "it was closed while something moved"
        link.send(DEVICE, EDGE, LARGE)
        assert bulks[1].sent == [LARGE]
        await link.close()

    asyncio.run(main())


def test_a_device_with_both_speaks_to_an_edge_with_both(mqtt, mosquitto):
    from delian.core.identity.roles import Guard
    from delian.core.net.grpc_link import GrpcUplink
    from delian.core.net.grpc_server import GrpcHub

    async def main():
        edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
        served = GrpcHub(
            edge.switch, "127.0.0.1:0", None, Guard("farm", Tier.EDGE), federation="farm"
        )
        port = await served.start()
        edge.switch.add_link(served)
        hub = mqtt.hub(edge, mosquitto.url)
        control = MqttUplink(device.switch, MqttIdentity("farm", DEVICE), {EDGE: mosquitto.url})
        home = {EDGE: f"127.0.0.1:{port}"}
        up = HybridUplink(
            control, lambda: GrpcUplink(device.switch, DEVICE, home, None, "farm"), idle_s=0.05
        )
        moved = asyncio.Event()  # a busy machine may be idle for longer than that in between
        hang_up = up._hang_up

        async def later():
            await moved.wait()
            await hang_up()

        up._hang_up = later
        device.switch.add_link(up)
        up.start()
        async with mqtt.closing(served, hub, up):
            await mqtt.until(lambda: control.home == EDGE)
            device.send(EDGE, CHECK_IN)
            assert await edge.gets(1) == [CHECK_IN] and served.peers == ()
            blob = await edge.blobs.put(os.urandom(300_000))
            device.send(EDGE, LARGE)
            device.send(EDGE, blob_pb2.FetchBlob(digest=blob.digest))
            await edge.gets(3)
            assert served.peers == (DEVICE,)
            edge.switch.send_blob(EDGE, DEVICE, blob.digest)
            await mqtt.until(lambda: blob.digest in device.blobs.contents)
            assert hub._peers[DEVICE].peer.transfers.parts_taken == 0
            assert control._visit.peer.transfers.parts_taken == 0
            moved.set()
            await mqtt.until(lambda: served.peers == ())
            edge.send(DEVICE, admission_pb2.Accept(sequence=1))
            await device.gets(2)

    asyncio.run(main())
