"""The cheapest placement as a minimum s-t cut, exact, for any number of tiers.

Item i has a binary variable x(i, k) for each hop k: whether it runs beyond it, t(i) > k. A variable
that is 0 is on the source's side of a cut, one that is 1 on the sink's, and an edge a -> b of
capacity c costs c where a is 0 and b is 1. So every part of the model is an edge, once for each hop
(Ishikawa, "Exact optimization for Markov random fields with convex priors", PAMI 2003; for
partitions Hu et al., "Dynamic adaptive DNN surgery for inference acceleration on the edge" (DADS),
INFOCOM 2019). s is always 0, and is x(i, h); t is always 1, and is x(i, -1):

    i runs on tier k                    x(i, k) -> x(i, k-1), what it costs there
    t(i) > k only if t(i) > k - 1       x(i, k-1) -> x(i, k), infinite
    v goes up, and pays once however    x(p, k) -> a, what v costs on hop k    (an input: p is s);
      many read it above                a -> x(c, k), infinite, for each consumer c
    work never comes back               x(c, k) -> x(p, k), infinite
    with returns: v goes down           b -> x(p, k), what it costs;  x(c, k) -> b, infinite
    v crosses both hops, and in the     x(p, 0) -> x(c, 1), what that costs beyond the two hops'
      one wire that suits both best     least; likewise down          (with aux as above)
    v is a result                       what an item on tier t costs takes in the way down
    a latency, once                     u -> x(i, k), infinite, for items that none reads;
                                        s -> u, the latency       (likewise for makers of results)
    with returns: once both ways        the same for all items, twice the latency
    the device's start, once            d -> t, start_s;  x(i, 0) -> d, infinite

Where work never comes back, an item is also bound to an ancestor some generations before it. That
follows already, but makes paths through a deep network short, and Dinic's flow several times as
fast. It runs the way of the data, from what stays to what goes: the other way around it took up to
ten times as long.

Items that are tied are one item. Costs are sums that every term keeps submodular, so the least cut
is the least cost: nothing is approximated. Of equal cuts the one with the fewest items above wins.

With returns a hop's latency is paid with each message, and how many there are is no such sum. The
network counts one turn, so its least cost is a bound, and exact for cuts of one turn. With `share`
every tensor that crosses pays that share of a latency instead, which finds cuts of few turns
(`flow`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...compiler.ir import Array
from .problem import PlacementError
from .problem_table import Table

#: Nodes: the source, always 0; the sink, always 1; from here the variables x(i, k), then others.
ZERO, ONE, FIRST = 0, 1, 2
#: Of generations that a shortcut spans: 16 of them.
_DOUBLINGS = 4


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A graph; each edge's reverse is an edge, too. Node ZERO is the source, ONE the sink."""

    indptr: Array
    """Integers [nodes + 1]: the edges of node a are indptr[a]:indptr[a+1]."""
    heads: Array
    """Integers [edges]: the node where an edge ends; a node's edges are sorted by it."""
    capacity: Array
    """f64[edges], from 0, inf allowed."""

    @classmethod
    def of(cls, tails: Array, heads: Array, capacity: Array, nodes: int) -> Graph:
        """Parallel edges become one."""
        from scipy.sparse import coo_array

        ends = np.concatenate([tails, heads]), np.concatenate([heads, tails])
        both = np.concatenate([capacity, np.zeros(len(capacity))])
        rows = coo_array((both, ends), shape=(nodes, nodes)).tocsr()
        rows.sum_duplicates()
        return cls(rows.indptr, rows.indices, rows.data)

    @property
    def nodes(self) -> int:
        return len(self.indptr) - 1


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """A problem's graph."""

    graph: Graph
    """The graph whose least cuts are the problem's."""
    group: Array
    """i64[n]: an item's number among groups that share a tier."""
    low: Array
    """i64[groups]: the least labels that break no rule."""
    high: Array
    """i64[groups]: the greatest labels that break no rule."""
    constant: float
    """Cost that all cuts share."""


def extremes(table: Table) -> tuple[Array, Array]:
    """The least and the greatest labels, i64[n] each, that break no rule (memory aside)."""
    network = build(table, table.allowed)
    return network.low[network.group], network.high[network.group]


def build(table: Table, allowed: Array, share: float = 0.0) -> Network:
    """The network of a table, in whole-array steps.

    share: of a problem with returns, what a crossing pays of its hop's latency; 0: a turn pays it.
    """
    problem, hops = table.problem, len(table.problem.hops)
    latency = np.array([hop.latency_s for hop in problem.hops]) * problem.objective.latency
    own = share * latency
    group, count = groups(table)
    made = table.producer >= 0
    maker = np.where(made, group[table.producer * made], -1) if len(group) else table.producer
    source, reader = maker[table.read_tensor], group[table.read_item]
    cost, low, high = _unary(table, allowed, own, group, count, maker, source, reader)
    base = cost.min(axis=1, initial=math.inf)
    cost -= base[:, None]
    edges = _Edges(hops, FIRST + count * hops)
    item = np.arange(count)
    for k in range(hops + 1):
        one = edges.x(item, k - 1) if k else np.full(count, ONE)
        zero = edges.x(item, k) if k < hops else np.full(count, ZERO)
        edges.add(one, zero, cost[:, k])
    for k in range(1, hops):
        edges.add(edges.x(item, k), edges.x(item, k - 1), math.inf)
    across = source != reader
    v, source, reader = table.read_tensor[across], source[across], reader[across]
    inner = source >= 0
    for k in range(hops):
        below, above = edges.x(source, k), edges.x(reader, k)
        edges.pays_once(v, above, below, table.up.cost[:, k] + own[k], up=True)
        if problem.returns:
            back = inner & ~table.result[v]
            cost_down = table.down.cost[:, k] + own[k]
            edges.pays_once(v[back], below[back], above[back], cost_down, up=False)
        else:
            edges.add(below[inner], above[inner], math.inf)
    if hops > 1:  # all of them
        ends = edges.x(reader, hops - 1), edges.x(source, 0)
        edges.pays_once(v, *ends, table.up.more, up=True)
        if problem.returns:
            back = inner & ~table.result[v]
            ends = edges.x(source[back], hops - 1), edges.x(reader[back], 0)
            edges.pays_once(v[back], *ends, table.down.more, up=False)
    if not problem.returns:
        above, item = _ancestors(table)
        for k in range(hops):
            edges.add(edges.x(group[above], k), edges.x(group[item], k), math.inf)
        last = np.setdiff1d(np.arange(len(group)), table.producer[table.read_tensor])
        for k in range(hops):
            for items in (group[last], group[table.makes_result]):
                edges.once(k, items, float(latency[k]))
    elif not share:
        for k in range(hops):
            edges.once(k, item, 2 * float(latency[k]))
    starts = np.setdiff1d(np.arange(len(group)), [] if problem.returns else table.fed)
    edges.unless_all(group[starts], problem.start_s * problem.objective.latency)
    return Network(edges.graph(), group, low, high, float(base.sum()))


class _Edges:
    """Collects edges; makes a network of them.

    Node x(i, -1) and beyond are the caller's matter; a maker of -1, a program input, is never
    beyond a hop.
    """

    def __init__(self, hops: int, nodes: int) -> None:
        self.hops, self.nodes = hops, nodes
        self.parts: list[tuple[Array, Array, Array]] = []

    def x(self, item: Array, hop: int) -> Array:
        return np.where(item >= 0, FIRST + item * self.hops + hop, ZERO)

    def add(self, one: Array, zero: Array, capacity: Array | float) -> None:
        """The cut pays `capacity` where the one node is 1 and the other 0."""
        keep = np.broadcast_to(np.asarray(capacity, np.float64) > 0, one.shape)
        if keep.any():
            costs = np.broadcast_to(np.asarray(capacity, np.float64), one.shape)
            self.parts.append((zero[keep], one[keep], costs[keep]))

    def pays_once(self, v: Array, one: Array, zero: Array, cost: Array, up: bool) -> None:
        """For each read of tensor v, which `add` would be for: but the cut pays cost[v] once.

        The node that is the same for all reads of v is the zero if up, else the one.
        """
        paid = cost[v] > 0
        v, one, zero = v[paid], one[paid], zero[paid]
        several = np.bincount(v, minlength=len(cost))
        lone = several[v] == 1
        self.add(one[lone], zero[lone], cost[v[lone]])
        shared = np.flatnonzero(several > 1)
        if not len(shared):
            return
        place = np.zeros(len(cost), np.int64)
        place[shared] = self.nodes + np.arange(len(shared))
        self.nodes += len(shared)
        v, one, zero = v[~lone], one[~lone], zero[~lone]
        end = np.zeros(len(cost), np.int64)
        end[v] = zero if up else one
        if up:
            self.add(one, place[v], math.inf)
            self.add(place[shared], end[shared], cost[shared])
        else:
            self.add(end[shared], place[shared], cost[shared])
            self.add(place[v], zero, math.inf)

    def once(self, hop: int, items: Array, cost: float) -> None:
        """`cost` if any of these items is beyond the hop."""
        if len(items) and cost > 0:
            self.add(self.x(items, hop), np.full(len(items), self.nodes), math.inf)
            self.add(np.array([self.nodes]), np.array([ZERO]), cost)
            self.nodes += 1

    def unless_all(self, items: Array, cost: float) -> None:
        """`cost` unless all of these items are beyond the first hop."""
        if len(items) and cost > 0:
            self.add(np.array([ONE]), np.array([self.nodes]), cost)
            self.add(np.full(len(items), self.nodes), self.x(items, 0), math.inf)
            self.nodes += 1

    def graph(self) -> Graph:
        tails, heads, costs = (
            np.concatenate([part[i] for part in self.parts] or [np.zeros(0)]) for i in range(3)
        )
        return Graph.of(tails.astype(np.int64), heads.astype(np.int64), costs, self.nodes)


def _ancestors(table: Table) -> tuple[Array, Array]:
    """Pairs of items (a, i), i64 each: a is some generations before i, along the latest makers."""
    made = table.producer[table.read_tensor] >= 0
    item = np.arange(len(table.seconds))
    before = np.full(len(item), -1)
    np.maximum.at(before, table.read_item[made], table.producer[table.read_tensor[made]])
    before = np.where(before < 0, item, before)
    for _ in range(_DOUBLINGS):
        before = before[before]
    return before[before < item], item[before < item]


def groups(table: Table) -> tuple[Array, int]:
    """Each item's group, i64[n], and the number of groups.

    The items of a group share a tier: ties join them and, without returns, what lies between them.
    """
    n, ties = len(table.seconds), table.ties
    if not len(ties):
        return np.arange(n), n
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    source, reader = table.producer[table.read_tensor], table.read_item
    above = np.flatnonzero((source >= 0) & (not table.problem.returns))
    tails = np.concatenate([ties[:, 0], ties[:, 1], source[above]])
    heads = np.concatenate([ties[:, 1], ties[:, 0], reader[above]])
    joined = coo_array((np.ones(len(tails)), (tails, heads)), shape=(n, n))
    count, group = connected_components(joined, directed=True, connection="strong")
    return group.astype(np.int64), int(count)


def _unary(
    table: Table,
    allowed: Array,
    own: Array,
    group: Array,
    count: int,
    maker: Array,
    source: Array,
    reader: Array,
) -> tuple[Array, Array, Array]:
    """f64[groups,t]: what a group on a tier costs by itself; and its least and greatest labels.

    own: f64[h], what a crossing costs besides the table's.
    """
    cost = np.zeros((count, table.problem.tiers))
    np.add.at(cost, group, np.where(allowed, table.unary(), math.inf))
    wanted = np.flatnonzero(table.result & (maker >= 0))
    way_down = np.cumsum(table.down.cost[wanted] + own, axis=1)
    way_down[:, -1] += table.down.more[wanted]
    np.add.at(cost[:, 1:], maker[wanted], way_down)
    may = np.isfinite(cost)
    nowhere = may.sum(axis=1) == 0
    if nowhere.any():
        tied = np.flatnonzero(nowhere[group])[:2].tolist()
        raise PlacementError(
            f"items {' and '.join(map(str, tied))} must share a tier, and there is none for both",
            "see ties, pins, ceilings, and tensors without a wire",
        )
    one_way = (source >= 0) & (source != reader)
    if table.problem.returns:
        one_way[:] = False
    pairs = source[one_way], reader[one_way]
    low = _least(may, *pairs)
    high = may.shape[1] - 1 - _least(may[:, ::-1], pairs[1][::-1], pairs[0][::-1])
    at = np.arange(may.shape[1])
    cost[(at < low[:, None]) | (at > high[:, None])] = math.inf
    return cost, low, high


def _least(may: Array, before: Array, after: Array) -> Array:
    """The least labels i64[groups] with may[i, label(i)] and label(before) <= label(after).

    Pairs come in an order such that one pass is enough, unless ties run across it.
    """
    groups, tiers = may.shape
    following = np.full((groups, tiers + 1), tiers)
    for t in reversed(range(tiers)):
        following[:, t] = np.where(may[:, t], t, following[:, t + 1])
    least: Array = following[:, 0].copy()
    while (least[before] > least[after]).any():
        labels, after_of = least.tolist(), following.tolist()
        for i, j in zip(before.tolist(), after.tolist(), strict=True):
            if labels[j] < labels[i]:
                labels[j] = after_of[j][labels[i]]
                if labels[j] == tiers:
                    raise PlacementError(
                        "an item must run above one that reads what it makes",
                        "see pins and ceilings: without returns work only moves up",
                    )
        least = np.array(labels)
    return least
