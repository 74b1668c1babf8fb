"""The minimum cut of a placement's network: exact, though scipy's maximum flow is of 32 bits.

Capacities must be whole: with floats, residues of rounding decide which side a node is on. scipy's
flow is of 32 bits, so the cut is found in steps: costs are scaled such that the best placement
known is 2^29, and rounded down. The flow's value is then a lower bound of the least cost, the cut's
labels, priced by the model, an upper one. While these differ by more than TOLERANCE of the cost,
the residual network is scaled up by as much as the gap allows, and the flow goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ...compiler.ir import Array
from .flow_network import FIRST, ONE, ZERO, Graph, Network, build
from .price import priced
from .problem import Placement
from .problem_table import Table

#: Of the cost: what cost and bound may differ by in an optimal placement.
TOLERANCE = 1e-9
#: Scaled, the best known cost, and what no finite capacity reaches. Sums of two stay below 2^31.
_SCALED, _INFINITE = 1 << 29, 1 << 30
#: A scaled capacity, before it is clamped: within 64 bits.
_WHOLE_MAX = float(1 << 61)
#: Of latencies, that are tried: each takes as long as a cut.
SHARES_MAX = 3
#: Each step gains some 14 bits; beyond a float's 53 there is nothing to gain.
_STEPS_MAX = 4


def minimum(table: Table, allowed: Array | None = None) -> Placement:
    """The cheapest placement by latency and energy, without regard to memory and throughput.

    allowed: bool[n,t], instead of the table's. Raises PlacementError if rules contradict.

    With returns, where the least by one turn (`flow_network`) has several, it is the cheapest of
    that, of the least by shares of latencies, and of all lowest labels; it may not be optimal. Each
    share is what a tensor has in the messages of the cut before it.
    """
    where = table.allowed if allowed is None else allowed
    network = build(table, where)
    found = cut(table, network, _counted(table))
    if found.optimal or not table.problem.returns:
        return found
    known = [found, priced(table, network.low[network.group])]
    share, tried = _share(table, found), {0.0}
    while share not in tried and len(tried) <= SHARES_MAX:
        tried.add(share)
        known.append(cut(table, build(table, where, share), _counted(table, share)))
        share = _share(table, known[-1])
    best = min(known, key=lambda one: linear(table, one))
    return _proved(table, best, found.bound)


def _crossed(table: Table, found: Placement) -> float:
    """A latency for each tensor that crosses a hop."""
    return math.fsum(table.problem.hops[c.hop].latency_s for c in found.crossings)


def _share(table: Table, found: Placement) -> float:
    """Of a latency, what each tensor has in a placement's messages; 0: nothing crosses."""
    crossed = _crossed(table, found)
    return math.fsum(found.fixed_seconds) / crossed if crossed else 0.0


def _counted(table: Table, share: float = 0.0) -> Callable[[Placement], float]:
    """What a network says that a placement costs."""
    problem = table.problem

    def cost(found: Placement) -> float:
        if not problem.returns:
            return linear(table, found)
        passed = problem.hops[: max(found.labels, default=0)]
        turn = 2 * math.fsum(hop.latency_s for hop in passed)
        said = share * _crossed(table, found) if share else turn
        paid = math.fsum(found.fixed_seconds)
        return linear(table, found) + problem.objective.latency * (said - paid)

    return cost


def cut(table: Table, network: Network, linear: Callable[[Placement], float]) -> Placement:
    """The minimum cut of the table's network, as a placement with its bound.

    linear: what the network says that a placement costs.
    """
    best = min(
        (priced(table, ends[network.group]) for ends in (network.low, network.high)), key=linear
    )
    graph = network.graph
    scale, flow = 0.0, np.zeros(len(graph.heads), np.int64)
    bound = network.constant
    for _ in range(_STEPS_MAX):
        gap = linear(best) - bound
        if gap <= TOLERANCE * linear(best):
            break
        scale, flow = _rescaled(scale, flow, _SCALED / gap)
        flow += _augment(graph, _residual(graph, scale, flow))
        value = int(flow[graph.indptr[ZERO] : graph.indptr[ZERO + 1]].sum())
        bound = max(bound, network.constant + value / scale)
        side = _beyond(graph, _residual(graph, scale, flow))
        found = priced(table, _labels(network, side, table.problem.tiers))
        if linear(found) <= linear(best):
            best = found
    return _proved(table, best, min(bound, linear(best)))


def _proved(table: Table, found: Placement, bound: float) -> Placement:
    """A placement with a bound of the least cost."""
    cost = linear(table, found)
    bound = min(bound, cost)
    return replace(found, bound=bound, optimal=cost - bound <= TOLERANCE * cost)


def linear(table: Table, found: Placement) -> float:
    """The part of the objective that a cut can carry: all but the slowest stage."""
    weigh = table.problem.objective
    return weigh.latency * found.latency + weigh.energy * found.joules


def _rescaled(scale: float, flow: Array, wanted: float) -> tuple[float, Array]:
    """A scale of about `wanted` to the model's unit, and the flow so far in it."""
    if not scale:
        return wanted, flow
    steps = max(1, int(wanted / scale))
    return scale * steps, flow * steps


def _residual(graph: Graph, scale: float, flow: Array) -> Array:
    """Whole residual capacities i64[edges], clamped to more than a flow can use."""
    whole = np.floor(np.minimum(graph.capacity * scale, _WHOLE_MAX)).astype(np.int64)
    left = np.minimum(whole - flow, _INFINITE)
    return np.where(np.isinf(graph.capacity), _INFINITE, left)


def _augment(graph: Graph, residual: Array) -> Array:
    """The maximum flow over residual capacities, i64[edges], antisymmetric."""
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_flow

    shape = (graph.nodes, graph.nodes)
    rows = csr_matrix((residual.astype(np.int32), graph.heads, graph.indptr), shape=shape)
    return np.asarray(maximum_flow(rows, ZERO, ONE).flow.data, np.int64)


def _beyond(graph: Graph, residual: Array) -> Array:
    """bool[nodes] that still reach the sink: the minimum cut's smallest side of ones."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    left = residual > 0
    ends = np.concatenate([[0], np.cumsum(left)])[graph.indptr]
    heads, shape = graph.heads[left], (graph.nodes, graph.nodes)
    back = csr_array((np.ones(len(heads)), heads, ends), shape=shape).T.tocsr()
    beyond = np.zeros(graph.nodes, bool)
    beyond[breadth_first_order(back, ONE, return_predecessors=False)] = True
    return beyond


def _labels(network: Network, side: Array, tiers: int) -> Array:
    """i64[n]: an item's tier is the number of its variables that are 1."""
    count = len(network.low)
    beyond = side[FIRST : FIRST + count * (tiers - 1)].reshape(count, tiers - 1)
    return np.asarray(beyond.sum(axis=1)[network.group], np.int64)
