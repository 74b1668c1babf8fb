"""Whole-number noise for differential privacy, from a secret key and a table.

Two symmetric distributions on the integers, of variance v:

    Skellam             P(k) = e^-v I_|k|(v)           I: modified Bessel function, first kind
    discrete Gaussian   P(k) proportional to exp(-k^2 / 2v)

A Skellam number is the difference of two Poisson numbers of mean v/2, so the sum of n of them is
Skellam of variance n*v exactly: what n devices add, each its part, is as if one had added the whole
(Agarwal, Kairouz and Liu 2021, "The Skellam mechanism for differentially private federated
learning"). The discrete Gaussian has the better bound and is not closed under addition: it serves
where one party adds all (Canonne, Kamath and Steinke 2020, "The discrete Gaussian for differential
privacy").

A number is drawn by inversion. The table holds F(k) = P(|X| <= k), k = 0..K-1, in 127 bits each,
computed in decimal arithmetic of 60 digits; with U uniform on 127 bits the magnitude is the count
of entries <= U, and one more bit is the sign. U's upper 63 bits decide, and its lower 64 are drawn
only where the upper ones equal an entry's. K is where the tail falls below 2^-127, and each entry
is rounded by less than 2^-127: the statistical distance to the exact distribution is at most
(K+1) 2^-127, below 2^-110 a number at the largest variance. (For a million numbers of each of a
thousand devices: below 2^-80.)

A discrete Gaussian that is too wide for a table is a sum X + m*Y of two that are not, of variances
a and b with v = a + m^2 b (Micciancio and Walter 2017, "Gaussian sampling over the integers:
efficient, generic, constant-time", section 3). For P(X + mY = z) is a sum over y of

    exp(-(z - my)^2 / 2a - y^2 / 2b)  =  exp(-z^2 / 2v) exp(-(y - c)^2 / 2d),     d = a b / v

whose second factor adds up to sqrt(2 pi d) whatever c is, but for a share of 2 exp(-2 pi^2 d) and
less (Poisson's summation formula). Here d is at least 60: a factor of 1 +- 2^-1000.

Uniform bits are the key stream of AES-256-CTR from counter 0, 64 a number, each used once. A key
must be used for one vector only. Looking up a table takes time that depends on the number that is
drawn, so who can time a device's memory accesses learns something of its noise: no defence here.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal, localcontext
from typing import Any

import numpy as np

from ..errors import DelianError
from ..ports import Vector

KEY_BYTES = 32
#: Of one table, and so of Skellam noise. A standard deviation of 2^13 steps: the table's megabyte
#: is made in a quarter of a second and lies in a processor's second cache.
VARIANCE_MAX = 2.0**26
#: Of the discrete Gaussian: with m = 2^10 in the sum above.
GAUSSIAN_VARIANCE_MAX = 2.0**46
#: Below, nearly all numbers drawn are zero.
VARIANCE_MIN = 2.0**-4

_DIGITS = 60
_HIGH, _LOW = 63, 64  # bits of U
_TAIL = Decimal(2) ** -(_HIGH + _LOW)
#: P(|X| > 16 sqrt(v) + 64) is below 2^-127 for both distributions and all variances (Chernoff).
_DEVIATIONS, _MORE = 16, 64
_BLOCK = 1 << 15  # numbers drawn at a time


class NoiseError(DelianError):
    """Noise that cannot be drawn: a variance out of range, a key of another length."""


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """F(k) of one distribution: `high` its upper 63 bits and `low` its lower 64, both u64[K]."""

    variance: float
    high: Any
    low: Any


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """A sum of independent numbers, each drawn by a table and times a whole number."""

    parts: tuple[tuple[Table, int], ...]


@functools.lru_cache(maxsize=8)
def skellam(variance: float) -> Distribution:
    """The Skellam distribution. Raises NoiseError for a variance out of range."""
    _check(variance, VARIANCE_MAX)
    return Distribution(((_table(variance, _skellam_masses(Decimal(variance))), 1),))


@functools.lru_cache(maxsize=8)
def discrete_gaussian(variance: float) -> Distribution:
    """The discrete Gaussian with parameter sigma^2 = `variance`, which for all but the smallest is
    its variance. Raises NoiseError for one out of range.
    """
    _check(variance, GAUSSIAN_VARIANCE_MAX)
    if variance <= VARIANCE_MAX:
        return Distribution(((_gaussian_table(variance), 1),))
    fine = min(variance / 2, VARIANCE_MAX)
    multiple = 1
    while (coarse := (variance - fine) / multiple**2) > VARIANCE_MAX:
        multiple *= 2
    return Distribution(((_gaussian_table(fine), 1), (_gaussian_table(coarse), multiple)))


def _gaussian_table(variance: float) -> Table:
    return _table(variance, _gaussian_masses(Decimal(variance)))


def add(vector: Vector, distribution: Distribution, key: bytes) -> None:
    """Adds a number of the distribution to each element of u32[n], in place, modulo 2^32.

    key: 32 secret bytes, used for nothing else. Equal keys give equal noise. Raises NoiseError for
    a key of another length.
    """
    stream = _KeyStream(key)
    for start in range(0, len(vector), _BLOCK):
        block = vector[start : start + _BLOCK]
        for table, multiple in distribution.parts:
            magnitude, negative = _draw(table, stream, len(block))
            number = np.where(negative, -magnitude, magnitude) * multiple
            np.add(block, number.astype(np.uint32), out=block)


def _draw(table: Table, stream: _KeyStream, count: int) -> tuple[Any, Any]:
    """Magnitudes i64[count] and signs bool[count]."""
    words = stream.words(count)
    upper = words >> np.uint64(1)
    magnitude = np.searchsorted(table.high, upper, side="right")
    # Entries with the same upper bits are counted so far. Where there are any, U's lower bits say
    # which of them are <= U.
    tied = np.flatnonzero(table.high[np.maximum(magnitude - 1, 0)] == upper)
    if tied.size:
        for i, lower in zip(tied, stream.words(tied.size), strict=True):
            first = int(np.searchsorted(table.high, upper[i], side="left"))
            equal = table.low[first : magnitude[i]]
            magnitude[i] = first + int(np.searchsorted(equal, lower, side="right"))
    return magnitude, (words & np.uint64(1)).astype(np.bool_)


class _KeyStream:
    """AES-256-CTR's key stream as words of 64 bits, little-endian, each given out once."""

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise NoiseError(f"a noise key of {len(key)} bytes", f"it has {KEY_BYTES}")
        # Here, because every device's machine knows this module, and few runs have noise.
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import AES256
        from cryptography.hazmat.primitives.ciphers.modes import CTR

        self._cipher = Cipher(AES256(key), CTR(bytes(16))).encryptor()

    def words(self, count: int) -> Any:
        return np.frombuffer(self._cipher.update(bytes(8 * count)), "<u8").astype(np.uint64)


def _check(variance: float, most: float) -> None:
    if not VARIANCE_MIN <= variance <= most:
        raise NoiseError(
            f"noise of variance {variance:g}",
            f"from {VARIANCE_MIN:g} to {most:g} steps squared can be drawn",
        )


def _entries(variance: Decimal) -> int:
    return int(_DEVIATIONS * variance.sqrt()) + _MORE


def _table(variance: float, masses: Iterator[Decimal]) -> Table:
    """From the masses P(0), P(1), ... of one side, up to a common factor."""
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
    return Table(variance, np.array(high, np.uint64), np.array(low, np.uint64))


def _skellam_masses(variance: Decimal) -> Iterator[Decimal]:
    """I_k(v) from k = 0, by Miller's backward recurrence I_(k-1) = I_(k+1) + (2k/v) I_k: stable
    downwards, and what it is started with is forgotten on the way down.
    """
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
