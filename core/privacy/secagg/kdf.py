"""Keys from secrets: HKDF-SHA256, X25519, the key stream of AES-256-CTR, and sealed shares.

All algorithms are OpenSSL's, by way of `cryptography` and `hmac`. Secrets are raw bytes, so that a
state can be kept in a journal and gives the same messages again. The purpose of each key is set
apart by the ASCII domain that begins every HKDF info.

`cryptography` is imported where it is used: every state machine knows this module, and a process
that masks nothing is 7 MiB smaller without it.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .secure_errors import SecureError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers import CipherContext

KEY_BYTES = 32
_HASH_BYTES = 32  # of SHA-256
TAG_BYTES = 16
#: What masks are made of, by the number of the suite.
AES_CTR = 1
CHACHA20 = 2
#: Each seal key is used for one message, so its nonce may be a constant.
_NONCE = bytes(12)
#: The field of X25519, and the coordinates of the points of order 1, 2, 4 and 8 of the curve and of
#: its twist (Bernstein 2006, "Curve25519", section 3).
_PRIME = 2**255 - 19
_SMALL_ORDER = (
    0,
    1,
    _PRIME - 1,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)


def hkdf(secret: bytes, info: bytes, length: int = KEY_BYTES, salt: bytes | None = None) -> bytes:
    """HKDF-SHA256 (RFC 5869, sections 2.2 and 2.3) of a secret. At most 8,160 bytes.

    A device makes some hundreds of keys in a session; by the objects of `cryptography` each takes
    three times as long as by `hmac`, which is OpenSSL's too.
    """
    assert 0 < length <= 255 * _HASH_BYTES
    key = hmac.digest(salt or bytes(_HASH_BYTES), secret, "sha256")
    block = made = hmac.digest(key, info + b"\x01", "sha256")
    for counter in range(2, -(-length // _HASH_BYTES) + 1):
        block = hmac.digest(key, block + info + bytes([counter]), "sha256")
        made += block
    return made[:length]


def ratchet(master: bytes) -> bytes:
    """The master secret after a session: from it the session's keys cannot be made again."""
    return hkdf(master, b"delian/ratchet/v1")


def session_secret(master: bytes, session: bytes) -> bytes:
    """The secret of one attempt. `session` is `transcript.Session.task`."""
    return hkdf(master, b"delian/session/v1" + session)


def sealing_secret(session: bytes) -> bytes:
    """The X25519 private key for sealing, from the session's secret."""
    return hkdf(session, b"delian/sealing-key/v1")


def mask_secret(session: bytes) -> bytes:
    """The X25519 private key for masks, from the session's secret."""
    return hkdf(session, b"delian/mask-key/v1")


def self_seed(session: bytes) -> bytes:
    """The seed b of the self mask, from the session's secret."""
    return hkdf(session, b"delian/self-seed/v1")


def noise_key(session: bytes) -> bytes:
    """The key of the device's noise, from the session's secret; it is never shared."""
    return hkdf(session, b"delian/noise/v1")


def share_randomness(session: bytes, binding: bytes, length: int) -> bytes:
    """The coefficients of the polynomials that share the secrets, from the session's secret."""
    return keystream(hkdf(session, b"delian/shares/v1" + binding), length)


def pair_mask_key(shared: bytes, binding: bytes, one: int, other: int) -> bytes:
    """The key of a mask of two neighbours, from the X25519 secret of their mask keys.

    Their indices are in it, the lower first: else a member that gives a neighbour's public key for
    its own would have the neighbour's masks too, and where the signs differ each of the two would
    undo the other.
    """
    label = _parties(binding, min(one, other), max(one, other))
    return hkdf(shared, b"delian/mask/v1" + label)


def self_mask_key(seed: bytes, binding: bytes) -> bytes:
    """The key of a member's own mask, from its seed."""
    return hkdf(seed, b"delian/self/v1" + binding)


def keystream(key: bytes, length: int) -> bytes:
    """The first bytes of the AES-256-CTR key stream of a 32-byte key, counter from zero."""
    return stream(key, AES_CTR).update(bytes(length))


def stream(key: bytes, suite: int, start: int = 0) -> CipherContext:
    """The key stream of a mask from byte `start` on, a multiple of 64: `update` zeros to get it.

    Suite 1: AES-256-CTR, the whole block one big-endian counter from 0 (NIST SP 800-38A). Suite 2:
    ChaCha20 from block 0 with a nonce of zeros (RFC 8439).
    """
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    if suite == CHACHA20:
        block = (start // 64).to_bytes(4, "little")
        return Cipher(ChaCha20(key, block + bytes(12)), None).encryptor()
    return Cipher(AES(key), CTR((start // 16).to_bytes(16, "big"))).encryptor()


def private_key(secret: bytes) -> X25519PrivateKey:
    """The X25519 private key of 32 bytes, clamped as in RFC 7748."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(secret)


def public_key(secret: bytes) -> bytes:
    """The X25519 public key of 32 private bytes."""
    return private_key(secret).public_key().public_bytes_raw()


def is_usable(public: bytes) -> bool:
    """Whether an X25519 public key is of 32 bytes and not of small order."""
    return (
        len(public) == KEY_BYTES
        and int.from_bytes(public, "little") % 2**255 % _PRIME not in _SMALL_ORDER
    )


def agree(secret: bytes, peers: Sequence[bytes]) -> list[bytes]:
    """The X25519 secret that is shared with each of some public keys.

    Raises SecureError for a key that is not 32 bytes, or that gives the same secret to all (a point
    of small order).
    """
    return exchanged(private_key(secret), peers)


def exchanged(private: X25519PrivateKey, peers: Sequence[bytes]) -> list[bytes]:
    """As `agree`."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        return [private.exchange(X25519PublicKey.from_public_bytes(peer)) for peer in peers]
    except ValueError as error:
        raise SecureError("key", "a neighbour's public key is not one of X25519") from error


def seal(shared: bytes, binding: bytes, sender: int, receiver: int, plain: bytes) -> bytes:
    """Encrypts shares for a neighbour: AES-256-GCM. shared: the X25519 secret."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    label = _parties(binding, sender, receiver)
    return AESGCM(hkdf(shared, b"delian/seal/v1" + label)).encrypt(_NONCE, plain, label)


def open_sealed(shared: bytes, binding: bytes, sender: int, receiver: int, sealed: bytes) -> bytes:
    """What was sealed. Raises SecureError when it was not sealed so, for this session and pair."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    label = _parties(binding, sender, receiver)
    try:
        return AESGCM(hkdf(shared, b"delian/seal/v1" + label)).decrypt(_NONCE, sealed, label)
    except InvalidTag as error:
        raise SecureError("sealed", "a sealed share was not made for this pair") from error


def _parties(binding: bytes, sender: int, receiver: int) -> bytes:
    return binding + sender.to_bytes(4, "little") + receiver.to_bytes(4, "little")
