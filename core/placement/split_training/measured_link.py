"""The link of a device to its edge, measured by the exchanges of its trainings.

Nothing is sent to measure it but a tiny probe a stream, for the round trip: the tensors of turns
are large enough, and each is acknowledged (`subgraphs.machines.link_estimate`). The estimate stays
from round to round, so that the next round's cut goes by it.
"""

from __future__ import annotations

from ...protocol.ports import SECOND
from ..cut.link_model import LinkProfile
from ..subgraphs.machines.link_estimate import TINY_BYTES as TINY_BYTES
from ..subgraphs.machines.link_estimate import Estimator
from ..subgraphs.machines.part_ports import Link, Taken


class MeasuredLink:
    """What one device knows of its link. Times are in ns of one clock.

    nominal: what it is taken to be before the first exchange.
    """

    def __init__(self, nominal: LinkProfile) -> None:
        self._estimate = Estimator(Link(nominal.up, nominal.down, nominal.latency_s))
        self._now = 0
        self.exchanges = 0

    def begin(self, now: int) -> None:
        """There is a stream; what was on another is lost."""
        self._now = now
        self._estimate.reset(now)

    def sent(self, nbytes: int, now: int) -> None:
        """A turn's request waits."""
        self._now, self.exchanges = now, self.exchanges + 1
        self._estimate.sent(nbytes, now)

    def taken(self, taken: int, waiting: int, at: int, now: int) -> None:
        """The edge has so many bytes of the stream, since `at` by its own clock."""
        self._now = now
        self._estimate.take(Taken(taken, waiting, at), now)

    def arriving(self, turn: int, done: int, now: int) -> None:
        """So many bytes of a turn's answer are here."""
        self._now = now
        self._estimate.arriving(turn, done, now)

    def round_trip(self, ns: int, now: int) -> None:
        """A tiny probe was answered after so long."""
        self._now = now
        self._estimate.round_trip(ns / SECOND, now)

    @property
    def profile(self) -> LinkProfile:
        """As it was when something last happened on it."""
        link = self._estimate.link(self._now)
        return LinkProfile(link.up, link.down, link.latency_s)
