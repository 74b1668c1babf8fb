"""The best placement of a problem, and the second best.

A cut is exact for latency and energy (with returns: where it has one turn, see `flow`), and takes
milliseconds; memory limits that the cut breaks, and the slowest stage of a stream, take the
mixed-integer program of `exact`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ...compiler.ir import Array
from . import exact, flow
from .flow_network import extremes, groups
from .price import fits, priced
from .problem import Objective, Placement, PlacementError, Problem
from .problem_table import Table

#: Seconds that a search may take by default.
SECONDS_DEFAULT = 10.0
#: Cuts that a second best may take: some milliseconds each.
_TURNS_MAX = 2000


def solve(problem: Problem, *, seconds: float = SECONDS_DEFAULT) -> Placement:
    """The placement that costs least.

    Where memory or throughput make it a search, the best found within `seconds`: `optimal` and
    `bound` say how good that is.

    Raises PlacementError for a problem that is not well formed or that nothing satisfies.
    """
    return solved(Table.of(problem), seconds=seconds)


def solved(table: Table, *, seconds: float = SECONDS_DEFAULT) -> Placement:
    """As `solve`, of a problem that is a table already."""
    found, bound = _by_cut(table)
    if not table.problem.objective.throughput and fits(table.problem, found):
        return found
    ends = (priced(table, labels) for labels in extremes(table))
    best = exact.search(table, (found, *ends), bound=bound, seconds=seconds)
    if best is None:
        raise PlacementError(
            "no placement fits the memory of the tiers",
            "raise a tier's limit, or lift pins and ceilings that keep items off other tiers",
        )
    return best


def _by_cut(table: Table) -> tuple[Placement, float]:
    """The cheapest placement without regard to memory, and a bound for all.

    Of a stream's slowest stage a cut knows nothing: there it is only a good guess, where all stages
    count as latency.
    """
    weigh = table.problem.objective
    if not weigh.throughput:
        found = flow.minimum(table)
        return found, found.bound
    serial = Objective(latency=weigh.latency + weigh.throughput, energy=weigh.energy)
    guess = flow.minimum(table.revised(objective=serial))
    return priced(table, guess.labels), 0.0


def runner_up(
    problem: Problem, placement: Placement, *, seconds: float = SECONDS_DEFAULT
) -> Placement | None:
    """The cheapest placement whose labels differ from those of `placement`, the best.

    None: there is no other.

    The second-best cut is above or below the best one at some variable x(i, k) (submodularity: the
    union and the intersection of two cuts cost no more than the two). So it is the best of the
    least cuts with one variable turned. Without returns, a set of items that moves up holds one
    whose readers are up already, and one that moves down has one whose makers are down: these few
    are tried. With returns all are, up to a limit: beyond it `optimal` is false. Memory limits and
    throughput: a search of at most `seconds`.
    """
    table = Table.of(problem)
    if problem.objective.throughput or table.limited:
        return exact.search(table, (), bound=placement.bound, seconds=seconds, excluded=placement)
    best, tried = None, 0
    for allowed in _turned(table, np.array(placement.labels)):
        if tried == _TURNS_MAX and best is not None:
            return replace(best, bound=placement.bound, optimal=False)
        tried += 1
        try:
            found = flow.minimum(table, allowed)
        except PlacementError:  # nothing satisfies the rules with this variable turned
            continue
        if best is None or found.cost < best.cost:
            best = found
    return best


def _turned(table: Table, tier: Array) -> Iterator[Array]:
    """bool[n,t] for each variable worth turning: where items may run if one moves up, or down."""
    group, count = groups(table)
    label = np.zeros(count, np.int64)
    label[group] = tier
    may_rise, may_fall = np.ones(count, bool), np.ones(count, bool)
    if not table.problem.returns:
        source, reader = table.producer[table.read_tensor], group[table.read_item]
        made = source >= 0
        source, reader = group[source[made]], reader[made]
        level = (label[source] == label[reader]) & (source != reader)
        may_rise[source[level]] = may_fall[reader[level]] = False
    first = np.unique(group, return_index=True)[1]
    at = np.arange(table.problem.tiers)
    for may, beyond in ((may_rise, at > tier[:, None]), (may_fall, at < tier[:, None])):
        for i in first[may].tolist():
            allowed = table.allowed.copy()
            allowed[i] &= beyond[i]
            if allowed[i].any():
                yield allowed
