"""Adaptive clipping: the clip finds the quantile, through the ring and under the noise."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import random
from delian.core.privacy.mechanisms import accountant, adaptive_clip, noise, noise_mechanism, ring
from delian.core.privacy.mechanisms.adaptive_clip import AdaptiveClip
from delian.core.privacy.mechanisms.noise_mechanism import PrivacyTarget
from delian.core.privacy.mechanisms.post_processing import finished
from delian.core.privacy.mechanisms.ring import RingPlan

DEVICES, DIMENSION = 100, 30
#: What a plan's ring has room for; the clip that moves stays below it.
CLIP_MOST = 8.0


def updates(round, median):
    """Lengths are log-normal about their median."""
    rng = np.random.default_rng(round)
    deltas = rng.normal(size=(DEVICES, DIMENSION))
    lengths = median * np.exp(0.5 * rng.normal(size=DEVICES))
    return (deltas / np.linalg.norm(deltas, axis=1, keepdims=True) * lengths[:, None]).astype("f4")


def sent(delta, plan, device=0):
    """What a device sends of an update, before its noise: its program's elements, finished."""
    key = random.key(device)
    vector = ring.encode(delta, np.float32(1), key, plan.base)
    return finished(vector, plan, bytes(8), key)


def noised_indicator(deltas, clip, round, promise):
    plan = RingPlan(CLIP_MOST, DEVICES, DIMENSION)
    if promise is not None:
        plan = noise_mechanism.planned(plan, promise)
    plan = dataclasses.replace(plan, within=clip)
    total = ring.zeros(plan)
    for device, delta in enumerate(deltas):
        vector = sent(delta, plan, device)
        if promise is not None:
            noise_mechanism.guard(vector, plan)
            noise_mechanism.add(vector, plan, bytes([round, device]) * 16)
        ring.add(total, vector)
    return ring.indicator(total, plan)


@pytest.mark.parametrize("promise", [None, PrivacyTarget(8.0, 1e-6, 20, DEVICES)])
def test_the_clip_comes_to_the_median_length_and_stays(promise):
    adaptive, seen = AdaptiveClip(first=0.1, rate=0.5), []
    for round in range(9):
        deltas = updates(round, median=0.2)
        adaptive.follow(noised_indicator(deltas, adaptive.clip, round, promise))
        seen.append(adaptive.clip)
    assert seen[0] > 0.1
    # Noise makes the last ones stray by a few parts in a hundred.
    assert np.exp(np.mean(np.log(seen[-4:]))) == pytest.approx(0.2, rel=0.25)


def test_the_indicator_is_the_share_of_devices_that_were_within():
    deltas = updates(0, median=1.0)
    clip = 1.1
    share = np.mean(np.linalg.norm(deltas, axis=1) <= clip)
    indicator = noised_indicator(deltas, clip, 0, None)
    assert indicator / (adaptive_clip.INDICATOR * clip) + 0.5 == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize("length", [0.0, 0.5, 1.0, 7.0])
def test_no_update_with_its_indicator_is_longer_than_the_plan_says(length):
    plan = RingPlan(CLIP_MOST, DEVICES, DIMENSION, within=1.0)
    delta = np.zeros(DIMENSION, np.float32)
    delta[0] = length
    *numbers, side, _ = sent(delta, plan).view(np.int32) / plan.scale
    assert (
        np.linalg.norm([*numbers, side]) <= ring.LENGTHENED * (1 + 1e-5) == plan.reach * (1 + 1e-5)
    )
    assert side == pytest.approx(0.2 if length <= 1.0 else -0.2, abs=1e-4)
    assert np.linalg.norm(numbers) == pytest.approx(min(length, 1.0), abs=1e-4)


def test_one_step_by_hand():
    adaptive = AdaptiveClip(first=2.0, quantile=0.5, rate=0.2)
    # Three quarters within: 0.25 of INDICATOR * clip, and a step of 0.2 * 0.25 down.
    adaptive.follow(0.25 * adaptive_clip.INDICATOR * 2.0)
    assert adaptive.clip == pytest.approx(2.0 * math.exp(-0.05))


def test_a_clip_never_leaves_its_bounds_whatever_noise_says():
    for indicator in (1e9, -1e9):
        adaptive = AdaptiveClip(first=1.0, rate=1.0)
        for _ in range(60):
            adaptive.follow(indicator)
        assert 1e-6 * 0.999 <= adaptive.clip <= 1e6 * 1.001


@pytest.mark.parametrize(
    "changes",
    [{"first": 0.0}, {"first": math.inf}, {"quantile": 1.0}, {"rate": 0.0}, {"moved": math.nan}],
)
def test_numbers_that_no_clip_can_follow_are_refused(changes):
    with pytest.raises(DelianError, match="clip"):
        AdaptiveClip(**{"first": 1.0, **changes})


@pytest.mark.parametrize("central", [False, True])
def test_a_clip_ends_where_rounding_would_drown_the_noise(central):
    plan = RingPlan(clip=2.0, clients_max=300, dimension=1_000_000)
    plan = noise_mechanism.planned(plan, PrivacyTarget(4.0, 1e-5, 20, 280, central=central))
    adaptive = AdaptiveClip.of(plan, 0.5, 0.2)
    for _ in range(100):
        adaptive.follow(adaptive.clip)  # everybody is within
    smallest = dataclasses.replace(plan, within=adaptive.clip)
    assert adaptive.clip < adaptive.first / 5
    assert noise_mechanism.strength(
        smallest
    ) >= noise_mechanism.STRENGTH_LEAST * noise_mechanism.strength(plan)
    # A round costs little more than it would with the largest clip.
    costs = [noise_mechanism.release(p, 280) for p in (smallest, plan)]
    small, large = (accountant.epsilon_of(cost, 1e-5) for cost in costs)
    assert small < 1.2 * large


def test_noise_of_a_clip_that_was_rounded_up_can_still_be_drawn():
    plan = RingPlan(clip=1.0, clients_max=50, dimension=100, noise=1.0)
    widest = math.sqrt(noise.VARIANCE_MAX)
    plan = dataclasses.replace(plan, noise=widest * (1 - 2**-40) / plan.scale)
    above = dataclasses.replace(plan, within=(1 + 2**-21) / ring.LENGTHENED)
    assert above.reach > plan.clip and above.scale == plan.scale
    noise.skellam(above.noise_variance)
