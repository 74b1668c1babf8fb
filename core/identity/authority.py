"""The federation's certificate authority: one key that signs who is who, and the list of names that
are revoked.

Its folder holds

    ca.key          the key, mode 0600; ca.token instead: where the key is (`hsm`)
    ca.pem          its certificate, which every node has
    authority.json  the federation's name
    issued.jsonl    one line a certificate that was given out
    log             an entry for each certificate, for good (`certificate_log`)
    denied.jsonl    one line a revocation (`revoked.Revocations`)
    numbers.jsonl   the last number of each role (`revoked.Numbers`)
    terms           what the federation asks of its runs, signed (`terms`)
    tokens.jsonl    who may still join (`tokens.TokenBook`)

A certificate is written down before it is given out, a revocation before it is answered, both under
one lock: nothing is issued to a name that is revoked, whichever way it was asked for, and what was
issued to it before is void by its name. Certificates that begin an hour before they are made have
one clock, the CA's. The list is signed again every hour (`deny_list`), so that nodes can tell its
age.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..ports import Node, Tier
from ..secagg.cohort import COHORT_MIN
from . import terms
from .certificate_log import CertificateLog
from .certificates import (
    ADDRESSES_MAX,
    OPERATORS,
    IdentityError,
    PeerIdentity,
    Role,
    addresses_of,
    authority_name,
    certificate_request,
    check_federation,
    check_issued,
    check_time,
    general_name,
    identity_of,
    is_reserved,
    key_pem,
    load_certificate,
    load_key,
    new_key,
    node_name,
    public_bytes,
    requested_key,
    subject_of,
    uri_of,
)
from .deny_list import FOR_GOOD, DenyList, SignedList, sign_list
from .hsm import FILE as TOKEN
from .hsm import KeyPlace, TokenKey
from .ledger import Entry, FolderLock, Ledger, private_folder, write_file
from .log import entry_of
from .revoked import SKIPPED, Numbers, Revocations, holder_of
from .root import BACKDATE_S, extended_usage, fingerprint_of, key_usage, root_certificate

DAY_S = 24 * 3600
LIFE_S = 30 * DAY_S
LIFE_S_MAX = 398 * DAY_S
AUTHORITY_LIFE_S = 3650 * DAY_S
KEPT_S = DAY_S  # how long after a certificate's end it is remembered: other clocks may be late
RESIGN_S = 3600  # the deny list is signed again after so long, when nothing has changed
#: Certificates of one name that have not ended. A node needs two; more are answers that were lost.
CERTIFICATES_MAX = 32

KEY, CERTIFICATE, FACTS = "ca.key", "ca.pem", "authority.json"
MOVING = "moving"  # says where the CA is moved to: the folder is shut
_FORMAT = 1
_NUMBERED = (Role.DEVICE, Role.EDGE, *OPERATORS)  # roles of many holders
_SINGLE = (Role.CLOUD, Role.AUTHORITY)  # roles of one holder, whose number is 0


@dataclass(frozen=True, slots=True)
class Issued:
    """What a node is given. chain: PEM, the certificate and then the CA's."""

    identity: PeerIdentity
    chain: bytes
    renew_after_s: int


class Revoked(IdentityError):
    """The name was revoked: it gets no certificate any more."""


class TooMany(IdentityError):
    """A name has as many certificates as it may have; some must end first."""


class Authority:
    """A CA that is open. Several processes may have the same folder open."""

    def __init__(self, folder: Path) -> None:
        """Opens what `create` made; raises IdentityError."""
        self.folder = folder
        self.lock = FolderLock(folder)
        self._key, self.certificate, self.federation = _load(folder)
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM)
        self._issued_file = Ledger(folder / "issued.jsonl")
        self._revoked = Revocations(folder)
        self._numbers = Numbers(folder)
        self.log = CertificateLog(folder, self.lock, self.federation, self.sign, self.key)
        self._issued: list[Entry] = []
        self._logged = 0  # entries that the log has at least
        self._ends: dict[str, list[int]] = {}  # name -> the ends of its certificates
        self._list = DenyList()
        self._listed_at: tuple[int, ...] = (-1,)
        self._signed: tuple[int, int, SignedList] | None = None  # version, when, the list
        with self.lock.held():
            self._compact(time.time())

    @classmethod
    def create(
        cls,
        folder: Path,
        federation: str,
        *,
        life_s: int = AUTHORITY_LIFE_S,
        token: KeyPlace | None = None,
    ) -> Authority:
        """Makes a key and a root certificate; raises IdentityError where there is one already.
        token: where the key is made; None: in the folder.
        """
        check_federation(federation)
        private_folder(folder)
        with FolderLock(folder).held():
            for name in (KEY, TOKEN, CERTIFICATE, FACTS):
                if (folder / name).exists():
                    raise IdentityError(
                        f"{folder} holds a CA already",
                        "name another folder; a new CA in its place would shut every node out",
                    )
            key = new_key() if token is None else TokenKey.generate(token)
            certificate = root_certificate(key, federation, life_s)
            if token is None:
                write_file(folder / KEY, key_pem(key), 0o600)
            else:
                token.store(folder)
            write_file(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
            facts = {"format": _FORMAT, "federation": federation}
            write_file(folder / FACTS, json.dumps(facts).encode() + b"\n")
        made = cls(folder)
        # No more than the protocol itself asks for; `delian ca init` publishes stricter ones.
        least = terms.made(
            federation,
            now_s=0,
            masks_required=False,
            cohort_min=COHORT_MIN,
            corrupt=0.0,
            log_required=False,
        )
        terms.publish(folder, made.sign, least)
        return made

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the root certificate, for people to compare."""
        return fingerprint_of(self.certificate)

    @property
    def public(self) -> bytes:
        """The CA's public key in 33 bytes, which tokens carry."""
        return public_bytes(_p256(self.certificate))

    @property
    def key(self) -> ec.EllipticCurvePublicKey:
        """The CA's public key."""
        return _p256(self.certificate)

    def sign(self, message: bytes) -> bytes:
        """The CA's signature of a statement that is no certificate: ECDSA P-256, SHA-256, DER. The
        message begins with a domain of its own.
        """
        return self._key.sign(message, ec.ECDSA(hashes.SHA256()))

    # ------------------------------------------------------------ issuing

    def issue(
        self,
        request: bytes,
        role: Role,
        number: int,
        *,
        addresses: Iterable[str] = (),
        site: str = "",
        life_s: int = LIFE_S,
        now_s: float | None = None,
    ) -> Issued:
        """A certificate for the key of a request (PKCS #10, PEM), whose sender must have signed it.

        addresses: where a server is reached, beside the DNS name that is its identity. site: of a
        node or an owner. Raises
        Revoked when the name was revoked, TooMany when it has CERTIFICATES_MAX certificates that
        have not ended, and IdentityError.
        """
        now = time.time() if now_s is None else now_s
        names: list[x509.GeneralName] = []
        if role in (Role.EDGE, Role.CLOUD):
            names = self._server_names(Node(Tier(role.value), number), addresses)
        elif role is Role.AUTHORITY:
            names = [x509.DNSName(authority_name(self.federation)), *self._addresses(addresses)]
        elif tuple(addresses):
            raise IdentityError(f"a certificate of a {role} carries no addresses")
        names.insert(0, x509.UniformResourceIdentifier(uri_of(self.federation, role, number)))
        certificate = self._sign(
            requested_key(request),
            subject_of(self.federation, f"{role.value}-{number}", site),
            names,
            extended_usage(role),
            (life_s, now, self._begin(role, number, now)),
        )
        identity = identity_of(certificate)
        self._write_down(certificate, identity, now)
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        renew_after = int(life.total_seconds() - BACKDATE_S) * 2 // 3
        return Issued(identity, self._chain(certificate), max(1, renew_after))

    def renew(
        self,
        request: bytes,
        shown: PeerIdentity,
        shown_certificate: bytes,
        *,
        life_s: int = LIFE_S,
        now_s: float | None = None,
    ) -> Issued:
        """A certificate with the names of the one that the peer has shown, for a new key. Raises
        what `issue` does, and IdentityError when that certificate is denied, has ended, or is not
        this CA's.
        """
        certificate = load_certificate(shown_certificate)
        check_issued(certificate, self.certificate)
        check_time(certificate, now_s)
        if identity_of(certificate) != shown or shown.federation != self.federation:
            raise IdentityError("the certificate is not the one that was shown")
        if self.denied().denies(shown):
            raise _revoked(shown.common_name)
        return self.issue(
            request,
            shown.tier,
            shown.number,
            addresses=addresses_of(certificate),
            site=shown.site,
            life_s=life_s,
            now_s=now_s,
        )

    def issue_server(
        self,
        request: bytes,
        addresses: Sequence[str],
        *,
        common_name: str = "broker",
        life_s: int = LIFE_S,
        now_s: float | None = None,
    ) -> bytes:
        """A certificate for a server that is no node, as an MQTT broker: it names addresses and
        nobody, so `identity_of` refuses it. PEM, with the CA's after it.
        """
        now = time.time() if now_s is None else now_s
        names = self._addresses(addresses)
        if not names:
            raise IdentityError("a server's certificate needs an address")
        certificate = self._sign(
            requested_key(request),
            subject_of(self.federation, common_name),
            names,
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
            (life_s, now, now - BACKDATE_S),
        )
        self._write_down(certificate, None, now)
        return self._chain(certificate)

    def _server_names(self, node: Node, addresses: Iterable[str]) -> list[x509.GeneralName]:
        own = [node_name(self.federation, node)]
        if node.tier is Tier.CLOUD:
            # The coordinator is a gathering edge too.
            own.append(node_name(self.federation, Node(Tier.EDGE, 0)))
        return [*map(x509.DNSName, own), *self._addresses(addresses)]

    @staticmethod
    def _addresses(addresses: Iterable[str]) -> list[x509.GeneralName]:
        given = list(addresses)
        if len(given) > ADDRESSES_MAX:
            raise IdentityError(f"{len(given)} addresses; at most {ADDRESSES_MAX}")
        if reserved := [name for name in given if is_reserved(name.lower())]:
            raise IdentityError(f"`{reserved[0]}` is a name that the CA itself hands out")
        return [general_name(address) for address in given]

    def _sign(
        self,
        key: ec.EllipticCurvePublicKey,
        subject: x509.Name,
        names: Sequence[x509.GeneralName],
        usage: x509.ExtendedKeyUsage,
        times: tuple[int, float, float],
    ) -> x509.Certificate:
        """times: how long it lives in seconds, now, and when it begins, in Unix time."""
        life_s, now_s, begins_s = times
        if not 0 < life_s <= LIFE_S_MAX:
            raise IdentityError(f"a certificate cannot live {life_s} s; at most {LIFE_S_MAX}")
        now = datetime.fromtimestamp(now_s, UTC).replace(microsecond=0)
        end = min(now + timedelta(seconds=life_s), self.certificate.not_valid_after_utc)
        if end <= now:
            raise IdentityError("the CA's own certificate has ended", "make a new federation")
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(_p256(self.certificate))
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(datetime.fromtimestamp(begins_s, UTC).replace(microsecond=0))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage(), critical=True)
            .add_extension(usage, critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(authority_key, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _chain(self, certificate: x509.Certificate) -> bytes:
        return certificate.public_bytes(serialization.Encoding.PEM) + self.pem

    def check_open(self, role: Role, number: int) -> int:
        """Raises Revoked when a name gets no certificate any more. Gives the Unix time at which its
        certificates begin at the earliest.
        """
        before = self.denied().names.get((role, number), 0)
        if before == FOR_GOOD:
            raise _revoked(f"{role.value}-{number}")
        return before

    def _begin(self, role: Role, number: int, now_s: float) -> float:
        """When a certificate of that holder begins: not before those that are void."""
        before = self.check_open(role, number)
        if before > now_s:
            raise IdentityError(
                "certificates of this holder are void until a time that has not come",
                "set this machine's clock: it was turned back",
            )
        return max(now_s - BACKDATE_S, before)

    def _write_down(
        self, certificate: x509.Certificate, holder: PeerIdentity | None, now_s: float
    ) -> None:
        """holder: None for a server that is no node."""
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        name = str(common)
        entry = {
            "serial": f"{certificate.serial_number:x}",
            "name": name,
            "not_after": int(certificate.not_valid_after_utc.timestamp()),
        }
        with self.lock.held():
            self._refresh()
            if holder is not None:
                if holder.not_before < self._revoked.before((holder.tier, holder.number)):
                    raise _revoked(name)
                if holder.tier not in _SINGLE:
                    live = self._ends[name] = [t for t in self._ends.get(name, ()) if t > now_s]
                    if len(live) >= CERTIFICATES_MAX:
                        raise TooMany(f"{name} has {len(live)} certificates that have not ended")
                    self._numbers.note(holder.tier, holder.number)
            entry["log"] = self.log.append(entry_of(certificate), self._logged)
            self._issued_file.append(entry)
            self._take_issued(entry)

    # ------------------------------------------------------------ numbers

    def last_number(self, role: Role) -> int:
        """The largest number of a role that this CA knows of; 0: there is none."""
        with self.lock.held():
            self._refresh()
            return self._numbers.last(role)

    def give_number(self, role: Role, number: int) -> None:
        """Gives a number out; durable on return. Raises IdentityError unless it is above all that
        were given out before.
        """
        with self.lock.held():
            self._refresh()
            self._numbers.give(role, number)

    def note_number(self, role: Role, number: int) -> None:
        """Remembers that a number is in use, whoever gave it out; durable on return."""
        with self.lock.held():
            self._refresh()
            self._numbers.note(role, number)

    def restored(self, *, now_s: float | None = None) -> dict[str, int]:
        """What must be done when this folder and the registry of nodes were both restored from an
        older copy: leaves out the numbers that were given out since, and raises the deny list's
        version above those that nodes have seen. Gives the last number of each role.
        """
        now = time.time() if now_s is None else now_s
        with self.lock.held():
            self._refresh()
            self._revoked.raise_version(now)
            for role in _NUMBERED:
                self._numbers.note(role, self._numbers.last(role) + SKIPPED)
            return {role.value: self._numbers.last(role) for role in _NUMBERED}

    def recall(self, listed: DenyList, *, now_s: float | None = None) -> None:
        """Revokes what a list of this CA's revokes that is newer than its own: the folder was
        restored from an older copy. listed: verified. Durable on return.
        """
        now = time.time() if now_s is None else now_s
        with self.lock.held():
            self._refresh()
            for (role, number), before in listed.names.items():
                if role not in _SINGLE:
                    self._numbers.note(role, number)
                self._revoked.add((role, number), before, "recalled", now)
            self._revoked.raise_version(max(now, listed.version + 1))

    # ------------------------------------------------------------ denying

    def revoke(
        self, name: str, why: str = "", *, now_s: float | None = None
    ) -> tuple[DenyList, bool]:
        """Voids every certificate of a holder, and gives it no other. name: its common name, as
        "device-5". The coordinator's ("cloud-0") and the authority's are void up to now, since they
        have no other name.
        Gives the list and whether it has changed; raises IdentityError when the name was never
        given out.
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
            before = int(now) - BACKDATE_S + 1 if holder[0] in _SINGLE else FOR_GOOD
            fresh = self._revoked.add(holder, before, why, now)
            return self.denied(), fresh

    def _is_known(self, role: Role, number: int) -> bool:
        if role in _SINGLE:
            return number == 0
        return 0 < number <= self._numbers.last(role)

    def denied(self) -> DenyList:
        """The newest list, whoever changed it. As quick as looking at a file's date while nobody
        does, so that a server can ask at each call.
        """
        mark = self._revoked.mark()
        if mark != self._listed_at:
            with self.lock.held():
                self._refresh()
                self._list = self._revoked.listed()
                self._listed_at = self._revoked.mark()
        return self._list

    def signed(self, *, now_s: float | None = None) -> SignedList:
        """The newest list under the CA's signature, at most RESIGN_S old."""
        now = time.time() if now_s is None else now_s
        with self.lock.held():
            listed = self.denied()
            known = self._signed
            if known is None or known[0] != listed.version or not 0 <= now - known[1] < RESIGN_S:
                made = sign_list(self._key, self.federation, listed, int(now))
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

    def _take_issued(self, entry: Entry) -> None:
        self._issued.append(entry)
        self._logged = max(self._logged, int(entry.get("log", -1)) + 1)
        self._ends.setdefault(entry["name"], []).append(int(entry["not_after"]))

    def _forget_issued(self) -> None:
        self._issued.clear()
        self._ends.clear()

    def _compact(self, now_s: float) -> None:
        """Rewrites the files without what has ended, when that is at least half, and brings a
        folder of before up to date.
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
            self._numbers.note(role, max([*mine, self._revoked.last(role)]))


# ---------------------------------------------------------------- parts


def _revoked(name: str) -> Revoked:
    return Revoked(f"{name} was revoked", "join again with a new token: it gets a new number")


def issue_to(
    authority: Authority,
    role: Role,
    number: int,
    addresses: Iterable[str] = (),
    *,
    site: str = "",
    now_s: float | None = None,
) -> tuple[bytes, Issued]:
    """Key (PEM) and certificate for a holder on the CA's own machine: the coordinator, an
    operator. site: of an owner.
    """
    key = new_key()
    request = certificate_request(key)
    issued = authority.issue(request, role, number, addresses=addresses, site=site, now_s=now_s)
    return key_pem(key), issued


def _check_stays(folder: Path) -> None:
    path = folder / MOVING
    if path.exists():
        raise IdentityError(
            f"the CA of {folder} is moved to another folder: {path} says where",
            "go on with: delian authority migrate COORDINATOR_STATE AUTHORITY_STATE",
        )


def _load(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate, str]:
    _check_stays(folder)
    try:
        key = _load_key(folder)
        certificate = load_certificate((folder / CERTIFICATE).read_bytes())
        facts = json.loads((folder / FACTS).read_bytes())
    except FileNotFoundError as error:
        missing = Path(error.filename).name
        raise IdentityError(
            f"{folder} holds no CA: there is no {missing}",
            f"make one with: delian ca init {folder} --federation NAME",
        ) from None
    except OSError as error:
        raise IdentityError(f"cannot read the CA in {folder}: {error.strerror}") from None
    except ValueError:
        raise IdentityError(f"{folder / FACTS} is damaged") from None
    if not isinstance(facts, dict) or facts.get("format") != _FORMAT:
        raise IdentityError(f"{folder / FACTS} is of another version of delian")
    if public_bytes(key.public_key()) != public_bytes(_p256(certificate)):
        raise IdentityError(f"the CA's key is not the key of {folder / CERTIFICATE}")
    return key, certificate, check_federation(str(facts.get("federation", "")))


def _load_key(folder: Path) -> ec.EllipticCurvePrivateKey:
    if (folder / TOKEN).exists():
        return TokenKey(KeyPlace.load(folder))
    return load_key((folder / KEY).read_bytes())


def _p256(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("the CA's key is not a P-256 key")
    return key
