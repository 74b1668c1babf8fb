"""The certificate log: what an entry is, and what the CA and the witnesses sign.

Every certificate that the CA issues is an entry of a tree that only grows (`merkle_tree`). A holder
of the CA's key can issue certificates in any name; with the log it cannot do so unseen. The CA
writes the entry before it gives the certificate out. Devices accept a neighbour in a masked sum
only if its certificate is in the tree under a head that continues the head that they know.
Witnesses, which belong to other organisations, sign a head only if it continues the last one that
they signed, so two groups of devices cannot be shown two logs.

    entry        role (1), number (8), not before (8), not after (8, Unix s), SHA-256 of the
                 certificate's DER (32): 57 bytes. Role: as in the deny list; 255 and number 0 for
                 the certificate of a server that is no node, or its authority's number; 254 and
                 its number for the CA certificate of an issuing authority
    leaf         SHA-256 of 0x00 and the entry
    head         "delian/log/v1" 0, length (1) and name of the federation, size of the tree (8),
                 time of the signature (8, Unix s), root (32)
    signature    ECDSA with P-256 and SHA-256 (FIPS 186-5), DER, of the head, by the CA's key
    cosignature  Ed25519 (RFC 8032) of "delian/log-witness/v1" 0 and the head, by a witness's key

Integers are unsigned, big-endian. Any holder of a certificate can compute its entry. This module
reads no clock and does no input or output. Source: RFC 9162 (certificate transparency).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from ....common import merkle_tree
from ....wire.log_pb2 import Checkpoint, Cosignature, LogUpdate
from ..authority.deny_list import ROLE_CODES, ROLES, SIGNATURE_BYTES_MAX
from ..authority.terms import WITNESSES_MAX
from ..pki import certificates
from ..pki.intermediate import facts_of

_ENTRY: Final = struct.Struct(">BQQQ32s")
ENTRY_BYTES: Final = _ENTRY.size
#: Role byte of a server that is no node, as an MQTT broker.
SERVER: Final = 255
#: Role byte of the CA certificate of an issuing authority.
ISSUING: Final = 254
WITNESS_ID_BYTES: Final = 8
COSIGNATURE_BYTES: Final = 64

_DOMAIN: Final = b"delian/log/v1\0"
_WITNESS_DOMAIN: Final = b"delian/log-witness/v1\0"
_FIXED: Final = struct.Struct(">QQ32s")  # size, issued, root
HEAD_BYTES_MAX: Final = len(_DOMAIN) + 1 + 63 + _FIXED.size
#: A checkpoint, encoded: head, signature, and the cosignatures with their IDs and lengths.
CHECKPOINT_BYTES_MAX: Final = (
    HEAD_BYTES_MAX
    + SIGNATURE_BYTES_MAX
    + WITNESSES_MAX * (WITNESS_ID_BYTES + COSIGNATURE_BYTES + 8)
    + 16
)


class LogError(certificates.IdentityError):
    """A head or an entry of the log that does not count here: malformed or forged."""


class WitnessError(LogError):
    """A head with fewer cosignatures than the federation's terms ask for."""


class LogRollback(LogError):
    """A head that the CA signed, of fewer entries than are known here."""


class LogFork(LogError):
    """A head that the CA signed, and that is not proved to continue the head that is known here."""


# ---------------------------------------------------------------- entries


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An entry, read."""

    role: certificates.Role | None
    """None for a server that is no node."""
    number: int
    """Of the holder; of the authority that issued it for such a server."""
    not_before: int
    """Unix time in seconds."""
    not_after: int
    """Unix time in seconds."""
    digest: bytes
    """SHA-256 of the certificate's DER, 32 bytes."""
    issues: bool = False
    """Whether it is the CA certificate of an issuing authority."""

    @property
    def name(self) -> str:
        """The holder's common name, as "device-5".

        "server" for a server that is no node; "CA of authority-3" for an issuing authority's own CA
        certificate.
        """
        if self.role is None:
            return "server"
        return f"{'CA of ' if self.issues else ''}{self.role.value}-{self.number}"

    @property
    def authority(self) -> int:
        """The number of the authority that issued it, or whose CA it is; the root: 0."""
        return (
            self.number if self.role is None else certificates.authority_of(self.role, self.number)
        )


def entry_of(certificate: x509.Certificate | bytes) -> bytes:
    """The entry of a certificate of this federation, which was verified: ENTRY_BYTES.

    Raises IdentityError.
    """
    if isinstance(certificate, bytes):
        certificate = certificates.load_certificate(certificate)
    try:
        code, number = _holder(certificate)
    except (x509.ExtensionNotFound, *certificates.MALFORMED):
        raise LogError("the certificate names no holder") from None
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    der = certificate.public_bytes(serialization.Encoding.DER)
    times = int(begins.timestamp()), int(ends.timestamp())
    if min(times) < 0:
        raise LogError("the certificate is of a time before 1970")
    return _ENTRY.pack(code, number, *times, hashlib.sha256(der).digest())


def _holder(certificate: x509.Certificate) -> tuple[int, int]:
    """Role byte and number of an entry."""
    extensions = certificate.extensions
    if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
        return ISSUING, facts_of(certificate).number
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    if names.get_values_for_type(x509.UniformResourceIdentifier):
        identity = certificates.identity_of(certificate)
        return ROLE_CODES[identity.tier], identity.number
    organisations = certificate.issuer.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    federation = str(organisations[0].value) if organisations else ""
    return SERVER, certificates.read_ca_name(certificate.issuer, federation)[0]


def leaf_of(certificate: x509.Certificate | bytes) -> bytes:
    """The hash of a certificate's leaf, 32 bytes. Raises IdentityError."""
    return merkle_tree.leaf_hash(entry_of(certificate))


def read_entry(content: bytes) -> LogEntry:
    """An entry; raises LogError for one that no CA writes."""
    if len(content) != ENTRY_BYTES:
        raise LogError(f"an entry of {len(content)} bytes")
    code, number, begins, ends, digest = _ENTRY.unpack(content)
    if code == SERVER:
        return LogEntry(None, number, begins, ends, digest)
    if code == ISSUING:
        return LogEntry(certificates.Role.AUTHORITY, number, begins, ends, digest, issues=True)
    if code >= len(ROLES):
        raise LogError(f"an entry of an unknown role ({code})")
    return LogEntry(ROLES[code], number, begins, ends, digest)


# ---------------------------------------------------------------- heads


@dataclass(frozen=True, slots=True)
class LogHead:
    """A head, read."""

    federation: str
    size: int
    """Entries in the tree."""
    issued_s: int
    """When the CA signed it, Unix time."""
    root: bytes
    """32 bytes."""


def sign_head(
    sign: Callable[[bytes], bytes], federation: str, size: int, root: bytes, issued_s: int
) -> Checkpoint:
    """A head under the CA's signature. sign: `Authority.sign`. Raises LogError."""
    if len(root) != merkle_tree.HASH_BYTES or not 0 <= size <= merkle_tree.SIZE_MAX:
        raise LogError(f"a head of {size} entries cannot be signed")
    name = certificates.check_federation(federation).encode()
    head = _DOMAIN + bytes([len(name)]) + name + _FIXED.pack(size, issued_s, root)
    return Checkpoint(head=head, signature=sign(head))


def verify_head(
    checkpoint: Checkpoint,
    authority: x509.Certificate | ec.EllipticCurvePublicKey,
    federation: str,
    witnesses: Collection[bytes] = (),
    quorum: int = 0,
) -> LogHead:
    """The head that the CA of that federation has signed, and `quorum` of the witnesses as well.

    authority: the CA. witnesses: Ed25519 public keys, 32 bytes each. Cosignatures of unknown
    witnesses do not count. Raises WitnessError for too few cosignatures, LogError otherwise.
    """
    too_large = len(checkpoint.head) > HEAD_BYTES_MAX
    if too_large or len(checkpoint.signature) > SIGNATURE_BYTES_MAX:
        raise LogError("the head of the certificate log is too large")
    if len(checkpoint.cosignatures) > WITNESSES_MAX:
        raise LogError(f"a head of the log with {len(checkpoint.cosignatures)} cosignatures")
    key = authority.public_key() if isinstance(authority, x509.Certificate) else authority
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise LogError("the CA's key is not a P-256 key")
    try:
        key.verify(checkpoint.signature, checkpoint.head, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise LogError("the head of the log is not signed by this federation's CA") from None
    head = read_head(checkpoint.head)
    if head.federation != federation:
        raise LogError(f"the log is of the federation {head.federation}, not of {federation}")
    signed = cosigned(checkpoint, witnesses)
    if len(signed) < quorum:
        raise WitnessError(
            f"the head of the log has {len(signed)} cosignatures of witnesses; the federation's"
            f" terms ask for {quorum}"
        )
    return head


def read_head(content: bytes) -> LogHead:
    """A head; its signature is not verified. Raises LogError."""
    name_at = len(_DOMAIN) + 1
    length = content[name_at - 1] if len(content) >= name_at else 0
    good = content.startswith(_DOMAIN) and len(content) == name_at + length + _FIXED.size
    if not good:
        raise LogError("the head of the log is malformed")
    try:
        federation = certificates.check_federation(
            content[name_at : name_at + length].decode("ascii")
        )
    except (UnicodeDecodeError, certificates.IdentityError):
        raise LogError("the head of the log is malformed") from None
    size, issued_s, root = _FIXED.unpack(content[name_at + length :])
    if size > merkle_tree.SIZE_MAX or (size == 0 and root != merkle_tree.EMPTY_ROOT):
        raise LogError(f"a head of {size} entries is malformed")
    return LogHead(federation, size, issued_s, root)


def check_update(known: LogHead | None, update: LogUpdate, head: LogHead) -> None:
    """Whether an update's head, which was verified, continues the known head; None: unknown.

    Raises LogRollback for a smaller log, LogFork when it does not continue the known one, and
    LogError when the proof starts at another size.
    """
    size, root = (0, merkle_tree.EMPTY_ROOT) if known is None else (known.size, known.root)
    if head.size < size:
        raise LogRollback(
            f"a certificate log of {head.size} entries was offered; {size} entries are known here",
            "if the CA was restored from a backup, its log has to be restored from a newer copy",
        )
    if update.old_size != size:
        raise LogError(f"the log's proof starts at {update.old_size} entries, not at {size}")
    try:
        merkle_tree.check_consistency(size, root, head.size, head.root, update.consistency)
    except merkle_tree.ProofError as fault:
        raise LogFork(
            f"the certificate log of {head.size} entries is not proved to continue the known one of"
            f" {size}: {fault.message}",
            "the CA may show different logs to different nodes: compare heads with another node,"
            " and see docs/identity.md, Certificate log",
        ) from None


# ---------------------------------------------------------------- witnesses


def witness_id(public: bytes) -> bytes:
    """The ID of a witness's key."""
    return hashlib.sha256(public).digest()[:WITNESS_ID_BYTES]


def cosign(key: ed25519.Ed25519PrivateKey, head: bytes) -> Cosignature:
    """A witness's signature of a head. The witness has verified that it continues the last one."""
    public = key.public_key().public_bytes_raw()
    return Cosignature(witness=witness_id(public), signature=key.sign(_WITNESS_DOMAIN + head))


def cosigned(checkpoint: Checkpoint, witnesses: Collection[bytes]) -> list[bytes]:
    """The keys of those witnesses that have signed the head, each once."""
    keys = {witness_id(public): public for public in witnesses}
    found: dict[bytes, bytes] = {}
    for one in checkpoint.cosignatures:
        public = keys.get(one.witness)
        if public is None or len(one.signature) != COSIGNATURE_BYTES:
            continue
        try:
            key = ed25519.Ed25519PublicKey.from_public_bytes(public)
            key.verify(one.signature, _WITNESS_DOMAIN + checkpoint.head)
        except (InvalidSignature, ValueError):
            continue
        found[one.witness] = public
    return list(found.values())
