"""A node's signatures on messages that reach others by way of nodes they do not trust.

The coordinator signs its tasks, which edges pass on to devices. In secure aggregation, a device
signs its session's keys with the key of its certificate, and its neighbours verify certificate and
signature themselves: then the coordinator cannot put keys of its own in their place, as long as it
does not run the CA too. The signature is ECDSA on P-256 with SHA-256 and a nonce by RFC 6979. What
the bytes mean is `core.privacy.secagg.transcript`'s.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from ....privacy.secagg import member_identity
from ....privacy.secagg.logged import LOG, WITNESSES, LogHead, LogRules
from ....privacy.secagg.secure_errors import SecureError
from ....wire.log_pb2 import Checkpoint
from ..authority.deny_list import DenyList
from ..log.log_entries import WitnessError, leaf_of, verify_head
from .certificates import IdentityError, Role, TlsMaterial, identity_of, load_certificate, load_key
from .chain import chain_of_pem, read_chain

#: Certificates of peers that are remembered as verified: a coordinator's largest cohort, twice.
VERIFIED_MAX = 2_048


@dataclass(frozen=True, slots=True)
class _Verified:
    """What of a certificate is needed again: this federation's CA has signed it."""

    tier: Role
    number: int
    issued_s: int
    """When it begins itself."""
    begins_s: float
    """From when it and its issuing authority's are valid."""
    ends_s: float
    """Until when both are valid."""
    key: ec.EllipticCurvePublicKey
    leaf: bytes


class CertificateIdentity:
    """`core.privacy.secagg.member_identity.Identity` by the certificates of a federation.

    Certificates that were verified are remembered by their SHA-256, the last VERIFIED_MAX of them;
    whether they are valid now, or denied, is asked each time. One thread at a time.
    """

    def __init__(
        self,
        material: TlsMaterial,
        clock: Callable[[], float] = time.time,
        denied: Callable[[], DenyList] = DenyList,
        margin_s: float = 0.0,
    ) -> None:
        """material: this node's own, PEM.

        clock: Unix time in seconds. denied: gives the newest deny list, where the node has one.
        margin_s: how long a peer's certificate must still be valid: a coordinator asks for more
        than the devices that it sends it to, whose clocks differ and which check later. Raises
        IdentityError when the material is malformed.
        """
        self._key = load_key(material.key)
        self._authority = load_certificate(material.authority)
        own = chain_of_pem(material.certificate)
        self._federation = identity_of(own.leaf).federation
        self.certificate = own.der
        self._clock = clock
        self._denied = denied
        self._margin_s = margin_s
        self._verified: OrderedDict[bytes, _Verified] = OrderedDict()
        self._head: tuple[tuple[bytes, LogRules], LogHead] | None = None  # the last one

    def sign(self, message: bytes) -> bytes:
        """DER, at most 72 bytes; the same for the same message and key."""
        return member_identity.sign(self._key, message)

    def verify(self, device: int, certificate: bytes, message: bytes, signature: bytes) -> bool:
        """Whether the certificate (DER) is valid for that device and its key signed the message.

        The certificate must be of this federation, valid now and not denied.
        """
        return self._verify((Role.DEVICE, device), certificate, message, signature)

    def verify_edge(self, edge: int, certificate: bytes, message: bytes, signature: bytes) -> bool:
        """The same of an edge."""
        return self._verify((Role.EDGE, edge), certificate, message, signature)

    def verify_coordinator(self, certificate: bytes, message: bytes, signature: bytes) -> bool:
        """The same of the coordinator."""
        return self._verify(
            (Role.CLOUD, 0), certificate, message, signature, member_identity.COORDINATOR_BYTES_MAX
        )

    def log_leaf(self, device: int, certificate: bytes) -> bytes:
        """The hash of the leaf of a certificate (DER) that `verify` has found good."""
        try:
            return self._known(certificate).leaf
        except IdentityError as error:
            raise SecureError(LOG, error.message) from None

    def log_head(self, checkpoint: Checkpoint, rules: LogRules) -> LogHead:
        """The head that the federation's CA has signed, and `rules.quorum` of the witnesses."""
        asked = checkpoint.SerializeToString(deterministic=True), rules
        if self._head is None or self._head[0] != asked:
            try:
                head = verify_head(
                    checkpoint, self._authority, self._federation, rules.witnesses, rules.quorum
                )
            except WitnessError as error:
                raise SecureError(WITNESSES, error.message) from None
            except IdentityError as error:
                raise SecureError(LOG, error.message) from None
            self._head = asked, LogHead(head.size, head.root, checkpoint)
        return self._head[1]

    def _verify(
        self,
        who: tuple[Role, int],
        certificate: bytes,
        message: bytes,
        signature: bytes,
        size_max: int = member_identity.CERTIFICATE_BYTES_MAX,
    ) -> bool:
        if len(certificate) > size_max:
            return False
        try:
            known = self._known(certificate)
        except IdentityError:
            return False
        now = self._clock()
        if (
            known.tier,
            known.number,
        ) != who or not known.begins_s <= now <= known.ends_s - self._margin_s:
            return False
        if self._denied().voids(known.tier, known.number, known.issued_s):
            return False
        return member_identity.is_signed(known.key, message, signature)

    def _known(self, der: bytes) -> _Verified:
        """Reads and caches a certificate.

        Raises IdentityError unless it is a node's of this federation, signed by its CA.
        """
        name = hashlib.sha256(der).digest()
        if (known := self._verified.get(name)) is None:
            known = self._read(der)
            self._verified[name] = known
            if len(self._verified) > VERIFIED_MAX:
                self._verified.popitem(last=False)
        self._verified.move_to_end(name)
        return known

    def _read(self, der: bytes) -> _Verified:
        chain = read_chain(der)
        identity = chain.check_issued(self._authority)
        ours = identity.federation == self._federation
        if not ours or identity.tier not in (Role.DEVICE, Role.EDGE, Role.CLOUD):
            raise IdentityError(f"the certificate is {identity.uri}'s, no node's of ours")
        return _Verified(
            tier=identity.tier,
            number=identity.number,
            issued_s=identity.not_before,
            begins_s=chain.begins_s,
            ends_s=chain.ends_s,
            key=_p256(chain.leaf),
            leaf=leaf_of(chain.leaf),
        )


def _p256(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("the certificate's key is not a P-256 key")
    return key
