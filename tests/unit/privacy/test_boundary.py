"""Rows released at a boundary: their reach, their noise, and what it costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from delian.core.privacy.mechanisms import activation_noise
from delian.core.privacy.mechanisms.accountant import Budget, BudgetError, epsilon_of, gaussian
from delian.core.privacy.mechanisms.activation_noise import BoundaryError, Shield, Spent, noise_for
from delian.core.privacy.mechanisms.noise import VARIANCE_MAX

KEY = bytes(range(32))


def rows(count, *shape, size=1.0, seed=0):
    drawn = np.random.default_rng(seed).normal(size=(count, *shape)) * size
    return drawn.astype(np.float32)


@pytest.fixture
def no_noise(monkeypatch):
    monkeypatch.setattr(activation_noise.noise, "add", lambda *_: None)


@pytest.mark.parametrize("noise", [0.01, 0.3, 1.0, 7.7, 1e4])
@pytest.mark.parametrize("clip", [1e-3, 1.0, 50.0])
def test_the_noise_is_one_that_can_be_drawn(noise, clip):
    shield = Shield(clip, noise)
    assert 2.0**24 <= shield.variance < VARIANCE_MAX
    assert math.log2(shield.step) == round(math.log2(shield.step))
    assert math.sqrt(shield.variance) * shield.step == pytest.approx(noise * clip)


@pytest.mark.parametrize("size", [0.01, 1.0, 1e6])
def test_no_two_rows_are_further_apart_than_the_reach(size, no_noise):
    shield = Shield(2.0, 0.5)
    for width in (1, 7, 300):
        one, other = (
            shield.release(rows(50, width, size=size, seed=seed), KEY) / shield.step
            for seed in (1, 2)
        )
        apart = np.linalg.norm(one.astype(np.float64) - other, axis=1)
        assert apart.max() <= shield.reach(width)
        opposite = np.linalg.norm(one.astype(np.float64), axis=1) * 2  # of a row and its negative
        assert opposite.max() <= shield.reach(width)
    assert 2 * 2.0 / shield.step < shield.reach(300) < 2 * 2.0 / shield.step * 1.01


def test_without_noise_short_rows_are_themselves_to_half_a_step(no_noise):
    shield = Shield(128.0, 0.125)
    given = rows(20, 3, 5)
    released = shield.release(given, KEY)
    assert np.abs(released - given).max() <= shield.step / 2
    assert released.shape == given.shape and released.dtype == np.float32


def test_long_rows_keep_their_direction(no_noise):
    shield = Shield(1.0, 0.125)
    given = rows(20, 16, size=10.0)
    wanted = given / np.linalg.norm(given, axis=1, keepdims=True)
    assert np.abs(shield.release(given, KEY) - wanted).max() <= shield.step


def test_noise_is_on_every_number_and_as_wide_as_it_says():
    shield = Shield(1.0, 2.0)
    released = shield.release(np.zeros((100, 400), np.float32), KEY)
    assert released.std() == pytest.approx(2.0, rel=0.02)
    assert abs(released.mean()) < 0.05
    steps = released / np.float32(shield.step)
    assert np.array_equal(steps, np.rint(steps))
    # No two rows, and no two columns, have the same.
    assert np.abs(np.corrcoef(released[:8]) - np.eye(8)).max() < 0.3


def test_noise_follows_from_its_key_alone():
    shield, zeros = Shield(1.0, 1.0), np.zeros((2, 8), np.float32)
    first = shield.release(zeros, KEY)
    assert np.array_equal(shield.release(zeros, KEY), first)
    assert not np.array_equal(shield.release(zeros, KEY[::-1]), first)


def test_a_pass_costs_each_example_one_release_of_each_tensor():
    one, two = Shield(1.0, 4.0), Shield(0.5, 8.0)
    spent = Spent(Budget(100.0, 1e-6), ((64, one), (10, two)))
    spent.spend()
    spent.spend()
    by_hand = [
        2 * (a + b)
        for a, b in zip(
            gaussian(one.reach(64), one.variance),
            gaussian(two.reach(10), two.variance),
            strict=True,
        )
    ]
    assert spent.budget.epsilon_spent == pytest.approx(epsilon_of(tuple(by_hand), 1e-6))
    # Nearly what real-valued noise has: two passes at (2C / zC)^2 / 2 = 1/8 and 1/32 an alpha.
    ideal = tuple(2 * (1 / 8 + 1 / 32) * d for d in gaussian(1.0, 0.5))
    assert spent.budget.epsilon_spent == pytest.approx(epsilon_of(ideal, 1e-6), rel=0.02)


def test_a_pass_that_would_break_the_promise_is_not_begun():
    spent = Spent(Budget(5.0, 1e-6), ((64, Shield(1.0, 5.0)),))
    with pytest.raises(BudgetError, match="privacy budget"):
        for _ in range(1000):
            spent.spend()
    assert 1 < spent.budget.releases < 1000
    assert spent.budget.epsilon_spent <= 5.0


def test_the_least_noise_for_a_promise_just_keeps_it():
    first, second = noise_for(8.0, 1e-6, passes=20, rows=(64, 10), clips=(3.0, 0.1))
    assert (first.clip, second.clip) == (3.0, 0.1) and first.noise == second.noise
    for z, keeps in ((first.noise, True), (first.noise * 0.99, False)):
        tried = Spent(Budget(8.0, 1e-6), ((64, Shield(3.0, z)), (10, Shield(0.1, z))))
        total = tuple(20 * d for d in tried.cost)
        assert tried.budget.allows(total) is keeps
    with pytest.raises(BoundaryError, match="out of reach"):
        noise_for(1e-6, 1e-9, passes=10**6, rows=(64,), clips=(1.0,))


def test_what_cannot_be_released_is_refused():
    shield = Shield(1.0, 1.0)
    with pytest.raises(BoundaryError, match="not finite"):
        shield.release(np.array([[np.nan]], np.float32), KEY)
    with pytest.raises(BoundaryError, match="no rows"):
        shield.release(np.zeros((2, 2)), KEY)
    with pytest.raises(BoundaryError, match="no rows"):
        shield.release(np.float32(1.0).reshape(()), KEY)
    with pytest.raises(BoundaryError, match="a row of 0"):
        shield.cost(0)
    for clip, noise in ((0.0, 1.0), (1.0, 0.0), (1.0, 1e6), (math.nan, 1.0)):
        with pytest.raises(BoundaryError, match="a norm from"):
            Shield(clip, noise)
    assert shield.release(np.zeros((0, 3), np.float32), KEY).shape == (0, 3)
