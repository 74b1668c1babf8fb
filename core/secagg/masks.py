"""Masks: adding or subtracting key streams in the ring Z_2^32.

The mask of a key is its AES-256-CTR key stream from counter 0 (suite 1; NIST SP 800-38A, the whole
block one big-endian counter, as in OpenSSL) or its ChaCha20 key stream from block 0 with a nonce of
zeros (suite 2; RFC 8439), read as little-endian u32. A key makes one mask, so constants may stand
where a nonce does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import CTR

from .errors import SecureError

AES_CTR = 1
CHACHA20 = 2
KEY_BYTES = 32
#: ChaCha20 counts its blocks of 64 bytes with 32 bits.
WORDS_MAX = 2**32 * 16
#: Words that are masked at a time: they and their key stream stay in the second-level cache.
_CHUNK = 1 << 16

Words = npt.NDArray[np.uint32]
Keys = Sequence[tuple[bytes, int]]


def backend() -> str:
    """Which code adds masks."""
    return "cryptography"


def add(vector: Words, keys: Keys, suite: int, threads: int = 1) -> None:
    """Adds (+1) or subtracts (-1) the masks of some keys, in place, modulo 2^32.

    vector: u32[D], stored in one piece. keys: (32 bytes, sign). threads: how many work at it; the
    result is the same. Raises SecureError for another suite, a key of another length or another
    sign, or a vector that cannot be masked.
    """
    if suite not in (AES_CTR, CHACHA20):
        raise SecureError("suite", f"no suite of masks has the number {suite}")
    if any(len(key) != KEY_BYTES or sign not in (1, -1) for key, sign in keys):
        raise SecureError("key", f"a mask has a key of {KEY_BYTES} bytes and a sign of 1 or -1")
    if (
        vector.dtype != np.uint32
        or vector.ndim != 1
        or vector.size > WORDS_MAX
        or not (vector.flags.c_contiguous and vector.flags.writeable)
    ):
        raise SecureError("vector", "a vector that is masked is u32[D], in one piece, writeable")
    _add_plain(vector, keys, suite)


def _add_plain(vector: Words, keys: Keys, suite: int) -> None:
    """With `cryptography` and NumPy. OpenSSL's streams go on where they stopped, so all keys mask
    one chunk before the next.
    """
    streams = [(_stream(key, suite), sign) for key, sign in keys]
    chunk = min(_CHUNK, vector.size)
    zeros = bytes(4 * chunk)
    buffer = np.empty(chunk, np.uint32)
    for start in range(0, vector.size, _CHUNK):
        part = vector[start : start + _CHUNK]
        mask = buffer[: part.size]
        target = mask.data.cast("B")
        for stream, sign in streams:
            stream.update_into(memoryview(zeros)[: part.nbytes], target)
            if sys.byteorder == "big":
                mask.byteswap(inplace=True)
            (np.add if sign > 0 else np.subtract)(part, mask, out=part)


def _stream(key: bytes, suite: int) -> Any:
    if suite == AES_CTR:
        return Cipher(AES(key), CTR(bytes(16))).encryptor()
    return Cipher(ChaCha20(key, bytes(16)), None).encryptor()
