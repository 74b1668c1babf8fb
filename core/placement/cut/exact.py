"""Placements under memory limits, or for a stream's slowest stage: a mixed-integer program.

Neither fits in a cut: a tier's memory ties all items together, and the slowest stage is a maximum
of sums. The rest is the cut's model, with x(i, k) = 1 where item i runs beyond hop k, and the
continuous variables up(v, k), down(v, k), which minimising makes 0 or 1:

    x(i, k) <= x(i, k - 1)                          up(v, k) >= x(c, k) - x(p, k)
    x(p, k) <= x(c, k)  without returns             down(v, k) >= x(p, k) - x(c, k), x(p, k)
    all(v) >= x(c, h - 1) - x(p, 0), and as much down: v crosses all hops, in a wire that suits all
    memory:   sum_i bytes(i) (x(i, t - 1) - x(i, t)) <= limit(t)
    slowest:  s >= sum_i seconds(i, t) (x(i, t - 1) - x(i, t)),   s >= sum_v seconds(v, k) up(v, k)

Without memory and s every vertex is whole, so relaxations are tight and HiGHS (Huangfu and Hall,
"Parallelizing the dual revised simplex method", Math. Prog. Comp. 2018) branches on little else.
It stops at a limit of time; what it had found and proved by then is the answer and its bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...compiler.ir import Array
from .price import fits, priced
from .problem import Hop, Placement, PlacementError
from .problem_table import Table

#: Of the cost: what cost and bound may differ by in a placement that is called optimal.
TOLERANCE = 1e-6
#: HiGHS keeps absolute tolerances of 1e-6 and less: costs are scaled to this.
_SCALED = 1e4
#: How often a solution that HiGHS' tolerances let through is excluded.
_EXCLUSIONS_MAX = 20
#: scipy's status of a program that has no solution.
_INFEASIBLE = 2


@dataclass(slots=True)
class _Rows:
    """Rows lower <= a x <= upper, gathered as triplets."""

    row: list[Array] = field(default_factory=list)
    column: list[Array] = field(default_factory=list)
    value: list[Array] = field(default_factory=list)
    lower: list[Array] = field(default_factory=list)
    upper: list[Array] = field(default_factory=list)
    count: int = 0

    def sums(
        self, terms: Sequence[tuple[Array, float]], lower: float = -math.inf, upper: float = 0.0
    ) -> None:
        """A row for each entry: the sum of factor times column over the terms; column -1: none."""
        size = len(terms[0][0])
        rows = np.arange(self.count, self.count + size)
        for columns, factor in terms:
            real = columns >= 0
            self.row.append(rows[real])
            self.column.append(columns[real])
            self.value.append(np.full(int(real.sum()), factor))
        self.lower.append(np.full(size, lower))
        self.upper.append(np.full(size, upper))
        self.count += size

    def grouped(
        self, own: Array, group: Array, columns: Array, factor: float, upper: Array
    ) -> None:
        """A row for each of `own`: it, and factor times the columns of its group."""
        size = len(own)
        self.row += [self.count + np.arange(size), self.count + group]
        self.column += [own, columns]
        self.value += [np.ones(size), np.full(len(columns), factor)]
        self.lower.append(np.full(size, -math.inf))
        self.upper.append(upper)
        self.count += size

    def one(self, columns: Array, values: Array, upper: float) -> None:
        """One row with these values."""
        self.row.append(np.full(len(columns), self.count))
        self.column.append(columns)
        self.value.append(np.asarray(values, np.float64))
        self.lower.append(np.array([-math.inf]))
        self.upper.append(np.array([upper]))
        self.count += 1

    def constraint(self, columns: int) -> Any:
        """All rows, as scipy takes them."""
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array

        where = np.concatenate(self.row), np.concatenate(self.column)
        matrix = coo_array((np.concatenate(self.value), where), shape=(self.count, columns))
        lower, upper = np.concatenate(self.lower), np.concatenate(self.upper)
        return LinearConstraint(matrix.tocsr(), lower, upper)


def search(
    table: Table,
    candidates: Iterable[Placement],
    *,
    bound: float,
    seconds: float,
    excluded: Placement | None = None,
) -> Placement | None:
    """The cheapest placement that fits, other than `excluded`, within `seconds`.

    None: there is none. candidates: placements known, of which one is the answer if nothing better
    is found. bound: no placement costs less. Raises PlacementError if time ends with nothing found.
    """
    from scipy.optimize import milp

    problem = table.problem
    barred = set() if excluded is None else {excluded.labels}
    known = [c for c in candidates if fits(problem, c) and c.labels not in barred]
    best = min(known, key=lambda c: c.cost, default=None)
    program = _Program(table)
    scale = _SCALED / best.cost if best is not None and best.cost > 0 else 1.0
    proved = False
    for n in range(_EXCLUSIONS_MAX):
        found = milp(
            program.cost * scale,
            integrality=program.whole,
            bounds=program.bounds(),
            constraints=program.constraints(barred),
            options={"time_limit": seconds / (1 << n), "mip_rel_gap": 0.0},
        )
        if found.status == _INFEASIBLE:
            if best is None:
                return None
            bound, proved = best.cost, True
            break
        if found.mip_dual_bound is not None:
            bound = max(bound, found.mip_dual_bound / scale + program.constant)
        if found.x is None:
            break
        placed = priced(table, program.labels(found.x))
        if fits(problem, placed):
            best = placed if best is None or placed.cost < best.cost else best
            break
        barred.add(placed.labels)
    if best is None:
        raise PlacementError(
            f"no placement found that fits in {seconds:g} s", "allow more seconds, or more memory"
        )
    bound = min(bound, best.cost)
    return replace(
        best, bound=bound, optimal=proved or best.cost - bound <= TOLERANCE * abs(best.cost)
    )


class _Program:
    """The program's columns (items, tensors up and down, latencies, stage), cost and rows."""

    def __init__(self, table: Table) -> None:
        problem = table.problem
        self.table, self.hops = table, len(problem.hops)
        n, m, h = len(table.seconds), len(table.producer), self.hops
        # A tensor's columns one way: a hop each, then all hops.
        self.up, self.down = n * h, n * h + m * (h + 1)
        self.once = self.down + m * (h + 1)
        self.start = self.once + 2 * h
        self.slowest = self.start + 1
        size = self.slowest + 1
        self.cost, self.low, self.high = np.zeros(size), np.zeros(size), np.ones(size)
        self.high[self.slowest] = math.inf
        self.whole = np.zeros(size)
        self.whole[: self.up] = 1
        self.rows = _Rows()
        self._costs()
        self._order()
        self._crossings()
        self._limits()

    def x(self, items: Array, hop: int) -> Array:
        """Numbers of an item's columns at a hop; -1 for an input, which is on the device."""
        return np.where(items >= 0, items * self.hops + hop, -1)

    def _costs(self) -> None:
        table, weigh, h = self.table, self.table.problem.objective, self.hops
        unary = np.where(table.allowed, table.unary(), 0.0)
        self.constant = float(unary[:, 0].sum())
        self.cost[: self.up] = np.diff(unary, axis=1).reshape(-1)
        self.seconds: list[tuple[Array, Array]] = []
        rows = np.arange(len(table.producer))
        for start, rates, way in ((self.up, table.up, True), (self.down, table.down, False)):
            whole = start + rows * (h + 1) + h
            for k, hop in enumerate(table.problem.hops):
                columns = start + rows * (h + 1) + k
                taken, joules = self._carried(rates.wire[:, k], hop, way)
                taken_all, joules_all = self._carried(rates.whole, hop, way)
                linear = taken * weigh.latency + joules * weigh.energy
                self.cost[columns] = linear
                if h > 1:
                    both = taken_all * weigh.latency + joules_all * weigh.energy
                    self.cost[whole] += both - linear
                self.seconds.append(
                    (np.concatenate([columns, whole]), np.concatenate([taken, taken_all - taken]))
                )
        for k, hop in enumerate(table.problem.hops):
            trip = hop.latency_s * weigh.latency
            # With returns both ways where anything is beyond: of one turn, and so a bound.
            ways = [2 * trip, 0.0] if table.problem.returns else [trip, trip]
            self.cost[[self.once + k, self.once + h + k]] = ways
        self.cost[self.start] = table.problem.start_s * weigh.latency
        self.cost[self.slowest] = weigh.throughput

    def _carried(self, wire: Array, hop: Hop, up: bool) -> tuple[Array, Array]:
        """Seconds and joules f64[m] of each tensor on a hop, in these wires."""
        rows = np.arange(len(wire))
        nbytes, encode = self.table.nbytes[rows, wire], self.table.encode[rows, wire]
        return nbytes / (hop.up if up else hop.down) + encode, nbytes * hop.joules_per_byte

    def _order(self) -> None:
        """What binds items: nested hops, tiers not allowed, ties, no way back."""
        table, h = self.table, self.hops
        every = np.arange(len(table.seconds))
        for k in range(1, h):
            self.rows.sums([(self.x(every, k), 1.0), (self.x(every, k - 1), -1.0)])
            inner = every[~table.allowed[:, k]]
            self.rows.sums([(self.x(inner, k - 1), 1.0), (self.x(inner, k), -1.0)])
        self.low[self.x(every[~table.allowed[:, 0]], 0)] = 1
        self.high[self.x(every[~table.allowed[:, h]], h - 1)] = 0
        first, second = table.ties.T
        for k in range(h):
            self.rows.sums([(self.x(first, k), 1.0), (self.x(second, k), -1.0)], lower=0.0)

    def _crossings(self) -> None:
        table, problem, h = self.table, self.table.problem, self.hops
        v, reader = table.read_tensor, table.read_item
        maker = table.producer[v]
        results = np.flatnonzero(table.result & (table.producer >= 0))
        unread = np.setdiff1d(np.arange(len(table.seconds)), maker)
        made = maker >= 0
        # From hop to hop, and the column that is 1 if a tensor crosses from the one to the other.
        spans = [(k, k, k) for k in range(h)] + ([(0, h - 1, h)] if h > 1 else [])
        for low, high, n in spans:
            ends = self.x(reader, high), self.x(maker, low)
            self._crosses(ends, self.up + v * (h + 1) + n)
            back = self.x(maker[made], high), self.x(reader[made], low)
            if problem.returns:
                self._crosses(back, self.down + v[made] * (h + 1) + n)
            elif low == high:
                self.rows.sums([(back[0], 1.0), (back[1], -1.0)])
            home = self.x(table.producer[results], high), np.full(len(results), -1)
            self._crosses(home, self.down + results * (h + 1) + n)
        every = np.arange(len(table.seconds))
        start = np.full(len(every), self.start)
        self.rows.sums([(self.x(every, 0), -1.0), (start, -1.0)], upper=-1.0)  # start >= 1 - x
        for k in range(h):
            some = every if problem.returns else unread
            for items, column in ((some, self.once + k), (table.makes_result, self.once + h + k)):
                self._crosses(
                    (self.x(items, k), np.full(len(items), -1)), np.full(len(items), column)
                )
        if h > 1:
            self._only_all()

    def _only_all(self) -> None:
        """A tensor's column for all hops is 1 only where it crosses them.

        What one wire for all takes on a hop may be less than its own would, if energy decides
        between wires.
        """
        table, h = self.table, self.hops
        v, tensors = table.read_tensor, np.arange(len(table.producer))
        readers = np.bincount(v, minlength=len(tensors))
        up, down = (start + tensors * (h + 1) + h for start in (self.up, self.down))
        first, last = self.x(table.producer, 0), self.x(table.producer, h - 1)
        self.rows.sums([(up, 1.0), (first, 1.0)], upper=1.0)
        self.rows.sums([(down, 1.0), (last, -1.0)])
        self.rows.grouped(up, v, self.x(table.read_item, h - 1), -1.0, 0.0 * readers)
        self.rows.grouped(down, v, self.x(table.read_item, 0), 1.0, readers + 1.0 * table.result)

    def _crosses(self, ends: tuple[Array, Array], column: Array) -> None:
        """column >= x(one end) - x(other end)."""
        self.rows.sums([(ends[0], 1.0), (ends[1], -1.0), (column, -1.0)])

    def _limits(self) -> None:
        """Memory of tiers and, if the objective asks, the slowest stage."""
        table, problem = self.table, self.table.problem
        for t, limit in enumerate(problem.memory):
            if limit is not None:
                self._on_tier(t, table.memory.astype(np.float64), None, float(limit))
        if not problem.objective.throughput:
            self.high[self.slowest] = 0
            return
        for t in range(problem.tiers):
            self._on_tier(t, np.where(table.allowed[:, t], table.seconds[:, t], 0), -1.0, 0.0)
        for columns, taken in self.seconds:
            slow = np.array([self.slowest])
            self.rows.one(np.concatenate([columns, slow]), np.concatenate([taken, [-1.0]]), 0.0)

    def _on_tier(self, tier: int, values: Array, slowest: float | None, most: float) -> None:
        """The sum of values over the items on a tier, less the slowest stage, is at most `most`."""
        every = np.arange(len(values))
        columns, factors, upper = [], [], most
        if tier == 0:
            upper -= float(values.sum())
        else:
            columns.append(self.x(every, tier - 1))
            factors.append(values)
        if tier < self.hops:
            columns.append(self.x(every, tier))
            factors.append(-values)
        if slowest is not None:
            columns.append(np.array([self.slowest]))
            factors.append(np.array([slowest]))
            if tier == 0:
                columns.append(np.array([self.start]))
                factors.append(np.array([self.table.problem.start_s]))
        self.rows.one(np.concatenate(columns), np.concatenate(factors), upper)

    def bounds(self) -> Any:
        from scipy.optimize import Bounds

        return Bounds(self.low, self.high)

    def constraints(self, barred: Iterable[tuple[int, ...]]) -> list[Any]:
        """The rows, and one for each barred labelling: some x differs from it."""
        apart = _Rows()
        for labels in barred:
            beyond = np.array(labels)[:, None] > np.arange(self.hops)
            sign = np.where(beyond.reshape(-1), 1.0, -1.0)
            apart.one(np.arange(self.up), sign, float(beyond.sum()) - 1)
        return [rows.constraint(len(self.cost)) for rows in (self.rows, apart) if rows.count]

    def labels(self, x: Array) -> Array:
        """i64[n] of a solution."""
        beyond = np.round(x[: self.up]).reshape(-1, self.hops)
        return np.asarray(beyond.sum(axis=1), np.int64)
