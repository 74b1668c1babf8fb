"""Names of runs on the wire."""

from __future__ import annotations

import pytest
from delian.core.protocol.run_names import (
    EPOCH_MAX,
    epoch_after,
    least_useful,
    named,
    number_of,
    shown,
)

SECOND = 10**9
NOW = 1_790_000_000 * SECOND


def test_a_name_says_its_number_and_other_starts_give_other_names():
    first, second = epoch_after(0, NOW), epoch_after(0, NOW + SECOND)
    assert number_of(named(7, first)) == number_of(named(7, second)) == 7
    assert len({named(7, first), named(7, second), named(8, first)}) == 3


def test_in_simulations_a_run_is_called_by_its_number():
    assert named(7, 0) == 7


def test_epochs_grow_whatever_the_clock_does():
    epoch, seen = 0, []
    for moment in (NOW, NOW, NOW - 3600 * SECOND, NOW + 10 * SECOND):
        seen.append(epoch := epoch_after(epoch, moment))
    assert seen == sorted(set(seen))


def test_two_histories_that_begin_at_one_copy_differ_though_the_clock_stands_still():
    """A computer without a clock of its own wakes up at the same second each time."""
    copy = epoch_after(0, NOW)
    assert epoch_after(copy, 5 * SECOND + 17) != epoch_after(copy, 5 * SECOND + 923)


@pytest.mark.parametrize("epoch", [EPOCH_MAX, epoch_after(EPOCH_MAX, NOW), epoch_after(0, 2**63)])
def test_the_largest_name_has_64_bits(epoch):
    assert epoch == EPOCH_MAX and named(2**31 - 1, epoch) < 2**64


def test_a_run_that_is_called_otherwise_now_is_forgotten_before_one_that_keeps_its_name():
    assert least_useful([named(3, 9), named(7, 5), named(7, 6)]) == named(7, 5)
    assert least_useful([named(7, 6), named(7, 5), named(3, 9)]) == named(7, 5)
    assert least_useful([named(3, 9), named(7, 5), 8]) == named(3, 9), "the oldest of others"


def test_in_logs_a_run_is_its_number():
    name = named(7, 1_790_000_000)
    assert shown({"run": name, "attempt": 2, "status": 1}) == {"run": 7, "attempt": 2, "status": 1}
    assert shown({"attempt": f"{name}.3.2", "devices": 5}) == {"attempt": "7.3.2", "devices": 5}
    assert shown({"device": 7}) == {"device": 7}
