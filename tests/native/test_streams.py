"""Random numbers by name."""

from __future__ import annotations

import math

import pytest
from delian.core.protocol.random_streams import Streams, device_key
from hypothesis import given
from hypothesis import strategies as st


def test_a_word_depends_on_nothing_but_seed_purpose_and_ids():
    one, two = Streams(7), Streams(7)
    two.word("something else", 1)
    assert one.word("link", 1, 2) == two.word("link", 1, 2)
    others = {
        one.word("link", 1, 2),
        one.word("link", 2, 1),
        one.word("link", 1),
        one.word("links", 1, 2),
        Streams(8).word("link", 1, 2),
    }
    assert len(others) == 5


def test_words_are_the_same_on_every_machine():
    # Written down once: a change would make every recorded trace worthless.
    assert Streams(1).word("link", 3, 4) == 2392891056027298634


def test_units_are_spread_evenly():
    draws = [Streams(0).unit("u", i) for i in range(4000)]
    assert all(0 <= u < 1 for u in draws)
    assert sum(draws) / 4000 == pytest.approx(0.5, abs=5 * math.sqrt(1 / 12 / 4000))


def test_normals_have_mean_zero_and_variance_one():
    draws = [Streams(0).normal("n", i) for i in range(4000)]
    assert sum(draws) / 4000 == pytest.approx(0, abs=5 / math.sqrt(4000))
    assert sum(d * d for d in draws) / 4000 == pytest.approx(1, abs=5 * math.sqrt(2 / 4000))


@given(st.integers(0, 30), st.data())
def test_a_sample_has_no_item_twice(n, data):
    k = data.draw(st.integers(0, n))
    sample = Streams(3).sample(list(range(n)), k, "s", n, k)
    assert len(sample) == len(set(sample)) == k
    assert set(sample) <= set(range(n))


def test_a_sample_is_uniform():
    counts = [0] * 6
    for i in range(3000):
        for item in Streams(1).sample(list(range(6)), 2, "s", i):
            counts[item] += 1
    # Binomial with n = 3000 and p = 1/3: five standard deviations.
    assert all(abs(c - 1000) < 5 * math.sqrt(3000 / 3 * 2 / 3) for c in counts)


def test_devices_have_keys_of_their_own():
    keys = {device_key(bytes(8), d) for d in range(100)} | {device_key(b"another!", 0)}
    keys |= {device_key(bytes(8), 0, bytes([n]) * 32) for n in range(2)}
    assert len(keys) == 103
    assert all(0 <= word < 2**32 for key in keys for word in key)
