"""Secrets out of shares of which some are wrong."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from delian.core.privacy.secagg import kdf, shamir
from delian.core.privacy.secagg.recovery import recover
from delian.core.privacy.secagg.secure_errors import SecureError

SECRET = hashlib.sha256(b"secret").digest()
PUBLIC = kdf.public_key(SECRET)
THRESHOLD, COUNT = 4, 7


def shares(points=range(1, COUNT + 1), lies=()) -> dict[int, bytes]:
    random = b"".join(hashlib.sha256(bytes([i])).digest() for i in range(THRESHOLD - 1))
    every = dict(enumerate(shamir.split(SECRET, COUNT, THRESHOLD, random), 1))
    wrong = {at: hashlib.sha256(b"wrong" + bytes([at])).digest() for at in lies}
    return {at: wrong.get(at, every[at]) for at in points}


@pytest.mark.parametrize("public", [None, PUBLIC], ids=["seed", "key"])
def test_right_shares_give_the_secret(public):
    for size in range(THRESHOLD, COUNT + 1):
        for points in itertools.combinations(range(1, COUNT + 1), size):
            found = recover(shares(points), THRESHOLD, public)
            assert found.secret == SECRET and not found.wrong


@pytest.mark.parametrize(("public", "spare"), [(None, 2), (PUBLIC, 1)], ids=["seed", "key"])
def test_one_wrong_share_is_left_out_where_enough_are_to_spare(public, spare):
    for size in range(THRESHOLD + spare, COUNT + 1):
        for lie in range(1, size + 1):
            found = recover(shares(range(1, size + 1), [lie]), THRESHOLD, public)
            assert found.secret == SECRET


@pytest.mark.parametrize(("public", "size"), [(None, 5), (PUBLIC, 4)], ids=["seed", "key"])
def test_with_none_to_spare_a_wrong_share_ends_it(public, size):
    for lie in range(1, size + 1):
        with pytest.raises(SecureError) as caught:
            recover(shares(range(1, size + 1), [lie]), THRESHOLD, public)
        assert caught.value.reason == "share"


def test_a_seed_s_wrong_share_among_no_more_than_needed_is_not_seen():
    found = recover(shares(range(1, THRESHOLD + 1), [2]), THRESHOLD)
    assert found.secret != SECRET and not found.wrong


@pytest.mark.parametrize("public", [None, PUBLIC], ids=["seed", "key"])
def test_two_wrong_shares_end_it_or_were_not_needed(public):
    outcomes = set()
    for lies in itertools.combinations(range(1, COUNT + 1), 2):
        try:
            found = recover(shares(lies=lies), THRESHOLD, public)
        except SecureError as fault:
            assert fault.reason == "share"
            outcomes.add("ended")
        else:
            assert found.secret == SECRET
            outcomes.add("found")
    assert outcomes == {"ended", "found"}


def test_another_secret_than_the_public_key_s_is_not_given():
    other = kdf.public_key(hashlib.sha256(b"other").digest())
    with pytest.raises(SecureError) as caught:
        recover(shares(), THRESHOLD, other)
    assert caught.value.reason == "share"
