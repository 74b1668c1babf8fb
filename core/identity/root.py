"""The CA's own certificate, and the parts that all certificates share."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from .certificates import IdentityError, check_federation, check_issued, check_site

#: A certificate begins before it is made: clocks of small devices are late.
BACKDATE_S: Final = 3600


def subject_of(federation: str, common_name: str, site: str = "") -> x509.Name:
    """The subject of a certificate: for people and for brokers. site: of a node; empty: none."""
    unit = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, check_site(site))] if site else []
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            *unit,
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def federation_of(root: x509.Certificate) -> str:
    """The federation whose CA a certificate is. Raises IdentityError."""
    check_issued(root, root)
    named = root.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    if len(named) != 1:
        raise IdentityError("the certificate is no CA's of a federation")
    return check_federation(str(named[0].value))


def root_certificate(
    key: ec.EllipticCurvePrivateKey, federation: str, life_s: int
) -> x509.Certificate:
    """The CA's own certificate, signed by its key, from now on."""
    now = datetime.now(UTC).replace(microsecond=0)
    name = subject_of(federation, "delian CA")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(seconds=BACKDATE_S))
        .not_valid_after(now + timedelta(seconds=life_s))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def key_usage(signs: bool = False) -> x509.KeyUsage:
    """What a key may do. signs: it is the CA's, and signs certificates."""
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
