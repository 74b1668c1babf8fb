"""What the coordinator does not take from devices, and when it gives a session up."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.privacy.secagg import transcript
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.privacy.secagg.server import ServerSession, ServerState
from delian.core.wire.secure_pb2 import Consent, KeyBundle, SealedShare, UnmaskShare
from support.secure_federation import SEED, Federation, bundle_of, changed, make_task

DEVICES = [5 + 3 * i for i in range(9)]


def padded(bundle: KeyBundle) -> KeyBundle:
    """With a field that no version knows, which the coordinator would pass on to all neighbours."""
    unknown = b"\xa2\x1f\x80\x20" + bytes(4096)  # field 500: 4096 bytes
    return KeyBundle.FromString(bundle.SerializeToString() + unknown)


def fails(call, reason: str, words: str = "") -> None:
    with pytest.raises(SecureError) as caught:
        call()
    assert caught.value.reason == reason
    assert words in caught.value.message


def refused(federation: Federation) -> dict[str, int]:
    return federation.server.state.refused


# ---------------------------------------------------------------- the beginning


@pytest.mark.parametrize(
    ("devices", "changes", "reason"),
    [
        ([1, 2], {}, "few"),
        ([1, 1, 1, 2], {}, "few"),
        (range(5), {"cohort_min": 6}, "few"),
        (range(1001), {}, "many"),
        (range(5), {"clients_max": 4}, "many"),
        (range(5), {"cohort_min": 2}, "plan"),
        (range(5), {"weights": b"short"}, "task"),
    ],
)
def test_a_session_that_cannot_be_does_not_begin(devices, changes, reason):
    server = ServerSession(ServerState(), SimulatedIdentity(0, SEED))
    fails(lambda: server.begin(make_task(**changes), devices), reason)


# ---------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("bundle", "reason"),
    [
        (bundle_of(8, make_task(attempt=2)), "foreign"),
        (bundle_of(6), "stranger"),
        (bundle_of(8, signature=b""), "malformed"),
        (bundle_of(8, signature=b"s" * 81), "malformed"),
        (bundle_of(8, sealing_key=b"k" * 31), "malformed"),
        (bundle_of(8, sealing_key=bytes(32)), "malformed"),
        (padded(bundle_of(8)), "malformed"),
        (bundle_of(8, mask_key=b"\x01" + bytes(31)), "malformed"),
        (bundle_of(8, signature=b"s" * 70), "signature"),
        (changed(bundle_of(11), device=8), "signature"),
        (changed(bundle_of(8, make_task(weights=b"x" * 32))), "signature"),
        (bundle_of(8, certificate=b"another's"), "signature"),
    ],
    ids=str,
)
def test_keys_that_are_not_taken_are_counted_and_shut_nobody_out(bundle, reason):
    federation = Federation(DEVICES)
    assert federation.server.add_bundle(bundle) is False
    assert refused(federation) == {reason: 1}
    # The forger had no effect: the device's own keys come, and the sum is whole.
    assert np.array_equal(federation.run(), federation.expected())
    assert len(federation.masked) == 9


def test_one_whose_keys_were_forged_alone_is_left_out():
    federation = Federation(DEVICES)
    federation.server.add_bundle(changed(bundle_of(11), device=8))
    cohorts = federation.give_keys([d for d in DEVICES if d != 8])
    assert 8 not in cohorts and len(cohorts) == 8


def test_second_keys_of_a_device_do_not_replace_its_first():
    federation = Federation(DEVICES)
    server = federation.server
    assert server.add_bundle(bundle_of(8)) and server.add_bundle(bundle_of(8))
    assert refused(federation) == {}
    assert not server.add_bundle(bundle_of(8, mask_key=b"m" * 32))
    assert refused(federation) == {"second": 1}
    assert server.state.bundles[8] == bundle_of(8)


def test_too_few_keys_end_the_session_and_the_error_names_who_is_missing():
    federation = Federation(DEVICES, make_task(cohort_min=4))
    fails(
        lambda: federation.give_keys(DEVICES[:3]),
        "few",
        "3 devices gave keys, of 4 at least; no word from devices 14, 17, 20, 23, 26, 29",
    )


def test_keys_after_the_close_are_late():
    federation = Federation(DEVICES)
    federation.give_keys(DEVICES[1:])
    assert not federation.up(bundle_of(5))
    assert refused(federation) == {"untimely": 1}


# ---------------------------------------------------------------- shares


@pytest.mark.parametrize(
    "shares",
    [
        lambda s: s[1:],
        lambda s: [],
        lambda s: [s[1], s[0], *s[2:]],
        lambda s: [s[0], *s],
        lambda s: [*s[:-1], SealedShare(index=s[-1].index, sealed=bytes(81))],
        lambda s: [*s[:-1], SealedShare(index=500, sealed=bytes(80))],
    ],
    ids=["one too few", "none", "out of order", "one twice", "a wrong size", "a stranger's"],
)
def test_one_whose_shares_are_malformed_is_left_out(shares):
    federation = Federation(DEVICES)
    cohorts = federation.give_keys()
    good = federation.down(cohorts[8])
    assert not federation.up(changed(good, shares=shares(list(good.shares))))
    assert refused(federation) == {"malformed": 1}
    deliveries = federation.give_shares(cohorts, but=[8])
    assert 8 not in deliveries and len(deliveries) == 8
    assert all(share.index != 1 for d in deliveries.values() for share in d.shares)
    requests = federation.give_consents(federation.give_updates(deliveries))
    federation.give_unmasks(requests)
    assert np.array_equal(federation.unmasked(), federation.expected())


def test_second_shares_do_not_replace_the_first():
    federation = Federation(DEVICES)
    cohorts = federation.give_keys()
    good = federation.down(cohorts[8])
    assert federation.up(good) and federation.up(good)
    bad = changed(good, shares=[SealedShare(index=s.index, sealed=bytes(80)) for s in good.shares])
    assert not federation.up(bad)
    assert refused(federation) == {"second": 1}
    assert federation.server.state.shares[8] == good


def test_too_few_shares_end_the_session():
    federation = Federation(DEVICES)
    cohorts = federation.give_keys()
    fails(lambda: federation.give_shares(cohorts, but=DEVICES[2:]), "few", "14, 17")


def test_in_a_sparse_graph_a_member_with_too_few_neighbours_ends_the_session_and_is_named():
    federation = Federation(list(range(100)), make_task(corrupt=0.2))
    cohorts = federation.give_keys()
    layout = federation.server._layout
    near = layout.neighbours(40)
    silent = near[: len(near) - layout.threshold + 1]
    assert 100 - len(silent) > 60
    with pytest.raises(SecureError, match=r"neighbours of device .* sent shares") as caught:
        federation.give_shares(cohorts, but=silent)
    assert caught.value.reason == "few"


# ---------------------------------------------------------------- the sum


def test_one_in_the_sum_who_has_no_part_is_named():
    federation = Federation(DEVICES)
    deliveries = federation.give_shares(federation.give_keys(DEVICES[1:]), but=[8])
    federation.give_updates(deliveries)
    server = ServerSession(federation.server.state, SimulatedIdentity(0, SEED))
    server.state.phase = type(server.state.phase).MASKS
    fails(lambda: server.survivors([5, 8, *DEVICES[2:]]), "stranger", "devices 5, 8 in the sum")


def test_a_sum_below_the_minimum_is_not_unmasked():
    federation = Federation(DEVICES, make_task(cohort_min=8))
    deliveries = federation.give_shares(federation.give_keys())
    fails(
        lambda: federation.give_updates(deliveries, but=[5, 8]), "few", "7 devices are in the sum"
    )


def test_a_sum_in_which_a_member_s_neighbours_are_too_few_is_given_up_and_named():
    federation = Federation(DEVICES)
    deliveries = federation.give_shares(federation.give_keys())
    fails(
        lambda: federation.give_updates(deliveries, but=DEVICES[:5]),
        "few",
        "device 5 has 4 neighbours in the sum, and 5 must give shares",
    )


# ---------------------------------------------------------------- consents and shares given


def in_the_sum():
    federation = Federation(DEVICES)
    survivors = federation.give_updates(federation.give_shares(federation.give_keys()), but=[29])
    return federation, survivors


def test_a_consent_that_is_not_the_device_s_does_not_count():
    federation, survivors = in_the_sum()
    good = federation.down(survivors[5])
    for bad in (
        changed(good, signature=b""),
        changed(good, signature=b"x" * 70),
        changed(good, device=8),
        changed(good, device=29),
        changed(good, device=6),
        changed(good, attempt=2),
    ):
        assert federation.up(bad) == {}
    assert refused(federation) == {"signature": 4, "stranger": 1, "foreign": 1}
    assert federation.server.state.consents == {}


def test_a_second_consent_does_not_replace_the_first():
    federation, survivors = in_the_sum()
    good = federation.down(survivors[5])
    for message in (good, good, changed(good, signature=b"another")):
        assert federation.up(message) == {}
    assert refused(federation) == {"second": 1}
    assert federation.server.state.consents == {0: good.signature}


def test_what_comes_before_its_step_is_not_taken():
    federation, survivors = in_the_sum()
    requests = federation.give_consents(survivors)
    answer = federation.down(requests[5])
    early = Federation(DEVICES)
    early.give_shares(early.give_keys())
    assert early.up(answer) is False and early.up(federation.clients[5].state.consent) == {}
    assert refused(early) == {"untimely": 2}


def test_one_who_is_not_in_the_sum_has_no_say_in_it():
    """Devices would refuse a request with its consent, true as it is."""
    federation, survivors = in_the_sum()
    binding, members = federation.server._layout.binding, federation.server.state.survivors
    signature = SimulatedIdentity(29, SEED).sign(transcript.signed_consent(binding, 29, members))
    assert federation.up(Consent(run=7, round=3, attempt=1, device=29, signature=signature)) == {}
    assert refused(federation) == {"signature": 1}
    federation.give_unmasks(federation.give_consents(survivors))
    assert np.array_equal(federation.unmasked(), federation.expected())


def test_nobody_is_asked_before_a_threshold_of_its_neighbours_has_signed():
    federation, survivors = in_the_sum()
    threshold = federation.server._layout.threshold
    consents = [federation.down(survivors[device]) for device in sorted(survivors)]
    asked = [sorted(federation.up(consent)) for consent in consents]
    assert asked[: threshold - 1] == [[]] * (threshold - 1)
    # With the t-th the others lack one still; with the next all who have signed can be asked.
    assert asked[threshold - 1] == []
    assert asked[threshold] == DEVICES[: threshold + 1]
    assert asked[threshold + 1 :] == [[d] for d in DEVICES[threshold + 1 : 8]]
    assert federation.up(consents[0]) == {}, "a repetition opens nothing"


@pytest.mark.parametrize(
    "shares",
    [
        lambda s: [s[1], s[0], *s[2:]],
        lambda s: [s[0], *s],
        lambda s: [*s[:-1], UnmaskShare(index=s[-1].index, share=bytes(31))],
        lambda s: [*s[:-1], UnmaskShare(index=500, share=bytes(32))],
        lambda s: [UnmaskShare(index=0, share=bytes(32)), *s],
    ],
    ids=["out of order", "one twice", "a wrong size", "a stranger's", "its own"],
)
def test_shares_that_cannot_be_are_not_taken_and_the_right_ones_still_are(shares):
    federation, survivors = in_the_sum()
    requests = federation.give_consents(survivors)
    good = federation.down(requests[5])
    bad = changed(good, shares=shares(list(good.shares)))
    assert not federation.up(bad)
    assert refused(federation) == {"malformed": 1}
    assert federation.up(good) and federation.up(good)
    assert not federation.up(changed(good, shares=list(good.shares)[1:]))
    federation.give_unmasks(requests, but=[5])
    assert np.array_equal(federation.unmasked(), federation.expected())


def test_shares_of_one_who_is_not_in_the_sum_are_not_taken():
    federation, survivors = in_the_sum()
    requests = federation.give_consents(survivors)
    answer = changed(federation.down(requests[5]), device=29, shares=[])
    assert not federation.up(answer)
    assert refused(federation) == {"malformed": 1}


def test_the_keys_come_when_a_threshold_of_each_member_s_neighbours_has_answered():
    federation, survivors = in_the_sum()
    threshold = federation.server._layout.threshold
    requests = federation.give_consents(survivors)
    ready = []
    for device in sorted(requests):
        federation.up(federation.down(requests[device]))
        ready.append(federation.server.is_ready)
    assert ready == [False] * threshold + [True] * (8 - threshold)
    assert np.array_equal(federation.unmasked(), federation.expected())


def test_answers_that_are_missing_are_named():
    federation, survivors = in_the_sum()
    federation.give_unmasks(federation.give_consents(survivors), but=DEVICES[:5])
    fails(federation.unmasked, "few", "no shares from devices 5, 8, 11, 14, 17")
