"""What a device that is in the cohort can spoil, and what becomes of it.

Found and mended: shares that do not open, one wrong share of a secret where spare ones came. Found,
and the session ends: more wrong shares than that, a mask key that is not the one that was signed.
Not found here: a wrong share of a self-mask seed where exactly a threshold came, and a device that
masks otherwise than it should. Then the sum is noise, and `privacy.ring.decode` refuses it.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from delian.core.privacy.mechanisms import ring
from delian.core.privacy.secagg import cohort, kdf, shamir
from delian.core.privacy.secagg.client import ClientSession, ClientState
from delian.core.privacy.secagg.member_identity import SimulatedIdentity
from delian.core.privacy.secagg.secure_errors import SecureError
from delian.core.wire.secure_pb2 import SealedShare, SealedShares, UnmaskShare
from support.secure_federation import (
    SEED,
    Federation,
    bundle_of,
    changed,
    cohort_of,
    make_task,
    master_of,
)

DEVICES = [5 + 3 * i for i in range(9)]  # all neighbours of each other: k = 8, t = 5
BAD = 5  # of index 0


def fails(call, reason: str, words: str) -> None:
    with pytest.raises(SecureError) as caught:
        call()
    assert caught.value.reason == reason and words in caught.value.message


def resealed(federation: Federation, shares: SealedShares, change) -> SealedShares:
    """The bad device's shares with `change(position, plain)` made to what it seals."""
    client = federation.clients[BAD]
    place, secret = client._layout, client.state.secret
    peers = [bundle.sealing_key for bundle in client.state.cohort.neighbours]
    shared = kdf.agree(kdf.sealing_secret(secret), peers)
    made = []
    for at, (share, common) in enumerate(zip(shares.shares, shared, strict=True)):
        plain = kdf.open_sealed(common, place.binding, 0, share.index, share.sealed)
        sealed = kdf.seal(common, place.binding, 0, share.index, change(at, plain))
        made.append(SealedShare(index=share.index, sealed=sealed))
    return changed(shares, shares=made)


def until_unmask(change_shares, silent=()):
    """A session in which the bad device's SealedShares are changed; who is in `silent` is not in
    the sum.
    """
    federation = Federation(DEVICES)
    cohorts = federation.give_keys()
    bad = change_shares(federation, federation.down(cohorts[BAD]))
    assert federation.up(bad), "the coordinator cannot see it"
    deliveries = federation.give_shares(cohorts, but=[BAD])
    survivors = federation.give_updates(deliveries, silent)
    return federation, federation.give_consents(survivors)


def garbage(*positions):
    """Nothing that opens, at these places."""

    def change(federation, shares):
        made = [
            SealedShare(index=s.index, sealed=bytes(80) if at in positions else s.sealed)
            for at, s in enumerate(shares.shares)
        ]
        return changed(shares, shares=made)

    return change


def wrong(*positions):
    """Shares that open and lie on no polynomial, at these places."""

    def change(federation, shares):
        def lie(at, plain):
            noise = hashlib.sha512(bytes([at])).digest()
            wrong = bytes(a ^ b for a, b in zip(plain, noise, strict=True))
            return wrong if at in positions else plain

        return resealed(federation, shares, lie)

    return change


@pytest.mark.parametrize("silent", [(), (BAD,)], ids=["in the sum", "dropped out"])
def test_sealed_shares_that_do_not_open_are_passed_over_while_enough_do(silent):
    federation, requests = until_unmask(garbage(0, 3, 5), silent)
    federation.give_unmasks(requests)
    assert np.array_equal(federation.unmasked(), federation.expected())
    answer = federation.clients[8].state.unmask
    assert [s.index for s in answer.shares] == [2, 3, 4, 5, 6, 7, 8], "all but the bad one's"


def test_sealed_shares_that_do_not_open_for_too_many_end_the_session_and_name_the_owner():
    federation, requests = until_unmask(garbage(0, 1, 2, 3))
    federation.give_unmasks(requests)
    assert not federation.server.is_ready
    fails(federation.unmasked, "few", "the masks of device 5 cannot be taken out")


def test_a_sealed_share_meant_for_another_neighbour_does_not_open():
    def swapped(federation, shares):
        one, other, *rest = shares.shares
        made = [
            SealedShare(index=one.index, sealed=other.sealed),
            SealedShare(index=other.index, sealed=one.sealed),
            *rest,
        ]
        return changed(shares, shares=made)

    federation, requests = until_unmask(swapped)
    federation.give_unmasks(requests)
    assert np.array_equal(federation.unmasked(), federation.expected())
    for device in DEVICES[1:3]:
        answer = federation.clients[device].state.unmask
        assert 0 not in [s.index for s in answer.shares]


@pytest.mark.parametrize("silent", [(), (BAD,)], ids=["in the sum", "dropped out"])
def test_one_wrong_share_is_found_and_left_out_where_others_are_to_spare(silent):
    for position in range(8):
        federation, requests = until_unmask(wrong(position), silent)
        federation.give_unmasks(requests)
        assert np.array_equal(federation.unmasked(), federation.expected()), position


@pytest.mark.parametrize("silent", [(), (BAD,)], ids=["in the sum", "dropped out"])
def test_several_wrong_shares_end_the_session(silent):
    federation, requests = until_unmask(wrong(0, 4, 7), silent)
    federation.give_unmasks(requests)
    fails(federation.unmasked, "share", "device 5's secret")


def test_another_mask_key_than_the_signed_one_ends_the_session():
    """Shares that fit each other, of a secret that is not the key's: without the check, the masks
    with it would stay in the sum.
    """

    def other_secret(federation, shares):
        random = bytes(shamir.randomness_bytes(32, 5))
        keys = shamir.split(b"k" * 32, 8, 5, random)
        return resealed(federation, shares, lambda at, plain: plain[:32] + keys[at])

    federation, requests = until_unmask(other_secret, [BAD])
    federation.give_unmasks(requests)
    fails(federation.unmasked, "share", "device 5's secret")


@pytest.mark.parametrize("silent", [(), (26,)], ids=["nobody dropped out", "one dropped out"])
def test_one_who_gives_wrong_shares_of_everybody_is_left_out(silent):
    federation, requests = until_unmask(lambda _, shares: shares, silent)
    answer = federation.down(requests[BAD])
    lies = [UnmaskShare(index=s.index, share=b"\x77" * 32) for s in answer.shares]
    assert federation.up(changed(answer, shares=lies))
    federation.give_unmasks(requests, but=[BAD])
    assert np.array_equal(federation.unmasked(), federation.expected())


def test_a_wrong_share_among_no_more_than_needed_makes_noise_that_the_ring_refuses():
    plan = ring.RingPlan(clip=1.0, clients_max=1000, dimension=16)
    federation, requests = until_unmask(lambda _, shares: shares, DEVICES[6:])
    federation.update = lambda device: np.full(17, 100, np.uint32)
    assert len(requests) == 6, "each has five neighbours in the sum: exactly a threshold"
    answer = federation.down(requests[BAD])
    lies = [changed(s, share=b"\x77" * 32) if s.index == 1 else s for s in answer.shares]
    assert federation.up(changed(answer, shares=lies))
    federation.give_unmasks(requests, but=[BAD])
    total = federation.unmasked()
    assert not np.array_equal(total, federation.expected())
    with pytest.raises(ring.RingError):
        ring.decode(total, plan)


def test_one_that_masks_otherwise_than_it_should_makes_noise():
    federation, requests = until_unmask(lambda _, shares: shares)
    federation.masked[BAD][2] += 1
    federation.give_unmasks(requests)
    wrong_by = federation.unmasked() - federation.expected()
    assert wrong_by.tolist() == [0, 0, 1, *[0] * 14]


def test_a_neighbour_that_signs_another_s_mask_key_as_its_own_undoes_no_mask():
    """Were the pair not in the key of a mask, a device's masks towards the two would be the same
    words, and with opposite signs cancel each other.
    """
    copied = bundle_of(17, mask_key=bundle_of(5).mask_key)
    members = [copied if d == 17 else bundle_of(d) for d in DEVICES]
    victim = ClientSession(ClientState(11), SimulatedIdentity(11, SEED))
    victim.begin(make_task(), master_of(11))
    shares = victim.take_cohort(cohort_of(make_task(), members, 11))
    victim.take_delivery(_delivery_of(shares.shares[0].sealed, [i for i in range(9) if i != 2]))
    keys = dict.fromkeys(key for key, _ in victim._mask_keys())
    assert len(keys) == 9
    assert cohort.sign_towards(2, 0) != cohort.sign_towards(2, 4)


def _delivery_of(sealed: bytes, indices):
    from delian.core.wire.secure_pb2 import Delivery

    shares = [SealedShare(index=i, sealed=sealed) for i in indices]
    return Delivery(run=7, round=3, attempt=1, device=11, shares=shares)
