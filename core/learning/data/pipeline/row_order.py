"""Orders of rows and random numbers as pure functions of integers.

The bits are those of the Philox counter-based generator (Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3", SC 2011), keyed by a hash of the integers. NumPy keeps the streams of its bit
generators, and not those of `Generator.permutation`; so an order sorts raw bits.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError

#: Rows that are shuffled as a whole: their order takes 8 bytes each.
WHOLE_ROWS_MAX = 1 << 28


def bits(*integers: int) -> np.random.Philox:
    """A stream of random bits for these integers, in this order."""
    text = " ".join(map(str, integers)).encode()
    return np.random.Philox(
        key=int.from_bytes(hashlib.blake2b(text, digest_size=16).digest(), "big")
    )


def key_words(*integers: int) -> NDArray[np.uint32]:
    """A key u32[2] for the compiled generators."""
    text = " ".join(map(str, integers)).encode()
    return np.frombuffer(hashlib.blake2b(text, digest_size=8).digest(), "<u4").astype(np.uint32)


def shuffled(count: int, *integers: int) -> NDArray[np.int64]:
    """A random order of `count` rows. Raises DelianError for more than fit."""
    if count > WHOLE_ROWS_MAX:
        raise DelianError(
            f"{count} rows to shuffle as a whole; at most {WHOLE_ROWS_MAX}",
            "shuffle(window=...) shuffles within windows, and reads a disk forwards",
        )
    # The number of a row in the low bits makes all keys differ, so that any sort gives one order.
    low = max(1, (count - 1).bit_length())
    keys = bits(*integers).random_raw(count) >> np.uint64(low) << np.uint64(low)
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << low) - 1)
    return keys.view(np.int64)
