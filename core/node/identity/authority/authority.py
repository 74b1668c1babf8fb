"""A certificate authority: it signs the certificates of nodes.

The root authority of a federation, or an issuing authority under it (`delegation`).

A folder holds

    ca.key, ca.pem  key and CA certificate; `authority_folder` has these and the rest of their kind
    issued.jsonl    one line a certificate that was given out
    numbers.jsonl   the last number of each role (`revoked.Numbers`)
    tokens.jsonl    tokens that can still be used (`tokens.TokenBook`)

and at the root, which has these for all authorities of the federation,

    log                an entry for each certificate, for good (`certificate_log`)
    denied.jsonl       one line a revocation (`revoked.Revocations`)
    authorities.jsonl  what was delegated to issuing authorities (`delegation.Delegations`)
    terms              what the federation asks of its runs, signed (`terms`)

An issuing authority asks the root, its `Superior`, to log each certificate before it gives it out,
and to revoke names. While the root is away it issues nothing.

A certificate is written down before it is given out, a revocation before it is answered, both under
one lock: nothing is issued to a name that is revoked, whichever way it was asked for, and what was
issued to it before is void by its name. Certificates that begin an hour before they are made have
one clock, the CA's. The list is signed again every hour (`deny_list`), so that nodes know its age.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from ....privacy.secagg.limits import COHORT_MIN
from ....protocol.ports import Node, Tier
from ..log.log_entries import entry_of, leaf_of, read_entry
from ..pki import certificates
from ..pki.chain import chain_of_pem, read_chain
from ..pki.hsm import KeyPlace
from ..pki.intermediate import facts_of, issuing_certificate, read_issuing
from ..pki.leaf_certificate import DAY_S, LIFE_S_MAX, address_names, server_names, signed_leaf
from ..pki.ledger import Entry, FolderLock, private_folder, write_file
from ..pki.root_certificate import BACKDATE_S, extended_usage, fingerprint_of, root_certificate
from . import terms
from .authority_book import AuthorityBook, was_revoked
from .authority_folder import CERTIFICATE, FACTS, p256, write_facts, write_key
from .authority_folder import has_key as holds_key
from .delegation import LIFE_S as DELEGATION_LIFE_S
from .delegation import NODES, ROLES, Delegation

LIFE_S = 30 * DAY_S
AUTHORITY_LIFE_S = 3650 * DAY_S
_ENTRIES_AT_ONCE = 4096  # of the log
VISIT_S = DAY_S  # life of a certificate that an issuing authority shows to the root


@dataclass(frozen=True, slots=True)
class Issued:
    """What a node is given."""

    identity: certificates.PeerIdentity
    chain: bytes
    """PEM, the certificate and those above it, up to the root's."""
    renew_after_s: int


class Authority(AuthorityBook):
    """A CA that is open, and what it signs. Several processes may have the same folder open."""

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
        certificates.check_federation(federation)
        private_folder(folder)
        with FolderLock(folder).held():
            if holds_key(folder) or any((folder / name).exists() for name in (CERTIFICATE, FACTS)):
                raise certificates.IdentityError(
                    f"{folder} holds a CA already",
                    "name another folder; a new CA in its place would shut every node out",
                )
            certificate = root_certificate(write_key(folder, token), federation, life_s)
            write_file(folder / CERTIFICATE, certificate.public_bytes(serialization.Encoding.PEM))
            write_facts(folder, {"federation": federation})
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
        return fingerprint_of(self.root)

    @property
    def root_public(self) -> bytes:
        """The root's public key in 33 bytes, which tokens carry."""
        return certificates.public_bytes(p256(self.root))

    @property
    def issuer_public(self) -> bytes:
        """An issuing authority's own public key in 33 bytes, which its tokens carry as well.

        Empty at the root.
        """
        return b"" if self.issuing is None else certificates.public_bytes(self.key)

    # ------------------------------------------------------------ issuing

    def issue(
        self,
        request: bytes,
        role: certificates.Role,
        number: int,
        *,
        addresses: Iterable[str] = (),
        site: str = "",
        life_s: int = LIFE_S,
        now_s: float | None = None,
    ) -> Issued:
        """A certificate for the key of a request (PKCS #10, PEM), whose sender must have signed it.

        addresses: where a server is reached, in addition to the DNS name that is its identity.
        site: of a node or an owner; an issuing authority's holders are of its own. Raises Revoked
        when the name was revoked, TooMany when it has CERTIFICATES_MAX certificates that have not
        ended, Away, and IdentityError.
        """
        now = time.time() if now_s is None else now_s
        names: list[x509.GeneralName] = []
        if role in (certificates.Role.EDGE, certificates.Role.CLOUD):
            node = Node(Tier(role.value), number)
            names = server_names(self.federation, node, addresses, self.issuing)
        elif role is certificates.Role.AUTHORITY:
            own = certificates.authority_name(self.federation, number)
            names = [x509.DNSName(own), *address_names(addresses, self.issuing)]
        elif tuple(addresses):
            raise certificates.IdentityError(f"a certificate of a {role} carries no addresses")
        names.insert(0, x509.UniformResourceIdentifier(self._uri(role, number)))
        if self.site and site not in ("", self.site):
            raise certificates.IdentityError(
                f"this authority names holders of the site {self.site} alone"
            )
        certificate = signed_leaf(
            self._ca,
            certificates.requested_key(request),
            certificates.subject_of(self.federation, f"{role.value}-{number}", self.site or site),
            names,
            extended_usage(role),
            (life_s, now, self._begin(role, number, now)),
        )
        identity = certificates.identity_of(certificate)
        self._write_down(certificate, identity, now)
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        renew_after = int(life.total_seconds() - BACKDATE_S) * 2 // 3
        return Issued(identity, self._chain(certificate), max(1, renew_after))

    def renew(
        self,
        request: bytes,
        shown: certificates.PeerIdentity,
        shown_certificate: bytes,
        *,
        life_s: int = LIFE_S,
        now_s: float | None = None,
    ) -> Issued:
        """A certificate with the names of the one that the peer has shown, for a new key.

        Raises what `issue` does, and IdentityError when that certificate is denied, has ended, or
        is not this CA's.
        """
        pem = shown_certificate.startswith(b"-----BEGIN")
        chain = (chain_of_pem if pem else read_chain)(shown_certificate)
        if chain.verify(self.root, now_s) != shown or shown.federation != self.federation:
            raise certificates.IdentityError("the certificate is not the one that was shown")
        if shown.authority != self.number:
            raise certificates.IdentityError(
                f"authority {shown.authority} renews {shown.common_name}"
            )
        if self.denied().denies(shown):
            raise was_revoked(shown.common_name)
        return self.issue(
            request,
            shown.tier,
            shown.number,
            addresses=certificates.addresses_of(chain.leaf),
            site=shown.site,
            life_s=life_s,
            now_s=now_s,
        )

    def issue_server(self, request: bytes, addresses: Sequence[str]) -> bytes:
        """A certificate for a server that is no node, as an MQTT broker.

        It names addresses and no node, so `identity_of` refuses it. PEM, with the CA's after it.
        """
        now = time.time()
        names = address_names(addresses, self.issuing)
        if not names:
            raise certificates.IdentityError("a server's certificate needs an address")
        certificate = signed_leaf(
            self._ca,
            certificates.requested_key(request),
            certificates.subject_of(self.federation, "broker", self.site),
            names,
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
            (LIFE_S, now, now - BACKDATE_S),
        )
        self._write_down(certificate, None, now)
        return self._chain(certificate)

    def visitor(self) -> certificates.TlsMaterial:
        """Key and certificate with which an issuing authority first connects to the root.

        The root has logged nothing of it yet. The certificate is in no log and no server's.
        """
        key, now = certificates.new_key(), time.time()
        names = [
            x509.UniformResourceIdentifier(self._uri(certificates.Role.AUTHORITY, self.number))
        ]
        certificate = signed_leaf(
            self._ca,
            key.public_key(),
            certificates.subject_of(
                self.federation, f"{certificates.Role.AUTHORITY.value}-{self.number}", self.site
            ),
            names,
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]),
            (VISIT_S, now, now - BACKDATE_S),
        )
        return certificates.TlsMaterial(
            certificates.key_pem(key), self._chain(certificate), self.root_pem
        )

    def _uri(self, role: certificates.Role, number: int) -> str:
        return certificates.uri_of(self.federation, role, number)

    def _chain(self, certificate: x509.Certificate) -> bytes:
        """The certificate and those above it, PEM."""
        leaf = certificate.public_bytes(serialization.Encoding.PEM)
        return leaf + self.pem + (b"" if self.issuing is None else self.root_pem)

    def _begin(self, role: certificates.Role, number: int, now_s: float) -> float:
        """When a certificate of that holder begins: not before those that are void."""
        before = self.check_open(role, number)
        if before > now_s:
            raise certificates.IdentityError(
                "certificates of this holder are void until a time that has not come",
                "set this machine's clock: it was turned back",
            )
        return max(now_s - BACKDATE_S, before)

    # ------------------------------------------------------------ issuing authorities

    def delegate(
        self,
        request: bytes,
        site: str,
        domains: Iterable[str] = (),
        *,
        number: int | None = None,
        nodes: int | None = None,
        life_s: int = DELEGATION_LIFE_S,
        now_s: float | None = None,
    ) -> bytes:
        """The CA certificate of an issuing authority, PEM, and then the root's.

        request: PKCS #10, PEM. domains: below which it names hosts. number: of an authority that
        gets another certificate, as when its own ends; None: a new one. nodes: numbers that it may
        give out to each role; None: as before, or NODES. Raises Revoked and IdentityError.
        """
        now = time.time() if now_s is None else now_s
        key = certificates.requested_key(request)
        with self.lock.held():
            self._refresh()
            delegations = self._delegations
            logged = self._delegated()
            chosen = delegations.next(max(logged, default=0)) if number is None else number
            before = delegations.of(chosen)
            unknown = number is not None and before is None and number not in logged
            if unknown or (before is not None and before.site != site):
                raise certificates.IdentityError(
                    f"authority-{chosen} was not delegated to the site {site}"
                )
            self.check_open(certificates.Role.AUTHORITY, chosen)
            least, taken = (1, 0) if before is None else (before.nodes, before.reserved)
            wanted = nodes or (NODES if before is None else before.nodes)
            spare = self._numbers.spare(delegations.reserved()) + taken
            if not least <= wanted <= spare // ROLES:
                raise certificates.IdentityError(
                    f"{wanted} numbers of each role cannot be delegated: from {least} to"
                    f" {spare // ROLES} can"
                )
            pair = self._ca.key, self.certificate
            certificate = issuing_certificate(
                pair, key, self.federation, chosen, site, domains, life_s=life_s, now_s=now
            )
            found = facts_of(certificate)
            made = Delegation(chosen, site, found.domains, wanted, found.not_after)
            delegations.add(made)
            self._write_down(certificate, None, now)
        return certificate.public_bytes(serialization.Encoding.PEM) + self.pem

    def _delegated(self) -> set[int]:
        """The issuing authorities in the log.

        Also where the folder was restored from an older copy since. Reads all of the log.
        """
        found: set[int] = set()
        first = 0
        while entries := self.log.file.entries(first, _ENTRIES_AT_ONCE):
            first += len(entries)
            found |= {entry.number for entry in map(read_entry, entries) if entry.issues}
        return found

    def delegations(self) -> list[Delegation]:
        """The issuing authorities, revoked ones too."""
        with self.lock.held():
            self._refresh()
            return self._delegations.all()

    def append(self, content: bytes, *, now_s: float | None = None) -> int:
        """Adds a certificate of an issuing authority to the log, before that authority sends it.

        Durable on return. Gives its index; repeated, it changes nothing. content: a chain in DER.
        Raises Revoked, TooMany, and IdentityError unless the authority may issue it now.
        """
        now = time.time() if now_s is None else now_s
        chain = read_chain(content)
        if chain.issuing is None:
            raise certificates.IdentityError("the certificate is of no issuing authority")
        number = read_issuing(chain.issuing, self.root).number
        entry = read_entry(entry_of(chain.leaf))
        holder = None if entry.role is None else chain.check_issued(self.root)
        if holder is None:
            certificates.check_issued(chain.leaf, chain.issuing)
        chain.check_time(now)
        if entry.not_after - entry.not_before > LIFE_S_MAX + BACKDATE_S:
            raise certificates.IdentityError(f"a certificate lives at most {LIFE_S_MAX} s")
        name = f"{entry.name} of authority-{number}" if holder is None else holder.common_name
        with self.lock.held():
            self._refresh()
            known = self._delegations.of(number)
            if known is None or self.log.place(leaf_of(chain.issuing)) is None:
                raise certificates.IdentityError(f"authority-{number} was not delegated here")
            if holder is not None and not known.may_name(holder.tier, holder.number):
                raise certificates.IdentityError(
                    f"authority-{number} has {known.nodes} numbers for each role, and"
                    f" {holder.common_name} is none of them",
                    f"the root gives more: delian ca delegate --number {number} --nodes N",
                )
            self.check_open(certificates.Role.AUTHORITY, number)
            if (place := self.log.place(leaf_of(chain.leaf))) is not None:
                return place
            self._check_room(name, holder, now, own=False)
            serial = f"{chain.leaf.serial_number:x}"
            made: Entry = {"serial": serial, "name": name, "not_after": entry.not_after}
            made["log"] = self.log.append(entry_of(chain.leaf), self._logged)
            self._keep(made, holder)
            return int(made["log"])


# ---------------------------------------------------------------- parts


def issue_to(
    authority: Authority,
    role: certificates.Role,
    number: int,
    addresses: Iterable[str] = (),
    *,
    site: str = "",
    now_s: float | None = None,
) -> tuple[bytes, Issued]:
    """Key (PEM) and certificate for a holder on the CA's own machine: the coordinator, an operator.

    site: of an owner.
    """
    key = certificates.new_key()
    request = certificates.certificate_request(key)
    issued = authority.issue(request, role, number, addresses=addresses, site=site, now_s=now_s)
    return certificates.key_pem(key), issued
