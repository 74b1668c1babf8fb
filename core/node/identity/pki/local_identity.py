"""Identities that are made on the CA's machine, without a token.

A process that can read the CA's key needs none.

The coordinator's where it has the CA's folder, and the authority's, which are made at the start
and renewed as the process runs; an operator's; and a broker's, which names addresses and no node.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from ..authority import terms
from ..authority.authority import Authority, issue_to
from .certificates import (
    OPERATORS,
    IdentityError,
    PeerIdentity,
    Role,
    TlsMaterial,
    addresses_of,
    certificate_request,
    check_issued,
    general_name,
    identity_of,
    key_pem,
    new_key,
)
from .chain import chain_of_pem
from .identity_folder import IdentityFolder
from .ledger import private_folder, write_file

#: In the CA's folder.
AUTHORITY_IDENTITY: Final = "identity"


def coordinator_identity(
    authority: Authority,
    folder: Path,
    addresses: Sequence[str] = (),
    *,
    now_s: float | None = None,
) -> tuple[IdentityFolder, bool]:
    """The coordinator's identity, and whether it is new.

    It is made or renewed where it is absent, due, of another CA, or without one of `addresses`.
    Raises IdentityError.
    """
    return _server_identity(authority, folder, Role.CLOUD, addresses, now_s)


def authority_identity(
    authority: Authority,
    addresses: Sequence[str] = (),
    *,
    now_s: float | None = None,
) -> tuple[IdentityFolder, bool]:
    """The same for the server that has the CA's key, in the CA's folder.

    It shows it to new nodes and signs answers to renewals with its key.
    """
    folder = authority.folder / AUTHORITY_IDENTITY
    return _server_identity(authority, folder, Role.AUTHORITY, addresses, now_s)


def _server_identity(
    authority: Authority, folder: Path, role: Role, addresses: Sequence[str], now_s: float | None
) -> tuple[IdentityFolder, bool]:
    own = IdentityFolder(folder)
    now = time.time() if now_s is None else now_s
    if own.exists() and _still_good(own, authority, role, addresses, now):
        return own, False
    number = authority.number if role is Role.AUTHORITY else 0
    key, issued = issue_to(authority, role, number, addresses, now_s=now)
    material = TlsMaterial(key, issued.chain, authority.root_pem)
    own.store(material, renew_after_s=issued.renew_after_s, now_s=now)
    return own, True


def _still_good(
    own: IdentityFolder, authority: Authority, role: Role, addresses: Sequence[str], now_s: float
) -> bool:
    try:
        chain = chain_of_pem(own.material().certificate)
        check_issued(chain.leaf, authority.certificate)
        facts = own.facts()
        denied = authority.denied().denies(identity_of(chain.leaf))
        wanted = {general_name(address) for address in addresses}
        there = {general_name(address) for address in addresses_of(chain.leaf)}
    except IdentityError:
        return False
    return facts.role == role and now_s < facts.renew_at and not denied and wanted == there


def operator_identity(
    authority: Authority, folder: Path, role: Role = Role.ADMIN, site: str = ""
) -> PeerIdentity:
    """A new operator's identity.

    site: of an owner. Raises IdentityError where the folder holds one, for a role that is no
    operator's, and for an owner without a site.
    """
    if role not in OPERATORS or role is Role.OPERATOR:
        raise IdentityError(
            f"an operator cannot have the role {role.value}", "viewer, runner, owner, admin"
        )
    site = site or (authority.site if role is Role.OWNER else "")
    if (role is Role.OWNER) != bool(site):
        raise IdentityError("an owner has a site, and no other operator has one", "--site NAME")
    own = IdentityFolder(folder)
    if own.exists():
        raise IdentityError(
            f"{folder} holds the identity {own.identity().common_name} already",
            "name another folder",
        )
    key, issued = issue_to(authority, role, authority.last_number(role) + 1, site=site)
    material = TlsMaterial(key, issued.chain, authority.root_pem)
    own.store(material, renew_after_s=issued.renew_after_s)
    if content := terms.published(authority.folder):
        own.take_terms(content, authority.root_pem, authority.federation, owned=False)
    return issued.identity


def broker_files(authority: Authority, folder: Path, addresses: Iterable[str]) -> int:
    """Writes key.pem, cert.pem and ca.pem of an MQTT broker, over those that are there.

    Gives the certificate's end in Unix time. Raises IdentityError.
    """
    key = new_key()
    chain = authority.issue_server(certificate_request(key), list(addresses))
    private_folder(folder)
    write_file(folder / "ca.pem", authority.root_pem)
    write_file(folder / "key.pem", key_pem(key), 0o600)
    write_file(folder / "cert.pem", chain)
    return int(chain_of_pem(chain).leaf.not_valid_after_utc.timestamp())
