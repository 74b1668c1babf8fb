"""Blobs in a folder, by content: what a node holds of bundles and weights, whole or in part.

    FOLDER/whole/DIGEST     written elsewhere, synced, hashed, then renamed to here
    FOLDER/partial/DIGEST   what has come so far of one that is on its way; survives restarts

A partial is not synced until it is whole: after a power failure it may hold rubbish, which the hash
finds, and the transfer begins again. A whole blob is hashed again when a process asks for it for
the first time, and when its file was changed since: one that is damaged is set aside
(`whole/DIGEST.damaged`) and is not in the store any more, so that it is fetched again. Files are
read and written on threads; the index is the event loop's own.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import logging
import os
import re
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from ...common.errors import DelianError
from ...common.files import sync_file, sync_folder
from ...protocol.ports import BLOB_BYTES_MAX
from ...wire.blob_pb2 import BlobRef
from .disk import FolderLock, is_full, write_all

log = logging.getLogger("delian.node")

T = TypeVar("T")

#: How much is hashed at a time.
_CHUNK_BYTES = 2**20
_NAME = re.compile(r"[0-9a-f]{64}")
_PUT = ".put"
_DAMAGED = ".damaged"


class BlobError(DelianError):
    """A blob cannot be read, written or kept.

    Not there, a wrong name, more than was announced, taken over by another writer, a fault of the
    disk.
    """


class BlobsFull(BlobError):
    """There is no room: the store's cap, or the disk itself."""


def check_digest(digest: bytes) -> bytes:
    """The digest, when it is one: 32 bytes. Raises BlobError."""
    if len(digest) != hashlib.sha256().digest_size:
        raise BlobError(f"a blob's name has 32 bytes, not {len(digest)}")
    return digest


class Partial(Protocol):
    """A blob on its way into a store.

    One writer a digest: a second `begin` takes over, and the first one's next call raises
    BlobError.
    """

    @property
    def digest(self) -> bytes: ...

    @property
    def size(self) -> int:
        """Bytes of the whole."""

    @property
    def offset(self) -> int:
        """Bytes that are here, counted from the beginning without a gap."""

    async def write(self, content: bytes) -> None:
        """Adds what comes at `offset`. Raises BlobError beyond `size`, BlobsFull on a full disk."""

    async def finish(self) -> bool:
        """Whether it hashes to its digest; then it is durable and in the store.

        A mismatch forgets it all. Raises BlobError while `offset` is less than `size`.
        """

    async def abort(self, keep: bool = True) -> None:
        """Ends the writing, if it has not ended. keep: what is here stays for the next `begin`."""


class BlobStore(Protocol):
    """Blobs by SHA-256. A digest that has not 32 bytes raises BlobError everywhere."""

    async def digests(self) -> tuple[bytes, ...]:
        """The whole blobs that are here, and hash to their digests."""

    async def size(self, digest: bytes) -> int | None:
        """Bytes of a whole blob; None: it is not here, or does not hash to its digest any more.

        Raises BlobError where it cannot be read.
        """

    async def read(self, digest: bytes, offset: int = 0, length: int = -1) -> bytes:
        """`length` bytes from `offset` on, fewer at the end; -1: all.

        Raises BlobError where the blob is not here.
        """

    async def put(self, content: bytes) -> BlobRef:
        """Keeps a whole blob, durably, and names it. Raises BlobsFull."""

    async def begin(self, digest: bytes, size: int) -> Partial:
        """Begins to write, or goes on where the last writer ended.

        What is whole here already has `offset` == `size`. Raises BlobsFull before anything is
        allocated.
        """

    async def drop(self, digest: bytes) -> None:
        """Forgets a blob, and what there is of it in part, unless it is pinned."""

    def pin(self, digest: bytes) -> None:
        """Keeps a blob, here or still to come, from being dropped or evicted; counted.

        A driver pins what its machine counts on, so nodes of one process may share a store.
        """

    def unpin(self, digest: bytes) -> None:
        """Takes back one `pin`; drops nothing."""


class FolderBlobs:
    """A BlobStore in a folder of its own, which it makes and locks.

    Raises FolderInUse (of `disk`) while another has it, in this process or another.

    bytes_max: cap on whole blobs and partials together. To make room, partials that are not being
    written go first, then blobs that are not pinned, the least recently used first.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        self._lock_file = FolderLock(folder)
        self._whole, self._partial = folder / "whole", folder / "partial"
        self._sizes: OrderedDict[bytes, int] = OrderedDict()  # the least recently used first
        self._stale: OrderedDict[bytes, int] = OrderedDict()  # partials that are not being written
        self._writers: dict[bytes, FolderPartial] = {}
        self._pins: dict[bytes, int] = {}
        self._sound: dict[bytes, _Stamp] = {}  # files that hash to their names, as they were then
        self._hashing = asyncio.Lock()
        self._lock = asyncio.Lock()
        for place, index in ((self._whole, self._sizes), (self._partial, self._stale)):
            place.mkdir(exist_ok=True)
            files = [(entry, entry.stat()) for entry in os.scandir(place) if entry.is_file()]
            for entry, stat in sorted(files, key=lambda f: (f[1].st_atime_ns, f[0].name)):
                if _NAME.fullmatch(entry.name):
                    index[bytes.fromhex(entry.name)] = stat.st_size
                elif entry.name.endswith(_PUT):
                    Path(entry.path).unlink()

    # ------------------------------------------------ BlobStore

    async def digests(self) -> tuple[bytes, ...]:
        return tuple([d for d in sorted(self._sizes) if await self.size(d) is not None])

    async def size(self, digest: bytes) -> int | None:
        known = self._sizes.get(check_digest(digest))
        return known if known is not None and await self._is_sound(digest) else None

    async def _is_sound(self, digest: bytes) -> bool:
        """Whether the file hashes to its name; otherwise it is set aside."""
        path = self._whole / digest.hex()
        if self._sound.get(digest) == _stamp_of(path) is not None:
            return True
        async with self._hashing:  # many ask at once: the first one hashes
            stamp = _stamp_of(path)
            if stamp is not None and self._sound.get(digest) == stamp:
                return True
            if stamp is not None and await in_thread(lambda: _hash_of(path)) == digest:
                self._sound[digest] = stamp
                return True
            self._sizes.pop(digest, None)
            self._sound.pop(digest, None)
            aside = path.with_name(f"{path.name}{_DAMAGED}")
            if stamp is not None:
                await in_thread(lambda: path.replace(aside))
        where = "gone" if stamp is None else f"damaged, and set aside as {aside}"
        log.error("blob %s is %s", path.name[:16], where, extra={"store": str(self.folder)})
        return False

    async def read(self, digest: bytes, offset: int = 0, length: int = -1) -> bytes:
        path = self.path(digest)

        def work() -> bytes:
            with path.open("rb") as file:
                if offset:
                    file.seek(offset)
                else:
                    # So that the order of use survives a restart; when it was written stays.
                    os.utime(path, ns=(time.time_ns(), os.fstat(file.fileno()).st_mtime_ns))
                return file.read(length)

        return await in_thread(work)

    def path(self, digest: bytes) -> Path:
        """The file of a whole blob, for a program that reads it by itself; pin it meanwhile.

        Raises BlobError where the blob is not here.
        """
        if check_digest(digest) not in self._sizes:
            raise BlobError(f"blob {digest.hex()[:16]} is not in {self.folder}")
        self._sizes.move_to_end(digest)
        return self._whole / digest.hex()

    async def put(self, content: bytes) -> BlobRef:
        return await to_the_end(self._put(content))

    async def _put(self, content: bytes) -> BlobRef:
        digest = await in_thread(lambda: hashlib.sha256(content).digest())
        async with self._lock:
            if digest in self._sizes:
                self._sizes.move_to_end(digest)
            else:
                await self._make_room(len(content))
                temporary = self._partial / f"{digest.hex()}{_PUT}"
                await in_thread(lambda: self._write(temporary, content, digest))
                self._sizes[digest] = len(content)
        return BlobRef(digest=digest, size=len(content))

    async def begin(self, digest: bytes, size: int) -> FolderPartial:
        check_digest(digest)
        if not 0 <= size <= BLOB_BYTES_MAX:
            raise BlobError(f"a blob of {size} bytes; at most {BLOB_BYTES_MAX} are taken")
        return await to_the_end(self._begin(digest, size))

    async def _begin(self, digest: bytes, size: int) -> FolderPartial:
        async with self._lock:
            before = self._writers.get(digest)
            if before is not None:
                await before.abort()
            path = self._partial / digest.hex()
            known = self._sizes.get(digest)
            if known is not None:
                if known != size:
                    raise BlobError(f"blob {digest.hex()[:16]} has {known} bytes, not {size}")
                return FolderPartial(self, path, digest, size, None, size)
            here = self._stale.pop(digest, 0)
            try:
                await self._make_room(size, here)
            except BlobError:
                if here:
                    self._stale[digest] = here
                raise
            if here > size:
                await in_thread(path.unlink)
            writer = FolderPartial(self, path, digest, size, *await in_thread(lambda: _open(path)))
            self._writers[digest] = writer
            return writer

    async def drop(self, digest: bytes) -> None:
        check_digest(digest)
        async with self._lock:
            if not self._pins.get(digest):
                await self._remove(digest)

    def pin(self, digest: bytes) -> None:
        self._pins[digest] = self._pins.get(check_digest(digest), 0) + 1

    def unpin(self, digest: bytes) -> None:
        left = self._pins.get(check_digest(digest), 0) - 1
        if left > 0:
            self._pins[digest] = left
        else:
            self._pins.pop(digest, None)

    async def close(self) -> None:
        """Ends what is being written; partials stay. May be called twice."""
        for writer in list(self._writers.values()):
            await writer.abort()
        self._lock_file.close()

    # ------------------------------------------------ room

    @property
    def used(self) -> int:
        """Bytes that are taken, with what partials under way will take. On any thread."""
        writers = sum(writer.size for writer in list(self._writers.values()))
        return sum(self._sizes.values()) + sum(self._stale.values()) + writers

    async def _make_room(self, size: int, here: int = 0) -> None:
        """Evicts until `size` bytes fit, of which `here` are on the disk.

        Raises BlobsFull, and evicts nothing, where that cannot be.
        """
        free = self.bytes_max - self.used
        victims: list[bytes] = []
        loose = [d for d in self._sizes if not self._pins.get(d)]
        for victim in (*self._stale, *loose):
            if free >= size:
                break
            victims.append(victim)
            free += self._sizes.get(victim, 0) + self._stale.get(victim, 0)
        if free < size:
            raise BlobsFull(
                f"no room in {self.folder} for a blob of {size} bytes: {self.used} of "
                f"{self.bytes_max} are taken and in use",
                "raise the cap on the node's blobs",
            )
        for victim in victims:
            log.info("blob evicted", extra={"blob": victim.hex()[:16], "store": str(self.folder)})
            await self._remove(victim)
        if await in_thread(lambda: shutil.disk_usage(self.folder).free) < size - here:
            raise BlobsFull(f"the disk under {self.folder} has no room for {size} bytes")

    async def _remove(self, digest: bytes) -> None:
        paths = []
        self._sound.pop(digest, None)
        if self._sizes.pop(digest, None) is not None:
            paths.append(self._whole / digest.hex())
        if self._stale.pop(digest, None) is not None:
            paths.append(self._partial / digest.hex())
        for path in paths:
            await in_thread(partial(path.unlink, missing_ok=True))

    def _write(self, temporary: Path, content: bytes, digest: bytes) -> None:
        try:
            fd = os.open(temporary, _WRITE | os.O_TRUNC, 0o600)
            try:
                write_all(fd, (content,))
                sync_file(fd)
            finally:
                os.close(fd)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self.settle(temporary, digest)

    # ------------------------------------------------ of partials

    def settle(self, path: Path, digest: bytes) -> None:
        """Gives a whole and synced file, which hashes to its name, its place. On any thread."""
        place = self._whole / digest.hex()
        path.replace(place)
        if (stamp := _stamp_of(place)) is not None:
            self._sound[digest] = stamp
        sync_folder(self._whole)

    def ended(self, writer: FolderPartial, whole: bool, kept: int) -> None:
        """A writer has ended: the blob is `whole`, or `kept` bytes of it stay."""
        if self._writers.get(writer.digest) is writer:
            del self._writers[writer.digest]
        if whole:
            self._sizes[writer.digest] = writer.size
        elif kept:
            self._stale[writer.digest] = kept


class FolderPartial:
    """A blob on its way into a FolderBlobs. `fd` is None when the blob is there already."""

    def __init__(
        self,
        blobs: FolderBlobs,
        path: Path,
        digest: bytes,
        size: int,
        fd: int | None,
        offset: int,
        hasher: hashlib._Hash | None = None,
    ) -> None:
        self.digest = digest
        self.size = size
        self.offset = offset
        self._blobs = blobs
        self._path = path
        self._fd = fd
        self._hasher = hasher
        self._ended = False
        self._lock = asyncio.Lock()

    async def write(self, content: bytes) -> None:
        async with self._lock:
            self._check()
            if self.offset + len(content) > self.size:
                await self._end(kept=0)
                raise BlobError(
                    f"blob {self.digest.hex()[:16]}: more than the {self.size} bytes that were "
                    "announced"
                )
            if content:
                await in_thread(lambda: self._write(content))

    async def finish(self) -> bool:
        return await to_the_end(self._finish())

    async def _finish(self) -> bool:
        async with self._lock:
            self._check()
            if self.offset < self.size:
                raise BlobError(
                    f"blob {self.digest.hex()[:16]}: {self.offset} bytes of {self.size} are here"
                )
            if self._fd is None:
                self._ended = True
                return True
            assert self._hasher is not None
            if self._hasher.digest() != self.digest:
                await self._end(kept=0)
                return False
            await in_thread(self._settle)
            await self._end(whole=True)
            return True

    async def abort(self, keep: bool = True) -> None:
        async with self._lock:
            await self._end(kept=self.offset if keep else 0)

    def _check(self) -> None:
        if self._ended:
            raise BlobError(f"blob {self.digest.hex()[:16]} has another writer, or is done")

    def _write(self, content: bytes) -> None:
        assert self._fd is not None and self._hasher is not None
        try:
            write_all(self._fd, (content,))
        except OSError:
            os.ftruncate(self._fd, self.offset)
            os.lseek(self._fd, self.offset, os.SEEK_SET)
            raise
        self._hasher.update(content)
        self.offset += len(content)

    def _settle(self) -> None:
        assert self._fd is not None
        sync_file(self._fd)
        self._blobs.settle(self._path, self.digest)

    async def _end(self, whole: bool = False, kept: int = 0) -> None:
        if self._ended:
            return
        self._ended = True
        if self._fd is None:
            return
        os.close(self._fd)
        if not whole and not kept:
            await in_thread(partial(self._path.unlink, missing_ok=True))
        self._blobs.ended(self, whole, kept)


_WRITE = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)


#: What shows that a file was written to: bytes, inode, mtime in ns.
_Stamp = tuple[int, int, int]


def _stamp_of(path: Path) -> _Stamp | None:
    """None: there is no such file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise BlobError(f"a blob could not be read: {fault}") from fault
    return found.st_size, found.st_ino, found.st_mtime_ns


def _hash_of(path: Path) -> bytes:
    """Empty where the disk cannot read it."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as fault:
        if fault.errno == errno.EIO:
            return b""
        raise


def _open(path: Path) -> tuple[int, int, hashlib._Hash]:
    """A partial's file, open at its end, with its length and the hash of what is in it."""
    fd = os.open(path, _WRITE, 0o600)
    hasher, length = hashlib.sha256(), 0
    try:
        while chunk := os.read(fd, _CHUNK_BYTES):
            hasher.update(chunk)
            length += len(chunk)
    except OSError:
        os.close(fd)
        raise
    return fd, length, hasher


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Lets `work` end even when its caller is cancelled, so that index and files agree."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # no caller is left to report to
        raise


async def in_thread(work: Callable[[], T]) -> T:
    """Runs `work` on a thread, to its end even when the caller is cancelled meanwhile.

    What the system refuses is a BlobError.
    """
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        future.exception()  # no caller is left to report to
        raise
    except OSError as fault:
        if is_full(fault):
            raise BlobsFull(f"the disk is full: {fault}", "make room on it") from fault
        raise BlobError(f"a blob could not be read or written: {fault}") from fault
