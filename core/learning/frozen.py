"""Frozen leaves: the part of a model that is not trained, and travels by content hash.

A model's frozen leaves have any dtype. They are laid out one after the other, each at a multiple of
64 bytes, and cut between leaves into *parts*. A part is a blob that is named by its SHA-256: a
device fetches it once, whatever the number of rounds and runs that use it, and its training process
maps the file (`mapped`). The layout follows from the leaves alone, so a manifest has to name them
and their parts' hashes, and nothing else.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..common.errors import DelianError
from ..compiler.ir import Array, DType
from .leaf import Leaf

#: What a part is filled up to, in bytes: small enough to be sent again after a fault. A larger leaf
#: is a part of its own.
PART_BYTES = 1 << 26
#: The largest part, one leaf: the largest tensor that a program takes.
PART_BYTES_MAX = 1 << 30
PARTS_MAX = 1024
#: Where a leaf begins: at a multiple of a cache line, so that kernels may load vectors from it.
ALIGNMENT = 64


@dataclass(frozen=True)
class FrozenPart:
    """A blob with some of the frozen leaves."""

    digest: str
    """SHA-256 of its bytes, in hexadecimal."""
    size: int
    """Bytes."""


@dataclass(frozen=True)
class Place:
    """Where a leaf lies."""

    part: int
    offset: int
    """In bytes from the part's beginning."""
    bytes: int


def bytes_of(leaf: Leaf) -> int:
    """How many bytes a leaf's array has."""
    return leaf.size * DType(leaf.dtype).numpy.itemsize


def layout(leaves: Sequence[Leaf]) -> tuple[tuple[Place, ...], tuple[int, ...]]:
    """Where each leaf lies, and the size of each part in bytes.

    Raises DelianError for leaves that are too large or too many.
    """
    places, sizes = [], [0]
    for leaf in leaves:
        size = bytes_of(leaf)
        if size > PART_BYTES_MAX:
            raise DelianError(
                f"the frozen leaf `{leaf.name}` has {size} bytes, and {PART_BYTES_MAX} are allowed"
            )
        if not size:
            places.append(Place(len(sizes) - 1, 0, 0))
            continue
        start = -(-sizes[-1] // ALIGNMENT) * ALIGNMENT
        if start and start + size > PART_BYTES:
            sizes.append(0)
            start = 0
        places.append(Place(len(sizes) - 1, start, size))
        sizes[-1] = start + size
    if len(sizes) > PARTS_MAX:
        raise DelianError(f"{len(sizes)} parts of frozen leaves, and {PARTS_MAX} are allowed")
    return tuple(places), tuple(size for size in sizes if size)


def packed(leaves: Sequence[Leaf], arrays: Sequence[Array]) -> Iterator[bytes]:
    """The parts' bytes, one after the other: little-endian arrays, zeros between them."""
    places, sizes = layout(leaves)
    for number, size in enumerate(sizes):
        part = bytearray(size)
        for place, array in zip(places, arrays, strict=True):
            if place.part == number and place.bytes:
                raw = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
                end = place.offset + place.bytes
                part[place.offset : end] = raw.reshape(-1).view(np.uint8).data
        yield bytes(part)


def parts_of(contents: Iterable[bytes]) -> tuple[FrozenPart, ...]:
    """The names of parts."""
    return tuple(FrozenPart(hashlib.sha256(each).hexdigest(), len(each)) for each in contents)


def part_of(leaf: Leaf, array: Array) -> FrozenPart:
    """The name of a leaf that is a part by itself: that of `packed([leaf], [array])`.

    Raises DelianError for another array, or one that is too large.
    """
    if array.shape != leaf.shape or array.dtype != DType(leaf.dtype).numpy:
        raise DelianError(
            f"the frozen leaf `{leaf.name}` is {leaf.dtype}{list(leaf.shape)}, and not"
            f" {array.dtype}{list(array.shape)}"
        )
    layout([leaf])
    raw = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    digest = hashlib.sha256(raw.reshape(-1).view(np.uint8).data)  # no copy: a file may be mapped
    return FrozenPart(digest.hexdigest(), raw.nbytes)


def arrays_of(leaves: Sequence[Leaf], parts: Sequence[bytes | memoryview]) -> list[Array]:
    """The leaves' arrays, read-only views into the parts. Raises DelianError for other sizes."""
    places, sizes = layout(leaves)
    found = tuple(len(part) for part in parts)
    if found != sizes:
        raise DelianError(
            f"frozen parts of {list(found)[:8]} bytes, where the manifest's leaves take"
            f" {list(sizes)[:8]}",
            "fetch or build the bundle again",
        )
    arrays = []
    for leaf, place in zip(leaves, places, strict=True):
        dtype = DType(leaf.dtype).numpy.newbyteorder("<")
        if not place.bytes:
            arrays.append(np.empty(leaf.shape, dtype))
            continue
        array = np.frombuffer(parts[place.part], dtype, leaf.size, place.offset)
        array.flags.writeable = False
        arrays.append(array.reshape(leaf.shape))
    return arrays


def mapped(leaves: Sequence[Leaf], files: Sequence[Path]) -> list[Array]:
    """The leaves' arrays in files of the parts, mapped read-only.

    The files hold what their names say (the caller's store checks hashes), and do not change.
    Raises DelianError for a file that is missing or has another size.
    """
    views = []
    for file in files:
        try:
            with Path(file).open("rb") as opened:
                size = os.fstat(opened.fileno()).st_size
                whole = mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ) if size else b""
                views.append(memoryview(whole))
        except OSError as error:
            raise DelianError(
                f"{file}: a part of the model's frozen leaves cannot be read: {error.strerror}",
                "it is fetched again with the next task",
            ) from error
    return arrays_of(leaves, views)


#: What of a file changes with its content: (inode, size, when it was written in ns).
Stamp = tuple[int, int, int]


def stamps_of(parts: Sequence[Path]) -> tuple[Stamp | None, ...]:
    """Of the parts' files; None: it is missing.

    A mapping shows what is written into its file. So where one has another stamp than when it was
    mapped, its leaves are mapped again.
    """
    found: list[Stamp | None] = []
    for part in parts:
        try:
            stat = part.stat()
        except OSError:
            found.append(None)
        else:
            found.append((stat.st_ino, stat.st_size, stat.st_mtime_ns))
    return tuple(found)
