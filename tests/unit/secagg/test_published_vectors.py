"""The algorithms under the protocol against the vectors of the documents that define them.

They are `cryptography`'s (OpenSSL's): what is tested is that the calls here mean what the documents
mean, byte orders, counters and lengths included.
"""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import CTR
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from delian.core.privacy.secagg import hpke, kdf, masks, native
from delian.core.privacy.secagg.secure_errors import SecureError

h = bytes.fromhex


def test_x25519_of_rfc_7748_section_6_1():
    alice = h("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = h("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    assert kdf.public_key(alice).hex() == (
        "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    )
    assert kdf.public_key(bob).hex() == (
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    )
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert kdf.agree(alice, [kdf.public_key(bob)]) == [h(shared)]
    assert kdf.agree(bob, [kdf.public_key(alice)]) == [h(shared)]


@pytest.mark.parametrize(
    ("scalar", "point", "product"),
    [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ],
)
def test_x25519_of_rfc_7748_section_5_2(scalar, point, product):
    assert kdf.agree(h(scalar), [h(point)]) == [h(product)]


def test_a_public_key_of_small_order_is_refused():
    for point in (bytes(32), b"\x01" + bytes(31)):  # RFC 7748 section 6.1: all-zero secrets
        with pytest.raises(SecureError):
            kdf.agree(bytes(range(32)), [point])


def test_points_of_small_order_are_known_in_every_encoding():
    """`agree` asks OpenSSL, which looks at the secret; `is_usable` knows the points."""
    prime = 2**255 - 19
    points = [0, 1, prime - 1, *kdf._SMALL_ORDER[3:]]
    encodings = {x + more for x in points for more in (0, prime, 2**255, prime + 2**255)}
    for number in [n for n in encodings if n < 2**256 and n % 2**255 % prime in points]:
        public = number.to_bytes(32, "little")
        assert not kdf.is_usable(public)
        with pytest.raises(SecureError):
            kdf.agree(bytes(range(32)), [public])
    for secret in range(50):
        assert kdf.is_usable(kdf.public_key(bytes([secret]) * 32))
    for wrong in (b"", bytes(range(31)), bytes(range(33))):
        assert not kdf.is_usable(wrong)


@pytest.mark.parametrize(
    ("secret", "public", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00",
        ),
    ],
)
def test_ed25519_of_rfc_8032_section_7_1(secret, public, message, signature):
    key = Ed25519PrivateKey.from_private_bytes(h(secret))
    assert key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw) == h(public)
    assert key.sign(h(message)) == h(signature)
    with pytest.raises(InvalidSignature):
        key.public_key().verify(h(signature), h(message) + b"x")


def test_hkdf_of_rfc_5869_appendix_a():
    assert kdf.hkdf(b"\x0b" * 22, h("f0f1f2f3f4f5f6f7f8f9"), 42, bytes(range(13))).hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )
    assert kdf.hkdf(
        bytes(range(0x50)), bytes(range(0xB0, 0x100)), 82, bytes(range(0x60, 0xB0))
    ).hex() == (
        "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
        "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
        "cc30c58179ec3e87c14c01d5c1f3434f1d87"
    )
    for salt in (b"", None):
        assert kdf.hkdf(b"\x0b" * 22, b"", 42, salt).hex() == (
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
        )


def test_chacha20_of_rfc_8439_section_2_4_2():
    nonce = h("01000000") + h("000000000000004a00000000")
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the"
        b" future, sunscreen would be it."
    )
    found = Cipher(ChaCha20(bytes(range(32)), nonce), None).encryptor().update(text)
    assert found.hex() == (
        "6e2e359a2568f98041ba0728dd0d6981e97e7aec1d4360c20a27afccfd9fae0b"
        "f91b65c5524733ab8f593dabcd62b3571639d624e65152ab8f530c359f0861d8"
        "07ca0dbf500d6a6156a38e088a22b65e52bc514d16ccf806818ce91ab7793736"
        "5af90bbf74a35be6b40b8eedf2785e42874d"
    )


def test_chacha20_poly1305_of_rfc_8439_section_2_8_2():
    text = (
        b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the"
        b" future, sunscreen would be it."
    )
    key, nonce = bytes(range(0x80, 0xA0)), h("070000004041424344454647")
    sealed = ChaCha20Poly1305(key).encrypt(nonce, text, h("50515253c0c1c2c3c4c5c6c7"))
    assert sealed[-16:].hex() == "1ae10b594f09e26a7e902ecbd0600691"
    assert sealed[:16].hex() == "d31a8d34648e60db7b86afbc53ef7ec2"


@pytest.mark.parametrize("compiled", [False, True])
def test_masks_are_the_key_streams_of_zero_keys(compiled, monkeypatch):
    """RFC 8439 appendix A.1, vectors 1 and 2 (blocks 0 and 1); AES-256 of a zero block, which is
    GCM's H in test case 13 of McGrew and Viega's specification.
    """
    kernels = native.library() if compiled else None
    if compiled and kernels is None:
        pytest.skip("no C compiler")
    monkeypatch.setattr(native, "library", lambda: kernels)
    vector = np.zeros(32, np.uint32)
    masks.add(vector, [(bytes(32), 1)], masks.CHACHA20)
    assert vector[:16].astype("<u4").tobytes().hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert vector[16:].astype("<u4").tobytes().hex() == (
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    vector = np.zeros(4, np.uint32)
    masks.add(vector, [(bytes(32), 1)], masks.AES_CTR)
    assert vector.astype("<u4").tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_ctr_aes256_of_sp_800_38a_f_5_5():
    key = h("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    plain = h(
        "6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51"
        "30c81c46a35ce411e5fbc1191a0a52eff69f2445df4f9b17ad2b417be66c3710"
    )
    counter = h("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff")
    assert Cipher(AES(key), CTR(counter)).encryptor().update(plain).hex() == (
        "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"
        "2b0930daa23de94ce87017ba2d84988ddfc9c58db67aada613c2dd08457941a6"
    )


def test_the_counter_of_a_mask_is_one_big_endian_number():
    key = bytes(range(32))
    whole = kdf.stream(key, kdf.AES_CTR).update(bytes(64 * 300))
    assert kdf.stream(key, kdf.AES_CTR, 64 * 256).update(bytes(64)) == whole[64 * 256 : 64 * 257]
    block = Cipher(AES(key), CTR((0x0400).to_bytes(16, "big"))).encryptor().update(bytes(16))
    assert block == whole[0x4000:0x4010]
    whole = kdf.stream(key, kdf.CHACHA20).update(bytes(64 * 300))
    assert kdf.stream(key, kdf.CHACHA20, 64 * 257).update(bytes(64)) == whole[64 * 257 : 64 * 258]


def test_aes_256_gcm_of_the_gcm_specification_case_14():
    sealed = AESGCM(bytes(32)).encrypt(bytes(12), bytes(16), None)
    assert sealed.hex() == "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"


def test_sealed_shares_open_for_their_pair_alone():
    binding, shared = b"b" * 32, b"s" * 32
    sealed = kdf.seal(shared, binding, 3, 9, b"two shares")
    assert len(sealed) == len(b"two shares") + kdf.TAG_BYTES
    assert kdf.open_sealed(shared, binding, 3, 9, sealed) == b"two shares"
    for changed in [
        (b"t" * 32, binding, 3, 9, sealed),
        (shared, b"c" * 32, 3, 9, sealed),
        (shared, binding, 9, 3, sealed),
        (shared, binding, 3, 8, sealed),
        (shared, binding, 3, 9, sealed[:-1]),
        (shared, binding, 3, 9, b""),
        (shared, binding, 3, 9, bytes([sealed[0] ^ 1]) + sealed[1:]),
    ]:
        with pytest.raises(SecureError):
            kdf.open_sealed(*changed)


def test_hpke_of_rfc_9180_appendix_a_1_1():
    sealed = hpke.seal(
        receiver=h("3948cfe0ad1ddb695d780e59077195da6c56506b027329794ab02bca80815c4d"),
        info=b"Ode on a Grecian Urn",
        plain=b"Beauty is truth, truth beauty",
        sender=h("52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736"),
        associated=b"Count-0",
        aead=hpke.AES_128_GCM,
    )
    assert sealed.hex() == (
        "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"
        "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a"
    )


def test_the_library_s_hpke_opens_what_is_sealed_here():
    """The RFC has no vector of AES-256-GCM with this KEM. The library takes no associated data."""
    library = pytest.importorskip("cryptography.hazmat.primitives.hpke")
    suite = library.Suite(library.KEM.X25519, library.KDF.HKDF_SHA256, library.AEAD.AES_256_GCM)
    private = bytes(range(32))
    sealed = hpke.seal(kdf.public_key(private), b"info", b"a seed", b"s" * 32)
    assert suite.decrypt(sealed, X25519PrivateKey.from_private_bytes(private), b"info") == b"a seed"
    drawn = suite.encrypt(
        b"a seed", X25519PublicKey.from_public_bytes(kdf.public_key(private)), b""
    )
    assert hpke.open_sealed(private, b"", drawn) == b"a seed"
