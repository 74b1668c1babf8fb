"""Moves the CA of a coordinator, which is stopped meanwhile, to the folder of an authority.

    mark      COORDINATOR/ca/moving names the target: from now on no process opens this CA
    copy      COORDINATOR/ca -> AUTHORITY/ca.partial, every file durable
    verify    both have the same bytes, and the copy opens with the same key, numbers, list and log
    place     AUTHORITY/ca.partial becomes AUTHORITY/ca
    nodes     the rows of nodes that joined, with sites and revocations, into AUTHORITY's store
    leave     what the coordinator goes on with: identity, terms, deny list, a copy of the log
    remove    COORDINATOR/ca loses the key, then everything but ca.pem and the mark

Interrupted anywhere, the same command goes on: each step looks at what is there. At no moment can
two folders be opened as this CA, and before `remove` the old folder still has all of it.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.common.files import sync_folder
from ...core.node.identity.authority.authority import Authority
from ...core.node.identity.authority.authority_folder import CERTIFICATE, KEY, MOVING
from ...core.node.identity.authority.terms import published
from ...core.node.identity.authority.tokens import TokenBook
from ...core.node.identity.enrolment.kept_deny_list import KnownDenied, page_of
from ...core.node.identity.log.log_copy import LogCopy
from ...core.node.identity.pki.certificates import IdentityError, load_certificate
from ...core.node.identity.pki.hsm import FILE as TOKEN
from ...core.node.identity.pki.identity_folder import IdentityFolder
from ...core.node.identity.pki.ledger import FolderLock, private_folder, write_file
from ...core.node.identity.pki.local_identity import coordinator_identity
from ...core.protocol.ports import Tier
from ...core.wire.link_pb2 import DeniedAsk, DeniedPage
from ...core.wire.log_pb2 import LogAsk, LogPage
from ..service.fleet_registry import Fleet
from ..service.trust import LOG_FOLDER
from ..store.database import Database

_LOCK, _PARTIAL = "lock", "ca.partial"


@dataclass(frozen=True, slots=True)
class Moved:
    """What was moved."""

    federation: str
    fingerprint: str
    """Of the CA."""
    nodes: int
    """Rows."""


class Migration:
    """One move; `run` may be called again after a crash.

    cloud: the coordinator's state. target: the authority's state. ca, identity: of the coordinator;
    None: in its state. store: the coordinator's, file or URL; empty: in its state.
    """

    def __init__(
        self,
        cloud: Path,
        target: Path,
        *,
        ca: Path | None = None,
        identity: Path | None = None,
        store: str = "",
    ) -> None:
        self.source, self.placed = ca or cloud / "ca", target / "ca"
        self._cloud, self._target = cloud, target
        self._partial = target / _PARTIAL
        self._identity = identity or cloud / "identity"
        self._store: str | Path = store or cloud / "delian.db"

    async def run(self) -> Moved:
        """Raises DelianError: the coordinator runs, there is no CA, or the target has another."""
        await asyncio.to_thread(self._check)
        # Opening the store fails while a coordinator works on it.
        database = await Database.open(self._store)
        try:
            await asyncio.to_thread(self.mark)
            if not self.placed.exists():
                await asyncio.to_thread(self.copy)
                await asyncio.to_thread(self.verify)
                await asyncio.to_thread(self.place)
            authority = await asyncio.to_thread(Authority, self.placed)
            nodes = await self.nodes(Fleet(database))
        finally:
            await database.close()
        await self.leave(authority)
        await asyncio.to_thread(self.remove)
        return Moved(authority.federation, authority.fingerprint, nodes)

    # ------------------------------------------------ steps

    def _check(self) -> None:
        if not (self.source / CERTIFICATE).exists():
            raise IdentityError(f"{self.source} holds no CA", "name the coordinator's state folder")
        if isinstance(self._store, Path) and not self._store.exists():
            raise IdentityError(
                f"there is no {self._store}", "name the coordinator's database with --store"
            )
        if self._target.resolve() == self._cloud.resolve():
            raise IdentityError("both folders are the same", "name another for the authority")
        if self.placed.exists():
            here, there = (
                load_certificate((f / CERTIFICATE).read_bytes()) for f in (self.source, self.placed)
            )
            if here != there:
                raise IdentityError(
                    f"{self.placed} holds another CA", "name another folder for the authority"
                )
        elif not any((self.source / name).exists() for name in (KEY, TOKEN)):
            raise IdentityError(
                f"{self.source} holds no key: the CA was moved away", "look at its file `moving`"
            )

    def mark(self) -> None:
        """Closes the old folder for all processes."""
        path, to = self.source / MOVING, str(self.placed.resolve())
        if not path.exists():
            with FolderLock(self.source).held():
                write_file(path, json.dumps({"to": to}).encode() + b"\n", 0o600)
        elif json.loads(path.read_bytes()).get("to") != to:
            raise IdentityError(
                f"this CA is being moved elsewhere: {path} says where", "finish that move first"
            )

    def copy(self) -> None:
        """Copies every file; what an interrupted copy left is removed first."""
        private_folder(self._target)
        shutil.rmtree(self._partial, ignore_errors=True)
        private_folder(self._partial)
        for path in self._files():
            to = self._partial / path.relative_to(self.source)
            private_folder(to.parent)
            if path.is_symlink():
                to.symlink_to(path.readlink())
            else:
                write_file(to, path.read_bytes(), path.stat().st_mode & 0o777)
            sync_folder(to.parent)

    def _files(self) -> list[Path]:
        """All but the lock and the mark; of links the links themselves."""
        left = (self.source / _LOCK, self.source / MOVING)
        found = []
        for folder in (self.source, *(p for p in self.source.rglob("*") if _is_folder(p))):
            found += [p for p in folder.iterdir() if not _is_folder(p) and p not in left]
        return sorted(found)

    def verify(self) -> None:
        """Compares the copy, and opens it. Raises IdentityError."""
        for path in self._files():
            to = self._partial / path.relative_to(self.source)
            same = (
                path.readlink() == to.readlink()
                if path.is_symlink()
                else to.is_file() and path.read_bytes() == to.read_bytes()
            )
            if not same:
                raise IdentityError(f"{to} is not a copy of {path}", "run the same command again")
        opened = Authority(self._partial)
        TokenBook(opened.folder, opened.lock)
        opened.log.checkpoint(time.time())

    def place(self) -> None:
        """The copy becomes the CA."""
        self._partial.rename(self.placed)
        sync_folder(self._target)

    async def nodes(self, fleet: Fleet) -> int:
        """Copies the rows of nodes that joined; gives how many.

        Rows that are there are replaced by the same.
        """
        database = await Database.open(self._target / "delian.db")
        try:
            there, count = Fleet(database), 0
            for tier in (Tier.DEVICE, Tier.EDGE):
                after = 0
                while page := await fleet.enrolled(tier, after):
                    await there.learn(tier, page)
                    after, count = page[-1].number, count + len(page)
            for node in await fleet.revoked():
                await there.revoke(node)
            if await there.last_numbers() != await fleet.last_numbers():
                raise IdentityError("the nodes were not copied whole", "run the same command again")
        finally:
            await database.close()
        return count

    async def leave(self, authority: Authority) -> None:
        """Gives the coordinator what it goes on with. Durable on return."""

        async def denied(asked: DeniedAsk) -> DeniedPage:
            return page_of(authority.signed(), asked)

        async def log(asked: LogAsk) -> LogPage:
            return authority.log.page(asked, time.time())

        own = IdentityFolder(self._identity)
        if not own.exists():
            own = coordinator_identity(authority, self._identity)[0]
        if terms := published(authority.folder):
            own.take_terms(terms, authority.pem, authority.federation, owned=False)
        await KnownDenied(own).fetch(denied)
        root, federation = authority.certificate, authority.federation
        await LogCopy(self._cloud / LOG_FOLDER, root, federation, own.terms).fetch(log)

    def remove(self) -> None:
        """Takes the key out of the old folder, then the rest. Its certificate and the mark stay."""
        for name in (KEY, TOKEN):
            (self.source / name).unlink(missing_ok=True)
        sync_folder(self.source)
        kept = (self.source / CERTIFICATE, self.source / MOVING, self.source / _LOCK)
        for path in sorted(self.source.iterdir()):
            if _is_folder(path):
                shutil.rmtree(path)
            elif path not in kept:
                path.unlink()
        sync_folder(self.source)

    def facts(self, moved: Moved) -> dict[str, Any]:
        """What was done, for people and programs."""
        return {
            "federation": moved.federation,
            "fingerprint": moved.fingerprint,
            "nodes": moved.nodes,
            "from": str(self.source),
            "to": str(self.placed),
        }


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
