"""Deny by default: what is allowed is written here once more, by hand, and nothing else is."""

from __future__ import annotations

import itertools

import pytest
from delian.core.node.identity.authority.deny_list import DenyList
from delian.core.node.identity.pki import roles
from delian.core.node.identity.pki.certificates import NUMBER_BITS, PeerIdentity, Role
from delian.core.node.identity.pki.roles import Guard, may_call, may_send
from delian.core.node.net.mqtt import topics
from delian.core.node.storage.codec import MESSAGE_FIELDS, TRANSPORT_FIELDS
from delian.core.protocol.ports import Node, Tier
from delian.core.wire import (
    authority_pb2,
    enrolment_pb2,
    link_pb2,
    operator_pb2,
    subgraph_pb2,
)
from support.topic_rules import may_publish, may_read

SERVICES = [
    service
    for module in (link_pb2, enrolment_pb2, operator_pb2, subgraph_pb2, authority_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
CALLS = [f"/{s.full_name}/{m.name}" for s in SERVICES for m in s.methods]
PEOPLE = ("viewer", "runner", "owner", "admin", "operator")
ALLOWED = {
    ("edge", "Link"): {"device"},
    ("cloud", "Link"): {"device", "edge"},
    ("cloud", "Identity/Renew"): {"device", "edge"},
    ("authority", "Enrolment"): {"device", "edge", "cloud", "authority", "nobody", *PEOPLE},
    ("authority", "Identity/Renew"): {"cloud"},
    ("authority", "Identity/Denied"): {"cloud", "authority", *PEOPLE},
    ("authority", "Identity/Log"): {"cloud", *PEOPLE},
    **{("authority", f"Authority/{call}"): {"cloud"} for call in ("Announce", "Recall", "Nodes")},
    ("authority", "Authority/CreateToken"): {"owner", "admin", "operator"},
    ("authority", "Authority/Revoke"): {"owner", "admin", "operator", "authority"},
    ("authority", "Authority/Register"): {"authority"},
    ("authority", "Authority/Append"): {"authority"},
    ("authority", "Authority/Audit"): set(PEOPLE),
    ("cloud", "Identity/Denied"): {"device", "edge", "cloud", *PEOPLE},
    ("cloud", "Identity/Log"): {"device", "edge", "cloud", *PEOPLE},
    **{
        ("cloud", f"Operator/{call}"): set(PEOPLE)
        for call in ("ListRuns", "GetRun", "WatchRun", "ListNodes", "GetNode")
    },
    **{("cloud", f"Operator/{call}"): set(PEOPLE) for call in ("ListModels", "GetModel", "Audit")},
    **{
        ("cloud", f"Operator/{call}"): {"runner", "admin", "operator"}
        for call in ("Submit", "ControlRun", "CloneRun", "PutBlob", "GetBlob")
    },
    **{
        ("cloud", f"Operator/{call}"): {"owner", "admin", "operator"}
        for call in ("DrainNode", "RevokeNode", "CreateToken")
    },
    **{("cloud", f"Operator/{call}"): {"admin", "operator"} for call in ("Promote", "Rollback")},
    ("edge", "Subgraphs"): {"device"},
    ("cloud", "Subgraphs"): {"device", "edge"},
}


def peer(role=Role.DEVICE, number=5, federation="farm", serial=1, not_after=2_000_000_000):
    return PeerIdentity(federation, role, number, serial, not_after, f"{role.value}-{number}")


def test_every_call_of_the_contract_has_a_row_and_every_row_a_call():
    assert {call for _, call in roles.CALLS} == set(CALLS)
    assert len(CALLS) >= 23 and {s.name for s in SERVICES} == {
        "Link",
        "Enrolment",
        "Identity",
        "Operator",
        "Subgraphs",
        "Authority",
    }


@pytest.mark.parametrize("call", CALLS)
def test_a_call_is_for_the_roles_that_need_it_and_for_nobody_else(call):
    service, method = call.removeprefix("/delian.wire.").split("/")
    for tier, role in itertools.product((*Tier, Role.AUTHORITY), Role):
        wanted = ALLOWED.get((tier.value, service), set())
        wanted = ALLOWED.get((tier.value, f"{service}/{method}"), wanted)
        assert may_call(role, tier, call) == (role.value in wanted), (tier, role, call)


def test_every_call_of_operators_is_recorded_unless_it_is_known_to_change_nothing():
    service = operator_pb2.DESCRIPTOR.services_by_name["Operator"]
    calls = {f"/{service.full_name}/{m.name}" for m in service.methods}
    assert calls > roles.READS
    assert {call.rpartition("/")[2] for call in calls - roles.READS} == {
        *("Submit", "ControlRun", "CloneRun", "DrainNode", "RevokeNode", "CreateToken"),
        *("Promote", "Rollback"),
    }


@pytest.mark.parametrize(
    "call", ["", "/", "Connect", "/delian.wire.Link/connect", "/delian.wire.Link/Connect/"]
)
def test_a_call_that_is_not_in_the_contract_is_for_nobody(call):
    assert not any(may_call(role, tier, call) for role in Role for tier in Tier)


def guard(here=Tier.CLOUD, denied=(), now=1_900_000_000):
    return Guard("farm", here, lambda: DenyList(1, dict(denied)), lambda: now)


CONNECT = "/delian.wire.Link/Connect"


@pytest.mark.parametrize(
    ("who", "why"),
    [
        (peer(), None),
        (peer(federation="other"), "other federation"),
        (peer(not_after=1_800_000_000), "certificate expired"),
        (peer(number=9), "revoked"),
        (peer(Role.EDGE, 9), None),
        (peer(Role.OPERATOR), "not allowed"),
        (None, "not allowed"),
    ],
)
def test_the_guard_says_why_it_refuses(who, why):
    ours = guard(denied={(Role.DEVICE, 9): 1})
    assert ours.refusal(who, CONNECT) == why and ours(who, CONNECT) == (why is None)


def test_a_distrusted_peer_may_not_even_do_what_anybody_may():
    call, here = "/delian.wire.Enrolment/Enrol", Role.AUTHORITY
    assert guard(here).refusal(None, call) is None
    assert guard(here, denied={(Role.DEVICE, 5): 1}).refusal(peer(), call) == "revoked"


# ---------------------------------------------------------------- topics

DEVICE, EDGE, CLOUD = Node(Tier.DEVICE, 5), Node(Tier.EDGE, 3), Node(Tier.CLOUD, 0)
OTHER_DEVICE, OTHER_EDGE = Node(Tier.DEVICE, 6), Node(Tier.EDGE, 4)


def every_topic():
    """Every topic between these nodes, and who may publish and who may read it."""
    Kind, Up, Down = topics.Kind, topics.Direction.UP, topics.Direction.DOWN
    nodes = (DEVICE, OTHER_DEVICE, EDGE, OTHER_EDGE, CLOUD)
    for node in nodes:
        if node.tier is not Tier.DEVICE:
            yield topics.Topic("farm", node, Up, Kind.HOME), node, readers_of_home(node, nodes)
        for upper in nodes:
            if upper.tier in topics.UPPER_TIERS[node.tier]:
                for kind in sorted(topics.KINDS[Up] - {Kind.HOME}):
                    yield topics.Topic("farm", node, Up, kind, upper), node, {upper}
                for kind in sorted(topics.KINDS[Down]):
                    yield topics.Topic("farm", node, Down, kind, upper), upper, {node}


def readers_of_home(node, nodes):
    return {n for n in nodes if n == node or node.tier in topics.UPPER_TIERS[n.tier]}


def as_peer(node):
    return peer(Role(node.tier.value), node.number)


@pytest.mark.parametrize(
    ("topic", "publisher", "readers"),
    list(every_topic()),
    ids=lambda value: f"{len(value)} readers" if isinstance(value, set) else str(value),
)
def test_a_topic_is_written_by_one_node_and_read_by_those_it_is_for(topic, publisher, readers):
    text = str(topic)
    for node in (DEVICE, OTHER_DEVICE, EDGE, OTHER_EDGE, CLOUD):
        assert may_publish(as_peer(node), text) == (node == publisher), node
        assert may_read(as_peer(node), text) == (node in readers), node
    people = (peer(Role(role), 1) for role in PEOPLE)
    for who in (*people, None, peer(federation="other")):
        assert not may_publish(who, text) and not may_read(who, text)


def test_nodes_may_subscribe_to_what_the_transport_subscribes_to():
    for hub in (EDGE, CLOUD):
        assert all(may_read(as_peer(hub), f) for f in topics.filters_of_hub("farm", hub))
    for node, upper in ((DEVICE, EDGE), (DEVICE, CLOUD), (EDGE, CLOUD)):
        filters = topics.filters_of_uplink("farm", node, upper)
        assert all(may_read(as_peer(node), f) for f in filters)


@pytest.mark.parametrize(
    "wide",
    [
        "#",
        "delian/#",
        "delian/v1/farm/#",
        "delian/v1/farm/device/+/down/+/+",
        "delian/v1/farm/device/device-5/#",
        "delian/v1/+/device/device-5/down/+/+",
        "delian/v1/farm/+/device-5/down/+/+",
        "$SYS/#",
        "$share/x/delian/v1/farm/device/device-5/down/+/+",
        "",
        "delian/v1/farm/device/device-5/down//",
    ],
)
def test_a_filter_that_is_wider_than_one_s_own_is_refused(wide):
    assert not may_read(as_peer(DEVICE), wide)
    assert not may_publish(as_peer(DEVICE), wide)


def test_a_name_that_begins_like_another_is_not_it():
    assert not may_read(as_peer(DEVICE), "delian/v1/farm/device/device-55/down/envelope/edge-3")


# ---------------------------------------------------------------- messages


def test_every_message_of_the_envelope_may_be_sent_by_somebody():
    fields = {f.name for f in link_pb2.Envelope.DESCRIPTOR.oneofs_by_name["message"].fields}
    told = set().union(*roles.MESSAGES.values())
    assert told == fields == {*MESSAGE_FIELDS.values(), *TRANSPORT_FIELDS.values()}


def test_messages_go_the_way_that_the_contract_says():
    device, edge, cloud = Tier.DEVICE, Tier.EDGE, Tier.CLOUD
    assert may_send(device, edge, "upload") and may_send(edge, cloud, "edge_sum")
    assert may_send(cloud, edge, "edge_task") and may_send(edge, device, "task")
    for field in ("upload", "task", "edge_sum", "edge_task", "pace", "blob"):
        ways = [way for way in itertools.product(Tier, Tier) if may_send(*way, field)]
        assert len(ways) == (2 if field == "blob" else 1), field
    for sender, to in ((device, device), (device, cloud), (cloud, device), (cloud, cloud)):
        assert not any(may_send(sender, to, f) for f in MESSAGE_FIELDS.values())
    assert may_send(device, edge, "renewal_ask") and may_send(edge, cloud, "denied_ask")
    assert may_send(device, edge, "denied_ask") and may_send(edge, device, "denied_page")
    assert not may_send(edge, device, "denied_ask") and not may_send(cloud, edge, "renewal_ask")
    assert not roles.may_send_blob(device, edge) and roles.may_send_blob(cloud, edge)


def test_an_edge_asks_for_itself_and_its_devices_and_everybody_else_for_itself_alone():
    for node in (DEVICE, EDGE):
        assert roles.may_ask_for(node, node)
    assert roles.may_ask_for(EDGE, DEVICE) and not roles.may_ask_for(EDGE, OTHER_EDGE)
    assert not roles.may_ask_for(DEVICE, OTHER_DEVICE) and not roles.may_ask_for(DEVICE, EDGE)
    assert not roles.may_ask_for(EDGE, CLOUD)


@pytest.mark.parametrize(
    ("role", "number", "asks"),
    [
        (Role.CLOUD, 0, {0, 3, 7}),  # the coordinator has news for all
        (Role.ADMIN, 1, {0}),
        (Role.OWNER, 1, {0}),
        (Role.OWNER, (3 << NUMBER_BITS) + 1, {3}),
        (Role.AUTHORITY, 0, set()),
        (Role.AUTHORITY, 3, {0}),
    ],
)
def test_an_authority_answers_its_own_operators_and_the_root_the_others(role, number, asks):
    who = peer(role, number)
    for authority in (0, 3, 7):
        guard = Guard("farm", Role.AUTHORITY, clock=lambda: 1, authority=authority)
        calls = [f"/delian.wire.Authority/{name}" for name in ("Announce", "Revoke", "Append")]
        answered = [call for call in calls if guard(who, call)]
        may = [call for call in calls if may_call(role, Role.AUTHORITY, call)]
        assert answered == (may if authority in asks else [])
        # The deny list is for everybody whom the table names.
        assert guard(who, "/delian.wire.Identity/Denied")
