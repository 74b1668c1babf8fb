"""A compiled object with what it says of itself: an artifact.

    the object       as the compiler wrote it (ELF or Mach-O)
    constants        large arrays that its programs take after their parameters, row by row, those
                     of one entry after the other; see `Layout`
    facts            JSON: for which machine, what programs, by what compiler; see `Facts`
    length, magic    u32 little-endian, 8 bytes
    SHA-256          of everything before it

Loading an object that was built for another machine can kill the process, and so can a damaged one:
so the end of the file is read first, and only an object that is whole and fits is opened. The cache
keeps its programs in such files; `delian build` writes them for other machines.

The hash finds damage. It does not authenticate the file: an artifact is code, and the party that
sends it to a device must be trusted as the device's software is.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np

from .....common.errors import DelianError
from .....common.files import read_at_most
from ....ir import Array, DType
from .targets import NATIVE, features_here, machine_here

#: How an entry is called and what its facts mean. It grows when either changes.
ABI = 1
FORMAT = 2
MAGIC = b"DELIAN\0\1"
SUFFIX = ".dlo"
#: An object of the largest model is below one MiB; constants can make it larger.
BYTES_MAX = 512 << 20
FACTS_BYTES_MAX = 4 << 20
_DIGEST_BYTES = 32
_TAIL = struct.Struct("<I8s")
_REBUILD = "build it for this machine: delian build BUNDLE --target native"


class ArtifactError(DelianError):
    """A file that is no whole artifact, or one for another machine or another Delian."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Type of a constant that lies in the artifact."""

    dtype: str
    """As `DType` names it."""
    shape: tuple[int, ...]

    @classmethod
    def of(cls, constant: Array) -> Layout:
        return cls(DType.of(constant.dtype).value, constant.shape)

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DType(self.dtype).numpy.itemsize


@dataclass(frozen=True, slots=True)
class Entry:
    """One program in an object."""

    name: str
    """The program's name."""
    symbol: str
    """The name of its C function."""
    program: str
    """Its content hash."""
    arena_bytes: int
    """As in `program.Report`, like the three numbers below."""
    tensor_bytes: int
    groups: int
    calls: int
    constants: tuple[Layout, ...] = ()
    """Those that the caller passes after the parameters; they lie in the artifact."""
    donated: tuple[tuple[int, int], ...] = ()
    """Parameters, each with the result that takes its memory."""
    lists: bool = False
    """Whether it takes memory for lists."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What an artifact says of itself."""

    target: str
    """As in `targets.Target`, like `machine`."""
    machine: str
    compiler: str
    """The compiler that built it."""
    flags: tuple[str, ...]
    emitter: str
    """Hash of the sources that wrote the C."""
    entries: tuple[Entry, ...]
    features: tuple[str, ...] = ()
    """What the processor must have, as /proc/cpuinfo names it."""
    strict: bool = False
    """Every operation is rounded."""
    bundle: str = ""
    """Content hash of the bundle, or empty."""
    abi: int = ABI
    """See ABI."""
    format: int = field(default=FORMAT)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Facts:
        """Raises KeyError, TypeError or ValueError for what is no artifact's."""
        return cls(
            target=str(said["target"]),
            machine=str(said["machine"]),
            compiler=str(said["compiler"]),
            flags=tuple(map(str, said["flags"])),
            emitter=str(said["emitter"]),
            entries=tuple(_entry(e) for e in said["entries"]),
            features=tuple(map(str, said["features"])),
            strict=bool(said["strict"]),
            bundle=str(said["bundle"]),
            abi=int(said["abi"]),
            format=int(said["format"]),
        )


def _entry(said: Mapping[str, Any]) -> Entry:
    return Entry(
        name=str(said["name"]),
        symbol=str(said["symbol"]),
        program=str(said["program"]),
        arena_bytes=int(said["arena_bytes"]),
        tensor_bytes=int(said["tensor_bytes"]),
        groups=int(said["groups"]),
        calls=int(said["calls"]),
        constants=tuple(_layout(c) for c in said["constants"]),
        donated=tuple((int(i), int(j)) for i, j in said["donated"]),
        lists=bool(said["lists"]),
    )


def _layout(said: Mapping[str, Any]) -> Layout:
    layout = Layout(DType(said["dtype"]).value, tuple(map(int, said["shape"])))
    if any(size < 1 for size in layout.shape):
        raise ValueError(f"a constant of shape {layout.shape}")
    return layout


@dataclass(frozen=True, slots=True)
class Assembled:
    """What an object is compiled from, and what is kept with it."""

    text: str
    """Its C source."""
    facts: Facts
    constants: tuple[Array, ...] = ()
    """The arrays of all entries' `constants`, in order."""


def sealed(content: bytes, facts: Facts, constants: Sequence[Array] = ()) -> bytes:
    """The file of an object. constants: as in `Assembled`."""
    assert tuple(map(Layout.of, constants)) == _layouts(facts), "the constants are those declared"
    said = json.dumps(facts.to_json(), sort_keys=True, separators=(",", ":")).encode()
    body = b"".join([content, *(c.tobytes() for c in constants), said])
    body += _TAIL.pack(len(said), MAGIC)
    return body + hashlib.sha256(body).digest()


def read(path: Path) -> Facts:
    """What an artifact says; nothing in it is run. Raises ArtifactError unless it is whole."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for its writer
            raise ArtifactError(f"{path}: cannot be read: it is no file", _REBUILD)
        return parse(read_at_most(path, BYTES_MAX), str(path))
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}", _REBUILD) from None


def parse(content: bytes, where: str) -> Facts:
    """The facts of an artifact's bytes. Raises ArtifactError as `read`."""
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if len(body) < _TAIL.size or body[-len(MAGIC) :] != MAGIC:
        raise ArtifactError(f"{where}: this is no artifact of Delian", _REBUILD)
    if hashlib.sha256(body).digest() != digest:
        raise ArtifactError(f"{where}: damaged: its hash does not match", _REBUILD)
    length, _ = _TAIL.unpack(body[-_TAIL.size :])
    if length > min(FACTS_BYTES_MAX, len(body) - _TAIL.size):
        raise ArtifactError(f"{where}: damaged: facts of {length} bytes", _REBUILD)
    return facts_of(body[len(body) - _TAIL.size - length : -_TAIL.size], where)


def constants_of(path: Path, facts: Facts) -> list[list[Array]]:
    """The constants of each entry. Raises ArtifactError where the file has changed."""
    size = sum(layout.nbytes for layout in _layouts(facts))
    if not size:
        return [[] for _ in facts.entries]
    damaged = ArtifactError(f"{path}: its constants are not those of its facts", _REBUILD)
    try:
        with path.open("rb") as file:
            file.seek(-_DIGEST_BYTES - _TAIL.size, os.SEEK_END)
            end = file.tell()
            length, magic = _TAIL.unpack(file.read(_TAIL.size))
            if magic != MAGIC or length + size > end:
                raise damaged
            file.seek(end - length - size)
            return [[_read(file, c) for c in entry.constants] for entry in facts.entries]
    except (OSError, ValueError, struct.error) as error:
        raise damaged from error


def _layouts(facts: Facts) -> tuple[Layout, ...]:
    return tuple(layout for entry in facts.entries for layout in entry.constants)


def _read(file: BufferedReader, layout: Layout) -> Array:
    array = np.empty(layout.shape, DType(layout.dtype).numpy)
    if file.readinto(array.reshape(-1).view(np.uint8).data) != array.nbytes:
        raise ValueError("the file ends within a constant")
    return array


def facts_of(text: bytes, where: str) -> Facts:
    """Facts from their JSON. Raises ArtifactError."""
    try:
        said = json.loads(text)
        if said["format"] != FORMAT:
            raise ArtifactError(f"{where}: of another Delian, format {said['format']}", _REBUILD)
        return Facts.from_json(said)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ArtifactError(f"{where}: its facts make no sense: {error}", _REBUILD) from None


def check(
    facts: Facts, where: str, machine: str | None = None, features: frozenset[str] | None = None
) -> None:
    """Raises ArtifactError unless an artifact fits the machine and this Delian."""
    if facts.abi != ABI:
        raise ArtifactError(
            f"{where}: its ABI is {facts.abi}, and this Delian's is {ABI}",
            "build it with the Delian that the device has",
        )
    here = machine or machine_here()
    if facts.machine != here:
        built = facts.machine if facts.target == NATIVE else facts.target
        raise ArtifactError(
            f"{where}: built for {built}, and this machine is {here}",
            "build it for this machine: delian build BUNDLE --target"
            f" {'native' if machine is None else here}",
        )
    present = features_here() if features is None else features
    missing = [f for f in facts.features if present is not None and f not in present]
    if missing:
        raise ArtifactError(
            f"{where}: it needs {', '.join(missing)}, which this processor does not have",
            "build it on this machine, or for a smaller processor: delian build BUNDLE --target"
            f" {here}-linux-... [--cpu ...]",
        )
