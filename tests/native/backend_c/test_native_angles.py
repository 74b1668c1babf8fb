"""Sine, cosine and tangent of any number: of f32 natively within 2.5 ulp, in any loop."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import delian as dl
import numpy as np
import pytest
from numpy.typing import NDArray

#: Bits of pi behind the point: the largest f64 has 1,024 before it, and what is left needs some.
_BITS = 1200


def _arctan_of_inverse(n: int) -> int:
    """arctan(1 / n) 2^_BITS."""
    power, total, k = (1 << _BITS) // n, 0, 1
    while power:
        total += power // k if k % 4 == 1 else -(power // k)
        power, k = power // (n * n), k + 2
    return total


_QUARTER = 8 * _arctan_of_inverse(5) - 2 * _arctan_of_inverse(239)  # pi / 2, by Machin's formula


def _sine_and_cosine(x: float) -> tuple[np.longdouble, np.longdouble]:
    numerator, denominator = x.as_integer_ratio()
    scaled = (numerator << _BITS) // denominator
    k = (2 * scaled + _QUARTER) // (2 * _QUARTER)
    rest = scaled - k * _QUARTER
    short = max(rest.bit_length() - 64, 0)  # the bits that a long double has not
    r = np.ldexp(np.longdouble(rest >> short), short - _BITS)
    s, c = np.sin(r), np.cos(r)
    return ((s, c), (c, -s), (-s, -c), (-c, s))[k % 4]


def _near_quarters() -> list[float]:
    """For each exponent, the f32 of it that are nearest to a multiple of pi/2."""
    found = []
    for exponent in range(104):
        rest = Fraction(2) ** exponent * Fraction(1 << _BITS, _QUARTER)
        before, m = 1, 0  # denominators of the convergents of 2^exponent 2/pi
        while True:
            whole = rest.numerator // rest.denominator
            before, m = m, whole * m + before
            if m >= 1 << 24:
                break
            found += [float(n) * 2.0**exponent for n in (m, m + before) if n < 1 << 24]
            rest = 1 / (rest - whole)
    return found


def _all_sizes() -> NDArray[np.float32]:
    rng = np.random.default_rng(4)
    exponents = np.repeat(np.arange(255, dtype=np.uint32), 16)
    mantissas = rng.integers(0, 1 << 23, exponents.size, dtype=np.uint32)
    random = (exponents << np.uint32(23) | mantissas).view(np.float32)
    x = np.concatenate([random, np.array(_near_quarters(), np.float32)])
    return np.concatenate([x, -x])


def test_any_f32_has_its_sine_cosine_and_tangent() -> None:
    def f(x):
        return np.sin(x), np.cos(x), np.tan(x)

    x = _all_sizes()
    exact = np.array([_sine_and_cosine(float(v)) for v in x])
    wanted = (exact[:, 0], exact[:, 1], exact[:, 0] / exact[:, 1])
    for result, want, most in zip(dl.compile(f)(x), wanted, (1, 1, 2.5), strict=True):
        ulp = np.spacing(np.abs(want).astype(np.float32)).astype(np.longdouble)
        assert np.max(np.abs(result.astype(np.longdouble) - want) / ulp) <= most


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_any_f64_has_its_sine_and_cosine(backend: str) -> None:
    def f(x):
        return np.sin(x), np.cos(x)

    x = np.array([1e22, -1e22, 1e300, 2.0**1000, 3.0])
    exact = [_sine_and_cosine(float(v)) for v in x]
    for k, result in enumerate(dl.compile(f, backend=backend)(x)):
        want = np.array([e[k] for e in exact], np.float64)
        np.testing.assert_allclose(result, want, rtol=4e-16)


def _elementwise(x):
    return np.sin(x) + np.cos(2 * x)


def _in_place(x):
    for _ in range(3):
        x = np.sin(x) * np.float32(2) ** 30
    return x


def _row_by_row(x):
    y = x.reshape(-1, 8) + 0
    for i in range(1, len(y)):
        y[i] = np.sin(y[i - 1]) + np.cos(y[i])
    return y


def _rows(x):
    return np.sum(np.cos(x.reshape(-1, 32)), axis=1), np.max(np.sin(x))


def _columns(x):
    return np.sum(np.sin(x.reshape(-1, 32)) * x[:32], axis=0), np.sum(x.reshape(-1, 32), axis=0)


def _windows(x):
    return np.sum(np.sin(x.reshape(-1, 4)), axis=1)


def _tiles(x):
    a = x.reshape(-1, 16)
    return np.sin(a @ np.eye(16, dtype=np.float32) + a)


def _slope(x):
    return dl.grad(lambda v: np.sum(np.sin(v) * np.cos(v)))(x)


def _rank_0(x):
    return np.sin(x[0]), np.cos(x[1]), np.tan(x[2])


def _complex(x):
    return np.exp(1j * x), np.sin(x + 1j)


@pytest.mark.parametrize("large", [(), (0,), (77, 1000)])
@pytest.mark.parametrize(
    "f",
    (
        *(_elementwise, _in_place, _row_by_row, _rows, _columns, _windows, _tiles, _slope),
        *(_rank_0, _complex),
    ),
)
def test_large_angles_among_small_ones(f: Callable[..., object], large: tuple[int, ...]) -> None:
    x = np.random.default_rng(3).uniform(-3, 3, 1024).astype(np.float32)
    x[list(large)] = 1e30
    if large:
        x[5:7] = np.float32(2) ** 24, -np.inf
    given = x.copy()
    results = dl.compile(f, backend="native")(x), dl.compile(f, backend="reference")(x)
    for mine, theirs in zip(*map(_leaves, results), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=2e-5, atol=2e-5 * _size(theirs))
    assert np.array_equal(x, given)


def _leaves(result: object) -> tuple[object, ...]:
    return result if isinstance(result, tuple) else (result,)


def _size(x: object) -> float:
    finite = np.abs(np.asarray(x))
    return float(np.max(finite[np.isfinite(finite)], initial=1.0))
