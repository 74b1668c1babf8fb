"""The CA certificate of an issuing authority (an intermediate CA, RFC 5280), made by the root.

    subject      O=FEDERATION, OU=SITE, CN=delian CA K
    constraints  critical: it issues no CA; it names holders of O=FEDERATION, OU=SITE, and hosts
                 below aK.FEDERATION.delian.internal and below the domains that the root has granted

TLS stacks enforce these (RFC 5280, 4.2.1.10): a server of an issuing authority cannot pass for the
coordinator, the root's authority, an edge of another organisation, or a host outside its domains.
IP addresses are excluded: gRPC's TLS library refuses them below constraints of that kind, and nodes
are dialled by name. What a holder may be called is for `certificates.identity_of`, which needs only
the certificate.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .certificates import (
    AUTHORITIES_MAX,
    MALFORMED,
    IdentityError,
    ca_name,
    check_issued,
    check_site,
    dns_suffix,
    general_name,
    is_reserved,
    read_ca_name,
    subject_of,
)
from .root_certificate import BACKDATE_S, key_usage

#: Domains in addition to its own that the root may grant to an issuing authority.
DOMAINS_MAX: Final = 4
#: The certificate in DER. It travels with each node's certificate in masked rounds, where both have
#: 2 KiB. The longest names take 955 of this and 970 of an edge's certificate; with names of ten
#: characters some 400 are left for domains.
BYTES_MAX: Final = 1_050


@dataclass(frozen=True, slots=True)
class IssuingFacts:
    """What the CA certificate of an issuing authority says."""

    federation: str
    number: int
    site: str
    domains: tuple[str, ...]
    """That the root has granted."""
    not_before: int
    """From when it is valid, unix time in seconds."""
    not_after: int
    """Until when it is valid, unix time in seconds."""

    def allows_host(self, name: str) -> bool:
        """Whether a certificate that it issues may have this DNS name."""
        below = (dns_suffix(self.federation, self.number), *self.domains)
        return any(name == domain or name.endswith("." + domain) for domain in below)


def issuing_certificate(
    root: tuple[ec.EllipticCurvePrivateKey, x509.Certificate],
    key: ec.EllipticCurvePublicKey,
    federation: str,
    number: int,
    site: str,
    domains: Iterable[str] = (),
    *,
    life_s: int,
    now_s: float,
) -> x509.Certificate:
    """The certificate of issuing authority `number`, for its key.

    root: the root's key and certificate. now_s: Unix time in seconds. Raises IdentityError, also
    for a root that was made for no authority below it.
    """
    root_key, root_certificate = root
    basic = root_certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    if basic.path_length == 0:
        raise IdentityError(
            "the root certificate of this federation allows no issuing authority below it",
            "it was made by an older delian; a new federation has one that does",
        )
    if not 0 < number <= AUTHORITIES_MAX:
        raise IdentityError(
            f"{number} is no issuing authority's number", f"use 1 to {AUTHORITIES_MAX}"
        )
    now = datetime.fromtimestamp(now_s, UTC).replace(microsecond=0)
    end = min(now + timedelta(seconds=life_s), root_certificate.not_valid_after_utc)
    if end <= now:
        raise IdentityError("the CA's own certificate has ended", "make a new federation")
    root_public = root_certificate.public_key()
    assert isinstance(root_public, ec.EllipticCurvePublicKey)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject_of(federation, ca_name(number), check_site(site)))
        .issuer_name(root_certificate.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(seconds=BACKDATE_S))
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(signs=True), critical=True)
        .add_extension(_constraints(federation, number, site, domains), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(root_public), critical=False
        )
        .sign(root_key, hashes.SHA256())
    )
    size = len(made.public_bytes(serialization.Encoding.DER))
    if size > BYTES_MAX:
        raise IdentityError(
            f"the issuing authority's certificate has {size} bytes; at most {BYTES_MAX}",
            "grant fewer or shorter domains",
        )
    return made


def _constraints(
    federation: str, number: int, site: str, domains: Iterable[str]
) -> x509.NameConstraints:
    hosts = [dns_suffix(federation, number), *_checked(domains)]
    return x509.NameConstraints(
        permitted_subtrees=[_directory(federation, site), *map(x509.DNSName, hosts)],
        excluded_subtrees=_no_addresses(),
    )


def _directory(federation: str, site: str) -> x509.DirectoryName:
    organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation)
    unit = x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, site)
    return x509.DirectoryName(x509.Name([organisation, unit]))


def _no_addresses() -> list[x509.GeneralName]:
    return [x509.IPAddress(ipaddress.ip_network(net)) for net in ("0.0.0.0/0", "::/0")]


def _checked(domains: Iterable[str]) -> list[str]:
    given = [domain.lower() for domain in domains]
    if len(given) > DOMAINS_MAX:
        raise IdentityError(f"{len(given)} domains; at most {DOMAINS_MAX}")
    for domain in given:
        if is_reserved(domain):
            raise IdentityError(f"`{domain}` is a name that only authorities hand out")
        if not isinstance(general_name(domain), x509.DNSName):
            raise IdentityError(f"`{domain}` is an address, not a domain", "grant a DNS domain")
    return given


def read_issuing(certificate: x509.Certificate, root: x509.Certificate) -> IssuingFacts:
    """The content of an issuing authority's certificate.

    `root` must have signed it, and it must have all that `issuing_certificate` gives it. The time
    is not checked. Raises IdentityError.
    """
    check_issued(certificate, root)
    facts = facts_of(certificate)
    if certificate.issuer != root.subject:
        raise IdentityError("the issuing authority's certificate is of another federation")
    return facts


def facts_of(certificate: x509.Certificate) -> IssuingFacts:
    """The same without the signature. Raises IdentityError."""
    try:
        return _facts(certificate)
    except MALFORMED:
        raise IdentityError("the issuing authority's certificate is malformed") from None


def _facts(certificate: x509.Certificate) -> IssuingFacts:
    extensions = certificate.extensions
    try:
        basic = extensions.get_extension_for_class(x509.BasicConstraints).value
        usage = extensions.get_extension_for_class(x509.KeyUsage).value
        limits = extensions.get_extension_for_class(x509.NameConstraints)
    except x509.ExtensionNotFound:
        raise IdentityError("the certificate is no issuing authority's") from None
    organisations = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    federation = str(organisations[0].value) if organisations else ""
    number, site = read_ca_name(certificate.subject, federation)
    if not (basic.ca and basic.path_length == 0 and usage.key_cert_sign and number):
        raise IdentityError("the certificate is no issuing authority's")
    permitted = list(limits.value.permitted_subtrees or ())
    own: Sequence[x509.GeneralName] = (
        _directory(federation, site),
        x509.DNSName(dns_suffix(federation, number)),
    )
    domains = permitted[2:]
    if (
        not limits.critical
        or permitted[:2] != list(own)
        or list(limits.value.excluded_subtrees or ()) != _no_addresses()
        or not all(isinstance(domain, x509.DNSName) for domain in domains)
    ):
        raise IdentityError("the issuing authority's certificate has other limits than it must")
    return IssuingFacts(
        federation=federation,
        number=number,
        site=site,
        domains=tuple(str(domain.value) for domain in domains),
        not_before=int(certificate.not_valid_before_utc.timestamp()),
        not_after=int(certificate.not_valid_after_utc.timestamp()),
    )
