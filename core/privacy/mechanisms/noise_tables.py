"""Tables of two distributions on the whole numbers (`noise`), by decimal arithmetic of 60 digits.

F(k) = P(|X| <= k), k = 0..K-1, in 127 bits each: the upper 63 and the lower 64. K is where the tail
falls below 2^-127.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Context, Decimal, localcontext

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint64]

_DIGITS = 60
_HIGH, _LOW = 63, 64
_TAIL = Decimal(2) ** -(_HIGH + _LOW)
#: P(|X| > 16 sqrt(v) + 64) is below 2^-127 for both distributions and all variances (Chernoff).
_DEVIATIONS, _MORE = 16, 64


def skellam(variance: float) -> tuple[Bits, Bits]:
    """The upper and the lower bits of F, u64[K] both, of Skellam's distribution."""
    return _table(_skellam_masses(Decimal(variance)))


def gaussian(variance: float) -> tuple[Bits, Bits]:
    """The same of the discrete Gaussian with parameter sigma^2 = `variance`."""
    return _table(_gaussian_masses(Decimal(variance)))


def _entries(variance: Decimal) -> int:
    return int(_DEVIATIONS * variance.sqrt()) + _MORE


def _table(masses: Iterator[Decimal]) -> tuple[Bits, Bits]:
    """The table of masses P(0), P(1), ... of one side, up to a common factor."""
    with localcontext(Context(prec=_DIGITS)):
        sides = [mass if k == 0 else 2 * mass for k, mass in enumerate(masses)]
        # From the far end, where terms are small: no digit of the sum is lost.
        total = sum(reversed(sides), Decimal(0))
        unit = Decimal(2) ** (_HIGH + _LOW)
        entries, below = [], Decimal(0)
        for mass in sides:
            below += mass / total
            if 1 - below < _TAIL:
                break
            entries.append(int(below * unit))
        assert len(entries) < len(sides), "the masses end before the tail does"
    high = [entry >> _LOW for entry in entries]
    low = [entry & (2**_LOW - 1) for entry in entries]
    return np.array(high, np.uint64), np.array(low, np.uint64)


def _skellam_masses(variance: Decimal) -> Iterator[Decimal]:
    """I_k(v) from k = 0, by Miller's stable backward recurrence."""
    with localcontext(Context(prec=_DIGITS)):
        count = _entries(variance)
        factor = 2 / variance
        above, here = Decimal(0), Decimal(1)
        masses = []
        for k in range(2 * count, 0, -1):
            above, here = here, above + factor * k * here
            if k <= count + 1:
                masses.append(here)
    return reversed(masses)


def _gaussian_masses(variance: Decimal) -> Iterator[Decimal]:
    """exp(-k^2 / 2v) from k = 0: each from the last by a ratio exp(-(2k+1) / 2v)."""
    with localcontext(Context(prec=_DIGITS)):
        ratio = (-1 / (2 * variance)).exp()
        square, mass = ratio * ratio, Decimal(1)
        masses = []
        for _ in range(_entries(variance) + 1):
            masses.append(mass)
            mass, ratio = mass * ratio, ratio * square
    return iter(masses)
