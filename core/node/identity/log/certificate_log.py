"""The certificate log as the CA's folder has it.

    log             the entries (`log_file`)
    log.checkpoint  the newest head that the witnesses have co-signed (`Checkpoint`)

`Authority` adds an entry for each certificate, before the certificate is given out. Certificates
that are older than the log are not in it; their holders renew, and are in it then. A federation
whose terms name no witnesses serves its newest head; otherwise the newest co-signed one, so that
every device that asks for a quorum can accept it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError

from ....common.merkle_tree import ProofError, Tree
from ....wire.log_pb2 import Checkpoint, LogAsk, LogPage, LogUpdate
from ..authority import terms
from ..pki.certificates import IdentityError, read_file
from ..pki.ledger import FolderLock, write_file
from . import log_entries
from .log_file import LogFile

FILE: Final = "log"
CHECKPOINT_FILE: Final = "log.checkpoint"
#: The head is signed again after so long, when no entry was added.
RESIGN_S: Final = 3600
PAGE_ENTRIES: Final = 48 * 1024 // log_entries.ENTRY_BYTES


class CertificateLog:
    """The log of a CA. Several processes may have the same folder open."""

    def __init__(
        self,
        folder: Path,
        lock: FolderLock,
        federation: str,
        sign: Callable[[bytes], bytes],
        public: ec.EllipticCurvePublicKey,
    ) -> None:
        """lock: the folder's. sign: with the CA's key. public: that key's public half."""
        self.file = LogFile(folder / FILE)
        self._folder, self._checkpoint_path = folder, folder / CHECKPOINT_FILE
        self._lock, self._federation, self._sign, self._public = lock, federation, sign, public
        self._newest: tuple[log_entries.LogHead, Checkpoint] | None = None

    @property
    def tree(self) -> Tree:
        """The tree of all entries."""
        return self.file.tree()

    def place(self, leaf: bytes) -> int | None:
        """Where in the tree this leaf is, by its hash; None: nowhere."""
        return self.file.place(leaf)

    def append(self, entry: bytes, at_least: int = 0) -> int:
        """Adds an entry; durable on return.

        Gives its index. at_least: entries that the log is known to have. Raises IdentityError, also
        when it has fewer.
        """
        with self._lock.held():
            self.check(at_least)
            return self.file.append([entry])

    def check(self, at_least: int) -> None:
        """Raises LogError when the log has fewer entries."""
        if (size := self.file.size()) < at_least:
            raise log_entries.LogError(
                f"{self.file.path} has {size} entries; {at_least} were written",
                "restore it from its newest copy: nodes refuse a log that lost entries",
            )

    def take_back(self, folder: Path) -> int:
        """Adds the entries that a copy has beyond this log, which was restored from an older one.

        Durable on return. folder: a `LogCopy`'s. Gives how many. Raises LogError unless this CA has
        signed the copy's head and the copy begins with the entries that are here.
        """
        kept, other = read_checkpoint(folder / CHECKPOINT_FILE), LogFile(folder / FILE)
        if kept is None:
            raise log_entries.LogError(f"{folder} holds no copy of a certificate log")
        head = log_entries.verify_head(kept, self._public, self._federation)
        with self._lock.held():
            copied, mine = other.tree(), self.file.tree()
            if copied.size < head.size or copied.root(head.size) != head.root:
                raise log_entries.LogError(f"the copy in {folder} is not what its head says")
            if mine.size > head.size or copied.root(mine.size) != mine.root():
                raise log_entries.LogError(
                    f"the log here has entries that the copy in {folder} does not have",
                    "certificates were issued since the restore, or the copy is older: use the"
                    " newest copy, before anything is issued",
                )
            count = head.size - mine.size
            self.file.append(other.entries(mine.size, count))
            return count

    def checkpoint(self, now_s: float) -> Checkpoint:
        """The newest head under the CA's signature, at most RESIGN_S old; without cosignatures.

        now_s: Unix time. Raises IdentityError.
        """
        with self._lock.held():
            tree = self.file.tree()
            if self._newest is not None:
                head, known = self._newest
                if head.size == tree.size and 0 <= now_s - head.issued_s < RESIGN_S:
                    return known
            made = log_entries.sign_head(
                self._sign, self._federation, tree.size, tree.root(), int(now_s)
            )
            self._newest = log_entries.read_head(made.head), made
            return made

    def published(self, now_s: float) -> Checkpoint:
        """The newest head that devices accept: co-signed where the terms name a quorum.

        Raises LogError while no head is co-signed, and IdentityError.
        """
        held = terms.held(self._folder, self._public, self._federation)
        if held is None or held.quorum == 0:
            return self.checkpoint(now_s)
        kept = self.kept()
        if kept is None:
            raise log_entries.LogError(
                "no head of the certificate log is co-signed yet",
                "the terms ask for witnesses: is [cloud] witnesses set, and do they answer?",
            )
        if log_entries.read_head(kept.head).size > self.file.size():
            raise log_entries.LogError(
                "the certificate log is shorter than the head that witnesses have co-signed",
                "restore it from its newest copy: the folder was restored from an older one",
            )
        return kept

    def kept(self) -> Checkpoint | None:
        """The newest head that was published with cosignatures; None: not logged yet.

        Raises IdentityError.
        """
        return read_checkpoint(self._checkpoint_path)

    def publish(self, checkpoint: Checkpoint) -> None:
        """Keeps a head that enough witnesses have co-signed; durable on return.

        A head that is older than the one that is kept changes nothing.
        """
        with self._lock.held():
            head, kept = log_entries.read_head(checkpoint.head), self.kept()
            if kept is not None:
                before = log_entries.read_head(kept.head)
                if (head.size, head.issued_s) < (before.size, before.issued_s):
                    return
            write_file(self._checkpoint_path, checkpoint.SerializeToString(deterministic=True))

    def update(self, old_size: int, now_s: float) -> LogUpdate:
        """The newest head that devices accept, for one that knows the tree of `old_size` entries.

        Raises IdentityError.
        """
        return update_of(self.published(now_s), self.tree, old_size)

    def page(self, asked: LogAsk, now_s: float) -> LogPage:
        """The answer to a reader of the log. Raises IdentityError."""
        return page_of(self.file, self.published(now_s), asked)


def update_of(checkpoint: Checkpoint, tree: Tree, old_size: int) -> LogUpdate:
    """A head for a node that knows the tree of `old_size` entries.

    A larger size gets the head without a proof: the node compares. Raises IdentityError.
    """
    head = log_entries.read_head(checkpoint.head)
    made = LogUpdate(old_size=old_size, checkpoint=checkpoint)
    if old_size <= head.size:
        try:
            made.consistency = tree.consistency(old_size, head.size)
        except ProofError as fault:
            raise log_entries.LogError(f"the log cannot be proved: {fault.message}") from None
    return made


def page_of(file: LogFile, checkpoint: Checkpoint, asked: LogAsk) -> LogPage:
    """A page of a log: entries under the head of the checkpoint. Raises IdentityError."""
    size = log_entries.read_head(checkpoint.head).size
    count = max(0, min(PAGE_ENTRIES, size - asked.first))
    entries = b"".join(file.entries(asked.first, count)) if count else b""
    update = update_of(checkpoint, file.tree(), asked.old_size)
    return LogPage(update=update, first=asked.first, entries=entries)


def read_checkpoint(path: Path) -> Checkpoint | None:
    """A checkpoint that was kept; None: there is none.

    Its signature is not verified. Raises IdentityError.
    """
    if not path.exists():
        return None
    try:
        return Checkpoint.FromString(read_file(path, log_entries.CHECKPOINT_BYTES_MAX))
    except DecodeError:
        raise IdentityError(
            f"{path} is damaged", "delete it while the log's source can be reached"
        ) from None
