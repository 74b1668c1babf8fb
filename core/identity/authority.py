"""The federation's certificate authority: one key that signs who is who, and the list of those who
are trusted no more.

Its folder holds

    ca.key          the key, mode 0600
    ca.pem          its certificate, which every node has
    authority.json  the federation's name
    issued.jsonl    one line a certificate that was given out
    denied.jsonl    one line a certificate that was revoked before its end
    tokens.jsonl    who may still join (`tokens.TokenBook`)

A certificate is written down before it is given out, a revocation before it is answered, both under
one lock: a certificate that is renewed while its holder is being revoked is either refused or
revoked with the others. Certificates live 30 days, so the deny list stays short: what has ended
leaves it. Each change of the list has a version, and the list is always handed out whole. Versions
are Unix time where that is higher than the one before: a CA that was restored from a backup does
not give another list the version of one that edges have.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..ports import Node, Tier
from .certificates import (
    ADDRESSES_MAX,
    IdentityError,
    PeerIdentity,
    Role,
    certificate_request,
    check_federation,
    check_issued,
    check_time,
    extended_usage,
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
    uri_of,
)
from .ledger import Entry, FolderLock, Ledger, private_folder, write_file

DAY_S = 24 * 3600
LIFE_S = 30 * DAY_S
LIFE_S_MAX = 398 * DAY_S
AUTHORITY_LIFE_S = 3650 * DAY_S
BACKDATE_S = 3600  # a certificate begins before it is made: clocks of small devices are late
KEPT_S = DAY_S  # how long after a certificate's end it is remembered: other clocks may be late
DENIED_MAX = 100_000  # 22 bytes each in one message: 2.2 MB of the 4 that gRPC takes

#: Serial numbers have 159 random bits.
_SERIAL = re.compile(r"[0-9a-f]{24,40}")

KEY, CERTIFICATE, FACTS = "ca.key", "ca.pem", "authority.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Issued:
    """What a node is given. chain: PEM, the certificate and then the CA's."""

    identity: PeerIdentity
    chain: bytes
    renew_after_s: int


@dataclass(frozen=True, slots=True)
class DenyList:
    """Serial numbers of certificates that are trusted no more."""

    version: int = 0
    serials: frozenset[int] = frozenset()


class Authority:
    """A CA that is open. Several processes may have the same folder open."""

    def __init__(self, folder: Path) -> None:
        """Opens what `create` made; raises IdentityError."""
        self.folder = folder
        self.lock = FolderLock(folder)
        self._key, self.certificate, self.federation = _load(folder)
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM)
        self._issued_file = Ledger(folder / "issued.jsonl")
        self._denied_file = Ledger(folder / "denied.jsonl")
        self._issued: list[Entry] = []
        self._renewals: Counter[int] = Counter()  # serial number -> certificates that renewed it
        self._denied: dict[int, Entry] = {}
        self._version = 0
        self._list = DenyList()
        self._listed_at: tuple[int, ...] = (-1,)
        with self.lock.held():
            self._compact(time.time())

    @classmethod
    def create(cls, folder: Path, federation: str, *, life_s: int = AUTHORITY_LIFE_S) -> Authority:
        """Makes a key and a root certificate; raises IdentityError where there is one already."""
        check_federation(federation)
        private_folder(folder)
        with FolderLock(folder).held():
            for name in (KEY, CERTIFICATE, FACTS):
                if (folder / name).exists():
                    raise IdentityError(
                        f"{folder} holds a CA already",
                        "name another folder; a new CA in its place would shut every node out",
                    )
            key = new_key()
            certificate = _root(key, federation, life_s)
            write_file(folder / KEY, key_pem(key), 0o600)
            write_file(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
            facts = {"format": _FORMAT, "federation": federation}
            write_file(folder / FACTS, json.dumps(facts).encode() + b"\n")
        return cls(folder)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the root certificate, for people to compare."""
        return fingerprint_of(self.certificate)

    @property
    def public(self) -> bytes:
        """The CA's public key in 33 bytes, which tokens carry."""
        return public_bytes(_p256(self.certificate))

    # ------------------------------------------------------------ issuing

    def issue(
        self,
        request: bytes,
        role: Role,
        number: int,
        *,
        addresses: Iterable[str] = (),
        life_s: int = LIFE_S,
        renews: int | None = None,
        renewals_max: int | None = None,
        now_s: float | None = None,
    ) -> Issued:
        """A certificate for the key of a request (PKCS #10, PEM), whose sender must have signed it.

        addresses: where a server is reached, beside the DNS name that is its identity. renews: the
        serial number of the certificate that the holder has now; refused when it is denied, or when
        `renewals_max` certificates have renewed it. Raises IdentityError.
        """
        names: list[x509.GeneralName] = []
        if role in (Role.EDGE, Role.CLOUD):
            names = self._server_names(Node(Tier(role.value), number), addresses)
        elif tuple(addresses):
            raise IdentityError(f"a certificate of a {role} carries no addresses")
        names.insert(0, x509.UniformResourceIdentifier(uri_of(self.federation, role, number)))
        certificate = self._sign(
            requested_key(request),
            f"{role.value}-{number}",
            names,
            extended_usage(role),
            (life_s, time.time() if now_s is None else now_s),
        )
        identity = identity_of(certificate)
        self._write_down(certificate, renews, renewals_max)
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
        renewals_max: int | None = None,
        now_s: float | None = None,
    ) -> Issued:
        """A certificate with the names of the one that the peer has shown, for a new key. Raises
        IdentityError when that one is denied, has ended, is not this CA's, or was renewed
        `renewals_max` times.
        """
        certificate = load_certificate(shown_certificate)
        check_issued(certificate, self.certificate)
        check_time(certificate, now_s)
        if identity_of(certificate) != shown or shown.federation != self.federation:
            raise IdentityError("the certificate is not the one that was shown")
        return self.issue(
            request,
            shown.tier,
            shown.number,
            addresses=addresses_of(certificate),
            life_s=life_s,
            renews=shown.serial,
            renewals_max=renewals_max,
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
        names = self._addresses(addresses)
        if not names:
            raise IdentityError("a server's certificate needs an address")
        certificate = self._sign(
            requested_key(request),
            common_name,
            names,
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
            (life_s, time.time() if now_s is None else now_s),
        )
        self._write_down(certificate, None)
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
        common_name: str,
        names: Sequence[x509.GeneralName],
        usage: x509.ExtendedKeyUsage,
        times: tuple[int, float],
    ) -> x509.Certificate:
        life_s, now_s = times
        if not 0 < life_s <= LIFE_S_MAX:
            raise IdentityError(f"a certificate cannot live {life_s} s; at most {LIFE_S_MAX}")
        now = datetime.fromtimestamp(now_s, UTC).replace(microsecond=0)
        end = min(now + timedelta(seconds=life_s), self.certificate.not_valid_after_utc)
        if end <= now:
            raise IdentityError("the CA's own certificate has ended", "make a new federation")
        authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(_p256(self.certificate))
        return (
            x509.CertificateBuilder()
            .subject_name(_subject(self.federation, common_name))
            .issuer_name(self.certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(seconds=BACKDATE_S))
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(), critical=True)
            .add_extension(usage, critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(authority_key, critical=False)
            .sign(self._key, hashes.SHA256())
        )

    def _chain(self, certificate: x509.Certificate) -> bytes:
        return certificate.public_bytes(serialization.Encoding.PEM) + self.pem

    def _write_down(
        self,
        certificate: x509.Certificate,
        renews: int | None,
        renewals_max: int | None = None,
    ) -> None:
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
        entry = {
            "serial": f"{certificate.serial_number:x}",
            "name": str(common),
            "not_after": int(certificate.not_valid_after_utc.timestamp()),
        }
        if renews is not None:
            entry["renews"] = f"{renews:x}"
        with self.lock.held():
            self._refresh()
            if renews is not None and renews in self._denied:
                raise IdentityError("the certificate was revoked", "join again with a new token")
            if renewals_max is not None and self._renewals[renews or 0] >= renewals_max:
                raise IdentityError(f"the certificate was renewed {renewals_max} times already")
            self._issued_file.append(entry)
            self._take_issued(entry)

    # ------------------------------------------------------------ denying

    def revoke(
        self, name: str, why: str = "", *, now_s: float | None = None
    ) -> tuple[DenyList, int]:
        """Denies every certificate of a holder that has not ended. name: its common name, as
        "device-5", or a serial number in hexadecimal, also of a certificate that is not written
        down here any more. Gives the list and how many are new in it; raises IdentityError when
        nothing was ever issued to that name.
        """
        now = time.time() if now_s is None else now_s
        with self.lock.held():
            self._refresh()
            wanted = name.lower()
            found = [e for e in self._issued if wanted in (e["name"], e["serial"])]
            # Those that one of them renewed, and that are not written down here any more: such a
            # one ends before what renewed it.
            known = {e["serial"] for e in self._issued}
            found += [
                {"serial": e["renews"], "name": e["name"], "not_after": e["not_after"]}
                for e in found
                if e.get("renews", e["serial"]) not in known
            ]
            if not found and _SERIAL.fullmatch(wanted):
                # Given out after the backup that this folder was restored from: who knows until
                # when.
                ends = int(now) + LIFE_S_MAX
                found = [{"serial": wanted.lstrip("0"), "name": "unknown", "not_after": ends}]
            if not found:
                raise IdentityError(
                    f"no certificate of `{name[:80]}` is known here",
                    "name a node as device-5 or edge-2, or a serial number",
                )
            fresh = [
                e
                for e in found
                if e["not_after"] + KEPT_S > now and int(e["serial"], 16) not in self._denied
            ]
            if len(self._denied) + len(fresh) > DENIED_MAX:
                raise IdentityError(f"the deny list is full ({DENIED_MAX} certificates)")
            for e in fresh:
                version = self._next_version(now)
                entry = {**e, "version": version, "why": why[:256], "at": int(now)}
                self._denied_file.append(entry)
                self._take_denied(entry)
            return self.denied(), len(fresh)

    def denied(self) -> DenyList:
        """The newest list, whoever changed it. As quick as looking at a file's date while nobody
        does, so that a server can ask at each call.
        """
        mark = self._denied_file.mark()
        if mark != self._listed_at:
            with self.lock.held():
                self._refresh()
                self._list = DenyList(self._version, frozenset(self._denied))
                self._listed_at = mark
        return self._list

    def is_denied(self, serial: int) -> bool:
        return serial in self.denied().serials

    def issued(self) -> list[Entry]:
        """What was given out and has not ended: serial, name, not_after."""
        with self.lock.held():
            self._refresh()
            return list(self._issued)

    def _next_version(self, now_s: float) -> int:
        return max(self._version + 1, int(now_s))

    def _refresh(self) -> None:
        self._issued_file.news(self._forget_issued, self._take_issued)
        self._denied_file.news(self._forget_denied, self._take_denied)

    def _take_issued(self, entry: Entry) -> None:
        self._issued.append(entry)
        if "renews" in entry:
            self._renewals[int(entry["renews"], 16)] += 1

    def _forget_issued(self) -> None:
        self._issued.clear()
        self._renewals.clear()

    def _take_denied(self, entry: Entry) -> None:
        self._version = max(self._version, int(entry["version"]))
        if "serial" in entry:  # else it only keeps the version
            self._denied[int(entry["serial"], 16)] = entry

    def _forget_denied(self) -> None:
        self._denied.clear()

    def _compact(self, now_s: float) -> None:
        """Rewrites the files without what has ended, when that is at least half."""
        self._refresh()
        live = [e for e in self._issued if e["not_after"] + KEPT_S > now_s]
        if len(live) * 2 < len(self._issued):
            self._issued_file.rewrite(live)
            self._forget_issued()
            for entry in live:
                self._take_issued(entry)
        kept = {s: e for s, e in self._denied.items() if e["not_after"] + KEPT_S > now_s}
        if len(kept) < len(self._denied):
            self._version = self._next_version(now_s)
            self._denied_file.rewrite([{"version": self._version}, *kept.values()])
            self._denied = kept


# ---------------------------------------------------------------- parts


def addresses_of(certificate: x509.Certificate) -> list[str]:
    """The addresses in a server's certificate, without the names that are identities."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [n for n in names.get_values_for_type(x509.DNSName) if not is_reserved(n)]
    return [*hosts, *map(str, names.get_values_for_type(x509.IPAddress))]


def fingerprint_of(certificate: x509.Certificate) -> str:
    """SHA-256 of a certificate, in hexadecimal with colons as openssl prints it."""
    digest = hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
    return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2)).upper()


def serial_bytes(serial: int) -> bytes:
    """A serial number as DeniedList carries it: big-endian, as short as it goes."""
    return serial.to_bytes(max(1, (serial.bit_length() + 7) // 8), "big")


def issue_to(
    authority: Authority,
    role: Role,
    number: int,
    addresses: Iterable[str] = (),
    *,
    now_s: float | None = None,
) -> tuple[bytes, Issued]:
    """Key (PEM) and certificate for a holder on the CA's own machine: the coordinator, an
    operator.
    """
    key = new_key()
    request = certificate_request(key)
    issued = authority.issue(request, role, number, addresses=addresses, now_s=now_s)
    return key_pem(key), issued


def _load(folder: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate, str]:
    try:
        key = load_key((folder / KEY).read_bytes())
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
        raise IdentityError(f"{folder / KEY} is not the key of {folder / CERTIFICATE}")
    return key, certificate, check_federation(str(facts.get("federation", "")))


def _p256(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError("the CA's key is not a P-256 key")
    return key


def _subject(federation: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, federation),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _root(key: ec.EllipticCurvePrivateKey, federation: str, life_s: int) -> x509.Certificate:
    now = datetime.now(UTC).replace(microsecond=0)
    name = _subject(federation, "delian CA")
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(seconds=BACKDATE_S))
        .not_valid_after(now + timedelta(seconds=life_s))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )


def _key_usage(signs: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
