"""Signatures: the seam between the protocol and the certificates of a federation.

The coordinator signs its tasks. Every member signs its keys, and what it knows of the survivors,
with the key of its certificate: ECDSA on P-256 with SHA-256 and RFC 6979's nonces, so that a
machine that handles its events again says the same bytes. `core.node.identity.pki.signing` has the
certificates of daemons; here is what stands in for them where a federation is simulated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ...wire.log_pb2 import Checkpoint
from . import kdf, simulated_log
from .logged import LogHead, LogRules

if TYPE_CHECKING:  # imported where it is used, as in `kdf`
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

CERTIFICATE_BYTES_MAX = 2 * 1024  # KeyBundle.certificate, DER
#: Task.certificate, DER: a coordinator's certificate has the addresses that it serves at.
COORDINATOR_BYTES_MAX = 8 * 1024
SIGNATURE_BYTES_MAX = 80  # DER of two numbers below 2^256 has at most 72
#: Pairs of keys whose secret is remembered while a federation is simulated: those of two sessions
#: of a thousand, some tens of MiB.
AGREED_MAX = 2**18
#: The tier in the name of a simulated coordinator's key.
COORDINATOR = "coordinator"
_agreed: dict[bytes, bytes] = {}
#: The order of P-256's group (FIPS 186-5, SP 800-186 section 3.2.1.3).
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


class Identity(Protocol):
    """Signs for one device, and verifies others' signatures."""

    @property
    def certificate(self) -> bytes:
        """DER, at most CERTIFICATE_BYTES_MAX. Empty where all keys are known."""

    def sign(self, message: bytes) -> bytes:
        """A signature of at most SIGNATURE_BYTES_MAX; the same for the same message."""

    def verify(self, device: int, certificate: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the device's certificate has signed the message; False for malformed ones."""

    def verify_edge(self, edge: int, certificate: bytes, message: bytes, signature: bytes) -> bool:
        """The same of an edge."""

    def verify_coordinator(self, certificate: bytes, message: bytes, signature: bytes) -> bool:
        """The same of the federation's coordinator."""

    def log_leaf(self, device: int, certificate: bytes) -> bytes:
        """The hash of the certificate log's leaf for a device's verified certificate: 32 bytes."""

    def log_head(self, checkpoint: Checkpoint, rules: LogRules) -> LogHead:
        """The head of the log in a checkpoint.

        Raises SecureError (`logged.REASONS`) unless the federation's CA has signed it, and a quorum
        of the witnesses too.
        """


@runtime_checkable
class Agreeing(Protocol):
    """An identity that does its device's X25519 as well."""

    def agree(self, secret: bytes, peers: Sequence[bytes]) -> list[bytes]:
        """As `kdf.agree`."""


def agree(identity: Identity, secret: bytes, peers: Sequence[bytes]) -> list[bytes]:
    """The secret that is shared with each of some public keys; `kdf.agree` says more."""
    if isinstance(identity, Agreeing):
        return identity.agree(secret, peers)
    return kdf.agree(secret, peers)


def sign(key: ec.EllipticCurvePrivateKey, message: bytes) -> bytes:
    """ECDSA with SHA-256 and RFC 6979's nonce: DER."""
    return key.sign(message, _algorithm())


def is_signed(key: ec.EllipticCurvePublicKey, message: bytes, signature: bytes) -> bool:
    """Whether `signature` (DER) of the message was made with the key's private half."""
    from cryptography.exceptions import InvalidSignature

    if len(signature) > SIGNATURE_BYTES_MAX:
        return False
    try:
        key.verify(signature, message, _algorithm())
    except InvalidSignature:
        return False
    return True


@cache
def _algorithm() -> ec.ECDSA:
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256

    return ec.ECDSA(SHA256(), deterministic_signing=True)


class SimulatedIdentity:
    """The identity of a simulated node: each key follows from the federation's seed.

    So it proves nothing to a party that has the seed, and there are no certificates. All devices of
    a simulation are one process, and in a session of a thousand each signature is verified by some
    hundred and forty of them, and each shared secret is worked out by both ends, twice by some.
    What one has found is remembered for the others; it follows from the keys and the message, so a
    session says what it would say anyway.
    """

    certificate = b""

    def __init__(self, device: int, seed: int, tier: str = "") -> None:
        """device: the node's number. tier: "edge" of an edge, COORDINATOR of the coordinator."""
        self._seed = seed
        self._key = _private_key(device, seed, tier)

    def sign(self, message: bytes) -> bytes:
        return sign(self._key, message)

    def verify(self, device: int, certificate: bytes, message: bytes, signature: bytes) -> bool:
        if certificate or len(signature) > SIGNATURE_BYTES_MAX:
            return False
        return _is_signed_by(device, self._seed, "", message, signature)

    def agree(self, secret: bytes, peers: Sequence[bytes]) -> list[bytes]:
        private, own = _own_keys(secret)
        pairs = [min(own, peer) + max(own, peer) for peer in peers]
        unknown = {
            pair: peer for pair, peer in zip(pairs, peers, strict=True) if pair not in _agreed
        }
        found = dict(zip(unknown, kdf.exchanged(private, list(unknown.values())), strict=True))
        if len(_agreed) + len(found) > AGREED_MAX:
            found = {pair: _agreed.get(pair) or found[pair] for pair in pairs}
            _agreed.clear()
        _agreed.update(found)
        return [_agreed[pair] for pair in pairs]

    def verify_edge(self, edge: int, certificate: bytes, message: bytes, signature: bytes) -> bool:
        if certificate:
            return False
        return is_signed(_public_key(edge, self._seed, "edge"), message, signature)

    def verify_coordinator(self, certificate: bytes, message: bytes, signature: bytes) -> bool:
        if certificate or len(signature) > SIGNATURE_BYTES_MAX:
            return False
        return _is_signed_by(0, self._seed, COORDINATOR, message, signature)

    def log_leaf(self, device: int, certificate: bytes) -> bytes:
        return simulated_log.leaf_of(device, self._seed)

    def log_head(self, checkpoint: Checkpoint, rules: LogRules) -> LogHead:
        return simulated_log.verify_head(self._seed, checkpoint, rules)


def simulated_coordinator(seed: int) -> SimulatedIdentity:
    """The identity with which a simulated coordinator signs."""
    return SimulatedIdentity(0, seed, COORDINATOR)


def _private_key(device: int, seed: int, tier: str = "") -> ec.EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    digest = hashlib.sha512(f"delian simulated {tier}identity {seed} {device}".encode()).digest()
    # 512 bits modulo a number of 256: as good as uniform.
    return ec.derive_private_key(int.from_bytes(digest, "big") % (_ORDER - 1) + 1, ec.SECP256R1())


@lru_cache(maxsize=4_096)  # two of a member, which agrees three times
def _own_keys(secret: bytes) -> tuple[X25519PrivateKey, bytes]:
    """A member's private X25519 key, and its public one."""
    private = kdf.private_key(secret)
    return private, private.public_key().public_bytes_raw()


@lru_cache(maxsize=8_192)  # keys and consents of a few thousand: some MiB
def _is_signed_by(device: int, seed: int, tier: str, message: bytes, signature: bytes) -> bool:
    return is_signed(_public_key(device, seed, tier), message, signature)


@lru_cache(maxsize=16_384)
def _public_key(device: int, seed: int, tier: str = "") -> ec.EllipticCurvePublicKey:
    return _private_key(device, seed, tier).public_key()
