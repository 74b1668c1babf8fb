"""Noise in a run: plans that keep their promise, devices that check, sums that are decoded."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math

import numpy as np
import pytest
from delian.core.compiler import random
from delian.core.privacy.mechanisms import accountant, noise, noise_mechanism, ring
from delian.core.privacy.mechanisms.accountant import Budget, BudgetError
from delian.core.privacy.mechanisms.noise_mechanism import PrivacyTarget
from delian.core.privacy.mechanisms.ring import RingError, RingPlan

PLAIN = RingPlan(clip=1.0, clients_max=20, dimension=650)


def key(number):
    return hashlib.sha256(b"noising test %d" % number).digest()


def update(plan, seed, length=1.0, weight=1.0):
    delta = np.random.default_rng(seed).normal(size=plan.dimension)
    delta = (delta * (length * plan.clip / np.linalg.norm(delta))).astype(np.float32)
    return ring.encode(delta, np.float32(weight), random.key(seed), plan), delta


def promised(**changes):
    base = {"epsilon": 4.0, "delta": 1e-6, "releases": 10, "survivors": 16, "corrupt": 0.1}
    return PrivacyTarget(**{**base, **changes})


def planned(**changes):
    return noise_mechanism.planned(PLAIN, promised(**changes))


@pytest.mark.parametrize("central", [False, True])
@pytest.mark.parametrize("epsilon", [0.5, 4.0, 20.0])
def test_a_plan_s_noise_lasts_for_all_its_rounds_and_not_for_one_more(epsilon, central):
    plan = planned(epsilon=epsilon, central=central, releases=25)
    cost = noise_mechanism.release(plan, 16, 0.1)
    budget = Budget(epsilon, 1e-6)
    for _ in range(25):
        budget.spend(cost, noise_mechanism.FAILURE)
    assert 0.999 * epsilon < budget.epsilon_spent <= epsilon
    with pytest.raises(BudgetError, match="after 25 releases"):
        budget.spend(cost, noise_mechanism.FAILURE)


def test_a_promise_is_kept_by_its_own_plan_and_by_no_lesser_one():
    promise, plan = promised(), planned()
    assert promise.is_kept(plan)
    assert not promise.is_kept(dataclasses.replace(plan, noise=plan.noise * 0.999))
    assert not dataclasses.replace(promise, releases=11).is_kept(plan)
    assert not promise.is_kept(PLAIN)


def test_noise_comes_near_the_gaussian_that_the_promise_takes_at_least():
    # By dp-accounting 0.6.0: 30 Gaussian releases of multiplier 13.0499 are (2, 1e-6).
    fine = RingPlan(clip=1.0, clients_max=100, dimension=10_000)
    at_devices = noise_mechanism.planned(fine, PrivacyTarget(2.0, 1e-6, 30, 90))
    central = noise_mechanism.planned(fine, PrivacyTarget(2.0, 1e-6, 30, 90, central=True))
    assert central.noise == pytest.approx(13.05, rel=1e-3)
    assert at_devices.noise * math.sqrt(90) == pytest.approx(13.05, rel=0.005)


def test_fewer_honest_devices_add_more_noise_each():
    # Noise of 2 of 20, a tenth, is not counted: 14 add what 16 would.
    all_honest, some = planned(corrupt=0.0), planned(corrupt=0.1)
    assert some.noise / all_honest.noise == pytest.approx(math.sqrt(16 / 14), rel=1e-3)
    fewer = planned(survivors=8, corrupt=0.0)
    assert fewer.noise / all_honest.noise == pytest.approx(math.sqrt(2), rel=1e-3)


def test_more_survivors_than_planned_cost_less():
    plan = planned()
    costs = [
        accountant.epsilon_of(noise_mechanism.release(plan, n, 0.1), 1e-6) for n in (16, 18, 20)
    ]
    assert all(b < a for a, b in itertools.pairwise(costs))


def test_a_round_in_which_nobody_need_be_honest_has_no_price():
    with pytest.raises(RingError, match="corrupt") as refused:
        noise_mechanism.release(planned(), 2, 0.1)
    assert refused.value.hint


@pytest.mark.parametrize(
    "changes",
    [{"epsilon": 0.0}, {"epsilon": math.inf}, {"delta": 0.0}, {"delta": 1.0}, {"delta": 1e-17}],
)
def test_a_promise_that_cannot_be_kept_is_refused(changes):
    with pytest.raises(BudgetError):
        promised(**changes)


def test_a_promise_whose_noise_leaves_no_step_of_the_update_is_refused():
    with pytest.raises(RingError):
        planned(epsilon=1e-5)


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize("central", [False, True])
def test_a_sum_with_all_its_noise_does_not_wrap(central, rotated):
    for clients, epsilon in itertools.product((3, 100, 1000), (1.0, 8.0)):
        plan = RingPlan(2.0, clients, 5000, rotated=rotated)
        plan = noise_mechanism.planned(
            plan, PrivacyTarget(epsilon, 1e-6, 20, clients, central=central)
        )
        steps = plan.clip * plan.scale
        deviation = math.sqrt(plan.noise_variance * (1 if central else clients))
        most = clients * (steps * plan.peak + 1) + 12 * deviation
        assert most < 2 ** (plan.width - 1) <= 2**31
        assert plan.noise_variance <= (noise.GAUSSIAN_VARIANCE_MAX if central else 2.0**26)
        # A width of one bit less would make steps coarser.
        assert dataclasses.replace(plan, bits=plan.width).scale == plan.scale
        assert dataclasses.replace(plan, bits=plan.width - 1).scale < plan.scale


@pytest.mark.parametrize("rotated", [False, True])
def test_every_clipped_update_passes_the_guard(rotated):
    plan = dataclasses.replace(planned(), rotated=rotated)
    for seed, length in enumerate((0.0, 0.01, 1.0, 1.0, 100.0)):
        noise_mechanism.guard(update(plan, seed, length)[0], plan)


def test_what_is_longer_than_the_clip_does_not_pass():
    plan = planned()
    l2, _ = noise_mechanism.sensitivity(plan)
    vector, _ = update(dataclasses.replace(plan, noise=0.0), 1)
    # Made for a ring with other steps: a program that keeps another plan than the device's.
    with pytest.raises(RingError, match="long") as refused:
        vector[-1] = int(plan.weight_scale)
        noise_mechanism.guard(vector, plan)
    assert refused.value.hint
    for most, passes in ((math.floor(l2), True), (math.floor(l2) + 1, False)):
        for sign in (1, -1):
            single = np.zeros(plan.length, np.uint32)
            single[3], single[-1] = np.int32(sign * most).astype(np.uint32), plan.weight_scale
            if passes:
                noise_mechanism.guard(single, plan)
            else:
                with pytest.raises(RingError, match="long"):
                    noise_mechanism.guard(single, plan)


@pytest.mark.parametrize("weight", [0.5, 0.999])
def test_a_weight_that_tells_of_the_data_does_not_pass(weight):
    plan = planned()
    with pytest.raises(RingError, match="weight") as refused:
        noise_mechanism.guard(update(plan, 1, weight=weight)[0], plan)
    assert "weight_max" in refused.value.hint


def test_elements_of_another_length_do_not_pass():
    with pytest.raises(RingError, match="elements"):
        noise_mechanism.guard(np.zeros(3, np.uint32), planned())


def test_rounding_is_counted_in_the_length_that_a_device_may_send():
    # Coarse steps: 16 of them to the clip, and 4096 coordinates that round up half of the time.
    plan = RingPlan(clip=1.0, clients_max=1, dimension=4096, bits=8)
    assert plan.clip * plan.scale == 64
    l2, l1 = noise_mechanism.sensitivity(plan)
    assert 64 + math.sqrt(4096) >= l2 > 64
    assert l1 <= l2 * 64
    for seed in range(20):
        vector, _ = update(plan, seed)
        assert np.linalg.norm(vector[:-1].view(np.int32).astype(float)) <= l2


@pytest.mark.parametrize("central", [False, True])
def test_the_mean_of_a_noised_sum_has_the_planned_variance_and_the_right_centre(central):
    plan, devices = planned(central=central), 20
    total, deltas = ring.zeros(plan), []
    for device in range(devices):
        vector, delta = update(plan, device)
        noise_mechanism.guard(vector, plan)
        if not central:
            noise_mechanism.add(vector, plan, key(device))
        ring.add(total, vector)
        deltas.append(delta)
    if central:
        noise_mechanism.add(total, plan, key(99))
    mean, weight = ring.decode(total, plan)
    assert weight == devices
    deviation = plan.clip * plan.noise * math.sqrt(1 if central else devices) / devices
    error = mean - np.mean(deltas, 0)
    assert abs(error.std() / deviation - 1) < 5 / math.sqrt(2 * plan.dimension)
    assert abs(error.mean()) < 5 * deviation / math.sqrt(plan.dimension)


def test_a_noised_sum_that_is_still_masked_is_refused():
    plan = planned()
    total = np.random.default_rng(0).integers(0, 2**32, plan.length, dtype=np.uint32)
    total[-1] = 20 * int(plan.weight_scale)
    with pytest.raises(RingError, match="norm"):
        ring.decode(total, plan)


def test_a_plan_travels_whole():
    plan = dataclasses.replace(planned(central=True), rotated=True, bits=30)
    assert RingPlan.of(plan.message()) == plan
    assert RingPlan.of(PLAIN.message()) == PLAIN
