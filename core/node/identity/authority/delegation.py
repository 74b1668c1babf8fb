"""How an organisation gets an issuing authority.

Its own machine makes the key, the root signs a CA certificate for it, and the machine takes that
after comparing the root's fingerprint.

    organisation   request_authority(folder, ...)  -> request.pem         (key in the folder or HSM)
    root           Authority.delegate(request, site, domains) -> chain    (ca.pem, root.pem)
    organisation   accept_authority(folder, chain, fingerprint)

The root records in `authorities.jsonl` which number has which site and how many numbers of nodes it
may give out: all of them fit the deny list.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ..pki.certificates import (
    AUTHORITIES_MAX,
    CERTIFICATE_BYTES_MAX,
    ISSUED,
    MALFORMED,
    NUMBER_BITS,
    IdentityError,
    Role,
    authority_of,
    certificate_request,
    check_federation,
    check_issued,
    check_site,
    check_time,
    public_bytes,
)
from ..pki.hsm import KeyPlace
from ..pki.intermediate import IssuingFacts, read_issuing
from ..pki.ledger import Entry, FolderLock, Ledger, private_folder, write_file
from ..pki.root_certificate import fingerprint_of
from . import authority_folder

DAY_S: Final = 24 * 3600
#: How long a CA certificate of an issuing authority lives.
LIFE_S: Final = 730 * DAY_S
#: Numbers that an issuing authority may give out to each role, by default. All that it may are in
#: reserve, and a federation has 2^22 in all: 42 authorities of this size.
NODES: Final = 1 << 15
#: Roles of which it gives out numbers.
ROLES: Final = len(ISSUED - {Role.AUTHORITY})
REQUEST: Final = "request.pem"


@dataclass(frozen=True, slots=True)
class Delegation:
    """What the root has delegated to an issuing authority."""

    number: int
    """From 1."""
    site: str
    """Of all its holders."""
    domains: tuple[str, ...]
    """Below which it names hosts, in addition to its own."""
    nodes: int
    """Numbers that it may give out to each role."""
    not_after: int
    """End of its newest CA certificate, Unix time in seconds."""

    @property
    def reserved(self) -> int:
        """Numbers that it may give out to all roles."""
        return self.nodes * ROLES

    def may_name(self, role: Role, number: int) -> bool:
        """Whether it may give a holder this name."""
        if authority_of(role, number) != self.number:
            return False
        return role is Role.AUTHORITY or 0 < number - (self.number << NUMBER_BITS) <= self.nodes


class Delegations:
    """The issuing authorities of a root, in one file of its folder. Hold the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self._ledger = Ledger(folder / "authorities.jsonl")
        self._all: dict[int, Delegation] = {}

    def refresh(self) -> None:
        """Reads what other processes have added. Raises IdentityError when the file is damaged."""
        self._ledger.news(self._all.clear, self._take)

    def all(self) -> list[Delegation]:
        """In order of their numbers."""
        return [self._all[number] for number in sorted(self._all)]

    def of(self, number: int) -> Delegation | None:
        """What an authority was given last; None: the number was never given out."""
        return self._all.get(number)

    def reserved(self) -> int:
        """Numbers that issuing authorities may give out in all."""
        return sum(one.reserved for one in self._all.values())

    def next(self, above: int) -> int:
        """A number that no authority has had, and above `above`.

        Raises IdentityError when there is none.
        """
        number = max(above, *self._all, 0) + 1
        if number > AUTHORITIES_MAX:
            raise IdentityError(f"{AUTHORITIES_MAX} issuing authorities were made: no more")
        return number

    def add(self, made: Delegation) -> None:
        """Durable on return."""
        entry = asdict(made)
        self._ledger.append(entry)
        self._take(entry)

    def _take(self, entry: Entry) -> None:
        found = Delegation(
            number=int(entry["number"]),
            site=str(entry["site"]),
            domains=tuple(map(str, entry["domains"])),
            nodes=int(entry["nodes"]),
            not_after=int(entry["not_after"]),
        )
        self._all[found.number] = found


# ---------------------------------------------------------------- the organisation's machine


def request_authority(
    folder: Path, federation: str, site: str, token: KeyPlace | None = None
) -> bytes:
    """Makes the key of an issuing authority, and the request for its certificate.

    PKCS #10, PEM; it is in `request.pem` too. A folder that has a key gives a request for that.
    token: where the key is made; None: in the folder. Raises IdentityError.
    """
    wanted = {"federation": check_federation(federation), "site": check_site(site), "request": True}
    private_folder(folder)
    with FolderLock(folder).held():
        if not (folder / authority_folder.FACTS).exists() and not authority_folder.has_key(folder):
            authority_folder.write_facts(folder, wanted)
        kept = authority_folder.read_facts(folder)
        if kept != {"format": kept["format"], **wanted}:
            raise IdentityError(f"{folder} holds another authority", "name another folder")
        if not authority_folder.has_key(folder):
            authority_folder.write_key(folder, token)
        request = certificate_request(authority_folder.load_folder_key(folder))
        write_file(folder / REQUEST, request)
    return request


def accept_authority(folder: Path, chain: bytes, fingerprint: str) -> IssuingFacts:
    """Takes the root's answer to a request, or to a later one of the same authority.

    Durable on return. chain: PEM, the authority's CA certificate and then the root's. fingerprint:
    SHA-256 of the root's certificate, in hexadecimal, as its operator said it by another way.
    Raises IdentityError and changes nothing where it does not fit.
    """
    certificate, root = _answer(chain)
    found = fingerprint_of(root).replace(":", "")
    if fingerprint.replace(":", "").strip().upper() != found:
        raise IdentityError(
            f"the root's fingerprint is {fingerprint_of(root)}, not the one that was given",
            "ask the root's operator for it by another way: delian ca show",
        )
    check_issued(root, root)
    issuing = read_issuing(certificate, root)
    for one in (certificate, root):
        check_time(one)
    with FolderLock(folder).held():
        facts = authority_folder.read_facts(folder)
        if (facts.get("federation"), facts.get("site")) != (issuing.federation, issuing.site):
            raise IdentityError(
                f"the certificate is for the site {issuing.site} of {issuing.federation}",
                f"this folder asked for {facts.get('site')} of {facts.get('federation')}",
            )
        key = authority_folder.load_folder_key(folder).public_key()
        if public_bytes(key) != public_bytes(authority_folder.p256(certificate)):
            raise IdentityError("the certificate is for another key than this folder's")
        before = authority_folder.superior_of(folder)
        if before is not None and before != root:
            raise IdentityError("the certificate is of another root than this authority's")
        if (folder / authority_folder.CERTIFICATE).exists():
            pem = (folder / authority_folder.CERTIFICATE).read_bytes()
            own = read_issuing(x509.load_pem_x509_certificate(pem), root)
            if own.number != issuing.number:
                raise IdentityError(f"the certificate is authority-{issuing.number}'s")
        write_file(folder / authority_folder.ROOT, root.public_bytes(Encoding.PEM))
        write_file(folder / authority_folder.CERTIFICATE, certificate.public_bytes(Encoding.PEM))
    return issuing


def _answer(chain: bytes) -> tuple[x509.Certificate, x509.Certificate]:
    if len(chain) > CERTIFICATE_BYTES_MAX:
        raise IdentityError(f"an answer of {len(chain)} bytes is too large")
    try:
        found = x509.load_pem_x509_certificates(chain)
    except MALFORMED:
        raise IdentityError("the root's answer is no PEM of two certificates") from None
    if len(found) != 2:
        raise IdentityError(f"the root's answer has {len(found)} certificates, not two")
    return found[0], found[1]
