"""Metrics in the ring: encoded on devices, added up, read at the cloud."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.learning.metrics import (
    CLIP,
    LOSS_MAX,
    OWN_MAX,
    QUERIES_MAX,
    decode,
    encode,
    metrics_plan,
)
from delian.core.learning.runtime import Score
from delian.core.privacy.mechanisms import ring


def key(n):
    return np.array([7, n], np.uint32)


def total_of(pairs, plan):
    total = ring.zeros(plan)
    for n, (before, after) in enumerate(pairs):
        ring.add(total, encode(before, after, key(n), plan))
    return total


def test_the_mean_is_over_examples_and_not_over_devices():
    plan = metrics_plan(13)
    pairs = [
        (Score(200.0, 10.0, 100.0), Score(50.0, 90.0, 100.0)),
        (Score(4.0, 2.0, 4.0), Score(1.0, 4.0, 4.0)),
    ]
    means = decode(total_of(pairs, plan), plan)
    assert means["queries"] == pytest.approx(104)
    assert means["global_loss"] == pytest.approx(204 / 104, rel=1e-4)
    assert means["global_accuracy"] == pytest.approx(12 / 104, rel=1e-3)
    assert means["personalised_loss"] == pytest.approx(51 / 104, rel=1e-3)
    assert means["personalised_accuracy"] == pytest.approx(94 / 104, rel=1e-4)


def test_many_devices_are_told_as_exactly_as_their_number_needs():
    plan = metrics_plan(1_000)
    rng = np.random.default_rng(0)
    pairs, sums = [], np.zeros(5)
    for _ in range(1_000):
        count = float(rng.integers(5, 60))
        before = Score(count * rng.uniform(1, 3), float(rng.integers(0, count)), count)
        after = Score(count * rng.uniform(0, 1), float(rng.integers(0, count)), count)
        pairs.append((before, after))
        sums += [before.loss, before.correct, after.loss, after.correct, count]
    means = decode(total_of(pairs, plan), plan)
    exact = sums[:4] / sums[4]
    np.testing.assert_allclose(list(means.values())[:4], exact, rtol=0.01)


def test_sums_of_a_tasks_own_are_added_up_and_then_divided():
    plan = metrics_plan(2, 2)
    pairs = [  # F1 of a label that the first device has seldom, and a bias
        (
            Score(20.0, 5.0, 10.0, ((2.0, 5.0), (-7.0, 10.0))),
            Score(9.0, 8.0, 10.0, ((4.0, 5.0), (1.0, 10.0))),
        ),
        (
            Score(60.0, 20.0, 30.0, ((40.0, 43.0), (3.0, 30.0))),
            Score(30.0, 24.0, 30.0, ((42.0, 43.0), (-2.0, 30.0))),
        ),
    ]
    means = decode(total_of(pairs, plan), plan, ("f1", "bias"))
    assert means["global_f1"] == pytest.approx(42 / 48, abs=1e-3)
    assert means["personalised_f1"] == pytest.approx(46 / 48, abs=1e-3)
    assert means["global_bias"] == pytest.approx(-4 / 40, abs=1e-3)
    assert means["personalised_bias"] == pytest.approx(-1 / 40, abs=1e-3)
    assert means["global_loss"] == pytest.approx(2.0, rel=1e-3)


def test_own_sums_that_are_large_or_no_numbers_or_nothing_spoil_no_other():
    plan = metrics_plan(4, 4)
    sums = ((np.inf, 1.0), (1e9, 10.0), (np.nan, np.nan), (0.0, 0.0))
    worst = Score(1e9, 10.0, 10.0, sums)
    means = decode(total_of([(worst, worst)], plan), plan, ("endless", "large", "none", "nothing"))
    assert means["global_large"] == pytest.approx(OWN_MAX, rel=1e-3)
    assert means["global_loss"] == pytest.approx(LOSS_MAX, rel=1e-3)
    assert not [name for name in means if name.endswith(("endless", "none", "nothing"))]


def test_a_plan_without_room_for_own_metrics_leaves_them_out_and_one_for_others_is_refused():
    pair = Score(4.0, 2.0, 4.0, ((1.0, 2.0),)), Score(2.0, 3.0, 4.0, ((2.0, 2.0),))
    plan = metrics_plan(2)
    assert metrics_plan(2, 0) == plan and plan.clip == CLIP
    assert decode(total_of([pair], plan), plan)["global_loss"] == pytest.approx(1.0, rel=1e-3)
    with pytest.raises(ring.RingError, match="an evaluation of 12 numbers, and the bundle gives 8"):
        encode(*pair, key(0), metrics_plan(2, 2))


def test_no_vector_is_ever_scaled_down():
    worst = Score(1e9, 10.0, 10.0)
    assert np.hypot(LOSS_MAX, 1.0) * np.sqrt(2.0) < CLIP
    plan = metrics_plan(4)
    means = decode(total_of([(worst, worst)], plan), plan)
    assert means["global_loss"] == pytest.approx(LOSS_MAX, rel=1e-3)
    assert means["global_accuracy"] == pytest.approx(1.0, rel=1e-2)


def test_a_device_counts_for_no_more_than_so_many_examples():
    plan = metrics_plan(4)
    large = Score(1e6, 0.0, 1e6)
    assert decode(total_of([(large, large)], plan), plan)["queries"] == QUERIES_MAX


def test_a_sum_that_no_honest_devices_made_is_refused():
    plan = metrics_plan(4)
    with pytest.raises(ring.RingError):
        decode(ring.zeros(plan), plan)
    forged = encode(Score(1.0, 1.0, 1.0), Score(1.0, 1.0, 1.0), key(0), plan)
    forged[0] = 2**30
    with pytest.raises(ring.RingError):
        decode(forged, plan)


def test_rounding_is_unbiased():
    """An eighth of a step a device: three thousand make 375 steps, give or take 18."""
    plan = metrics_plan(100_000)
    score = Score(1.0, 1.0, 2.0)
    assert plan.scale * 2 / QUERIES_MAX * 0.5 == 0.125
    means = decode(total_of([(score, score)] * 3_000, plan), plan)
    assert means["global_loss"] == pytest.approx(0.5, rel=0.2)
