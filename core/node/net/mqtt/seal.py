"""Sealed messages over an untrusted broker.

A broker sees topics, sizes and times. What it must not do is read, change, invent, repeat or
reorder: so two nodes agree on keys that it does not have, and every message carries proof.

**Agreement.** A node that serves others publishes a *home*, which is retained and names its
session. A node that comes answers by a *birth*, and the home answers that by a *welcome*. Both
carry a fresh X25519 key (RFC 7748) and, as all presences (proto/mqtt.proto), the node's certificate
and a signature by the certificate's key. From these two

    secret = X25519(own private key, other's public key)
    salt   = SHA-256(length of birth (8 bytes, big-endian) || birth || welcome)
    keys   = HKDF-SHA256(salt, secret, info = "delian mqtt v1")

(RFC 5869), 72 bytes: the channel's name (8), the key upwards (32), the key downwards (32). Both
presences are in the salt, so the keys are bound to both names, both sessions and the federation.
Neither side can be made to use keys twice: the birth names the home's session, the welcome the very
birth, and each brings a key of its own that is forgotten when the channel stands. A replayed
presence does not give the keys: a channel is used only once a message has been opened with it
("confirmed"), and until then the one before it goes on.

**Messages.** A frame is

    version (1) || channel's name (8) || counter (8, big-endian) || body

with the body under AES-256-GCM (NIST SP 800-38D): the nonce is four zero bytes and the counter,
which is never used twice, since a key belongs to one direction of one channel; the additional data
is the topic and the frame's head, so that a message cannot be moved to another node, federation or
kind. The receiver keeps a window of the newest counters (as RFC 4303, 3.4.3): what was seen, or is
older than the window, is refused.

**Without certificates** (loopback only) frames are the same and the body is plain: sessions and
repetitions are distinguished, and nothing is proven.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from google.protobuf.message import DecodeError

from ....protocol.ports import Node, ProtocolError
from ....wire.mqtt_pb2 import (
    PRESENCE_BIRTH,
    PRESENCE_DEATH,
    PRESENCE_HOME,
    PRESENCE_WELCOME,
    Presence,
    SignedPresence,
)
from ...identity.pki import certificates
from ...identity.pki.chain import chain_of_pem, read_chain
from ...storage.codec import address, node_of

VERSION = 1
#: Largest presence that is read; a certificate of Delian has some 700 bytes.
PRESENCE_BYTES_MAX = 8 * 1024
CERTIFICATE_BYTES_MAX = 4 * 1024
#: Counters that a receiver stores. More than can be under way between two nodes.
WINDOW = 1024
#: Messages in one direction after which new keys are made. AES-GCM would bear far more.
MESSAGES_MAX = 2**32

_HEAD = struct.Struct(">B8sQ")
_SIGNED = b"delian presence v1"
_INFO = b"delian mqtt v1"


class SealError(ProtocolError):
    """A message that is refused.

    The message is the kind of refusal, as it is counted: "malformed", "stale", "replayed",
    "forged", "certificate".
    """


# ---------------------------------------------------------------- presences


class Ephemeral:
    """A key for one agreement. Without certificates: 32 random bytes and nothing to agree on."""

    def __init__(self, sealed: bool) -> None:
        self._private = X25519PrivateKey.generate() if sealed else None
        if self._private is None:
            self.public = os.urandom(32)
        else:
            self.public = self._private.public_key().public_bytes_raw()

    def secret_with(self, public: bytes) -> bytes:
        """What both sides come to. Raises SealError on a public key that is none."""
        if self._private is None:
            return b""
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:  # wrong length, or a point of small order
            raise SealError("forged") from None


@dataclass(frozen=True, slots=True)
class Seen:
    """A presence that has been checked."""

    presence: Presence
    encoded: bytes
    node: Node
    other: Node | None
    identity: certificates.PeerIdentity | None
    """None where there are no certificates."""


#: state -> whether it names another node, and whether it has a key. None: as it likes.
_FORMS: Mapping[int, tuple[bool | None, bool]] = {
    PRESENCE_HOME: (False, False),
    PRESENCE_BIRTH: (True, True),
    PRESENCE_WELCOME: (True, True),
    PRESENCE_DEATH: (None, False),
}


class Credentials:
    """What a node signs its presences with, and how it checks others'.

    material: asked for each presence that is made, so that a renewed certificate is shown; None: no
    certificates in this federation. clock: Unix time, at which others' certificates are checked.
    """

    def __init__(
        self,
        federation: str,
        node: Node,
        material: Callable[[], certificates.TlsMaterial] | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.federation = federation
        self.node = node
        self._material = material
        self._clock = clock
        self._authority: x509.Certificate | None = None

    @property
    def sealed(self) -> bool:
        return self._material is not None

    def home(self, session: int) -> bytes:
        """Retained where others find it."""
        return self._signed(Presence(state=PRESENCE_HOME, session=session))

    def birth(self, session: int, ephemeral: Ephemeral, home: Seen) -> bytes:
        """The answer to a home."""
        presence = Presence(
            state=PRESENCE_BIRTH,
            session=session,
            key=ephemeral.public,
            other=address(home.node),
            other_session=home.presence.session,
        )
        return self._signed(presence)

    def welcome(self, session: int, ephemeral: Ephemeral, birth: Seen) -> bytes:
        """The answer to a birth."""
        presence = Presence(
            state=PRESENCE_WELCOME,
            session=session,
            key=ephemeral.public,
            other=address(birth.node),
            other_session=birth.presence.session,
            answers=hashlib.sha256(birth.encoded).digest(),
        )
        return self._signed(presence)

    def death(self, session: int, upper: Node | None = None) -> bytes:
        """The end of a session: of a home (upper None) or of a node that had come to `upper`."""
        presence = Presence(state=PRESENCE_DEATH, session=session)
        if upper is not None:
            presence.other.CopyFrom(address(upper))
        return self._signed(presence)

    def _signed(self, presence: Presence) -> bytes:
        presence.version = VERSION
        presence.federation = self.federation
        presence.node.CopyFrom(address(self.node))
        if self._material is None:
            return SignedPresence(presence=presence.SerializeToString()).SerializeToString()
        material = self._material()
        presence.certificate = chain_of_pem(material.certificate).der
        encoded = presence.SerializeToString()
        signature = certificates.load_key(material.key).sign(
            _SIGNED + encoded, ec.ECDSA(hashes.SHA256())
        )
        return SignedPresence(presence=encoded, signature=signature).SerializeToString()

    def read(self, payload: bytes) -> Seen:
        """Checks a node's presence: form, federation, certificate and signature.

        Raises SealError.
        """
        if len(payload) > PRESENCE_BYTES_MAX:
            raise SealError("malformed")
        try:
            signed = SignedPresence.FromString(payload)
            presence = Presence.FromString(signed.presence)
            node = node_of(presence.node)
            other = node_of(presence.other) if presence.HasField("other") else None
        except (DecodeError, ProtocolError):
            raise SealError("malformed") from None
        names_other, has_key = _FORMS.get(presence.state, (None, True))
        if (
            presence.version != VERSION
            or presence.federation != self.federation
            or presence.state not in _FORMS
            or names_other not in (None, other is not None)
            or len(presence.key) != (32 if has_key else 0)
        ):
            raise SealError("malformed")
        identity = None if self._material is None else self._identity(signed, presence, node)
        return Seen(presence, signed.presence, node, other, identity)

    def _identity(
        self, signed: SignedPresence, presence: Presence, node: Node
    ) -> certificates.PeerIdentity:
        assert self._material is not None
        if len(presence.certificate) > CERTIFICATE_BYTES_MAX:
            raise SealError("malformed")
        try:
            chain = read_chain(presence.certificate)
            if self._authority is None:
                self._authority = certificates.load_certificate(self._material().authority)
            identity = chain.verify(self._authority, self._clock())
        except certificates.IdentityError:
            raise SealError("certificate") from None
        if identity.federation != self.federation or identity.node != node:
            raise SealError("forged")
        _check_signature(chain.leaf, signed)
        return identity


def _check_signature(certificate: x509.Certificate, signed: SignedPresence) -> None:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise SealError("certificate")
    try:
        key.verify(signed.signature, _SIGNED + signed.presence, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise SealError("forged") from None


def new_session() -> int:
    """A number that names one life of a node; no two are alike."""
    return secrets.randbits(64)


# ---------------------------------------------------------------- channels


class ReplayWindow:
    """Which counters have been seen, of the newest `WINDOW` ones. Counters begin at 1."""

    def __init__(self) -> None:
        self.newest = 0
        self._seen = 0  # bit i: newest - i

    def is_new(self, counter: int) -> bool:
        behind = self.newest - counter
        return counter > 0 and (behind < 0 or (behind < WINDOW and not self._seen >> behind & 1))

    def add(self, counter: int) -> None:
        """Only after the message was opened: a forged one must not move the window."""
        ahead = counter - self.newest
        if ahead > 0:
            # A jump beyond the window leaves nothing of it; shifting that far would be a bomb.
            kept = self._seen << ahead if ahead < WINDOW else 0
            self._seen = kept & ((1 << WINDOW) - 1)
            self.newest = counter
            ahead = 0
        self._seen |= 1 << -ahead


class Channel:
    """Both directions between two nodes, from one agreement. name: 8 bytes, on every frame."""

    def __init__(self, name: bytes, send_key: bytes, receive_key: bytes, sealed: bool) -> None:
        self.name = name
        self._send = AESGCM(send_key) if sealed else None
        self._receive = AESGCM(receive_key) if sealed else None
        self._sent = 0
        self._window = ReplayWindow()

    @property
    def worn(self) -> bool:
        """Whether it is time for new keys."""
        return max(self._sent, self._window.newest) >= MESSAGES_MAX

    def seal(self, topic: str, body: bytes) -> bytes:
        """A frame for this topic."""
        self._sent += 1
        head = _HEAD.pack(VERSION, self.name, self._sent)
        if self._send is None:
            return head + body
        return head + self._send.encrypt(_nonce(self._sent), body, topic.encode() + head)

    def open(self, topic: str, frame: bytes) -> bytes:
        """The body of a frame that came on this topic. Raises SealError."""
        if len(frame) < _HEAD.size:
            raise SealError("malformed")
        version, name, counter = _HEAD.unpack_from(frame)
        if version != VERSION:
            raise SealError("malformed")
        if name != self.name:
            raise SealError("stale")
        if not self._window.is_new(counter):
            raise SealError("replayed")
        head, body = frame[: _HEAD.size], frame[_HEAD.size :]
        if self._receive is not None:
            try:
                body = self._receive.decrypt(_nonce(counter), body, topic.encode() + head)
            except InvalidTag:
                raise SealError("forged") from None
        self._window.add(counter)
        return body


def channel_named(frame: bytes) -> bytes:
    """Which channel a frame is for. Raises SealError."""
    if len(frame) < _HEAD.size:
        raise SealError("malformed")
    return frame[1:9]


def agree(birth: bytes, welcome: bytes, mine: Ephemeral, *, lower: bool, sealed: bool) -> Channel:
    """The channel between the node that sent its birth and its home.

    birth, welcome: both presences as they were encoded, checked before. lower: whether this side is
    the one that was born. Raises SealError.
    """
    theirs = Presence.FromString(welcome if lower else birth).key
    salt = hashlib.sha256(struct.pack(">Q", len(birth)) + birth + welcome).digest()
    okm = HKDF(hashes.SHA256(), 72, salt, _INFO).derive(mine.secret_with(theirs))
    name, up, down = okm[:8], okm[8:40], okm[40:]
    return Channel(name, up if lower else down, down if lower else up, sealed)


def presence_in(payload: bytes) -> bytes:
    """The presence in a payload of one's own, as it was encoded."""
    return SignedPresence.FromString(payload).presence


def _nonce(counter: int) -> bytes:
    return struct.pack(">4xQ", counter)
