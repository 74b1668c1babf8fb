r"""What a device keeps of an algorithm from one of its rounds to the next: its client state.

A round may be tried more than once, and a device cannot know which of its updates was counted. So
the state is kept twice, from before and after the last training, with the hash of the weights that
this began at: a device that trains again from the same weights begins at the state from before, and
any number of attempts leaves what one would have left.

    magic "dlkept1\0" | SHA-256 of the weights | before f32[K] | after f32[K] | SHA-256 of all this
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...core.common.errors import DelianError
from ...core.common.files import read_at_most, write_whole
from ...core.compiler.ir import Array

MAGIC = b"dlkept1\0"
DIGEST_BYTES = 32
#: Of a record, whatever the program.
BYTES_MAX = 1 << 30
#: Client states that are kept: one a bundle, and the last trained ones.
STATES_KEPT = 8


def record_bytes(size: int) -> int:
    """Bytes of the record of a client state f32[size]."""
    return len(MAGIC) + 2 * DIGEST_BYTES + 8 * size


def digest_of(weights: Array) -> bytes:
    """What names the weights f32[D] that a training begins at: their blob's hash."""
    return hashlib.sha256(np.ascontiguousarray(weights, "<f4").data).digest()


@dataclass(frozen=True, slots=True)
class Kept:
    """An algorithm's client state on a device, before and after its last training."""

    on: bytes
    """The hash of the weights of the last training."""
    before: Array
    """Client state before the last training, f32[K]."""
    after: Array
    """Client state after it, f32[K]."""

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
                "delete it: the device starts again without it",
            )
        start = len(MAGIC) + DIGEST_BYTES
        both = np.frombuffer(body, "<f4", 2 * size, start).astype(np.float32)
        return Kept(body[len(MAGIC) : start], both[:size], both[size:])


class KeptStates:
    """The client states of a device: a folder with one file a bundle. Its agent alone opens it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, bundle: str) -> bytes:
        """The record of a bundle, by its file's name; empty where there is none. Raises OSError."""
        try:
            return read_at_most(self._file(bundle), BYTES_MAX)
        except FileNotFoundError:
            return b""

    def write(self, bundle: str, record: bytes) -> None:
        """Puts a record in place of the one before, durably.

        After a crash one of them is there whole. Readable by the owner alone: it depends on the
        data. Drops those of bundles that were not trained for longest. Raises OSError.
        """
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(self._file(bundle), record, 0o600, durable=True)
        others = sorted(self._folder.glob("*.kept"), key=lambda f: f.stat().st_mtime_ns)
        for old in others[:-STATES_KEPT]:
            old.unlink()

    def _file(self, bundle: str) -> Path:
        return self._folder / f"{bundle}.kept"
