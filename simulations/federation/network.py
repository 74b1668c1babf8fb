"""Links: how long a message is on its way, and whether it arrives once, twice or never.

A link carries one message after the other in each direction (a transfer starts when the one before
it has left), then it travels for the latency and a random jitter, so that messages overtake one
another. A lost message has used the link all the same. Nothing here sends anything again: that is
the protocol's part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...core.protocol.ports import MS
from ...core.protocol.random_streams import Streams

#: A message on the wire is longer than its body by this: headers of TLS, HTTP/2 and TCP, for one
#: message a packet.
OVERHEAD_BYTES = 96


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """One kind of link."""

    latency_ms: float = 20.0
    """One way."""
    jitter_ms: float = 0.0
    """Mean of what comes to the latency, exponential, one way."""
    up_mbps: float = 100.0
    """Megabits a second towards the cloud."""
    down_mbps: float = 100.0
    """Megabits a second towards the device."""
    loss: float = 0.0
    """Chance that a message is lost."""
    duplication: float = 0.0
    """Chance that a message comes twice."""

    def __post_init__(self) -> None:
        assert self.latency_ms >= 0 and self.jitter_ms >= 0
        assert self.up_mbps > 0 and self.down_mbps > 0
        assert 0 <= self.loss < 1 and 0 <= self.duplication <= 1


LINKS = {
    "fibre": LinkProfile(8.0, 1.0, 1000.0, 1000.0),
    "wifi": LinkProfile(15.0, 5.0, 40.0, 80.0, loss=0.002),
    "lte": LinkProfile(45.0, 15.0, 12.0, 40.0, loss=0.01),
    "poor": LinkProfile(150.0, 80.0, 0.5, 2.0, loss=0.05, duplication=0.01),
}


class Channel:
    """One direction of one node's link. sent: messages whose fate was drawn."""

    __slots__ = ("_free_at", "_ids", "_latency", "_profile", "_rate", "_streams", "sent")

    def __init__(
        self, profile: LinkProfile, mbps: float, streams: Streams, ids: tuple[int, ...]
    ) -> None:
        self._profile = profile
        self._latency = round(profile.latency_ms * MS)
        self._rate = 8_000.0 / mbps  # nanoseconds a byte
        self._streams = streams
        self._ids = ids
        self.sent = 0
        self._free_at = 0

    def carry(self, now: int, size: int) -> tuple[int, ...]:
        """When a message of `size` bytes that is sent at `now` arrives.

        No, one or two times, in ns.
        """
        profile = self._profile
        start = self._free_at if self._free_at > now else now
        self._free_at = left = start + round(size * self._rate)
        arrival = left + self._latency
        if not (profile.loss or profile.duplication or profile.jitter_ms):
            return (arrival,)
        self.sent += 1
        word = self._streams.word("link", *self._ids, self.sent)
        # One word serves three draws of 21 bits: one part in two million is fine enough for
        # chances.
        if (word & _MASK) < profile.loss * _UNIT:
            return ()
        first = arrival + self._jitter(word >> 42)
        if ((word >> 21) & _MASK) >= profile.duplication * _UNIT:
            return (first,)
        again = self._streams.word("link again", *self._ids, self.sent)
        return (first, arrival + self._jitter(again >> 42))

    def _jitter(self, draw: int) -> int:
        """An exponential delay from 22 random bits."""
        return round(-math.log((draw + 1) / 2**22) * self._profile.jitter_ms * MS)


_MASK = 2**21 - 1
_UNIT = 2**21
