"""Certificates for nodes, whichever way they ask: by a token, by gRPC, or through links.

The limits of all ways stand here, so that none is a way around another.

- A name that is revoked gets nothing, also where it asks with a token that was good for it.
- A key that asks again gets the certificate that it was given, until that is due for renewal.
- A name gets `DEVICE_BURST` certificates at once and then one in 30 s, and has at most
  `authority.CERTIFICATES_MAX` that have not ended (a restart forgets the rate, not the number).
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...core.node.identity.authority.authority import LIFE_S, Authority, Issued
from ...core.node.identity.authority.authority_book import TooMany
from ...core.node.identity.authority.terms import published
from ...core.node.identity.pki.certificates import PeerIdentity, Role, public_bytes, requested_key
from ...core.node.identity.pki.identity_folder import home_message
from ...core.node.net.message_limits import Buckets
from ...core.node.net.relay import DEVICE_BURST, DEVICE_PER_S
from ...core.protocol.ports import Tier
from ...core.wire.enrolment_pb2 import EnrolReply
from ...core.wire.link_pb2 import NODE_CLOUD, NODE_DEVICE, NODE_EDGE, Address

if TYPE_CHECKING:
    from ..service.fleet_registry import Fleet

#: Replies that are remembered, some 2 KB each: two hours of a fleet of a million.
KNOWN_MAX = 4_096

_TIERS = {Tier.DEVICE: NODE_DEVICE, Tier.EDGE: NODE_EDGE, Tier.CLOUD: NODE_CLOUD}


@dataclass(frozen=True, slots=True)
class _Given:
    """A reply, and when (Unix time) it was made."""

    reply: EnrolReply
    at: float


class Issuing:
    """Issues certificates within the limits. clock: Unix time. rates: of the rates, in seconds."""

    def __init__(
        self,
        authority: Authority,
        registry: Fleet,
        *,
        life_s: int = LIFE_S,
        clock: Callable[[], float] = time.time,
        rates: Callable[[], float] = time.monotonic,
    ) -> None:
        self.authority, self.registry, self.clock = authority, registry, clock
        self._life_s, self._rates = life_s, rates
        self._known: OrderedDict[tuple[str, bytes], _Given] = OrderedDict()
        self._of_name = Buckets(DEVICE_BURST, DEVICE_PER_S)
        # One at a time: a request that comes twice at once is answered by one certificate.
        self._turn = asyncio.Lock()

    async def enrol(
        self, request: bytes, role: Role, number: int, addresses: Iterable[str], site: str = ""
    ) -> tuple[EnrolReply, bool]:
        """The reply to a node that a token has let in, and whether a certificate was made for it.

        request: PKCS #10, PEM. Raises Revoked, TooMany and IdentityError.
        """

        def issue(now_s: float) -> Issued:
            return self.authority.issue(
                request,
                role,
                number,
                addresses=addresses,
                site=site,
                life_s=self._life_s,
                now_s=now_s,
            )

        return await self._reply(request, role, number, issue)

    async def renew(
        self, request: bytes, shown: PeerIdentity, certificate: bytes
    ) -> tuple[EnrolReply, bool]:
        """The same for a node that has shown the certificate that it has now."""

        def issue(now_s: float) -> Issued:
            return self.authority.renew(
                request, shown, certificate, life_s=self._life_s, now_s=now_s
            )

        return await self._reply(request, shown.tier, shown.number, issue)

    async def _reply(
        self, request: bytes, role: Role, number: int, issue: Callable[[float], Issued]
    ) -> tuple[EnrolReply, bool]:
        name = f"{role.value}-{number}"
        key = name, public_bytes(await asyncio.to_thread(requested_key, request))
        async with self._turn:
            await asyncio.to_thread(self.authority.check_open, role, number)
            if (known := self._remembered(key)) is not None:
                known.terms = await self._terms()
                return known, False
            if not self._of_name.take(name, self._rates()):
                raise TooMany(f"{name} has asked for too many certificates", "wait a minute")
            now = self.clock()
            issued = await asyncio.to_thread(issue, now)
            reply = await self._told(issued, now)
            self._known[key] = _Given(reply, now)
            if len(self._known) > KNOWN_MAX:
                self._known.popitem(last=False)
            return reply, True

    async def _terms(self) -> bytes:
        """The federation's signed terms, as they are now."""
        return await asyncio.to_thread(published, self.authority.folder)

    def _remembered(self, key: tuple[str, bytes]) -> EnrolReply | None:
        """What this very key was given, unless it is due for renewal already."""
        given = self._known.get(key)
        if given is None:
            return None
        passed = max(0, int(self.clock() - given.at))
        if passed >= given.reply.renew_after_s:
            del self._known[key]
            return None
        reply = EnrolReply()
        reply.CopyFrom(given.reply)
        reply.renew_after_s -= passed
        return reply

    async def _told(self, issued: Issued, now_s: float) -> EnrolReply:
        """The answer to a node with its new certificate, once the registry has it too."""
        reply = EnrolReply(
            federation=issued.identity.federation,
            certificate=issued.chain,
            authority=self.authority.root_pem,
            renew_after_s=issued.renew_after_s,
            terms=await self._terms(),
        )
        node = issued.identity.node
        if node is not None:
            await self.registry.certified(
                node, issued.identity.serial, issued.identity.not_after, int(now_s * 1000)
            )
            reply.node.CopyFrom(Address(tier=_TIERS[node.tier], number=node.number))
            homes = await self.registry.homes(node)
            reply.homes.extend(home_message(home) for home in homes)
        return reply
