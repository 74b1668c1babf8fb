"""A holder's certificate with what links it to the root: how certificates travel without TLS.

    content = the holder's certificate (DER), issuing authority's certificate (DER)

The second is absent where the root has issued the first, so there is nothing new on the wire for
those. In files (PEM) the root follows; it never travels. A certificate from outside is read by
`read_chain` and verified by `Chain.verify`, in every protocol.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from . import certificates
from .intermediate import read_issuing

_SEQUENCE = 0x30  # the tag of DER (X.690) that a certificate begins with


@dataclass(frozen=True, slots=True)
class Chain:
    """A holder's certificate and that of the authority that issued it. Nothing is verified."""

    leaf: x509.Certificate
    """The holder's certificate."""
    issuing: x509.Certificate | None = None
    """The issuing authority's certificate; None: the root issued the leaf."""

    @property
    def der(self) -> bytes:
        """As it travels without TLS."""
        return b"".join(one.public_bytes(Encoding.DER) for one in self._all())

    @property
    def pem(self) -> bytes:
        """The same in PEM, without the root."""
        return b"".join(one.public_bytes(Encoding.PEM) for one in self._all())

    @property
    def begins_s(self) -> float:
        """Unix time from which all of it is valid."""
        return max(one.not_valid_before_utc.timestamp() for one in self._all())

    @property
    def ends_s(self) -> float:
        """Unix time until which all of it is valid."""
        return min(one.not_valid_after_utc.timestamp() for one in self._all())

    def check_issued(self, root: x509.Certificate) -> certificates.PeerIdentity:
        """The holder that it names, if each certificate is signed by the next, up to `root`.

        The time is not checked. Raises IdentityError.
        """
        number = 0
        if self.issuing is None:
            certificates.check_issued(self.leaf, root)
        else:
            number = read_issuing(self.issuing, root).number
            certificates.check_issued(self.leaf, self.issuing)
        identity = certificates.identity_of(self.leaf)
        if identity.authority != number:  # what the leaf says of its issuer, and what signed it
            raise certificates.IdentityError("the certificate is of another authority than it says")
        return identity

    def check_time(self, now_s: float | None = None) -> None:
        """Raises IdentityError unless all of it is valid at `now_s` (Unix time; None: now)."""
        for one in self._all():
            certificates.check_time(one, now_s)

    def verify(
        self, root: x509.Certificate, now_s: float | None = None
    ) -> certificates.PeerIdentity:
        """The holder that it names, if the root's signature is at its end and it is valid.

        now_s: Unix time; None: now. Whether the name is denied is for `DenyList`. Raises
        IdentityError.
        """
        identity = self.check_issued(root)
        self.check_time(now_s)
        return identity

    def _all(self) -> list[x509.Certificate]:
        return [self.leaf] if self.issuing is None else [self.leaf, self.issuing]


def read_chain(content: bytes) -> Chain:
    """A chain in DER, from outside.

    Raises IdentityError for anything between or after the certificates.
    """
    _check_size(content)
    end = _first(content)
    try:
        leaf = x509.load_der_x509_certificate(content[:end])
        rest = content[end:]
        return Chain(leaf, x509.load_der_x509_certificate(rest) if rest else None)
    except certificates.MALFORMED:
        raise certificates.IdentityError("this is no X.509 certificate") from None


def chain_of_pem(content: bytes) -> Chain:
    """The chain of a file or of a reply to a node, in PEM; the root at its end is left out.

    Raises IdentityError.
    """
    _check_size(content)
    try:
        found = x509.load_pem_x509_certificates(content)
        roots = [one.subject == one.issuer for one in found[1:]]
    except certificates.MALFORMED:
        raise certificates.IdentityError("this is no X.509 certificate") from None
    if roots and roots[-1]:
        found, roots = found[:-1], roots[:-1]
    if any(roots) or not 0 < len(found) <= 2:
        raise certificates.IdentityError(
            "the certificate's chain is not holder, issuing authority, root"
        )
    return Chain(*found)


def _check_size(content: bytes) -> None:
    if len(content) > certificates.CERTIFICATE_BYTES_MAX:
        raise certificates.IdentityError(f"a certificate of {len(content)} bytes is too large")


def _first(content: bytes) -> int:
    """Where the first value of DER ends. The reader of the certificate refuses odd lengths."""
    size, head = (content[1], 2) if len(content) > 2 and content[0] == _SEQUENCE else (0, 0)
    if size >= 0x80:
        head += size & 0x7F
        size = int.from_bytes(content[2:head], "big") if head <= 4 else 0
    if size == 0 or head + size > len(content):
        raise certificates.IdentityError("this is no X.509 certificate")
    return head + size
