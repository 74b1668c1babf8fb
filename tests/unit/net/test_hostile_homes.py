"""A hostile home, or the broker before it, cannot make a device work without end: in memory."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from delian.core.node.net.grpc import grpc_line
from delian.core.node.net.grpc.grpc_line import Line
from delian.core.node.net.message_limits import PRESENCES_BURST, PRESENCES_PER_S, Faults, Pace
from delian.core.node.net.mqtt.mqtt_client import BrokerAddress
from delian.core.node.net.mqtt.mqtt_link import (
    MqttHub,
    MqttIdentity,
    _Visit,
)
from delian.core.node.net.mqtt.seal import SealError
from delian.core.node.net.mqtt.topics import Direction, Kind, Topic, home, parse
from delian.core.node.net.switch import Switch
from delian.core.node.net.transfer import Intake
from delian.core.protocol.ports import Node, Tier
from delian.core.wire.link_pb2 import Envelope

DEVICE, EDGE = Node(Tier.DEVICE, 5), Node(Tier.EDGE, 3)
BROKER = "mqtt://127.0.0.1:1"


def visiting(scenario):
    """Runs a scenario with a device's visit at an edge, without connections, and its clock."""

    async def run():
        loop = asyncio.get_running_loop()
        clock = SimpleNamespace(now=0.0)
        loop.time = lambda: clock.now
        hub = MqttHub(Switch(), MqttIdentity("farm", EDGE), BROKER)
        own, faults = MqttIdentity("farm", DEVICE), Faults("up")
        address = BrokerAddress.parse(BROKER)
        parts = (address, faults, Intake(), lambda home: None)
        visit = _Visit(Switch(), own, EDGE, *parts)
        read = []
        reads = visit.read
        visit.read = lambda *asked: read.append(asked) or reads(*asked)
        scenario(hub, visit, clock, read)

    asyncio.run(run())


def says(hub, visit, kind, session):
    """The home says a word of a new session."""
    if kind is Kind.HOME:
        topic = parse(home("farm", EDGE))
    else:
        topic = Topic("farm", DEVICE, Direction.DOWN, kind, EDGE)
    payload = hub.credentials.home(session)
    visit.take(topic, str(topic), payload, kind is Kind.HOME)


@pytest.mark.parametrize("kind", [Kind.HOME, Kind.WELCOME])
def test_few_words_of_a_home_are_verified_at_once(kind):
    def scenario(hub, visit, clock, read):
        refused = 0
        for session in range(10 * PRESENCES_BURST):
            try:
                says(hub, visit, kind, session + 1)
            except SealError as error:
                refused += "too many words" in str(error)
        assert len(read) == PRESENCES_BURST and refused == 9 * PRESENCES_BURST
        clock.now += 1.01 / PRESENCES_PER_S
        if kind is Kind.HOME:
            says(hub, visit, kind, 999)  # a home that has started anew is heard again
            assert len(read) == PRESENCES_BURST + 1

    visiting(scenario)


def test_words_of_a_home_do_not_use_up_its_welcomes():
    def scenario(hub, visit, clock, read):
        for session in range(PRESENCES_BURST):
            says(hub, visit, Kind.HOME, session + 1)
        with pytest.raises(SealError) as caught:
            says(hub, visit, Kind.WELCOME, 1)
        assert "too many" not in str(caught.value) and len(read) == PRESENCES_BURST + 1

    visiting(scenario)


def test_a_pace_lets_a_burst_pass_and_then_so_many_a_second():
    pace = Pace(burst=3, per_s=2.0)
    assert [pace.wait_s(0.0) for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 1.0]
    assert pace.wait_s(1.0) == 0.5
    assert [pace.wait_s(100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


@pytest.mark.parametrize(("burst", "waits"), [(2, [0.5, 1.0, 1.5]), (5, [])])
def test_a_device_reads_a_home_that_says_too_much_more_slowly_and_loses_nothing(
    burst, waits, monkeypatch
):
    envelopes = [Envelope(traceparent=str(n)).SerializeToString() for n in range(5)]
    contents, slept, taken = iter([*envelopes, grpc_line.grpc.aio.EOF]), [], []

    async def read():
        return next(contents)

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr(grpc_line, "now_s", lambda: 0.0)
    monkeypatch.setattr(grpc_line, "asyncio", SimpleNamespace(sleep=sleep))
    faults = Faults("up")
    uplink = SimpleNamespace(
        faults=faults, node=DEVICE, meter=SimpleNamespace(received=lambda home, size: None)
    )
    line = SimpleNamespace(
        _up=uplink, home=EDGE, _goodbye=None, _take=taken.append, _pace=Pace(burst, 2.0)
    )
    asyncio.run(Line._read(line, SimpleNamespace(read=read)))
    assert [said.traceparent for said in taken] == list("01234")
    assert slept == waits and faults.counts["too many messages"] == len(waits)
