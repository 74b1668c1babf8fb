r"""A training by windows that was interrupted: what it goes on from.

    magic "dlwind1\0" | length of head u32 | head, JSON | carry | SHA-256 of all this

The head names what the training is of: the bundle, the weights, the key, the data's version and
number of rows. Of anything else the record is not, and a training begins again. The place is the
next window: `epoch`, `window`. The carry is that before it, as the manifest lists its leaves.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from ..bundle import Leaf
from ..data.fit import dtype_of

MAGIC = b"dlwind1\0"
HEAD_BYTES_MAX = 4096
DIGEST_BYTES = 32
_LENGTH = struct.Struct("<I")

Array = NDArray[Any]


def digest(array: Array) -> str:
    """SHA-256 of an array's bytes, little-endian, in hexadecimal."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.reshape(-1).view(np.uint8).data).hexdigest()


@dataclass(frozen=True, slots=True)
class Subject:
    """What a training is of: equal subjects are the same training, to the bit."""

    bundle: str
    """Names the bundle."""
    weights: str
    """SHA-256 of the weights, in hexadecimal."""
    kept: str
    """SHA-256 of the client state that it begins with, in hexadecimal."""
    key: tuple[int, int]
    """The device's key in this round."""
    version: int | None
    """The data's. Where it is None, it is not known whether the data has changed."""
    rows: int
    """How many rows the data has."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A place in a training, and the carry there."""

    subject: Subject
    epoch: int
    """Of the next window."""
    window: int
    """The next window."""
    carry: list[Array]

    def to_bytes(self) -> bytes:
        """The record."""
        place = {"epoch": self.epoch, "window": self.window}
        head = json.dumps({**asdict(self.subject), **place}, separators=(",", ":")).encode()
        leaves = b"".join(
            a.astype(a.dtype.newbyteorder("<"), copy=False).tobytes() for a in self.carry
        )
        body = b"".join((MAGIC, _LENGTH.pack(len(head)), head, leaves))
        return body + hashlib.sha256(body).digest()

    @staticmethod
    def parse(content: bytes, subject: Subject, carry: Sequence[Leaf]) -> Checkpoint | None:
        """The checkpoint of a record; None: it is of another training, or the data has changed.

        Raises DelianError for what is no whole record.
        """
        body, digest = content[:-DIGEST_BYTES], content[-DIGEST_BYTES:]
        if not body.startswith(MAGIC) or hashlib.sha256(body).digest() != digest:
            raise DelianError(
                f"a checkpoint of {len(content)} bytes that is damaged",
                "delete it: the training begins again",
            )
        try:
            (length,) = _LENGTH.unpack_from(body, len(MAGIC))
            start = len(MAGIC) + _LENGTH.size
            head = json.loads(body[start : start + min(length, HEAD_BYTES_MAX)])
            epoch, window = int(head.pop("epoch")), int(head.pop("window"))
            found = Subject(**{**head, "key": tuple(head["key"])})
        except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
            raise DelianError(f"a checkpoint that makes no sense: {error}") from None
        if found != subject or subject.version is None:
            return None
        leaves, at = [], start + length
        for leaf in carry:
            kind = dtype_of(leaf)
            size = leaf.size * kind.itemsize
            if len(body) < at + size:
                raise DelianError("a checkpoint with too short a carry")
            part = np.frombuffer(body, kind.newbyteorder("<"), leaf.size, at)
            leaves.append(part.astype(kind).reshape(leaf.shape))
            at += size
        if at != len(body):
            raise DelianError("a checkpoint with too long a carry")
        return Checkpoint(subject, epoch, window, leaves)
