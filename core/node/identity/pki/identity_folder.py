"""A node's identity on its disk.

    live -> g1                 which generation counts
    g1/key.pem                 the private key, mode 0600
    g1/cert.pem                the certificate, then the CA's
    g1/ca.pem                  the CA that the node trusts
    g1/node.json               its name, when to renew, where to connect
    pending.pem                the key of an enrolment or renewal that is not over
    denied.list                the deny list as this node knows it (`kept_deny_list.KnownDenied`)
    terms                      what the federation asks of its runs, signed by the CA (`terms`)
    terms.offered              looser terms, which wait for the owner

Key and certificate belong together, so they change together: a renewal writes a new generation and
then renames one link. A reader resolves the link once. The generation before stays until the next
renewal, for readers.

The pending key is stored before it is sent for signing. When the answer is lost, the same key asks
again, and the coordinator sees that it is the same node.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from ....common.files import sync_folder
from ....common.printable import escaped
from ....protocol.ports import Node, Tier
from ....wire import enrolment_pb2, link_pb2
from ....wire.enrolment_pb2 import FederationTerms
from ..authority import terms
from ..authority.tokens import split_address
from . import certificates
from .chain import chain_of_pem
from .ledger import private_folder, write_file

log = logging.getLogger("delian.identity")

HOMES_MAX = 64
NODE_BYTES_MAX = 64 * 1024
_FORMAT = 1
_BROKER_PORTS = {"mqtt": 1883, "mqtts": 8883}
_TIERS = {
    link_pb2.NODE_DEVICE: Tier.DEVICE,
    link_pb2.NODE_EDGE: Tier.EDGE,
    link_pb2.NODE_CLOUD: Tier.CLOUD,
}


@dataclass(frozen=True, slots=True)
class HomeAddress:
    """Where a node can be reached."""

    node: Node
    grpc: str = ""
    """"host:port"."""
    mqtt: str = ""
    """"mqtts://host:port"; "" is not."""


def check_addresses(grpc: str, mqtt: str) -> None:
    """Raises IdentityError unless a home's addresses are "host:port" and "mqtts://host:port".

    "mqtt://" is allowed too, and an empty address. gRPC takes other texts for other schemes
    ("unix:", "dns:").
    """
    if grpc:
        split_address(grpc)
    if mqtt:
        scheme, _, target = mqtt.partition("://")
        if scheme not in _BROKER_PORTS:
            raise certificates.IdentityError(
                f"`{escaped(mqtt[:80])}` is no broker's address", "write mqtts://host:port"
            )
        bare = ":" not in target.rpartition("]")[2]
        split_address(f"{target}:{_BROKER_PORTS[scheme]}" if bare else target)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What the coordinator sent the node about itself.

    Unix times, in seconds. Renewals go to the home that is the cloud.
    """

    federation: str
    role: str
    number: int
    renew_at: int
    not_after: int
    homes: tuple[HomeAddress, ...] = ()


class IdentityFolder:
    """The folder of a node's identity."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def denied_path(self) -> Path:
        return self.folder / "denied.list"

    def exists(self) -> bool:
        """Whether the node has an identity here."""
        return (self.folder / "live").exists()

    def files(self) -> certificates.TlsFiles:
        """The files of the generation that counts now; raises IdentityError when there is none."""
        live = self._live()
        return certificates.TlsFiles(live / "key.pem", live / "cert.pem", live / "ca.pem")

    def material(self) -> certificates.TlsMaterial:
        """Raises IdentityError, also where a file is damaged."""
        made = self.files().read()
        try:
            own, _ = (
                certificates.load_certificate(made.certificate),
                certificates.load_certificate(made.authority),
            )
            if certificates.load_key(made.key).public_key() != own.public_key():
                raise certificates.IdentityError("the key is not the certificate's")
        except certificates.IdentityError as fault:
            raise certificates.IdentityError(
                f"the identity in {self._live()} is damaged: {fault.message}",
                "restore it from a backup, or join again: delian join -",
            ) from None
        return made

    def identity(self) -> certificates.PeerIdentity:
        """The node's name; raises IdentityError."""
        return certificates.identity_of(self.material().certificate)

    def facts(self) -> NodeFacts:
        """Raises IdentityError."""
        path = self._live() / "node.json"
        try:
            with path.open("rb") as file:
                content = file.read(NODE_BYTES_MAX + 1)
            if len(content) > NODE_BYTES_MAX:
                raise ValueError
            return _facts(json.loads(content))
        except OSError as error:
            raise certificates.IdentityError(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise certificates.IdentityError(
                f"{path} is damaged", "join again with a new token"
            ) from None

    def pending_key(self) -> ec.EllipticCurvePrivateKey:
        """The key to ask a certificate for.

        The one of a request that is not over, or a new one, which is durable on return. Raises
        IdentityError.
        """
        private_folder(self.folder)
        path = self.folder / "pending.pem"
        try:
            return certificates.load_key(path.read_bytes())
        except FileNotFoundError:
            pass
        except OSError as error:
            raise certificates.IdentityError(f"cannot read {path}: {error.strerror}") from None
        key = certificates.new_key()
        write_file(path, certificates.key_pem(key), 0o600)
        return key

    def accept(
        self, key: ec.EllipticCurvePrivateKey, reply: enrolment_pb2.EnrolReply
    ) -> certificates.PeerIdentity:
        """Takes what the coordinator answered, after checking it; durable on return.

        The certificate must be for this key, valid now, signed by the CA that comes with it, and
        name the node that the reply names. A CA that is known already must be the same. Raises
        IdentityError and changes nothing otherwise.
        """
        identity = check_reply(key, reply)
        if self.exists():
            known = certificates.load_certificate(self.material().authority)
            if known != certificates.load_certificate(reply.authority):
                raise certificates.IdentityError("the coordinator answered for another CA")
        if reply.terms:
            owned = identity.tier is certificates.Role.DEVICE
            self.take_terms(reply.terms, reply.authority, identity.federation, owned)
        self.store(
            certificates.TlsMaterial(certificates.key_pem(key), reply.certificate, reply.authority),
            renew_after_s=reply.renew_after_s,
            homes=homes_of(reply.homes),
        )
        return identity

    def terms(self, name: str = terms.FILE) -> FederationTerms | None:
        """The federation's terms; None where the node joined before there were any.

        Raises IdentityError.
        """
        own = self.material()
        return terms.held(self.folder, _key_of(own.authority), own.identity().federation, name)

    def take_terms(
        self, content: bytes, authority: bytes, federation: str, owned: bool = True
    ) -> None:
        """Takes signed terms; on a device (`owned`), looser ones wait for the owner.

        Looser: than those held. authority: the CA's certificate, PEM. Raises IdentityError, and
        changes nothing, for terms that do not hold.
        """
        private_folder(self.folder)
        change = terms.take(self.folder, content, _key_of(authority), federation, owned)
        if change is terms.Change.LOOSER:
            log.warning(
                "the federation's newer terms are looser than those held here, which still count;"
                " the owner takes them with: delian device terms --accept"
            )
        elif change is terms.Change.TAKEN:
            log.info("the federation's terms are taken; they count from the next start")

    def accept_terms(self) -> FederationTerms:
        """Takes the looser terms that wait for the owner. Raises IdentityError."""
        offered = self.terms(terms.OFFERED_FILE)
        if offered is None:
            raise certificates.IdentityError("no other terms wait for the owner")
        (self.folder / terms.OFFERED_FILE).replace(self.folder / terms.FILE)
        sync_folder(self.folder)
        return offered

    def store(
        self,
        material: certificates.TlsMaterial,
        *,
        renew_after_s: int,
        homes: Sequence[HomeAddress] = (),
        now_s: float | None = None,
    ) -> NodeFacts:
        """Puts a new generation in place; durable on return. Raises IdentityError."""
        identity = material.identity()
        now = int(time.time() if now_s is None else now_s)
        facts = NodeFacts(
            federation=identity.federation,
            role=identity.tier.value,
            number=identity.number,
            renew_at=min(now + renew_after_s, identity.not_after),
            not_after=identity.not_after,
            homes=tuple(homes),
        )
        private_folder(self.folder)
        before = self._live().name if self.exists() else ""
        numbers = [int(p.name[1:]) for p in self.folder.glob("g*") if p.name[1:].isdigit()]
        new = self.folder / f"g{max(numbers, default=0) + 1}"
        private_folder(new)
        write_file(new / "key.pem", material.key, 0o600)
        write_file(new / "cert.pem", material.certificate)
        write_file(new / "ca.pem", material.authority)
        write_file(new / "node.json", json.dumps(_to_json(facts), indent=1).encode() + b"\n")
        sync_folder(self.folder)
        link = self.folder / ".live"
        link.unlink(missing_ok=True)
        link.symlink_to(new.name)
        live = self.folder / "live"
        if live.is_dir() and not live.is_symlink():
            live.rename(self.folder / f"g{max(numbers, default=0) + 2}")  # removed below
        link.replace(live)
        (self.folder / "pending.pem").unlink(missing_ok=True)
        sync_folder(self.folder)
        for old in self.folder.glob("g*"):
            if old.name not in (before, new.name):
                shutil.rmtree(old, ignore_errors=True)
        return facts

    def _live(self) -> Path:
        link = self.folder / "live"
        if link.is_dir() and not link.is_symlink():
            return link  # of a copy that has followed links
        try:
            name = link.readlink()
        except OSError:
            raise certificates.IdentityError(
                f"there is no identity in {self.folder}", "get one with: delian join -"
            ) from None
        return self.folder / name


def check_reply(
    key: ec.EllipticCurvePrivateKey,
    reply: enrolment_pb2.EnrolReply,
    authority: ec.EllipticCurvePublicKey | None = None,
) -> certificates.PeerIdentity:
    """The name that the coordinator's reply gives us; raises IdentityError when it does not hold.

    authority: the root's key where it is known beforehand, from a token.
    """
    if max(len(reply.certificate), len(reply.authority)) > certificates.CERTIFICATE_BYTES_MAX:
        raise certificates.IdentityError("the coordinator's reply is too large")
    if len(reply.homes) > HOMES_MAX:
        raise certificates.IdentityError(f"the coordinator named {len(reply.homes)} homes")
    root = certificates.load_certificate(reply.authority)
    chain = chain_of_pem(reply.certificate)
    certificates.check_issued(root, root)
    if authority is not None and not _same_key(root.public_key(), authority):
        raise certificates.IdentityError("the coordinator's CA is not the token's")
    identity = chain.verify(root)
    if not _same_key(chain.leaf.public_key(), key.public_key()):
        raise certificates.IdentityError("the coordinator's certificate is for another key")
    node = _node(reply.node) if reply.HasField("node") else None
    if node != identity.node or identity.federation != reply.federation:
        raise certificates.IdentityError("the coordinator's certificate names another node")
    return identity


def homes_of(homes: Sequence[enrolment_pb2.Home]) -> tuple[HomeAddress, ...]:
    """The homes with an address that can be dialled.

    Raises IdentityError if an entry names no node.
    """
    found = []
    for home in homes:
        node = _node(home.node)
        if node is None:
            raise certificates.IdentityError("the coordinator named a home without a tier")
        try:
            check_addresses(home.grpc, home.mqtt)
        except certificates.IdentityError as fault:
            log.warning("home left out", extra={"home": str(node), "why": fault.message})
            continue
        found.append(HomeAddress(node, home.grpc, home.mqtt))
    return tuple(found)


def home_message(home: HomeAddress) -> enrolment_pb2.Home:
    """A home as EnrolReply carries it."""
    tier = next(number for number, tier in _TIERS.items() if tier is home.node.tier)
    address = link_pb2.Address(tier=tier, number=home.node.number)
    return enrolment_pb2.Home(node=address, grpc=home.grpc, mqtt=home.mqtt)


def _key_of(authority: bytes) -> ec.EllipticCurvePublicKey:
    key = certificates.load_certificate(authority).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise certificates.IdentityError("the CA's key is not a P-256 key")
    return key


def _node(address: link_pb2.Address) -> Node | None:
    tier = _TIERS.get(address.tier)
    return None if tier is None else Node(tier, address.number)


def _same_key(one: Any, other: ec.EllipticCurvePublicKey) -> bool:
    return isinstance(one, ec.EllipticCurvePublicKey) and certificates.public_bytes(
        one
    ) == certificates.public_bytes(other)


def _to_json(facts: NodeFacts) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "federation": facts.federation,
        "role": facts.role,
        "number": facts.number,
        "renew_at": facts.renew_at,
        "not_after": facts.not_after,
        "homes": [
            {"tier": h.node.tier.value, "number": h.node.number, "grpc": h.grpc, "mqtt": h.mqtt}
            for h in facts.homes
        ],
    }


def _facts(entry: dict[str, Any]) -> NodeFacts:
    if entry["format"] != _FORMAT:
        raise ValueError
    return NodeFacts(
        federation=str(entry["federation"]),
        role=str(entry["role"]),
        number=int(entry["number"]),
        renew_at=int(entry["renew_at"]),
        not_after=int(entry["not_after"]),
        homes=tuple(
            HomeAddress(
                Node(Tier(home["tier"]), int(home["number"])), str(home["grpc"]), str(home["mqtt"])
            )
            for home in entry["homes"]
        ),
    )
