"""What becomes of a message: it arrives once, twice, late, damaged, long after, or never.

Nodes of one process reach each other always. Between others a message takes a latency and a random
time more, so that messages overtake one another. A damaged one is really encoded, changed in a few
bytes, and really decoded: nothing but a refusal may come of it. Transports authenticate what they
carry, so what can still be read is dropped too, unless its sender is one of the seed's liars: then
it is what the sender has said. A blob arrives as it is: its name says what it must be.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from ...core.node.storage.codec import envelope_bytes, message_of, node_of
from ...core.protocol.ports import MS, SECOND, Node, ProtocolError, Tier
from ...core.wire.blob_pb2 import Blob
from ...core.wire.link_pb2 import Envelope
from .draws import Rng

if TYPE_CHECKING:
    from .simulated_node import Host
    from .world import World

#: Between nodes of one process.
_NEAR_NS = 1_000
#: Messages that a broker delivers again when it restarts.
_KEPT_BY_BROKERS = 64
#: A broker is away for so long.
_BROKER_DOWN_S = 2.0


class Network:
    """All links of a world."""

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        faults = world.faults
        self.rng = Rng(seed, "network")
        self._faults = faults
        self._latency_ns = int(faults.latency_s * SECOND)
        self._spread_s = faults.jitter_s
        # A round takes some twenty messages one after the other, and has time for them.
        self._healthy_ns = int(world.shape.round_s / 24 * SECOND)
        self._recent: deque[tuple[Host, Host, Any]] | None = None
        if faults.brokers:
            self._recent = deque(maxlen=_KEPT_BY_BROKERS)
        self._breaks = [
            (int(p.from_s * SECOND), int(p.to_s * SECOND), p) for p in faults.partitions
        ]
        self._away = [(int(s * SECOND), int((s + _BROKER_DOWN_S) * SECOND)) for s in faults.brokers]
        for _, back in self._away:
            world.at(back, self._deliver_again)

    # ------------------------------------------------ sending

    def send(self, host: Host, to: Node, message: Any) -> None:
        world = self.world
        other = world.hosts.get(to)
        if other is None:
            world.counts["unreachable"] += 1
            return
        if other.process is host.process:
            world.after(_NEAR_NS, other.receive, host.node, message)
            return
        if self._recent is not None:
            self._recent.append((host, other, message))
        faults, rng = self._faults, self.rng
        delay = self._latency_ns + rng.exponential_ns(self._spread_s)
        # Whatever is retained may come when all else has healed.
        if faults.stale and rng.chance(faults.stale):
            later = rng.exponential_ns(faults.stale_s)
            world.after(delay + later, other.receive, host.node, message)
        if not world.faulty:
            delay = min(delay, self._healthy_ns)
        elif rng.chance(faults.loss) or self._is_cut(host.node, other.node, world.now):
            world.counts["lost"] += 1
            return
        elif faults.corruption and rng.chance(faults.corruption):
            world.after(delay, self._deliver_damaged, host, other, message)
            return
        elif rng.chance(faults.duplication):
            again = self._latency_ns + rng.exponential_ns(self._spread_s)
            world.after(again, other.receive, host.node, message)
        if faults.wire:
            content = envelope_bytes(host.node, other.node, message)
            world.after(delay, self._deliver_bytes, other, content)
        else:
            world.after(delay, other.receive, host.node, message)

    def send_blob(self, host: Host, to: Node, digest: bytes, content: bytes) -> None:
        """Sends a blob with its content, or puts it into the receiver's store and names it.

        The transport decides which.
        """
        blob = Blob(digest=digest, size=len(content), content=content)
        other = self.world.hosts.get(to)
        if not self._faults.claim or other is None:
            self.send(host, to, blob)
            return
        if self.world.faulty and self._is_cut(host.node, to, self.world.now):
            self.world.counts["lost"] += 1
            return
        delay = self._latency_ns + self.rng.exponential_ns(self._spread_s)
        if not self.world.faulty:
            delay = min(delay, self._healthy_ns)
        self.world.after(delay, self._deliver_blob, host.node, other, blob)

    def _is_cut(self, a: Node, b: Node, now: int) -> bool:
        """Whether nothing goes from a to b."""
        for start, end, p in self._breaks:
            if start <= now < end and (
                (a in p.a and b in p.b) or (p.both and a in p.b and b in p.a)
            ):
                return True
        return any(start <= now < end for start, end in self._away)

    # ------------------------------------------------ arriving

    def _deliver_bytes(self, other: Host, content: bytes) -> None:
        envelope = Envelope.FromString(content)
        other.receive(node_of(envelope.sender), message_of(envelope))

    def _deliver_blob(self, sender: Node, other: Host, blob: Any) -> None:
        faults, rng = self._faults, self.rng
        if not other.up:
            return
        if self.world.faulty and rng.chance(faults.loss + faults.corruption):
            self.world.counts["transfers broken"] += 1
            return
        # It may have to go again to make room for others, before it is pinned.
        if not (self.world.faulty and rng.chance(faults.no_room)):
            other.blobs[blob.digest] = blob.content
        other.receive(sender, Blob(digest=blob.digest, size=blob.size))

    def _deliver_damaged(self, host: Host, other: Host, message: Any) -> None:
        content = bytearray(envelope_bytes(host.node, other.node, message))
        for _ in range(self.rng.whole(1, 3)):
            content[self.rng.below(len(content))] ^= 1 << self.rng.below(8)
        counts = self.world.counts
        counts["damaged"] += 1
        try:
            envelope = Envelope.FromString(bytes(content))
            damaged, sender, to = message_of(envelope), node_of(envelope.sender), envelope.to
            if sender != host.node or node_of(to) != other.node:
                return
        except (DecodeError, ProtocolError):
            return
        if type(damaged) is Blob and type(message) is Blob:
            other.receive(sender, damaged)
        elif host.node.tier is Tier.DEVICE and host.node.number in self._faults.liars:
            counts["lies"] += 1
            self.world.auditor.lied(host.node.number, damaged)
            other.receive(sender, damaged)

    def _deliver_again(self) -> None:
        """A broker is back: what it has no acknowledgement of comes again."""
        assert self._recent is not None
        waiting = [item for item in self._recent if self.rng.chance(0.5)]
        self.rng.shuffle(waiting)
        for host, other, message in waiting:
            self.world.after(self.rng.below(2_000) * MS, other.receive, host.node, message)
