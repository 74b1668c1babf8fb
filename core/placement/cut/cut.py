"""A cut: where each operation of a program runs, and how what crosses is written. All that travels.

Tiers count upwards: 0 the device, 1 the edge, 2 the cloud. A cut has one label for each operation
at the top level of a program, in order: its tier, or `SHARED` for one that depends on nothing that
moves (constants, what is made of weights alone), which each part that needs it computes for itself.
Values are numbered: the program's parameters first, then the results of its operations, in order.

Each node that has the bundle and the cut derives the same parts from them (`split`), so a cut's
bytes are canonical: equal cuts are equal bytes, and the digest names one.

    1  byte     FORMAT
    32 bytes    SHA-256 of the bundle; zeros where there is none
    1 + n       length of the program's name, then the name in UTF-8
    4 bytes     operations, little-endian, as all numbers here
    ...         their labels plus one, two bits each, the first in the lowest bits; zeros at the end
    4 bytes     values that are written narrower than they are
    5 each      the value's number in 4 bytes, then 1 for f16, 2 for i8; in order of number
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ...common.errors import DelianError
from ...compiler.verify import Limits
from .wire_formats import NARROW

FORMAT = 1
#: Device, edge and cloud. Two bits a label hold three tiers and `SHARED`.
TIERS_MAX = 3
DEVICE, EDGE, CLOUD = range(TIERS_MAX)
#: The label of an operation that each part computes for itself.
SHARED = -1
OPS_MAX = Limits().ops_max
#: More values are not written narrower: an operation has one result, nearly always.
WIRES_MAX = 2 * OPS_MAX
PROGRAM_BYTES_MAX = 255
_HASH_BYTES = 32
_LABELS_A_BYTE = 4
_WIRE = np.dtype([("value", "<u4"), ("code", "u1")])
#: The longest that a cut can be, in bytes.
BYTES_MAX = (
    1 + _HASH_BYTES + 1 + PROGRAM_BYTES_MAX + 4 + OPS_MAX // _LABELS_A_BYTE + 1 + 4
) + WIRES_MAX * _WIRE.itemsize
_HINT = "make the plan again with delian partition plan"


class CutError(DelianError):
    """A cut that is malformed, or that a program cannot be cut by."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Where operations run, and how what crosses is written."""

    labels: tuple[int, ...]
    """A tier for each operation at the top level, or SHARED."""
    wires: Mapping[int, str] = field(default_factory=dict, hash=False)
    """By a value's number, "f16" or "i8" where it travels narrower than it is. Any other wire means
    "as it is" and is left out.
    """
    bundle: str = ""
    """The bundle's content hash, 64 hexadecimal digits, or empty."""
    program: str = ""
    """The program's name in that bundle."""

    def __post_init__(self) -> None:
        _check_labels(self.labels)
        if len(self.wires) > WIRES_MAX:
            raise CutError(f"a cut with {len(self.wires)} wires; at most {WIRES_MAX}", _HINT)
        narrow = {v: w for v, w in sorted(self.wires.items()) if w in NARROW}
        object.__setattr__(self, "wires", MappingProxyType(narrow))
        if narrow and not 0 <= min(narrow) <= max(narrow) < 2**32:
            raise CutError("a cut that names a value which no program has", _HINT)
        if self.bundle and not _is_hash(self.bundle):
            raise CutError("a cut's bundle is 64 hexadecimal digits", _HINT)
        if len(self.program.encode()) > PROGRAM_BYTES_MAX:
            raise CutError(f"a program's name is at most {PROGRAM_BYTES_MAX} bytes", _HINT)

    def to_bytes(self) -> bytes:
        """As the module's text says."""
        name = self.program.encode()
        count = len(self.labels)
        padded = np.zeros(-(-count // _LABELS_A_BYTE) * _LABELS_A_BYTE, np.uint8)
        padded[:count] = np.asarray(self.labels, np.int16) + 1
        quads = padded.reshape(-1, _LABELS_A_BYTE) << np.arange(0, 8, 2, dtype=np.uint8)
        packed = np.bitwise_or.reduce(quads, axis=1, dtype=np.uint8)
        rows = [(v, 1 + NARROW.index(w)) for v, w in self.wires.items()]
        return b"".join(
            (
                bytes((FORMAT,)),
                bytes.fromhex(self.bundle) if self.bundle else bytes(_HASH_BYTES),
                bytes((len(name),)) + name,
                count.to_bytes(4, "little"),
                packed.tobytes(),
                len(rows).to_bytes(4, "little"),
                np.array(rows, _WIRE).tobytes(),
            )
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> Cut:
        """Reads what `to_bytes` wrote. Raises CutError for anything else."""
        if len(content) > BYTES_MAX:
            raise CutError(f"a cut of {len(content)} bytes; at most {BYTES_MAX}", _HINT)
        rest = _Reader(content)
        if rest.take(1) != bytes((FORMAT,)):
            raise CutError(f"not a cut of format {FORMAT}", "both sides need the same Delian")
        digest = rest.take(_HASH_BYTES)
        name = rest.take(rest.number(1))
        count = rest.number(4)
        if count > OPS_MAX:
            raise CutError(f"a cut of {count} operations; at most {OPS_MAX}", _HINT)
        packed = np.frombuffer(rest.take(-(-count // _LABELS_A_BYTE)), np.uint8)
        codes = (packed[:, None] >> np.arange(0, 8, 2, dtype=np.uint8)) & 3
        labels = codes.reshape(-1)[:count].astype(np.int16) - 1
        wires = rest.number(4)
        if wires > WIRES_MAX:
            raise CutError(f"a cut with {wires} wires; at most {WIRES_MAX}", _HINT)
        rows = np.frombuffer(rest.take(wires * _WIRE.itemsize), _WIRE)
        if wires and not 1 <= rows["code"].min() <= rows["code"].max() <= len(NARROW):
            raise CutError("a cut with a wire that does not exist", _HINT)
        try:
            program = name.decode()
        except UnicodeDecodeError:
            raise CutError("a cut whose program's name is not text", _HINT) from None
        made = cls(
            tuple(labels.tolist()),
            {v: NARROW[c - 1] for v, c in rows.tolist()},
            digest.hex() if any(digest) else "",
            program,
        )
        if made.to_bytes() != content:
            raise CutError("a cut whose bytes are not canonical", _HINT)
        return made

    def digest(self) -> str:
        """SHA-256 of its bytes, in hexadecimal."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    @property
    def tiers(self) -> tuple[int, ...]:
        """The tiers that something runs on, in order."""
        return tuple(sorted({k for k in self.labels if k != SHARED}))


class _Reader:
    """Takes bytes off the front."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.at = 0

    def take(self, count: int) -> bytes:
        found = self.content[self.at : self.at + count]
        if len(found) < count:
            raise CutError("a cut that ends in the middle", _HINT)
        self.at += count
        return found

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")


def _check_labels(labels: Sequence[int]) -> None:
    if len(labels) > OPS_MAX:
        raise CutError(f"a cut of {len(labels)} operations; at most {OPS_MAX}", _HINT)
    if labels and not SHARED <= min(labels) <= max(labels) < TIERS_MAX:
        raise CutError(f"a cut's labels are {SHARED} to {TIERS_MAX - 1}", _HINT)


def _is_hash(text: str) -> bool:
    return len(text) == 2 * _HASH_BYTES and not set(text) - set("0123456789abcdef")
