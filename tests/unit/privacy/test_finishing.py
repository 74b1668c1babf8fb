"""What devices do to their elements after the program: coordinates that all of them keep, and the
round's own clip.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from delian.core.compiler import random
from delian.core.privacy.mechanisms import adaptive_clip, noise_mechanism, ring
from delian.core.privacy.mechanisms.adaptive_clip import AdaptiveClip
from delian.core.privacy.mechanisms.noise import VARIANCE_MIN
from delian.core.privacy.mechanisms.noise_mechanism import PrivacyTarget
from delian.core.privacy.mechanisms.post_processing import finished
from delian.core.privacy.mechanisms.ring import INDICATOR, LENGTHENED, RingError, RingPlan

D = 500
PLAN = RingPlan(clip=4.0, clients_max=20, dimension=D)
KEYS = [n.to_bytes(8, "little") for n in range(1, 41)]


def update(seed, norm, plan=PLAN, weight=1.0):
    """A program's elements of an update of this length, and the update."""
    delta = np.random.default_rng(seed).standard_normal(plan.dimension).astype(np.float32)
    delta *= np.float32(norm / np.linalg.norm(delta))
    return ring.encode(delta, np.float32(weight), random.key(seed), plan.base), delta


def summed(vectors, plan):
    total = ring.zeros(plan)
    for vector in vectors:
        ring.add(total, vector)
    return total


def test_without_a_wish_nothing_is_done():
    vector, _ = update(1, 1.0)
    assert finished(vector, PLAN, KEYS[0], random.key(1)) is vector


class TestKeptCoordinates:
    plan = replace(PLAN, kept=50)

    def test_all_devices_keep_the_same_ones_and_each_round_others(self):
        chosen = [ring.choice(self.plan, key) for key in KEYS]
        assert all(len(c) == 50 and (np.diff(c) > 0).all() for c in chosen)
        assert np.array_equal(chosen[0], ring.choice(replace(self.plan), KEYS[0]))
        assert len({tuple(c) for c in chosen}) == len(KEYS)
        often = np.bincount(np.concatenate(chosen), minlength=D)
        assert often.max() < 14, "each with a chance of a tenth in forty rounds"

    def test_what_travels_adds_up_to_the_kept_part_of_the_mean(self):
        pairs = [update(seed, 1.0) for seed in range(5)]
        sent = [finished(v, self.plan, KEYS[3], random.key(0)) for v, _ in pairs]
        assert {len(v) for v in sent} == {51} and self.plan.wire_bytes == 204
        mean, weight = ring.decode(summed(sent, self.plan), self.plan, KEYS[3])
        exact = np.mean([d for _, d in pairs], 0)
        there = ring.choice(self.plan, KEYS[3])
        np.testing.assert_allclose(mean[there], 10 * exact[there], atol=1e-3)
        assert weight == 5.0 and not np.delete(mean, there).any()

    def test_over_rounds_the_mean_is_unbiased(self):
        vector, delta = update(7, 1.0)
        total = np.zeros(D)
        for key in KEYS * 10:
            shifted = (int.from_bytes(key, "little") * 1_000_003 + len(KEYS)).to_bytes(8, "little")
            sent = finished(vector, self.plan, shifted, random.key(0))
            total += ring.decode(sent, self.plan, shifted)[0]
        seen = np.corrcoef(total, delta)[0, 1]
        assert seen > 0.8 and np.linalg.norm(total / 400) == pytest.approx(1.0, abs=0.3)

    def test_a_narrow_rotated_ring_goes_with_it(self):
        plan = RingPlan(4.0, 20, D, bits=18, rotated=True, kept=128)
        vector, delta = update(2, 2.0, plan)
        sent = finished(vector, plan, KEYS[0], random.key(0))
        carried = ring.unpacked(ring.packed(sent, plan), plan)
        mean, _ = ring.decode(carried, plan, KEYS[0])
        # A quarter of a rotation: the error is as large as what was left out.
        assert float(mean @ delta) == pytest.approx(4.0, rel=0.5)

    def test_no_more_than_there_are_can_be_kept(self):
        with pytest.raises(RingError):
            replace(PLAN, kept=D + 1)


class TestTheRoundsClip:
    plan = replace(PLAN, within=1.5)

    @pytest.mark.parametrize("weight", [1.0, 0.25])
    def test_an_update_within_is_as_it_was_and_says_so(self, weight):
        vector, _ = update(1, 1.2, weight=weight)
        sent = finished(vector, self.plan, KEYS[0], random.key(1))
        assert np.array_equal(sent[:D], vector[:D]) and sent[-1] == vector[-1]
        within = ring.indicator(sent, self.plan) / (INDICATOR * 1.5) + 0.5
        assert within == pytest.approx(1.0, abs=1e-3)

    @pytest.mark.parametrize("weight", [1.0, 0.25])
    def test_a_longer_one_is_shortened_and_says_so(self, weight):
        vector, delta = update(1, 3.0, weight=weight)
        sent = finished(vector, self.plan, KEYS[0], random.key(1))
        mean, _ = ring.decode(sent, self.plan)
        np.testing.assert_allclose(mean, delta / 2, atol=3 / (self.plan.scale * weight))
        within = ring.indicator(sent, self.plan) / (INDICATOR * 1.5) + 0.5
        assert within == pytest.approx(0.0, abs=1e-3)

    def test_rounding_again_is_unbiased(self):
        plan = RingPlan(4.0, 20_000_000, 300, within=0.9)  # steps so coarse that they show
        vector = np.full(301, 7, np.uint32)
        vector[-1] = int(plan.weight_scale)
        norm = 7 * np.sqrt(300)
        factor = plan.within * plan.scale / norm
        assert factor < 1
        means = [
            finished(vector, plan, KEYS[0], random.key(seed))[:300].view(np.int32).mean()
            for seed in range(30)
        ]
        assert np.mean(means) == pytest.approx(7 * factor, abs=0.02)

    def test_equal_keys_give_equal_bits_and_others_others(self):
        vector, _ = update(3, 3.0)
        one, same, other = (
            finished(vector, self.plan, KEYS[0], random.key(seed)) for seed in (1, 1, 2)
        )
        assert np.array_equal(one, same) and not np.array_equal(one, other)

    def test_with_noise_it_passes_the_device_s_own_check_and_noise_is_for_the_round_s_clip(self):
        promise = PrivacyTarget(epsilon=8.0, delta=1e-6, releases=10, survivors=18)
        plan = noise_mechanism.planned(PLAN, promise)
        small = replace(plan, within=1.0)
        assert small.reach == LENGTHENED
        assert small.noise_variance == pytest.approx(plan.noise_variance * (LENGTHENED / 4.0) ** 2)
        for norm in (0.5, 3.9):
            vector, _ = update(4, norm, plan)
            sent = finished(vector, small, KEYS[0], random.key(5))
            noise_mechanism.guard(sent, small)
            with pytest.raises(RingError):
                noise_mechanism.guard(vector, small)
        # The same promise costs the same, but for the rounding of shorter updates.
        cost = [noise_mechanism.release(p, 18) for p in (plan, small)]
        assert max(cost[1]) < 1.01 * max(cost[0])

    def test_a_round_s_clip_above_the_ring_s_is_refused(self):
        replace(PLAN, within=4.0 / LENGTHENED)
        with pytest.raises(RingError):
            replace(PLAN, within=4.0)


class TestFollowing:
    def test_the_clip_comes_to_the_quantile_and_stays(self):
        norms = np.exp(np.random.default_rng(1).normal(-1.5, 0.6, 200))
        clip = AdaptiveClip.of(PLAN, quantile=0.6, rate=0.3)
        assert clip.clip == pytest.approx(4.0 / LENGTHENED)
        for _ in range(60):
            share = (norms <= clip.clip).mean()
            clip.follow(INDICATOR * clip.clip * (share - 0.5))
        assert (norms <= clip.clip).mean() == pytest.approx(0.6, abs=0.02)

    def test_it_stays_where_the_ring_has_steps_for_it(self):
        clip = AdaptiveClip.of(PLAN, quantile=0.5, rate=1.0)
        for _ in range(100):
            clip.follow(INDICATOR * clip.clip / 2)  # all are within
        assert clip.clip * PLAN.scale >= adaptive_clip.STEPS_LEAST * 0.99
        replace(PLAN, within=clip.clip)
        for _ in range(100):
            clip.follow(-INDICATOR * clip.clip / 2)
        assert clip.clip == pytest.approx(4.0 / LENGTHENED)
        clip.follow(INDICATOR * clip.clip / 2)
        assert clip.clip < 4.0 / LENGTHENED, "it does not have to come all the way back"

    def test_noise_that_could_not_be_drawn_any_more_is_where_it_stops(self):
        faint = np.sqrt(100 * VARIANCE_MIN) / (PLAN.clip * PLAN.scale)
        plan = replace(PLAN, noise=float(faint))
        clip = AdaptiveClip.of(plan, quantile=0.5, rate=1.0)
        for _ in range(100):
            clip.follow(INDICATOR * clip.clip / 2)
        replace(plan, within=clip.clip)
        with pytest.raises(RingError):
            replace(plan, within=clip.clip / 2)
