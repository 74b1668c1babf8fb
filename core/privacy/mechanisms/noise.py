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

A number is drawn by inversion. The table (`noise_tables`) holds F(k) = P(|X| <= k), k = 0..K-1, in
127 bits each; with U uniform on 127 bits the magnitude is the count
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
drawn, so a party that can time a device's memory accesses learns something of its noise: there is
no defence here.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ...common.errors import DelianError
from ...protocol.ports import Vector

KEY_BYTES = 32
#: Of one table, and so of Skellam noise. A standard deviation of 2^13 steps: the table's megabyte
#: is made in a quarter of a second and lies in a processor's second cache.
VARIANCE_MAX = 2.0**26
#: Of the discrete Gaussian: with m = 2^10 in the sum above.
GAUSSIAN_VARIANCE_MAX = 2.0**46
#: Below, nearly all numbers drawn are zero.
VARIANCE_MIN = 2.0**-4

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
    return Distribution(((_table("skellam", variance), 1),))


@functools.lru_cache(maxsize=8)
def discrete_gaussian(variance: float) -> Distribution:
    """The discrete Gaussian with sigma^2 = `variance`. Raises NoiseError."""
    _check(variance, GAUSSIAN_VARIANCE_MAX)
    if variance <= VARIANCE_MAX:
        return Distribution(((_table("gaussian", variance), 1),))
    fine = min(variance / 2, VARIANCE_MAX)
    multiple = 1
    while (coarse := (variance - fine) / multiple**2) > VARIANCE_MAX:
        multiple *= 2
    both = _table("gaussian", fine), _table("gaussian", coarse)
    return Distribution(((both[0], 1), (both[1], multiple)))


def _table(kind: Literal["skellam", "gaussian"], variance: float) -> Table:
    from . import noise_tables  # with `decimal`: code that only checks a plan does not need it

    made = noise_tables.skellam if kind == "skellam" else noise_tables.gaussian
    return Table(variance, *made(variance))


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
