"""Helper mode: one uplink, exact sums, and what an honest helper refuses to add up."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from delian.core import snapshot
from delian.core.secagg import helper, kdf
from delian.core.secagg.errors import SecureError
from delian.core.secagg.helper import Helpers, HelperSession, HelperState, SealedSeed
from delian.core.secagg.identity import SimulatedIdentity
from delian.core.secagg.transcript import Session
from secure_federation import SEED, make_task, master_of, update_of

DEVICES = [5, 8, 11, 14, 17]
PRIVATE = [bytes([number + 1]) * 32 for number in range(3)]
LENGTH = 17


def helpers_of(count=3, **changes) -> Helpers:
    keys = tuple(kdf.public_key(private) for private in PRIVATE[:count])
    return Helpers(Session.of(make_task(**changes)), keys)


def masked(device: int, helpers: Helpers, seed=SEED):
    identity = SimulatedIdentity(device, SEED)
    return helper.mask(
        update_of(device, LENGTH), helpers, device, master_of(device, seed), identity
    )


def session_of(number: int, helpers: Helpers) -> HelperSession:
    identity = SimulatedIdentity(0, SEED)
    return HelperSession(HelperState(number), helpers, PRIVATE[number], identity)


def filled(helpers: Helpers, devices=tuple(DEVICES)):
    """The masked updates of some devices, and each helper with their seeds."""
    sessions = [session_of(number, helpers) for number in range(len(helpers.keys))]
    vectors = {}
    for device in devices:
        vectors[device], sealed = masked(device, helpers)
        assert [s.add(share) for s, share in zip(sessions, sealed, strict=True)] == [True] * len(
            sessions
        )
    return vectors, sessions


def added(vectors) -> np.ndarray:
    total = np.zeros(LENGTH, np.uint32)
    for vector in vectors:
        total += vector
    return total


def refuses(call, reason: str) -> None:
    with pytest.raises(SecureError) as caught:
        call()
    assert caught.value.reason == reason


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("suite", [1, 2])
def test_the_sum_over_any_list_is_exact_whoever_else_has_spoken(count, suite):
    vectors, sessions = filled(helpers_of(count, suite=suite))
    for named in (DEVICES, DEVICES[1:4]):
        fresh = [
            HelperSession(
                HelperState(s.state.number, dict(s.state.seeds)),
                helpers_of(count, suite=suite),
                PRIVATE[s.state.number],
                SimulatedIdentity(0, SEED),
            )
            for s in sessions
        ]
        total = added(vectors[d] for d in named)
        helper.unmask(total, [s.total(named) for s in fresh])
        assert np.array_equal(total, added(update_of(d, LENGTH) for d in named))


def test_without_one_helper_s_sum_nothing_is_read():
    vectors, sessions = filled(helpers_of())
    total = added(vectors.values())
    helper.unmask(total, [s.total(DEVICES) for s in sessions[:2]])
    plain = added(update_of(d, LENGTH) for d in DEVICES)
    assert not np.any(total == plain)


def test_a_device_says_one_vector_and_eighty_bytes_a_helper():
    vector, sealed = masked(5, helpers_of())
    assert vector.shape == (LENGTH,) and vector.dtype == np.uint32
    assert [len(share.sealed) for share in sealed] == [80] * 3
    assert not np.any(vector == update_of(5, LENGTH))


def test_worked_out_again_the_vector_and_the_seeds_are_the_same():
    one, first = masked(5, helpers_of())
    other, second = masked(5, helpers_of())
    assert np.array_equal(one, other)
    assert first != second, "HPKE draws a key for each seal"
    sessions = [session_of(0, helpers_of()) for _ in range(2)]
    assert sessions[0].add(first[0]) and sessions[1].add(second[0])
    assert sessions[0].state.seeds == sessions[1].state.seeds


def test_other_masters_models_and_devices_give_other_masks():
    vectors = [
        masked(5, helpers_of())[0],
        masked(5, helpers_of(), seed=12)[0],
        masked(5, helpers_of(weights=b"x" * 32))[0],
        masked(5, helpers_of(attempt=2))[0],
        masked(5, helpers_of(2))[0],
    ]
    masks = [tuple(vector - update_of(5, LENGTH)) for vector in vectors]
    assert len(set(masks)) == len(masks)


def test_a_helper_answers_one_list_only():
    """Two lists that differ by one device would give that device's update away."""
    _, sessions = filled(helpers_of())
    first = sessions[0].total(DEVICES)
    assert np.array_equal(sessions[0].total(DEVICES), first)
    refuses(lambda: sessions[0].total(DEVICES[1:]), "equivocation")
    state = snapshot.load(HelperState, snapshot.dump(sessions[0].state))
    again = HelperSession(state, helpers_of(), PRIVATE[0], SimulatedIdentity(0, SEED))
    refuses(lambda: again.total(DEVICES[1:]), "equivocation")
    assert np.array_equal(again.total(DEVICES), first)


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ([5, 8], "small"),
        ([], "small"),
        ([5, 5, 8], "list"),
        ([8, 5, 11], "list"),
        ([5, 8, 99], "missing"),
    ],
)
def test_a_list_that_cannot_be_is_refused_and_the_right_one_is_still_answered(devices, reason):
    _, sessions = filled(helpers_of())
    refuses(lambda: sessions[0].total(devices), reason)
    assert sessions[0].state.named == []
    sessions[0].total(DEVICES)


def test_seeds_that_are_not_a_device_s_own_do_not_count():
    """A coordinator that could make devices up would need only one true one on its list."""
    _, sealed = masked(5, helpers_of())
    _, elsewhere = masked(5, helpers_of(attempt=2))
    share = sealed[0]
    forger = SimulatedIdentity(99, SEED)
    for bad in (
        dataclasses.replace(share, signature=b""),
        dataclasses.replace(share, signature=forger.sign(b"x")),
        dataclasses.replace(share, device=8),
        dataclasses.replace(share, certificate=b"certificate"),
        dataclasses.replace(share, sealed=share.sealed[:-1]),
        dataclasses.replace(share, sealed=bytes(80)),
        sealed[1],
        elsewhere[0],
    ):
        session = session_of(0, helpers_of())
        assert not session.add(bad)
        assert session.state.seeds == {}


def test_a_signed_seed_that_does_not_open_does_not_count():
    helpers = helpers_of()
    for sealed in (bytes(80), b"\xff" * 80, masked(5, helpers)[1][1].sealed):
        signed = helpers.about(b"share", 0, 5) + sealed
        share = SealedSeed(5, b"", sealed, SimulatedIdentity(5, SEED).sign(signed))
        assert not session_of(0, helpers).add(share)


def test_a_device_s_first_seed_counts():
    session = session_of(0, helpers_of())
    _, first = masked(5, helpers_of())
    _, second = masked(5, helpers_of(), seed=12)
    assert session.add(first[0])
    seeds = dict(session.state.seeds)
    assert session.add(second[0]) and session.state.seeds == seeds


@pytest.mark.parametrize(
    "keys", [[], PRIVATE[:1], [PRIVATE[0], PRIVATE[0]], [bytes([i]) * 32 for i in range(1, 18)]]
)
def test_helpers_are_at_least_two_and_different(keys):
    public = tuple(kdf.public_key(key) for key in keys)
    refuses(lambda: Helpers(Session.of(make_task()), public), "helpers")


def test_malformed_helpers_and_vectors_are_refused():
    session = Session.of(make_task())
    refuses(lambda: Helpers(session, (b"short", b"k" * 32)), "helpers")
    for number in (1, 3):  # another's place, and none
        refuses(lambda n=number: session_with(PRIVATE[0], n), "helpers")
    weak = Helpers(session, (bytes(32), kdf.public_key(PRIVATE[0])))
    refuses(lambda: masked(5, weak), "key")
    identity = SimulatedIdentity(5, SEED)
    short = update_of(5, LENGTH - 1)
    refuses(lambda: helper.mask(short, helpers_of(), 5, bytes(32), identity), "vector")
    total = np.zeros(LENGTH, np.uint32)
    refuses(lambda: helper.unmask(total, [total[1:]]), "vector")


def session_with(private: bytes, number: int) -> HelperSession:
    return HelperSession(HelperState(number), helpers_of(), private, SimulatedIdentity(0, SEED))


def test_no_seed_is_shown():
    _, sessions = filled(helpers_of())
    hidden = {f.name for f in dataclasses.fields(HelperState) if not f.repr}
    assert hidden == set(helper.SECRETS)
    for seed in sessions[0].state.seeds.values():
        assert repr(seed) not in repr(sessions[0].state)
