"""Rotation: orthonormal, the same bits everywhere, and finer steps in the same ring."""

from __future__ import annotations

import dataclasses

import delian as dl
import numpy as np
import pytest
from delian.core.compiler import random
from delian.core.privacy.mechanisms import ring, rotation
from delian.core.privacy.mechanisms.ring import RingPlan


def normal(count, seed=0):
    return np.random.default_rng(seed).normal(size=count).astype(np.float32)


def spike(count):
    """All of the length in one coordinate: what coordinates of a fixed size serve worst."""
    x = np.zeros(count, np.float32)
    x[count // 3] = 1.0
    return x


@pytest.mark.parametrize(
    ("dimension", "block", "padded"),
    [
        (1, 1, 1),
        (2, 4, 4),
        (4, 4, 4),
        (5, 16, 16),
        (650, 1024, 1024),
        (4096, 4096, 4096),
        (4097, 4096, 8192),
        (1 << 20, 4096, 1 << 20),
    ],
)
def test_blocks_are_powers_of_four_no_larger_than_the_vector_needs(dimension, block, padded):
    assert rotation.block_of(dimension) == block
    assert rotation.padded(dimension) == padded


def test_a_small_rotation_is_hadamard_s_matrix_times_the_signs():
    basis = np.eye(4, dtype=np.float32)
    columns = np.stack([rotation.rotate(row, 4) for row in basis], axis=1)
    signs = columns[0] * 2  # the first row of H is all ones
    # By hand: H of order 4 in Sylvester's order, divided by sqrt(4).
    hadamard = [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    assert np.array_equal(columns, np.array(hadamard) * signs / 2)
    assert set(np.abs(signs)) == {1.0}


@pytest.mark.parametrize("dimension", [1, 3, 650, 5000, 8192])
def test_lengths_stay_and_the_way_back_leads_back(dimension):
    x = normal(dimension)
    y = rotation.rotate(x, dimension)
    assert y.shape == (rotation.padded(dimension),) and y.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(y), np.linalg.norm(x), rtol=1e-6)
    np.testing.assert_allclose(rotation.rotate_back(y, dimension), x, atol=1e-5)


def test_about_half_of_the_signs_are_negative_and_neighbours_do_not_agree():
    # One block of ones turns into H times the signs, whose first element is their sum.
    ones = np.ones(4096, np.float32)
    assert abs(rotation.rotate(ones, 4096)[0] * 64) < 5 * 64
    turned = np.abs(rotation.rotate(ones, 4096))
    assert turned.max() < rotation.SPREAD


@pytest.mark.parametrize("make", [normal, spike])
def test_no_coordinate_of_a_rotated_vector_is_large(make):
    x = make(100_000)
    y = rotation.rotate(x, len(x))
    assert np.abs(y).max() <= rotation.peak(len(x)) * np.linalg.norm(x)
    assert rotation.peak(100_000) == 0.125 and rotation.peak(16) == 1.0


PLAN = RingPlan(clip=1.5, clients_max=100, dimension=5000, rotated=True)


def encode_here(delta, weight, key):
    return ring.encode(delta, weight, key, PLAN)


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_a_compiled_device_uploads_the_same_bits_of_a_rotated_update(backend):
    compiled = dl.compile(encode_here, backend=backend)
    for seed in range(4):
        arguments = normal(5000, seed) * np.float32(0.005 * 4**seed), np.float32(0.3)
        arguments = *arguments, random.key(seed)
        assert np.array_equal(compiled(*arguments), encode_here(*arguments))
        assert compiled(*arguments).shape == (8193,)


def mean_of(plan, deltas):
    total = ring.zeros(plan)
    for i, delta in enumerate(deltas):
        ring.add(total, ring.encode(delta, np.float32(1), random.key(i), plan))
    return ring.decode(total, plan)[0]


def test_decoding_turns_the_mean_back():
    deltas = [normal(5000, i) / np.float32(80) for i in range(10)]
    np.testing.assert_allclose(mean_of(PLAN, deltas), np.mean(deltas, 0), atol=1e-6)


def test_a_peak_that_nobody_expects_is_cut_and_does_not_wrap():
    # A vector made to fit the signs: turned back from one that is all in one coordinate.
    worst = rotation.rotate_back(spike(8192), 5000)
    plan = dataclasses.replace(PLAN, clients_max=8, clip=1.0)
    vector = ring.encode(worst, np.float32(1), random.key(0), plan).view(np.int32)
    most = plan.peak * plan.clip * plan.scale
    assert np.abs(vector[:-1]).max() <= most + 1
    assert 8 * (most + 1) < 2**31


@pytest.mark.parametrize("bits", [16, 20])
@pytest.mark.parametrize("make", [normal, spike])
def test_in_a_narrow_ring_the_mean_is_nearer_with_rotation(bits, make):
    dimension, devices = 4096, 50
    deltas = [make(dimension) for _ in range(devices)]
    deltas = [(d / np.linalg.norm(d)).astype(np.float32) for d in deltas]
    errors = []
    for rotated in (False, True):
        plan = RingPlan(1.0, devices, dimension, bits, rotated=rotated)
        errors.append(np.linalg.norm(mean_of(plan, deltas) - np.mean(deltas, 0)))
    # Steps are eight times finer. A spike alone in its vector is rounded exactly without rotation:
    # there is nothing to gain there.
    if make is normal:
        assert errors[1] < errors[0] / 6
    else:
        assert errors[1] < 0.15
