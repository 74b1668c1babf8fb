"""Names that a round of a loop gives their first values: the loop is unrolled, as far as needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError

X = np.array([3.0, -1.0, 4.0, 1.0, -5.0, 9.0])


def read_after(x):
    total = 0.0
    for k in range(5):
        total = total + x[k]
        if k == 0:
            first = total
    return total, first


def read_within(x):
    for k, v in enumerate(x):
        if k == 0:
            low = high = v
            continue
        if v < low:
            low = v
        if v > high:
            high = v
    return low, high


def in_another_round(x):
    for k in range(6):
        if k == 3:
            found = x[k]
        elif k > 3:
            found = found + x[k]
    return found


def of_many_rounds(x):
    total = 0.0
    for k in range(1500):
        if k == 0:
            a = x[0]
        else:
            a = a * 0.5 + x[k % 6]
        total = total + a
    return a, total


def that_may_end_early(x):
    for k in range(6):
        if k == 0:
            a = x[0]
        if x[k] < -2:
            break
        a = a + x[k]
    else:
        a = a * 100.0
    return a, k


def in_two_loops(x, n):
    for i in range(n):
        for j in range(3):
            if j == 0:
                s = x[i]
            s = s + x[j]
        if i == 0:
            best = s
        best = max(best, s)
    return best


def differences(x):
    out = np.zeros(5)
    for k in range(6):
        if k == 0:
            before = x[0]
            continue
        out[k - 1] = x[k] - before
        before = x[k]
    return out


def autocorrelation(x):
    n = len(x)
    r = np.zeros(n - 1)
    for k in range(n):
        total = 0
        for j in range(n - k):
            total = total + x[j + k] * x[j]
        if k == 0:
            power = total / float(n)
        else:
            r[k - 1] = total / float(n)
    return np.insert(r, 0, power)


def with_a_list(x):
    total = x[1]
    seen = []
    for k in range(1, 4):
        if k == 1:
            a = 2.0
            b = x[2]
        total = total + a
        seen.append(b)
        if x[k] > 0:
            total = total + b
    return total, len(seen), seen[2]


def the_last_round(x, n):
    for k in range(n):
        last = x[k] * 2
    return last


def of_a_while(x, n):
    while n > 0:
        last = n
        n -= 1
    return last + x[0]


ONE = (
    *(read_after, read_within, in_another_round, of_many_rounds, that_may_end_early),
    *(differences, autocorrelation, with_a_list),
)
CASES: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    *((f, (X,)) for f in ONE),
    (that_may_end_early, (abs(X),)),
    (in_two_loops, (X, 4)),
    (the_last_round, (X, 3)),
    (of_a_while, (X, 3)),
]


@pytest.mark.parametrize("backend", ["reference", "native"])
@pytest.mark.parametrize(("f", "args"), CASES, ids=[f.__name__ for f, _ in CASES])
def test_the_first_value_is_that_of_its_round(
    f: Callable[..., Any], args: tuple[Any, ...], backend: Literal["reference", "native"]
) -> None:
    want, got = f(*args), dl.compile(f, backend=backend)(*args)
    assert [type(v) for v in np.atleast_1d(got)] == [type(v) for v in np.atleast_1d(want)]
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_slope_goes_through_the_first_round() -> None:
    slope = dl.grad(lambda x: read_within(x)[1] - read_within(x)[0])(X)
    assert slope.tolist() == [0.0, 0.0, 0.0, 0.0, -1.0, 1.0]


def never(x):
    for k in range(6):
        if k == 7:
            a = x[0]
    return a


def by_the_numbers(x):
    for v in x:
        if v > 100:
            a = v
    return a


@pytest.mark.parametrize("f", [never, by_the_numbers])
def test_what_no_round_gives_surely_is_refused(f: Callable[..., Any]) -> None:
    with pytest.raises(ProgramError) as found:
        dl.compile(f, backend="reference")(X)
    assert found.value.code == "DL103"


def no_round(x, n):
    return the_last_round(x, n)


def test_a_loop_that_does_not_run_is_refused() -> None:
    with pytest.raises(ProgramError, match="`last`"):
        dl.compile(no_round, backend="reference")(X, 0)


def test_comparisons_of_indices_are_known_where_they_must_be() -> None:
    def f(x):
        out = []
        for k in range(2, 5):
            out.append((k > 1, k >= 2, k != 1, k == 9, k < 2, k >= 1, k == 3))
        return out

    assert dl.compile(f, backend="reference")(X) == f(X)


def of_another_class_than_before(x):
    y = x[0] * 0.5
    k = 0
    while k < 2:
        k += 1
        y = 2
        x *= x - 3.0
    return y, x


@pytest.mark.parametrize("backend", ["reference", "native"])
def test_a_loop_that_is_unrolled_late_has_changed_nothing(
    backend: Literal["reference", "native"],
) -> None:
    want = of_another_class_than_before(X.copy())
    got = dl.compile(of_another_class_than_before, backend=backend)(X.copy())
    assert type(got[0]) is type(want[0])
    assert got[0] == want[0]
    assert np.array_equal(got[1], want[1])
