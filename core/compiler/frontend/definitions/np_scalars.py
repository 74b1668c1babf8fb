"""Functions of Python's numbers that no function of NumPy's computes: of `math`, and `round`."""

from __future__ import annotations

import math

import numpy as np

from ...ir import Tensor


def compensated(total: float, lost: float, value: float) -> tuple[float, float]:
    """A step of Neumaier's sum: the next total, and all that rounding has taken from it."""
    after = total + value
    larger, smaller = (total, value) if abs(total) >= abs(value) else (value, total)
    return after, lost + ((larger - after) + smaller)


def settled(total: float, lost: float) -> float:
    """A total with what it has lost; neither an infinity nor the sign of a zero changes."""
    return total + lost if lost != 0.0 and math.isfinite(lost) else total


def factorial(n: int) -> int:
    total = 1
    for k in range(2, n + 1):
        total = total * k
    return total


def comb(n: int, k: int) -> int:
    total = 1
    for j in range(min(k, n - k)):
        total = total * (n - j) // (j + 1)
    return total if k <= n else 0


def perm(n: int, k: int) -> int:
    total = 1
    for j in range(k):
        total = total * (n - j)
    return total


def remainder(x: float, y: float) -> float:
    """`math.remainder`, by exact operations alone (IEEE 754, 5.3.1).

    The quotient is rounded to the nearest whole number, to even in the middle.
    """
    size, step = abs(x), abs(y)
    below = math.fmod(size, step)
    above = step - below
    rest = below
    if below > above:
        rest = -above
    elif below == above:
        rest = below - 2.0 * math.fmod(0.5 * (size - below), step)
    return math.copysign(1.0, x) * rest


#: Splits a float into two of half as many digits: Dekker, "A floating-point technique for extending
#: the available precision", 1971.
_SPLIT = 2.0**27 + 1


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    wide = x * _SPLIT
    high = wide - (wide - x)
    return high, x - high


def rounded_to(x: Tensor, scale: float) -> Tensor:
    """`round(x, digits)` of a float, with scale = 10^digits, digits from 0 to 22.

    Python rounds the exact decimal value of x. The product below is the exact one less `rest`,
    which decides where the product lies in the middle of two whole numbers.
    """
    product = x * scale
    (a, b), (c, d) = _halves(x), _halves(scale)
    rest = ((a * c - product) + a * d + b * c) + b * d
    near = np.rint(product)
    apart = product - near
    near = np.where((apart == 0.5) & (rest > 0), near + 1, near)
    near = np.where((apart == -0.5) & (rest < 0), near - 1, near)
    return np.where(np.abs(product) < 2.0**53, near / scale, x)


def whole_rounded_to(n: Tensor, scale: int) -> Tensor:
    """`round(n, -digits)` of an int, with scale = 10^digits."""
    below = n // scale
    twice = (n - below * scale) * 2
    up = (twice > scale) | ((twice == scale) & (below % 2 == 1))
    return np.where(up, below + 1, below) * scale
