"""Shamir's secret sharing of bytes, in GF(2^8).

Each byte of a secret is the constant term of a polynomial of its own, of degree t - 1 over
GF(2)[x]/(x^8 + x^4 + x^3 + x + 1) (the field of AES, FIPS 197 section 4.2); a holder's share is the
values of all of them at its point, a byte from 1 to 255. Any t shares give the secret, fewer say
nothing (Shamir 1979, "How to share a secret", CACM 22(11)).

Running time and memory accesses depend on counts and points alone, never on secrets: no table is
looked up with a part of a secret. The kernels of `kernel.c` do it once something has loaded them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from . import native
from .secure_errors import SecureError

SHARES_MAX = 255
SECRET_BYTES_MAX = 1 << 16

_Masks = npt.NDArray[np.uint64]


def randomness_bytes(length: int, threshold: int) -> int:
    """How many random bytes sharing a secret of `length` bytes takes."""
    return length * (threshold - 1)


def split(secret: bytes, count: int, threshold: int, randomness: bytes) -> list[bytes]:
    """The shares for points 1 to `count`, each as long as the secret.

    randomness: `randomness_bytes` of them, used for nothing else: the coefficients of x, then those
    of x^2, and so on. Raises SecureError unless 1 <= threshold <= count <= 255.
    """
    length = len(secret)
    if not 1 <= threshold <= count <= SHARES_MAX or not 0 < length <= SECRET_BYTES_MAX:
        raise SecureError("shares", f"{threshold} of {count} shares of {length} bytes")
    if len(randomness) != randomness_bytes(length, threshold):
        raise SecureError("shares", f"{len(randomness)} random bytes for {threshold} shares")
    rows = secret + randomness
    if kernels := native.loaded():
        buffer = ctypes.create_string_buffer(count * length)
        kernels.split(rows, length, count, threshold, buffer)
        values = buffer.raw
    else:
        values = _linear(_powers(count, threshold), rows, length)
    return [values[at : at + length] for at in range(0, count * length, length)]


def combine(shares: Mapping[int, bytes], threshold: int) -> bytes:
    """The secret, from the shares of the `threshold` lowest points.

    Wrong shares give a wrong secret. Raises SecureError when there are too few, a point is not in 1
    to 255, or lengths differ.
    """
    points = sorted(shares)
    if not 1 <= threshold <= len(points):
        raise SecureError("shares", f"{len(points)} shares where {threshold} are needed")
    points = points[:threshold]
    length = len(shares[points[0]])
    if points[0] < 1 or points[-1] > SHARES_MAX or not 0 < length <= SECRET_BYTES_MAX:
        raise SecureError("shares", "a share's point or length is out of range")
    if any(len(shares[point]) != length for point in points):
        raise SecureError("shares", "shares of one secret differ in length")
    rows = b"".join(shares[point] for point in points)
    if kernels := native.loaded():
        buffer = ctypes.create_string_buffer(length)
        kernels.combine(bytes(points), rows, length, threshold, buffer)
        return buffer.raw
    return _linear(_masks([_lagrange(points)]), rows, length)


def _linear(factors: _Masks, rows: bytes, length: int) -> bytes:
    """Sums of the rows of bytes (each `length` long), multiplied by factors as in `_masks`."""
    wide = -(-length // 8) * 8
    data = np.zeros((factors.shape[1] // 8, wide), np.uint8)
    data[:, :length] = np.frombuffer(rows, np.uint8).reshape(-1, length)
    multiples = []  # of x^0 to x^7
    for _ in range(8):
        multiples.append(data.view(np.uint64))
        data = data << 1 ^ (data >> 7) * np.uint8(0x1B)
    terms = np.ascontiguousarray(np.stack(multiples, 1).reshape(-1, wide // 8).T)
    sums = [np.bitwise_xor.reduce(terms & row, axis=1) for row in factors]
    return np.stack(sums).view(np.uint8)[:, :length].tobytes()


def _masks(factors: Sequence[Sequence[int]]) -> _Masks:
    """u64[m, 8n] of m rows of n factors: all ones where a factor has the bit, lowest bit first."""
    values = np.array(factors, np.uint8)
    bits = np.unpackbits(values[:, :, None], axis=2, bitorder="little")
    return np.uint64(0) - bits.reshape(len(factors), -1).astype(np.uint64)


@lru_cache(maxsize=16)
def _powers(count: int, threshold: int) -> _Masks:
    """Powers x^0 to x^(t-1) of the points 1 to count, a row a point."""
    rows = []
    for point in range(1, count + 1):
        row = [1]
        while len(row) < threshold:
            row.append(_times(row[-1], point))
        rows.append(row)
    return _masks(rows)


def _lagrange(points: Sequence[int]) -> list[int]:
    """The factors by which the values at these points give the value at 0. Points are public."""
    logs, powers = _logs()
    total = sum(logs[point] for point in points)
    factors = []
    for point in points:
        below = sum(logs[point ^ other] for other in points if other != point)
        factors.append(powers[(total - logs[point] - below) % 255])
    return factors


@lru_cache(maxsize=1)
def _logs() -> tuple[list[int], list[int]]:
    """Logarithms to base 3 and powers of 3, for what is public."""
    logs, powers = [0] * 256, []
    value = 1
    for exponent in range(255):
        logs[value] = exponent
        powers.append(value)
        value ^= _double(value)
    return logs, powers


def _double(value: int) -> int:
    return (value << 1) ^ (0x11B if value & 0x80 else 0)


def _times(one: int, other: int) -> int:
    product = 0
    while other:
        product ^= one * (other & 1)
        one, other = _double(one), other >> 1
    return product
