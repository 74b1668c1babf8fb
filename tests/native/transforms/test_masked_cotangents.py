"""The slope of what a `where` leaves out is zero, whatever the slope of the function there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import delian as dl
import numpy as np
import pytest

X = np.array([-2.0, 0.0, 0.25, 4.0])
KEPT = X > 0


def root(x: Any) -> Any:
    return np.sum(np.where(x > 0, np.sqrt(x), x))


def quotient(x: Any) -> Any:
    return np.sum(np.where(x != 0, 1 / x, 0.0))


def used_twice(x: Any) -> Any:
    part = 1 / x
    return np.sum(np.where(x != 0, part * part + part, 0.0))


def nested(x: Any) -> Any:
    inner = np.where(x > 0, np.sqrt(x), np.where(x < -1, np.sqrt(-1 - x), 0.0))
    return np.sum(np.where(x < 3, inner, np.log(x)))


def else_branch(x: Any) -> Any:
    return np.sum(np.where(x <= 0, 2 * x, x * np.log(x)))


def selected(x: Any) -> Any:
    return np.sum(np.select([x > 1, x > 0], [np.log(x), np.sqrt(x)], 0.5))


def in_place(x: Any) -> Any:
    y = np.sqrt(x)
    y[x <= 0] = 0.0
    return np.sum(y)


def one_lane(x: Any) -> Any:
    return np.where(x > 0, np.sqrt(x), x)


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize(
    ("f", "slope"),
    [
        (root, [1, 1, 1, 0.25]),
        (quotient, [-0.25, 0, -16, -1 / 16]),
        (used_twice, [0.25 - 0.25, 0, -128 - 16, -2 / 64 - 1 / 16]),
        (nested, [-0.5, 0, 1, 0.25]),
        (else_branch, [2, 2, np.log(0.25) + 1, np.log(4) + 1]),
        (selected, [0, 0, 1, 0.25]),
        (in_place, [0, 0, 1, 0.25]),
        (dl.vmap(one_lane), [1, 1, 1, 0.25]),
    ],
)
def test_what_a_where_leaves_out_has_no_slope(
    f: Callable[[Any], Any], slope: list[float], backend: str
) -> None:
    with np.errstate(all="ignore"):
        found = dl.compile(dl.grad(lambda x: np.sum(f(x))), backend=backend)(X)
    np.testing.assert_allclose(found, slope, rtol=1e-12)


def test_second_derivatives_keep_the_mask() -> None:
    second = np.where(KEPT, -0.25 * np.abs(np.where(KEPT, X, 1)) ** -1.5, 0)
    np.testing.assert_allclose(dl.hessian(root)(X), np.diag(second), rtol=1e-12)


def test_a_mask_goes_back_through_rows_that_broadcast() -> None:
    def unit_rows(x: Any) -> Any:
        length = np.linalg.norm(x, axis=1, keepdims=True)
        return np.sum(np.where(length > 0, x / length, 0.0) * np.arange(2.0))

    slope = dl.grad(unit_rows)(np.array([[0.0, 0.0], [3.0, 4.0]]))
    np.testing.assert_allclose(slope, [[0, 0], [-12 / 125, 9 / 125]], rtol=1e-12)


def test_a_mask_goes_back_to_a_number_that_broadcasts() -> None:
    def scaled(x: Any, t: Any) -> Any:
        return np.sum(np.where(t != 0, x / t, 0.0))

    by_x, by_t = dl.grad(scaled, argnums=(0, 1))(np.ones(3), 0.0)
    assert by_x.tolist() == [0, 0, 0] and by_t == 0.0


def test_an_axis_of_one_element_that_broadcasts_keeps_the_mask() -> None:
    def spread(x: Any, y: Any) -> Any:
        return np.sum(np.where(x > 0, np.sqrt(x), y) * y)

    assert dl.grad(spread)(np.array([-1.0]), np.ones(2)).tolist() == [0]


def test_types_of_the_element_change_on_the_way() -> None:
    def mixed(x: Any) -> Any:
        return np.sum(np.where(x > 0, np.sqrt(x).astype(np.float64) * 2.0, 0.0))

    slope = dl.grad(mixed)(X.astype(np.float32))
    assert slope.dtype == np.float32 and slope.tolist() == [0, 0, 2, 0.5]


def test_a_complex_number_that_is_left_out_has_no_slope() -> None:
    def parts(x: Any) -> Any:
        return np.sum(np.where(x > 0, np.sqrt(x + 0j).real, 0.0))

    np.testing.assert_allclose(dl.grad(parts)(X), [0, 0, 1, 0.25], rtol=1e-12)
