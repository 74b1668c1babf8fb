"""Mutual TLS, access lists and seals together, held against the table of roles."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re

import aiomqtt
import pytest
from delian.core.common.errors import DelianError
from delian.core.node.identity.authority.deny_list import FOR_GOOD, DenyList
from delian.core.node.identity.pki.certificates import Role
from delian.core.node.identity.pki.roles import TOPICS, Guard
from delian.core.node.identity.pki.tls_contexts import client_context
from delian.core.node.net.mqtt import broker_acl
from delian.core.node.net.mqtt.broker import BrokerSettings
from delian.core.node.net.mqtt.topics import (
    KINDS,
    UPPER_TIERS,
    Direction,
    Kind,
    Topic,
    filters_of_hub,
)
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import admission_pb2, round_pb2
from support.topic_rules import may_publish, may_read

DEVICE, OTHER, EDGE = Node(Tier.DEVICE, 5), Node(Tier.DEVICE, 6), Node(Tier.EDGE, 3)
OTHER_EDGE = Node(Tier.EDGE, 4)
WHO = [DEVICE, OTHER, EDGE, OTHER_EDGE, CLOUD]
CHECK_IN = admission_pb2.CheckIn(device=5, sequence=1)
SETTLE_S = 0.3  # for what must not come
WAIT_S = 120.0  # only so that nothing hangs


@pytest.fixture(scope="module")
def secure(mqtt, farm):
    """mosquitto with certificates and the access list of the federation."""
    mqtt.need_mosquitto()
    rules = broker_acl.mosquitto("farm", range(1, 9))
    settings = BrokerSettings(port=0, tls=farm.broker(), acl=rules, kind="mosquitto")
    running = mqtt.RunningBroker(settings)
    yield running
    running.close()


def client(secure, files):
    return aiomqtt.Client(
        "127.0.0.1",
        secure.port,
        protocol=aiomqtt.ProtocolVersion.V5,
        tls_context=client_context(files),
        timeout=WAIT_S,
    )


def all_topics():
    """Every topic that two devices, two edges and the cloud could use."""
    for node in (EDGE, OTHER_EDGE, CLOUD):
        yield str(Topic("farm", node, Direction.UP, Kind.HOME))
    for lower, upper in itertools.product(WHO, WHO):
        if upper.tier in UPPER_TIERS[lower.tier]:
            for direction, kinds in KINDS.items():
                for kind in sorted(kinds - {Kind.HOME}):
                    yield str(Topic("farm", lower, direction, kind, upper))


def test_the_broker_lets_each_role_say_and_hear_what_the_table_allows(mqtt, secure, farm):
    """All publish everything, and all try to hear everything: who gets what is the table's say.

    MQTT 5 acknowledges a publication that is not allowed, so what counts is what arrives.
    """

    async def main():
        topics = list(all_topics())
        files = {node: farm.node(node) for node in WHO}
        peers = {node: files[node].read().identity() for node in WHO}
        heard = {node: set() for node in WHO}

        def expected(hearer):
            return {
                (topic, str(speaker))
                for topic in topics
                for speaker in WHO
                if may_publish(peers[speaker], topic)
                # A pattern of mosquitto holds for everybody: all may know where homes are.
                and (may_read(peers[hearer], topic) or topic.endswith("/up/home"))
            }

        async def listen(node, messages):
            async for message in messages:
                heard[node].add((message.topic.value, message.payload.decode()))

        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(client(secure, files[n])) for n in WHO]
            by_node = dict(zip(WHO, clients, strict=True))
            for each in clients:
                for topic in topics:
                    await each.subscribe(topic, qos=1)
            listeners = [asyncio.ensure_future(listen(n, c.messages)) for n, c in by_node.items()]
            for node, each in by_node.items():
                for topic in topics:
                    await each.publish(topic, str(node), qos=1)
            with contextlib.suppress(TimeoutError):  # what is missing is told below
                await mqtt.until(lambda: all(heard[n] >= expected(n) for n in WHO))
            await asyncio.sleep(SETTLE_S)
            for listener in listeners:
                listener.cancel()
            await asyncio.gather(*listeners, return_exceptions=True)
        for hearer in WHO:
            assert heard[hearer] == expected(hearer), hearer
        assert sum(map(len, heard.values())) > 20

    asyncio.run(main())


@pytest.mark.parametrize(
    "spied",
    ["#", "delian/#", "delian/v1/farm/device/device-6/#", "delian/v1/farm/+/+/up/#", "$SYS/#"],
)
def test_a_device_hears_nothing_by_a_wider_filter(secure, farm, spied):
    async def main():
        heard = []
        async with (
            client(secure, farm.node(DEVICE)) as spy,
            client(secure, farm.node(OTHER)) as other,
            client(secure, farm.node(EDGE)) as edge,
        ):
            await spy.subscribe(spied, qos=1)

            async def listen():
                async for message in spy.messages:
                    heard.append(message.topic.value)

            listener = asyncio.ensure_future(listen())
            up = Topic("farm", OTHER, Direction.UP, Kind.ENVELOPE, EDGE)
            down = Topic("farm", OTHER, Direction.DOWN, Kind.ENVELOPE, EDGE)
            await other.publish(str(up), b"x", qos=1)
            await edge.publish(str(down), b"x", qos=1)
            await asyncio.sleep(SETTLE_S)
            listener.cancel()
            await asyncio.gather(listener, return_exceptions=True)
        assert heard == []

    asyncio.run(main())


def test_an_operator_and_a_stranger_say_nothing_over_mqtt(secure, farm, make_federation, tmp_path):
    async def main():
        heard = []
        operator = farm.files("operator-1", farm.material(Role.OPERATOR, 1))
        async with client(secure, farm.node(EDGE)) as edge, client(secure, operator) as posing:
            for topic_filter in filters_of_hub("farm", EDGE):
                await edge.subscribe(topic_filter, qos=1)
            up = Topic("farm", DEVICE, Direction.UP, Kind.ENVELOPE, EDGE)
            await posing.publish(str(up), b"x", qos=1)
            listener = asyncio.ensure_future(anext(edge.messages))
            heard = await asyncio.wait({listener}, timeout=SETTLE_S)
            assert not heard[0]
            listener.cancel()
        stranger = make_federation(tmp_path)
        files = stranger.node(DEVICE)
        with pytest.raises(aiomqtt.MqttError):
            async with client(secure, files):
                pass

    asyncio.run(main())


def test_nodes_speak_through_it_under_seal(mqtt, secure, farm):
    """Large and small, both ways; and the broker's own user, who may hear all, reads nothing."""

    async def main():
        edge, cloud, device = mqtt.Station(EDGE), mqtt.Station(CLOUD), mqtt.Station(DEVICE)
        files = {node: farm.node(node) for node in (EDGE, CLOUD, DEVICE)}
        heard, listens = [], asyncio.Event()

        async def overhear():
            async with client(secure, files[EDGE]) as spy:
                for topic_filter in filters_of_hub("farm", EDGE):
                    await spy.subscribe(topic_filter, qos=1)
                listens.set()
                async for message in spy.messages:
                    heard.append(bytes(message.payload))

        spy = asyncio.ensure_future(overhear())
        await asyncio.wait_for(listens.wait(), WAIT_S)
        links = (
            mqtt.hub(cloud, secure.url, lambda: files[CLOUD]),
            mqtt.hub(edge, secure.url, lambda: files[EDGE]),
            mqtt.uplink(edge, {CLOUD: secure.url}, lambda: files[EDGE]),
            mqtt.uplink(device, {EDGE: secure.url}, lambda: files[DEVICE]),
        )
        async with mqtt.closing(*links):
            secret = b"an update that is nobody's business"
            message = round_pb2.Upload(device=5, vector=secret * 10_000)
            device.send(EDGE, CHECK_IN)
            device.send(EDGE, message)
            await mqtt.until(lambda: message in edge.messages and CHECK_IN in edge.messages)
            edge.send(DEVICE, admission_pb2.Accept(sequence=1))
            edge.send(CLOUD, admission_pb2.EdgeHello(edge=3))
            await device.gets(1)
            await cloud.gets(1)
            assert not any(link.faults.counts for link in links)
            await mqtt.until(lambda: len(heard) > 5)
        spy.cancel()
        await asyncio.gather(spy, return_exceptions=True)
        assert not any(secret in payload for payload in heard)
        assert not any(CHECK_IN.SerializeToString() == payload for payload in heard)

    asyncio.run(main())


def test_an_edge_that_poses_as_the_home_gets_no_keys(mqtt, secure, farm):
    """A certificate is good for one name: a home signed by another edge is refused."""

    async def main():
        device = mqtt.Station(DEVICE)
        files = farm.node(DEVICE)
        up = mqtt.uplink(device, {EDGE: secure.url}, lambda: files)
        async with mqtt.closing(up):
            from delian.core.node.net.mqtt.seal import Credentials

            material = farm.material(Role.EDGE, 4)
            posing = Credentials("farm", EDGE, lambda: material).home(1)
            topic = str(Topic("farm", EDGE, Direction.UP, Kind.HOME))
            async with client(secure, farm.node(EDGE)) as broken_acl:
                await mqtt.until(lambda: up._visit.connection.connected)
                await broken_acl.publish(topic, posing, qos=1)
                await mqtt.until(lambda: up.faults.counts["forged"] == 1)
            assert up._visit._home is None

    asyncio.run(main())


def test_a_revoked_device_is_refused_while_it_speaks(mqtt, secure, farm):
    async def main():
        edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
        files = {node: farm.node(node) for node in (EDGE, DEVICE)}
        denied = DenyList()
        guard = Guard("farm", Tier.EDGE, lambda: denied)
        hub = mqtt.hub(edge, secure.url, lambda: files[EDGE], distrust=guard.distrust)
        up = mqtt.uplink(device, {EDGE: secure.url}, lambda: files[DEVICE])
        async with mqtt.closing(hub, up):
            device.send(EDGE, CHECK_IN)
            await edge.gets(1)
            own = files[DEVICE].read().identity()
            denied = DenyList(1, {(own.tier, own.number): FOR_GOOD})
            device.send(EDGE, CHECK_IN)
            await mqtt.until(lambda: hub.faults.counts["revoked"] == 1)
            assert hub.peers == () and not hub.reaches(DEVICE) and len(edge.received) == 1
            up._visit._be_born_soon()
            await mqtt.until(lambda: hub.faults.counts["revoked"] >= 2)
            assert hub.peers == ()

    asyncio.run(main())


def test_a_renewed_certificate_is_shown_without_a_restart(mqtt, secure, farm):
    async def main():
        edge, device = mqtt.Station(EDGE), mqtt.Station(DEVICE)
        files = {node: farm.node(node) for node in (EDGE, DEVICE)}
        hub = mqtt.hub(edge, secure.url, lambda: files[EDGE])
        up = mqtt.uplink(device, {EDGE: secure.url}, lambda: files[DEVICE])
        async with mqtt.closing(hub, up):
            device.send(EDGE, CHECK_IN)
            await edge.gets(1)
            first = hub._peers[DEVICE].peer.identity.serial
            files[DEVICE] = farm.node(DEVICE)  # a new one
            up._visit._be_born_soon()
            await mqtt.until(lambda: hub._peers[DEVICE].peer.identity.serial != first)
            device.send(EDGE, CHECK_IN)
            await edge.gets(2)

    asyncio.run(main())


def test_a_node_with_a_certificate_does_not_go_to_a_plain_broker(mqtt, farm):
    async def main():
        files = farm.node(DEVICE)
        mqtt.uplink(mqtt.Station(DEVICE), {EDGE: "mqtt://127.0.0.1:1883"}, lambda: files)

    with pytest.raises(DelianError, match="TLS"):
        asyncio.run(main())


# ---------------------------------------------------------------- the lists themselves


def test_mosquitto_s_list_has_the_table_s_rows_and_no_others():
    text = broker_acl.mosquitto("farm", [3])
    patterns = [line for line in text.splitlines() if line.startswith("pattern")]
    assert len(patterns) == sum(rule.role is Role.DEVICE for rule in TOPICS)
    assert all("device/%u" in line or "up/home" in line for line in patterns)
    users = re.findall(r"^user (\S+)$", text, re.MULTILINE)
    assert users == ["cloud-0", "edge-3"]
    assert "readwrite" not in text and "#" not in text.partition("\n")[2]


def test_emqx_s_list_has_the_table_s_rows_and_denies_the_rest():
    lines = broker_acl.emqx("farm").splitlines()
    nodes = [rule for rule in TOPICS if rule.role is not Role.OPERATOR]
    assert len([line for line in lines if line.startswith("{allow")]) == len(nodes)
    assert lines[-1] == "{deny, all}."
    assert (
        '{allow, {username, {re, "^device-[0-9]+$"}}, {publish, [{retain, false}]}, '
        '["delian/v1/farm/device/${username}/up/birth/+"]}.' in lines
    )
    retained = [line for line in lines if "publish" in line and "{retain, false}" not in line]
    assert len(retained) == 2 and all(line.endswith('/up/home"]}.') for line in retained)


@pytest.mark.parametrize("name", ["", "Farm", "a/b", "farm\npattern readwrite #", "+"])
def test_a_federation_s_name_cannot_smuggle_in_rules(name):
    for make in (lambda: broker_acl.mosquitto(name, [1]), lambda: broker_acl.emqx(name)):
        with pytest.raises(DelianError):
            make()
