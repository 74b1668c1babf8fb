"""Random numbers by name: each is a pure function of (seed, purpose, ids).

So adding a device, a link or a draw shifts no other draw, and a machine needs no generator in its
state but a counter. The function is BLAKE2b with the seed as its key (RFC 7693): 64 bits a call in
about a microsecond, equal on every machine and library version, which NumPy's generators do not
promise (NEP 19).

For simulations, selection and pacing. Nothing that privacy rests on may come from here.
"""

from __future__ import annotations

import hashlib
import math
from struct import Struct

_PACK = [Struct(f"<{n}Q").pack for n in range(9)]
_WORD = 2**64


class Streams:
    """The streams of one seed. `purpose`: at most 16 bytes; ids: at most 8, each below 2^64."""

    __slots__ = ("_begun", "_key")

    def __init__(self, seed: int) -> None:
        self._key = hashlib.sha256(f"delian streams {seed}".encode()).digest()
        # Hashes that have taken in key and purpose: a copy of one costs a third of a new one.
        self._begun: dict[str, hashlib.blake2b] = {}

    def word(self, purpose: str, *ids: int) -> int:
        """A natural number below 2^64, uniformly."""
        digest = (self._begun.get(purpose) or self._begin(purpose)).copy()
        digest.update(_PACK[len(ids)](*ids))
        return int.from_bytes(digest.digest(), "little")

    def _begin(self, purpose: str) -> hashlib.blake2b:
        begun = self._begun[purpose] = hashlib.blake2b(
            digest_size=8, key=self._key, person=purpose.encode(), usedforsecurity=False
        )
        return begun

    def unit(self, purpose: str, *ids: int) -> float:
        """A number in [0, 1), a multiple of 2^-53."""
        return (self.word(purpose, *ids) >> 11) * 2.0**-53

    def normal(self, purpose: str, *ids: int) -> float:
        """A standard normal number (Box and Muller 1958)."""
        word = self.word(purpose, *ids)
        radius = ((word >> 32) + 1) * 2.0**-32
        angle = (word & 0xFFFFFFFF) * 2.0**-32
        return math.sqrt(-2.0 * math.log(radius)) * math.cos(2.0 * math.pi * angle)

    def sample(self, items: list[int], k: int, purpose: str, *ids: int) -> list[int]:
        """`k` of the items without replacement, uniformly, in the order drawn (Fisher-Yates)."""
        assert 0 <= k <= len(items)
        pool = list(items)
        for i in range(k):
            # Multiply-shift: biased by at most len/2^64.
            j = i + (self.word(purpose, *ids, i) * (len(pool) - i) // _WORD)
            pool[i], pool[j] = pool[j], pool[i]
        return pool[:k]


def device_key(round_key: bytes, device: int, secret: bytes = b"") -> tuple[int, int]:
    """A device's threefry key for a round, as two u32; see Task.rng_key in proto/round.proto.

    secret: the device's own 32 bytes; empty: it is simulated, and its keys follow from its number.
    """
    assert len(round_key) == 8 and len(secret) in (0, 32)
    number = device.to_bytes(8, "little")
    digest = hashlib.sha256(b"delian device key v1" + round_key + number + secret)
    head = digest.digest()[:8]
    return int.from_bytes(head[:4], "little"), int.from_bytes(head[4:], "little")
