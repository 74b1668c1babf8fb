"""Nodes that speak over a real broker, and what goes wrong with brokers and cables."""

from __future__ import annotations

import asyncio
import os

import aiomqtt
import pytest
from delian.core.common.errors import DelianError
from delian.core.node.identity.pki.roles import MESSAGES
from delian.core.node.net.mqtt import mqtt_link
from delian.core.node.net.mqtt.mqtt_parts import PART_BYTES, WINDOW
from delian.core.node.net.mqtt.seal import Credentials
from delian.core.node.net.mqtt.topics import home, make, parse
from delian.core.node.storage.codec import MESSAGE_FIELDS
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import admission_pb2, blob_pb2, round_pb2

TYPES = {field: kind for kind, field in MESSAGE_FIELDS.items()}
CHECK_IN = admission_pb2.CheckIn(device=5, sequence=1)
DEVICE, EDGE = Node(Tier.DEVICE, 5), Node(Tier.EDGE, 3)
BIRTH = "delian/v1/farm/device/device-5/up/birth/edge-3"
ENVELOPE = "delian/v1/farm/device/device-5/up/envelope/edge-3"
WAIT_S = 120.0  # only so that nothing hangs


def upload(size=3 * 2**20):
    return round_pb2.Upload(run=1, device=5, vector=os.urandom(size))


def client(broker, **more):
    return aiomqtt.Client(
        "127.0.0.1", broker.port, protocol=aiomqtt.ProtocolVersion.V5, timeout=WAIT_S, **more
    )


async def publish(broker, topic, payload, retain=False):
    """As somebody else on the broker."""
    async with client(broker) as other:
        await other.publish(topic, payload, qos=1, retain=retain)


async def forget_retained(broker, *topics):
    for topic in topics:
        await publish(broker, topic, b"", retain=True)


def test_every_message_of_the_contract_travels(mqtt, mosquitto):
    def sample(kind):
        """A message of a type, with its first number set."""
        message = kind()
        for field in kind.DESCRIPTOR.fields:
            if field.cpp_type == field.CPPTYPE_UINT64 and not field.is_repeated:
                setattr(message, field.name, 3)
                break
        return message

    async def main():
        cloud, edge, device = (mqtt.Station(n) for n in (CLOUD, EDGE, DEVICE))
        links = (
            mqtt.hub(cloud, mosquitto.url),
            mqtt.hub(edge, mosquitto.url),
            mqtt.uplink(edge, {CLOUD: mosquitto.url}),
            mqtt.uplink(device, {EDGE: mosquitto.url}),
        )
        stations = {s.node.tier: s for s in (cloud, edge, device)}
        async with mqtt.closing(*links):
            await mqtt.until(lambda: links[2].home == CLOUD and links[3].home == EDGE)
            await mqtt.until(lambda: links[0].peers == (EDGE,) and links[1].peers == (DEVICE,))
            for (lower, upper), fields in MESSAGES.items():
                sent = [sample(TYPES[field]) for field in sorted(fields & set(TYPES))]
                sender, receiver = stations[lower], stations[upper]
                receiver.received.clear()
                for message in sent:
                    sender.send(receiver.node, message)
                got = await receiver.gets(len(sent))
                assert sorted(map(repr, got)) == sorted(map(repr, sent))
                assert {event.sender for event in receiver.received} == {sender.node}
            assert not any(link.faults.counts for link in links)

    asyncio.run(main())


def test_large_messages_and_blobs_travel_in_parts(mqtt, mosquitto):
    async def main():
        edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
        hub, up = mqtt.hub(edge, mosquitto.url), mqtt.uplink(device, {EDGE: mosquitto.url})
        async with mqtt.closing(hub, up):
            message = upload(700_000)
            device.send(EDGE, message)
            assert await edge.gets(1) == [message]
            blob = await edge.blobs.put(os.urandom(1_000_000))
            device.send(EDGE, blob_pb2.FetchBlob(digest=blob.digest))
            await edge.gets(2)
            edge.switch.send_blob(EDGE, DEVICE, blob.digest)
            (told,) = await device.gets(1)
            assert told == blob_pb2.Blob(digest=blob.digest, size=blob.size)
            assert device.blobs.contents == edge.blobs.contents
            peer = hub._peers[DEVICE].peer
            await mqtt.until(lambda: not peer.transfers._outgoing)
            assert not hub.faults.counts and not up.faults.counts

    asyncio.run(main())


def test_an_upload_goes_on_after_the_connection_is_cut(mqtt, mosquitto):
    async def main():
        edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
        async with mqtt.Cable(mosquitto.port) as cable:
            hub = mqtt.hub(edge, mosquitto.url)
            up = mqtt.uplink(device, {EDGE: cable.url})
            async with mqtt.closing(hub, up):
                await mqtt.until(lambda: up.home == EDGE and hub.peers != ())
                cable.cut_after = cable.up_bytes + 1_500_000
                message = upload()
                device.send(EDGE, message)
                assert await edge.gets(1) == [message]
                assert cable.cuts == 1 and up._visit.connection.reconnects == 2
                transfers = hub._peers[DEVICE].peer.transfers
                parts = -(-len(message.vector) // PART_BYTES)
                assert parts <= transfers.parts_taken - transfers.parts_again <= parts + 1
                assert transfers.parts_again <= WINDOW // 2

    asyncio.run(main())


def test_a_download_goes_on_in_the_next_life_of_the_device(mqtt, mosquitto, tmp_path):
    from delian.core.node.storage.blobs import FolderBlobs

    forever = asyncio.Event()

    class Slow(FolderBlobs):
        """Takes ten parts and no more, however fast they come."""

        async def begin(self, digest, size):
            partial = await super().begin(digest, size)
            write = partial.write

            async def some(content):
                await (write(content) if partial.offset < 10 * PART_BYTES else forever.wait())

            partial.write = some
            return partial

    async def main():
        edge = mqtt.Station(EDGE)
        hub = mqtt.hub(edge, mosquitto.url)
        blob = await edge.blobs.put(os.urandom(40 * PART_BYTES))
        taken = []
        async with mqtt.closing(hub):
            for life in range(2):
                device = mqtt.Station(DEVICE)
                device.switch.detach(DEVICE)
                store = (Slow if life == 0 else FolderBlobs)(tmp_path, 2**30)
                device.switch.attach(DEVICE, device.take, store)
                up = mqtt.uplink(device, {EDGE: mosquitto.url})
                device.send(EDGE, blob_pb2.FetchBlob(digest=blob.digest))
                await mqtt.until(lambda n=life: len(edge.received) > n)
                edge.switch.send_blob(EDGE, DEVICE, blob.digest)
                transfers = up._visit.peer.transfers
                if life == 0:
                    await mqtt.until(lambda t=transfers: t.parts_taken >= 10)
                else:
                    await device.gets(1)
                    assert await store.size(blob.digest) == blob.size
                taken.append(transfers.parts_taken)
                await up.close()
                await store.close()
        assert taken[0] < 40 and taken[0] + taken[1] <= 40 + WINDOW

    asyncio.run(main())


def test_a_broker_that_is_killed_and_comes_back_loses_nobody(mqtt):
    from delian.core.node.net.mqtt.broker import BrokerSettings

    mqtt.need_mosquitto()
    broker = mqtt.RunningBroker(BrokerSettings(port=0, kind="mosquitto"))

    async def main():
        edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
        hub, up = mqtt.hub(edge, broker.url), mqtt.uplink(device, {EDGE: broker.url})
        async with mqtt.closing(hub, up):
            device.send(EDGE, CHECK_IN)
            await edge.gets(1)
            message = upload()
            device.send(EDGE, message)
            transfers = hub._peers[DEVICE].peer.transfers
            await mqtt.until(lambda: transfers.parts_taken > 3)
            await asyncio.to_thread(broker.kill)
            assert (await edge.gets(2))[1] == message
            edge.send(DEVICE, round_pb2.UploadAck(device=5))
            await device.gets(1)
            assert up._visit.connection.reconnects == 2

    try:
        asyncio.run(main())
    finally:
        broker.close()


def test_a_hub_that_starts_again_gets_its_nodes_back(mqtt, mosquitto, monkeypatch):
    monkeypatch.setattr(mqtt_link, "CROWD_S", 0.05)

    async def main():
        edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
        hub, up = mqtt.hub(edge, mosquitto.url), mqtt.uplink(device, {EDGE: mosquitto.url})
        async with mqtt.closing(up):
            device.send(EDGE, CHECK_IN)
            await edge.gets(1)
            await hub.close()
            await mqtt.until(lambda: up.home is None)  # it said that it is gone
            device.send(EDGE, CHECK_IN)  # waits
            edge.switch.remove_link(hub)
            hub = mqtt.hub(edge, mosquitto.url)
            async with mqtt.closing(hub):
                await edge.gets(2)
                edge.send(DEVICE, admission_pb2.Accept(sequence=1))
                await device.gets(1)

    asyncio.run(main())


def test_a_device_goes_to_the_home_that_it_speaks_to(mqtt, mosquitto):
    async def main():
        edge, cloud, device = (mqtt.Station(n) for n in (EDGE, CLOUD, DEVICE))
        gathering = Node(Tier.EDGE, 0)
        cloud.switch.attach(gathering, cloud.take, cloud.blobs)
        hubs = mqtt.hub(edge, mosquitto.url), mqtt.hub(cloud, mosquitto.url)
        up = mqtt.uplink(device, {EDGE: mosquitto.url, gathering: mosquitto.url})
        async with mqtt.closing(*hubs, up):
            device.send(EDGE, CHECK_IN)
            await edge.gets(1)
            device.send(gathering, CHECK_IN)
            await cloud.gets(1)
            await mqtt.until(lambda: hubs[0].peers == ())  # it said so
            cloud.switch.send(gathering, DEVICE, admission_pb2.Accept(sequence=1))
            await device.gets(1)
            assert device.received[0].sender == gathering
            assert not up.reaches(CLOUD) and up.reaches(gathering) and up.reaches(EDGE)
            assert up.knows(EDGE) and not up.knows(CLOUD)

    asyncio.run(main())


def test_both_ends_are_told_when_there_is_a_way(mqtt, mosquitto, monkeypatch):
    monkeypatch.setattr(mqtt_link, "BROKEN_S", 0.2)

    async def main():
        edge, device, told = mqtt.Station(EDGE), mqtt.Station(DEVICE), []
        async with mqtt.Cable(mosquitto.port) as cable:
            identity = mqtt_link.MqttIdentity("farm", EDGE)
            hub = mqtt_link.MqttHub(
                edge.switch, identity, mosquitto.url, on_peer=lambda *peer: told.append(peer)
            )
            hub.start()
            identity = mqtt_link.MqttIdentity("farm", DEVICE)
            up = mqtt_link.MqttUplink(
                device.switch, identity, {EDGE: cable.url}, on_connected=told.append
            )
            up.start()
            async with mqtt.closing(hub, up):
                await mqtt.until(lambda: len(told) == 2)
                assert set(told) == {EDGE, (DEVICE, True)} and up.reaches(EDGE)
                cable.plugged = False
                cable.cut()
                await mqtt.until(lambda: not up.reaches(EDGE))
                cable.plugged = True
                await mqtt.until(lambda: told.count(EDGE) == 2)
                assert up.reaches(EDGE)
                up.redial()
                await mqtt.until(lambda: up._visit.connection.reconnects == 3)
                await up.close()
                await mqtt.until(lambda: told[-1] == (DEVICE, False))

    asyncio.run(main())


# ---------------------------------------------------------------- what is old


@pytest.mark.parametrize("removed", [False, True])
def test_a_hub_puts_its_home_back(mqtt, mosquitto, removed):
    """The broker publishes the will of a hub that was killed when the next life has begun."""

    async def main():
        edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
        hub = mqtt.hub(edge, mosquitto.url)
        async with mqtt.closing(hub):
            await mqtt.until(lambda: hub.connection.connected)
            will = b"" if removed else Credentials("farm", EDGE, None).death(12345)
            await publish(mosquitto, home("farm", EDGE), will, retain=True)
            up = mqtt.uplink(device, {EDGE: mosquitto.url})
            async with mqtt.closing(up):
                device.send(EDGE, CHECK_IN)
                await edge.gets(1)

    asyncio.run(main())


def test_a_home_of_an_earlier_life_does_no_harm(mqtt, mosquitto):
    """The broker holds the home of a hub that died without a word; then the hub is back."""

    async def main():
        stale = Credentials("farm", EDGE, None).home(12345)
        await publish(mosquitto, home("farm", EDGE), stale, retain=True)
        edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
        up = mqtt.uplink(device, {EDGE: mosquitto.url})
        device.send(EDGE, CHECK_IN)
        await mqtt.until(lambda: up._visit._home is not None)
        hub = mqtt.hub(edge, mosquitto.url)
        async with mqtt.closing(hub, up):
            assert await edge.gets(1) == [CHECK_IN]
            # And again, while they speak: nobody answers there, so the old keys stay in use.
            hub._home.heard = lambda payload, now: None
            await publish(mosquitto, home("farm", EDGE), stale)
            await mqtt.until(lambda: up._visit._home.presence.session == 12345)
            edge.send(DEVICE, admission_pb2.Accept(sequence=1))
            await device.gets(1)
            device.send(EDGE, CHECK_IN)
            await edge.gets(2)
            assert up.home == EDGE

    asyncio.run(main())


def test_retained_births_and_messages_are_refused(mqtt, mosquitto):
    async def main():
        credentials = Credentials("farm", DEVICE, None)
        at = credentials.read(Credentials("farm", EDGE, None).home(1))
        birth = credentials.birth(2, mqtt_link.Ephemeral(False), at)
        await publish(mosquitto, BIRTH, birth, retain=True)
        await publish(mosquitto, ENVELOPE, b"\1" * 40, retain=True)
        edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
        hub, up = mqtt.hub(edge, mosquitto.url), mqtt.uplink(device, {EDGE: mosquitto.url})
        async with mqtt.closing(hub, up):
            device.send(EDGE, CHECK_IN)
            assert await edge.gets(1) == [CHECK_IN]
            hub.receive(BIRTH, birth, True)  # mosquitto does not even send them to this hub
            hub.receive(ENVELOPE, b"\1" * 40, True)
            assert hub.faults.counts == {"retained": 2}
        await forget_retained(mosquitto, BIRTH, ENVELOPE)

    asyncio.run(main())


def test_births_and_messages_of_an_earlier_life_are_refused(mqtt, mosquitto):
    """Somebody has recorded all that a device said, and says it again."""

    async def main():
        said, listens = [], asyncio.Event()

        async def record():
            async with client(mosquitto) as listener:
                await listener.subscribe("delian/v1/farm/device/#", qos=1)
                listens.set()
                async for message in listener.messages:
                    if parse(message.topic.value).direction == "up":
                        said.append((message.topic.value, message.payload))

        recorder = asyncio.create_task(record())
        edge = mqtt.Station(EDGE)
        hub = mqtt.hub(edge, mosquitto.url)
        async with mqtt.closing(hub):
            await asyncio.wait_for(listens.wait(), WAIT_S)
            for life in range(2):
                device = mqtt.Station(DEVICE)
                up = mqtt.uplink(device, {EDGE: mosquitto.url})
                device.send(EDGE, CHECK_IN)
                await mqtt.until(lambda n=life: len(edge.received) == n + 1)
                if life == 0:
                    await up.close()
                    await mqtt.until(lambda: hub.peers == ())
            await mqtt.until(lambda: len(said) >= 5)  # it may be told later than the edge
            for topic, payload in list(said):
                await publish(mosquitto, topic, payload)
            await mqtt.until(lambda: sum(hub.faults.counts.values()) >= 3)
            assert set(hub.faults.counts) <= {"stale", "replayed"}
            device.send(EDGE, CHECK_IN)
            await edge.gets(3)
            assert len(edge.received) == 3
            await up.close()
        recorder.cancel()
        await asyncio.gather(recorder, return_exceptions=True)

    asyncio.run(main())


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize("url", ["", "http://x", "mqtt://", "mqtt://host:99999", "mqtts://h/p"])
def test_an_address_that_is_none_is_refused(mqtt, url):
    with pytest.raises(DelianError, match="no address of a broker"):
        mqtt.uplink(mqtt.Station(DEVICE), {EDGE: url})


@pytest.mark.parametrize("url", ["mqtt://192.0.2.1:1883", "mqtts://127.0.0.1:8883"])
def test_without_certificates_a_broker_is_on_loopback_and_plain(mqtt, url):
    async def main():
        mqtt.hub(mqtt.Station(EDGE), url)

    with pytest.raises(DelianError):
        asyncio.run(main())


def test_links_close_at_once_when_there_is_no_broker(mqtt):
    async def main():
        station = mqtt.Station(DEVICE)
        up = mqtt.uplink(station, {EDGE: "mqtt://127.0.0.1:1"})
        station.send(EDGE, CHECK_IN)
        await asyncio.sleep(0.1)
        await asyncio.wait_for(up.close(), 20)
        assert up.home is None

    asyncio.run(main())


def test_the_queue_for_a_node_that_is_away_is_bounded(mqtt):
    async def main():
        station = mqtt.Station(DEVICE)
        up = mqtt.uplink(station, {EDGE: "mqtt://127.0.0.1:1"})
        async with mqtt.closing(up):
            for _ in range(300):
                station.send(EDGE, CHECK_IN)
            assert up.faults.counts == {"queue is full": 300 - 256}

    asyncio.run(main())


def test_topics_that_nodes_make_are_those_that_roles_allow(mqtt):
    assert make(parse(BIRTH)) == BIRTH
