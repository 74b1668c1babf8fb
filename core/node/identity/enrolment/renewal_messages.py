"""Renewals: what a node signs, what the authority signs, and how each checks the other.

Over any carrier (proto/link.proto, RenewalAsk). Every renewal is one of these, over gRPC too: the
coordinator has no CA key and passes them on.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError

from ....protocol.ports import Node, ProtocolError
from ....wire.enrolment_pb2 import EnrolReply
from ....wire.link_pb2 import RenewalAnswer, RenewalAsk, RenewalClaim, RenewalResult
from ...storage.codec import address, node_of
from ..pki import certificates
from ..pki.chain import chain_of_pem, read_chain

CLAIM_BYTES_MAX = 16 * 1024
RESULT_BYTES_MAX = 48 * 1024
CERTIFICATE_BYTES_MAX = 4 * 1024
#: ECDSA with P-256, DER: two integers of up to 33 bytes with their heads.
SIGNATURE_BYTES_MAX = 72
REASON_CHARACTERS_MAX = 200

_CLAIM, _RESULT = b"delian renewal claim v1", b"delian renewal result v1"


@dataclass(frozen=True, slots=True)
class Asked:
    """A claim whose present key has signed it.

    Whether its certificate is still good is not in it: `Guard.refusal` and `Authority.renew` say.
    """

    node: Node
    identity: certificates.PeerIdentity
    """The node of the present certificate, which is the node that the claim names."""
    request: bytes
    certificate: bytes
    """A chain in DER."""
    claim_hash: bytes
    """Names the ask."""


# ---------------------------------------------------------------- the node asks


def make_ask(material: certificates.TlsMaterial, request: bytes) -> RenewalAsk:
    """What a node says.

    material: what it has now. request: PKCS #10, PEM, for its new key. Raises IdentityError.
    """
    node = material.identity().node
    if node is None:
        raise certificates.IdentityError(
            "only a device, an edge or the coordinator renews its certificate",
            "an operator gets a new one by: delian ca issue operator",
        )
    claim = RenewalClaim(
        node=address(node), request=request, certificate=_der(material)
    ).SerializeToString()
    return RenewalAsk(claim=claim, signature=_sign(material, _CLAIM + claim))


def hash_of(ask: RenewalAsk) -> bytes:
    """What names an ask in its answer."""
    return hashlib.sha256(ask.claim).digest()


def claimed(ask: RenewalAsk) -> Node:
    """The node that an ask claims to be from; nothing is proved.

    Raises IdentityError where it is too large or malformed.
    """
    return _claim(ask)[0]


def read_ask(ask: RenewalAsk, authority: x509.Certificate) -> Asked:
    """The node that asks, if its key signed the claim.

    The key is that of a certificate below `authority`, the root, for the node that the claim names.
    Raises IdentityError.
    """
    node, claim = _claim(ask)
    chain = read_chain(claim.certificate)
    identity = chain.check_issued(authority)
    if identity.node != node:
        raise certificates.IdentityError("the certificate names another node than the claim")
    _check(chain.leaf, ask.signature, _CLAIM + ask.claim, "the claim")
    return Asked(node, identity, claim.request, claim.certificate, hash_of(ask))


def _claim(ask: RenewalAsk) -> tuple[Node, RenewalClaim]:
    if len(ask.claim) > CLAIM_BYTES_MAX or len(ask.signature) > SIGNATURE_BYTES_MAX:
        raise certificates.IdentityError("the renewal's claim is too large")
    try:
        claim = RenewalClaim.FromString(ask.claim)
        node = node_of(claim.node)
    except (DecodeError, ProtocolError):
        raise certificates.IdentityError("the renewal's claim is malformed") from None
    sizes = len(claim.request), len(claim.certificate)
    if sizes[0] > certificates.REQUEST_BYTES_MAX or sizes[1] > CERTIFICATE_BYTES_MAX:
        raise certificates.IdentityError("the renewal's claim is too large")
    return node, claim


# ---------------------------------------------------------------- the authority answers


def make_answer(
    material: certificates.TlsMaterial, asked: Asked, reply: EnrolReply | None, refusal: str = ""
) -> RenewalAnswer:
    """A reply, or a refusal that is final.

    material: the authority's. Raises IdentityError where the reply is too large for a link.
    """
    result = RenewalResult(
        node=address(asked.node),
        claim_hash=asked.claim_hash,
        refusal=refusal[:REASON_CHARACTERS_MAX],
    )
    if reply is not None:
        result.reply = reply.SerializeToString()
    encoded = result.SerializeToString()
    if len(encoded) > RESULT_BYTES_MAX:
        raise certificates.IdentityError(f"a reply of {len(encoded)} bytes does not fit a link")
    return RenewalAnswer(
        result=encoded, certificate=_der(material), signature=_sign(material, _RESULT + encoded)
    )


def not_now(ask: RenewalAsk, node: Node, why: str) -> RenewalAnswer:
    """Unauthenticated text from any node on the way: it decides nothing."""
    result = RenewalResult(
        node=address(node), claim_hash=hash_of(ask), refusal=why[:REASON_CHARACTERS_MAX]
    )
    return RenewalAnswer(result=result.SerializeToString())


def result_of(answer: RenewalAnswer) -> tuple[Node, RenewalResult]:
    """The node that an answer is for, and its content; nothing is proved.

    Raises IdentityError where it is too large or malformed.
    """
    parts = len(answer.result), len(answer.certificate), len(answer.signature)
    limits = RESULT_BYTES_MAX, CERTIFICATE_BYTES_MAX, SIGNATURE_BYTES_MAX
    if any(size > limit for size, limit in zip(parts, limits, strict=True)):
        raise certificates.IdentityError("the renewal's answer is too large")
    try:
        result = RenewalResult.FromString(answer.result)
        return node_of(result.node), result
    except (DecodeError, ProtocolError):
        raise certificates.IdentityError("the renewal's answer is malformed") from None


def read_answer(
    answer: RenewalAnswer,
    ask: RenewalAsk,
    authority: x509.Certificate,
    now_s: float | None = None,
) -> tuple[EnrolReply | None, str]:
    """The authority's reply, or None and its refusal, which is final.

    authority: the root's certificate. now_s: Unix time; None: now. Raises IdentityError where the
    answer proves nothing: not signed, by another than the authority of this node, or for another
    claim.
    """
    _, result = result_of(answer)
    if result.claim_hash != hash_of(ask):
        raise certificates.IdentityError("the answer is for another renewal")
    if not answer.signature:
        why = "".join(c for c in result.refusal[:REASON_CHARACTERS_MAX] if c.isprintable())
        raise certificates.IdentityError(
            f"the renewal was not passed on: {why or 'no reason given'}"
        )
    chain = read_chain(answer.certificate)
    signer = chain.verify(authority, now_s)
    own = certificates.identity_of(read_chain(_claim(ask)[1].certificate).leaf)
    ours = (own.federation, own.authority) == (signer.federation, signer.authority)
    if signer.tier is not certificates.Role.AUTHORITY or not ours:
        raise certificates.IdentityError("the answer is not signed by the authority")
    _check(chain.leaf, answer.signature, _RESULT + answer.result, "the answer")
    if not result.reply:
        return None, result.refusal or "the authority refused"
    try:
        return EnrolReply.FromString(result.reply), ""
    except DecodeError:
        raise certificates.IdentityError("the renewal's answer is malformed") from None


# ---------------------------------------------------------------- parts


def _der(material: certificates.TlsMaterial) -> bytes:
    return chain_of_pem(material.certificate).der


def _sign(material: certificates.TlsMaterial, content: bytes) -> bytes:
    return certificates.load_key(material.key).sign(content, ec.ECDSA(hashes.SHA256()))


def _check(certificate: x509.Certificate, signature: bytes, content: bytes, what: str) -> None:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise certificates.IdentityError("the certificate's key is not a P-256 key")
    try:
        key.verify(signature, content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise certificates.IdentityError(f"{what} is not signed by its certificate's key") from None
