"""Approval by a second person of a token that lets many nodes in.

An admin's certificate alone must not enrol a majority of sybils. So the coordinator makes a token
for many only with an approval: a statement of what is asked for, signed offline by another admin.

    admin-1$ delian token --uses 500 --request wanted.json    names the request and its maker
    admin-2$ delian approve wanted.json                       shows it, adds a signature
    admin-1$ delian token --approval wanted.json              the coordinator checks it, once

    {"request": {"federation", "requester", "tier", "site", "uses", "valid_s", "nonce", "expires"},
     "certificate": base64 of DER, "signature": hexadecimal}

The signature is ECDSA P-256 with SHA-256, with the key of the approver's certificate, over
"delian/token-approval/v1" and the request as JSON with sorted keys and without spaces. The
coordinator takes an approval when the certificate is an admin's, is valid and not denied, the
approver is not the requester, the caller is, the approval has not expired, and its nonce was never
used. Nonces are durable before the token is made: a crash in between costs the approval.

Tokens of few uses need no approval, but their sum in a day is limited too (`TokenLimits`), for each
site. An owner of a site asks for tokens of that site alone, and needs an admin's approval for many.
The holder of the CA's key needs neither: `delian token --ca` asks no coordinator.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from ....protocol.ports import Tier
from ..pki.certificates import (
    ADMINS,
    CERTIFICATE_BYTES_MAX,
    IdentityError,
    PeerIdentity,
    Role,
    TlsMaterial,
    check_federation,
    check_site,
    load_key,
)
from ..pki.chain import chain_of_pem, read_chain
from ..pki.ledger import Entry, FolderLock, Ledger, private_folder
from ..pki.roles import Guard
from .authority import Authority
from .tokens import DAY_S, USES_MAX, VALID_S_MAX

log = logging.getLogger("delian.identity")

BYTES_MAX = 32 * 1024
#: How long a request may be approved and used.
LIFE_S = 3 * DAY_S
#: Uses of tokens for edges that need no approval: of one token, and of all in a day.
EDGE_USES, EDGE_USES_A_DAY = 1, 4
#: Entries of `TokenLimits` before those that count no more are left out.
ENTRIES_KEPT = 100
_DOMAIN = b"delian/token-approval/v1"
_NONCE = 16
_CURVE = ec.ECDSA(hashes.SHA256())
_NAME_MAX = 64
_TIERS = (Role.DEVICE.value, Role.EDGE.value)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A token that is asked for."""

    federation: str
    requester: str
    """Common name of the admin or owner that asks."""
    tier: str
    uses: int
    valid_s: int
    nonce: str
    """Hexadecimal."""
    expires: int
    """Unix time in seconds, of the request."""
    site: str = ""
    """Of the nodes; empty: none."""

    @classmethod
    def new(
        cls,
        requester: PeerIdentity,
        tier: Role,
        uses: int,
        valid_s: int,
        now_s: float,
        site: str = "",
    ) -> Wanted:
        """Raises IdentityError for what no token can be. site: an owner asks for the own one."""
        nonce = os.urandom(_NONCE).hex()
        who = (requester.federation, requester.common_name)
        site = site_for(requester, site)
        made = cls(*who, tier.value, uses, valid_s, nonce, int(now_s) + LIFE_S, site)
        return made.checked()

    def checked(self) -> Wanted:
        check_federation(self.federation)
        if self.site:
            check_site(self.site)
        numbers = (self.uses, self.valid_s, self.expires)
        good = (
            all(type(number) is int for number in numbers)
            and self.tier in _TIERS
            and 0 < self.uses <= USES_MAX
            and 0 < self.valid_s <= VALID_S_MAX
            and 0 < self.expires < 2**40
            and self.requester.isprintable()
            and len(self.requester) <= _NAME_MAX
            and len(bytes.fromhex(self.nonce)) == _NONCE
        )
        if not good:
            raise IdentityError("this asks for a token that cannot be", _limits())
        return self

    def signed_bytes(self) -> bytes:
        return _DOMAIN + json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Approval:
    """A request, with a signature once it is approved."""

    wanted: Wanted
    certificate: bytes = b""
    """DER, the approver's."""
    signature: bytes = b""

    @classmethod
    def parse(cls, content: bytes) -> Approval:
        """Of a file or message. Raises IdentityError."""
        try:
            if len(content) > BYTES_MAX:
                raise ValueError
            whole = json.loads(content)
            wanted = Wanted(**whole["request"])
            certificate = base64.b64decode(whole.get("certificate", ""), validate=True)
            signature = bytes.fromhex(whole.get("signature", ""))
            if set(whole) - {"request", "certificate", "signature"}:
                raise ValueError
            wanted.checked()
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error):
            raise IdentityError(
                "this is no request for a token", "make one with: delian token --request FILE"
            ) from None
        if len(certificate) > CERTIFICATE_BYTES_MAX:
            raise IdentityError("the approver's certificate is too large")
        return cls(wanted, certificate, signature)

    def content(self) -> bytes:
        """What `parse` reads."""
        whole: dict[str, Any] = {"request": asdict(self.wanted)}
        if self.signature:
            whole["certificate"] = base64.b64encode(self.certificate).decode()
            whole["signature"] = self.signature.hex()
        return json.dumps(whole, indent=1, sort_keys=True).encode() + b"\n"

    def approve(self, material: TlsMaterial, now_s: float) -> Approval:
        """The same, signed by an admin. Raises IdentityError where that would be of no use."""
        own = material.identity()
        if own.tier not in ADMINS:
            raise IdentityError(f"{own.common_name} is no admin", "an admin approves tokens")
        if own.federation != self.wanted.federation:
            raise IdentityError(f"the request is for the federation {self.wanted.federation}")
        if own.common_name == self.wanted.requester:
            raise IdentityError(
                "the operator that requests a token cannot approve it",
                "have another admin approve the request",
            )
        if now_s >= self.wanted.expires:
            raise IdentityError("the request has expired", "ask again: delian token --request FILE")
        certificate = chain_of_pem(material.certificate).der
        signature = load_key(material.key).sign(self.wanted.signed_bytes(), _CURVE)
        return Approval(self.wanted, certificate, signature)

    def check(
        self,
        authority: x509.Certificate,
        distrust: Callable[[PeerIdentity], str | None],
        requester: PeerIdentity,
        now_s: float,
    ) -> PeerIdentity:
        """The approver, if the approval holds for a call of `requester` now.

        Whether it was used is for `TokenLimits`. distrust: `roles.Guard.distrust`. Raises
        IdentityError.
        """
        wanted = self.wanted
        if not self.signature:
            raise IdentityError(
                "the request is not approved", "another admin signs it: delian approve FILE"
            )
        chain = read_chain(self.certificate)
        approver = chain.verify(authority, now_s)
        if (reason := distrust(approver)) is not None:
            raise IdentityError(f"the approver {approver.common_name} is not trusted: {reason}")
        if approver.tier not in ADMINS:
            raise IdentityError(f"the approver {approver.common_name} is no admin")
        key = chain.leaf.public_key()
        try:
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise InvalidSignature
            key.verify(self.signature, wanted.signed_bytes(), _CURVE)
        except InvalidSignature:
            raise IdentityError("the approval's signature does not hold") from None
        if wanted.federation != requester.federation:
            raise IdentityError("the approval is for another federation")
        if wanted.requester != requester.common_name:
            raise IdentityError(f"the approval is for {wanted.requester}")
        if approver.common_name == requester.common_name:
            raise IdentityError("the operator that requests a token cannot approve it")
        if now_s >= wanted.expires or wanted.expires > now_s + LIFE_S + DAY_S:
            raise IdentityError("the approval has expired", "ask again")
        return approver


@dataclass(frozen=True, slots=True)
class _Given:
    """A token that was made without an approval."""

    at: int
    """Unix time in seconds."""
    tier: str
    uses: int
    site: str

    def entry(self) -> Entry:
        return {**asdict(self)}


class TokenLimits:
    """How many nodes operators let in, in a CA's folder: used approvals, and uses without one.

    device_uses: of tokens for devices that need no approval, of one token and of all in a day.
    """

    def __init__(self, folder: Path, lock: FolderLock, device_uses: int) -> None:
        private_folder(folder)
        self._lock, self._device_uses = lock, device_uses
        self._ledger = Ledger(folder / "approvals.jsonl")
        self._nonces: dict[str, int] = {}
        self._given: list[_Given] = []
        self._entries = 0  # of the file

    def take(self, tier: Role, uses: int, now_s: float, site: str = "") -> None:
        """Counts a token without approval; durable on return.

        Sites are counted apart, so that no owner uses up what others may give out. Raises
        IdentityError beyond the limits.
        """
        now = int(now_s)
        most, a_day = (
            (EDGE_USES, EDGE_USES_A_DAY) if tier is Role.EDGE else (self._device_uses,) * 2
        )
        with self._lock.held():
            self._refresh(now)
            given = sum(g.uses for g in self._given if (g.tier, g.site) == (tier.value, site))
            if uses > most or given + uses > a_day:
                raise IdentityError(
                    f"a token of {uses} uses for a node of the role {tier.value} needs an approval:"
                    f" {most} of one token and {a_day} in a day do not, {given} were given out",
                    "delian token --request FILE; another admin: delian approve FILE;"
                    " delian token --approval FILE",
                )
            self._append(_Given(now, tier.value, uses, site).entry())

    def spend(self, wanted: Wanted, now_s: float) -> None:
        """Uses an approval up; durable on return. Raises IdentityError if it was used before."""
        with self._lock.held():
            self._refresh(int(now_s))
            if wanted.nonce in self._nonces:
                raise IdentityError("the approval was used before", "ask for another one")
            self._append({"nonce": wanted.nonce, "expires": wanted.expires})

    def _append(self, entry: Entry) -> None:
        self._ledger.append(entry)
        self._take(entry)

    def _refresh(self, now: int) -> None:
        """Reads what other processes wrote, and leaves out what counts no more.

        A nonce is kept as long as its approval could be taken.
        """
        self._ledger.news(self._clear, self._take)
        self._nonces = {nonce: end for nonce, end in self._nonces.items() if end > now - DAY_S}
        self._given = [one for one in self._given if now - DAY_S < one.at]
        left = len(self._nonces) + len(self._given)
        if self._entries > ENTRIES_KEPT and left * 2 < self._entries:
            entries: list[Entry] = [{"nonce": n, "expires": end} for n, end in self._nonces.items()]
            entries += [one.entry() for one in self._given]
            self._ledger.rewrite(entries)
            self._entries = left

    def _clear(self) -> None:
        self._nonces.clear()
        self._given.clear()
        self._entries = 0

    def _take(self, entry: Entry) -> None:
        self._entries += 1
        if "nonce" in entry:
            self._nonces[str(entry["nonce"])] = int(entry["expires"])
        else:
            site = str(entry.get("site", ""))
            given = _Given(int(entry["at"]), str(entry["tier"]), int(entry["uses"]), site)
            self._given.append(given)


def allow(
    limits: TokenLimits,
    authority: Authority,
    caller: PeerIdentity | None,
    asked: tuple[Role, int, int, str],
    approval: bytes,
    now_s: float | None = None,
) -> None:
    """Whether an operator may have a token.

    Within the limits, or with an approval, which is used up. asked: tier, uses, seconds that it is
    good, site (`site_for`). Raises IdentityError.
    """
    now = time.time() if now_s is None else now_s
    role, uses, valid_s, site = asked
    if not 0 < uses <= USES_MAX or not 0 < valid_s <= VALID_S_MAX:
        raise IdentityError("this asks for a token that cannot be", _limits())
    if not approval:
        limits.take(role, uses, now, site)
        return
    if caller is None:
        raise IdentityError("an approval needs certificates", "this coordinator has none")
    signed = Approval.parse(approval)
    guard = Guard(authority.federation, Tier.CLOUD, authority.denied, lambda: now)
    approver = signed.check(authority.certificate, guard.distrust, caller, now)
    wanted = signed.wanted
    if (wanted.tier, wanted.uses, wanted.valid_s, wanted.site) != (role.value, uses, valid_s, site):
        raise IdentityError("the approval is for another token")
    limits.spend(wanted, now)
    log.info("token approved", extra={"by": approver.common_name, "for": caller.common_name})


def site_for(caller: PeerIdentity | None, site: str) -> str:
    """The site of a token that an operator asks for: an owner's own, else the one that is named.

    Raises IdentityError where an owner asks for another.
    """
    if caller is None or caller.tier is not Role.OWNER:
        return check_site(site) if site else ""
    if site not in ("", caller.site):
        raise IdentityError(
            f"{caller.common_name} is an owner of the site {caller.site}, not of {site[:80]}",
            "an admin makes tokens for other sites",
        )
    return caller.site


def _limits() -> str:
    return f"1 to {USES_MAX} uses, at most {VALID_S_MAX // DAY_S} days, for devices or edges"
