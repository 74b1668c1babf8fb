"""MQTT topics: the permissions are in the topic's name itself.

    delian/v1/{federation}/{tier}/{node}/up/home                what serves others says where it is
    delian/v1/{federation}/{tier}/{node}/up/{kind}/{upper}      from a node to its upper node
    delian/v1/{federation}/{tier}/{node}/down/{kind}/{upper}    from the upper node to the node

`{node}` is always the lower one of the two, and `{upper}` the other: both are common names of
certificates (`device-5`, `edge-3`, `cloud-0`), which a broker that authenticates by certificate
also has as user names. So a broker's rules need no state: a node writes below its own `up` and
reads below its own `down`, an upper node reads and writes only what ends in its name
(`core/node/net/mqtt/broker_acl.py`), and two filters that never change are all that an upper node
subscribes to.

Edge 0 lives in the coordinator, which has one certificate: on MQTT it is `cloud-0`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from ....protocol.ports import CLOUD, Node, ProtocolError, Tier
from ...identity.pki.certificates import NUMBER_MAX, check_federation

PREFIX = "delian/v1"
#: A topic is at most this long; MQTT itself would let 64 KiB pass.
TOPIC_CHARACTERS_MAX = 256


class Direction(StrEnum):
    """Seen from the lower node."""

    UP = "up"
    DOWN = "down"


class Kind(StrEnum):
    """What a message is.

    The payloads of the first four are `SignedPresence`, those of the others sealed frames
    (`core/node/net/mqtt/seal.py`) with an Envelope or a Part in them.
    """

    HOME = "home"
    BIRTH = "birth"
    WELCOME = "welcome"
    DEATH = "death"
    ENVELOPE = "envelope"
    PART = "part"


#: Which kinds travel which way.
KINDS: dict[Direction, frozenset[Kind]] = {
    Direction.UP: frozenset({Kind.HOME, Kind.BIRTH, Kind.DEATH, Kind.ENVELOPE, Kind.PART}),
    Direction.DOWN: frozenset({Kind.WELCOME, Kind.ENVELOPE, Kind.PART}),
}

#: The tiers that a node may have above it.
UPPER_TIERS: dict[Tier, frozenset[Tier]] = {
    Tier.DEVICE: frozenset({Tier.EDGE, Tier.CLOUD}),
    Tier.EDGE: frozenset({Tier.CLOUD}),
    Tier.CLOUD: frozenset(),
}

_NAME = re.compile(r"(device|edge|cloud)-(0|[1-9][0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic's meaning."""

    federation: str
    node: Node
    direction: Direction
    kind: Kind
    upper: Node | None = None
    """None exactly for a home."""

    def __str__(self) -> str:
        return make(self)


def name_of(node: Node) -> str:
    """The node's common name: `device-5`."""
    return f"{node.tier.value}-{node.number}"


def node_named(name: str) -> Node:
    """The node of a common name. Raises ProtocolError where it names none that uses MQTT."""
    parts = _NAME.fullmatch(name)
    if parts is None or int(parts[2]) > NUMBER_MAX:
        raise ProtocolError(f"{name[:80]!r} names no node")
    node = Node(Tier(parts[1]), int(parts[2]))
    if host_of(node) != node or (node.tier is Tier.CLOUD and node != CLOUD):
        raise ProtocolError(f"{name!r} publishes under no name of its own")
    return node


def host_of(node: Node) -> Node:
    """The node under whose name `node` publishes: the cloud for edge 0, else itself."""
    return CLOUD if node == Node(Tier.EDGE, 0) else node


def hosts(name: Node, node: Node) -> bool:
    """Whether the process that publishes as `name` may do so for `node`."""
    return host_of(node) == name


def make(topic: Topic) -> str:
    """The topic as MQTT has it. What is invalid is the caller's mistake."""
    assert _fault(topic) is None, _fault(topic)
    check_federation(topic.federation)
    tail = "" if topic.upper is None else f"/{name_of(topic.upper)}"
    return f"{_base(topic.federation, topic.node)}/{topic.direction}/{topic.kind}{tail}"


def parse(text: str) -> Topic:
    """What a topic means. Raises ProtocolError where it is none of ours."""
    levels = text.split("/") if len(text) <= TOPIC_CHARACTERS_MAX else []
    if not 7 <= len(levels) <= 8 or "/".join(levels[:2]) != PREFIX:
        raise ProtocolError(f"{text[:80]!r} is no topic of Delian")
    federation, tier, name, direction, kind = levels[2:7]
    if direction not in set(Direction) or kind not in set(Kind):
        raise ProtocolError(f"{text!r}: {direction}/{kind} is not known")
    node = node_named(name)
    upper = node_named(levels[7]) if len(levels) == 8 else None
    topic = Topic(federation, node, Direction(direction), Kind(kind), upper)
    fault = _fault(topic) if node.tier.value == tier else f"{name} is no {tier}"
    if fault is not None:
        raise ProtocolError(f"{text!r}: {fault}")
    return topic


def _fault(topic: Topic) -> str | None:
    if topic.kind not in KINDS[topic.direction]:
        return f"{topic.kind} does not travel {topic.direction}"
    if (topic.upper is None) != (topic.kind is Kind.HOME):
        return "a home has no upper node, everything else has one"
    if topic.kind is Kind.HOME:
        return f"a {topic.node.tier} serves no node" if topic.node.tier is Tier.DEVICE else None
    assert topic.upper is not None
    if topic.upper.tier not in UPPER_TIERS[topic.node.tier]:
        return f"a {topic.upper.tier} is not above a {topic.node.tier}"
    return None


def _base(federation: str, node: Node) -> str:
    return f"{PREFIX}/{federation}/{node.tier}/{name_of(node)}"


# ---------------------------------------------------------------- what is subscribed to


def home(federation: str, node: Node) -> str:
    """Where a node that serves others says so."""
    return make(Topic(federation, node, Direction.UP, Kind.HOME))


def filters_of_hub(federation: str, hub: Node) -> tuple[str, ...]:
    """What a node that serves others subscribes to: all that ends in its name, and its home."""
    below = [tier for tier, uppers in UPPER_TIERS.items() if hub.tier in uppers]
    return (
        *(f"{PREFIX}/{federation}/{tier}/+/{Direction.UP}/+/{name_of(hub)}" for tier in below),
        home(federation, hub),
    )


def filters_of_uplink(federation: str, node: Node, upper: Node) -> tuple[str, ...]:
    """What a node subscribes to that has gone to `upper`.

    Its messages first, then the home, so that no answer is missed.
    """
    mine = f"{_base(federation, node)}/{Direction.DOWN}/+/{name_of(upper)}"
    return mine, home(federation, upper)
