"""The tier above, as a node sees it: is it there, which cuts are open with it, how is the way.

It is *present* from `UpperBack` to `UpperGone`, and *suspect* while nothing comes back although
something should: then no request is sent to it, and it is probed until it answers. Cuts are opened
ahead of their use, all at once when the tier comes, so that a switch between them costs nothing; a
refused one is asked for again after pauses that double, one that misfits never.

Times above are the plan's, corrected by what replies say they took (`time_model`), times a penalty
that doubles when requests are refused or overdue. Both are forgotten: a tier that was slow is tried
again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ....protocol.machine import Backoff
from ....protocol.ports import MS, SECOND
from . import part_ports as ports
from .link_estimate import TINY_BYTES, Estimator
from .time_model import HALF_ABOVE_NS, OVERHEAD_ABOVE_S, Drift

#: A link that carries nothing is probed this often; and where no request has come for a
#: while, which spares a battery, seldom.
PROBE_NS = 400 * MS
IDLE_NS = 5 * SECOND
PROBE_IDLE_NS = 30 * SECOND
#: Nothing came back to a probe or for what was sent, for so long, four round trips and ten chunks.
SUSPECT_NS = 1 * SECOND
#: An opening without an answer is asked for again: programs are compiled meanwhile.
UNANSWERED_NS = 20 * SECOND
REOPEN = Backoff(500 * MS, 60 * SECOND, 1)
#: Cuts that a node keeps open with the tier above.
CUTS_MAX = 4096
PENALTY_MAX = 64.0
#: Tiers above the next one: their links, where no figures are configured.
UNKNOWN = ports.Link(up=125e6, down=125e6, latency_s=0.0)


@dataclass(slots=True)
class _Closed:
    """A cut that is not open."""

    again_at: int | None = 0
    """When it is asked for next, if ever."""
    refusals: int = 0
    """So far."""


@dataclass(slots=True)
class _Probing:
    number: int
    nbytes: int
    sent_at: int


class Upper:
    """nominal: the assumed link at first. beyond: links further up, by the plan."""

    def __init__(self, nominal: ports.Link, beyond: tuple[ports.Link, ...] = ()) -> None:
        self.estimator = Estimator(nominal)
        self.present = self.suspect = False
        self._beyond = beyond
        self._above: ports.Link | None = None  # the next hop, as the tier above says
        self._open: set[bytes] = set()
        self._closed: dict[bytes, _Closed] = {}
        self._drift = Drift(OVERHEAD_ABOVE_S, HALF_ABOVE_NS)
        self._penalty, self._penalty_at = 1.0, 0
        self._probe: _Probing | None = None
        self._probes = 0
        self._probe_at = 0
        self._used_at = 0

    # ------------------------------------------------ being there

    def back(self, now: int) -> list[ports.Effect]:
        self.present, self.suspect = True, False
        self._forget(now)
        for closed in self._closed.values():
            if closed.again_at is not None:
                closed.refusals, closed.again_at = 0, now
        self._probe, self._probe_at, self._used_at = None, now, now
        return self.tick(now)

    def gone(self, now: int) -> None:
        self.present = False
        self._forget(now)
        self._probe = None

    def _forget(self, now: int) -> None:
        """What was open and known of the link was so with a tier that is not there any more."""
        self.estimator.reset(now)
        for cut in self._open:
            self._closed[cut] = _Closed()
        self._open.clear()

    def use(self, now: int) -> None:
        """There is a request: how the link is matters again."""
        if now - self._used_at > IDLE_NS:
            self._probe_at = min(self._probe_at, now)
        self._used_at = now

    def want(self, cuts: Iterable[bytes], now: int) -> list[ports.Effect]:
        """These cuts are to be open."""
        for cut in cuts:
            if cut not in self._open and cut not in self._closed:
                assert len(self._open) + len(self._closed) < CUTS_MAX
                self._closed[cut] = _Closed(now)
        return self._reopen(now) if self.present else []

    def forget(self, cut: bytes) -> None:
        """This cut is of no use any more."""
        self._open.discard(cut)
        self._closed.pop(cut, None)

    def opened(self, event: ports.CutOpened) -> bool:
        """Whether the cut is open now that was not."""
        if not self.present or self._closed.pop(event.cut, None) is None:
            return False
        self._open.add(event.cut)
        return True

    def refused(self, event: ports.CutRefused, now: int) -> None:
        closed = self._closed.get(event.cut)
        if closed is None:
            if event.cut not in self._open:
                return
            self._open.discard(event.cut)
            closed = self._closed[event.cut] = _Closed()
        closed.refusals += 1
        final = event.failure is ports.Failure.MISFIT
        closed.again_at = None if final else now + REOPEN.pause(closed.refusals)

    def is_open(self, cut: bytes) -> bool:
        return self.present and cut in self._open

    def settled(self, cut: bytes) -> bool:
        """Whether it is known if the cut is open, or no tier is there."""
        closed = self._closed.get(cut)
        return not self.present or closed is None or closed.refusals > 0

    def usable(self, cut: bytes) -> bool:
        """Whether requests of this cut may go up now."""
        return self.is_open(cut) and not self.suspect

    # ------------------------------------------------ how it is

    def link(self, now: int) -> ports.Link:
        return self.estimator.link(now)

    def above_s(self, course: ports.Course, now: int) -> float:
        """Predicted seconds between a whole request above and the first byte of its reply."""
        return self._drift.seconds(self._planned_s(course), now) * self._penalty_now(now)

    def _planned_s(self, course: ports.Course) -> float:
        """The same, by the plan's times and what is known of the links above."""
        total = sum(course.seconds[1:])
        links = (*self._beyond, *(UNKNOWN for _ in course.legs))
        if self._above is not None:
            links = (self._above, *links[1:])
        for leg, link in zip(course.legs[1:], links, strict=False):
            total += hop_s(leg.up, leg.down, link)
        return total

    def _penalty_now(self, now: int) -> float:
        kept: float = 0.5 ** ((now - self._penalty_at) / HALF_ABOVE_NS)
        return 1.0 + (self._penalty - 1.0) * kept

    def replied(self, event: ports.ReplyReceived, course: ports.Course, now: int) -> None:
        """A reply came: the tier is well, and says how long it took."""
        self._heard(event.above, now)
        self._punish(1.0 + (self._penalty_now(now) - 1.0) / 2, now)
        if event.spent > 0:
            self._drift.measured(self._planned_s(course), event.spent / SECOND, now)

    def overloaded(self, now: int) -> None:
        """A request was refused or is overdue."""
        self._punish(2 * self._penalty_now(now), now)

    def _punish(self, penalty: float, now: int) -> None:
        self._penalty, self._penalty_at = min(PENALTY_MAX, penalty), now

    def _heard(self, above: ports.Link | None, now: int) -> None:
        self.estimator.heard_at = now
        self.suspect = False
        if above is not None:
            self._above = above

    # ------------------------------------------------ time

    def taken(self, event: ports.Taken, now: int) -> list[ports.Effect]:
        """Something was acknowledged; a probe, where that was a surprise."""
        if not self.present:
            return []
        self.suspect = False
        follow = self.estimator.take(event, now) and self._probe is None
        if not follow or self.estimator.waiting:
            return []
        return [self._send_probe(self.estimator.padding(), now)]

    def probed(self, event: ports.ProbeAnswered, now: int) -> list[ports.Effect]:
        """A probe was answered; the next one, where it should follow at once."""
        if not self.present:
            return []
        stuck = self.suspect
        self._heard(event.above, now)
        probing = self._probe
        if probing is None or probing.number != event.probe:
            return []  # the answer to one that was given up
        self._probe = None
        if stuck:  # how long it was held up says nothing of the link as it is now
            return [self._send_probe(TINY_BYTES, now)]
        seconds = (now - probing.sent_at) / SECOND
        estimator = self.estimator
        if probing.nbytes <= TINY_BYTES:
            estimator.round_trip(seconds, now)
            follow = not estimator.waiting and not estimator.sampled_since(now - PROBE_NS)
        else:
            follow = estimator.padded(probing.nbytes, seconds, now)
        return [self._send_probe(estimator.padding(), now)] if follow else []

    def tick(self, now: int) -> list[ports.Effect]:
        """What time alone brings: probes, and openings again."""
        if not self.present:
            return []
        estimator = self.estimator
        # The link may have become ten times as slow: a chunk is still no failure.
        patience = SUSPECT_NS + round(
            (8 * estimator.latency_s() + 10 * estimator.chunk_s()) * SECOND
        )
        probing = self._probe
        overdue = probing is not None and now - probing.sent_at > patience
        if overdue or estimator.silence_s(now) * SECOND > patience:
            self.suspect = True
        effects = self._reopen(now)
        if now >= self._probe_at:
            idle = now - self._used_at > IDLE_NS
            self._probe_at = now + (PROBE_IDLE_NS if idle else PROBE_NS)
            # Not among what waits on the link; but a suspect shows in no other way that it is back.
            quiet = not estimator.waiting or self.suspect
            if quiet and (probing is None or overdue):
                effects.append(self._send_probe(TINY_BYTES, now))
        return effects

    def next_at(self) -> int | None:
        """When `tick` has something to do."""
        if not self.present:
            return None
        again = [c.again_at for c in self._closed.values() if c.again_at is not None]
        return min([self._probe_at, *again])

    def _send_probe(self, nbytes: int, now: int) -> ports.Probe:
        self._probes += 1
        self._probe = _Probing(self._probes, nbytes, now)
        return ports.Probe(self._probes, nbytes)

    def _reopen(self, now: int) -> list[ports.Effect]:
        effects: list[ports.Effect] = []
        for cut, closed in self._closed.items():
            if closed.again_at is not None and now >= closed.again_at:
                closed.again_at = now + UNANSWERED_NS
                effects.append(ports.OpenCut(cut))
        return effects


def hop_s(up: int, down: int, link: ports.Link) -> float:
    """Seconds that a request's bytes take over one hop, both ways."""
    ways = (1 if up or down else 0) + (1 if down else 0)
    return up / link.up + down / link.down + ways * link.latency_s
