"""The certificate log in a session.

A device accepts a neighbour only if the neighbour's certificate is proved to be in the federation's
log.

The authority that issues certificates can issue one to an invented device. It can do so unseen only
if the certificate is in no log, or in a log that is shown to the victims alone. So a device checks:
the head is signed by the CA, co-signed by a quorum of witnesses, and continues the head that the
device accepted last; each neighbour's certificate is a leaf under that head.

The coordinator has a copy of the log. It accepts into a cohort the devices whose certificate is in
it, and cuts each device's proofs from it (`ServedLog`). Sources: RFC 9162 (certificate
transparency), sections 2.1 and 8.1; core/common/merkle_tree.py has the proofs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from ...common import merkle_tree
from ...common.merkle_tree import Paths, ProofError, Tree
from ...wire.log_pb2 import Checkpoint, LogProof, LogUpdate
from .secure_errors import SecureError

#: The reasons for which a session ends. A neighbour's certificate is not proved to be in the log.
LOG: Final = "log"
#: The head is not co-signed by as many witnesses as the federation's terms ask for.
WITNESSES: Final = "log witnesses"
#: The head is of a smaller tree than the head that the device has accepted.
ROLLBACK: Final = "log rollback"
#: The head is signed by the CA and does not continue the head that the device has accepted.
FORK: Final = "log fork"
REASONS: Final = (LOG, WITNESSES, ROLLBACK, FORK)

#: Bytes of a checkpoint: the head, the CA's signature, and 16 cosignatures.
CHECKPOINT_BYTES_MAX: Final = 4 * 1024
INDEX_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class LogRules:
    """What a device asks of the log, by its federation's terms."""

    required: bool = False
    """Without a proof a device takes no neighbour."""
    witnesses: tuple[bytes, ...] = ()
    """Their Ed25519 public keys, 32 bytes each."""
    quorum: int = 0
    """Cosignatures that a head needs."""


@dataclass(frozen=True, slots=True)
class LogHead:
    """A head that was verified."""

    size: int = 0
    """Leaves of the tree."""
    root: bytes = b""
    """32 bytes; empty if the size is 0."""
    signed: Checkpoint | None = None
    """The head as it was signed; None: no head was accepted yet."""


class ForkError(SecureError):
    """A head that the CA has signed and that does not continue the accepted one.

    The two signed heads are the evidence, if the tree really does not continue; a proof that was
    damaged on its way raises the same.
    """

    def __init__(self, reason: str, message: str, known: LogHead, offered: LogUpdate) -> None:
        super().__init__(reason, message)
        self.known, self.offered = known, offered


class Verifier(Protocol):
    """The part of `identity.Identity` that knows certificates and heads."""

    def log_leaf(self, device: int, certificate: bytes) -> bytes: ...
    def log_head(self, checkpoint: Checkpoint, rules: LogRules) -> LogHead: ...


# ---------------------------------------------------------------- the device


def accept(known: LogHead, update: LogUpdate, verifier: Verifier, rules: LogRules) -> LogHead:
    """The head of an update that continues the known one. Raises SecureError, ForkError."""
    if update.old_size != known.size:
        raise SecureError(LOG, "a proof from another head than the one that this device stated")
    if update.checkpoint.ByteSize() > CHECKPOINT_BYTES_MAX:
        raise SecureError(LOG, "a head of the log that is too large")
    head = verifier.log_head(update.checkpoint, rules)
    if head.size < known.size:
        raise ForkError(
            ROLLBACK,
            f"a log of {head.size} entries was offered; {known.size} entries are known here",
            known,
            update,
        )
    try:
        root = known.root or merkle_tree.EMPTY_ROOT
        merkle_tree.check_consistency(known.size, root, head.size, head.root, update.consistency)
    except ProofError as fault:
        if known.signed is None:
            raise SecureError(LOG, f"the head of the log: {fault.message}") from None
        raise ForkError(
            FORK, f"the log does not continue the known one: {fault.message}", known, update
        ) from None
    return head


def check_leaves(proof: LogProof, leaves: Sequence[bytes], head: LogHead) -> None:
    """Whether the leaves, by hash, are in the tree of the head. Raises SecureError(LOG)."""
    at = dict(zip(proof.indices, leaves, strict=False))
    if len(proof.indices) != len(leaves) or len(at) != len(leaves):
        raise SecureError(LOG, f"{len(at)} places in the log for {len(leaves)} certificates")
    try:
        root = merkle_tree.root_of(at, head.size, proof.inclusion)
    except ProofError as fault:
        raise SecureError(LOG, f"the proof of the certificates: {fault.message}") from None
    if root != head.root:
        raise SecureError(LOG, "a neighbour's certificate is not in the log")


# ---------------------------------------------------------------- the coordinator


class LogCopy(Protocol):
    """The coordinator's copy of the log.

    It has all that the head counts which sessions go by, and only grows: so events that are handled
    again find what they found.
    """

    def tree(self) -> Tree:
        """The tree of all entries."""

    def place(self, leaf: bytes) -> int | None:
        """Where in the tree this leaf is, by its hash; None: nowhere."""


@dataclass(frozen=True, slots=True)
class ServedLog:
    """The log as the coordinator's sessions go by it."""

    copy: LogCopy
    head: LogHead
    """The newest that devices may accept."""

    def place(self, leaf: bytes) -> int | None:
        """Where a leaf is under the head."""
        at = self.copy.place(leaf)
        return at if at is not None and at < self.head.size else None


def update_from(tree: Tree, old_size: int, head: LogHead) -> LogUpdate:
    """The head for a device at `old_size` leaves. Raises SecureError if the copy is behind."""
    assert head.signed is not None
    try:
        consistency = tree.consistency(old_size, head.size)
    except ProofError as fault:
        raise SecureError(LOG, f"the copy of the log: {fault.message}") from None
    return LogUpdate(old_size=old_size, checkpoint=head.signed, consistency=consistency)


def prove(
    tree: Tree, head: LogHead, old_size: int, places: bytes, members: Sequence[int]
) -> LogProof:
    """The proof for a device that some members of a cohort are in the log.

    places: of all members, u64 little-endian each. members: indices of those to be proved. Raises
    SecureError if the copy is behind the head.
    """
    indices = [place_of(places, member) for member in members]
    try:
        inclusion = _paths(tree, places, head.size).proof(sorted(indices))
    except ProofError as fault:
        raise SecureError(LOG, f"the copy of the log: {fault.message}") from None
    update = update_from(tree, old_size, head)
    return LogProof(update=update, indices=indices, inclusion=inclusion)


def place_of(places: bytes, member: int) -> int:
    """A member's place, of all members' places."""
    return int.from_bytes(places[member * INDEX_BYTES : (member + 1) * INDEX_BYTES], "little")


@lru_cache(maxsize=4)
def _paths(tree: Tree, places: bytes, size: int) -> Paths:
    """The paths of a cohort's members, from which the proof of each of them is cut."""
    members = range(len(places) // INDEX_BYTES)
    return Paths(tree, sorted({place_of(places, member) for member in members}), size)
