"""The ring: exact sums, unbiased rounding, and plans that cannot overflow."""

from __future__ import annotations

import delian as dl
import numpy as np
import pytest
from delian.core.compiler import random
from delian.core.privacy.mechanisms import ring
from delian.core.privacy.mechanisms.ring import RingError, RingPlan
from hypothesis import given
from hypothesis import strategies as st

LARGEST = 2**31 - 1


def plans():
    return st.builds(
        RingPlan,
        clip=st.floats(1e-3, 1e3),
        clients_max=st.integers(1, 2_000),
        dimension=st.integers(1, 40),
    )


def signed(vector):
    return vector.view(np.int32).astype(object)


@given(plans())
def test_the_largest_possible_sum_does_not_wrap(plan):
    # A clipped coordinate is at most clip (and a little, for one rounding to f32); rounding adds
    # less than one.
    most = int(plan.clip * (1 + 2.0**-21) * plan.scale) + 1
    assert plan.clients_max * most <= LARGEST
    assert plan.clients_max * (int(plan.weight_scale) + 1) <= LARGEST


@given(plans())
def test_a_scale_twice_as_large_could_wrap(plan):
    assert plan.clients_max * (2 * plan.clip * plan.scale * (1 + 2.0**-20) + 1) >= 2**31


def test_scales_are_powers_of_two_so_that_scaling_is_exact():
    plan = RingPlan(clip=3.7, clients_max=77, dimension=5)
    assert np.frexp(plan.scale)[0] == np.frexp(plan.weight_scale)[0] == 0.5


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"clients_max": 2**31}, "overflow"),
        ({"clients_max": 2**30}, "overflow"),
        ({"clip": 0.0}, "clip"),
        ({"clip": float("nan")}, "clip"),
        ({"clip": float("inf")}, "clip"),
        ({"clients_max": 0}, "clients_max"),
        ({"dimension": 0}, "0 numbers"),
        ({"dimension": 2**28 + 1}, "numbers"),
        ({"bits": 64}, "64 bits"),
        ({"noise": 5e-324}, "noise is"),
        ({"noise": -1.0}, "noise is"),
        ({"noise": float("nan")}, "noise is"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(changes, says):
    with pytest.raises(RingError, match=says) as refused:
        RingPlan(**{"clip": 1.0, "clients_max": 100, "dimension": 10, **changes})
    assert refused.value.hint


@given(plans(), st.integers(0, 2**32 - 1), st.floats(2.0**-10, 1.0, width=32))
def test_an_encoded_update_is_within_one_step_of_the_clipped_one(plan, seed, weight):
    delta = np.random.default_rng(seed).normal(size=plan.dimension).astype(np.float32)
    vector = ring.encode(delta, np.float32(weight), random.key(seed), plan)
    assert vector.dtype == np.uint32 and vector.shape == (plan.length,)
    norm = np.linalg.norm(delta.astype(np.float64))
    exact = delta.astype(np.float64) * min(1.0, plan.clip / norm) * weight * plan.scale
    steps = vector.view(np.int32).astype(np.float64)
    assert np.all(np.abs(steps[:-1] - exact) <= 1 + np.abs(exact) * 2.0**-22)
    assert abs(steps[-1] - weight * plan.weight_scale) < 1


def test_rounding_is_unbiased():
    plan = RingPlan(clip=1.0, clients_max=1000, dimension=8)
    # Fractions of a step: only the rounding decides.
    delta = (np.linspace(-3.9, 3.9, 8) / plan.scale).astype(np.float32)
    tries = 4000
    steps = np.stack(
        [
            ring.encode(delta, np.float32(1), random.key(i), plan).view(np.int32)[:-1]
            for i in range(tries)
        ]
    )
    exact = delta.astype(np.float64) * plan.scale
    assert set((steps - np.floor(exact)).ravel()) == {0, 1}
    # The mean of `tries` draws strays by at most 1/2 / sqrt(tries) a standard deviation; five of
    # them.
    assert np.all(np.abs(steps.mean(0) - exact) < 5 * 0.5 / np.sqrt(tries))


def test_equal_keys_give_equal_bits():
    plan = RingPlan(clip=1.0, clients_max=10, dimension=100)
    delta = np.random.default_rng(0).normal(size=100).astype(np.float32)
    one, two = (ring.encode(delta, np.float32(0.5), random.key(7), plan) for _ in range(2))
    other = ring.encode(delta, np.float32(0.5), random.key(8), plan)
    assert np.array_equal(one, two) and not np.array_equal(one, other)


COMPILED = RingPlan(clip=1.5, clients_max=100, dimension=257)


def encode_here(delta, weight, key):
    return ring.encode(delta, weight, key, COMPILED)


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_a_compiled_device_uploads_the_same_bits(backend):
    compiled = dl.compile(encode_here, backend=backend)
    for seed in range(5):
        # Of norm below and above the clip.
        delta = np.random.default_rng(seed).normal(0, 0.02 * 4**seed, 257).astype(np.float32)
        arguments = delta, np.float32(0.3), random.key(seed)
        assert np.array_equal(compiled(*arguments), encode_here(*arguments))


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_an_update_in_parts_is_the_update(backend):
    rng = np.random.default_rng(0)
    leaves = [rng.normal(0, 0.2, s).astype(np.float32) for s in [(3, 2), (1,), (10, 20), (50,)]]
    assert [part.size for part in ring.parts(leaves)] == [7, 200, 50]
    arguments = *leaves, np.float32(0.3), random.key(1)
    whole = np.concatenate([leaf.reshape(-1) for leaf in leaves])
    assert np.array_equal(
        dl.compile(encode_leaves, backend=backend)(*arguments),
        ring.encode(whole, *arguments[-2:], COMPILED),
    )


def encode_leaves(a, b, c, d, weight, key):
    parts = ring.parts([a, b, c, d])
    return ring.quantised(parts, ring.shrink(parts, COMPILED.clip), weight, key, COMPILED)


@given(st.data())
def test_any_order_and_grouping_gives_the_sum_of_the_integers(data):
    plan = RingPlan(clip=2.0, clients_max=64, dimension=6)
    seeds = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=12))
    vectors = [
        ring.encode(
            np.random.default_rng(s).normal(size=6).astype(np.float32),
            np.float32(0.25),
            random.key(s),
            plan,
        )
        for s in seeds
    ]
    exact = sum(signed(v) for v in vectors)
    order = data.draw(st.permutations(range(len(vectors))))
    cut = data.draw(st.integers(0, len(vectors)))
    edges = []
    for part in (order[:cut], order[cut:]):
        total = ring.zeros(plan)
        for i in part:
            ring.add(total, vectors[i])
        edges.append(total)
    ring.add(edges[0], edges[1])
    assert np.array_equal(signed(edges[0]), exact)


def test_a_mask_and_its_opposite_leave_no_trace():
    plan = RingPlan(clip=1.0, clients_max=10, dimension=50)
    rng = np.random.default_rng(1)
    plain = rng.integers(0, 1000, plan.length, dtype=np.uint32)
    mask = rng.integers(0, 2**32, plan.length, dtype=np.uint32)
    total = plain.copy()
    ring.add(total, mask)
    ring.add(total, np.negative(mask))
    assert np.array_equal(total, plain)


def test_decoding_gives_the_weighted_mean():
    plan = RingPlan(clip=100.0, clients_max=10, dimension=3)
    deltas = np.array([[1, 2, 3], [-5, 0, 1]], np.float32)
    weights = np.array([0.25, 0.75], np.float32)
    total = ring.zeros(plan)
    for i in range(2):
        ring.add(total, ring.encode(deltas[i], weights[i], random.key(i), plan))
    mean, weight = ring.decode(total, plan)
    assert weight == pytest.approx(1.0, abs=1e-6)
    assert mean.dtype == np.float32
    # Worked out by hand: (0.25 * [1, 2, 3] + 0.75 * [-5, 0, 1]) / 1.
    np.testing.assert_allclose(mean, [-3.5, 0.5, 1.5], atol=3 / plan.scale)


def test_decoding_in_blocks_is_the_same_as_at_once():
    plan = RingPlan(clip=1e6, clients_max=2, dimension=200_003)
    total = np.random.default_rng(0).integers(0, 2**20, plan.length, dtype=np.uint32)
    total[-1] = int(plan.weight_scale)
    mean, weight = ring.decode(total, plan)
    once = (total[:-1].view(np.int32) / (plan.scale * weight)).astype(np.float32)
    assert np.array_equal(mean, once)


def test_a_sum_without_weight_is_refused():
    plan = RingPlan(clip=1.0, clients_max=2, dimension=3)
    with pytest.raises(RingError, match="weights"):
        ring.decode(ring.zeros(plan), plan)


def test_a_sum_that_is_still_masked_is_refused():
    plan = RingPlan(clip=1.0, clients_max=4, dimension=1000)
    total = np.random.default_rng(0).integers(0, 2**32, plan.length, dtype=np.uint32)
    total[-1] = int(plan.weight_scale)
    with pytest.raises(RingError, match="norm"):
        ring.decode(total, plan)


def test_a_sum_of_another_length_is_refused():
    plan = RingPlan(clip=1.0, clients_max=4, dimension=10)
    with pytest.raises(RingError, match="elements"):
        ring.decode(np.zeros(10, np.uint32), plan)


class TestNarrowRings:
    @given(st.integers(8, 32), st.integers(1, 40), st.integers(0, 2**32 - 1))
    def test_masks_and_sums_of_packed_vectors_are_those_of_the_integers(
        self, bits, dimension, seed
    ):
        plan = RingPlan(1.0, 3, dimension, bits)
        draw = np.random.default_rng(seed)
        most = 2 ** (bits - 1) // 3
        plain = draw.integers(-most, most, (3, plan.length))
        masks = draw.integers(0, 2**32, (3, plan.length), np.uint32)
        total = np.zeros(plan.length, np.uint32)
        for vector, mask in zip(plain, masks, strict=True):
            sent = ring.packed(vector.astype(np.int32).view(np.uint32) + mask, plan)
            assert len(sent) == plan.wire_bytes == -(-plan.length * bits // 8)
            assert ring.is_packed(sent, plan)
            ring.add(total, ring.unpacked(sent, plan))
        # An edge's sum goes up packed too.
        total = ring.unpacked(ring.packed(total, plan), plan) - masks.sum(0, dtype=np.uint32)
        assert ring.settled(total, plan).view(np.int32).tolist() == plain.sum(0).tolist()

    @pytest.mark.parametrize("bits", [12, 20, 31])
    def test_a_mean_is_read_whatever_stands_above_the_ring(self, bits):
        plan = RingPlan(2.0, 4, 33, bits)
        delta = np.linspace(-0.2, 0.2, 33, dtype=np.float32)
        vector = ring.encode(delta, np.float32(1), random.key(3), plan)
        mean, weight = ring.decode(vector, plan)
        above = vector + (np.arange(34, dtype=np.uint32) << np.uint32(bits))
        same, also = ring.decode(above, plan)
        assert np.array_equal(mean, same) and weight == also == 1.0
        np.testing.assert_allclose(mean, delta, atol=1.01 / plan.scale)

    def test_what_is_not_packed_is_known(self):
        plan = RingPlan(1.0, 2, 2, 27)  # 81 bits: seven of the last byte are unused
        sent = ring.packed(np.arange(3, dtype=np.uint32), plan)
        assert ring.is_packed(sent, plan)
        assert not ring.is_packed(sent[:-1], plan) and not ring.is_packed(sent + b"\0", plan)
        assert not ring.is_packed(sent[:-1] + b"\x80", plan)

    def test_a_ring_that_noise_has_made_coarse_loses_its_empty_bits_and_no_step(self):
        plan = RingPlan(1.0, 300, 1_000, noise=0.05)
        narrow = ring.narrowed(plan)
        assert narrow.bits < 28 and narrow.scale == plan.scale
        assert narrow.wire_bytes < 0.88 * plan.wire_bytes
        assert RingPlan(1.0, 300, 1_000, narrow.bits - 1, noise=0.05).scale < plan.scale
