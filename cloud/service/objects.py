"""The coordinator's blob store: a folder, or an object store by URL (S3, GCS, Azure)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.common.errors import DelianError
from ...core.common.install_hint import install
from ...core.node.storage.blobs import BlobError, BlobStore, FolderBlobs, Partial, check_digest
from ...core.node.storage.journal import JournalError
from ...core.protocol.ports import Content
from ...core.wire.blob_pb2 import BlobRef

if TYPE_CHECKING:
    from obstore.store import ObjectStore

log = logging.getLogger("delian.cloud.service.objects")

T = TypeVar("T")

#: A part of a multipart upload; S3 takes no less than 5 MiB.
UPLOAD_PART_BYTES = 8 * 2**20
#: How many parts of one upload are under way.
UPLOAD_PARTS_AT_ONCE = 4
#: For one request, with its repetitions.
REQUEST_S = 60
#: Objects that are uploaded or brought into the cache at once.
TRANSFERS_AT_ONCE = 8
SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "memory")


def is_url(where: str) -> bool:
    """Whether blobs are asked for in an object store, not in a folder."""
    return "://" in where


def connect(url: str, **options: Any) -> ObjectStore:
    """The object store of a URL as s3://BUCKET/PREFIX.

    Its credentials are in the environment, as its own tools read it (AWS_ACCESS_KEY_ID,
    AWS_ENDPOINT, GOOGLE_SERVICE_ACCOUNT...).

    Raises DelianError.
    """
    if url.partition("://")[0] not in SCHEMES:
        raise DelianError(f"no blobs can be kept in {url}", "s3://BUCKET/PREFIX, gs://, az://")
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ImportError:
        raise DelianError(
            f"blobs in {url} need obstore, which is not installed", install("s3")
        ) from None
    if not url.startswith("memory"):
        timeouts = {"timeout": timedelta(seconds=REQUEST_S), "connect_timeout": "10s"}
        options["client_options"] = {**timeouts, **options.get("client_options", {})}
        limit = timedelta(seconds=REQUEST_S)
        options.setdefault("retry_config", {"max_retries": 5, "retry_timeout": limit})
    try:
        return from_url(url, **options)
    except (BaseError, ValueError) as fault:
        raise DelianError(f"no blobs can be kept in {url}: {fault}") from fault


class ObjectBlobs:
    """A BlobStore in an object store, with a folder before it. Made by `open`."""

    def __init__(self, store: ObjectStore, cache: FolderBlobs, sizes: dict[bytes, int]) -> None:
        self.cache = cache
        self._store = store
        self._sizes = sizes
        self._pins: dict[bytes, int] = {}
        self._transfers = asyncio.Semaphore(TRANSFERS_AT_ONCE)
        self._fetches: dict[bytes, asyncio.Task[None]] = {}

    @classmethod
    async def open(cls, store: ObjectStore, cache: FolderBlobs) -> ObjectBlobs:
        """Lists what is in the store. Raises BlobError."""
        sizes: dict[bytes, int] = {}

        async def work() -> None:
            async for batch in store.list("blobs"):
                for found in batch:
                    name = found["path"].rpartition("/")[2]
                    if len(name) == 64:
                        sizes[bytes.fromhex(name)] = found["size"]

        await _told(work(), BlobError, "listed")
        return cls(store, cache, sizes)

    async def digests(self) -> tuple[bytes, ...]:
        return tuple(sorted(self._sizes))

    async def size(self, digest: bytes) -> int | None:
        return self._sizes.get(check_digest(digest))

    async def read(self, digest: bytes, offset: int = 0, length: int = -1) -> bytes:
        size = self._sizes.get(check_digest(digest))
        if size is None:
            raise BlobError(f"blob {digest.hex()[:16]} is not here")
        if not offset and await self.cache.size(digest) is None:
            await self._fetch(digest, size)
        if await self.cache.size(digest) is not None:
            return await self.cache.read(digest, offset, length)
        return await self._range(digest, offset, size - offset if length < 0 else length)

    async def put(self, content: bytes) -> BlobRef:
        ref = await self.cache.put(content)
        await self.upload(ref.digest, ref.size)
        return ref

    async def begin(self, digest: bytes, size: int) -> Partial:
        known = self._sizes.get(check_digest(digest))
        if known is not None:
            if known != size:
                raise BlobError(f"blob {digest.hex()[:16]} has {known} bytes, not {size}")
            return _Here(digest, size)
        return _Uploading(self, await self.cache.begin(digest, size))

    async def drop(self, digest: bytes) -> None:
        if self._pins.get(check_digest(digest)):
            return
        if self._sizes.pop(digest, None) is not None:
            await _told(self._store.delete_async(_name(digest)), BlobError, "removed")
        await self.cache.drop(digest)

    def pin(self, digest: bytes) -> None:
        self._pins[digest] = self._pins.get(check_digest(digest), 0) + 1

    def unpin(self, digest: bytes) -> None:
        left = self._pins.get(check_digest(digest), 0) - 1
        if left > 0:
            self._pins[digest] = left
        else:
            self._pins.pop(digest, None)

    async def close(self) -> None:
        """Ends what is under way; the cache stays. May be called twice."""
        tasks = list(self._fetches.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.cache.close()

    async def upload(self, digest: bytes, size: int) -> None:
        """Uploads a whole blob out of the cache."""
        if digest in self._sizes:
            return
        # It may not be evicted before it is read; and an upload that fails leaves nothing behind.
        self.cache.pin(digest)
        try:
            async with self._transfers:
                await _told(self._put(digest, size), BlobError, "uploaded")
        finally:
            self.cache.unpin(digest)
        self._sizes[digest] = size

    async def _put(self, digest: bytes, size: int) -> None:
        if size > UPLOAD_PART_BYTES:
            await self._store.put_async(
                _name(digest),
                self.cache.path(digest),
                chunk_size=UPLOAD_PART_BYTES,
                max_concurrency=UPLOAD_PARTS_AT_ONCE,
            )
            return
        from obstore.exceptions import AlreadyExistsError, NotSupportedError

        content = await self.cache.read(digest)
        try:
            await self._store.put_async(_name(digest), content, mode="create")
        except AlreadyExistsError:
            log.info("blob was there already", extra={"blob": digest.hex()[:16]})
        except NotSupportedError:
            await self._store.put_async(_name(digest), content)

    async def _fetch(self, digest: bytes, size: int) -> None:
        """Brings a blob into the cache, once however many ask; where it has no room, ranges do."""
        task = self._fetches.get(digest)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._bring(digest, size))
            self._fetches[digest] = task
            task.add_done_callback(lambda _: self._fetches.pop(digest, None))
        await asyncio.shield(task)

    async def _bring(self, digest: bytes, size: int) -> None:
        try:
            partial = await self.cache.begin(digest, size)
        except BlobError as fault:
            log.warning("blob not cached: %s", fault.message)
            return
        try:
            async with self._transfers:
                while partial.offset < size:
                    part = min(UPLOAD_PART_BYTES, size - partial.offset)
                    await partial.write(await self._range(digest, partial.offset, part))
            if not await partial.finish():
                raise BlobError(f"object {digest.hex()[:16]} does not hash to its name")
        finally:
            await partial.abort()

    async def _range(self, digest: bytes, offset: int, length: int) -> bytes:
        length = min(length, self._sizes[digest] - offset)
        if length <= 0:
            return b""
        asked = self._store.get_range_async(_name(digest), start=offset, length=length)
        return bytes(await _told(asked, BlobError, "read"))


class _Here:
    """The Partial of a blob that is whole already."""

    def __init__(self, digest: bytes, size: int) -> None:
        self.digest, self.size, self.offset = digest, size, size

    async def write(self, content: bytes) -> None:
        if content:
            raise BlobError(f"blob {self.digest.hex()[:16]} is here already")

    async def finish(self) -> bool:
        return True

    async def abort(self, keep: bool = True) -> None:
        """There is nothing to end."""


class _Uploading:
    """A blob on its way through the cache."""

    def __init__(self, blobs: ObjectBlobs, inner: Partial) -> None:
        self._blobs, self._inner = blobs, inner
        self.digest, self.size = inner.digest, inner.size

    @property
    def offset(self) -> int:
        return self._inner.offset

    async def write(self, content: bytes) -> None:
        await self._inner.write(content)

    async def finish(self) -> bool:
        if not await self._inner.finish():
            return False
        await self._blobs.upload(self.digest, self.size)
        return True

    async def abort(self, keep: bool = True) -> None:
        await self._inner.abort(keep)


class ObjectPacks:
    """The journal's packs (`store.packs`) in an object store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    async def write(
        self, name: str, parts: Sequence[Content], fresh: bool = False
    ) -> tuple[str, int]:
        content = b"".join(parts)
        done = self._store.put_async(f"packs/{name}", content, chunk_size=UPLOAD_PART_BYTES)
        await _told(done, JournalError, "written")
        return name, 0

    async def read(self, name: str) -> bytes:
        async def work() -> bytes:
            found = await self._store.get_async(f"packs/{name}")
            return bytes(await found.bytes_async())

        return await _told(work(), JournalError, "read")

    async def names(self, prefix: str) -> list[str]:
        async def work() -> list[str]:
            return [
                name
                async for batch in self._store.list("packs")
                for found in batch
                if (name := found["path"].rpartition("/")[2]).startswith(prefix)
            ]

        return sorted(await _told(work(), JournalError, "listed"))

    async def remove(self, names: Iterable[str]) -> None:
        paths = [f"packs/{name}" for name in names]
        if paths:
            await _told(self._store.delete_async(paths), JournalError, "removed")


class NodeBlobs:
    """One node's view of a store that others use too.

    seen: what its machine receives at the start.
    """

    def __init__(self, store: BlobStore, seen: Callable[[], Iterable[bytes]] = tuple) -> None:
        self.store = store
        self._seen = seen

    async def digests(self) -> tuple[bytes, ...]:
        found = []
        for digest in sorted(set(self._seen())):
            if await self.store.size(digest) is not None:
                found.append(digest)
        return tuple(found)

    async def missing(self) -> tuple[bytes, ...]:
        """What its machine counts on and the store has not got, or not whole."""
        here = await self.digests()
        return tuple(sorted(set(self._seen()) - set(here)))

    async def size(self, digest: bytes) -> int | None:
        return await self.store.size(digest)

    async def read(self, digest: bytes, offset: int = 0, length: int = -1) -> bytes:
        return await self.store.read(digest, offset, length)

    async def put(self, content: bytes) -> BlobRef:
        return await self.store.put(content)

    async def begin(self, digest: bytes, size: int) -> Partial:
        return await self.store.begin(digest, size)

    async def drop(self, digest: bytes) -> None:
        await self.store.drop(digest)

    def pin(self, digest: bytes) -> None:
        self.store.pin(digest)

    def unpin(self, digest: bytes) -> None:
        self.store.unpin(digest)


def _name(digest: bytes) -> str:
    return f"blobs/{digest.hex()}"


async def _told(work: Awaitable[T], kind: type[DelianError], what: str) -> T:
    """Does `work`; what the object store refuses becomes an error of ours."""
    from obstore.exceptions import BaseError

    try:
        return await work
    except (BaseError, OSError, ValueError) as fault:
        reason = str(fault).strip().partition("\n")[0][:300]
        raise kind(
            f"the object store failed ({what}): {reason}",
            "see that the bucket is there and the credentials are good",
        ) from fault
