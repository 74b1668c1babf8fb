"""What a process takes from a peer, as numbers, and where it counts what it did not take.

Every limit of the transports stands here. A peer that goes beyond one is refused: the refusal is
counted under a kind, for the metrics, and logged the first time that this peer earns it, so that a
bad peer can fill neither the memory nor the log.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass

from ..driver.log_deduplication import Once

log = logging.getLogger("delian.net")

KIB = 1024
MIB = 1024 * KIB

#: An envelope of at most this many bytes travels as it is; a larger one is a transfer (link.proto).
INLINE_MAX = 64 * KIB
#: What a node takes from a sender of which it expects nothing large.
MESSAGE_BYTES_DEFAULT = 64 * KIB
#: Parts of blobs that are kept in memory while several nodes pull them.
PARTS_KEPT_BYTES = 32 * MIB
#: Content of a part over gRPC; each costs about as much processor time as 100 KiB of content. What
#: is left of the whole goes with the part before it where that is little: models are often a power
#: of two and a few bytes.
PART_BYTES = 1024 * KIB
PART_REST_BYTES = 32 * KIB
PART_BYTES_MAX = PART_BYTES + PART_REST_BYTES
#: Largest message that gRPC itself lets in; it refuses others before it allocates them.
FRAME_BYTES_MAX = PART_BYTES_MAX + 4 * KIB
#: Longest trace context that is passed on (W3C: 55 characters).
TRACEPARENT_MAX = 64

#: Envelopes that wait for a slow reader, and their bytes. Beyond them envelopes are dropped.
QUEUE_ENVELOPES_MAX = 256
QUEUE_BYTES_MAX = 4 * MIB
#: Envelopes in a row that may be dropped before the reader is sent away.
DROPPED_MAX = 64

#: Envelopes that one peer may send: so many at once, and so many a second from then on.
RATE_BURST = 2_000
RATE_PER_S = 500.0
#: Envelopes beyond the rate that are dropped before the peer is sent away.
RATE_DROPPED_MAX = 1_000

#: Words of a home, and its welcomes, that an uplink over MQTT reads: so many at once, and so many a
#: second. A home says one when it starts, renews or connects, and welcomes once a birth.
PRESENCES_BURST = 30
PRESENCES_PER_S = 1 / 3

#: Transfers under way from one peer, and from all of them.
TRANSFERS_PER_PEER = 8
TRANSFERS_MAX = 4_096
#: Bytes of large envelopes that are spooled, a peer and in all. One always fits: `limit(sender)`
#: says how large it may be.
SPOOL_BYTES_PER_PEER = 64 * MIB
SPOOL_BYTES_MAX = 1_024 * MIB
#: How long a transfer that makes no headway is kept for resumption, and for how long when there is
#: no room for another node's.
TRANSFER_IDLE_S = 120.0
TRANSFER_STALLED_S = 10.0
#: Digests that a node has asked one peer for and that are therefore taken when they are offered.
ASKED_PER_PEER = 64

#: Messages that wait for the receiver to fetch them, a peer and in all.
OUTGOING_PER_PEER = 16
OUTGOING_BYTES_PER_PEER = 256 * MIB
OUTGOING_BYTES_MAX = 2_048 * MIB


@dataclass(frozen=True, slots=True)
class PeerTimes:
    """How a hub over gRPC looks after its peers, in seconds."""

    first_s: float = 20.0
    """A stream that has not named its node by then is ended."""
    review_s: float = 30.0
    """How often peers are asked about again.

    Whose certificate has run out or was revoked is sent away.
    """


class Faults:
    """Refusals by kind. `counts` is for the metrics: kind -> how many."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: Counter[str] = Counter()
        self._first = Once()

    def count(self, kind: str, peer: object = "", **facts: object) -> None:
        """One more of `kind`; logged when it is the first one from this peer."""
        self.counts[kind] += 1
        if self._first(kind, str(peer)):
            log.warning(
                "%s: %s from %s", self.name, kind, peer or "a peer", extra={"kind": kind, **facts}
            )


class Buckets:
    """How much of something each holder may have: `burst` at once, and `per_s` from then on.

    Stores the `holders_max` that came last; one that is forgotten begins with a full bucket.
    """

    def __init__(self, burst: int, per_s: float, holders_max: int = 10_000) -> None:
        self._burst, self._per_s, self._holders_max = float(burst), per_s, holders_max
        self._left: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def take(self, holder: object, now: float) -> bool:
        """Whether one more is within the rate. now: seconds, of a clock that does not go back."""
        left, since = self._left.pop(holder, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_s)
        allowed = left >= 1
        self._left[holder] = (left - 1 if allowed else left, now)
        if len(self._left) > self._holders_max:
            self._left.popitem(last=False)
        return allowed


class Pace:
    """How fast one peer is read where nothing may be lost.

    `burst` messages at once, and `per_s` a second from then on. A sender that is read no faster
    cannot send faster: flow control holds it back.
    """

    def __init__(self, burst: int = RATE_BURST, per_s: float = RATE_PER_S) -> None:
        self._burst, self._per_s = float(burst), per_s
        self._left, self._at = self._burst, 0.0

    def wait_s(self, now: float) -> float:
        """Counts one message, and gives how long to wait before the next is read.

        now: seconds, of a clock that does not go back.
        """
        grown = self._left + (now - self._at) * self._per_s
        self._left, self._at = min(self._burst, grown) - 1.0, now
        return max(0.0, -self._left / self._per_s)
