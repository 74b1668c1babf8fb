"""Uploads of which few coordinates are not zero: what travels, what it gives back, and what is no
such upload.
"""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.privacy.mechanisms import bit_packing, ring, sparse
from delian.core.privacy.mechanisms.bit_packing import PackingError
from delian.core.privacy.mechanisms.ring import RingError, RingPlan
from hypothesis import given, settings
from hypothesis import strategies as st


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.sampled_from([8, 13, 32]), st.data())
def test_what_is_sent_is_what_is_received_and_adds_up(coordinates, bits, data):
    top = data.draw(st.integers(1, coordinates))
    plan = RingPlan(1.0, 4, coordinates, bits, top=top)
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    total, expected = ring.zeros(plan), np.zeros(plan.length, np.int64)
    for _ in range(3):
        steps = np.zeros(plan.length, np.int32)
        chosen = rng.choice(coordinates, data.draw(st.integers(0, top)), replace=False)
        steps[chosen] = rng.integers(-30, 30, len(chosen))
        steps[-1] = rng.integers(0, 30)
        content = sparse.sent(steps.view(np.uint32), plan)
        assert len(content) == plan.sent_bytes and sparse.is_sent(content, plan)
        np.testing.assert_array_equal(sparse.received(content, plan).view(np.int32), steps)
        sparse.add_sent(total, memoryview(content), plan)
        expected += steps
    np.testing.assert_array_equal(ring.settled(total, plan).view(np.int32), expected)


def test_without_a_choice_it_is_what_it_was():
    plan = RingPlan(1.0, 4, 9, 12)
    vector = np.arange(10, dtype=np.uint32)
    assert sparse.sent(vector, plan) == ring.packed(vector, plan)
    assert plan.sent_bytes == plan.wire_bytes


def test_a_hundredth_of_a_large_update_is_a_fortieth_of_its_bytes_or_less():
    plan = RingPlan(1.0, 100, 100_000, top=1_000)
    assert plan.sent_bytes == -(-1_000 * 17 // 8) + 4 * 1_001
    assert 40 * plan.sent_bytes < 400_004 < 70 * plan.sent_bytes
    narrow = RingPlan(1.0, 100, 100_000, 16, top=1_000)
    assert narrow.sent_bytes < plan.sent_bytes


def test_more_than_the_plan_says_is_cut():
    plan = RingPlan(1.0, 4, 6, top=2)
    vector = np.array([0, 5, 6, 7, 0, 0, 9], np.uint32)
    assert sparse.received(sparse.sent(vector, plan), plan).tolist() == [0, 5, 6, 0, 0, 0, 9]


@pytest.mark.parametrize("places", [[3, 3], [4, 2], [1, 6], [1, 7]])
def test_places_that_are_none_are_refused(places):
    plan = RingPlan(1.0, 4, 6, top=2)
    where = bit_packing.pack(np.array(places, np.uint32), plan.place_bits)
    content = where + bit_packing.pack(np.array([1, 2, 3], np.uint32), plan.bits)
    assert len(content) == plan.sent_bytes and not sparse.is_sent(content, plan)
    with pytest.raises(PackingError):
        sparse.received(content, plan)


@pytest.mark.parametrize("length", [0, 1, 12, 14, 999])
def test_bytes_of_another_length_are_refused(length):
    plan = RingPlan(1.0, 4, 6, top=2)
    assert plan.sent_bytes == 13 and not sparse.is_sent(bytes(length), plan)


@pytest.mark.parametrize(
    "changes", [{"rotated": True}, {"noise": 1.0}, {"kept": 3}, {"within": 0.5}, {"top": 7}]
)
def test_a_choice_of_each_device_goes_with_nothing_that_needs_all_to_agree(changes):
    with pytest.raises(RingError, match="each device chooses"):
        RingPlan(**{"clip": 1.0, "clients_max": 4, "dimension": 6, "top": 2, **changes})


def test_a_plan_with_a_choice_travels_whole_and_programs_know_nothing_of_it():
    plan = RingPlan(1.0, 4, 6, top=2)
    assert RingPlan.of(plan.message()) == plan and plan.base == RingPlan(1.0, 4, 6)
