"""How a link is now, from what it carries.

Bandwidth is bytes over time while the link is busy: between two acknowledgements of one busy period
the receiver's own clock says how long so many bytes took, and no latency is in that. Both are
summed with weights that fall by 1/e with each `FORGET_S` of busy time and each `FORGET_BYTES`, so
that either enough time or enough bytes replace the estimate. Seconds a byte are averaged in
this way, not bytes a second: times are what is predicted.

A link that has become slow says so by silence: while bytes wait and nothing is acknowledged, it
cannot be faster than one chunk in the time since the last sign. `link` takes that bound, so a drop
is seen before the transfer that suffers from it has ended.

A link that carries nothing is asked: a tiny probe measures the round trip, a padded one the
bandwidth. The padding takes about `PROBE_S` at the present estimate, and where it shows more than
estimated the next one follows at once: a link ten times as fast is known after a few round
trips.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from ....protocol.ports import SECOND
from .part_ports import Link, Taken

FORGET_S = 0.25
FORGET_BYTES = 32 * 1024
#: What acknowledgements come for at least, unless less waits.
CHUNK_BYTES = 16 * 1024
#: Shorter stretches are joined before they count: clocks and schedulers are not finer.
SAMPLE_S_MIN = 0.004
#: But for what ends a transfer, which nothing can be joined to: a driver sends a small piece first,
#: so that the rest of even a small message is a stretch. A shorter one is taken as so long.
PAIR_S_MIN = 0.0005
SAMPLE_BYTES_MIN = 1024
PROBE_S = 0.02
PROBE_BYTES_MIN, PROBE_BYTES_MAX = 1024, 64 * 1024
TINY_BYTES = 32
#: Round trips of which the median is taken: half of them make a change count.
ROUND_TRIPS = 5
#: Of a round trip that a transfer is compared with; a shorter one says nothing of the bandwidth.
SHARE_OF_ROUND_TRIP_MIN = 0.25
#: The lowest estimate of a bandwidth: times stay finite.
RATE_MIN = 16.0
#: So many times the estimate is worth a probe at once.
STEEP = 1.5
#: Of the estimate, when a probe shows that it is far too low.
KEPT_WHEN_FASTER = 0.3


class _Rate:
    """Bytes a second, from stretches of (bytes, seconds)."""

    __slots__ = ("_bytes", "_seconds", "sampled_at")

    def __init__(self, nominal: float) -> None:
        # What is assumed at first weighs as little as a tenth of what is remembered.
        self._bytes = nominal * FORGET_S / 10
        self._seconds = FORGET_S / 10
        self.sampled_at: int | None = None

    def add(self, nbytes: float, seconds: float, now: int, kept: float = 1.0) -> None:
        """kept: of the estimate, at most."""
        seconds = max(seconds, 1e-6)
        kept = min(kept, math.exp(-(seconds / FORGET_S + nbytes / FORGET_BYTES)))
        self._bytes = self._bytes * kept + nbytes
        self._seconds = self._seconds * kept + seconds
        self.sampled_at = now

    def value(self) -> float:
        return max(RATE_MIN, self._bytes / self._seconds)


class Estimator:
    """Estimates one link upwards.

    `taken`: bytes acknowledged since the link was made; `waiting`: bytes sent or queued and not
    acknowledged yet.
    """

    def __init__(self, nominal: Link) -> None:
        self.nominal = nominal
        self._up, self._down = _Rate(nominal.up), _Rate(nominal.down)
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS)
        self.reset(0)

    def reset(self, now: int) -> None:
        """Starts again for a new link: what was sent is lost, the estimates stay."""
        self.taken = self.waiting = 0
        self.heard_at = now
        self._busy_since = now  # of the busy period: when it began, and what was taken by then
        self._busy_taken = 0
        self._mark: tuple[int, int] | None = None  # (taken, at) where the next stretch begins
        self._arriving: tuple[int, int, int] | None = None  # (ticket, done, now)

    # ------------------------------------------------ what happens

    def sent(self, nbytes: int, now: int) -> None:
        """So much more waits."""
        if self.waiting == 0:
            self.heard_at = self._busy_since = now
            self._busy_taken = self.taken
            self._mark = None
        self.waiting += nbytes

    def called_off(self, nbytes: int) -> None:
        """So much less waits."""
        self.waiting = max(0, self.waiting - nbytes)

    def take(self, event: Taken, now: int) -> bool:
        """Takes an acknowledgement; whether a much faster link calls for a probe."""
        estimate = self._up.value()
        return self._take(event, now) > STEEP * estimate

    def _take(self, event: Taken, now: int) -> float:
        """The bandwidth that this alone shows; 0: none."""
        if event.taken < self.taken or event.waiting < 0:
            return 0.0  # out of order: a later one has said more
        shown = 0.0
        first = self._mark is None
        if first and self.waiting > 0:
            shown = self._first(event, now)
        elif self._mark is not None:
            taken, at = self._mark
            seconds = (event.at - at) / SECOND
            nbytes = event.taken - taken
            if nbytes >= SAMPLE_BYTES_MIN and (seconds >= SAMPLE_S_MIN or not event.waiting):
                seconds = max(seconds, PAIR_S_MIN)
                self._up.add(nbytes, seconds, now)
                self._mark = (event.taken, event.at)
                shown = nbytes / seconds
        if first:
            self._mark = (event.taken, event.at)
        self.taken, self.waiting, self.heard_at = event.taken, event.waiting, now
        if self.waiting == 0:
            self._mark = None
        return shown

    def _first(self, event: Taken, now: int) -> float:
        """The bandwidth by a busy period's first acknowledgement, beyond the round trip."""
        nbytes = event.taken - self._busy_taken
        round_trip = 2 * self.latency_s()
        seconds = (now - self._busy_since) / SECOND - round_trip
        least = max(SAMPLE_S_MIN, SHARE_OF_ROUND_TRIP_MIN * round_trip)
        if nbytes < SAMPLE_BYTES_MIN or seconds <= least:
            return 0.0
        self._up.add(nbytes, seconds, now)
        return nbytes / seconds

    def arriving(self, ticket: int, done: int, now: int) -> None:
        """Records that `done` bytes of a reply are here."""
        if self._arriving is not None and self._arriving[0] == ticket:
            _, before, since = self._arriving
            seconds = (now - since) / SECOND
            if done - before < SAMPLE_BYTES_MIN or seconds < SAMPLE_S_MIN:
                return
            self._down.add(done - before, seconds, now)
        self._arriving = (ticket, done, now)
        self.heard_at = now

    def round_trip(self, seconds: float, now: int) -> None:
        """A tiny probe came back."""
        self._round_trips.append(seconds)
        self.heard_at = now

    def padded(self, nbytes: int, seconds: float, now: int) -> bool:
        """A padded probe came back; whether it showed so much more that the next should follow."""
        estimate = self._up.value()
        self.heard_at = now
        seconds -= 2 * self.latency_s()
        # Too fast to be measured against the round trip: at least four times the padding's worth.
        seconds = max(seconds, PROBE_S / 4 * nbytes / self.padding())
        # A slow answer may have many reasons, a fast one only one.
        faster = nbytes / seconds > STEEP * estimate
        self._up.add(nbytes, seconds, now, kept=KEPT_WHEN_FASTER if faster else 1.0)
        return faster

    # ------------------------------------------------ estimates

    def latency_s(self) -> float:
        """One way."""
        return median(self._round_trips) / 2 if self._round_trips else self.nominal.latency_s

    def chunk_s(self) -> float:
        """What a chunk took when something was last measured."""
        return CHUNK_BYTES / self._up.value()

    def padding(self) -> int:
        """How much padding a probe should have."""
        return max(PROBE_BYTES_MIN, min(PROBE_BYTES_MAX, int(self._up.value() * PROBE_S)))

    def sampled_since(self, time: int) -> bool:
        """Whether the bandwidth upwards was measured since."""
        return self._up.sampled_at is not None and self._up.sampled_at >= time

    def silence_s(self, now: int) -> float:
        """How long nothing was acknowledged although something waits."""
        return (now - self.heard_at) / SECOND if self.waiting else 0.0

    def link(self, now: int) -> Link:
        """The link as it seems at `now`."""
        up, latency = self._up.value(), self.latency_s()
        silence = self.silence_s(now) - 2 * latency
        if silence > 0:
            up = max(RATE_MIN, min(up, min(self.waiting, CHUNK_BYTES) / silence))
        down = self._down.value()
        if self._down.sampled_at is None:  # as much slower or faster as the other direction is
            down = max(RATE_MIN, self.nominal.down * up / self.nominal.up)
        return Link(up, down, latency)
