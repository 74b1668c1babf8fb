"""The best placement for every bandwidth of a hop: all breakpoints between two.

Everything else held fixed, a placement's cost is a line in s = 1 / bandwidth: the bytes that it
sends over the hop are the slope. So the least cost is the lower envelope of lines, concave, and a
piece of it is one placement. Lines are found where they meet (Eisner and Severance, "Mathematical
techniques for efficient record segmentation in large shared databases", JACM 1976): if the best
placement at the crossing of the lines of two ends costs as much as they do there, it is a
breakpoint; else it is a third line, and both halves are searched. That takes about two solutions a
piece, and misses none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .price import priced
from .problem import Placement, PlacementError, Problem
from .problem_table import Table
from .solver import SECONDS_DEFAULT, solved

#: Costs that differ by less, relatively, are the same.
_SAME = 1e-9
#: Pieces beyond this would be more than an agent keeps.
PIECES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """The best placement between two bandwidths; its figures are for their geometric mean."""

    low: float
    high: float
    placement: Placement


def sweep(
    problem: Problem, hop: int, low: float, high: float, *, seconds: float = SECONDS_DEFAULT
) -> tuple[Piece, ...]:
    """The best placements for all bandwidths of a hop from `low` to `high`, in that order.

    Bandwidths are bytes a second up; the ratio of down to up stays as it is in the problem.

    seconds: for each solution, as in `solve`. Raises PlacementError for an objective with
    throughput, whose slowest stage is no line, and for bounds out of order.
    """
    if problem.objective.throughput:
        raise PlacementError(
            "a sweep over bandwidth is of latency and energy", "solve each bandwidth by itself"
        )
    if not 0 <= hop < len(problem.hops) or not 0 < low <= high < math.inf:
        raise PlacementError(
            f"a sweep over hop {hop} from {low} to {high} bytes/s",
            f"hops are 0 to {len(problem.hops) - 1}; 0 < low <= high",
        )
    return _Sweep(Table.of(problem), hop, seconds).pieces(low, high)


@dataclass(frozen=True, slots=True)
class _Line:
    """cost = fixed + slope * s of one placement's labels and wires."""

    fixed: float
    slope: float
    placement: Placement

    def at(self, s: float) -> float:
        return self.fixed + self.slope * s

    def same(self, other: _Line) -> bool:
        """Whether a device and its tiers would do the same."""
        mine, its = self.placement, other.placement
        return mine.labels == its.labels and mine.crossings == its.crossings


@dataclass(frozen=True, slots=True)
class _Sweep:
    table: Table
    hop: int
    seconds: float

    def pieces(self, low: float, high: float) -> tuple[Piece, ...]:
        """As `sweep`. Works from high bandwidth to low: from small s to large."""
        start, end = 1 / high, 1 / low
        found: list[tuple[float, float, _Line]] = []
        waiting = [(start, end, self._line(start), self._line(end))]
        while waiting:
            begin, finish, first, last = waiting.pop()
            meet = _meeting(begin, finish, first, last)
            if meet is None:
                found.append((begin, finish, first))
                continue
            middle = self._line(meet)
            if middle.at(meet) >= first.at(meet) * (1 - _SAME):
                found += [(begin, meet, first), (meet, finish, last)]
                continue
            if len(found) + len(waiting) > PIECES_MAX:
                raise PlacementError(
                    f"more than {PIECES_MAX} placements between {low:g} and {high:g} bytes/s",
                    "sweep a narrower range",
                )
            waiting += [(meet, finish, middle, last), (begin, meet, first, middle)]
        return tuple(self._piece(*part) for part in reversed(_joined(found)))

    def _table(self, s: float) -> Table:
        hops = list(self.table.problem.hops)
        hop = hops[self.hop]
        hops[self.hop] = replace(hop, up=1 / s, down=hop.down / (hop.up * s))
        return self.table.revised(hops=tuple(hops))

    def _line(self, s: float) -> _Line:
        placement = solved(self._table(s), seconds=self.seconds)
        hop = self.table.problem.hops[self.hop]
        nbytes = placement.up_bytes[self.hop] + placement.down_bytes[self.hop] * hop.up / hop.down
        slope = nbytes * self.table.problem.objective.latency
        return _Line(placement.cost - slope * s, slope, placement)

    def _piece(self, begin: float, finish: float, line: _Line) -> Piece:
        middle = priced(self._table(math.sqrt(begin * finish)), line.placement.labels)
        proved = line.placement.optimal
        bound = middle.cost if proved else -math.inf
        return Piece(1 / finish, 1 / begin, replace(middle, bound=bound, optimal=proved))


def _meeting(begin: float, finish: float, first: _Line, last: _Line) -> float | None:
    """Where the best lines of both ends meet, strictly between them; None: one line."""
    ahead = last.at(begin) - first.at(begin)
    behind = first.at(finish) - last.at(finish)
    if first.same(last) or max(ahead, behind) <= _SAME * first.at(begin):
        return None
    meet = begin + (finish - begin) * max(ahead, 0.0) / (max(ahead, 0.0) + max(behind, 0.0))
    return meet if begin < meet < finish else None


def _joined(parts: list[tuple[float, float, _Line]]) -> list[tuple[float, float, _Line]]:
    """Neighbours with the same placement as one."""
    joined: list[tuple[float, float, _Line]] = []
    for begin, finish, line in parts:
        if joined and joined[-1][2].same(line):
            joined[-1] = (joined[-1][0], finish, line)
        else:
            joined.append((begin, finish, line))
    return joined
