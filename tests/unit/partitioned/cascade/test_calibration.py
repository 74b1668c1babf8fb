"""Thresholds from held-out examples, against trying them all."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.placement.cascade.calibration import (
    GRID,
    Held,
    Point,
    curve,
    for_accuracy,
    for_share,
    sure,
    tail,
)
from delian.core.placement.cascade.hard_examples import EVERYTHING


def drawn(n, seed=0, large=0.98):
    """Examples whose small model is right as often as it is confident."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0.3, 1.0, n)
    return Held(confidence, rng.uniform(size=n) < confidence, rng.uniform(size=n) < large)


def test_the_curve_is_what_trying_every_threshold_gives():
    rng = np.random.default_rng(3)
    confidence = rng.integers(0, 6, 40) / 5  # many are equal
    confidence[:3] = math.nan
    held = Held(confidence, rng.uniform(size=40) < 0.6, rng.uniform(size=40) < 0.9)
    tried = [held.at(t) for t in [*sorted(set(confidence[3:])), EVERYTHING]]
    assert [(p.threshold, p.share) for p in curve(held)] == [(p.threshold, p.share) for p in tried]
    assert [p.accuracy for p in curve(held)] == pytest.approx([p.accuracy for p in tried])


def test_the_ends_of_the_curve_are_the_two_models():
    held = drawn(500)
    first, *_, last = curve(held)
    assert (first.share, first.accuracy) == (0.0, held.small.mean())
    assert (last.share, last.accuracy) == (1.0, held.large.mean())


@pytest.mark.parametrize("share", [0.0, 0.1, 0.333, 1.0])
def test_a_share_is_used_up_and_not_exceeded(share):
    held = drawn(301)
    point = for_share(held, share)
    assert point.share <= share < point.share + 1 / 301 + 1e-12 or point.share == share
    assert held.at(point.threshold) == point


def test_an_accuracy_is_had_for_the_least_that_goes_up():
    held = drawn(400)
    point = for_accuracy(held, 0.9)
    assert point.accuracy >= 0.9
    assert all(p.accuracy < 0.9 for p in curve(held) if p.share < point.share)


def test_an_accuracy_that_no_threshold_has_names_the_best():
    with pytest.raises(DelianError, match="the best has"):
        for_accuracy(drawn(400), 0.9999)


def test_a_binomial_tail_is_the_sum_of_its_terms():
    for n, right, p in [(10, 7, 0.5), (25, 25, 0.9), (25, 0, 0.9), (40, 13, 0.2)]:
        terms = [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(right, n + 1)]
        assert tail(n, right, p) == pytest.approx(sum(terms), rel=1e-9)
    assert tail(5, 3, 1.0) == 1.0 and tail(5, 3, 0.0) == 0.0


def test_a_promise_is_kept_on_new_examples_as_often_as_it_says():
    # The accuracy of a threshold on all examples there could be: what a large draw gives.
    whole = drawn(400_000, seed=99)
    kept, shares = 0, []
    for seed in range(60):
        point = sure(drawn(300, seed=seed), 0.85, failure=0.1)
        kept += whole.at(point.threshold).accuracy >= 0.85
        shares.append(point.share)
    assert kept >= 54 - 10  # nine in ten are promised; four standard deviations less
    assert np.mean(shares) < 0.9  # and it is no promise to send everything


def test_a_choice_without_a_promise_breaks_it_more_often():
    whole = drawn(400_000, seed=99)
    kept = sum(
        whole.at(for_accuracy(drawn(300, seed=seed), 0.85).threshold).accuracy >= 0.85
        for seed in range(60)
    )
    assert kept < 54 - 10


def test_a_promise_that_too_few_examples_bear_is_refused():
    right = np.ones(20, np.bool_)
    with pytest.raises(DelianError, match="promised, of 20"):
        sure(Held(np.linspace(0, 1, 20), right, right), 0.99)
    assert sure(Held(np.linspace(0, 1, 20), right, right), 0.8).share == 0.0


def test_the_grid_was_fixed_beforehand_and_falls_from_everything_to_nothing():
    assert GRID[0] == EVERYTHING and GRID[-1] == 0.0
    assert all(a > b for a, b in pairwise(GRID))


def test_answers_that_are_not_finite_go_up_at_every_threshold():
    confidence = np.array([math.nan, 0.2, 0.8])
    no = np.zeros(3, np.bool_)
    assert Held(confidence, no, ~no).at(0.0) == Point(0.0, 1 / 3, 1 / 3)
    with pytest.raises(DelianError, match="not finite"):
        for_share(Held(confidence, no, no), 0.1)


def test_what_is_wrong_is_refused():
    no = np.zeros(3, np.bool_)
    for held in ((np.zeros(0), no[:0], no[:0]), (np.zeros(3), no, no[:2])):
        with pytest.raises(DelianError, match="as many of each"):
            Held(*held)
    with pytest.raises(DelianError, match="from 0 to 1"):
        for_share(drawn(10), 1.5)
