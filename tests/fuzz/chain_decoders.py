"""The decoders of certificate chains, also of what a stolen key of an issuing authority signs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from delian.core.common.errors import DelianError
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.log import log_entries
from delian.core.node.identity.pki.certificates import (
    ISSUED,
    NUMBER_BITS,
    Role,
    load_certificate,
    new_key,
    subject_of,
    uri_of,
)
from delian.core.node.identity.pki.chain import Chain, chain_of_pem, read_chain
from delian.core.node.identity.pki.intermediate import facts_of, issuing_certificate, read_issuing
from delian.core.node.identity.pki.root_certificate import key_usage

_SEQUENCE, _BIT_STRING = 0x30, 0x03
_KEY = new_key()


@cache
def _authority() -> Authority:
    folder = tempfile.mkdtemp()
    return Authority.create(Path(folder) / "ca", "farm")


@cache
def _issuing() -> x509.Certificate:
    root = _authority()
    pair = root._ca.key, root.certificate
    return issuing_certificate(
        pair, _KEY.public_key(), "farm", 3, "north", life_s=10**7, now_s=time.time()
    )


@cache
def _leaf() -> x509.Certificate:
    issuing, number = _issuing(), (3 << NUMBER_BITS) + 7
    names = [x509.UniformResourceIdentifier(uri_of("farm", Role.DEVICE, number))]
    return (
        x509.CertificateBuilder()
        .subject_name(subject_of("farm", f"device-{number}", "north"))
        .issuer_name(issuing.subject)
        .public_key(new_key().public_key())
        .serial_number(7)
        .not_valid_before(issuing.not_valid_before_utc)
        .not_valid_after(issuing.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(False, None), critical=True)
        .add_extension(key_usage(), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(_KEY, hashes.SHA256())
    )


def _read(data: bytes) -> object:
    """A chain from outside. What verifies is one that was issued here."""
    chain = read_chain(data)
    assert chain.der == data
    identity = chain.verify(_authority().certificate)
    assert identity.authority == (0 if chain.issuing is None else 3)
    return identity


def _chains() -> list[bytes]:
    own = chain_of_pem(issue_to(_authority(), Role.DEVICE, 5)[1].chain)
    return [Chain(_leaf(), _issuing()).der, own.der]


def _read_signed(data: bytes) -> object:
    """Any content, as a leaf under the signature of an issuing authority: it names nobody but
    holders that this authority may name.
    """
    signature = _KEY.sign(data, ec.ECDSA(hashes.SHA256()))
    algorithm = bytes.fromhex("300a06082a8648ce3d040302")  # ecdsa-with-SHA256
    made = _tagged(_SEQUENCE, data + algorithm + _tagged(_BIT_STRING, b"\0" + signature))
    chain = read_chain(made + _issuing().public_bytes(Encoding.DER))
    identity = chain.check_issued(_authority().certificate)
    assert (identity.federation, identity.authority, identity.site) == ("farm", 3, "north")
    assert identity.tier in ISSUED
    chain.check_time(time.time())
    log_entries.entry_of(chain.leaf)
    return identity


def _read_issuing(data: bytes) -> object:
    """A CA certificate of an issuing authority, also where anybody has signed it."""
    certificate = load_certificate(data)
    facts_of(certificate)
    return read_issuing(certificate, _authority().certificate)


def _tagged(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    return (
        bytes([tag, 0x82]) + size.to_bytes(2, "big") + content
        if size > 0xFF
        else (bytes([tag, 0x81, size]) + content)
    )


DECODERS: dict[str, tuple[Callable[[bytes], object], Callable[[], list[bytes]], tuple]] = {
    "certificate chain": (_read, _chains, (DelianError,)),
    "certificate chain in a file": (
        chain_of_pem,
        lambda: [Chain(_leaf(), _issuing()).pem + _authority().pem],
        (DelianError,),
    ),
    "certificate of a rogue authority": (
        _read_signed,
        lambda: [_leaf().tbs_certificate_bytes],
        (DelianError,),
    ),
    "certificate of an issuing authority": (
        _read_issuing,
        lambda: [_issuing().public_bytes(Encoding.DER)],
        (DelianError,),
    ),
}
