"""The masked sum of a cohort's vectors, by a whole session of secure aggregation in one process.

The very sessions of device and coordinator (`core.privacy.secagg`), with no network between them.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping

import numpy as np

from ...core.privacy.mechanisms import ring
from ...core.privacy.mechanisms.ring import RingPlan
from ...core.privacy.secagg import masks
from ...core.privacy.secagg.client import ClientSession, ClientState
from ...core.privacy.secagg.member_identity import SimulatedIdentity
from ...core.privacy.secagg.secure_errors import SecureError
from ...core.privacy.secagg.server import ServerSession, ServerState
from ...core.protocol.ports import Vector
from ...core.wire.round_pb2 import Task

#: Masks by AES-CTR.
SUITE = 1
#: What the session counts on: devices that work together against the others, and that fall silent.
CORRUPT, DROPOUT = 0.1, 0.3
#: Devices in a sum: fewer would learn about one another.
COHORT_MIN = 3


def secure_sum(
    vectors: Mapping[int, Vector],
    plan: RingPlan,
    seed: int,
    number: int,
    silent: Collection[int] = (),
) -> Vector:
    """The sum of the vectors of the devices that are not silent, u32[L]; what each sent was masked.

    vectors: by device, u32[plan.length]. number: of the round: masks are bound to it. silent:
    devices that have given keys and shares, and whose update never comes. Raises SecureError where
    the sum cannot be unmasked, as with fewer than three devices.
    """
    task = Task(run=1, round=number, attempt=1, time_ms=1, rng_key=bytes(8))
    task.weights.digest = number.to_bytes(32, "big")
    task.bundle.digest = bytes(32)
    task.ring.CopyFrom(plan.message())
    task.secure.suite, task.secure.cohort_min = SUITE, COHORT_MIN
    task.secure.corrupt, task.secure.dropout = CORRUPT, DROPOUT
    server = ServerSession(ServerState(), SimulatedIdentity(0, seed))
    clients = {
        device: ClientSession(ClientState(device), SimulatedIdentity(device, seed))
        for device in sorted(vectors)
    }
    server.begin(task, clients)
    for device, client in clients.items():
        # A simulated device's secret follows from the seed; a real one's is from its system.
        master = random.Random(f"split {seed} {number} {device}").randbytes(32)
        server.add_bundle(client.begin(task, master))
    for device, cohort in server.close_keys().items():
        server.add_shares(clients[device].take_cohort(cohort))
    total = ring.zeros(plan)
    here = []
    for device, delivery in server.close_shares().items():
        clients[device].take_delivery(delivery)
        if device not in silent:
            ring.add(total, clients[device].mask(np.array(vectors[device])))
            here.append(device)
    for device, survivors in server.survivors(here).items():
        for other, request in server.add_consent(clients[device].take_survivors(survivors)).items():
            server.add_unmask(clients[other].take_unmask(request))
    if not server.is_ready:
        raise SecureError("few", server.explain())
    masks.add(total, server.keys(), SUITE)
    return total
