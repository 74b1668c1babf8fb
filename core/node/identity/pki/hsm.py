"""The CA's key in a hardware token, over PKCS #11 (OASIS, version 2.40).

The token makes the key and never gives it out: an attacker that copies the CA's folder, or controls
the machine for an hour, cannot sign later. Instead of `ca.key` the folder holds `ca.token`, which
says where the key is: the module (a shared library of the token's vendor), the token's label, the
key's label, and the file that has the PIN. `TokenKey` stands for the private key wherever
`cryptography` takes one to sign with ECDSA.

A token that was removed, or a session that it ended, is opened again once at the next signature.
Needs the extra `delian[hsm]` (python-pkcs11).
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from ....common.install_hint import install
from .certificates import IdentityError, read_file
from .ledger import write_file

FILE: Final = "ca.token"
FILE_BYTES_MAX: Final = 8 * 1024
PIN_BYTES_MAX: Final = 256
_SCALAR_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class KeyPlace:
    """Where a key is."""

    module: str
    """Path of the PKCS #11 library."""
    token: str
    """The token's label."""
    label: str
    """The key's label in the token."""
    pin_file: str
    """Path of the file whose first line is the PIN."""

    def store(self, folder: Path) -> None:
        """Writes `ca.token`; durable on return. Raises IdentityError."""
        write_file(folder / FILE, json.dumps(asdict(self), indent=1).encode() + b"\n", 0o600)

    @classmethod
    def load(cls, folder: Path) -> KeyPlace:
        """Reads `ca.token`. Raises IdentityError."""
        path = folder / FILE
        try:
            found = json.loads(read_file(path, FILE_BYTES_MAX))
            made = cls(**found)
        except (ValueError, TypeError, RecursionError):
            raise IdentityError(f"{path} is damaged") from None
        if not all(isinstance(value, str) and value for value in asdict(made).values()):
            raise IdentityError(f"{path} is damaged")
        return made


class TokenKey(ec.EllipticCurvePrivateKey):
    """A P-256 key that stays in its token. Safe for several threads."""

    def __init__(self, place: KeyPlace) -> None:
        """Opens the token. Raises IdentityError."""
        self.place = place
        self._thread = threading.RLock()
        self._session: Any = None
        self._private: Any = None
        self._public = self._open()

    @classmethod
    def generate(cls, place: KeyPlace) -> TokenKey:
        """Makes a key in the token. Raises IdentityError, also where it has one of that label."""
        session = _session(place, writes=True)
        from pkcs11 import Attribute, KeyType, ObjectClass
        from pkcs11.exceptions import PKCS11Error
        from pkcs11.util.ec import encode_named_curve_parameters

        try:
            same = {Attribute.CLASS: ObjectClass.PRIVATE_KEY, Attribute.LABEL: place.label}
            if list(session.get_objects(same)):
                raise IdentityError(
                    f"the token {place.token} has a key `{place.label}` already",
                    "it may be another CA's: use another token, or delete the key there",
                )
            curve = {Attribute.EC_PARAMS: encode_named_curve_parameters("secp256r1")}
            parameters = session.create_domain_parameters(KeyType.EC, curve, local=True)
            name = hashlib.sha256(place.label.encode()).digest()[:8]
            parameters.generate_keypair(
                store=True,
                label=place.label,
                id=name,
                private_template={Attribute.SENSITIVE: True, Attribute.EXTRACTABLE: False},
            )
        except PKCS11Error as error:
            raise _failed(place, "make a key", error) from None
        finally:
            session.close()
        return cls(place)

    def sign(self, data: Any, signature_algorithm: ec.EllipticCurveSignatureAlgorithm) -> bytes:
        """ECDSA with SHA-256, DER. Raises IdentityError."""
        hashed = signature_algorithm.algorithm
        if not isinstance(signature_algorithm, ec.ECDSA) or not isinstance(hashed, hashes.SHA256):
            raise IdentityError("the CA's token signs with ECDSA and SHA-256 only")
        from pkcs11 import Mechanism
        from pkcs11.exceptions import PKCS11Error

        digest = hashlib.sha256(data).digest()
        with self._thread:
            for last in (False, True):
                try:
                    if self._private is None:
                        self._open()
                    raw = self._private.sign(digest, mechanism=Mechanism.ECDSA)
                    break
                except PKCS11Error as error:
                    self._forget()
                    if last:
                        raise _failed(self.place, "sign", error) from None
        r, s = raw[:_SCALAR_BYTES], raw[_SCALAR_BYTES:]
        return utils.encode_dss_signature(int.from_bytes(r, "big"), int.from_bytes(s, "big"))

    def public_key(self) -> ec.EllipticCurvePublicKey:
        return self._public

    @property
    def curve(self) -> ec.EllipticCurve:
        return ec.SECP256R1()

    @property
    def key_size(self) -> int:
        return 8 * _SCALAR_BYTES

    def exchange(self, algorithm: ec.ECDH, peer_public_key: ec.EllipticCurvePublicKey) -> NoReturn:
        """Not done: the CA's key only signs."""
        raise IdentityError("the CA's key only signs")

    def private_numbers(self) -> NoReturn:
        """Not possible: the key stays in the token."""
        raise IdentityError("the CA's key stays in its token")

    def private_bytes(
        self,
        encoding: serialization.Encoding,
        format: serialization.PrivateFormat,
        encryption_algorithm: serialization.KeySerializationEncryption,
    ) -> NoReturn:
        """Not possible: the key stays in the token."""
        raise IdentityError("the CA's key stays in its token")

    def __copy__(self) -> TokenKey:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TokenKey:
        return self

    def _open(self) -> ec.EllipticCurvePublicKey:
        self._session = _session(self.place)
        from pkcs11 import Attribute, KeyType, ObjectClass
        from pkcs11.exceptions import PKCS11Error
        from pkcs11.util.ec import encode_ec_public_key

        try:
            private, public = (
                self._session.get_key(kind, KeyType.EC, label=self.place.label)
                for kind in (ObjectClass.PRIVATE_KEY, ObjectClass.PUBLIC_KEY)
            )
            sensitive = private[Attribute.SENSITIVE] and not private[Attribute.EXTRACTABLE]
            found = serialization.load_der_public_key(encode_ec_public_key(public))
        except PKCS11Error as error:
            self._forget()
            raise _failed(self.place, f"find the key `{self.place.label}`", error) from None
        if not isinstance(found, ec.EllipticCurvePublicKey) or not sensitive:
            self._forget()
            raise IdentityError(
                f"the key `{self.place.label}` of the token {self.place.token} is no P-256 key that"
                " stays in the token"
            )
        self._private = private
        return found

    def _forget(self) -> None:
        from pkcs11.exceptions import PKCS11Error

        session, self._session, self._private = self._session, None, None
        try:
            if session is not None:
                session.close()
        except PKCS11Error:
            pass  # the token has ended it


def _session(place: KeyPlace, writes: bool = False) -> Any:
    try:
        import pkcs11
        from pkcs11.exceptions import PKCS11Error, UserAlreadyLoggedIn
    except ImportError:
        raise IdentityError(
            "the CA's key is in a token, and python-pkcs11 is not here",
            f"install it with: {install('hsm')}",
        ) from None
    try:
        token = pkcs11.lib(place.module).get_token(token_label=place.token)
        try:
            return token.open(user_pin=_pin(place), rw=writes)
        except UserAlreadyLoggedIn:  # by another session: the login is the process's
            return token.open(rw=writes)
    except (PKCS11Error, RuntimeError, OSError) as error:
        raise _failed(place, "open", error) from None


def _pin(place: KeyPlace) -> str:
    content = read_file(Path(place.pin_file), PIN_BYTES_MAX)
    try:
        pin = content.decode().splitlines()[0].strip()
    except (UnicodeDecodeError, IndexError):
        pin = ""
    if not pin:
        raise IdentityError(f"{place.pin_file} has no PIN in its first line")
    return pin


def _failed(place: KeyPlace, what: str, error: Exception) -> IdentityError:
    return IdentityError(
        f"the token {place.token} did not {what}: {type(error).__name__} {error}".rstrip(),
        f"is it connected, and are the module ({place.module}) and the PIN ({place.pin_file}) its"
        " own?",
    )
