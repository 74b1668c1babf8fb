"""Issuing authorities for tests: good ones, and keys that sign whatever one likes."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from delian.core.node.identity.pki.certificates import (
    TlsMaterial,
    key_pem,
    new_key,
    subject_of,
    uri_of,
)
from delian.core.node.identity.pki.chain import Chain
from delian.core.node.identity.pki.intermediate import issuing_certificate
from delian.core.node.identity.pki.root_certificate import key_usage

DAY_S = 86_400
PEM = serialization.Encoding.PEM


@dataclass(frozen=True)
class Rogue:
    """A stolen key of an issuing authority: it signs any certificate."""

    root: x509.Certificate
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    def sign(self, role, number, *, names=(), subject=None, issuer=None, site="north", **more):
        """A leaf. names: DNS names or IP addresses. subject, issuer: other names than are right.
        Keywords: ca, uri, days, signer, extensions.
        """
        key = new_key()
        common = more.get("common", f"{role.value}-{number}")
        uri = more.get("uri", uri_of("farm", role, number))
        general = [x509.UniformResourceIdentifier(uri)] if uri else []
        now = datetime.datetime.fromtimestamp(time.time(), datetime.UTC).replace(microsecond=0)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject or subject_of("farm", common, site))
            .issuer_name(self.certificate.subject if issuer is None else issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=more.get("days", 30)))
            .add_extension(x509.BasicConstraints(more.get("ca", False), None), critical=True)
            .add_extension(key_usage(more.get("ca", False)), critical=True)
        )
        if not more.get("ca", False):
            usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if general or names:
            alternative = x509.SubjectAlternativeName([*general, *names])
            builder = builder.add_extension(alternative, critical=False)
        made = builder.sign(more.get("signer", self.key), hashes.SHA256())
        return Chain(made, self.certificate), key

    def material(self, *arguments, **keywords):
        """The same as TLS material."""
        chain, key = self.sign(*arguments, **keywords)
        root = self.root.public_bytes(PEM)
        return TlsMaterial(key_pem(key), chain.pem + root, root)


def rogue(authority, number=3, site="north", domains=(), days=365, now_s=None, key=None):
    """An issuing authority's key and certificate, made with the root's key."""
    own = key or new_key()
    certificate = issuing_certificate(
        (authority._ca.key, authority.certificate),
        own.public_key(),
        "farm",
        number,
        site,
        domains,
        life_s=days * DAY_S,
        now_s=time.time() if now_s is None else now_s,
    )
    return Rogue(authority.certificate, certificate, own)
