"""The certificate log of a simulated federation.

An authority and witnesses whose keys follow from the seed, and a log that has all devices unless a
test says otherwise.

So it proves nothing to a party that has the seed. Trees, proofs, and what devices check are the
real ones; there are no certificates, so an entry names a device and the seed. All devices of a
simulation are one process: what one has verified is remembered for the others.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ...common.merkle_tree import Tree, leaf_hash
from ...wire.log_pb2 import Checkpoint
from .logged import LOG, WITNESSES, LogHead, LogRules
from .secure_errors import SecureError

if TYPE_CHECKING:  # imported where it is used, as in `kdf`
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

#: The tier in the name of the simulated authority's key.
AUTHORITY: Final = "authority"
#: Witnesses of a simulated federation, and how many of them a head needs.
SIMULATED_WITNESSES: Final = 3
SIMULATED_QUORUM: Final = 2

_HEAD: Final = struct.Struct(">20sQ32s")
_DOMAIN: Final = b"delian/simulated-log"
_WITNESS_DOMAIN: Final = b"delian/log-witness/v1"


class SimulatedLog:
    """A log of devices: `logged.LogCopy`, and the authority and witnesses that sign its heads."""

    def __init__(self, seed: int, devices: Iterable[int] = ()) -> None:
        self._seed = seed
        self._places: dict[bytes, int] = {}
        self._tree = Tree()
        for device in devices:
            self.log(device)

    def log(self, device: int) -> int:
        """Logs a device's certificate. Gives its index."""
        return self.add(leaf_of(device, self._seed))

    def add(self, leaf: bytes) -> int:
        """Logs an entry, given by its leaf's hash. Gives its index."""
        self._places[leaf] = self._tree.append(leaf)
        return self._places[leaf]

    def tree(self) -> Tree:
        return self._tree

    def place(self, leaf: bytes) -> int | None:
        return self._places.get(leaf)

    def index_of(self, device: int) -> int:
        """Where a logged device's certificate is."""
        return self._places[leaf_of(device, self._seed)]

    def head(
        self, size: int | None = None, witnesses: Sequence[int] = range(SIMULATED_WITNESSES)
    ) -> LogHead:
        """The tree's head at `size` leaves (None: now), signed by authority and witnesses."""
        at = self._tree.size if size is None else size
        return LogHead(at, self._tree.root(at), self._signed(at, tuple(witnesses)))

    def _signed(self, size: int, witnesses: tuple[int, ...]) -> Checkpoint:
        from .member_identity import SimulatedIdentity

        head = _HEAD.pack(_DOMAIN, size, self._tree.root(size))
        made = Checkpoint(
            head=head, signature=SimulatedIdentity(0, self._seed, AUTHORITY).sign(head)
        )
        for witness in witnesses:
            key = _witness_key(witness, self._seed)
            public = key.public_key().public_bytes_raw()
            made.cosignatures.add(witness=public, signature=key.sign(_WITNESS_DOMAIN + head))
        return made


@lru_cache(maxsize=4)
def simulated_log(seed: int, devices: int) -> SimulatedLog:
    """The log of the devices from 0 on. Not to be changed."""
    return SimulatedLog(seed, range(devices))


@lru_cache(maxsize=16)
def simulated_rules(seed: int) -> LogRules:
    """What the devices of a simulated federation ask of its log."""
    keys = (_witness_key(one, seed).public_key() for one in range(SIMULATED_WITNESSES))
    return LogRules(True, tuple(key.public_bytes_raw() for key in keys), SIMULATED_QUORUM)


@lru_cache(maxsize=16_384)
def leaf_of(device: int, seed: int) -> bytes:
    """The hash of a simulated device's leaf: there are no certificates."""
    return leaf_hash(f"delian simulated certificate {seed} {device}".encode())


def verify_head(seed: int, checkpoint: Checkpoint, rules: LogRules) -> LogHead:
    """The head, signed by a simulated authority and a quorum. Raises SecureError."""
    content = checkpoint.SerializeToString(deterministic=True)
    size, root = _verified(seed, content, rules)
    return LogHead(size, root, checkpoint)


@lru_cache(maxsize=256)
def _verified(seed: int, content: bytes, rules: LogRules) -> tuple[int, bytes]:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from .member_identity import _public_key, is_signed

    checkpoint = Checkpoint.FromString(content)
    head = checkpoint.head
    if not is_signed(_public_key(0, seed, AUTHORITY), head, checkpoint.signature):
        raise SecureError(LOG, "the authority has not signed the head of the log")
    if len(head) != _HEAD.size or not head.startswith(_DOMAIN):
        raise SecureError(LOG, "the head of the log is malformed")
    agreed = set()
    for one in checkpoint.cosignatures:
        if one.witness not in rules.witnesses:
            continue
        try:
            key = Ed25519PublicKey.from_public_bytes(one.witness)
            key.verify(one.signature, _WITNESS_DOMAIN + head)
        except InvalidSignature:
            continue
        agreed.add(one.witness)
    if len(agreed) < rules.quorum:
        raise SecureError(WITNESSES, f"{len(agreed)} witnesses of {rules.quorum} have signed")
    _, size, root = _HEAD.unpack(head)
    return size, root


@lru_cache(maxsize=64)
def _witness_key(witness: int, seed: int) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    named = f"delian simulated log witness {seed} {witness}"
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(named.encode()).digest())
