"""The keys and certificates of an authority on its disk.

ca.key          the key, mode 0600; ca.token instead: where the key is (`hsm`)
ca.pem          its CA certificate
root.pem        of an issuing authority: the root's certificate, which signed ca.pem
authority.json  the federation's name
moving          says where the authority is moved to: the folder is shut
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ..pki import certificates
from ..pki.hsm import FILE as TOKEN
from ..pki.hsm import KeyPlace, TokenKey
from ..pki.intermediate import IssuingFacts, read_issuing
from ..pki.ledger import write_file

KEY, CERTIFICATE, ROOT, FACTS = "ca.key", "ca.pem", "root.pem", "authority.json"
MOVING: Final = "moving"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class AuthorityKeys:
    """What a folder holds."""

    key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate
    """Of its CA."""
    root: x509.Certificate
    """The root's; the same at the root."""
    federation: str
    issuing: IssuingFacts | None = None
    """None at the root."""


def open_keys(folder: Path) -> AuthorityKeys:
    """Raises IdentityError unless the folder holds an authority, whose parts fit together."""
    _check_stays(folder)
    key, facts = load_folder_key(folder), read_facts(folder)
    if facts.get("request") and not (folder / CERTIFICATE).exists():
        raise certificates.IdentityError(
            f"{folder} holds the request of an issuing authority that has no certificate yet",
            "take the root's answer with: delian authority accept",
        )
    certificate = _certificate(folder, CERTIFICATE)
    federation = certificates.check_federation(str(facts.get("federation", "")))
    if certificates.public_bytes(key.public_key()) != certificates.public_bytes(p256(certificate)):
        raise certificates.IdentityError(f"the CA's key is not the key of {folder / CERTIFICATE}")
    root = superior_of(folder)
    if root is None:
        return AuthorityKeys(key, certificate, certificate, federation)
    certificates.check_issued(root, root)
    issuing = read_issuing(certificate, root)
    if issuing.federation != federation:
        raise certificates.IdentityError(
            f"{folder / CERTIFICATE} is of the federation {issuing.federation}"
        )
    return AuthorityKeys(key, certificate, root, federation, issuing)


def superior_of(folder: Path) -> x509.Certificate | None:
    """The certificate of the root above an issuing authority; None: the folder is a root's.

    Raises IdentityError.
    """
    return _certificate(folder, ROOT) if (folder / ROOT).exists() else None


def has_key(folder: Path) -> bool:
    """Whether an authority's key is in the folder, or in a token that the folder names."""
    return any((folder / name).exists() for name in (KEY, TOKEN))


def write_key(folder: Path, token: KeyPlace | None) -> ec.EllipticCurvePrivateKey:
    """Makes a key, in the folder or in a token; durable on return."""
    if token is None:
        key = certificates.new_key()
        write_file(folder / KEY, certificates.key_pem(key), 0o600)
        return key
    made = TokenKey.generate(token)
    token.store(folder)
    return made


def write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    """Durable on return."""
    write_file(folder / FACTS, json.dumps({"format": _FORMAT, **facts}).encode() + b"\n")


def read_facts(folder: Path) -> dict[str, Any]:
    """What `write_facts` has written. Raises IdentityError."""
    try:
        facts = json.loads(_read(folder, FACTS, certificates.KEY_BYTES_MAX))
    except (ValueError, RecursionError):
        raise certificates.IdentityError(f"{folder / FACTS} is damaged") from None
    if not isinstance(facts, dict) or facts.get("format") != _FORMAT:
        raise certificates.IdentityError(f"{folder / FACTS} is of another version of delian")
    return facts


def load_folder_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    """Raises IdentityError."""
    if (folder / TOKEN).exists():
        return TokenKey(KeyPlace.load(folder))
    return certificates.load_key(_read(folder, KEY, certificates.KEY_BYTES_MAX))


def p256(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """The key of a CA's certificate. Raises IdentityError."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise certificates.IdentityError("the CA's key is not a P-256 key")
    return key


def _certificate(folder: Path, name: str) -> x509.Certificate:
    return certificates.load_certificate(_read(folder, name, certificates.CERTIFICATE_BYTES_MAX))


def _read(folder: Path, name: str, most: int) -> bytes:
    if not (folder / name).exists():
        raise certificates.IdentityError(
            f"{folder} holds no CA: there is no {name}",
            f"make one with: delian ca init {folder} --federation NAME",
        )
    return certificates.read_file(folder / name, most)


def _check_stays(folder: Path) -> None:
    path = folder / MOVING
    if path.exists():
        raise certificates.IdentityError(
            f"the CA of {folder} is moved to another folder: {path} says where",
            "go on with: delian authority migrate COORDINATOR_STATE AUTHORITY_STATE",
        )
