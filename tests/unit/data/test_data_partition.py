"""Partitioners deal every example out once, deterministically, and as skewed as asked."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data import partitioners
from hypothesis import given, settings
from hypothesis import strategies as st

LABELS = np.random.default_rng(5).integers(0, 10, 1200).astype(np.int32)


def skew(parts):
    """The mean share of a device's most frequent label."""
    return np.mean([np.bincount(LABELS[p]).max() / len(p) for p in parts])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.floats(0.05, 50), st.integers(0, 2**31), st.integers(1, 20))
def test_dirichlet_deals_every_example_out_once_and_leaves_no_device_short(
    devices, alpha, seed, least
):
    parts = partitioners.dirichlet(LABELS, devices, alpha, seed, least)
    assert sorted(np.concatenate(parts)) == list(range(len(LABELS)))
    assert min(map(len, parts)) >= least


def test_a_small_alpha_skews_and_a_large_one_does_not():
    skewed = partitioners.dirichlet(LABELS, 20, 0.1, 1, 10)
    even = partitioners.dirichlet(LABELS, 20, 1000.0, 1, 10)
    assert skew(skewed) > 0.5 > 0.25 > skew(even)


def test_the_same_seed_gives_the_same_partition_and_another_seed_another():
    one, same, other = (partitioners.dirichlet(LABELS, 12, 0.3, seed, 4) for seed in (7, 7, 8))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_iid_deals_evenly():
    sizes = [len(p) for p in partitioners.iid(103, 10, 3)]
    assert max(sizes) - min(sizes) == 1
    assert sum(sizes) == 103


def test_natural_keeps_each_owner_s_examples_together():
    owners = np.array([2, 0, 2, 1, 0])
    parts = partitioners.natural(owners, ["a", "b", "c"])
    assert [p.tolist() for p in parts] == [[1, 4], [3], [0, 2]]


def test_a_named_device_without_samples_is_named_in_the_error():
    with pytest.raises(DelianError, match="device `anna` has no samples"):
        partitioners.natural(np.array([0, 0]), ["bert", "anna"])


def test_too_few_examples_for_the_devices_is_an_error_that_says_how_many_fit():
    with pytest.raises(DelianError, match="1200 examples cannot give 500 devices at least 10"):
        partitioners.dirichlet(LABELS, 500, 0.3, 1, 10)


def test_shards_give_each_device_few_labels():
    labels = np.repeat(np.arange(10), 60).astype(np.int32)
    parts = partitioners.shards(labels, 30, 2, seed=5)
    assert sorted(np.concatenate(parts)) == list(range(600))
    assert {len(part) for part in parts} == {20}
    assert max(len(set(labels[part])) for part in parts) <= 3
    again = partitioners.shards(labels, 30, 2, seed=5)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_quantity_skew_gives_everybody_some_and_few_much():
    for alpha, ratio in ((0.2, 20), (1000.0, 2)):
        parts = partitioners.quantity(1000, 20, alpha, seed=1, min_examples=5)
        sizes = sorted(len(part) for part in parts)
        assert sum(sizes) == 1000 and sizes[0] >= 5
        assert (sizes[-1] / sizes[0] > ratio) == (alpha < 1)
        assert sorted(np.concatenate(parts)) == list(range(1000))


def test_feature_shift_grows_from_device_to_device():
    x = np.zeros((4000, 3), np.float32)
    parts = list(np.split(np.arange(4000), 4))
    shifted = partitioners.shift_features(x, parts, 0.8, seed=2)
    assert not x.any()
    spread = [shifted[part].var() for part in parts]
    np.testing.assert_allclose(spread, [0.2, 0.4, 0.6, 0.8], rtol=0.1)
