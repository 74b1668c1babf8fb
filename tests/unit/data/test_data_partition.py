"""Partitioners deal every example out once, deterministically, and as skewed as asked."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.partition import amounts, shifts
from delian.core.learning.data.partition.deal import Deal
from delian.core.learning.data.partition.partitioners import PARTITIONERS, deal_out
from hypothesis import given, settings
from hypothesis import strategies as st

LABELS = np.random.default_rng(5).integers(0, 10, 1200).astype(np.int32)


def dirichlet(labels, devices, alpha, seed, least):
    return deal_out(labels, devices, Deal(alpha=alpha, min_examples=least), seed)


def skew(parts):
    """The mean share of a device's most frequent label."""
    return np.mean([np.bincount(LABELS[p]).max() / len(p) for p in parts])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 40), st.floats(0.05, 50), st.integers(0, 2**31), st.integers(1, 20))
def test_dirichlet_deals_every_example_out_once_and_leaves_no_device_short(
    devices, alpha, seed, least
):
    parts = dirichlet(LABELS, devices, alpha, seed, least)
    assert sorted(np.concatenate(parts)) == list(range(len(LABELS)))
    assert min(map(len, parts)) >= least


def test_a_small_alpha_skews_and_a_large_one_does_not():
    skewed = dirichlet(LABELS, 20, 0.1, 1, 10)
    even = dirichlet(LABELS, 20, 1000.0, 1, 10)
    assert skew(skewed) > 0.5 > 0.25 > skew(even)


def test_the_same_seed_gives_the_same_partition_and_another_seed_another():
    one, same, other = (dirichlet(LABELS, 12, 0.3, seed, 4) for seed in (7, 7, 8))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_iid_deals_evenly():
    sizes = [len(p) for p in deal_out(np.zeros(103, np.int32), 10, Deal(partition="iid"), 3)]
    assert max(sizes) - min(sizes) == 1
    assert sum(sizes) == 103


def test_natural_keeps_each_owner_s_examples_together():
    owners = np.array([2, 0, 2, 1, 0])
    parts = amounts.natural(owners, ["a", "b", "c"])
    assert [p.tolist() for p in parts] == [[1, 4], [3], [0, 2]]


def test_a_named_device_without_samples_is_named_in_the_error():
    with pytest.raises(DelianError, match="device `anna` has no samples"):
        amounts.natural(np.array([0, 0]), ["bert", "anna"])


def test_too_few_examples_for_the_devices_is_an_error_that_says_how_many_fit():
    with pytest.raises(DelianError, match="1,200 examples cannot give 500 devices at least 10"):
        dirichlet(LABELS, 500, 0.3, 1, 10)


def test_shards_give_each_device_few_labels():
    labels = np.repeat(np.arange(10), 60).astype(np.int32)
    deal = Deal(partition="shards", labels_each=2)
    parts = deal_out(labels, 30, deal, seed=5)
    assert sorted(np.concatenate(parts)) == list(range(600))
    assert {len(part) for part in parts} == {20}
    assert max(len(set(labels[part])) for part in parts) <= 3
    again = deal_out(labels, 30, deal, seed=5)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_quantity_skew_gives_everybody_some_and_few_much():
    for alpha, ratio in ((0.2, 20), (1000.0, 2)):
        deal = Deal(partition="quantity", alpha=alpha, min_examples=5)
        parts = deal_out(np.zeros(1000, np.int32), 20, deal, seed=1)
        sizes = sorted(len(part) for part in parts)
        assert sum(sizes) == 1000 and sizes[0] >= 5
        assert (sizes[-1] / sizes[0] > ratio) == (alpha < 1)
        assert sorted(np.concatenate(parts)) == list(range(1000))


def test_feature_shift_grows_from_device_to_device():
    x = np.zeros((4000, 3), np.float32)
    parts = list(np.split(np.arange(4000), 4))
    shifted = shifts.add_noise(x, parts, 0.8, seed=2)
    assert not x.any()
    spread = [shifted[part].var() for part in parts]
    np.testing.assert_allclose(spread, [0.2, 0.4, 0.6, 0.8], rtol=0.1)


@pytest.mark.parametrize("draws", ["delian", "flwr", "flwr_shuffled"])
@pytest.mark.parametrize("partition", [*PARTITIONERS])
def test_every_partition_deals_each_example_at_most_once_and_repeats_itself(partition, draws):
    deal = Deal(partition=partition, draws=draws, alpha=5.0, sigma=0.5, labels_each=3)
    devices = 5 if partition == "exponential" else 10
    parts = deal_out(LABELS, devices, deal, 4)
    rows = np.concatenate(parts)
    assert len(parts) == devices and len(set(rows.tolist())) == len(rows) <= len(LABELS)
    assert min(map(len, parts)) >= 2 and rows.min() >= 0 and rows.max() < len(LABELS)
    again = deal_out(LABELS, devices, deal, 4)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


def test_in_random_order_another_seed_deals_otherwise():
    for partition in PARTITIONERS:
        deal = Deal(partition=partition, alpha=5.0, sigma=0.5)
        devices = 10 if partition == "distribution" else 5
        one, other = (deal_out(LABELS, devices, deal, seed) for seed in (1, 2))
        # The values of a label are equal: nothing but their order decides.
        assert partition == "continuous" or any(
            not np.array_equal(a, b) for a, b in zip(one, other, strict=True)
        )


def test_a_balanced_device_gets_no_label_after_its_average():
    even, skewed = (
        deal_out(LABELS, 10, Deal(alpha=0.1, self_balancing=balanced), 1)
        for balanced in (True, False)
    )
    assert max(map(len, even)) < max(map(len, skewed))


def test_pathological_devices_have_exactly_so_many_labels():
    for assignment in ("random", "first-deterministic", "deterministic"):
        deal = Deal(partition="pathological", labels_each=3, assignment=assignment)
        parts = deal_out(LABELS, 20, deal, 1)
        assert {len(set(LABELS[part])) for part in parts} == {3}
        if assignment != "random":
            assert all(d % 10 in LABELS[part] for d, part in enumerate(parts))


def test_amounts_follow_their_law():
    y = np.zeros(1000, np.int32)
    by = {
        law: deal_out(y, 4, Deal(partition=law), 1) for law in ("linear", "square", "exponential")
    }
    sizes = {law: [len(part) for part in parts] for law, parts in by.items()}
    assert sizes["linear"] == [100, 200, 300, 400]
    assert sizes["square"] == [33, 133, 300, 534]
    assert sizes["exponential"] == [32, 87, 236, 645]


def test_given_sizes_are_met_by_inner_dirichlet_too():
    for partition in ("size", "inner_dirichlet"):
        parts = deal_out(LABELS, 3, Deal(partition=partition, sizes=(50, 100, 400), alpha=9.0), 1)
        assert [len(part) for part in parts] == [50, 100, 400]


def test_a_continuous_partition_gives_devices_ranges_of_numbers():
    values = np.random.default_rng(0).normal(size=300).astype(np.float32)
    strict, none = (
        deal_out(values, 3, Deal(partition="continuous", strictness=s), 1) for s in (1.0, 0.0)
    )
    assert max(values[strict[0]]) < min(values[strict[1]]) and max(values[none[0]]) > 1


@pytest.mark.parametrize(
    ("devices", "keys", "message", "hint"),
    [
        (10, {"partition": "pathological", "labels_each": 11}, "has 10", "1 to 10"),
        (300, {"partition": "pathological", "labels_each": 9}, "label . is on", "deterministic"),
        (10, {"draws": "flwr", "alpha": 1e-2, "min_examples": 60}, "at most", "raise data.alpha"),
        (40, {"partition": "square", "min_examples": 10}, "device 0", "at most 6,"),
        (900, {"partition": "exponential", "min_examples": 1}, "900 devices", "fleet.devices"),
        (4, {"partition": "size", "sizes": (1, 2, 3)}, "3 sizes", "fleet.devices=3"),
        (2, {"partition": "size", "sizes": (900, 900)}, "sum to 1800", "lower"),
        (15, {"partition": "distribution"}, "15 devices", "multiple of 10"),
        (10, {"partition": "distribution", "min_examples": 120}, "has .* examples", "min_examples"),
        (3, {"partition": "shards", "labels_each": 0, "shard_size": 600}, "2 shards", "shard_size"),
        (100, {"partition": "shards", "labels_each": 13}, "no 1300 shards", "at most 12"),
        (2, {"partition": "inner_dirichlet", "alpha": 1e-3}, "of which no", "raise data.alpha"),
        (300, {"partition": "size", "min_examples": 5}, "at least 5", "at most 240 devices"),
    ],
)
def test_what_cannot_be_had_is_an_error_that_says_what_to_change(devices, keys, message, hint):
    with pytest.raises(DelianError, match=message) as caught:
        deal_out(LABELS, devices, Deal(**keys), 1)
    assert hint in (caught.value.hint or "")


def test_values_that_are_all_the_same_have_no_order():
    with pytest.raises(DelianError, match="all its values are the same"):
        deal_out(np.ones(30, np.float32), 3, Deal(partition="continuous"), 1)


def test_natural_devices_are_grouped_after_each_other():
    parts = amounts.natural(np.array([0, 1, 2, 1, 0]), ["a", "b", "c"])
    joined, names = amounts.grouped(parts, ["a", "b", "c"], 2)
    assert [part.tolist() for part in joined] == [[0, 4, 1, 3], [2]]
    assert names == ("a +1", "c")


def test_images_of_a_group_of_devices_are_turned_alike():
    x = np.arange(4 * 9, dtype=np.uint8).reshape(4, 3, 3)
    parts = [np.array([i]) for i in range(4)]
    turned = shifts.rotate(x, parts, 2)
    assert np.array_equal(turned[::2], x[::2])
    assert np.array_equal(turned[1::2], x[1::2, ::-1, ::-1])
    assert np.array_equal(shifts.rotate(x, parts, 4)[1], np.rot90(x[1]))
    with pytest.raises(DelianError, match="square images, and an example has the shape 9"):
        shifts.rotate(x.reshape(4, 9), parts, 2)


def test_labels_of_a_group_of_devices_are_permuted_alike():
    y = np.tile(np.arange(5, dtype=np.int32), 6)
    parts = list(np.split(np.arange(30), 6))
    moved = shifts.permute_labels(y, parts, 3, 5, seed=1)
    by_device = [moved[part].tolist() for part in parts]
    assert by_device[0] == list(range(5)) and by_device[:3] == by_device[3:]
    assert by_device[1] != by_device[2]
    assert all(sorted(own) == list(range(5)) for own in by_device)
    assert np.array_equal(moved, shifts.permute_labels(y, parts, 3, 5, seed=1))
