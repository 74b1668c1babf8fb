"""A flow network with fewer nodes and the same minimum cut: what cannot be parted is joined.

If an edge v -> w carries at least as much as all other edges into v together, a cut with v on the
source's side and w on the sink's does not lose by taking v over as well. If it carries more than
all other edges out of w, such a cut loses nothing by taking w along. So the minimum cut with the
fewest nodes at the source cuts neither edge, and they may be infinite, all of them at once. Nodes
that infinite edges join both ways are one node; what the source reaches by them is the source, and
what reaches the sink is the sink. In a network of layers this joins neighbours wherever cutting
elsewhere is better: a chain shrinks to the few layers that are worth cutting at.
"""

from __future__ import annotations

import math

import numpy as np

from ..ir import Array
from .network import SINK, SOURCE, Graph

#: Rounds, and the share of nodes that must go for a round to have been worth it.
_ROUNDS_MAX, _WORTH = 5, 0.1
#: What rounding may hide in a difference of sums, of the sum.
_ROUNDING = 1e-12


def contracted(graph: Graph) -> tuple[Graph, Array]:
    """A smaller graph, and the node of it that each node became, i64[nodes]."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    node = np.arange(graph.nodes)
    for _ in range(_ROUNDS_MAX):
        tails, nodes = graph.tails, graph.nodes
        whole, every = _uncut(graph, tails), np.arange(nodes)
        ways = (
            np.concatenate([tails[whole], every, np.full(nodes, SINK)]),
            np.concatenate([graph.heads[whole], np.full(nodes, SOURCE), every]),
        )
        joined = coo_array((np.ones(len(ways[0]), np.int8), ways), shape=(nodes, nodes))
        count, part = connected_components(joined, directed=True, connection="strong")
        if count > (1 - _WORTH) * nodes:
            break
        ends = [int(part[SOURCE]), int(part[SINK])]
        number = np.empty(count, np.int64)
        number[np.setdiff1d(np.arange(count), ends)] = np.arange(len(ends), count)
        number[ends] = SOURCE, SINK
        part = number[part]
        tails, heads = part[tails], part[graph.heads]
        capacity = np.where(whole, math.inf, graph.capacity)
        kept = (tails != heads) & (capacity > 0)
        graph = Graph.of(tails[kept], heads[kept], capacity[kept], count)
        node = part[node]
    return graph, node


def _uncut(graph: Graph, tails: Array) -> Array:
    """bool[edges]: those that a minimum cut with the fewest nodes at the source does not cut."""
    capacity, heads = graph.capacity, graph.heads
    infinite = np.isinf(capacity)
    finite = np.where(infinite, 0.0, capacity)
    back, back_infinite = finite[graph.reverse], infinite[graph.reverse]
    slack = np.where(back > 0, _ROUNDING, 0.0)
    into, endless_in = _sums(heads, finite, infinite, graph.nodes)
    out, endless_out = _sums(tails, finite, infinite, graph.nodes)
    real = capacity > 0
    over = real & (tails != SOURCE) & (endless_in[tails] == back_infinite)
    over &= capacity >= into[tails] * (1 + slack) - back
    along = real & (heads != SINK) & (endless_out[heads] == back_infinite)
    along &= capacity > out[heads] * (1 + slack) - back
    return np.asarray(infinite | over | along)


def _sums(node: Array, finite: Array, infinite: Array, nodes: int) -> tuple[Array, Array]:
    """At each node: the finite capacities added up, and how many infinite ones there are."""
    return np.bincount(node, finite, nodes), np.bincount(node[infinite], minlength=nodes)
