"""Functions of Python's `math` that no function of NumPy's computes, of Python's own numbers."""

from __future__ import annotations

import math


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
