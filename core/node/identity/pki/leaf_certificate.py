"""The certificate of a holder, as an authority signs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from ....protocol.ports import Node, Tier
from ..authority.authority_folder import AuthorityKeys, p256
from .certificates import ADDRESSES_MAX, IdentityError, general_name, is_reserved, node_name
from .intermediate import IssuingFacts
from .root_certificate import key_usage

DAY_S: Final = 24 * 3600
LIFE_S_MAX: Final = 398 * DAY_S


def signed_leaf(
    ca: AuthorityKeys,
    key: ec.EllipticCurvePublicKey,
    subject: x509.Name,
    names: Sequence[x509.GeneralName],
    usage: x509.ExtendedKeyUsage,
    times: tuple[int, float, float],
) -> x509.Certificate:
    """A certificate for a key.

    times: how long it lives in seconds, now, and when it begins, in Unix time. Raises
    IdentityError.
    """
    life_s, now_s, begins_s = times
    if not 0 < life_s <= LIFE_S_MAX:
        raise IdentityError(f"a certificate cannot live {life_s} s; at most {LIFE_S_MAX}")
    now = datetime.fromtimestamp(now_s, UTC).replace(microsecond=0)
    end = min(now + timedelta(seconds=life_s), ca.certificate.not_valid_after_utc)
    if end <= now:
        if ca.issuing is None:
            raise IdentityError("the CA's own certificate has ended", "make a new federation")
        raise IdentityError(
            "the certificate of this issuing authority has ended",
            "have the root renew it: delian ca delegate, then delian authority accept",
        )
    begin = datetime.fromtimestamp(begins_s, UTC).replace(microsecond=0)
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(p256(ca.certificate))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.certificate.subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(), critical=True)
        .add_extension(usage, critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(authority_key, critical=False)
        .sign(ca.key, hashes.SHA256())
    )


def server_names(
    federation: str, node: Node, addresses: Iterable[str], issuing: IssuingFacts | None
) -> list[x509.GeneralName]:
    """The names of a node that others dial."""
    own = [node_name(federation, node)]
    if node.tier is Tier.CLOUD:
        # The coordinator is a gathering edge too.
        own.append(node_name(federation, Node(Tier.EDGE, 0)))
    return [*map(x509.DNSName, own), *address_names(addresses, issuing)]


def address_names(addresses: Iterable[str], issuing: IssuingFacts | None) -> list[x509.GeneralName]:
    """Addresses as a certificate carries them.

    issuing: the authority that signs; None: the root. Raises IdentityError for those that it cannot
    give.
    """
    given = list(addresses)
    if len(given) > ADDRESSES_MAX:
        raise IdentityError(f"{len(given)} addresses; at most {ADDRESSES_MAX}")
    if reserved := [name for name in given if is_reserved(name.lower())]:
        raise IdentityError(f"`{reserved[0]}` is a name that the CA itself hands out")
    names = [general_name(address) for address in given]
    for name in names:
        hosts = isinstance(name, x509.DNSName)
        if issuing is not None and not (hosts and issuing.allows_host(str(name.value))):
            raise IdentityError(
                f"this issuing authority gives no certificate for the address {name.value}",
                "it may give host names below the domains that the root has granted:"
                " delian ca delegate --domain",
            )
    return names
