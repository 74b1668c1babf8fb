"""Enrolment: a node with a token gets its first certificate.

`Enrolment` has a port of its own, where the server shows its certificate and asks for none. What an
unknown peer may send there is small, counted by address, and answered with as little as possible: a
wrong token, an expired one and a used one are all "the token is not valid".

The order of things on the way in: the token is used up (by the node's key), then the number is
handed out, then number and key are written down together, then the certificate is written down,
then it is given out. A crash between two steps costs a number that no node has, and never gives two
nodes one number: the node asks again with the same key and goes on where it was. A number is above
all that the registry and the CA's folder know of, so it is new also where one of the two was
restored from an older copy. Revoking a node voids what a token holds for it: its number is refused.

`issuing.Issuing` makes the certificates and has the limits.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc

from ...core.node.driver.log_deduplication import Once
from ...core.node.identity.authority.authority_book import Revoked, TooMany
from ...core.node.identity.authority.superior import Away
from ...core.node.identity.authority.tokens import (
    TEXT_MAX,
    Admission,
    Token,
    TokenBook,
    TokenError,
    parse,
)
from ...core.node.identity.enrolment.joining import check_labels
from ...core.node.identity.pki.certificates import (
    IdentityError,
    Role,
    TlsMaterial,
    check_tls,
    public_bytes,
    requested_key,
    server_credentials,
)
from ...core.node.net.grpc.grpc_requests import refuse, serve_all
from ...core.protocol.ports import CLOUD, Node, Tier
from ...core.wire import enrolment_pb2, enrolment_pb2_grpc, link_pb2

if TYPE_CHECKING:
    from .issuing import Issuing

log = logging.getLogger("delian.cloud.enrolment")

REQUEST_BYTES_MAX = 32 * 1024  # of a whole EnrolRequest: 8 KiB of PKCS #10, 16 labels, a token
CALLS_AT_ONCE = 64  # on the enrolment's port
NODES_AT_ONCE = 256  # of a page of enrolled nodes
IDLE_MS = 30_000  # after which a connection to it that says nothing is closed

_TIERS = {
    link_pb2.NODE_DEVICE: Role.DEVICE,
    link_pb2.NODE_EDGE: Role.EDGE,
    link_pb2.NODE_CLOUD: Role.CLOUD,
}


# ---------------------------------------------------------------- limits


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`burst` calls at once from one address, and then `per_minute`."""

    burst: int = 20
    per_minute: float = 60.0
    addresses_max: int = 10_000


class RateLimiter:
    """A bucket an address (for IPv6 the /64, which one customer has whole).

    Stores the addresses that came last; a peer with more addresses than that has more buckets, and
    the calls at once are limited in any case.
    """

    def __init__(self, limit: RateLimit, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, peer: str) -> bool:
        """Whether a call from a peer, as gRPC names it ("ipv4:10.0.0.1:4711"), may go on."""
        address, now = address_of(peer), self._clock()
        left, since = self._buckets.pop(address, (float(self._limit.burst), now))
        left = min(self._limit.burst, left + (now - since) * self._limit.per_minute / 60)
        allowed = left >= 1
        self._buckets[address] = (left - 1 if allowed else left, now)
        if len(self._buckets) > self._limit.addresses_max:
            self._buckets.popitem(last=False)
        return allowed


def address_of(peer: str) -> str:
    """The address in gRPC's name of a peer; of IPv6 its first 64 bits."""
    kind, _, rest = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return kind
    host = rest.replace("%5B", "[").replace("%5D", "]").rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return "unknown"
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((address, 64), strict=False))
    return str(address)


# ---------------------------------------------------------------- the servicer


class EnrolmentService(enrolment_pb2_grpc.EnrolmentServicer):
    """Serves `Enrolment`. `counts` says how often what happened, for metrics."""

    def __init__(
        self,
        issuing: Issuing,
        tokens: TokenBook,
        *,
        limit: RateLimit | None = None,
        limiter_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._issuing = issuing
        self._authority = issuing.authority
        self._tokens = tokens
        self._limiter = RateLimiter(limit or RateLimit(), limiter_clock)
        self._one_at_a_time = asyncio.Lock()
        self._first = Once()
        self.counts = {"enrolled": 0, "refused": 0, "limited": 0, "malformed": 0, "away": 0}

    async def Enrol(
        self, request: enrolment_pb2.EnrolRequest, context: Any
    ) -> enrolment_pb2.EnrolReply:
        """Gives a node its identity."""
        peer = address_of(context.peer())
        if not self._limiter.take(context.peer()):
            self.counts["limited"] += 1
            if self._first("limited", peer):
                log.warning("enrolment limited", extra={"peer": peer})
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many tries")
        role = _TIERS.get(request.tier)
        try:
            check_tls(context.auth_context())
            if len(request.token) > TEXT_MAX or role is None:
                raise IdentityError("the request is incomplete")
            token = parse(request.token)
            key = public_bytes(await asyncio.to_thread(requested_key, request.request))
            labels = check_labels(request.labels)
        except IdentityError as error:
            self.counts["malformed"] += 1
            log.warning("malformed enrolment", extra={"peer": peer, "why": error.message})
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, error.message)
        if role is not Role.CLOUD and not await self._coordinator_is_known():
            await refuse(
                context,
                grpc.StatusCode.UNAVAILABLE,
                "no coordinator has announced its address to the authority; start it first",
            )
        now = self._issuing.clock()
        try:
            admission, number = await self._admit(token, role, key, labels, now)
            reply, fresh = await self._issuing.enrol(
                request.request, role, number, admission.addresses, admission.site
            )
        except Away as error:
            self.counts["away"] += 1
            log.warning("enrolment waits", extra={"peer": peer, "why": error.message})
            await refuse(context, grpc.StatusCode.UNAVAILABLE, error.message)
        except (TokenError, Revoked) as error:
            self.counts["refused"] += 1
            why = {"peer": peer, "token_id": token.id.hex(), "why": error.message}
            log.warning("enrolment refused", extra=why)
            await refuse(context, grpc.StatusCode.PERMISSION_DENIED, "the token is not valid")
        except TooMany as error:
            self.counts["limited"] += 1
            log.warning("enrolment limited", extra={"peer": peer, "why": error.message})
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)
        except IdentityError as error:
            self.counts["refused"] += 1
            log.error("enrolment failed", extra={"peer": peer, "why": error.message})
            await refuse(context, grpc.StatusCode.FAILED_PRECONDITION, error.message)
        self.counts["enrolled"] += fresh
        log.info("enrolled", extra={"peer": peer, "node": f"{role.value}-{number}"})
        return reply

    def unreadable(self, kind: str, context: Any) -> None:
        """A request that is too large for gRPC, does not parse, or did not come."""
        self.counts["malformed"] += 1
        peer = address_of(context.peer())
        if self._first(kind, peer):
            log.warning("malformed enrolment", extra={"peer": peer, "why": kind})

    async def _coordinator_is_known(self) -> bool:
        homes = await self._issuing.registry.homes(Node(Tier.EDGE, 0))
        return any(home.grpc or home.mqtt for home in homes)

    async def _admit(
        self, token: Token, role: Role, key: bytes, labels: Mapping[str, str], now: float
    ) -> tuple[Admission, int]:
        """Uses the token and gives the key its number.

        One at a time: a node that asks twice at once must not become two. Raises TokenError.
        """
        async with self._one_at_a_time:
            admission = await asyncio.to_thread(self._tokens.redeem, token, role, key, now_s=now)
            if admission.number is not None:
                return admission, admission.number
            if role is Role.CLOUD:  # there is one coordinator, under one name
                return admission, CLOUD.number
            above = await asyncio.to_thread(self._authority.last_number, role)
            registry = self._issuing.registry
            tier, now_ms = Tier(role.value), int(now * 1000)
            number = await registry.register(tier, labels, now_ms, above, admission.site)
            await asyncio.to_thread(self._authority.give_number, role, number)
            await asyncio.to_thread(self._tokens.bind, admission.id, key, number)
            return admission, number


# ---------------------------------------------------------------- the enrolment's port


async def serve_enrolment(
    address: str,
    material: TlsMaterial | Callable[[], TlsMaterial],
    service: EnrolmentService,
) -> tuple[grpc.aio.Server, int]:
    """Starts the enrolment's own server; gives it and its port. The caller stops it.

    material: the authority's. There is no way to serve it without TLS: the token would be read.
    """
    return await serve_all(
        address,
        partial(enrolment_pb2_grpc.add_EnrolmentServicer_to_server, service),
        service.unreadable,
        bytes_max=REQUEST_BYTES_MAX,
        calls_max=CALLS_AT_ONCE,
        idle_ms=IDLE_MS,
        credentials=server_credentials(material, require_client=False),
        purpose=" for enrolment",
    )
