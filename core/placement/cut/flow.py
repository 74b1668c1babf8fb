"""The minimum cut of a placement's network: exact, though scipy's maximum flow is of 32 bits.

Capacities must be whole: with floats, residues of rounding decide which side a node is on. scipy's
flow is of 32 bits, so the cut is found in steps: costs are scaled such that the best placement
known is 2^29, and rounded down. The flow's value is then a lower bound of the least cost, the cut's
labels, priced by the model, an upper one. While these differ by more than TOLERANCE of the cost,
the residual network is scaled up by as much as the gap allows, and the flow goes on from there.
"""

from __future__ import annotations

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
#: Each step gains some 14 bits; beyond a float's 53 there is nothing to gain.
_STEPS_MAX = 4


def minimum(table: Table, allowed: Array | None = None) -> Placement:
    """The cheapest placement by latency and energy, without regard to memory and throughput.

    allowed: bool[n,t], instead of the table's. Raises PlacementError if rules contradict.
    """
    network = build(table, table.allowed if allowed is None else allowed)
    return cut(table, network)


def cut(table: Table, network: Network) -> Placement:
    """The minimum cut of the table's network, as a placement with its bound."""
    best = min(
        (priced(table, ends[network.group]) for ends in (network.low, network.high)),
        key=lambda found: linear(table, found),
    )
    graph = network.graph
    scale, flow = 0.0, np.zeros(len(graph.heads), np.int64)
    bound = network.constant
    for _ in range(_STEPS_MAX):
        gap = linear(table, best) - bound
        if gap <= TOLERANCE * linear(table, best):
            break
        scale, flow = _rescaled(scale, flow, _SCALED / gap)
        flow += _augment(graph, _residual(graph, scale, flow))
        value = int(flow[graph.indptr[ZERO] : graph.indptr[ZERO + 1]].sum())
        bound = max(bound, network.constant + value / scale)
        side = _beyond(graph, _residual(graph, scale, flow))
        found = priced(table, _labels(network, side, table.problem.tiers))
        if linear(table, found) <= linear(table, best):
            best = found
    cost = linear(table, best)
    bound = min(bound, cost)
    return replace(best, bound=bound, optimal=cost - bound <= TOLERANCE * cost)


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
