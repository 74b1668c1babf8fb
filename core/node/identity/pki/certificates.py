"""Identities of peers: keys, certificate requests, certificates, and the TLS settings made of them.

A certificate of Delian names its holder by one URI in its subject alternative names (RFC 5280,
4.2.1.6):

    delian://{federation}/{role}/{number}        delian://farm/device/5

and by nothing else: subject and common name (`device-5`) are for people and for brokers, which know
a client by its common name. `identity_of` reads that name and is strict; whether the certificate is
genuine is for TLS, or for `chain.Chain.verify`, which needs no connection.

A certificate is issued by the federation's root authority, or by an issuing authority under it
(an intermediate CA, RFC 5280), which has a number k and belongs to one site. The issuer's name in a
certificate says which, and TLS and `chain` bind that name to the key that signed. An issuing
authority names holders whose number has k in its upper bits, of its own site, and of no role that
decides about others (`ISSUED`): `identity_of` refuses the rest, whatever else the certificate says.

Nodes that others dial (edges, the cloud) are servers too. Their certificates carry the addresses
that they are reached at, and one DNS name that is made of the identity, `node_name`. A client knows
which node it wants and asks TLS for that name (`channel_options`), not for the address: an edge
cannot pass for another, wherever it answers, and an address may be a port that a router forwards.

Keys are P-256 with SHA-256 (FIPS 186-5), made on the node and never sent. TLS is version 1.3 in
`tls_contexts`. gRPC has no setting for it in Python (grpc/grpc issue 37305).
It has one for the cipher suites of TLS 1.2: `_SUITES` names one that needs an RSA certificate, so
that no handshake of TLS 1.2 succeeds with our P-256 certificates, at either end. The setting is the
process's and may have been made before, so `check_tls` also refuses each call that is not known to
have come over TLS 1.3.
"""

from __future__ import annotations

import ipaddress
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from ....common.errors import DelianError
from ....protocol.ports import Node, Tier

if TYPE_CHECKING:
    import grpc

CERTIFICATE_BYTES_MAX = 16 * 1024  # one certificate or chain, PEM or DER
REQUEST_BYTES_MAX = 8 * 1024  # a PKCS #10 request, PEM (proto/enrolment.proto)
KEY_BYTES_MAX = 4 * 1024
ADDRESSES_MAX = (
    16  # names and addresses that a server's certificate may carry in addition to its own
)
NUMBER_MAX = 2**63 - 1
#: The lower bits of a holder's number count the holders of one authority; the upper bits are that
#: authority's number. The root's are 0.
NUMBER_BITS = 40
AUTHORITIES_MAX = 4095  # issuing authorities of a federation, from 1: numbers stay below 2^52

#: Of TLS 1.2, for RSA certificates alone. It does not change the suites of TLS 1.3.
_SUITES = ("GRPC_SSL_CIPHER_SUITES", "AES128-GCM-SHA256")
_SUFFIX = "delian.internal"  # .internal is reserved for private use: never in the public DNS
_CA_NAME = "delian CA"  # common name of the root; of issuing authority 3: "delian CA 3"
_FEDERATION = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_NUMBER = re.compile("[1-9][0-9]{0,3}")
_HOST = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9-]{1,63}(?<!-))*")
_URI = re.compile(
    r"delian://([^/]{1,63})"
    r"/(device|edge|cloud|operator|viewer|runner|owner|admin|authority)/(0|[1-9][0-9]{0,18})"
)

#: What reading X.509 may raise, depending on how it is malformed.
MALFORMED = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


class IdentityError(DelianError):
    """A certificate, request, key or token that is not what it must be."""


class Role(StrEnum):
    """What the holder of a certificate is."""

    DEVICE = "device"
    EDGE = "edge"
    CLOUD = "cloud"
    #: A person that reads runs, nodes, models' facts and the record.
    VIEWER = "viewer"
    #: A viewer that also starts and controls runs.
    RUNNER = "runner"
    #: A viewer that also decides about the nodes of one site, and enrols nodes there.
    OWNER = "owner"
    #: A runner that also decides about nodes, tokens and aliases of models.
    ADMIN = "admin"
    #: An admin with a certificate from before there were roles. It is renewed as it is; no new one
    #: is issued.
    OPERATOR = "operator"
    #: The server that has a CA's key: it enrols, renews and revokes. It is no node. 0: the root's.
    AUTHORITY = "authority"
    #: Without a certificate.
    NOBODY = "nobody"


#: People: their certificates name no node.
OPERATORS = (Role.VIEWER, Role.RUNNER, Role.OWNER, Role.ADMIN, Role.OPERATOR)
#: Roles whose certificates name a node.
NODES = (Role.DEVICE, Role.EDGE, Role.CLOUD)
#: Those of OPERATORS with all rights.
ADMINS = frozenset({Role.ADMIN, Role.OPERATOR})
#: Roles whose certificates may name a site.
OF_SITES = frozenset({Role.DEVICE, Role.EDGE, Role.OWNER})
#: Roles that an issuing authority names. The last is its own server.
ISSUED = frozenset({*OF_SITES, Role.AUTHORITY})


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """The holder that a certificate names."""

    federation: str
    tier: Role
    """Device, edge, cloud, authority or a role of operators."""
    number: int
    serial: int
    """Unique within the federation's CA."""
    not_after: int
    """Until when it is valid, unix time in seconds."""
    common_name: str
    not_before: int = 0
    """From when it is valid, unix time in seconds."""
    site: str = ""
    """The organisation or place that a node or an owner belongs to; empty: none."""

    @property
    def node(self) -> Node | None:
        """The node of this certificate. Operators and the authority are none."""
        return Node(Tier(self.tier.value), self.number) if self.tier in NODES else None

    @property
    def authority(self) -> int:
        """The number of the authority that issues this holder's certificates; the root: 0."""
        return authority_of(self.tier, self.number)

    @property
    def uri(self) -> str:
        return uri_of(self.federation, self.tier, self.number)


def authority_of(role: Role, number: int) -> int:
    """The number of the authority that issues a holder's certificates; the root: 0."""
    return number if role is Role.AUTHORITY else number >> NUMBER_BITS


def ca_name(number: int) -> str:
    """The common name of an authority's own CA certificate. number: 0 is the root."""
    return f"{_CA_NAME} {number}" if number else _CA_NAME


def subject_of(federation: str, common_name: str, site: str = "") -> x509.Name:
    """The subject of a certificate. site: of a node or an issuing authority; empty: none."""
    names = [(NameOID.ORGANIZATION_NAME, federation), (NameOID.COMMON_NAME, common_name)]
    if site:
        names.insert(1, (NameOID.ORGANIZATIONAL_UNIT_NAME, check_site(site)))
    return x509.Name([x509.NameAttribute(oid, name) for oid, name in names])


def uri_of(federation: str, role: Role, number: int) -> str:
    """The URI that names a holder."""
    return f"delian://{federation}/{role.value}/{number}"


def check_federation(name: str) -> str:
    """The name itself, when it may name a federation; raises IdentityError."""
    return _checked(name, "federation")


def check_site(name: str) -> str:
    """The name itself, when it may name a site of a federation; raises IdentityError."""
    return _checked(name, "site")


def _checked(name: str, what: str) -> str:
    if not _FEDERATION.fullmatch(name):
        raise IdentityError(
            f"`{name[:80]}` cannot name a {what}",
            "use 1 to 63 characters of a-z, 0-9 and -, as in a host name",
        )
    return name


def node_name(federation: str, node: Node) -> str:
    """The DNS name that stands in the certificate of a node that others dial."""
    suffix = dns_suffix(federation, node.number >> NUMBER_BITS)
    return f"{node.tier.value}-{node.number}.{suffix}"


def authority_name(federation: str, number: int = 0) -> str:
    """The DNS name that stands in the certificate of an authority's server.

    number: 0 is the root's.
    """
    return f"{Role.AUTHORITY.value}-{number}.{dns_suffix(federation, number)}"


def dns_suffix(federation: str, number: int) -> str:
    """What the DNS names of an authority's nodes end in.

    No name of another authority ends in that of an issuing authority.
    """
    return f"a{number}.{federation}.{_SUFFIX}" if number else f"{federation}.{_SUFFIX}"


def is_reserved(name: str) -> bool:
    """Whether a DNS name is one of those that only the CA hands out."""
    return name == _SUFFIX or name.endswith("." + _SUFFIX)


# ---------------------------------------------------------------- keys and requests


def new_key() -> ec.EllipticCurvePrivateKey:
    """A fresh P-256 key from the system's random source."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    """PKCS #8, PEM, not encrypted: it belongs in a file of mode 0600."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Reads what `key_pem` wrote; raises IdentityError."""
    if len(pem) > KEY_BYTES_MAX:
        raise IdentityError(f"a key of {len(pem)} bytes is too large")
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except MALFORMED:
        raise IdentityError("this is no private key in PEM without a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("the key is not a P-256 key")
    return key


def public_bytes(key: ec.EllipticCurvePublicKey) -> bytes:
    """The public key in 33 bytes: SEC 1, compressed point."""
    return key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint)


def certificate_request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A PKCS #10 request, PEM (RFC 2986), signed by the key that it is for.

    It asks for no name: the CA gives them all.
    """
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "delian")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def requested_key(request: bytes) -> ec.EllipticCurvePublicKey:
    """The key of a request whose sender has proved that it holds the private one.

    Raises IdentityError. Whatever else the request asks for is ignored.
    """
    if len(request) > REQUEST_BYTES_MAX:
        raise IdentityError(f"a certificate request of {len(request)} bytes is too large")
    try:
        csr = x509.load_pem_x509_csr(request)
        key, proved = csr.public_key(), csr.is_signature_valid
    except MALFORMED:
        raise IdentityError("this is no certificate request (PKCS #10, PEM)") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("the request's key is not a P-256 key")
    if not proved:
        raise IdentityError("the request is not signed by its own key")
    return key


def general_name(address: str) -> x509.GeneralName:
    """A host name or an IP address as a certificate carries it; raises IdentityError."""
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        pass
    host = address.lower()
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise IdentityError(f"`{address[:80]}` is neither a host name nor an IP address")
    return x509.DNSName(host)


# ---------------------------------------------------------------- reading certificates


def load_certificate(pem_or_der: bytes) -> x509.Certificate:
    """A certificate; of a chain in PEM, the first. Raises IdentityError."""
    if len(pem_or_der) > CERTIFICATE_BYTES_MAX:
        raise IdentityError(f"a certificate of {len(pem_or_der)} bytes is too large")
    try:
        pem = b"-----BEGIN" in pem_or_der
        load = x509.load_pem_x509_certificate if pem else x509.load_der_x509_certificate
        certificate = load(pem_or_der)
        certificate.public_key()  # a point that is on no curve is found here, and not later
        return certificate
    except MALFORMED:
        raise IdentityError("this is no X.509 certificate") from None


def identity_of(pem_or_der: bytes | x509.Certificate) -> PeerIdentity:
    """The holder that a certificate names. Neither signature nor time is checked: TLS has done so.

    Raises IdentityError when it is malformed, names no holder or more than one, is a CA's, or its
    common name is another than its URI's.
    """
    certificate = (
        pem_or_der if isinstance(pem_or_der, x509.Certificate) else load_certificate(pem_or_der)
    )
    try:
        return _identity(certificate)
    except MALFORMED:
        raise IdentityError("the certificate is malformed") from None


def _identity(certificate: x509.Certificate) -> PeerIdentity:
    extensions = certificate.extensions
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        basic = extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        raise IdentityError("the certificate is none of Delian's") from None
    if basic.ca:
        raise IdentityError("the certificate is a CA's, not a node's")
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    if len(uris) != 1:
        raise IdentityError(f"the certificate names {len(uris)} holders, not one")
    parts = _URI.fullmatch(uris[0])
    if parts is None or not _FEDERATION.fullmatch(parts[1]):
        raise IdentityError(f"the certificate's URI {uris[0][:100]!r} names no node")
    role, number = Role(parts[2]), int(parts[3])
    if number > NUMBER_MAX:
        raise IdentityError("the certificate's number is too large")
    authority, issuer_site = read_ca_name(certificate.issuer, parts[1])
    if authority_of(role, number) != authority or (authority and role not in ISSUED):
        raise IdentityError(
            f"{role.value}-{number} is no holder that authority {authority} may name",
            "an issuing authority that does this is misused: inform the operator of the root",
        )
    site = _site(certificate, role, issuer_site)
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if [c.value for c in common] != [f"{role.value}-{number}"]:
        raise IdentityError("the certificate's common name is not its holder's")
    return PeerIdentity(
        federation=parts[1],
        tier=role,
        number=number,
        serial=certificate.serial_number,
        not_after=int(certificate.not_valid_after_utc.timestamp()),
        common_name=f"{role.value}-{number}",
        not_before=int(certificate.not_valid_before_utc.timestamp()),
        site=site,
    )


def read_ca_name(name: x509.Name, federation: str) -> tuple[int, str]:
    """Number and site of the authority whose CA certificate has this subject; the root: 0 and "".

    Raises IdentityError for every other name: TLS compares names without regard to case and spaces,
    so a name that is only alike could be another authority's.
    """
    units = name.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    common = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    number = str(common[0].value).removeprefix(_CA_NAME).strip() if len(common) == 1 else ""
    found, site = 0, ""
    if units and _NUMBER.fullmatch(number):
        found, site = int(number), check_site(str(units[0].value))
    if found > AUTHORITIES_MAX or name != subject_of(federation, ca_name(found), site):
        raise IdentityError("the certificate is not issued by an authority of its federation")
    return found, site


def _site(certificate: x509.Certificate, role: Role, issuer_site: str) -> str:
    """The site that the CA has written into a certificate; empty: none.

    An owner has one. issuer_site: of the issuing authority; empty: the root.
    """
    units = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    names = [str(unit.value) for unit in units]
    if issuer_site:
        if names != [issuer_site]:
            raise IdentityError(f"the certificate is not of the site {issuer_site} of its issuer")
        return issuer_site
    if len(names) > 1 or (names and role not in OF_SITES) or (not names and role is Role.OWNER):
        raise IdentityError(f"a certificate of the role {role.value} names {len(names)} sites")
    return check_site(names[0]) if names else ""


def addresses_of(certificate: x509.Certificate) -> list[str]:
    """The addresses in a server's certificate, without the names that are identities."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [n for n in names.get_values_for_type(x509.DNSName) if not is_reserved(n)]
    return [*hosts, *map(str, names.get_values_for_type(x509.IPAddress))]


def check_issued(certificate: x509.Certificate, authority: x509.Certificate) -> None:
    """Raises IdentityError when `authority` did not sign the certificate."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, *MALFORMED):
        raise IdentityError("the certificate is not signed by this federation's CA") from None


def check_time(certificate: x509.Certificate, now_s: float | None = None) -> None:
    """Raises IdentityError when the certificate is not valid at `now_s` (Unix time; None: now)."""
    now = datetime.fromtimestamp(time.time() if now_s is None else now_s, UTC)
    try:
        before, after = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    except MALFORMED:
        raise IdentityError("the certificate is malformed") from None
    hint = f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC; is that right?"
    if now < before:
        raise IdentityError(f"the certificate begins on {before:%Y-%m-%d %H:%M} UTC", hint)
    if now > after:
        raise IdentityError(f"the certificate ended on {after:%Y-%m-%d %H:%M} UTC", hint)


# ---------------------------------------------------------------- TLS


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What a node shows and the CAs that it trusts, PEM."""

    key: bytes = field(repr=False)
    certificate: bytes
    """Its own, then what signed it, up to the root."""
    authority: bytes
    """The root's."""

    def identity(self) -> PeerIdentity:
        """The holder; raises IdentityError."""
        return identity_of(self.certificate)


def read_file(path: Path, most: int) -> bytes:
    """A file's bytes. Raises IdentityError when it cannot be read or has more than `most`."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise IdentityError(f"cannot read {path}: {error.strerror}", "check the path") from None
    if len(content) > most:
        raise IdentityError(f"{path} is larger than {most} bytes", "check the path")
    return content


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The same as files: the standard library's `ssl` reads keys only from there."""

    key: Path
    certificate: Path
    authority: Path

    def read(self) -> TlsMaterial:
        """Raises IdentityError when a file cannot be read or is too large to be what it should."""
        files = (self.key, self.certificate, self.authority)
        parts = [read_file(path, CERTIFICATE_BYTES_MAX) for path in files]
        return TlsMaterial(*parts)


def server_credentials(
    material: TlsMaterial | Callable[[], TlsMaterial], require_client: bool = True
) -> grpc.ServerCredentials:
    """gRPC's settings of a server.

    A callable is asked at each handshake, so that a renewed certificate is shown without a restart;
    it must be quick.

    require_client: mutual TLS. False only for enrolment, where the caller has no certificate yet.
    """
    _name_suites()
    import grpc

    if isinstance(material, TlsMaterial):
        return grpc.ssl_server_credentials(
            [(material.key, material.certificate)],
            root_certificates=material.authority if require_client else None,
            require_client_auth=require_client,
        )
    source, shown = material, material()

    def configuration() -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration(
            [(shown.key, shown.certificate)],
            root_certificates=shown.authority if require_client else None,
        )

    def changed() -> grpc.ServerCertificateConfiguration | None:
        """None leaves everything as it is.

        That matters: gRPC's core replaces what a handshake that began at the same time may be
        using, and crashes when many connect at once.
        """
        nonlocal shown
        now = source()
        if now == shown:
            return None
        shown = now
        return configuration()

    return grpc.dynamic_ssl_server_credentials(
        configuration(), changed, require_client_authentication=require_client
    )


def channel_credentials(material: TlsMaterial) -> grpc.ChannelCredentials:
    """gRPC's settings of a client that shows its certificate. After a renewal, reconnect."""
    _name_suites()
    import grpc

    return grpc.ssl_channel_credentials(
        root_certificates=material.authority,
        private_key=material.key,
        certificate_chain=material.certificate,
    )


def enrolment_credentials(trusted: bytes) -> grpc.ChannelCredentials:
    """gRPC's settings of a client that has no certificate yet. trusted: PEM."""
    _name_suites()
    import grpc

    return grpc.ssl_channel_credentials(root_certificates=trusted)


def channel_options(federation: str, node: Node) -> Sequence[tuple[str, str]]:
    """With these, gRPC connects only to `node`.

    The name that the server's certificate must carry is the node's own, whatever address was
    dialled.
    """
    return _target_options(node_name(federation, node))


def authority_options(federation: str, number: int = 0) -> Sequence[tuple[str, str]]:
    """The same for the server of an authority. number: 0 is the root's."""
    return _target_options(authority_name(federation, number))


def _target_options(name: str) -> Sequence[tuple[str, str]]:
    return (("grpc.ssl_target_name_override", name), ("grpc.default_authority", name))


def identity_of_context(context: Mapping[str, Iterable[bytes]]) -> PeerIdentity | None:
    """The peer of a gRPC call, of its `auth_context()`.

    None: no certificate, as on a server without TLS. Raises IdentityError when the certificate
    names no node, or the connection is not known to be of TLS 1.3.
    """
    check_tls(context)
    shown = next(iter(context.get("x509_pem_cert", ())), None)
    return None if shown is None else identity_of(shown)


def check_tls(context: Mapping[str, Iterable[bytes]]) -> None:
    """Raises IdentityError unless a call's `auth_context()` says TLS 1.3, or that it has no TLS."""
    kind = next(iter(context.get("transport_security_type", ())), b"insecure")
    version = next(iter(context.get("ssl_tls_version", ())), None)
    if version == b"TLSv1.3" or (
        version is None and kind == b"insecure" and "x509_pem_cert" not in context
    ):
        return
    if version is None:
        raise IdentityError(
            "this gRPC does not report the TLS version of a connection",
            "install grpcio 1.85 or newer",
        )
    raise IdentityError(f"the connection is {version!r}, not TLS 1.3")


def _name_suites() -> None:
    """gRPC reads its cipher suites when it makes its first credentials."""
    os.environ.setdefault(*_SUITES)
