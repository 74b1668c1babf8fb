"""Bad peers on the broker: frames that are not sealed, or sealed and not what they must be, births,
and those whom the broker itself turns away.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib

import aiomqtt
import pytest
from delian.core.node.identity.pki.certificates import Role, TlsMaterial
from delian.core.node.net import message_limits
from delian.core.node.net.mqtt.seal import Ephemeral
from delian.core.node.net.mqtt.topics import Kind
from delian.core.node.storage.codec import address, envelope_bytes
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import round_pb2
from delian.core.wire.admission_pb2 import EdgeHello, Reject
from delian.core.wire.blob_pb2 import FetchBlob
from delian.core.wire.link_pb2 import Part
from delian.core.wire.mqtt_pb2 import Presence, SignedPresence
from delian.core.wire.round_pb2 import Upload, UploadAck

from support.peers.peer_scene import LATE, REFUSED, Row, Scene, junk, offer_of, parts_of
from support.peers.peer_wires import Mqtt
from support.peers.peer_world import BY_MQTT, FEDERATION


@contextlib.asynccontextmanager
async def link(scene: Scene):
    """A link with keys."""
    async with Mqtt(scene.world, scene.who, scene.material, scene.home) as made:
        yield await made.connect()


async def unsealed(scene: Scene) -> None:
    async with link(scene) as mqtt:
        frame = mqtt.sealed(envelope_bytes(scene.who, scene.home, scene.check_in()))
        await mqtt.publish(frame[:17] + junk(100))  # the head of a good one
        await mqtt.publish(frame[:-1])
        await scene.honest_end()
        await mqtt.say(scene.check_in())
        await mqtt.hear(Reject)


async def frames_of_no_channel(scene: Scene) -> None:
    async with link(scene) as mqtt:
        for frame in (b"", b"\1", junk(16), junk(17), junk(1000), bytes(100_000)):
            await mqtt.publish(frame)
            await mqtt.publish(frame, Kind.PART)
        await scene.honest_end()


async def frames_of_another_kind(scene: Scene) -> None:
    """Sealed for one topic, published to another."""
    async with link(scene) as mqtt:
        await mqtt.publish(mqtt.sealed(b"", Kind.PART), Kind.ENVELOPE)
        await scene.honest_end()


async def frames_said_again(scene: Scene) -> None:
    async with link(scene) as mqtt:
        frame = mqtt.sealed(envelope_bytes(scene.who, scene.home, scene.check_in()))
        for _ in range(4):
            await mqtt.publish(frame)
        await scene.honest_end()
        await mqtt.say(scene.check_in(2))
        assert [(await mqtt.hear(Reject)).sequence for _ in range(2)] == [1, 2]


async def frames_of_an_earlier_life(scene: Scene) -> None:
    async with link(scene) as mqtt:
        before = mqtt.sealed(envelope_bytes(scene.who, scene.home, scene.check_in()))
    async with link(scene) as mqtt:
        await mqtt.publish(before)
        await scene.honest_end()


async def garbage_in_the_seal(scene: Scene) -> None:
    whole = envelope_bytes(scene.who, scene.home, scene.check_in())
    async with link(scene) as mqtt:
        await mqtt.say(b"\xff" + junk(40), whole[:-3])
        await scene.honest_end()


async def oversized_in_the_seal(scene: Scene) -> None:
    async with link(scene) as mqtt:
        await mqtt.say(Upload(device=scene.number, vector=bytes(90_000)))
        await scene.honest_end()


async def beyond_the_brokers_packets(scene: Scene) -> None:
    """The broker ends the connection; its link comes back by itself."""
    async with link(scene) as mqtt:
        with contextlib.suppress(Exception):
            await mqtt.publish(bytes(300_000))
        await scene.honest_end()


async def somebody_else_in_the_seal(scene: Scene) -> None:
    async with link(scene) as mqtt:
        await mqtt.say(envelope_bytes(Node(Tier.DEVICE, 1), scene.home, scene.check_in(device=1)))
        await scene.honest_end()


async def messages_of_other_tiers(scene: Scene) -> None:
    async with link(scene) as mqtt:
        await mqtt.say(EdgeHello(edge=1, sequence=99), to=CLOUD)
        await mqtt.say(round_pb2.Flush(run=scene.round.run, round=1, attempt=1))
        await scene.honest_end()


async def oversized_offer(scene: Scene) -> None:
    async with link(scene) as mqtt:
        await mqtt.say(offer_of(b"", id=bytes(32), size=2**40))
        await scene.honest_end()


async def wrong_digest(scene: Scene) -> None:
    async with link(scene) as mqtt:
        content, name = junk(70_000), hashlib.sha256(b"something else").digest()
        await mqtt.say(offer_of(content, id=name))
        await mqtt.say_part(Part(id=name, content=content))
        await scene.honest_end()


async def parts_without_an_offer(scene: Scene) -> None:
    async with link(scene) as mqtt:
        for part in parts_of(junk(80_000)):
            await mqtt.say_part(part)
        await scene.honest_end()


async def parts_where_they_do_not_belong(scene: Scene) -> None:
    async with link(scene) as mqtt:
        content = junk(76_000)
        name = hashlib.sha256(content).digest()
        await mqtt.say(offer_of(content))
        for offset, piece in ((1, content[1:]), (2**63, b"far out"), (0, content[:10])):
            await mqtt.say_part(Part(id=name, offset=offset, content=piece))
        for _ in range(3):
            await mqtt.say_part(Part(id=name, content=content))
        await scene.honest_end()


async def offered_and_never_sent(scene: Scene) -> None:
    async with link(scene) as mqtt:
        for n in range(20):
            await mqtt.say(offer_of(junk(70_000 + n)))
        await scene.honest_end()


async def wrong_round(scene: Scene) -> None:
    async with link(scene) as mqtt:
        name = {"run": scene.round.run, "round": 7, "attempt": 1}
        await mqtt.say(Upload(**name, device=scene.number, vector=bytes(8)))
        assert (await mqtt.hear(UploadAck)).status == LATE
        await scene.honest_end()


async def wrong_length(scene: Scene) -> None:
    async with link(scene) as mqtt:
        task = await scene.enlist(mqtt)
        await mqtt.say(scene.answer(task, vector=bytes(1000)))
        assert (await mqtt.hear(UploadAck)).status == REFUSED


async def never_answers(scene: Scene) -> None:
    async with link(scene) as mqtt:
        task = await scene.enlist(mqtt)
        await mqtt.say(FetchBlob(digest=task.weights.digest))
        await scene.honest_end()
        await mqtt.hear(round_pb2.RoundClosed)


async def flood(scene: Scene) -> None:
    async with link(scene) as mqtt:
        said = envelope_bytes(scene.who, scene.home, scene.check_in())
        topic = mqtt.topic(Kind.ENVELOPE)
        async with scene.world.publisher(scene.material) as publish:
            for _ in range(2 * message_limits.RATE_BURST):
                await publish(topic, mqtt.sealed(said))
        await scene.honest_end()


async def flood_of_births(scene: Scene) -> None:
    async with link(scene) as mqtt:
        visit = mqtt.link._visit
        for _ in range(30):
            birth = visit.credentials.birth(visit.session, Ephemeral(True), visit._home)
            await mqtt.publish(birth, Kind.BIRTH)
        await scene.honest_end()


async def births_that_are_not(scene: Scene) -> None:
    """Garbage; another version of the contract; another's name; a home's earlier life."""
    async with link(scene) as mqtt:
        visit = mqtt.link._visit
        good = visit.credentials.birth(visit.session, Ephemeral(True), visit._home)
        await mqtt.publish(junk(300), Kind.BIRTH)
        await mqtt.publish(junk(100_000), Kind.BIRTH)
        for changed in (
            {"version": 2},
            {"node": address(Node(Tier.DEVICE, 1))},
            {"other_session": 1},
            {"federation": "elsewhere"},
        ):
            signed = SignedPresence.FromString(good)
            presence = Presence.FromString(signed.presence)
            for name, value in changed.items():
                if name == "node":
                    presence.node.CopyFrom(value)
                else:
                    setattr(presence, name, value)
            signed.presence = presence.SerializeToString()
            await mqtt.publish(signed.SerializeToString(), Kind.BIRTH)
        await scene.honest_end()


async def revoked(scene: Scene) -> None:
    """The broker still lets it in; the home ignores it."""
    world = scene.world
    async with link(scene) as mqtt:
        await mqtt.say(scene.check_in())
        await mqtt.hear(Reject)
        known = len(world.edge.log())
        await world.revoke(f"device-{scene.number}")

        def is_denied() -> bool:
            return any("a certificate was revoked" in line for line in world.edge.log()[known:])

        await world.until(is_denied, "for the deny list")
        await mqtt.say(scene.check_in(2))
        visit = mqtt.link._visit
        birth = visit.credentials.birth(visit.session, Ephemeral(True), visit._home)
        await mqtt.publish(birth, Kind.BIRTH)
        await scene.honest_end()


async def topics_of_others(scene: Scene) -> None:
    """Into the topics of an honest device and of its home: the broker's list keeps it out."""
    files = scene.world.files(f"device-{scene.number}", scene.material)
    base = f"delian/v1/{FEDERATION}"
    async with scene.world.client(files) as broker:
        await broker.subscribe(f"{base}/#", qos=1)
        for topic in (
            f"{base}/device/device-{BY_MQTT}/up/envelope/edge-1",
            f"{base}/device/device-{BY_MQTT}/up/death/edge-1",
            f"{base}/device/device-{BY_MQTT}/down/envelope/edge-1",
            f"{base}/edge/edge-1/up/home",
            f"{base}/cloud/cloud-0/up/home",
        ):
            for retain in (False, True):
                await broker.publish(topic, b"" if retain else junk(200), qos=1, retain=retain)
        await scene.honest_end()


async def turned_away_by_the_broker(scene: Scene) -> None:
    """An expired certificate, and one of another CA."""
    from delian.core.node.identity.authority.authority import Authority

    world = scene.world
    other = Authority.create(world.folder / f"elsewhere-{scene.number}", FEDERATION)
    short = world.material(Role.DEVICE, scene.number, life_s=30, ago_s=60)

    async def knock(name: str, material: TlsMaterial) -> None:
        with pytest.raises(aiomqtt.MqttError):
            async with world.client(world.files(f"{name}-{scene.number}", material), 1.0):
                pass

    foreign = world.material(Role.DEVICE, scene.number, authority=other)
    before = world.broker.complaints
    while world.broker.complaints == before:
        # On a busy machine mosquitto turns one in thirty of them away without a word.
        await asyncio.gather(knock("expired", short), knock("other", foreign))
    await scene.honest_end()


def row(attack, *refused: str, logged: str | None = None, **more) -> Row:
    names = tuple(name if ":" in name else f"mqtt: {name}" for name in refused)
    if logged is None:
        logged = f"mqtt hub: {refused[0]} from device" if refused else ""
    return Row(attack, names, logged, by_mqtt=True, **more)


ROWS = [
    row(unsealed, "forged"),
    row(frames_of_no_channel, "stale", "malformed"),
    row(frames_of_another_kind, "forged"),
    row(frames_said_again, "replayed"),
    row(frames_of_an_earlier_life, "stale"),
    row(garbage_in_the_seal, "malformed"),
    row(oversized_in_the_seal, "oversized"),
    row(beyond_the_brokers_packets, real=True),
    row(somebody_else_in_the_seal, "wrong sender"),
    row(messages_of_other_tiers, "not allowed"),
    row(oversized_offer, "oversized offer"),
    row(wrong_digest, "content does not hash to its id"),
    row(parts_without_an_offer, "protocol"),
    row(parts_where_they_do_not_belong, "part that was not asked for"),
    row(offered_and_never_sent, "transfer stopped", inside=True),
    row(wrong_round, "node: record late", logged="late: device"),
    row(wrong_length, "node: record misfit", logged="misfit: device", members=1),
    row(never_answers, "node: record unanswered", logged="unanswered", members=1),
    row(flood, "too many messages", slowed=True),
    row(flood_of_births, "too many births"),
    row(births_that_are_not, "malformed", "forged"),
    row(revoked, "revoked", real=True),
    row(topics_of_others, real=True),
    row(
        turned_away_by_the_broker,
        "broker: complaints",
        logged="certificate verify failed",
        real=True,
    ),
]
