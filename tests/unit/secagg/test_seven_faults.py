"""Seven faults that published implementations of SecAgg+ have had, each shown to be absent here."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.privacy.secagg import cohort, kdf, transcript
from delian.core.privacy.secagg.client import ClientSession, ClientState
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.params import parameters
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.privacy.secagg.transcript import Session
from delian.core.wire.round_pb2 import Upload
from delian.core.wire.secure_pb2 import SecurePlan, UnmaskRequest
from support.secure_federation import (
    SEED,
    Federation,
    bundle_of,
    changed,
    cohort_of,
    make_task,
    master_of,
)

DEVICES = [5 + 3 * i for i in range(9)]


@pytest.fixture
def mask_keys(monkeypatch):
    """Every list of keys that a device masked with, in order."""
    seen: list[list[tuple[bytes, int]]] = []
    true = cohort_masks().add

    def add(vector, keys, suite, threads=1):
        seen.append(list(keys))
        true(vector, keys, suite, threads)

    monkeypatch.setattr(cohort_masks(), "add", add)
    return seen


def cohort_masks():
    from delian.core.privacy.secagg import client

    return client.masks


def test_fault_1_masks_have_256_bit_keys_and_no_key_is_used_for_two_masks(mask_keys):
    for changes in ({}, {"attempt": 2}, {"weights": b"x" * 32}, {"round": 4}):
        federation = Federation(DEVICES, make_task(**changes))
        survivors = federation.give_updates(federation.give_shares(federation.give_keys()))
        assert len(survivors) == 9
    assert len(mask_keys) == 4 * 9
    used = [entry for keys in mask_keys for entry in keys]
    assert {len(key) for key, _ in used} == {32}
    signs: dict[bytes, list[int]] = {}
    for key, sign in used:
        signs.setdefault(key, []).append(sign)
    # A pair's key is added by one of the two and subtracted by the other; all else is used once.
    assert sorted(map(tuple, map(sorted, signs.values()))) == [(-1, 1)] * 4 * 36 + [(1,)] * 4 * 9


def test_fault_2_nobody_gives_both_shares_of_a_neighbour():
    """A request names nobody: which share is given follows from the one set that was signed."""
    assert "members" not in UnmaskRequest.DESCRIPTOR.fields_by_name
    federation = Federation(DEVICES)
    survivors = federation.give_updates(federation.give_shares(federation.give_keys()), but=[29])
    requests = federation.give_consents(survivors)
    client = federation.clients[5]
    first = client.take_unmask(requests[5])
    assert [share.index for share in first.shares] == list(range(1, 9))
    turned = changed(survivors[5], members=transcript.bitmap([0, 2, 3, 4, 5, 6, 7, 8], 9))
    with pytest.raises(SecureError) as caught:
        client.take_survivors(turned)
    assert caught.value.reason == "equivocation"
    with pytest.raises(SecureError):
        client.take_unmask(requests[5])


@pytest.mark.parametrize("step", ["keys", "shares"])
def test_fault_3_an_early_dropout_does_not_fail_the_round(step):
    federation = Federation(DEVICES)
    assert np.array_equal(federation.run({8: step, 17: step}), federation.expected())
    assert len(federation.masked) == 7


def test_fault_4_a_coordinator_in_the_middle_is_found_out():
    """It gives each device keys of its own in the place of a neighbour's."""
    own = SimulatedIdentity(999, SEED)
    session = Session.of(make_task())
    middle = bundle_of(999)
    signed = transcript.signed_bundle(session, 8, middle.sealing_key, middle.mask_key)
    forged = [
        changed(bundle_of(8), mask_key=middle.mask_key, sealing_key=middle.sealing_key),
        changed(middle, device=8),
        changed(middle, device=8, signature=own.sign(signed)),
    ]
    for bundle in forged:
        members = [bundle if d == 8 else bundle_of(d) for d in DEVICES]
        client = ClientSession(ClientState(5), SimulatedIdentity(5, SEED))
        client.begin(make_task(), master_of(5))
        with pytest.raises(SecureError) as caught:
            client.take_cohort(cohort_of(make_task(), members, 5))
        assert caught.value.reason == "signature" and client.state.secret == b""


def test_fault_5_degree_and_threshold_are_computed_and_nobody_chooses_them():
    fields = set(SecurePlan.DESCRIPTOR.fields_by_name)
    assert fields - {"helpers", "denied_version"} == {
        *("suite", "cohort_min", "corrupt", "dropout", "noise_survivors")
    }
    for members in (3, 5, 12, 40, 100, 1000):
        graph = parameters(members, 0.1, 0.1)
        corrupt = int(0.1 * members) if graph.complete else 0
        assert 2 * graph.threshold > graph.degree + corrupt
    federation = Federation(list(range(40)))
    federation.give_keys()
    assert federation.server._layout.graph == parameters(40, 0.1, 0.1)


def test_fault_6_no_message_but_the_masked_vector_depends_on_the_update_or_its_weight():
    assert set(Upload.DESCRIPTOR.fields_by_name) == {
        "run",
        "round",
        "attempt",
        "device",
        "vector",
        "seeds",  # of helper mode: drawn from the device's secret
        "split",  # drawn by the agent before the training begins
    }
    talks = []
    for seed in (1, 2):
        federation = Federation(DEVICES)
        federation.update = lambda device, s=seed: np.full(17, s * device, np.uint32)
        assert np.array_equal(federation.run({29: "masks"}), federation.expected())
        talks.append([m.SerializeToString(deterministic=True) for _, _, m in federation.said])
    assert talks[0] == talks[1]


def test_fault_7_devices_with_different_models_do_not_take_part_in_one_sum():
    """A coordinator that gives one device another model cannot show it the others' keys."""
    other = make_task(weights=b"x" * 32)
    members = [bundle_of(d, other if d == 5 else make_task()) for d in DEVICES]
    client = ClientSession(ClientState(5), SimulatedIdentity(5, SEED))
    client.begin(other, master_of(5))
    with pytest.raises(SecureError) as caught:
        client.take_cohort(cohort_of(other, members, 5))
    assert caught.value.reason == "signature"


def test_fault_7_nor_do_devices_that_are_told_other_coordinates():
    """One device's eight coordinates would stand in the sum with eight others of everybody else's,
    such as no device changes: the sum would be its update.
    """
    ours, theirs = (make_task(kept=8, rng_key=key * 8) for key in (b"a", b"b"))
    members = [bundle_of(d, theirs if d == 5 else ours) for d in DEVICES]
    client = ClientSession(ClientState(5), SimulatedIdentity(5, SEED))
    client.begin(theirs, master_of(5))
    with pytest.raises(SecureError) as caught:
        client.take_cohort(cohort_of(theirs, members, 5))
    assert caught.value.reason == "signature"


@pytest.mark.parametrize(
    "changes",
    [
        {"weights": b"x" * 32},
        {"bundle": b"x" * 32},
        {"round": 4},
        {"attempt": 2},
        {"run": 8},
        {"clip": 2.0},
        {"cohort_min": 4},
        {"suite": 2},
    ],
    ids=lambda c: next(iter(c)),
)
def test_fault_7_and_if_they_did_their_masks_would_not_cancel(changes):
    leaves = b"".join(transcript.leaf(bundle_of(d)) for d in DEVICES)
    numbers = transcript.numbers(DEVICES)
    ours = cohort.layout(Session.of(make_task()), leaves, numbers).binding
    theirs = cohort.layout(Session.of(make_task(**changes)), leaves, numbers).binding
    keys = [kdf.pair_mask_key(b"s" * 32, binding, 0, 1) for binding in (ours, theirs)]
    assert keys[0] != keys[1]
    assert keys[0] == kdf.pair_mask_key(b"s" * 32, ours, 1, 0)
