"""What a process sends to others and gets from them, counted at the edge of its links.

One `Traffic` a process (its Switch has it), one `Meter` a link. Counted are envelopes, the parts in
which large ones and blobs travel, and frames of streams on which nodes run a program or train
together, each once: when the transport has taken it, or has handed it over, refused or not. Bytes
are those of the encoded message; what gRPC, MQTT, sealing and TLS put around it is not in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from ...protocol.ports import Node, Tier

Direction = Literal["sent", "received"]
Kind = Literal["envelope", "part", "frame"]

_EDGE_0 = Node(Tier.EDGE, 0)


class Way(NamedTuple):
    """What is counted by itself."""

    link: str
    """"grpc" or "mqtt"."""
    peer: Tier
    """The tier of the process at the other end; edge 0 is in the coordinator's."""
    direction: Direction
    kind: Kind


class Traffic:
    """All links of a process together; it only grows."""

    def __init__(self) -> None:
        self.messages: Counter[Way] = Counter()
        self.bytes: Counter[Way] = Counter()

    def meter(self, link: str) -> Meter:
        """What a link counts into."""
        return Meter(self, link)

    def __iter__(self) -> Iterator[tuple[Way, int, int]]:
        """Each way with its messages and bytes."""
        return ((way, count, self.bytes[way]) for way, count in sorted(self.messages.items()))

    def to_json(self) -> dict[str, Any]:
        """By the tier at the other end, over all links."""
        told: dict[str, dict[str, int]] = {}
        for way, messages, size in self:
            row = told.setdefault(way.peer.value, {})
            for name, value in (("messages", messages), ("bytes", size)):
                key = f"{way.direction}_{name}"
                row[key] = row.get(key, 0) + value
        return told


class Meter:
    """One link's way to count. `parts`: bytes of its own parts, both ways."""

    __slots__ = ("_link", "_traffic", "_ways", "parts")

    def __init__(self, traffic: Traffic, link: str) -> None:
        self._traffic, self._link = traffic, link
        self._ways: dict[tuple[Tier, Direction, Kind], Way] = {}  # made once: each message has one
        self.parts = 0

    def sent(self, peer: Node, size: int, kind: Kind = "envelope") -> None:
        """`size` bytes went to the process of `peer`."""
        self._count(peer, size, "sent", kind)

    def received(self, peer: Node, size: int, kind: Kind = "envelope") -> None:
        """`size` bytes came from the process of `peer`."""
        self._count(peer, size, "received", kind)

    def _count(self, peer: Node, size: int, direction: Direction, kind: Kind) -> None:
        tier = Tier.CLOUD if peer == _EDGE_0 else peer.tier
        way = self._ways.get((tier, direction, kind))
        if way is None:
            way = self._ways[tier, direction, kind] = Way(self._link, tier, direction, kind)
        self._traffic.messages[way] += 1
        self._traffic.bytes[way] += size
        if kind == "part":
            self.parts += size
