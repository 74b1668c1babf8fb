"""Simulated edges, those that help (`core.secagg.helper`) with a key that follows from the seed."""

from __future__ import annotations

import hashlib

from ..core.secagg.helper import Helper, Trust
from ..core.secagg.identity import SimulatedIdentity
from ..core.wire.secure_pb2 import SecurePlan
from ..edge.machine import EdgeMachine
from ..edge.state import EdgePolicy, EdgeState


def helpers_of(plan: SecurePlan | None) -> list[int]:
    """The edges that hold what unmasks. They gather no devices of their own."""
    return [] if plan is None else [card.edge for card in plan.helpers]


def trust_in(plan: SecurePlan | None) -> Trust:
    """That of a device whose owner lets them help."""
    return Trust(dict.fromkeys(helpers_of(plan), b""))


def edge_of(
    state: EdgeState, policy: EdgePolicy, plan: SecurePlan | None, seed: int
) -> EdgeMachine:
    """An edge's machine. One that has lost its disk has lost its key with it."""
    if state.edge not in helpers_of(plan):
        return EdgeMachine(state, policy)
    named = f"delian simulated helper {seed} {state.edge} {state.incarnation}"
    private = hashlib.sha256(named.encode()).digest()
    identity = SimulatedIdentity(state.edge, seed, "edge")
    return EdgeMachine(state, policy, Helper(state.edge, private, identity))
