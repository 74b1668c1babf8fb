"""What a device keeps of an algorithm from one of its rounds to the next: its client state.

A round may be tried more than once, and a device cannot know which of its updates was counted. So
the state is kept twice, from before and after the last training, beside the hash of the weights
that this began at: who is asked again to train from the same weights begins again at the state
from before, and any number of attempts leaves what one would have left.

    magic "dlkept1\\0" | SHA-256 of the weights | before f32[K] | after f32[K] | SHA-256 of all this
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..core.errors import DelianError
from ..core.files import write_whole
from ..core.ir import Array

MAGIC = b"dlkept1\0"
DIGEST_BYTES = 32


def record_bytes(size: int) -> int:
    """Bytes of the record of a client state f32[size]."""
    return len(MAGIC) + 2 * DIGEST_BYTES + 8 * size


def digest_of(weights: Array) -> bytes:
    """What names the weights f32[D] that a training begins at: their blob's hash."""
    return hashlib.sha256(np.ascontiguousarray(weights, "<f4").data).digest()


@dataclass(frozen=True, slots=True)
class Kept:
    """on: the hash of the weights of the last training; before, after: f32[K]."""

    on: bytes
    before: Array
    after: Array

    def base(self, on: bytes) -> Array:
        """The state to begin a training at these weights with."""
        return self.before if on == self.on else self.after

    def to_bytes(self) -> bytes:
        """The record."""
        body = b"".join(
            (
                MAGIC,
                self.on,
                self.before.astype("<f4").tobytes(),
                self.after.astype("<f4").tobytes(),
            )
        )
        return body + hashlib.sha256(body).digest()

    @staticmethod
    def parse(content: bytes, size: int) -> Kept:
        """Raises DelianError for what is no whole record of a state f32[size]."""
        body, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
        whole = len(content) == record_bytes(size) and content.startswith(MAGIC)
        if not whole or hashlib.sha256(body).digest() != digest:
            raise DelianError(
                f"a client state of {len(content)} bytes that is damaged, or another program's",
                "delete it: the device begins anew",
            )
        start = len(MAGIC) + DIGEST_BYTES
        both = np.frombuffer(body, "<f4", 2 * size, start).astype(np.float32)
        return Kept(body[len(MAGIC) : start], both[:size], both[size:])


def read(path: Path, size: int) -> Kept | None:
    """The record in a file, None where there is none. Raises DelianError for a damaged one."""
    try:
        with path.open("rb") as file:
            # A byte more than it may have tells whether it is too long.
            return Kept.parse(file.read(record_bytes(size) + 1), size)
    except FileNotFoundError:
        return None


def write(path: Path, kept: Kept) -> None:
    """Puts a record in place of the one before, durably: after a crash one of them is there whole.
    For the owner's eyes alone: it tells of the data.
    """
    write_whole(path, kept.to_bytes(), 0o600, durable=True)
