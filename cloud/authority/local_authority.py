"""An authority's folder in this process.

`delian authority run` serves the folder of the root or of an issuing authority; a coordinator
without a separate authority holds the root's folder itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ...core.common.errors import DelianError
from ...core.node.identity.authority import deny_list
from ...core.node.identity.authority.approvals import TokenLimits, allow, site_for
from ...core.node.identity.authority.authority import Authority
from ...core.node.identity.authority.issued_numbers import check_numbers, sign_numbers
from ...core.node.identity.authority.revoked import holder_of
from ...core.node.identity.authority.terms import published
from ...core.node.identity.authority.tokens import VALID_S, Token, TokenBook, split_address
from ...core.node.identity.enrolment.kept_deny_list import page_of
from ...core.node.identity.enrolment.renewal_messages import make_answer, read_ask
from ...core.node.identity.pki.certificates import (
    IdentityError,
    PeerIdentity,
    Role,
    TlsMaterial,
    authority_of,
    identity_of,
)
from ...core.node.identity.pki.chain import read_chain
from ...core.node.identity.pki.identity_folder import HomeAddress, homes_of
from ...core.node.identity.pki.roles import Guard
from ...core.node.storage.codec import node_of
from ...core.protocol.ports import CLOUD, Node, Tier
from ...core.wire import authority_pb2, link_pb2
from ...core.wire.log_pb2 import LogAsk, LogPage
from ...core.wire.operator_pb2 import TokenReply, TokenRequest
from .issuing import Issuing
from .root_client import RootAuthority

log = logging.getLogger("delian.cloud.authority")

#: Edges that an announcement may name.
DRAINING_MAX = 4_096
WHY_CHARS_MAX = 256
#: Of "host:port": a DNS name has 253.
ADDRESS_CHARS_MAX = 300
_FED_BY = {link_pb2.NODE_DEVICE: Tier.DEVICE, link_pb2.NODE_EDGE: Tier.EDGE}


class LocalAuthority:
    """An `AuthorityPort`. `counts` says how often what went well: "renewed", "repeated".

    ca: the folder. material: the authority's own key and certificate; may block. tokens, limits,
    enrolment ("host:port" that tokens name): None and "" where no tokens are made. announced:
    called with the coordinator's addresses and the edges that are out of service. superior: of an
    issuing authority, the root; None: this is the root.
    """

    def __init__(
        self,
        ca: Authority,
        issuing: Issuing,
        material: Callable[[], TlsMaterial],
        *,
        tokens: TokenBook | None = None,
        limits: TokenLimits | None = None,
        enrolment: str = "",
        announced: Callable[[HomeAddress, frozenset[int]], None] = lambda home, draining: None,
        superior: RootAuthority | None = None,
    ) -> None:
        self.ca, self.issuing, self._superior = ca, issuing, superior
        self.counts: Counter[str] = Counter()
        #: The issuing authorities that have registered, by number.
        self._registered: dict[int, authority_pb2.IssuingAuthority] = {}
        self._material, self._announced = material, announced
        self._tokens, self._limits, self._enrolment = tokens, limits, enrolment
        self._guard = Guard(ca.federation, Role.AUTHORITY, ca.denied, issuing.clock)

    # ------------------------------------------------ the coordinator

    async def renew(self, ask: link_pb2.RenewalAsk) -> link_pb2.RenewalAnswer:
        asked = await asyncio.to_thread(read_ask, ask, self.ca.root)
        reason = await asyncio.to_thread(self._guard.distrust, asked.identity)
        material = await asyncio.to_thread(self._material)
        if reason is not None:
            return await asyncio.to_thread(make_answer, material, asked, None, reason)
        reply, fresh = await self.issuing.renew(asked.request, asked.identity, asked.certificate)
        self.counts["renewed" if fresh else "repeated"] += 1
        return await asyncio.to_thread(make_answer, material, asked, reply)

    async def denied(self, asked: link_pb2.DeniedAsk) -> link_pb2.DeniedPage:
        return await asyncio.to_thread(self.page, asked)

    def page(self, asked: link_pb2.DeniedAsk) -> link_pb2.DeniedPage:
        """A page of the deny list, at the root the first with the head of the certificate log.

        Blocks.
        """
        if self._superior is not None:
            return page_of(self.signed(), asked)
        now = self.issuing.clock()
        return page_of(self.signed(), asked, lambda size: self.ca.log.update(size, now))

    async def log(self, asked: LogAsk) -> LogPage:
        return await asyncio.to_thread(self.log_page, asked)

    def log_page(self, asked: LogAsk) -> LogPage:
        """A page of the certificate log. Blocks. Raises IdentityError."""
        if self._superior is not None:
            raise IdentityError(f"the root authority at {self._superior.address} has the log")
        return self.ca.log.page(asked, self.issuing.clock())

    def signed(self) -> deny_list.SignedList:
        """The newest deny list. Blocks. Raises IdentityError where the root has given none yet."""
        if self._superior is None:
            return self.ca.signed(now_s=self.issuing.clock())
        if (signed := self._superior.signed()) is None:
            raise IdentityError("the root authority has given no deny list yet")
        return signed

    async def announce(self, announcement: authority_pb2.Announcement) -> authority_pb2.Announced:
        if len(announcement.draining) > DRAINING_MAX:
            raise IdentityError(
                f"{len(announcement.draining)} edges are out of service; at most {DRAINING_MAX}"
            )
        if announcement.HasField("home"):
            homes = homes_of([announcement.home])
            if not homes or homes[0].node != CLOUD:
                raise IdentityError("the announcement does not say where the coordinator is")
            self._announced(homes[0], frozenset(announcement.draining))
        if announcement.HasField("numbers"):
            await asyncio.to_thread(self._note, announcement.numbers)
        return await asyncio.to_thread(self._told, announcement.denied_version)

    def _note(self, numbers: authority_pb2.SignedNumbers) -> None:
        """Takes back what this CA has signed: it may have been restored from an older copy."""
        check_numbers(numbers, self.ca.key, self.ca.federation)
        self.ca.note_number(Role.DEVICE, numbers.devices)
        self.ca.note_number(Role.EDGE, numbers.edges)

    def _told(self, denied_version: int = 0) -> authority_pb2.Announced:
        ca, denied = self.ca, self.ca.denied()
        last = ca.last_number(Role.DEVICE), ca.last_number(Role.EDGE)
        revoked = {number for role, number in denied.names if role is Role.AUTHORITY}
        return authority_pb2.Announced(
            terms=published(ca.folder),
            numbers=sign_numbers(ca.federation, *last, ca.sign),
            recall=self._superior is None and denied_version > denied.version,
            authorities=[
                found for number, found in sorted(self._registered.items()) if number not in revoked
            ],
        )

    async def recall(self, pages: Sequence[link_pb2.DeniedPage]) -> authority_pb2.Announced:
        await asyncio.to_thread(self._recall, pages)
        return await asyncio.to_thread(self._told)

    def _recall(self, pages: Sequence[link_pb2.DeniedPage]) -> None:
        if self._superior is not None:
            raise IdentityError("an issuing authority has no deny list of its own")
        if not pages:
            raise IdentityError("the list has no page")
        first = pages[0]
        head = deny_list.verify_head(
            first.head, first.signature, self.ca.certificate, self.ca.federation
        )
        if head.version <= self.ca.denied().version:
            return
        found = bytearray()
        for page in pages:
            if page.head != first.head or page.offset != len(found):
                raise deny_list.DenyListError("the pages do not fit together")
            found += page.entries
            if len(found) > head.entries * deny_list.ENTRY_BYTES:
                raise deny_list.DenyListError("the pages are longer than the list")
        self.ca.recall(deny_list.read_entries(head, bytes(found)))
        log.warning("the deny list was taken back from the coordinator")

    async def nodes(self, asked: authority_pb2.NodesAsk) -> authority_pb2.NodesPage:
        tier = _FED_BY.get(asked.tier)
        if tier is None:
            raise IdentityError("only devices and edges are enrolled")
        return authority_pb2.NodesPage(
            nodes=await self.issuing.registry.enrolled(tier, asked.after)
        )

    # ------------------------------------------------ issuing authorities

    def register(self, caller: PeerIdentity, address: str) -> authority_pb2.RegisterReply:
        """An issuing authority is there.

        caller: of its certificate, which says number and site. Blocks. Raises IdentityError.
        """
        if len(address) > ADDRESS_CHARS_MAX:
            raise IdentityError(f"the address has more than {ADDRESS_CHARS_MAX} characters")
        made = authority_pb2.IssuingAuthority(
            number=caller.number, site=caller.site, address=address
        )
        if address and self._registered.get(caller.number) != made:
            split_address(address)
            self._registered[caller.number] = made
            facts = {"number": caller.number, "site": caller.site, "address": address}
            log.info("an issuing authority has registered", extra=facts)
        return authority_pb2.RegisterReply(terms=published(self.ca.folder))

    def append(self, caller: PeerIdentity, content: bytes) -> authority_pb2.AppendReply:
        """Adds a certificate of an issuing authority to the log; durable on return.

        content: its chain in DER. Blocks. Raises IdentityError.
        """
        chain = read_chain(content)
        if identity_of(chain.leaf).authority != caller.number:
            raise IdentityError(f"the certificate is not of the issuing authority {caller.number}")
        self.ca.append(content, now_s=self.issuing.clock())
        return authority_pb2.AppendReply()

    async def revoke_own(
        self, caller: PeerIdentity, request: authority_pb2.RevokeRequest
    ) -> authority_pb2.RevokeReply:
        """Revokes a holder for the issuing authority that let it in. Raises IdentityError."""
        holder = holder_of(request.name)
        if holder is None or holder[0] is Role.AUTHORITY or authority_of(*holder) != caller.number:
            raise IdentityError(
                f"`{request.name[:80]}` is no holder of the issuing authority {caller.number}"
            )
        return await self.revoke(request)

    # ------------------------------------------------ operators

    async def create_token(self, request: TokenRequest, caller: PeerIdentity | None) -> TokenReply:
        tokens, limits, enrolment = self._tokens, self._limits, self._enrolment
        if tokens is None or limits is None or not enrolment:
            raise DelianError("no node can join here", "this process serves no enrolment")
        role = Role(node_of(link_pb2.Address(tier=request.tier)).tier.value)
        if role not in (Role.DEVICE, Role.EDGE):
            raise DelianError(
                "a token for a coordinator is not made by a call",
                "where the CA's folder is: delian token --tier cloud --ca CA",
            )
        valid_s, uses = request.valid_s or VALID_S, request.uses or 1

        def make() -> tuple[Token, int]:
            site = self._site(caller, request.site)
            allow(limits, self.ca, caller, (role, uses, valid_s, site), request.approval)
            where = (self.ca.federation, enrolment, self.ca.root_public)
            return tokens.create(
                role, *where, valid_s=valid_s, uses=uses, site=site, issuer=self.ca.issuer_public
            )

        token, expires = await asyncio.to_thread(make)
        return TokenReply(token=token.text(), expires_ms=expires * 1000)

    def _site(self, caller: PeerIdentity | None, wanted: str) -> str:
        """The site of a token. An issuing authority has one."""
        own = self.ca.site
        if own and wanted not in ("", own):
            raise IdentityError(f"this authority enrols nodes of the site {own} alone")
        return site_for(caller, own or wanted)

    async def revoke(self, request: authority_pb2.RevokeRequest) -> authority_pb2.RevokeReply:
        if len(request.why) > WHY_CHARS_MAX:
            raise IdentityError(f"the reason has more than {WHY_CHARS_MAX} characters")
        listed, changed = await asyncio.to_thread(self.ca.revoke, request.name, request.why)
        holder = holder_of(request.name)
        if holder is not None and holder[0] in (Role.DEVICE, Role.EDGE):
            node = Node(Tier(holder[0].value), holder[1])
            await self.issuing.registry.revoke(node)
        log.warning("revoked", extra={"node": request.name, "version": listed.version})
        return authority_pb2.RevokeReply(changed=changed, version=listed.version)

    # ------------------------------------------------ after a restore

    def reconcile(self, numbers: Mapping[Tier, int], revoked: Iterable[Node]) -> None:
        """Brings a CA's folder that was restored from an older copy up to what the registry knows.

        The last number of each tier, and the nodes that were revoked. Blocks.
        """
        for tier, number in numbers.items():
            self.ca.note_number(Role(tier.value), number)
        listed = self.ca.denied()
        for node in sorted(revoked):
            if listed.revoked(node):
                continue
            try:
                self.ca.revoke(f"{node.tier.value}-{node.number}", "as the registry says")
            except IdentityError as error:
                log.error("a revoked node is not on the deny list: %s", error)
