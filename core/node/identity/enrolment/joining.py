"""How a node gets its identity: `join`, with nothing but a token.

The token names the coordinator's address and the CA's public key. The node

1. connects and takes the certificate that is shown, believing nothing yet;
2. checks it: signed by the key that the token names, the root's or an issuing authority's, valid
   now, and it names an authority of the token's federation;
3. connects with gRPC, with that one certificate as all that it trusts, asking TLS for the name of
   the authority; only then does it send the token's secret;
4. checks the reply: the root's key is the token's, the certificate is for the node's own key and of
   the same authority, and the root has signed the federation's terms (`terms`).

So no server is trusted for having answered. Nothing that an attacker on the way can do gives him
the token, or makes the node part of another federation.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ....common.printable import escaped, is_plain
from ....wire import enrolment_pb2, link_pb2
from ..authority.tokens import Token, parse, split_address
from ..pki import certificates
from ..pki.identity_folder import IdentityFolder, check_addresses, check_reply

if TYPE_CHECKING:
    import grpc

log = logging.getLogger("delian.identity")

CALL_S = 30.0  # to connect, and again to be answered
REPLY_BYTES_MAX = 256 * 1024
LABELS_MAX = 16
LABEL_BYTES_MAX = 256

_TIERS = {
    certificates.Role.DEVICE: link_pb2.NODE_DEVICE,
    certificates.Role.EDGE: link_pb2.NODE_EDGE,
    certificates.Role.CLOUD: link_pb2.NODE_CLOUD,
}


async def join(
    text: str,
    folder: Path,
    *,
    labels: Mapping[str, str] | None = None,
    address: str | None = None,
    timeout_s: float = CALL_S,
) -> certificates.PeerIdentity:
    """Gives the node an identity, in `folder`.

    text: the token. labels: what the node calls itself (None: the machine's facts). address: of the
    enrolment, where the token's cannot be reached.

    May be called again when it failed: the same key asks again. Raises IdentityError.
    """
    token = parse(text)
    target = token.address if address is None else "{}:{}".format(*split_address(address))
    own = IdentityFolder(folder)
    if own.exists():
        raise certificates.IdentityError(
            f"{folder} holds the identity {own.identity().common_name} already",
            "name another folder with --identity, or delete this one",
        )
    key = await asyncio.to_thread(own.pending_key)
    shown = await shown_certificate(target, timeout_s)
    server = check_server(shown, token)
    request = enrolment_pb2.EnrolRequest(
        token=text,
        request=certificates.certificate_request(key),
        tier=_TIERS[token.role],
        labels=check_labels(machine_labels() if labels is None else labels),
    )
    reply = await _enrol(target, (shown, server), request, timeout_s)
    identity = check_reply(key, reply, token.authority_key())
    if identity.tier is not token.role or identity.federation != token.federation:
        raise certificates.IdentityError("the authority gave us another role than the token's")
    if identity.authority != server.number:
        raise certificates.IdentityError("the authority gave us a certificate of another authority")
    if not reply.terms:
        raise certificates.IdentityError(
            "the authority gave no terms of the federation",
            "its operator makes them with `delian ca terms CA --cohort-min N`; try again then",
        )
    await asyncio.to_thread(own.accept, key, reply)
    log.info("joined", extra={"node": identity.common_name, "federation": identity.federation})
    return identity


def check_server(shown: x509.Certificate, token: Token) -> certificates.PeerIdentity:
    """Which authority a server is.

    Raises IdentityError unless the key that the token names signed its certificate, for an
    authority of the federation. A coordinator's is refused: a reader of the token could use it.
    """
    algorithm = shown.signature_hash_algorithm
    try:
        if not isinstance(algorithm, hashes.SHA256 | hashes.SHA384 | hashes.SHA512):
            raise InvalidSignature
        token.server_key().verify(shown.signature, shown.tbs_certificate_bytes, ec.ECDSA(algorithm))
    except InvalidSignature:
        raise certificates.IdentityError(
            "the server that answered is not of the federation that the token is for",
            "check the address; the connection may be intercepted",
        ) from None
    certificates.check_time(shown)
    identity = certificates.identity_of(shown)
    if identity.tier is not certificates.Role.AUTHORITY or identity.federation != token.federation:
        raise certificates.IdentityError(
            f"{identity.common_name} answered, not the authority",
            "is this the enrolment port of `delian authority run`?",
        )
    if bool(token.issuer) != bool(identity.number):
        raise certificates.IdentityError(
            "the server that answered is another authority than the token's"
        )
    return identity


def machine_labels() -> dict[str, str]:
    """A node's default name: host, system, ABI."""
    return {
        "host": escaped(platform.node()[:40]),
        "system": platform.system(),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels, if there are at most LABELS_MAX of at most LABEL_BYTES_MAX bytes.

    Each is one printable line. `grpc` and `mqtt` become other nodes' home address, so they must be
    addresses. `site` is set by the token. Raises IdentityError.
    """
    if len(labels) > LABELS_MAX:
        raise certificates.IdentityError(f"{len(labels)} labels; at most {LABELS_MAX}")
    for name, value in labels.items():
        shown = escaped(name[:40])
        if not (is_plain(name) and is_plain(value)):
            raise certificates.IdentityError(
                f"the label `{shown}` has control characters", "use one line of printable text"
            )
        if not name or max(len(name.encode()), len(value.encode())) > LABEL_BYTES_MAX:
            raise certificates.IdentityError(
                f"the label `{shown}` is too long or has no name",
                f"at most {LABEL_BYTES_MAX} bytes in a name and in a value",
            )
    if "site" in labels:
        raise certificates.IdentityError(
            "a node does not name its site", "the token says it: delian token --site"
        )
    check_addresses(labels.get("grpc", ""), labels.get("mqtt", ""))
    return dict(labels)


async def shown_certificate(address: str, timeout_s: float) -> x509.Certificate:
    """The certificate that a server shows. Nothing is checked here, and nothing is sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    host, port = split_address(address)
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host.strip("[]"), port, ssl=context), timeout_s
        )
    except ssl.SSLError as error:
        raise certificates.IdentityError(
            f"{address} does not support TLS 1.3: {error.reason}",
            "is this the authority's enrolment port?",
        ) from None
    except (OSError, TimeoutError) as error:
        raise certificates.IdentityError(
            f"cannot reach the authority at {address}: {error or 'no answer in time'}",
            "is it running, and does a firewall let this machine through?",
        ) from None
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.transport.abort()  # gRPC's server does not always answer a polite goodbye
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return certificates.load_certificate(der or b"")


async def _enrol(
    address: str,
    shown: tuple[x509.Certificate, certificates.PeerIdentity],
    request: enrolment_pb2.EnrolRequest,
    timeout_s: float,
) -> enrolment_pb2.EnrolReply:
    """shown: what the server has shown, and which authority it is."""
    import grpc

    from ....wire import enrolment_pb2_grpc

    certificate, server = shown
    trusted = certificate.public_bytes(serialization.Encoding.PEM)
    options = [
        *certificates.authority_options(server.federation, server.number),
        ("grpc.max_receive_message_length", REPLY_BYTES_MAX),
    ]
    async with grpc.aio.secure_channel(
        address, certificates.enrolment_credentials(trusted), options=options
    ) as channel:
        stub = enrolment_pb2_grpc.EnrolmentStub(channel)
        try:
            reply: enrolment_pb2.EnrolReply = await stub.Enrol(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise refused(error, "join") from None
    return reply


def refused(error: grpc.aio.AioRpcError, what: str) -> certificates.IdentityError:
    """What a server's refusal means for people."""
    import grpc

    detail = escaped((error.details() or "no reason given")[:200])
    hints = {
        grpc.StatusCode.PERMISSION_DENIED: "ask your operator for a new token",
        grpc.StatusCode.UNAUTHENTICATED: "ask your operator for a new token",
        grpc.StatusCode.RESOURCE_EXHAUSTED: "wait a minute and try again",
        grpc.StatusCode.UNAVAILABLE: "is the server running? try again",
        grpc.StatusCode.DEADLINE_EXCEEDED: "the server did not answer in time; try again",
    }
    name = error.code().name.lower().replace("_", " ")
    return certificates.IdentityError(
        f"cannot {what}: {detail} ({name})", hints.get(error.code(), "")
    )
