"""HPKE in base mode, one message a key (RFC 9180): DHKEM(X25519, HKDF-SHA256), HKDF-SHA256 and AES.

`cryptography` has HPKE too, and draws the sender's key itself. Here the caller gives it: a machine
that handles its journal again must seal the same seed in the same bytes. So the sender's half of
RFC 9180 stands here, some thirty lines over the library's X25519 and AES-GCM, and the receiver's is
the library's own (`open_sealed`); appendix A.1.1 of the RFC is a test of the first, and that the
second opens what the first has sealed is another.

The sender's key must be a secret that is used for nothing else: with it twice, key and nonce would
be the same twice.
"""

from __future__ import annotations

import hmac
from typing import Final

from . import kdf
from .secure_errors import SecureError

AES_128_GCM, AES_256_GCM = 1, 2
#: Section 7: the KEM's and the KDF's numbers; bytes of an AEAD's key.
_KEM, _KDF = 0x0020, 0x0001
_KEY_BYTES: Final = {AES_128_GCM: 16, AES_256_GCM: 32}
_NONCE_BYTES: Final = 12
#: What a message is longer by: the encapsulated key and a tag.
OVERHEAD_BYTES: Final = kdf.KEY_BYTES + kdf.TAG_BYTES


def seal(
    receiver: bytes,
    info: bytes,
    plain: bytes,
    sender: bytes,
    associated: bytes = b"",
    aead: int = AES_256_GCM,
) -> bytes:
    """The encapsulated key and the ciphertext (section 6.1, `SealBase`, one behind the other).

    receiver: its X25519 public key. sender: 32 secret bytes, the ephemeral private key, for this
    message alone. Raises SecureError for a receiver's key that is none.
    """
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    encapsulated = kdf.public_key(sender)
    (agreed,) = kdf.agree(sender, [receiver])
    # Section 4.1, ExtractAndExpand of the KEM.
    kem = b"KEM" + _number(_KEM)
    secret = _expand(
        kem, _extract(kem, b"", b"eae_prk", agreed), b"shared_secret", encapsulated + receiver, 32
    )
    # Section 5.1, KeySchedule in mode 0, without a pre-shared key.
    suite = b"HPKE" + _number(_KEM) + _number(_KDF) + _number(aead)
    context = (
        b"\0" + _extract(suite, b"", b"psk_id_hash", b"") + _extract(suite, b"", b"info_hash", info)
    )
    base = _extract(suite, secret, b"secret", b"")
    key = _expand(suite, base, b"key", context, _KEY_BYTES[aead])
    nonce = _expand(suite, base, b"base_nonce", context, _NONCE_BYTES)
    return encapsulated + AESGCM(key).encrypt(nonce, plain, associated)


def open_sealed(private: bytes, info: bytes, sealed: bytes) -> bytes:
    """What was sealed by `seal` in AES-256-GCM. Raises SecureError where it was not sealed so."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    suite = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
    try:
        return suite.decrypt(sealed, X25519PrivateKey.from_private_bytes(private), info)
    except (InvalidTag, ValueError) as error:
        raise SecureError("sealed", "a seed was not sealed for this") from error


def _number(value: int) -> bytes:
    return value.to_bytes(2, "big")


def _extract(suite: bytes, salt: bytes, label: bytes, secret: bytes) -> bytes:
    """LabeledExtract (section 4)."""
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + secret, "sha256")


def _expand(suite: bytes, secret: bytes, label: bytes, info: bytes, length: int) -> bytes:
    """LabeledExpand (section 4) of at most 32 bytes: one block of HKDF-Expand."""
    labelled = _number(length) + b"HPKE-v1" + suite + label + info + b"\x01"
    return hmac.digest(secret, labelled, "sha256")[:length]
