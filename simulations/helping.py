"""Simulated edges, those that help (`core.secagg.helper`) with a key that follows from the seed;
and what takes masks off a sum.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from ..core.ports import RunProgram, Vector
from ..core.privacy import noising
from ..core.secagg import masks
from ..core.secagg.helper import Helper, Trust
from ..core.secagg.identity import SimulatedIdentity
from ..core.secagg.simulated_log import simulated_rules
from ..core.streams import Streams
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
    """An edge's machine. One that has lost its disk has lost its key with it. plan: of the masks;
    where there are some, tasks are signed.
    """
    if plan is None:
        return EdgeMachine(state, policy)
    identity = SimulatedIdentity(state.edge, seed, "edge")
    if state.edge not in helpers_of(plan):
        return EdgeMachine(state, policy, identity=identity)
    named = f"delian simulated helper {seed} {state.edge} {state.incarnation}"
    private = hashlib.sha256(named.encode()).digest()
    helper = Helper(state.edge, private, identity, rules=simulated_rules(seed))
    return EdgeMachine(state, policy, helper, identity)


def unmasked(effect: RunProgram, streams: Streams) -> Vector:
    """The sum that an `unmask` gives, with the noise that the coordinator adds where it does."""
    total, keys, suite, *noised = effect.arguments
    plain = np.array(total, np.uint32)
    masks.add(plain, keys, suite)
    for plan in noised:
        words = [streams.word("central noise", effect.ticket, i) for i in range(4)]
        noising.add(plain, plan, struct.pack("<4Q", *words))
    return plain
