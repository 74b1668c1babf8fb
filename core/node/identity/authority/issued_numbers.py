"""The last numbers that a CA has given out, as a statement under its signature.

The coordinator keeps the newest one and returns it: an authority that was restored from a backup
then gives none of these numbers out again. The CA's own signature is the proof, so the coordinator
cannot make numbers up. Signed is

    "delian/numbers/v1" 0, length (1) and name of the federation, devices (8), edges (8)

with integers unsigned and big-endian; ECDSA with P-256 and SHA-256 (FIPS 186-5), DER.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError

from ....wire.authority_pb2 import SignedNumbers
from ..pki.certificates import NUMBER_MAX, IdentityError, check_federation, read_file
from ..pki.ledger import write_file

BYTES_MAX = 256
_DOMAIN = b"delian/numbers/v1\0"
_SIGNATURE_BYTES_MAX = 72


def sign_numbers(
    federation: str, devices: int, edges: int, sign: Callable[[bytes], bytes]
) -> SignedNumbers:
    """The statement. sign: with the CA's key (`Authority.sign`)."""
    made = SignedNumbers(federation=federation, devices=devices, edges=edges)
    made.signature = sign(_signed(made))
    return made


def check_numbers(
    numbers: SignedNumbers, key: ec.EllipticCurvePublicKey, federation: str
) -> SignedNumbers:
    """The statement itself.

    key: the CA's. Raises IdentityError unless that key has signed it for the federation.
    """
    largest = max(numbers.devices, numbers.edges)
    too_long = len(numbers.signature) > _SIGNATURE_BYTES_MAX
    if numbers.federation != federation or largest > NUMBER_MAX or too_long:
        raise IdentityError("the statement of numbers is not of this federation")
    try:
        key.verify(numbers.signature, _signed(numbers), ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise IdentityError("the statement of numbers is not signed by the CA") from None
    return numbers


def parse_numbers(content: bytes) -> SignedNumbers:
    """Of a file; nothing is verified. Raises IdentityError."""
    try:
        if len(content) > BYTES_MAX:
            raise DecodeError
        return SignedNumbers.FromString(content)
    except DecodeError:
        raise IdentityError("the statement of numbers is damaged") from None


class KeptNumbers:
    """The newest statement of one authority, in a file of the coordinator's.

    Its signature is verified by that authority, when it gets the statement back.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: SignedNumbers | None = None

    def newest(self) -> SignedNumbers | None:
        """None: not stored yet. Blocks. Raises IdentityError."""
        if self._known is None and self._path.exists():
            self._known = parse_numbers(read_file(self._path, BYTES_MAX))
        return self._known

    def take(self, numbers: SignedNumbers) -> None:
        """Keeps a statement that takes no number back; durable on return.

        Blocks. Raises IdentityError.
        """
        known = self.newest() or SignedNumbers()
        if numbers == known:
            return
        if numbers.devices >= known.devices and numbers.edges >= known.edges:
            content = numbers.SerializeToString(deterministic=True)
            parse_numbers(content)  # of no more bytes than are read again
            write_file(self._path, content, 0o600)
            self._known = numbers


def _signed(numbers: SignedNumbers) -> bytes:
    name = check_federation(numbers.federation).encode()
    counts = numbers.devices.to_bytes(8, "big") + numbers.edges.to_bytes(8, "big")
    return _DOMAIN + bytes([len(name)]) + name + counts
