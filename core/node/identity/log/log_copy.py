"""The certificate log at nodes that do not have the CA's folder.

A whole copy of it (`LogCopy`), or only the newest head that was accepted (`KnownLog`).

A head counts when the CA has signed it, a quorum of the witnesses has, and it continues the head
that counted before, also after a restart. Two heads of which one does not continue the other are
evidence that the CA shows different logs to different nodes, or that its log was rewritten. The
first such pair is kept in the file `log.fork` and is not removed by the program: both heads are
signed, so the pair convinces others. A relay that damages a proof on its way also leaves a pair
there; then `delian log verify` against the log itself finds both heads in it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from google.protobuf.message import DecodeError

from ....common.merkle_tree import Tree
from ....wire.enrolment_pb2 import FederationTerms
from ....wire.log_pb2 import Checkpoint, Cosignature, LogAsk, LogPage, LogUpdate
from ..pki.certificates import IdentityError, identity_of, load_certificate
from ..pki.identity_folder import IdentityFolder
from ..pki.ledger import private_folder, write_file
from . import certificate_log
from .log_entries import (
    ENTRY_BYTES,
    LogError,
    LogFork,
    LogHead,
    LogRollback,
    check_update,
    read_head,
    verify_head,
)
from .log_file import LogFile

log = logging.getLogger("delian.identity")

#: Evidence of two heads that do not continue each other.
FORK_FILE: Final = "log.fork"
#: The newest head that a node without a copy has accepted.
HEAD_FILE: Final = "log.head"
#: A file of heads: a `log.fork` has two, in hexadecimal, each with its cosignatures.
HEADS_BYTES_MAX: Final = 16 * 1024

#: Asks a node that has the log for a page of it; raises IdentityError.
AskLog = Callable[[LogAsk], Awaitable[LogPage]]
#: The federation's terms as they are now; None: there are none.
Terms = Callable[[], FederationTerms | None]


class LogCopy:
    """A copy of the log: the coordinator's, where the authority is another process, or a monitor's.

    The folder holds the entries, `log`, and the newest head, `log.checkpoint`. Entries are written
    as they come and count when a head counts that has them; those beyond the head are removed when
    it does not.
    """

    def __init__(
        self,
        folder: Path,
        authority: x509.Certificate,
        federation: str,
        terms: Terms = lambda: None,
    ) -> None:
        """Opens the copy or begins one.

        terms: they name witnesses and quorum. Raises IdentityError when what is there is damaged.
        """
        private_folder(folder)
        self.folder = folder
        self.file = LogFile(folder / certificate_log.FILE)
        self._authority, self._federation, self._terms = authority, federation, terms
        self.checkpoint = certificate_log.read_checkpoint(folder / certificate_log.CHECKPOINT_FILE)
        self.head: LogHead | None = None
        if self.checkpoint is not None:
            self.head = verify_head(self.checkpoint, authority, federation)
        size = 0 if self.head is None else self.head.size
        self.file.cut(size)
        tree = self.file.tree()
        if self.head is not None and (tree.size != size or tree.root() != self.head.root):
            raise LogError(
                f"the copy of the certificate log in {folder} is not what its head says",
                f"keep {folder / certificate_log.CHECKPOINT_FILE} as evidence, delete the other"
                " files, and fetch the log again",
            )

    @property
    def tree(self) -> Tree:
        """The tree of the entries; those beyond the head are not verified."""
        return self.file.tree()

    def place(self, leaf: bytes) -> int | None:
        """Where in the tree this leaf is, by its hash; None: nowhere."""
        return self.file.place(leaf)

    def update(self, old_size: int, now_s: float = 0.0) -> LogUpdate:
        """The newest head, for a node that knows the tree of `old_size` entries.

        now_s: not used; `CertificateLog` signs with it. Raises IdentityError.
        """
        return certificate_log.update_of(self._newest(), self.tree, old_size)

    def page(self, asked: LogAsk, now_s: float = 0.0) -> LogPage:
        """The answer to a reader of the log. Raises IdentityError."""
        return certificate_log.page_of(self.file, self._newest(), asked)

    def _newest(self) -> Checkpoint:
        if self.checkpoint is None:
            raise LogError("there is no copy of the certificate log yet")
        return self.checkpoint

    async def fetch(self, ask: AskLog) -> bool:
        """Fetches what is new; durable on return.

        Whether there are more entries. Raises LogFork and LogRollback, with the evidence kept, and
        IdentityError.
        """
        known = 0 if self.head is None else self.head.size
        await asyncio.to_thread(self.file.cut, known)
        page = await ask(LogAsk(first=known, old_size=known))
        update = page.update
        head = accept(
            self.folder,
            (self.checkpoint, update),
            self._authority,
            self._federation,
            self._terms(),
        )
        while (size := self.file.size()) < head.size:
            if size > known:
                page = await ask(LogAsk(first=size, old_size=head.size))
            entries = _entries_of(page, size)[: head.size - size]
            await asyncio.to_thread(self.file.append, entries)
        await asyncio.to_thread(self._take, update.checkpoint, head)
        return head.size > known

    def _take(self, checkpoint: Checkpoint, head: LogHead) -> None:
        if self.file.tree().root() != head.root:
            self.file.cut(0 if self.head is None else self.head.size)
            raise LogError("the entries of the certificate log are not those of its head")
        content = checkpoint.SerializeToString(deterministic=True)
        write_file(self.folder / certificate_log.CHECKPOINT_FILE, content)
        self.checkpoint, self.head = checkpoint, head


class KnownLog:
    """The newest head that a node has accepted; a `kept_deny_list.LogSink`."""

    def __init__(self, identity: IdentityFolder) -> None:
        """Reads what was stored.

        Raises IdentityError when it is damaged: without it a node would accept another log.
        """
        material = identity.material()
        self._identity = identity
        self._authority = load_certificate(material.authority)
        self._federation = identity_of(material.certificate).federation
        self._path = identity.folder / HEAD_FILE
        self.checkpoint = certificate_log.read_checkpoint(self._path)
        self.head: LogHead | None = None
        if self.checkpoint is not None:
            try:
                self.head = verify_head(self.checkpoint, self._authority, self._federation)
            except LogError as fault:
                raise LogError(
                    f"{self._path} is damaged: {fault.message}",
                    "delete it while the coordinator can be reached",
                ) from None

    def size(self) -> int:
        """Entries of the accepted head; 0: none."""
        return 0 if self.head is None else self.head.size

    def take(self, update: LogUpdate) -> None:
        """Accepts a head that continues the known one; durable on return. Logs every other."""
        try:
            terms = self._identity.terms()
            pair = self.checkpoint, update
            head = accept(self._identity.folder, pair, self._authority, self._federation, terms)
            before = self.head
            signed_later = before is None or head.issued_s > before.issued_s
            if before is not None and head.size == before.size and not signed_later:
                return
            write_file(self._path, update.checkpoint.SerializeToString(deterministic=True))
        except (LogFork, LogRollback):
            return  # `accept` has logged it and kept the evidence
        except IdentityError as error:
            log.warning("a head of the certificate log was refused: %s", error.message)
            return
        self.checkpoint, self.head = update.checkpoint, head


def accept(
    folder: Path,
    pair: tuple[Checkpoint | None, LogUpdate],
    authority: x509.Certificate,
    federation: str,
    terms: FederationTerms | None,
) -> LogHead:
    """The head of an update that counts and continues the known one.

    pair: the known checkpoint, which was verified, and the update. folder: where evidence is kept.
    Raises LogFork and LogRollback with the evidence kept, and IdentityError.
    """
    known, update = pair
    witnesses: Collection[bytes] = () if terms is None else terms.witnesses
    quorum = 0 if terms is None else terms.quorum
    head = verify_head(update.checkpoint, authority, federation, witnesses, quorum)
    before = None if known is None else read_head(known.head)
    try:
        check_update(before, update, head)
    except LogRollback as fault:
        if before is not None and head.issued_s > before.issued_s:
            keep_evidence(folder, known, update, fault.message)
        raise  # an older head is only late
    except LogFork as fault:
        keep_evidence(folder, known, update, fault.message)
        raise
    return head


def keep_evidence(folder: Path, known: Checkpoint | None, offered: LogUpdate, why: str) -> Path:
    """Writes two signed heads down that contradict each other, and logs the fork.

    The first pair stays; later ones are logged only. Gives the file.
    """
    path = folder / FORK_FILE
    log.critical(
        "log_fork: %s; the two signed heads are in %s: show them to the other organisations",
        why,
        path,
    )
    if not path.exists():
        evidence = {
            "why": why,
            "seen_s": int(time.time()),
            "known": None if known is None else _shown(known),
            "offered": _shown(offered.checkpoint),
            "old_size": offered.old_size,
            "consistency": offered.consistency.hex(),
        }
        write_file(path, json.dumps(evidence, indent=1).encode() + b"\n")
    return path


def read_heads(content: bytes) -> list[Checkpoint]:
    """The signed heads in a file.

    A checkpoint as nodes and witnesses keep it, or the two of a `log.fork`. Nothing is verified.
    Raises LogError.
    """
    try:
        if not content.startswith(b"{"):
            return [Checkpoint.FromString(content)]
        evidence = json.loads(content)
        found = [one for one in (evidence["known"], evidence["offered"]) if one is not None]
        return [
            Checkpoint(
                head=bytes.fromhex(one["head"]),
                signature=bytes.fromhex(one["signature"]),
                cosignatures=[
                    Cosignature(witness=bytes.fromhex(who), signature=bytes.fromhex(signature))
                    for who, signature in one["cosignatures"].items()
                ],
            )
            for one in found
        ]
    except (DecodeError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise LogError("this is no head of a certificate log") from None


def _shown(checkpoint: Checkpoint) -> dict[str, Any]:
    head = read_head(checkpoint.head)
    return {
        "federation": head.federation,
        "size": head.size,
        "issued_s": head.issued_s,
        "root": head.root.hex(),
        "head": checkpoint.head.hex(),
        "signature": checkpoint.signature.hex(),
        "cosignatures": {c.witness.hex(): c.signature.hex() for c in checkpoint.cosignatures},
    }


def _entries_of(page: LogPage, first: int) -> list[bytes]:
    content = page.entries
    good = page.first == first and 0 < len(content) <= certificate_log.PAGE_ENTRIES * ENTRY_BYTES
    if not good or len(content) % ENTRY_BYTES:
        raise LogError("the pages of the certificate log do not fit together")
    return [content[at : at + ENTRY_BYTES] for at in range(0, len(content), ENTRY_BYTES)]
