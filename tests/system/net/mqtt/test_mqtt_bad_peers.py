"""Peers of a real broker that break the protocol: each is refused, and the link survives it."""

from __future__ import annotations

import asyncio
import os

import pytest
from delian.core.node.net import message_limits
from delian.core.node.net.message_limits import Buckets
from delian.core.node.net.mqtt import mqtt_link, mqtt_transfers
from delian.core.node.net.mqtt.seal import Credentials
from delian.core.node.storage.codec import envelope_bytes
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import admission_pb2, blob_pb2, link_pb2, round_pb2

CHECK_IN = admission_pb2.CheckIn(device=5, sequence=1)
DEVICE, EDGE = Node(Tier.DEVICE, 5), Node(Tier.EDGE, 3)
BIRTH = "delian/v1/farm/device/device-5/up/birth/edge-3"
ENVELOPE = "delian/v1/farm/device/device-5/up/envelope/edge-3"


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
            assert up.faults.counts == {"offer of a blob that was not requested": 1}
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
    monkeypatch.setattr(message_limits, "RATE_PER_S", 0.0)  # however long it takes

    async def attack(hub, say, edge):
        for _ in range(2_000 + 900):
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
    monkeypatch.setattr(message_limits, "TRANSFER_IDLE_S", 0.05)

    async def attack(hub, say, edge):
        say(link_pb2.Offer(id=bytes(32), size=10**6, kind=link_pb2.TRANSFER_ENVELOPE))
        await mqtt.until(lambda: not hub._peers[DEVICE].peer.transfers._incoming)

    assert against(attack) == {"transfer stopped": 1}
