"""The authorities of a federation: the root, and the issuing authorities registered with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.common.errors import DelianError
from ...core.node.identity.authority.issued_numbers import KeptNumbers
from ...core.node.identity.authority.revoked import holder_of
from ...core.node.identity.authority.tokens import split_address
from ...core.node.identity.enrolment.renewal_messages import claimed
from ...core.node.identity.pki import certificates
from ...core.protocol.ports import Tier
from ...core.wire import authority_pb2, link_pb2
from ...core.wire.log_pb2 import LogAsk, LogPage
from ...core.wire.operator_pb2 import TokenReply, TokenRequest
from ..service.fleet_registry import Fleet
from .port import AuthorityPort
from .remote import RemoteAuthority, Renewed

if TYPE_CHECKING:
    from ..service.trust import Trust

log = logging.getLogger("delian.cloud.authority")

#: Opens the connection to an issuing authority.
Connect = Callable[[authority_pb2.IssuingAuthority], RemoteAuthority]
#: Pages of nodes that are taken over before the authority is asked for other news again.
NODE_PAGES_MAX = 64


@dataclass(slots=True)
class _Issuing:
    """An issuing authority."""

    told: authority_pb2.IssuingAuthority
    remote: RemoteAuthority
    follows: asyncio.Task[None]
    """Exchanges news with it."""


class Authorities:
    """An `AuthorityPort`: the root, and for renewals the authority of the node's number.

    connect: to an issuing authority. numbers: what an authority has said of its numbers. fleet:
    takes over the nodes that an issuing authority has let in. every_s: seconds between two
    exchanges of news.
    """

    def __init__(
        self,
        root: RemoteAuthority,
        connect: Connect,
        numbers: Callable[[int], KeptNumbers],
        fleet: Fleet,
        every_s: float,
    ) -> None:
        self.root = root
        self._connect, self._numbers, self._fleet = connect, numbers, fleet
        self._every_s = every_s
        self._issuing: dict[int, _Issuing] = {}
        self._announcement = authority_pb2.Announcement()

    @classmethod
    def at(
        cls, address: str, trust: Trust, fleet: Fleet, renewed: Renewed, every_s: float
    ) -> Authorities:
        """With the root at "host:port".

        trust: the coordinator's identity. renewed: called with each certificate that was passed on.
        """
        material = trust.own.material

        def connect(found: authority_pb2.IssuingAuthority) -> RemoteAuthority:
            return RemoteAuthority(
                found.address, material, renewed, number=found.number, site=found.site
            )

        root = RemoteAuthority(address, material, renewed)
        return cls(root, connect, trust.numbers, fleet, every_s)

    @property
    def issuing(self) -> list[int]:
        """The numbers of the issuing authorities."""
        return sorted(self._issuing)

    async def close(self) -> None:
        """May be called twice."""
        for number in self.issuing:
            await self._end(number)
        await self.root.close()

    # ------------------------------------------------ the port

    async def renew(self, ask: link_pb2.RenewalAsk) -> link_pb2.RenewalAnswer:
        number = claimed(ask).number >> certificates.NUMBER_BITS
        if not number:
            return await self.root.renew(ask)
        if (found := self._issuing.get(number)) is None:
            raise certificates.IdentityError(
                f"the issuing authority {number} of this node is not registered at the root",
                "is `delian authority run` running there?",
            )
        return await found.remote.renew(ask)

    async def announce(self, announcement: authority_pb2.Announcement) -> authority_pb2.Announced:
        told = await self.root.announce(announcement)
        # The issuing ones receive the same, except for what concerns the root alone.
        self._announcement = authority_pb2.Announcement(draining=announcement.draining)
        if announcement.HasField("home"):
            self._announcement.home.CopyFrom(announcement.home)
        await self._take(_checked(told.authorities))
        return told

    async def denied(self, asked: link_pb2.DeniedAsk) -> link_pb2.DeniedPage:
        return await self.root.denied(asked)

    async def log(self, asked: LogAsk) -> LogPage:
        return await self.root.log(asked)

    async def recall(self, pages: Sequence[link_pb2.DeniedPage]) -> authority_pb2.Announced:
        return await self.root.recall(pages)

    async def nodes(self, asked: authority_pb2.NodesAsk) -> authority_pb2.NodesPage:
        return await self.root.nodes(asked)

    async def create_token(
        self, request: TokenRequest, caller: certificates.PeerIdentity | None
    ) -> TokenReply:
        number = 0 if caller is None else caller.authority
        return await self._of(number).create_token(request, caller)

    async def revoke(self, request: authority_pb2.RevokeRequest) -> authority_pb2.RevokeReply:
        holder = holder_of(request.name)
        number = 0 if holder is None else certificates.authority_of(*holder)
        return await self._of(number).revoke(request)

    def _of(self, number: int) -> RemoteAuthority:
        """The authority of a number; the root where it is not connected, which revokes any name."""
        found = self._issuing.get(number)
        return self.root if found is None else found.remote

    # ------------------------------------------------ issuing authorities

    async def _take(self, told: dict[int, authority_pb2.IssuingAuthority]) -> None:
        """Connects to those that are new or have moved, and leaves those that are gone."""
        for number, known in list(self._issuing.items()):
            if told.get(number) != known.told:
                await self._end(number)
        for number in sorted(told.keys() - self._issuing.keys()):
            found = told[number]
            remote = self._connect(found)
            follows = asyncio.create_task(self._follow(number, remote), name=f"authority {number}")
            self._issuing[number] = _Issuing(found, remote, follows)
            facts = {"number": number, "site": found.site, "address": found.address}
            log.info("an issuing authority is known", extra=facts)

    async def _end(self, number: int) -> None:
        gone = self._issuing.pop(number)
        gone.follows.cancel()
        await asyncio.gather(gone.follows, return_exceptions=True)
        await gone.remote.close()

    async def _follow(self, number: int, remote: RemoteAuthority) -> None:
        """Announces the coordinator to an issuing authority and reads its nodes, repeatedly."""
        kept, reached = self._numbers(number), True
        while True:
            said = authority_pb2.Announcement()
            said.CopyFrom(self._announcement)
            try:
                if (newest := await asyncio.to_thread(kept.newest)) is not None:
                    said.numbers.CopyFrom(newest)
                told = await remote.announce(said)
                await asyncio.to_thread(kept.take, told.numbers)
                await learn_nodes(self._fleet, remote, number)
                if not reached:
                    log.info("the issuing authority answers again", extra={"number": number})
                reached = True
            except (DelianError, OSError, TimeoutError) as error:
                if reached:
                    log.warning("no news from the issuing authority %d: %s", number, error)
                reached = False
            await asyncio.sleep(self._every_s)


async def learn_nodes(fleet: Fleet, authority: AuthorityPort, number: int) -> None:
    """Takes over the nodes that joined at the authority of that number since the last time.

    Raises IdentityError.
    """
    last = await fleet.last_numbers(number)
    for tier, wire in ((Tier.DEVICE, link_pb2.NODE_DEVICE), (Tier.EDGE, link_pb2.NODE_EDGE)):
        after = last.get(tier, number << certificates.NUMBER_BITS)
        for _ in range(NODE_PAGES_MAX):
            page = (await authority.nodes(authority_pb2.NodesAsk(tier=wire, after=after))).nodes
            if not page:
                break
            await fleet.learn(tier, page)
            after = page[-1].number


def _checked(
    told: Iterable[authority_pb2.IssuingAuthority],
) -> dict[int, authority_pb2.IssuingAuthority]:
    """The issuing authorities by number. Raises IdentityError for what cannot be."""
    found: dict[int, authority_pb2.IssuingAuthority] = {}
    for each in told:
        if not 0 < each.number <= certificates.AUTHORITIES_MAX or each.number in found:
            raise certificates.IdentityError(
                "the root authority named issuing authorities that cannot be"
            )
        certificates.check_site(each.site)
        split_address(each.address)
        found[each.number] = each
    return found
