"""Masks: adding or subtracting key streams in the ring Z_2^32.

The mask of a key is its key stream (`kdf.stream`), read as little-endian u32. A key makes one mask,
so its counter may begin at zero and its nonce be a constant. The kernels of `kernel.c` add the
stream to the vector while both are in the processor's first-level cache; without them OpenSSL makes
a stream and NumPy adds it, with the same result.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from . import native
from .kdf import AES_CTR, CHACHA20, KEY_BYTES, stream
from .secure_errors import SecureError

#: ChaCha20 counts its blocks of 64 bytes with 32 bits.
WORDS_MAX = 2**32 * 16
#: Words that are masked at a time without the kernels: they stay in the second-level cache.
_CHUNK = 1 << 16
#: Threads begin at multiples of so many words: whole blocks of both ciphers.
_GRAIN = 2048

Words = npt.NDArray[np.uint32]
Keys = Sequence[tuple[bytes, int]]


def backend() -> str:
    """Which code adds masks of suite 1; finds or compiles it."""
    kernels = native.library()
    if kernels is None or not kernels.aes_blocks:
        return "cryptography"
    return f"compiled, {kernels.aes_blocks} AES blocks an instruction"


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
    kernels = native.library()
    if kernels is not None and (suite == CHACHA20 or kernels.aes_blocks):
        secrets = b"".join(key for key, _ in keys)
        signs = np.array([sign for _, sign in keys], np.int8)

        def work(start: int, stop: int) -> None:
            part = vector[start:stop]
            address, sign = part.ctypes.data, signs.ctypes.data
            kernels.mask(address, part.nbytes, 4 * start, secrets, sign, len(keys), suite)
    else:

        def work(start: int, stop: int) -> None:
            _add_streams(vector[start:stop], keys, suite, 4 * start)

    share = -(-vector.size // max(threads, 1) // _GRAIN) * _GRAIN
    starts = range(0, vector.size, max(share, _GRAIN))
    if len(starts) <= 1:
        work(0, vector.size)
        return
    from concurrent.futures import ThreadPoolExecutor  # which most processes have no need of

    with ThreadPoolExecutor(len(starts)) as pool:
        list(pool.map(work, starts, [*starts[1:], vector.size]))


def _add_streams(part: Words, keys: Keys, suite: int, offset: int) -> None:
    """Without the kernels. `offset`: where in the key streams the part begins, in bytes."""
    streams = [(stream(key, suite, offset), sign) for key, sign in keys]
    zeros = memoryview(bytes(4 * min(_CHUNK, part.size)))
    buffer = np.empty(min(_CHUNK, part.size), np.uint32)
    # All keys mask one chunk before the next; the streams go on where they stopped.
    for start in range(0, part.size, _CHUNK):
        chunk = part[start : start + _CHUNK]
        mask = buffer[: chunk.size]
        for one, sign in streams:
            one.update_into(zeros[: chunk.nbytes], mask.data.cast("B"))
            if sys.byteorder == "big":
                mask.byteswap(inplace=True)
            (np.add if sign > 0 else np.subtract)(chunk, mask, out=chunk)
