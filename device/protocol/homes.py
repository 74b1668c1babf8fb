"""A device's homes, as orders name them: numbers of edges."""

from __future__ import annotations

from ...core.wire.journal_pb2 import Homes
from ...core.wire.link_pb2 import NODE_CLOUD, NODE_EDGE, Address


def edge_of(home: Address) -> int:
    """A home's number. The cloud gathers as edge 0."""
    return 0 if home.tier == NODE_CLOUD else int(home.number)


def edges_of(order: Homes) -> list[int]:
    """The homes' numbers, each once; empty where one is neither an edge nor the cloud."""
    numbers = [edge_of(h) for h in order.homes]
    known = all(h.tier in (NODE_EDGE, NODE_CLOUD) for h in order.homes)
    return list(dict.fromkeys(numbers)) if known else []
