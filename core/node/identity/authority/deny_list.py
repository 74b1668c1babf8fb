"""The deny list: the names that are revoked, signed by the CA, and verified wherever it is used.

A revocation names a holder and a time: certificates of `device-5` that begin before T are void. For
devices, edges and people T is the end of time: a revoked name never comes back, and its owner
joins again under a new number. The coordinator has one name, `cloud-0`, so there T is a moment of
the CA's clock, and the next certificate begins at T or later. One entry voids every certificate of
its name, unrecorded renewals included, and the list has at most one entry for each name that was
ever given out: 17 bytes each, so 1.7 MB for 100,000 revoked nodes and 71 MB for NODES_MAX. The name
of an issuing authority, as `authority-3`, voids every certificate that this authority has issued,
whichever name it has: a holder's number shows which authority issues its certificates.

The signed list stands on its own: a party that passes it on (coordinator, edge, broker) can
withhold it and nothing else. Its parts:

    head      "delian/deny-list/v1" 0, length (1) and name of the federation, version (8),
              issued (8, Unix s), entries (4), SHA-256 of the entries (32)
    signature ECDSA with P-256 and SHA-256 (FIPS 186-5), DER, of the head, by the CA's key
    entries   role (1), number (8), before (8, Unix s); in order of role and number, each name once

Integers are unsigned, big-endian. `version` grows with each change, so a list is refused when a
newer one was seen; `issued` grows each time that the CA signs the list again, so that a node knows
how old its list is when nothing changes. The head is small and verified first: no peer can make a
node allocate more than the CA signed. This module reads no clock and no random source.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from ....protocol.ports import Node, Tier
from ..pki import certificates

#: Names that a CA gives out in all; every one of them may be revoked, and the list still fits.
NODES_MAX = 1 << 22
#: `before` of a name that never comes back.
FOR_GOOD = 2**63 - 1
#: ECDSA with P-256, DER: two integers of up to 33 bytes with their heads.
SIGNATURE_BYTES_MAX = 72

_DOMAIN = b"delian/deny-list/v1\0"
_FIXED = struct.Struct(">QQI32s")  # version, issued, entries, digest
_ENTRY = struct.Struct(">BQQ")  # role, number, before
ENTRY_BYTES = _ENTRY.size
HEAD_BYTES_MAX = len(_DOMAIN) + 1 + 63 + _FIXED.size

#: In the order of the role's byte: in the deny list and in the certificate log.
ROLES = (
    certificates.Role.DEVICE,
    certificates.Role.EDGE,
    certificates.Role.CLOUD,
    certificates.Role.OPERATOR,
    certificates.Role.VIEWER,
    certificates.Role.RUNNER,
    certificates.Role.ADMIN,
    certificates.Role.OWNER,
    certificates.Role.AUTHORITY,
)
ROLE_CODES = {role: code for code, role in enumerate(ROLES)}

Name = tuple[certificates.Role, int]


class DenyListError(certificates.IdentityError):
    """A deny list that does not count here: malformed, forged, or older than one that was seen."""


@dataclass(frozen=True, slots=True)
class DenyList:
    """The revoked nodes."""

    version: int = 0
    names: Mapping[Name, int] = field(default_factory=dict)
    """(role, number) -> certificates of that holder that begin before this Unix time are void."""
    issued_s: int = 0
    """When the CA signed it, Unix time."""

    def denies(self, peer: certificates.PeerIdentity) -> bool:
        """Whether the certificate that the peer has shown is void."""
        return self.voids(peer.tier, peer.number, peer.not_before)

    def voids(self, role: certificates.Role, number: int, begins_s: float) -> bool:
        """Whether a certificate of that holder that begins at `begins_s` (Unix time) is void."""
        before = self.names.get((role, number), 0)
        if authority := certificates.authority_of(role, number):
            before = max(before, self.names.get((certificates.Role.AUTHORITY, authority), 0))
        return begins_s < before

    def revoked(self, node: Node) -> bool:
        """Whether the node is revoked for good: no certificate of it can be valid."""
        return self.voids(certificates.Role(node.tier.value), node.number, FOR_GOOD - 1)

    def authorities(self) -> list[int]:
        """The numbers of the issuing authorities that are revoked."""
        return sorted(n for role, n in self.names if role is certificates.Role.AUTHORITY and n)

    def nodes(self) -> Iterator[Node]:
        """The nodes whose own names are revoked for good.

        `revoked` also knows those of a revoked authority.
        """
        for (role, number), before in self.names.items():
            if before == FOR_GOOD and role in certificates.NODES:
                yield Node(Tier(role.value), number)


@dataclass(frozen=True, slots=True)
class Head:
    """What the CA signs."""

    federation: str
    version: int
    issued_s: int
    entries: int
    """Their number."""
    digest: bytes
    """Their SHA-256."""

    @property
    def size(self) -> int:
        """Bytes of the entries."""
        return self.entries * ENTRY_BYTES


@dataclass(frozen=True, slots=True)
class SignedList:
    """A deny list as it is passed on."""

    version: int
    """What its head says."""
    head: bytes
    signature: bytes
    entries: bytes


def sign_list(
    key: ec.EllipticCurvePrivateKey, federation: str, listed: DenyList, issued_s: int
) -> SignedList:
    """The list under the signature of the CA's key.

    issued_s: now, Unix time. Raises DenyListError for more names than a CA gives out.
    """
    if len(listed.names) > NODES_MAX:
        raise DenyListError(f"a deny list of {len(listed.names)} names cannot be signed")
    ordered = sorted((ROLE_CODES[role], number, t) for (role, number), t in listed.names.items())
    entries = b"".join(_ENTRY.pack(*entry) for entry in ordered)
    name = certificates.check_federation(federation).encode()
    digest = hashlib.sha256(entries).digest()
    fixed = _FIXED.pack(listed.version, issued_s, len(ordered), digest)
    head = _DOMAIN + bytes([len(name)]) + name + fixed
    return SignedList(listed.version, head, key.sign(head, ec.ECDSA(hashes.SHA256())), entries)


def verify_head(head: bytes, signature: bytes, authority: x509.Certificate, ours: str) -> Head:
    """The head of a list that `authority`, the CA of the federation `ours`, has signed.

    Raises DenyListError. Call it before the entries are fetched.
    """
    if len(head) > HEAD_BYTES_MAX or len(signature) > SIGNATURE_BYTES_MAX:
        raise DenyListError("the deny list's head is too large")
    key = authority.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise DenyListError("the CA's key is not a P-256 key")
    try:
        key.verify(signature, head, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise DenyListError("the deny list is not signed by this federation's CA") from None
    found = _read_head(head)
    if found.federation != ours:
        raise DenyListError(f"the deny list is of the federation {found.federation}, not of ours")
    return found


def read_entries(head: Head, entries: bytes) -> DenyList:
    """The list whose head was verified.

    Raises DenyListError when the entries are others than those that were signed.
    """
    if len(entries) != head.size or hashlib.sha256(entries).digest() != head.digest:
        raise DenyListError("the deny list's entries are not those that the CA signed")
    names: dict[Name, int] = {}
    last = (-1, -1)
    for code, number, before in _ENTRY.iter_unpack(entries):
        if not last < (code, number) or code >= len(ROLES) or number > certificates.NUMBER_MAX:
            raise DenyListError("the deny list's entries are malformed")
        last = code, number
        names[ROLES[code], number] = before
    return DenyList(head.version, names, head.issued_s)


def _read_head(content: bytes) -> Head:
    name_at = len(_DOMAIN) + 1
    length = content[name_at - 1] if len(content) >= name_at else 0
    good = content.startswith(_DOMAIN) and len(content) == name_at + length + _FIXED.size
    if not good:
        raise DenyListError("the deny list's head is malformed")
    try:
        federation = certificates.check_federation(
            content[name_at : name_at + length].decode("ascii")
        )
    except (UnicodeDecodeError, certificates.IdentityError):
        raise DenyListError("the deny list's head is malformed") from None
    version, issued_s, count, digest = _FIXED.unpack(content[name_at + length :])
    if count > NODES_MAX:
        raise DenyListError(f"a deny list of {count} entries is too long")
    return Head(federation, version, issued_s, count, digest)
