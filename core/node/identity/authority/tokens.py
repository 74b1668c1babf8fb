"""How a new node is let in: a token that an operator makes, and that is good once.

Its text is all that `delian join` needs:

    delian1.BASE64URL( version, role, id[8], secret[32], root's public key[33],
                       issuing authority's public key[33], federation, address, check[4] )

The root's public key pins the federation: the node trusts no certificate that this key has not
signed, so it never has to trust a server because it was the first to answer. The key of an issuing
authority is there where one lets the node in (version 2, else 1): the server's certificate is
signed by it, and it by the root. The id names the token in the book; the secret is 256 random bits,
of which the book keeps SHA-256 alone (a slow hash is for passwords that people choose). The check
catches a text that was cut or mistyped.

A token is used by a key. When the reply to a node is lost, the node asks again with the same token
and the same key and is given the same number: a token of one use is not spent on a lost packet,
and an eavesdropper cannot use it a second time without the key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import time
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec

from ..pki.certificates import (
    ADDRESSES_MAX,
    NUMBER_MAX,
    IdentityError,
    Role,
    check_federation,
    check_site,
    general_name,
)
from ..pki.ledger import Entry, FolderLock, Ledger, private_folder

DAY_S = 24 * 3600
VALID_S = DAY_S
VALID_S_MAX = 30 * DAY_S
USES_MAX = 100_000
TOKENS_MAX = 10_000  # that are still good
TEXT_MAX = 1024  # characters of a token's text

_PREFIX = "delian1."
_VERSION, _VERSION_ISSUED = 1, 2
_ROLES = (
    Role.DEVICE,
    Role.EDGE,
    Role.CLOUD,
)  # the roles that may join by a token, in the order of the role's byte
_ID, _SECRET, _KEY, _CHECK = 8, 32, 33, 4
_HEAD = 2 + _ID + _SECRET + _KEY
_PORT = re.compile("[0-9]{1,5}")


class TokenError(IdentityError):
    """A token that is not valid. The message is for the operator's log; to the peer, say less."""


@dataclass(frozen=True, slots=True)
class Token:
    """What a token's text says."""

    role: Role
    federation: str
    address: str
    """"host:port" of the enrolment."""
    authority: bytes  # the root's public key, SEC 1 compressed
    id: bytes
    secret: bytes = field(repr=False)
    issuer: bytes = b""  # the public key of the issuing authority; empty: the root lets the node in

    def text(self) -> str:
        """The token as it is handed to people."""
        version = _VERSION_ISSUED if self.issuer else _VERSION
        parts = [bytes([version, _ROLES.index(self.role)]), self.id, self.secret, self.authority]
        parts.append(self.issuer)
        for word in (self.federation, self.address):
            encoded = word.encode()
            parts.append(bytes([len(encoded)]) + encoded)
        body = b"".join(parts)
        body += zlib.crc32(body).to_bytes(_CHECK, "big")
        return _PREFIX + base64.urlsafe_b64encode(body).rstrip(b"=").decode()

    def authority_key(self) -> ec.EllipticCurvePublicKey:
        """The root's. Raises IdentityError when it is no point of the curve."""
        return _point(self.authority)

    def server_key(self) -> ec.EllipticCurvePublicKey:
        """The key that has signed the server's certificate.

        The issuing authority's, else the root's. Raises IdentityError.
        """
        return _point(self.issuer or self.authority)


def _point(encoded: bytes) -> ec.EllipticCurvePublicKey:
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), encoded)
    except ValueError:
        raise IdentityError("the token's CA key is damaged") from None


def parse(text: str) -> Token:
    """Reads a token's text, spaces and line breaks in it ignored; raises IdentityError."""
    hint = "copy the whole text that `delian token` printed"
    if len(text) > TEXT_MAX:
        raise IdentityError(f"this is no token: it has {len(text)} characters", hint)
    packed = "".join(text.split())
    if not packed.startswith(_PREFIX):
        raise IdentityError(f"this is no token: it does not begin with {_PREFIX}", hint)
    encoded = packed.removeprefix(_PREFIX)
    try:
        body = base64.b64decode(encoded + "=" * (-len(encoded) % 4), b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise IdentityError("this is no token: it has characters that no token has", hint) from None
    content, check = body[:-_CHECK], body[-_CHECK:]
    if len(content) < _HEAD + 2 or zlib.crc32(content).to_bytes(_CHECK, "big") != check:
        raise IdentityError("the token is cut short or mistyped", hint)
    if content[0] not in (_VERSION, _VERSION_ISSUED) or content[1] >= len(_ROLES):
        raise IdentityError("the token is of another version of delian", "bring both up to date")
    words_at = _HEAD + (_KEY if content[0] == _VERSION_ISSUED else 0)
    words, rest = [], content[words_at:]
    for _ in range(2):
        length = rest[0] if rest else 0
        words.append(rest[1 : 1 + length])
        rest = rest[1 + length :]
    try:
        federation, address = (word.decode() for word in words)
    except UnicodeDecodeError:
        raise IdentityError("the token is damaged", hint) from None
    host, port = split_address(address)
    return Token(
        role=_ROLES[content[1]],
        federation=check_federation(federation),
        address=f"{host}:{port}",
        authority=content[2 + _ID + _SECRET : _HEAD],
        id=content[2 : 2 + _ID],
        secret=content[2 + _ID : 2 + _ID + _SECRET],
        issuer=content[_HEAD:words_at],
    )


def split_address(address: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[::1]:port" (the brackets stay); raises IdentityError."""
    host, colon, port = address.rpartition(":")
    good = colon and _PORT.fullmatch(port) and 0 < int(port) < 65536
    if not good:
        raise IdentityError(f"`{address[:80]}` is no address", "write it as host:port")
    general_name(host.removeprefix("[").removesuffix("]"))
    if ":" in host and not host.startswith("["):
        raise IdentityError(f"`{address[:80]}` is no address", "write IPv6 as [address]:port")
    return host, int(port)


@dataclass(frozen=True, slots=True)
class Admission:
    """A token let this key in."""

    id: bytes
    addresses: tuple[str, ...]
    number: int | None
    """What the key was given before, None the first time."""
    site: str = ""
    """That the node belongs to; empty: none."""


@dataclass(slots=True)
class _Known:
    """A token as the book keeps it."""

    role: Role
    hash: bytes
    expires: int
    uses: int
    addresses: tuple[str, ...]
    site: str = ""
    keys: dict[str, int | None] = field(default_factory=dict)

    def entry(self, id: bytes) -> Entry:
        site = {"site": self.site} if self.site else {}
        return {
            **site,
            "id": id.hex(),
            "role": self.role.value,
            "hash": self.hash.hex(),
            "expires": self.expires,
            "uses": self.uses,
            "addresses": list(self.addresses),
        }


class TokenBook:
    """The tokens that are good, in a CA's folder. Several processes may have it open."""

    def __init__(self, folder: Path, lock: FolderLock | None = None) -> None:
        """lock: the folder's, where the caller holds it already (`Authority.lock`)."""
        private_folder(folder)
        self.lock = lock or FolderLock(folder)
        self._ledger = Ledger(folder / "tokens.jsonl")
        self._known: dict[bytes, _Known] = {}
        with self.lock.held():
            self._refresh()
            self._compact(time.time())

    def create(
        self,
        role: Role,
        federation: str,
        address: str,
        authority: bytes,
        *,
        valid_s: int = VALID_S,
        uses: int = 1,
        addresses: Iterable[str] = (),
        site: str = "",
        issuer: bytes = b"",
        now_s: float | None = None,
    ) -> tuple[Token, int]:
        """A new token and when it expires (Unix time in seconds); durable on return.

        address: of the enrolment, as nodes reach it. authority, issuer: public keys of the root
        and, where one enrols, of the issuing authority. addresses: for an edge or the coordinator,
        where the one that joins is reached. site: that the nodes belong to. Both go into
        certificates. Raises IdentityError.
        """
        if role not in _ROLES:
            raise IdentityError(
                f"no token lets in a node of the role {role.value}", "use device, edge or cloud"
            )
        if not 0 < valid_s <= VALID_S_MAX:
            raise IdentityError(f"a token cannot be good for {valid_s} s; at most {VALID_S_MAX}")
        if not 0 < uses <= USES_MAX:
            raise IdentityError(f"a token cannot have {uses} uses; at most {USES_MAX}")
        names = tuple(addresses)
        if names and role is Role.DEVICE:
            raise IdentityError("a device's certificate carries no addresses")
        if len(names) > ADDRESSES_MAX:
            raise IdentityError(f"{len(names)} addresses; at most {ADDRESSES_MAX}")
        for name in names:
            general_name(name)
        if site:
            check_site(site)
        split_address(address)
        expires = int((time.time() if now_s is None else now_s) + valid_s)
        token = Token(
            role=role,
            federation=check_federation(federation),
            address=address,
            authority=authority,
            id=os.urandom(_ID),
            secret=os.urandom(_SECRET),
            issuer=issuer,
        )
        known = _Known(role, hashlib.sha256(token.secret).digest(), expires, uses, names, site)
        with self.lock.held():
            self._refresh()
            self._compact(time.time() if now_s is None else now_s)
            if len(self._known) >= TOKENS_MAX:
                raise IdentityError(f"there are {TOKENS_MAX} tokens already", "let some expire")
            self._ledger.append(known.entry(token.id))
            self._known[token.id] = known
        return token, expires

    def redeem(
        self, token: Token, role: Role, key: bytes, *, now_s: float | None = None
    ) -> Admission:
        """Lets a key in by a token, and writes down that it did, before anything is given to it.

        role: what the node wants to be. key: its public key. Raises TokenError.
        """
        now = time.time() if now_s is None else now_s
        shown = hashlib.sha256(token.secret).digest()
        mark = hashlib.sha256(key).hexdigest()
        with self.lock.held():
            self._refresh()
            known = self._known.get(token.id)
            # Compared even where there is none, so that time does not reveal which ids exist.
            same = hmac.compare_digest(shown, known.hash if known else bytes(len(shown)))
            if known is None or not same:
                raise TokenError("there is no such token")
            if now >= known.expires:
                raise TokenError("the token has expired")
            if role is not known.role:
                raise TokenError(f"the token is for a node of the role {known.role.value}")
            if mark in known.keys:
                return Admission(token.id, known.addresses, known.keys[mark], known.site)
            if len(known.keys) >= known.uses:
                raise TokenError("the token was used before")
            self._ledger.append({"id": token.id.hex(), "key": mark})
            known.keys[mark] = None
            return Admission(token.id, known.addresses, None, known.site)

    def bind(self, id: bytes, key: bytes, number: int) -> None:
        """Records which number the key was given; durable on return."""
        if not 0 <= number <= NUMBER_MAX:
            raise IdentityError(f"{number} is no node's number")
        mark = hashlib.sha256(key).hexdigest()
        with self.lock.held():
            self._refresh()
            known = self._known.get(id)
            if known is not None:
                self._ledger.append({"id": id.hex(), "key": mark, "number": number})
                known.keys[mark] = number

    def open_tokens(self) -> list[dict[str, object]]:
        """The tokens that can still be used: id, role, expires, site, uses left. No secrets."""
        now = time.time()
        with self.lock.held():
            self._refresh()
            return [
                {
                    "id": id.hex(),
                    "role": known.role.value,
                    "expires": known.expires,
                    "site": known.site,
                    "uses_left": known.uses - len(known.keys),
                }
                for id, known in self._known.items()
                if known.expires > now and known.uses > len(known.keys)
            ]

    def _refresh(self) -> None:
        self._ledger.news(self._known.clear, self._take)

    def _take(self, entry: Entry) -> None:
        id = bytes.fromhex(entry["id"])
        if "hash" in entry:
            self._known[id] = _Known(
                Role(entry["role"]),
                bytes.fromhex(entry["hash"]),
                int(entry["expires"]),
                int(entry["uses"]),
                tuple(entry["addresses"]),
                str(entry.get("site", "")),
            )
        elif id in self._known:
            self._known[id].keys[entry["key"]] = entry.get("number")

    def _compact(self, now_s: float) -> None:
        """Rewrites the book without what has expired, when that is at least half."""
        live = {id: known for id, known in self._known.items() if known.expires > now_s}
        if len(live) * 2 >= len(self._known):
            return
        entries: list[Entry] = []
        for id, known in live.items():
            entries.append(known.entry(id))
            for mark, number in known.keys.items():
                used: Entry = {"id": id.hex(), "key": mark}
                entries.append(used if number is None else {**used, "number": number})
        self._ledger.rewrite(entries)
        self._known = live
