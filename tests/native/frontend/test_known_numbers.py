"""Where the structure of a program follows from an int, a compiled call takes it as known."""

from __future__ import annotations

import decimal

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import ProgramError
from scipy import signal, special
from support.small_programs import is_as_in_python

EQUALS: dict[str, tuple[str, ...]] = {
    "a list that grows in a while": (
        "out, d = [], 2\nwhile d * d <= a:\n    while a % d == 0:\n        out.append(d)\n"
        "        a //= d\n    d += 1\nif a > 1:\n    out.append(a)\nreturn out",
        "30",
        "12",
        "97",
    ),
    "a recursion in two": (
        "def power(x, n):\n    if n == 0:\n        return 1\n    half = power(x, n // 2)\n"
        "    return half * half * (x if n % 2 else 1)\nreturn power(a, b)",
        "2.0, 10",
        "1.5, 7",
    ),
    "rows of several lengths": (
        "rows, row = [], [1]\nfor _ in range(a):\n    rows.append(row)\n"
        "    row = [1] + [row[i] + row[i + 1] for i in range(len(row) - 1)] + [1]\nreturn rows",
        "4",
        "2",
    ),
}
TESTS: dict[str, tuple[str, ...]] = {
    "a number and a bool that is known": (
        "done = [False, True]\nreturn [1 if v and not done[k % 2] else 2 for k, v in enumerate(a)]",
        "np.array([0, 2, 1])",
    ),
    "numbers of several classes": (
        "out = 0\nfor v in a:\n    if v and b and v < 2.5:\n        out += 1\n"
        "    elif not (v or b):\n        out -= 1\nreturn out",
        "np.array([0, 2, 1, 3]), 0.5",
        "np.array([0, 2, 1, 3]), 0.0",
    ),
    "the test of a while": (
        "n = 0\nwhile a[n] and n < 2 or not n:\n    n += 1\nreturn n",
        "np.array([1, 1, 0])",
        "np.array([0, 1, 0])",
    ),
}


@pytest.mark.parametrize("name", [*EQUALS, *TESTS])
def test_it_is_pythons(name: str) -> None:
    is_as_in_python({**EQUALS, **TESTS}[name])


def test_the_first_refusal_is_the_one_that_is_told() -> None:
    def peaks(x, n):
        found = []
        for k in range(1, n):
            if x[k] > x[k - 1]:
                found.append(k)
        return found

    with pytest.raises(ProgramError, match="found") as caught:
        dl.compile(peaks)(np.arange(4.0), 3)
    assert caught.value.code in ("DL108", "DL109")


def test_floats_are_not_taken_as_known_for_a_structure() -> None:
    @dl.compile
    def either(x, t):
        return [x] if t > 0 else [x, x]

    with pytest.raises(ProgramError) as caught:
        either(np.arange(3.0), 0.5)
    assert caught.value.code == "DL108"


def rounded_half_up(x, width):
    size = decimal.Decimal(width * 3).quantize(decimal.Decimal("1"), decimal.ROUND_HALF_UP)
    return x * int(size)


PURE = {
    "a window of NumPy's": (lambda x, n: x * np.hamming(n), 5),
    "a window of SciPy's": (lambda x, n: x * signal.get_window("hann", n), 5),
    "a function of SciPy's that has no source": (lambda x, n: x[:n] * special.bernoulli(n)[:n], 4),
    "a decimal number": (rounded_half_up, 0.5),
    "integers from an iterator": (lambda x, n: x[:n] * np.fromiter(map(ord, "abc"), int, n), 3),
}


@pytest.mark.parametrize("name", PURE)
def test_pure_functions_take_their_numbers_as_known(name):
    f, number = PURE[name]
    x = np.arange(5.0)
    np.testing.assert_array_equal(dl.compile(f, backend="reference")(x, number), f(x, number))


def test_pure_functions_of_arrays_are_not_called():
    with pytest.raises(ProgramError, match=r"does not know `np\.i0`"):
        dl.compile(lambda x: np.i0(x), backend="reference")(np.ones(3))
