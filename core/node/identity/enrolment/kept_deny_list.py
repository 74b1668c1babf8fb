"""The deny list as a node that has no CA keeps it.

Fetched a page at a time from any node that has it, verified, and stored before it counts. With the
first page the coordinator sends the newest head of the certificate log.

A node refuses a list that is older than the one that it has, also after a restart. It cannot detect
silence: a node that passes lists on can withhold the newest. `DenyList.issued_s` says how old the
list is, and devices take no masked task with one that is too old (`DevicePolicy`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cryptography import x509

from ....wire.link_pb2 import DeniedAsk, DeniedPage
from ....wire.log_pb2 import LogUpdate
from ..authority import deny_list
from ..pki.certificates import IdentityError, identity_of, load_certificate
from ..pki.identity_folder import IdentityFolder
from ..pki.ledger import write_file

#: Entries in a page, in bytes: fits into an envelope that is no transfer.
PAGE_BYTES = 48 * 1024 // deny_list.ENTRY_BYTES * deny_list.ENTRY_BYTES
#: How often a list that changes while it is read is begun again.
TRIES = 3
ASK_EVERY_S = 300
#: A device asks less often than an edge: there are many, and what it needs the list for is rarer.
DEVICE_ASKS_EVERY_S = 1800
TIME_METADATA = "delian-time-ms"  # trailing metadata of the answer: the coordinator's Unix time

log = logging.getLogger("delian.identity")

_PREFIX = 4  # bytes before head and signature in the file: their lengths
FILE_BYTES_MAX = (
    _PREFIX
    + deny_list.HEAD_BYTES_MAX
    + deny_list.SIGNATURE_BYTES_MAX
    + deny_list.NODES_MAX * deny_list.ENTRY_BYTES
)

#: Asks a node that has the list for a page of it; raises IdentityError.
Ask = Callable[[DeniedAsk], Awaitable[DeniedPage]]


class LogSink(Protocol):
    """Where a node keeps the newest head of the certificate log that it has accepted."""

    def size(self) -> int:
        """Entries of the accepted head; 0: none."""

    def take(self, update: LogUpdate) -> None:
        """Verifies a head that came with the deny list, and keeps it where it counts.

        Does not raise: the deny list counts whatever the log's head is. Called from another thread.
        """


@dataclass(frozen=True, slots=True)
class DeniedFile:
    """Where a list is kept, and whose it is."""

    authority: x509.Certificate
    """The root's certificate."""
    federation: str
    path: Path


def _file_of(identity: IdentityFolder) -> DeniedFile:
    material = identity.material()
    federation = identity_of(material.certificate).federation
    return DeniedFile(load_certificate(material.authority), federation, identity.denied_path)


class KnownDenied:
    """What a node knows of the deny list. Calling it gives the list: `Guard` takes it as it is.

    signed: as it is passed on; None: nothing was fetched yet. wanted: the version that a task or
    a Pace has named; a list that is older is not enough.
    """

    def __init__(
        self,
        identity: IdentityFolder | DeniedFile,
        changed: Callable[[deny_list.DenyList], None] | None = None,
        log: LogSink | None = None,
    ) -> None:
        """Reads what was stored.

        Raises IdentityError when it is damaged: without the list a node would trust revoked nodes.
        changed: called from another thread with each list that is newer, or signed later.
        log: takes the heads of the certificate log that come with it.
        """
        at = identity if isinstance(identity, DeniedFile) else _file_of(identity)
        self._authority, self._federation, self._path = at.authority, at.federation, at.path
        self._changed, self._log = changed, log
        self._list = deny_list.DenyList()
        self.signed: deny_list.SignedList | None = None
        self.wanted = 0
        self._load()

    def __call__(self) -> deny_list.DenyList:
        return self._list

    async def fetch(self, ask: Ask) -> bool:
        """Asks for the newest list; durable on return.

        Whether there are other names in it. Raises IdentityError when it is not the CA's, or older
        than the one that is known.
        """
        for _ in range(TRIES):
            log_size = 0 if self._log is None else self._log.size()
            page = await ask(DeniedAsk(version=self._list.version, log_size=log_size))
            if self._log is not None and page.HasField("log"):
                await asyncio.to_thread(self._log.take, page.log)
            head = await asyncio.to_thread(self._verified, page)
            if self.signed is not None and head.version == self._list.version:
                same = deny_list.SignedList(
                    head.version, page.head, page.signature, self.signed.entries
                )
                await asyncio.to_thread(self._take, head, same)
                return False
            entries = await _entries(ask, page, head, self._list.version)
            if entries is not None:
                made = deny_list.SignedList(head.version, page.head, page.signature, entries)
                await asyncio.to_thread(self._take, head, made)
                return True
        raise IdentityError("the deny list has changed again and again while it was read")

    def _verified(self, page: DeniedPage) -> deny_list.Head:
        head = deny_list.verify_head(page.head, page.signature, self._authority, self._federation)
        known = self._list
        if head.version < known.version:
            raise deny_list.DenyListError(
                f"a deny list of version {head.version} was offered; version {known.version} is"
                " known here",
                "if the CA was restored from a backup, run on its machine: delian ca restored",
            )
        return head

    def _take(self, head: deny_list.Head, signed: deny_list.SignedList) -> None:
        """Stores a list whose head was verified. Raises DenyListError."""
        listed = deny_list.read_entries(head, signed.entries)
        if (head.version, head.issued_s) <= (self._list.version, self._list.issued_s):
            return  # signed no later than the one that is known
        parts = (len(signed.head).to_bytes(2, "big"), len(signed.signature).to_bytes(2, "big"))
        content = b"".join((*parts, signed.head, signed.signature, signed.entries))
        write_file(self._path, content, 0o600)
        self._list, self.signed = listed, signed
        if self._changed is not None:
            self._changed(listed)

    def _load(self) -> None:
        try:
            with self._path.open("rb") as file:
                content = file.read(FILE_BYTES_MAX + 1)
        except FileNotFoundError:
            return
        except OSError as error:
            raise IdentityError(f"cannot read {self._path}: {error.strerror}") from None
        try:
            if not _PREFIX <= len(content) <= FILE_BYTES_MAX:
                raise deny_list.DenyListError("the file is cut short, or too large")
            head_at = _PREFIX + int.from_bytes(content[:2], "big")
            entries_at = head_at + int.from_bytes(content[2:_PREFIX], "big")
            first, signature = content[_PREFIX:head_at], content[head_at:entries_at]
            head = deny_list.verify_head(first, signature, self._authority, self._federation)
            self._list = deny_list.read_entries(head, content[entries_at:])
            self.signed = deny_list.SignedList(head.version, first, signature, content[entries_at:])
        except deny_list.DenyListError as error:
            raise IdentityError(
                f"{self._path} is damaged: {error.message}",
                "delete it while the coordinator can be reached",
            ) from None


async def _entries(ask: Ask, page: DeniedPage, head: deny_list.Head, version: int) -> bytes | None:
    """The entries of a list, whose first page this is. None: the list has changed meanwhile."""
    found, first = bytearray(), page.head
    while True:
        if page.offset != len(found) or len(page.entries) > PAGE_BYTES:
            raise IdentityError("the deny list's pages do not fit together")
        found += page.entries
        if len(found) == head.size:
            return bytes(found)
        if not page.entries or len(found) > head.size:
            raise IdentityError("the deny list's pages do not fit together")
        page = await ask(DeniedAsk(version=version, offset=len(found)))
        if page.head != first:
            return None


def page_of(
    signed: deny_list.SignedList, asked: DeniedAsk, update: Callable[[int], LogUpdate] | None = None
) -> DeniedPage:
    """The answer to a node that asks for a page of the list.

    update: gives the newest head of the certificate log for a node that knows so many entries; may
    raise IdentityError, which leaves the head out.
    """
    page = DeniedPage(head=signed.head, signature=signed.signature, offset=asked.offset)
    if update is not None and asked.offset == 0:
        try:
            page.log.CopyFrom(update(asked.log_size))
        except IdentityError as error:
            log.warning("no head of the certificate log: %s", error.message)
    if asked.version != signed.version:
        page.entries = signed.entries[asked.offset : asked.offset + PAGE_BYTES]
    return page
