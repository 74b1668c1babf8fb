"""Ring elements side by side, without the bits that a narrower ring does not use.

A sum modulo 2^32 has all its lower w bits right whatever the upper ones are, so elements of a ring
of w bits, masked or not, may be cut to w bits where they travel and be added again where they
arrive. Element i takes the bits i*w .. i*w + w - 1 of the bytes, the lowest first: 27 bits are
27/32 of the bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...common.errors import DelianError
from ...protocol.ports import Vector

BITS_MAX = 32
#: Eight elements of any width end at a byte.
_GROUP = 8
_BLOCK = 1 << 15  # groups that are packed at a time


class PackingError(DelianError):
    """Bytes that are no packed vector of the length and width that are asked for."""


def packed_bytes(length: int, bits: int) -> int:
    """Bytes that `length` elements of `bits` bits take."""
    _check(bits)
    return -(-length * bits // 8)


def pack(vector: Vector, bits: int) -> bytes:
    """u32[n] -> the lower `bits` bits of each, packed. Raises PackingError."""
    _check(bits)
    groups = -(-len(vector) // _GROUP)
    padded = np.zeros(groups * _GROUP, np.uint32)
    padded[: len(vector)] = vector
    whole = padded.reshape(groups, _GROUP)
    out = np.empty((groups, bits), np.uint8)
    for start in range(0, groups, _BLOCK):
        _pack(whole[start : start + _BLOCK], bits, out[start : start + _BLOCK])
    return out.reshape(-1)[: packed_bytes(len(vector), bits)].tobytes()


def is_packed(content: bytes | memoryview, length: int, bits: int) -> bool:
    """Whether `unpack` takes it."""
    unused = -length * bits % 8
    fits = len(content) == packed_bytes(length, bits)
    return fits and not (content and content[-1] >> (8 - unused))


def unpack(content: bytes | memoryview, length: int, bits: int) -> Vector:
    """The reverse of `pack`: u32[length] below 2^bits. Raises PackingError."""
    if len(content) != packed_bytes(length, bits):
        raise PackingError(
            f"{len(content)} bytes, where {length} elements of {bits} bits take"
            f" {packed_bytes(length, bits)}"
        )
    if not is_packed(content, length, bits):
        raise PackingError("there are bits after the last element")
    groups = -(-length // _GROUP)
    padded = np.zeros(groups * bits, np.uint8)
    padded[: len(content)] = np.frombuffer(content, np.uint8)
    whole = padded.reshape(groups, bits)
    out = np.empty((groups, _GROUP), np.uint32)
    for start in range(0, groups, _BLOCK):
        _unpack(whole[start : start + _BLOCK], bits, out[start : start + _BLOCK])
    return out.reshape(-1)[:length].copy()


def _pack(elements: Any, bits: int, out: Any) -> None:
    """u32[g, 8] -> u8[g, bits]; byte j joins bits of one or more elements."""
    out[...] = 0
    for i in range(_GROUP):
        shift = i * bits % 8
        first = i * bits // 8
        wide = (elements[:, i].astype(np.uint64) & np.uint64(2**bits - 1)) << np.uint64(shift)
        for j in range(-(-(shift + bits) // 8)):
            out[:, first + j] |= (wide >> np.uint64(8 * j)).astype(np.uint8)


def _unpack(packed: Any, bits: int, out: Any) -> None:
    for i in range(_GROUP):
        shift = i * bits % 8
        first = i * bits // 8
        wide = np.zeros(len(packed), np.uint64)
        for j in range(-(-(shift + bits) // 8)):
            wide |= packed[:, first + j].astype(np.uint64) << np.uint64(8 * j)
        out[:, i] = (wide >> np.uint64(shift)) & np.uint64(2**bits - 1)


def _check(bits: int) -> None:
    if not 1 <= bits <= BITS_MAX:
        raise PackingError(f"elements of {bits} bits", f"from 1 to {BITS_MAX}")
