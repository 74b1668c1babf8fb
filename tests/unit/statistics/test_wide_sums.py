"""Sums of fixed-point numbers are exact, whatever their signs, for any number of devices."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from delian.core.privacy.mechanisms.wide_sums import CLIENTS_MAX, WideSum, WideSumError

FORMS = [(40, 40), (63, 0), (20, 40), (100, 60), (30, -5), (1, 0), (23, 40), (50, 0), (33, 20)]


@pytest.mark.parametrize("clients_max", [1, 2, 3, 5, 8, 1000, CLIENTS_MAX])
@pytest.mark.parametrize(("before", "after"), FORMS)
def test_the_sum_is_that_of_the_rounded_numbers(clients_max: int, before: int, after: int) -> None:
    draw = random.Random(f"{clients_max} {before} {after}")
    form, devices = WideSum(clients_max, before, after), min(clients_max, 6)
    numbers = [
        np.array([draw.uniform(-1, 1) * 2.0 ** (before - draw.randint(3, 25)) for _ in range(40)])
        for _ in range(devices)
    ]
    total = np.zeros(40 * form.limbs, np.uint32)
    for each in numbers:
        total += form.encode(each)
    scale = Fraction(2) ** after
    wanted = [sum(round(Fraction(float(n[i])) * scale) for n in numbers) for i in range(40)]
    assert form.exact(total) == wanted
    nearest = np.array([float(w / scale) for w in wanted])
    np.testing.assert_allclose(form.decode(total), nearest, rtol=4e-16, atol=0)


def test_the_most_devices_at_the_largest_and_the_smallest_number_do_not_wrap() -> None:
    form = WideSum(CLIENTS_MAX, 40, 40)
    ends = np.array([2.0**24 - 2.0**-28, -(2.0**24) + 2.0**-28, -(2.0**-40), 0.0])
    total = form.encode(ends) * np.uint32(CLIENTS_MAX)  # as if each device had sent the same
    assert form.limb_bits == 16
    np.testing.assert_array_equal(form.decode(total), ends * CLIENTS_MAX)


def test_whole_numbers_of_62_bits_are_summed_exactly() -> None:
    form, draw = WideSum(9, 63, 0), random.Random(1)
    numbers = [[draw.randrange(-(2**59), 2**59) for _ in range(50)] for _ in range(9)]
    total = np.zeros(50 * form.limbs, np.uint32)
    for each in numbers:
        total += form.encode(np.array(each))
    assert form.exact(total) == [sum(column) for column in zip(*numbers, strict=True)]


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**40, -(2.0**41)])
def test_what_has_no_room_is_refused(value: float) -> None:
    with pytest.raises(WideSumError):
        WideSum(4, 40).encode(np.array([1.0, value]))


@pytest.mark.parametrize(
    ("clients_max", "before", "after"), [(0, 4, 4), (65_537, 4, 4), (4, -9, 4), (4, 300, 300)]
)
def test_a_form_that_cannot_be_is_refused(clients_max: int, before: int, after: int) -> None:
    with pytest.raises(WideSumError):
        WideSum(clients_max, before, after)


def test_a_total_of_another_length_is_refused() -> None:
    form = WideSum(4, 40)
    with pytest.raises(WideSumError):
        form.decode(np.zeros(form.limbs + 1, np.uint32))
