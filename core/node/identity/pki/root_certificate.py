"""The CA's own certificate, and the parts that all certificates share."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from .certificates import IdentityError, Role, ca_name, check_federation, check_issued, subject_of

#: A certificate begins before it is made: clocks of small devices are late.
BACKDATE_S: Final = 3600


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
    name = subject_of(federation, ca_name(0))
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(seconds=BACKDATE_S))
        .not_valid_after(now + timedelta(seconds=life_s))
        .add_extension(x509.BasicConstraints(ca=True, path_length=1), critical=True)
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


def extended_usage(role: Role) -> x509.ExtendedKeyUsage:
    """What a certificate of a role is good for.

    All nodes dial; edges, the cloud and the authority serve too.
    """
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if role in (Role.EDGE, Role.CLOUD, Role.AUTHORITY):
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
    return x509.ExtendedKeyUsage(usages)


def fingerprint_of(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, in hexadecimal with colons as openssl prints it."""
    digest = hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
    return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2)).upper()
