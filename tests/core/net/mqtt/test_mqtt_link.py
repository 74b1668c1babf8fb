"""Nodes that speak over a real broker, and what goes wrong with brokers, cables and peers."""

from __future__ import annotations

import asyncio
import os

import aiomqtt
import pytest
from delian.core.errors import DelianError
from delian.core.identity.roles import MESSAGES
from delian.core.net import mqtt_link, mqtt_peer, mqtt_transfers
from delian.core.net.limits import Buckets
from delian.core.net.mqtt_parts import PART_BYTES, WINDOW
from delian.core.net.seal import Credentials
from delian.core.net.topics import home, make, parse
from delian.core.node.codec import MESSAGE_FIELDS, envelope_bytes
from delian.core.ports import CLOUD, Node, Tier
from delian.core.wire import admission_pb2, blob_pb2, link_pb2, round_pb2

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
    from delian.core.node.blobs import FolderBlobs

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
    from delian.core.net.broker import BrokerSettings

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


# ---------------------------------------------------------------- bad peers


@pytest.fixture
def against(mqtt, mosquitto):
    """Runs `attack(hub, channel, edge)`: the channel is that of a device that is here."""

    def run(attack, bytes_max=2**20, again=False):
        async def main():
            edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
            edge.bytes_max = bytes_max
            hub, up = mqtt.hub(edge, mosquitto.url), mqtt.uplink(device, {EDGE: mosquitto.url})
            async with mqtt.closing(hub, up):
                await mqtt.until(lambda: up.home == EDGE and hub.peers != ())

                def say(message, sender=DEVICE, to=EDGE, topic=ENVELOPE, body=None):
                    content = envelope_bytes(sender, to, message) if body is None else body
                    frame = up._visit.peer.current.seal(topic, content)
                    hub.receive(topic, frame, False)

                await attack(hub, say, edge)
                if again:  # as after a while of silence
                    up._visit._be_born_soon()
                    await mqtt.until(lambda: up._visit._channel_at > 0)
                device.send(EDGE, CHECK_IN)  # the link has survived it
                await mqtt.until(lambda: CHECK_IN in edge.messages)
                return hub.faults.counts

        return asyncio.run(main())

    return run


def test_a_device_cannot_speak_for_another(against):
    async def attack(hub, say, edge):
        say(CHECK_IN, sender=Node(Tier.DEVICE, 6))
        say(CHECK_IN, sender=EDGE)

    assert against(attack) == {"wrong sender": 2}


def test_a_device_cannot_send_what_is_not_a_device_s_to_send(against):
    async def attack(hub, say, edge):
        say(round_pb2.EdgeSum(edge=3))
        say(blob_pb2.Blob(digest=bytes(32)))
        say(CHECK_IN, to=CLOUD)
        say(CHECK_IN, to=Node(Tier.EDGE, 4))

    assert against(attack) == {"not allowed": 4}


def test_malformed_and_oversized_messages_are_refused(against):
    async def attack(hub, say, edge):
        say(None, body=b"\xff\xff\xff")
        say(None, body=bytes(70_000))
        hub.receive(ENVELOPE, b"", False)
        hub.receive("delian/v1/barn/device/device-5/up/envelope/edge-3", b"", False)
        hub.receive("delian/v1/farm/device/device-5/up/envelope/edge-4", b"", False)
        hub.receive("somewhere/else", b"", False)
        hub.receive(ENVELOPE.replace("device-5", "device-9"), bytes(40), False)

    assert against(attack) == {
        "malformed": 2,
        "oversized": 1,
        "other federation": 1,
        "wrong topic": 1,
        "protocol": 1,
        "stale": 1,
    }


ENVELOPE_OFFER = link_pb2.TRANSFER_ENVELOPE


@pytest.mark.parametrize(
    ("offer", "refusal"),
    [
        ({"size": 2**20 + 1, "kind": ENVELOPE_OFFER}, "oversized offer"),
        ({"size": 2**63, "kind": ENVELOPE_OFFER}, "oversized offer"),
        ({"size": 0, "kind": ENVELOPE_OFFER}, "malformed offer"),
        ({"size": 1000, "kind": ENVELOPE_OFFER, "id": bytes(5)}, "malformed offer"),
        ({"size": 1000, "kind": ENVELOPE_OFFER, "id": bytes(500)}, "malformed offer"),
        ({"size": 1000}, "malformed offer"),
        ({"size": 1000, "kind": link_pb2.TRANSFER_BLOB}, "not allowed"),
    ],
)
def test_an_offer_that_nobody_expects_is_refused_before_anything_is_kept(against, offer, refusal):
    async def attack(hub, say, edge):
        say(link_pb2.Offer(**{"id": bytes(32), **offer}))
        assert not hub._peers[DEVICE].peer.transfers._incoming
        assert hub.office.intake.bytes_held == 0

    assert against(attack) == {refusal: 1}


def test_a_device_takes_no_blob_that_it_has_not_asked_for(mqtt, mosquitto):
    async def main():
        edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
        hub, up = mqtt.hub(edge, mosquitto.url), mqtt.uplink(device, {EDGE: mosquitto.url})
        async with mqtt.closing(hub, up):
            await mqtt.until(lambda: up.home == EDGE and hub.peers != ())
            blob = await edge.blobs.put(os.urandom(100_000))
            edge.switch.send_blob(EDGE, DEVICE, blob.digest)
            await mqtt.until(lambda: hub.faults.counts["offer was refused"] == 1)
            assert up.faults.counts == {"offer of a blob that nobody asked for": 1}
            assert not device.received and not device.blobs.contents

    asyncio.run(main())


def test_one_device_cannot_have_all_the_room_for_transfers(against):
    async def attack(hub, say, edge):
        for i in range(20):
            kind = link_pb2.TRANSFER_ENVELOPE
            say(link_pb2.Offer(id=bytes([i]) * 32, size=100_000, kind=kind))
        assert len(hub._peers[DEVICE].peer.transfers._incoming) == 8

    assert against(attack)["too many offers"] == 12


def test_parts_that_nobody_asked_for_are_refused(against, monkeypatch):
    topic = ENVELOPE.replace("envelope", "part")

    async def attack(hub, say, edge):
        part = link_pb2.Part(id=bytes(32), offset=0, content=b"x")
        say(None, topic=topic, body=part.SerializeToString())
        offer = link_pb2.Offer(id=bytes(32), size=10**6, kind=link_pb2.TRANSFER_ENVELOPE)
        say(offer)
        for _ in range(3):
            say(None, topic=topic, body=part.SerializeToString())
            await asyncio.sleep(0.05)

    assert against(attack) == {"protocol": 1, "part that was not asked for": 3}


def test_content_that_does_not_hash_to_its_id_is_refused(mqtt, against):
    topic = ENVELOPE.replace("envelope", "part")

    async def attack(hub, say, edge):
        say(link_pb2.Offer(id=bytes(32), size=100, kind=link_pb2.TRANSFER_ENVELOPE))
        part = link_pb2.Part(id=bytes(32), content=bytes(100))
        say(None, topic=topic, body=part.SerializeToString())
        await mqtt.until(lambda: not hub._peers[DEVICE].peer.transfers._incoming)

    assert against(attack) == {"content does not hash to its id": 1}


def test_a_flood_is_cut_off(against, monkeypatch):
    monkeypatch.setattr(mqtt_peer, "RATE_PER_S", 10.0)

    async def attack(hub, say, edge):
        for _ in range(2_000 + 1_000):
            say(CHECK_IN)
        assert len(edge.received) < 2_100 and hub.peers == (DEVICE,)
        for _ in range(200):
            say(CHECK_IN)
        assert hub.peers == () and hub.faults.counts["stale"] > 0
        edge.received.clear()
        hub._peers[DEVICE].peer._tokens = 100.0  # some time later

    counts = against(attack, again=True)
    assert counts["too many messages"] > 900


def test_births_without_end_are_not_all_answered(against):
    async def attack(hub, say, edge):
        credentials = Credentials("farm", DEVICE, None)
        at = credentials.read(Credentials("farm", EDGE, None).home(hub.session))
        for _ in range(50):
            birth = credentials.birth(1, mqtt_link.Ephemeral(False), at)
            hub.receive(BIRTH, birth, False)

    assert against(attack)["too many births"] >= 40


def test_few_forged_births_and_deaths_are_verified_whoever_they_name(against):
    async def attack(hub, say, edge):
        verified, read = [], hub.read
        hub.read = lambda payload, state, node: (verified.append(node), read(payload, state, node))[
            1
        ]
        stranger = [BIRTH.replace("device-5", "device-6")] * 50
        for topic in stranger:
            hub.receive(topic, b"forged", False)
        assert len(verified) == mqtt_link.BIRTHS_BURST
        verified.clear()
        hub._newcomers = Buckets(7, 0.0, 1)
        for number in range(100, 150):  # each with a bucket of its own
            hub.receive(BIRTH.replace("device-5", f"device-{number}"), b"forged", False)
        assert len(verified) == 7
        verified.clear()
        for topic in (BIRTH, *stranger):
            hub.receive(topic.replace("birth", "death"), b"forged", False)
        assert set(verified) == {DEVICE}  # nothing is verified for a node that is not here

    counts = against(attack)
    assert counts["too many births"] == 40 and counts["too many newcomers"] == 43
    assert counts["stale"] == 50


def test_counts_of_births_are_kept_of_so_many_nodes(against, monkeypatch):
    monkeypatch.setattr(mqtt_link, "NODES_COUNTED", 10)

    async def attack(hub, say, edge):
        for number in range(100, 200):
            hub.receive(BIRTH.replace("device-5", f"device-{number}"), b"forged", False)
        assert len(hub._births._left) == 10

    against(attack)


def test_a_transfer_that_stops_is_given_up(mqtt, against, monkeypatch):
    monkeypatch.setattr(mqtt_transfers, "STALL_S", 0.02)
    monkeypatch.setattr(mqtt_transfers, "TRANSFER_IDLE_S", 0.05)

    async def attack(hub, say, edge):
        say(link_pb2.Offer(id=bytes(32), size=10**6, kind=link_pb2.TRANSFER_ENVELOPE))
        await mqtt.until(lambda: not hub._peers[DEVICE].peer.transfers._incoming)

    assert against(attack) == {"transfer stopped": 1}


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
