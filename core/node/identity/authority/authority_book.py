"""The records in an authority's folder.

What it has issued to which holder, the last numbers, and at the root the certificate log, the
revocations and the delegations of the whole federation.

Everything is decided and written under one lock. At an issuing authority the root, its `Superior`,
has the log and the revocations.
"""

from __future__ import annotations

import time
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from ..log.certificate_log import CertificateLog
from ..log.log_entries import entry_of
from ..pki.certificates import OPERATORS, IdentityError, PeerIdentity, Role, authority_of
from ..pki.chain import Chain
from ..pki.leaf_certificate import DAY_S
from ..pki.ledger import Entry, FolderLock, Ledger
from ..pki.root_certificate import BACKDATE_S
from .authority_folder import open_keys, p256
from .delegation import Delegations
from .deny_list import FOR_GOOD, DenyList, SignedList, sign_list
from .revoked import SKIPPED, Numbers, Revocations, holder_of
from .superior import NoSuperior, Superior

KEPT_S = DAY_S  # how long after a certificate's end it is remembered: other clocks may be late
RESIGN_S = 3600  # the deny list is signed again after so long, when nothing has changed
#: Certificates of one name that have not ended. A node needs two; more are answers that were lost.
CERTIFICATES_MAX = 32

_NUMBERED = (Role.DEVICE, Role.EDGE, *OPERATORS)  # roles of many holders
_SINGLE = (Role.CLOUD, Role.AUTHORITY)  # roles of one holder, whose number is 0


class Revoked(IdentityError):
    """The name was revoked: it gets no certificate any more."""


class TooMany(IdentityError):
    """A name has as many certificates as it may have; some must end first."""


class AuthorityBook:
    """The folder of an authority, open. Several processes may have the same folder open."""

    def __init__(self, folder: Path, superior: Superior | None = None) -> None:
        """Opens what `create` or `delegation.accept_authority` made.

        superior: of an issuing authority; None: the folder is a root's, or is only read. Raises
        IdentityError.
        """
        self.folder = folder
        self.lock = FolderLock(folder)
        self._ca = open_keys(folder)
        self.certificate, self.root = self._ca.certificate, self._ca.root
        self.federation, self.issuing = self._ca.federation, self._ca.issuing
        #: Number and site of an issuing authority; the root: 0 and "".
        self.number, self.site = (
            (0, "") if self.issuing is None else (self.issuing.number, self.issuing.site)
        )
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM)
        self.root_pem = self.root.public_bytes(serialization.Encoding.PEM)
        if superior is not None and self.issuing is None:
            raise IdentityError(f"{folder} is a root authority, which has none above it")
        self._superior = superior
        if superior is None and self.issuing is not None:
            self._superior = NoSuperior()
        self._issued_file = Ledger(folder / "issued.jsonl")
        self._revoked, self._delegations = Revocations(folder), Delegations(folder)
        self._numbers = Numbers(folder, self.number)
        self._log = CertificateLog(folder, self.lock, self.federation, self.sign, self.key)
        self._issued: list[Entry] = []
        self._logged = 0  # entries that the log has at least
        self._ends: dict[str, list[int]] = {}  # name -> the ends of its certificates
        self._list = DenyList()
        self._listed_at: tuple[int, ...] = (-1,)
        self._signed: tuple[int, int, SignedList] | None = None  # version, when, the list
        with self.lock.held():
            self._compact(time.time())

    @property
    def key(self) -> ec.EllipticCurvePublicKey:
        """This CA's public key."""
        return p256(self.certificate)

    @property
    def log(self) -> CertificateLog:
        """The certificate log. Raises IdentityError where the root has it."""
        if self.issuing is not None:
            raise IdentityError("an issuing authority has no certificate log: the root has it")
        return self._log

    def sign(self, message: bytes) -> bytes:
        """The CA's signature of a statement that is no certificate: ECDSA P-256, SHA-256, DER.

        The message begins with a domain of its own.
        """
        return self._ca.key.sign(message, ec.ECDSA(hashes.SHA256()))

    def check_log(self) -> None:
        """Raises LogError where the certificate log lacks entries that this folder has written.

        Call it before certificates or heads are sent. A folder without a log passes.
        """
        if self.issuing is None:
            with self.lock.held():
                self._refresh()
                self._log.check(self._logged)

    # ------------------------------------------------------------ issued

    def check_open(self, role: Role, number: int) -> int:
        """Raises Revoked when a name gets no certificate any more.

        Gives the Unix time at which its certificates begin at the earliest.
        """
        listed = self.denied()
        if listed.voids(role, number, FOR_GOOD - 1):
            raise was_revoked(f"{role.value}-{number}")
        return listed.names.get((role, number), 0)

    def _write_down(
        self, certificate: x509.Certificate, holder: PeerIdentity | None, now_s: float
    ) -> None:
        """holder: None for a server that is no node."""
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        entry: Entry = {
            "serial": f"{certificate.serial_number:x}",
            "name": str(common),
            "not_after": int(certificate.not_valid_after_utc.timestamp()),
        }
        with self.lock.held():
            self._check_room(entry["name"], holder, now_s, own=True)
            if self._superior is None:
                entry["log"] = self.log.append(entry_of(certificate), self._logged)
                return self._keep(entry, holder)
        # Without the lock: it is another machine. What is only in its log is not given out.
        self._superior.append(Chain(certificate, self.certificate).der)
        with self.lock.held():
            self._refresh()
            self._keep(entry, holder)

    def _check_room(
        self, name: str, holder: PeerIdentity | None, now_s: float, *, own: bool
    ) -> None:
        """Raises Revoked, and TooMany.

        own: this authority has signed the certificate. Servers of its own have no limit.
        """
        self._refresh()
        if holder is not None and self.denied().denies(holder):
            raise was_revoked(name)
        if not own or (holder is not None and holder.tier not in _SINGLE):
            live = self._ends[name] = [t for t in self._ends.get(name, ()) if t > now_s]
            if len(live) >= CERTIFICATES_MAX:
                raise TooMany(f"{name} has {len(live)} certificates that have not ended")

    def _keep(self, entry: Entry, holder: PeerIdentity | None) -> None:
        if holder is not None and holder.tier not in _SINGLE and holder.authority == self.number:
            self._numbers.note(holder.tier, holder.number)
        self._issued_file.append(entry)
        self._take_issued(entry)

    # ------------------------------------------------------------ numbers

    def last_number(self, role: Role) -> int:
        """The largest number of a role that this CA has given out; its lower bits are 0: none."""
        with self.lock.held():
            self._refresh()
            return self._numbers.last(role)

    def give_number(self, role: Role, number: int) -> None:
        """Gives a number out; durable on return.

        Raises IdentityError unless it is above all that were given out before.
        """
        with self.lock.held():
            self._refresh()
            self._numbers.give(role, number, self._delegations.reserved())

    def note_number(self, role: Role, number: int) -> None:
        """Records that a number is in use, whatever authority assigned it; durable on return."""
        with self.lock.held():
            self._refresh()
            self._numbers.note(role, number)

    def restored(self, *, now_s: float | None = None) -> dict[str, int]:
        """Repairs this folder after it and the registry of nodes were restored from older copies.

        Leaves out the numbers that were assigned since, and raises the deny list's version above
        those that nodes have seen. Gives the last number of each role.
        """
        now = time.time() if now_s is None else now_s
        with self.lock.held():
            self._refresh()
            if self._superior is None:
                self._revoked.raise_version(now)
            for role in _NUMBERED:
                self._numbers.note(role, self._numbers.last(role) + SKIPPED)
            return {role.value: self._numbers.last(role) for role in _NUMBERED}

    def recall(self, listed: DenyList, *, now_s: float | None = None) -> None:
        """Revokes what a list of this CA's revokes that is newer than its own.

        The folder was restored from an older copy. listed: verified. Durable on return.
        """
        now = time.time() if now_s is None else now_s
        with self.lock.held():
            self._refresh()
            for (role, number), before in listed.names.items():
                if role not in _SINGLE and authority_of(role, number) == self.number:
                    self._numbers.note(role, number)
                self._revoked.add((role, number), before, "recalled", now)
            self._revoked.raise_version(max(now, listed.version + 1))

    # ------------------------------------------------------------ denying

    def revoke(
        self, name: str, why: str = "", *, now_s: float | None = None
    ) -> tuple[DenyList, bool]:
        """Voids every certificate of a holder, and gives it no other.

        name: its common name, as "device-5". The coordinator's ("cloud-0") and the authority's are
        void up to now, since they have no other name. Gives the list and whether it has changed;
        raises IdentityError when the name was never given out.
        """
        now = time.time() if now_s is None else now_s
        holder = holder_of(name)
        with self.lock.held():
            self._refresh()
            if holder is None or not self._is_known(*holder):
                raise IdentityError(
                    f"no certificate of `{name[:80]}` is known here",
                    "name a node as device-5 or edge-2; after a restore from a backup, run"
                    " `delian ca restored` first",
                )
            if self._superior is None:
                before = int(now) - BACKDATE_S + 1 if _returns(*holder) else FOR_GOOD
                fresh = self._revoked.add(holder, before, why, now)
                return self.denied(), fresh
        return self._superior.revoke(name, why)

    def _is_known(self, role: Role, number: int) -> bool:
        authority = authority_of(role, number)
        if authority != self.number:
            delegated = None if self.issuing else self._delegations.of(authority)
            return delegated is not None and delegated.may_name(role, number)
        if role in _SINGLE:
            return role is Role.AUTHORITY or number == 0
        return self._numbers.first <= number <= self._numbers.last(role)

    def denied(self) -> DenyList:
        """The newest list, whatever process changed it.

        As quick as looking at a file's date while it is unchanged, so that a server can ask at each
        call.
        """
        if self._superior is not None:
            return self._superior.denied()
        mark = self._revoked.mark()
        if mark != self._listed_at:
            with self.lock.held():
                self._refresh()
                self._list = self._revoked.listed()
                self._listed_at = self._revoked.mark()
        return self._list

    def signed(self, *, now_s: float | None = None) -> SignedList:
        """The newest list under the CA's signature, at most RESIGN_S old.

        Raises IdentityError at an issuing authority: the root signs it.
        """
        if self.issuing is not None:
            raise IdentityError("an issuing authority signs no deny list: the root does")
        now = time.time() if now_s is None else now_s
        with self.lock.held():
            listed = self.denied()
            known = self._signed
            if known is None or known[0] != listed.version or not 0 <= now - known[1] < RESIGN_S:
                made = sign_list(self._ca.key, self.federation, listed, int(now))
                known = self._signed = listed.version, int(now), made
            return known[2]

    def issued(self) -> list[Entry]:
        """What was given out and has not ended: serial, name, not_after."""
        with self.lock.held():
            self._refresh()
            return list(self._issued)

    def _refresh(self) -> None:
        self._issued_file.news(self._forget_issued, self._take_issued)
        self._revoked.refresh()
        self._numbers.refresh()
        self._delegations.refresh()

    def _take_issued(self, entry: Entry) -> None:
        self._issued.append(entry)
        self._logged = max(self._logged, int(entry.get("log", -1)) + 1)
        self._ends.setdefault(entry["name"], []).append(int(entry["not_after"]))

    def _forget_issued(self) -> None:
        self._issued.clear()
        self._ends.clear()

    def _compact(self, now_s: float) -> None:
        """Rewrites the files without what has ended, when that is at least half.

        Also brings a folder of an earlier version up to date.
        """
        self._refresh()
        self._revoked.migrate(BACKDATE_S, now_s)
        self._note_numbers()
        self._numbers.compact()
        live = [e for e in self._issued if e["not_after"] + KEPT_S > now_s]
        if len(live) * 2 < len(self._issued):
            self._issued_file.rewrite(live)
            self._forget_issued()
            for entry in live:
                self._take_issued(entry)

    def _note_numbers(self) -> None:
        """Notes the numbers that the other files know of: numbers.jsonl may be new, or lost."""
        used = {holder_of(e["name"]) for e in self._issued}
        for role in _NUMBERED:
            mine = [holder[1] for holder in used if holder is not None and holder[0] is role]
            mine += self._revoked.numbers(role)
            mine = [number for number in mine if authority_of(role, number) == self.number]
            self._numbers.note(role, max(mine, default=0))


def _returns(role: Role, number: int) -> bool:
    """Whether a revoked name gets certificates again: its holder can have no other name."""
    return role in _SINGLE and number == 0


def was_revoked(name: str) -> Revoked:
    """The error for a node that was revoked."""
    return Revoked(f"{name} was revoked", "join again with a new token: it gets a new number")
