"""Simulated helper edges, and what programs of edges and the coordinator give besides models.

Each helper's key (`core.privacy.secagg.helper`) follows from the seed.
"""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import numpy as np

from ...core.privacy.mechanisms import noise_mechanism
from ...core.privacy.secagg import masks
from ...core.privacy.secagg.helper import Helper, Trust, masks_of
from ...core.privacy.secagg.member_identity import SimulatedIdentity
from ...core.privacy.secagg.simulated_log import simulated_rules
from ...core.protocol.ports import SECOND, Outcome, ProgramStopped, RunProgram, Vector
from ...core.protocol.random_streams import Streams
from ...core.wire.secure_pb2 import SecurePlan
from ...edge.protocol.edge_state import EdgePolicy, EdgeState
from ...edge.protocol.machine import EdgeMachine

if TYPE_CHECKING:
    from ..resume.history import History
    from .nodes import Host
    from .split_rounds import SplitRounds


#: What programs of the coordinator, a helper and an edge take in virtual time.
TAKES_NS = {"server_update": SECOND // 10, "unmask": SECOND // 10} | {
    "masks": SECOND // 20,
    "split_begin": 0,  # a device that is faster asks again
    "split_end": SECOND // 20,
}


def helpers_of(plan: SecurePlan | None) -> list[int]:
    """The edges that hold what unmasks. They gather no devices of their own."""
    return [] if plan is None else [card.edge for card in plan.helpers]


def trust_in(plan: SecurePlan | None) -> Trust:
    """That of a device whose owner lets them help."""
    return Trust(dict.fromkeys(helpers_of(plan), b""))


def edge_of(
    state: EdgeState, policy: EdgePolicy, plan: SecurePlan | None, seed: int
) -> EdgeMachine:
    """An edge's machine.

    One that has lost its disk has lost its key with it. plan: of the masks; where there are some,
    tasks are signed.
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


def sum_of(
    effect: RunProgram,
    host: Host,
    history: History,
    splits: SplitRounds | None,
    streams: Streams,
) -> Outcome | ProgramStopped:
    """What a program of the coordinator's or an edge's gives, but for the next model."""
    if effect.program == "unmask":
        return history.opened(lambda: Outcome(unmasked(effect, streams)))
    if effect.program == "masks":
        return Outcome(masks_of(*effect.arguments))
    assert splits is not None
    weights = host.store[effect.blobs[1]].weights if effect.blobs else None
    return splits.answer(host.node.number, effect, weights)


def unmasked(effect: RunProgram, streams: Streams) -> Vector:
    """The sum that an `unmask` gives, with the noise that the coordinator adds where it does."""
    total, keys, suite, *noised = effect.arguments
    plain = np.array(total, np.uint32)
    masks.add(plain, keys, suite)
    for plan in noised:
        words = [streams.word("central noise", effect.ticket, i) for i in range(4)]
        noise_mechanism.add(plain, plan, struct.pack("<4Q", *words))
    return plain
