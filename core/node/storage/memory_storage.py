"""What a node keeps, kept in memory: for simulations and tests.

`MemoryDisk` is a disk that fails as disks do: a crash keeps any part of what was not synced, pages
in any order, names likewise; it can be full, and stop at any operation.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...protocol.ports import Rng
from ...wire.blob_pb2 import BlobRef
from .blobs import BlobError, BlobsFull, check_digest

#: What a disk writes as a whole.
PAGE_BYTES = 512


@dataclass(slots=True)
class _File:
    content: bytearray = field(default_factory=bytearray)
    synced: int = 0  # bytes that are durable
    before: bytes | None = None  # what `put` has replaced; None: it is appended to


class MemoryDisk:
    """A `Disk` in memory.

    before: called before each operation with its name; what it raises stops the operation. An
        append that is stopped has left the first half of its bytes.
    bytes_max: room in all; beyond it appends fail with ENOSPC, half done.
    """

    def __init__(
        self, before: Callable[[str], None] | None = None, bytes_max: int | None = None
    ) -> None:
        self.before = before
        self.bytes_max = bytes_max
        self.crashes = 0
        self._names: dict[str, _File] = {}
        self._durable: dict[str, _File] = {}
        self._pending: list[tuple[str | None, str | None, _File]] = []  # old name, new name

    def append(self, name: str, parts: Sequence[bytes]) -> None:
        content = b"".join(parts)
        file = self._names.get(name)
        if file is None:
            self._tell("create")
            file = self._names[name] = _File()
            self._pending.append((None, name, file))
        try:
            self._tell("append")
            used = sum(len(f.content) for f in self._names.values())
            if self.bytes_max is not None and used + len(content) > self.bytes_max:
                raise OSError(errno.ENOSPC, "No space left on device")
        except BaseException:
            file.content += content[: len(content) // 2]
            raise
        file.content += content

    def put(self, name: str, content: bytes) -> None:
        file = self._names.get(name)
        if file is None:
            self._tell("create")
            file = self._names[name] = _File()
            self._pending.append((None, name, file))
        self._tell("put")
        file.before, file.content, file.synced = bytes(file.content), bytearray(content), 0

    def sync(self, name: str) -> None:
        self._tell("sync")
        file = self._file(name)
        file.synced = len(file.content)

    def sync_names(self) -> None:
        self._tell("sync names")
        self._durable = dict(self._names)
        self._pending.clear()

    def rename(self, old: str, new: str) -> None:
        self._tell("rename")
        file = self._file(old)
        del self._names[old]
        self._names[new] = file
        self._pending.append((old, new, file))

    def remove(self, name: str) -> None:
        self._tell("remove")
        file = self._file(name)
        del self._names[name]
        self._pending.append((name, None, file))

    def list(self) -> list[str]:
        return sorted(self._names)

    def read(self, name: str) -> bytes:
        return bytes(self._file(name).content)

    def crash(self, rng: Rng) -> None:
        """Power fails: what was not synced is lost, torn and reordered, as `rng` decides."""
        self.crashes += 1
        draw = _Draws(rng, self.crashes)
        names = dict(self._durable)
        for old, new, file in self._pending:
            if draw.unit() < 0.5:
                if old is not None:
                    names.pop(old, None)
                if new is not None:
                    names[new] = file
        for file in {id(f): f for f in names.values()}.values():
            _tear(file, draw)
        self._names, self._durable = names, dict(names)
        self._pending.clear()

    def damage(self, name: str, offset: int) -> None:
        """Changes one byte of a file."""
        self._file(name).content[offset] ^= 0xFF

    def _tell(self, operation: str) -> None:
        if self.before is not None:
            self.before(operation)

    def _file(self, name: str) -> _File:
        file = self._names.get(name)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", name)
        return file


class _Draws:
    def __init__(self, rng: Rng, which: int) -> None:
        self._rng, self._which, self._count = rng, which, 0

    def unit(self) -> float:
        self._count += 1
        return self._rng.unit("disk crash", self._which, self._count)


def _tear(file: _File, draw: _Draws) -> None:
    """Keeps what was synced, and any pages of the rest up to any length."""
    if file.before is not None and draw.unit() < 0.5:
        file.content = bytearray(file.before)
        return
    content, kept = file.content, file.synced
    end = kept + int(draw.unit() * (len(content) - kept + 1))
    del content[end:]
    at = kept
    while at < end:
        stop = min(end, (at // PAGE_BYTES + 1) * PAGE_BYTES)
        if draw.unit() < 0.3:
            content[at:stop] = bytes(stop - at)
        at = stop
    file.synced = len(content)


class MemoryBlobs:
    """A `BlobStore` in memory. Partials do not survive their writer."""

    def __init__(self, bytes_max: int = 2**62) -> None:
        self.bytes_max = bytes_max
        self.contents: dict[bytes, bytes] = {}
        self._pins: dict[bytes, int] = {}

    async def digests(self) -> tuple[bytes, ...]:
        return tuple(self.contents)

    async def size(self, digest: bytes) -> int | None:
        content = self.contents.get(check_digest(digest))
        return None if content is None else len(content)

    async def read(self, digest: bytes, offset: int = 0, length: int = -1) -> bytes:
        content = self.contents.get(check_digest(digest))
        if content is None:
            raise BlobError(f"blob {digest.hex()[:16]} is not here")
        return content[offset : None if length < 0 else offset + length]

    async def put(self, content: bytes) -> BlobRef:
        digest = hashlib.sha256(content).digest()
        self.keep(digest, content)
        return BlobRef(digest=digest, size=len(content))

    async def begin(self, digest: bytes, size: int) -> MemoryPartial:
        self._check_room(check_digest(digest), size)
        return MemoryPartial(self, digest, size)

    async def drop(self, digest: bytes) -> None:
        if not self._pins.get(check_digest(digest)):
            self.contents.pop(digest, None)

    def pin(self, digest: bytes) -> None:
        self._pins[digest] = self._pins.get(check_digest(digest), 0) + 1

    def unpin(self, digest: bytes) -> None:
        self._pins[digest] = max(0, self._pins.get(check_digest(digest), 0) - 1)

    def keep(self, digest: bytes, content: bytes) -> None:
        """Keeps what is known to hash to its digest. Raises BlobsFull."""
        self._check_room(digest, len(content))
        self.contents[digest] = content

    def _check_room(self, digest: bytes, size: int) -> None:
        used = sum(len(content) for d, content in self.contents.items() if d != digest)
        if used + size > self.bytes_max:
            raise BlobsFull(f"no room for a blob of {size} bytes")


class MemoryPartial:
    """A blob on its way into a MemoryBlobs."""

    def __init__(self, blobs: MemoryBlobs, digest: bytes, size: int) -> None:
        self.digest, self.size = digest, size
        self._blobs = blobs
        self._content = bytearray(blobs.contents.get(digest, b""))

    @property
    def offset(self) -> int:
        return len(self._content)

    async def write(self, content: bytes) -> None:
        if self.offset + len(content) > self.size:
            raise BlobError(f"more than the {self.size} bytes that were announced")
        self._content += content

    async def finish(self) -> bool:
        content = bytes(self._content)
        intact = hashlib.sha256(content).digest() == self.digest
        if intact:
            self._blobs.keep(self.digest, content)
        return intact

    async def abort(self, keep: bool = True) -> None:
        self._content.clear()
