"""Topics say who may say what; what contradicts itself is no topic."""

from __future__ import annotations

import contextlib

import pytest
from delian.core.node.net.mqtt.topics import (
    KINDS,
    UPPER_TIERS,
    Direction,
    Kind,
    Topic,
    filters_of_hub,
    filters_of_uplink,
    home,
    host_of,
    hosts,
    make,
    name_of,
    node_named,
    parse,
)
from delian.core.protocol.ports import CLOUD, Node, ProtocolError, Tier
from hypothesis import given
from hypothesis import strategies as st

DEVICE, EDGE = Node(Tier.DEVICE, 5), Node(Tier.EDGE, 3)
NODES = [DEVICE, EDGE, CLOUD]


def topics() -> list[Topic]:
    """Every kind of topic that there is."""
    found = [Topic("farm", node, Direction.UP, Kind.HOME) for node in (EDGE, CLOUD)]
    for lower in NODES:
        for upper in NODES:
            if upper.tier in UPPER_TIERS[lower.tier]:
                found += [
                    Topic("farm", lower, direction, kind, upper)
                    for direction, kinds in KINDS.items()
                    for kind in sorted(kinds - {Kind.HOME})
                ]
    return found


def matches(topic_filter: str, topic: str) -> bool:
    ours, theirs = topic_filter.split("/"), topic.split("/")
    return len(ours) == len(theirs) and all(
        a in ("+", b) for a, b in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize("topic", topics(), ids=str)
def test_a_topic_reads_back_as_it_was_made(topic):
    assert parse(make(topic)) == topic


def test_a_device_s_words_to_its_edge():
    topic = Topic("farm", DEVICE, Direction.UP, Kind.ENVELOPE, EDGE)
    assert str(topic) == "delian/v1/farm/device/device-5/up/envelope/edge-3"
    assert home("farm", EDGE) == "delian/v1/farm/edge/edge-3/up/home"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "delian",
        "delian/v1/farm/device/device-5/up",
        "delian/v2/farm/device/device-5/up/birth/edge-3",
        "delian/v1/farm/device/device-5/up/birth",  # to whom?
        "delian/v1/farm/device/device-5/up/home",  # a device serves nobody
        "delian/v1/farm/device/device-5/up/home/edge-3",
        "delian/v1/farm/edge/edge-3/down/home",
        "delian/v1/farm/edge/device-5/up/birth/cloud-0",  # tier and name differ
        "delian/v1/farm/device/device-5/up/birth/device-6",
        "delian/v1/farm/edge/edge-3/up/birth/edge-4",
        "delian/v1/farm/cloud/cloud-0/up/birth/cloud-0",
        "delian/v1/farm/device/device-5/down/birth/edge-3",
        "delian/v1/farm/device/device-5/up/welcome/edge-3",
        "delian/v1/farm/device/device-5/sideways/birth/edge-3",
        "delian/v1/farm/device/device-5/up/secret/edge-3",
        "delian/v1/farm/device/device-05/up/birth/edge-3",
        "delian/v1/farm/device/device--5/up/birth/edge-3",
        "delian/v1/farm/device/device-٥/up/birth/edge-3",
        "delian/v1/farm/device/device-9223372036854775808/up/birth/edge-3",
        "delian/v1/farm/device/+/up/birth/edge-3",
        "delian/v1/farm/device/device-5/up/birth/edge-0",  # speaks as the cloud
        "delian/v1/farm/device/device-5/up/birth/cloud-1",
        "delian/v1/farm/operator/operator-1/up/birth/cloud-0",
        "delian/v1/farm/device/device-5/up/birth/edge-3/more",
        "delian/v1/farm/device/device-5/up/birth/" + "e" * 300,
    ],
)
def test_what_is_no_topic_is_refused(text):
    with pytest.raises(ProtocolError):
        parse(text)


@given(st.text(max_size=300))
def test_any_text_is_a_topic_or_refused(text):
    for whole in (text, f"delian/v1/farm/device/device-5/up/{text}"):
        with contextlib.suppress(ProtocolError):
            assert make(parse(whole)) == whole


def test_edge_0_speaks_as_the_cloud():
    gathering = Node(Tier.EDGE, 0)
    assert host_of(gathering) == CLOUD and host_of(EDGE) == EDGE
    assert hosts(CLOUD, gathering) and hosts(CLOUD, CLOUD) and not hosts(EDGE, gathering)
    assert name_of(CLOUD) == "cloud-0" and node_named("device-5") == DEVICE


@pytest.mark.parametrize("topic", topics(), ids=str)
def test_a_message_matches_the_filters_of_its_receiver_and_of_nobody_else(topic):
    text = make(topic)
    receivers = set()
    for hub in (EDGE, Node(Tier.EDGE, 4), CLOUD):
        if any(matches(f, text) for f in filters_of_hub("farm", hub)):
            receivers.add(hub)
    for lower in (DEVICE, Node(Tier.DEVICE, 6), EDGE, Node(Tier.EDGE, 4)):
        for upper in (EDGE, CLOUD):
            if upper.tier in UPPER_TIERS[lower.tier] and any(
                matches(f, text) for f in filters_of_uplink("farm", lower, upper)
            ):
                receivers.add(lower)
    if topic.kind is Kind.HOME:
        assert topic.node in receivers, "it puts its home back where another took its place"
        others = receivers - {topic.node}
        assert others and all(topic.node.tier in UPPER_TIERS[node.tier] for node in others)
    else:
        assert receivers == {topic.upper if topic.direction is Direction.UP else topic.node}
