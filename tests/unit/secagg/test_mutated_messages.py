"""Bytes that somebody has changed on the way: each side refuses them with SecureError, or takes
them for what they then say; nothing else is raised, and a sum that comes out is exact.
"""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
from delian.core.privacy.secagg.client import ClientSession, ClientState, Policy
from delian.core.privacy.secagg.logged import LogHead
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.privacy.secagg.server import ServerSession, ServerState
from delian.core.privacy.secagg.simulated_log import SimulatedLog, simulated_rules
from delian.core.protocol import snapshot
from google.protobuf.message import DecodeError
from support.secure_federation import ADDERS, SEED, TAKERS, Federation, make_task

VARIANTS = 8


def mutants(message, rng: random.Random):
    """Messages of the same kind: with a field changed, and with bytes changed where they still are
    a message.
    """
    whole = message.SerializeToString(deterministic=True)
    for _ in range(VARIANTS):
        bent = type(message).FromString(whole)
        change_field(bent, rng)
        yield bent
        data = bytearray(whole)
        at = rng.randrange(len(data))
        data[at : at + rng.choice((0, 1, 30))] = rng.randbytes(rng.choice((0, 1, 30)))
        try:
            yield type(message).FromString(bytes(data))
        except DecodeError:
            continue


def change_field(message, rng: random.Random) -> None:
    """Of one field, here or in what it holds: another value, or an entry more, fewer or moved."""
    field = rng.choice(message.DESCRIPTOR.fields)
    value = getattr(message, field.name)
    if isinstance(value, bytes):
        at = rng.randrange(len(value) + 1)
        extra = rng.randbytes(rng.choice((0, 1, 32)))
        setattr(message, field.name, value[:at] + extra + value[at + rng.choice((0, 1, 32)) :])
    elif isinstance(value, int | float):
        setattr(message, field.name, rng.choice((0, 1, int(value) + 1, 2**31 - 1)))
    elif hasattr(value, "DESCRIPTOR"):
        change_field(value, rng)
    elif value and hasattr(value[0], "DESCRIPTOR") and rng.random() < 0.5:
        change_field(rng.choice(value), rng)
    elif value:
        entries = list(value)
        taken = entries.pop(rng.randrange(len(entries)))
        for _ in range(rng.choice((0, 1, 2))):
            entries.insert(rng.randrange(len(entries) + 1), taken)
        message.ClearField(field.name)
        getattr(message, field.name).extend(entries)


@pytest.mark.parametrize("logged", [False, True], ids=["plain", "logged"])
@pytest.mark.parametrize("seed", range(4))
def test_either_side_survives_changed_messages(seed, logged):
    """Before every true message, changed ones are given to copies of the receiver. logged: devices
    ask for proofs of the certificate log, from a head that they know.
    """
    rng = random.Random(seed)
    devices = [5, 8, 11, 14]
    log = SimulatedLog(SEED, [1, *devices, *range(100, 120)]) if logged else None
    policy = Policy(log=simulated_rules(SEED)) if logged else Policy()
    federation = Federation(devices, policy=policy, log=log)
    for client in federation.clients.values():
        client.state.log = log.head(7) if logged else LogHead()
    tried = refused = 0
    up, down = federation.up, federation.down

    def try_up(message):
        nonlocal tried, refused
        for mutant in mutants(message, rng):
            state = snapshot.load(ServerState, snapshot.dump(federation.server.state))
            server = federation.serving(state)
            given = getattr(server, ADDERS[type(message)])(mutant)
            tried += 1
            refused += not given
            server.answer(mutant.device)
            server.explain()
        return up(message)

    def try_down(message):
        nonlocal tried, refused
        for mutant in mutants(message, rng):
            held = federation.clients[message.device].state
            state = snapshot.load(ClientState, snapshot.dump(held))
            client = ClientSession(state, SimulatedIdentity(message.device, SEED), policy)
            tried += 1
            try:
                getattr(client, TAKERS[type(message)])(mutant)
            except SecureError:
                refused += 1
                assert (state.secret == b"") == (state.phase in ("failed", "ended"))
        return down(message)

    federation.up, federation.down = try_up, try_down
    assert np.array_equal(federation.run(), federation.expected())
    assert tried > 200 and refused > tried * 0.7, (tried, refused)


@pytest.mark.parametrize("seed", range(4))
def test_a_changed_task_is_refused_or_is_a_session(seed):
    rng = random.Random(seed)
    began = 0
    for task in [m for _ in range(30) for m in mutants(make_task(), rng)]:
        client = ClientSession(ClientState(5), SimulatedIdentity(5, SEED))
        server = ServerSession(ServerState(), SimulatedIdentity(0, SEED))
        for begin in (
            partial(client.begin, task, bytes(32)),
            partial(server.begin, task, range(9)),
        ):
            try:
                begin()
            except SecureError:
                continue
            began += 1
    assert began > 50
