"""Which cut the next request gets.

A plan lists the few cuts that are best somewhere between two bandwidths. The time of each is known
at any bandwidth and latency: compute by tier, plus what it moves over what the links give. So the
best one under the links as they are measured is found by comparing those few, which at the planned
latency gives the plan's own pieces, and gives something sensible where latency, the tier above or
this node are not as planned. Where time is not what the plan is about (energy), its pieces say it.

Two things keep it calm. A cut is left only for one that is predicted to be faster by `gain`; and
not before it was in use for `dwell_s`, unless it cannot be used any more or the other one takes
less than half its time. A choice holds for requests to come: those under way end as they began.

A prediction for a cut that is not in use rests on little: one cut's times cannot show what a run
costs in itself from what grows with it, and small messages hardly show a link's bandwidth. So where
another cut is predicted to be about as fast, a request takes it now and then (exploration: Sutton
and Barto, Reinforcement Learning, 2018, section 2.2), ever more seldom while nothing comes of it:
what that took decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....protocol.ports import SECOND
from .part_ports import Course, Link
from .upstream import hop_s

#: So much faster, and the dwell time does not matter.
STEEP = 2.0
#: Requests between two that try another cut, at most: a thousandth is seen by no percentile.
TRY_AFTER_MAX = 1024
#: How far off a plan a cut is that it does not have: only for when no other can be used.
NOWHERE = 1e6


@dataclass(frozen=True, slots=True)
class ChoiceSettings:
    """When a device changes to another cut."""

    gain: float = 0.1
    """Fraction of its time by which another cut must be faster."""
    dwell_s: float = 1.0
    try_after: int = 32
    """Requests after which one takes a cut that is predicted to be as fast, within `gain`.

    After twice as many the next one does, and so on up to `TRY_AFTER_MAX`.
    """
    throughput: bool = False
    """Whether to minimise the slowest stage (a stream) instead of the sum (one request)."""
    planned: bool = False
    """Whether the plan's ranges of bandwidth select the cut instead of predicted times.

    For plans whose objective was energy. `gain` is then how far the bandwidth must be outside a
    range to leave it.
    """

    def __post_init__(self) -> None:
        assert 0 <= self.gain < 1 and self.dwell_s >= 0 and 0 < self.try_after <= TRY_AFTER_MAX

    @classmethod
    def of(cls, objective: str) -> ChoiceSettings:
        """By a plan's objective, which alone knows energy and mixtures."""
        about = {name for name in ("latency", "throughput", "energy") if name in objective}
        return cls(throughput=about == {"throughput"}, planned=len(about) > 1 or "energy" in about)


def predicted_s(
    course: Course, link: Link, here: float, above: float, throughput: bool = False
) -> float:
    """Seconds of one request.

    With `throughput` of its slowest stage, for which all that is above counts as one. link: the hop
    upwards. here: seconds of this tier's compute; above: from a whole request there to its reply.
    """
    if not course.legs:
        return here
    leg = course.legs[0]
    if throughput:  # latency does not hold up a stream
        return max(here, above, leg.up / link.up, leg.down / link.down)
    return here + above + hop_s(leg.up, leg.down, link)


def off_plan(course: Course, link: Link) -> float:
    """1 where the plan has this cut at this bandwidth, more the further away that is."""
    away = [
        max(0.0, math.log(max(low, 1.0) / link.up), math.log(link.up / max(high, 1.0)))
        for low, high in course.pieces
    ]
    return 1.0 + min(away, default=NOWHERE)


class Chooser:
    """The cut in use among `courses`; one of them must ask no tier, and is used at first."""

    def __init__(self, courses: Sequence[Course], settings: ChoiceSettings) -> None:
        alone = [c for c in courses if not c.legs]
        assert alone, "one cut asks no tier"
        self.courses, self._settings = tuple(courses), settings
        self.current = alone[0]
        self._since = 0
        self._rival: Course | None = None
        self._untried, self._wait = 0, settings.try_after
        self._first = True

    def cuts(self) -> list[bytes]:
        """Those for which the tier above is needed."""
        return [c.cut for c in self.courses if c.legs]

    def consider(
        self, usable: Callable[[Course], bool], cost: Callable[[Course], float], now: int
    ) -> tuple[Course, Course] | None:
        """Chooses again by `cost`: (the cut before, the cut now) where they differ."""
        before, settings = self.current, self._settings
        self._rival = None
        others = [c for c in self.courses if c is not before and (not c.legs or usable(c))]
        if not others:
            return None
        best = min(others, key=cost)
        if not before.legs or usable(before):
            less, more = cost(best), cost(before)
            if less <= (1 + settings.gain) * more and not settings.planned:
                self._rival = best
            rested = now - self._since >= settings.dwell_s * SECOND
            if less >= more or less > (1 - settings.gain) * more:
                return None
            if not (rested or self._first or STEEP * less < more):
                return None
        self.current, self._since, self._first = best, now, False
        self._rival = None
        self._untried, self._wait = 0, settings.try_after
        return before, best

    def next(self) -> Course:
        """The cut of a request that begins now: the one in use, or one that is to be tried."""
        self._untried += 1
        if self._rival is None or self._untried <= self._wait:
            return self.current
        self._untried, self._wait = 0, min(2 * self._wait, TRY_AFTER_MAX)
        return self._rival
