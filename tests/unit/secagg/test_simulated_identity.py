"""What simulated devices remember for each other changes nothing that they say."""

from __future__ import annotations

import hashlib

import pytest
from delian.core.privacy.secagg import kdf, member_identity
from delian.core.privacy.secagg.client import ClientSession, ClientState
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.privacy.secagg.server import ServerSession, ServerState
from delian.core.wire.round_pb2 import Task


def secrets(count):
    return [hashlib.sha256(bytes([number])).digest() for number in range(count)]


@pytest.mark.parametrize("most", [2**18, 5])
def test_both_ends_of_a_pair_have_the_secret_that_they_would_work_out(most, monkeypatch):
    monkeypatch.setattr(member_identity, "AGREED_MAX", most)
    monkeypatch.setattr(member_identity, "_agreed", {})
    own = [SimulatedIdentity(number, 1) for number in range(5)]
    keys = secrets(5)
    public = [kdf.public_key(secret) for secret in keys]
    for _ in range(2):
        for number, secret in enumerate(keys):
            peers = [*public[:number], *public[number + 1 :]]
            assert own[number].agree(secret, peers) == kdf.agree(secret, peers)
            assert len(member_identity._agreed) <= most


def test_each_secret_is_worked_out_once(monkeypatch):
    monkeypatch.setattr(member_identity, "_agreed", {})
    asked = []
    plain = kdf.exchanged
    monkeypatch.setattr(kdf, "exchanged", lambda s, p: asked.extend(p) or plain(s, p))
    keys = secrets(4)
    public = [kdf.public_key(secret) for secret in keys]
    for number, secret in enumerate(keys):
        SimulatedIdentity(number, 1).agree(secret, [*public[:number], *public[number + 1 :]])
    assert len(asked) == 4 * 3 // 2


def test_a_key_that_is_none_is_refused():
    with pytest.raises(SecureError):
        SimulatedIdentity(1, 1).agree(secrets(1)[0], [bytes(32)])


def test_a_signature_is_remembered_as_what_it_is():
    one, two = SimulatedIdentity(1, 1), SimulatedIdentity(2, 1)
    said = one.sign(b"said")
    for _ in range(2):
        assert two.verify(1, b"", b"said", said)
        assert not two.verify(2, b"", b"said", said)
        assert not two.verify(1, b"", b"sad", said)
        assert not two.verify(1, b"", b"said", two.sign(b"said"))
        assert not two.verify(1, b"", b"said", bytes(81))
        assert not SimulatedIdentity(2, 2).verify(1, b"", b"said", said)


def test_the_coordinator_makes_a_step_s_messages_as_they_are_read():
    task = Task(run=1, round=1, attempt=1, rng_key=bytes(8))
    task.weights.digest = task.bundle.digest = bytes(32)
    task.ring.clip, task.ring.clients_max, task.ring.bits, task.ring.dimension = 1.0, 9, 32, 3
    task.secure.suite, task.secure.cohort_min = 1, 3
    task.secure.corrupt, task.secure.dropout = 0.1, 0.1
    server = ServerSession(ServerState(), SimulatedIdentity(0, 1))
    server.begin(task, [4, 8, 6])
    for device in (4, 6, 8):
        session = ClientSession(ClientState(device), SimulatedIdentity(device, 1))
        assert server.add_bundle(session.begin(task, bytes([device]) * 32))
    told = server.close_keys()
    assert list(told) == [4, 6, 8] and len(told) == 3 and 5 not in told
    assert told[6] == server.answer(6) and told[6] is not told[6]
    with pytest.raises(KeyError):
        told[5]
