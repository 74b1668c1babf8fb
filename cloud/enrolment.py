"""Letting nodes in, renewing their certificates, and telling who is denied: the coordinator's side.

`Enrolment` has a port of its own, where the server shows its certificate and asks for none. What
anybody may send there is small, counted by address, and answered with as little as possible: a
wrong token, an expired one and a used one are all "the token lets nobody in".

`Identity` is served beside the link, over mutual TLS. A peer renews the certificate that it shows:
its name is read from there and from nowhere else. For nodes that cannot reach it, `errands.py` does
the same over links.

The order of things on the way in: the token is used up (by the node's key), then the number is
handed out, then number and key are written down together, then the certificate is written down,
then it is given out. A crash between two steps costs a number that nobody has, and never gives two
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import grpc

from ..core.identity.authority import Authority, Revoked, TooMany
from ..core.identity.certificates import (
    IdentityError,
    PeerIdentity,
    Role,
    TlsMaterial,
    check_tls,
    identity_of_context,
    public_bytes,
    requested_key,
    server_credentials,
)
from ..core.identity.denied import TIME_METADATA, page_of
from ..core.identity.folder import HomeAddress
from ..core.identity.joining import check_labels
from ..core.identity.ledger import Entry, FolderLock, Ledger, private_folder
from ..core.identity.roles import Guard
from ..core.identity.tokens import TEXT_MAX, Admission, Token, TokenBook, TokenError, parse
from ..core.net import grpc_core
from ..core.node.once import Once
from ..core.ports import Node, Tier
from ..core.wire import enrolment_pb2, enrolment_pb2_grpc, link_pb2

if TYPE_CHECKING:
    from .issuing import Issuing

log = logging.getLogger("delian.cloud.enrolment")

REQUEST_BYTES_MAX = 32 * 1024  # of a whole EnrolRequest: 8 KiB of PKCS #10, 16 labels, a token
CALLS_AT_ONCE = 64  # on the enrolment's port
IDLE_MS = 30_000  # after which a connection to it that says nothing is closed

_TIERS = {
    link_pb2.NODE_DEVICE: Role.DEVICE,
    link_pb2.NODE_EDGE: Role.EDGE,
    link_pb2.NODE_CLOUD: Role.CLOUD,
}
_RENEW, _DENIED = "/delian.wire.Identity/Renew", "/delian.wire.Identity/Denied"


class NodeRegistry(Protocol):
    """Who is in the federation: hands out numbers, and remembers."""

    async def register(
        self, tier: Tier, labels: Mapping[str, str], now_ms: int, above: int = 0
    ) -> int:
        """A number that no node of the tier has or had, from 1, and larger than `above`; durable on
        return.
        """

    async def certified(self, node: Node, serial: int, not_after: int, now_ms: int) -> None:
        """The node has been given a certificate. not_after: Unix time in seconds."""

    async def homes(self, node: Node) -> Sequence[HomeAddress]:
        """Where a node may connect, in the order in which to try."""


class FileRegistry:
    """A NodeRegistry in one file, for a CA without a database: tests have it. `fleet.Fleet` is the
    coordinator's.
    """

    def __init__(self, folder: Path, homes: Callable[[Node], Sequence[HomeAddress]]) -> None:
        """homes: the fixed answer to where a node may connect."""
        private_folder(folder)
        self._lock = FolderLock(folder)
        self._ledger = Ledger(folder / "nodes.jsonl")
        self._homes = homes
        self._last: dict[str, int] = {}
        self.nodes: dict[Node, Entry] = {}

    async def register(
        self, tier: Tier, labels: Mapping[str, str], now_ms: int, above: int = 0
    ) -> int:
        return await asyncio.to_thread(self._register, tier, dict(labels), now_ms, above)

    async def certified(self, node: Node, serial: int, not_after: int, now_ms: int) -> None:
        entry = {"serial": f"{serial:x}", "not_after": not_after, "certified_ms": now_ms}
        await asyncio.to_thread(self._add, node, entry)

    async def homes(self, node: Node) -> Sequence[HomeAddress]:
        return self._homes(node)

    def _register(self, tier: Tier, labels: dict[str, str], now_ms: int, above: int) -> int:
        with self._lock.held():
            self._ledger.news(self._clear, self._take)
            number = max(self._last.get(tier.value, 0), above) + 1
            self._add(Node(tier, number), {"labels": labels, "enrolled_ms": now_ms})
            return number

    def _add(self, node: Node, entry: Entry) -> None:
        entry = {"tier": node.tier.value, "number": node.number, **entry}
        with self._lock.held():
            self._ledger.news(self._clear, self._take)
            self._ledger.append(entry)
            self._take(entry)

    def _clear(self) -> None:
        self._last.clear()
        self.nodes.clear()

    def _take(self, entry: Entry) -> None:
        node = Node(Tier(entry["tier"]), int(entry["number"]))
        self._last[node.tier.value] = max(self._last.get(node.tier.value, 0), node.number)
        self.nodes[node] = {**self.nodes.get(node, {}), **entry}


# ---------------------------------------------------------------- limits


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`burst` calls at once from one address, and then `per_minute`."""

    burst: int = 20
    per_minute: float = 60.0
    addresses_max: int = 10_000


class RateLimiter:
    """A bucket an address (for IPv6 the /64, which one customer has whole). Remembers the addresses
    that came last; who comes from more of them than it remembers has more buckets, and the calls at
    once are limited in any case.
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


# ---------------------------------------------------------------- servicers


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
        self.counts = {"enrolled": 0, "refused": 0, "limited": 0, "malformed": 0}

    async def Enrol(
        self, request: enrolment_pb2.EnrolRequest, context: Any
    ) -> enrolment_pb2.EnrolReply:
        """Gives a node its identity."""
        peer = address_of(context.peer())
        if not self._limiter.take(context.peer()):
            self.counts["limited"] += 1
            if self._first("limited", peer):
                log.warning("enrolment limited", extra={"peer": peer})
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many tries")
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
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, error.message)
        now = self._issuing.clock()
        try:
            admission, number = await self._admit(token, role, key, labels, now)
            reply, fresh = await self._issuing.enrol(
                request.request, role, number, admission.addresses
            )
        except (TokenError, Revoked) as error:
            self.counts["refused"] += 1
            why = {"peer": peer, "token_id": token.id.hex(), "why": error.message}
            log.warning("enrolment refused", extra=why)
            await _refuse(context, grpc.StatusCode.PERMISSION_DENIED, "the token lets nobody in")
        except TooMany as error:
            self.counts["limited"] += 1
            log.warning("enrolment limited", extra={"peer": peer, "why": error.message})
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)
        self.counts["enrolled"] += fresh
        log.info("enrolled", extra={"peer": peer, "node": f"{role.value}-{number}"})
        return reply

    async def _admit(
        self, token: Token, role: Role, key: bytes, labels: Mapping[str, str], now: float
    ) -> tuple[Admission, int]:
        """Uses the token and gives the key its number. One at a time: a node that asks twice at
        once must not become two. Raises TokenError.
        """
        async with self._one_at_a_time:
            admission = await asyncio.to_thread(self._tokens.redeem, token, role, key, now_s=now)
            if admission.number is not None:
                return admission, admission.number
            above = await asyncio.to_thread(self._authority.last_number, role)
            registry = self._issuing.registry
            number = await registry.register(Tier(role.value), labels, int(now * 1000), above)
            await asyncio.to_thread(self._authority.give_number, role, number)
            await asyncio.to_thread(self._tokens.bind, admission.id, key, number)
            return admission, number


class IdentityService(enrolment_pb2_grpc.IdentityServicer):
    """Serves `Identity`."""

    def __init__(self, issuing: Issuing) -> None:
        self._issuing = issuing
        self._authority: Authority = issuing.authority
        self._clock = issuing.clock
        self._guard = Guard(
            self._authority.federation, Tier.CLOUD, self._authority.denied, self._clock
        )
        self.counts = {"renewed": 0, "refused": 0, "limited": 0, "denied_asked": 0}

    async def Renew(
        self, request: enrolment_pb2.RenewRequest, context: Any
    ) -> enrolment_pb2.EnrolReply:
        """A new certificate for the peer's new key, with the names that it has."""
        peer = await self._peer(context, _RENEW)
        shown = next(iter(context.auth_context()["x509_pem_cert"]))
        try:
            reply, fresh = await self._issuing.renew(request.request, peer, shown)
        except TooMany as error:
            self.counts["limited"] += 1
            log.warning("renewal limited", extra={"node": peer.common_name, "why": error.message})
            await _refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)
        except IdentityError as error:
            self.counts["refused"] += 1
            log.warning("renewal refused", extra={"node": peer.common_name, "why": error.message})
            await _refuse(context, grpc.StatusCode.PERMISSION_DENIED, error.message)
        self.counts["renewed"] += fresh
        log.info("renewed", extra={"node": peer.common_name})
        return reply

    async def Denied(self, request: link_pb2.DeniedAsk, context: Any) -> link_pb2.DeniedPage:
        """A page of the deny list."""
        await self._peer(context, _DENIED)
        self.counts["denied_asked"] += 1
        # By the way, what time it is here: `delian doctor` compares.
        context.set_trailing_metadata(((TIME_METADATA, str(int(self._clock() * 1000))),))
        signed = await asyncio.to_thread(self._authority.signed, now_s=self._clock())
        return page_of(signed, request)

    async def _peer(self, context: Any, call: str) -> PeerIdentity:
        """Who calls. It is asked here too, whoever serves the port: nothing is renewed for a peer
        that somebody forgot to check.
        """
        try:
            peer = identity_of_context(context.auth_context())
        except IdentityError as error:
            self.counts["refused"] += 1
            await _refuse(context, grpc.StatusCode.UNAUTHENTICATED, error.message)
        refusal = await asyncio.to_thread(self._guard.refusal, peer, call)
        if peer is None or refusal is not None:
            self.counts["refused"] += 1
            name = "nobody" if peer is None else peer.common_name
            log.warning("call refused", extra={"node": name, "call": call, "why": refusal})
            await _refuse(context, grpc.StatusCode.PERMISSION_DENIED, refusal or "no certificate")
        return peer


async def _refuse(context: Any, code: grpc.StatusCode, why: str) -> NoReturn:
    await context.abort(code, why)
    raise AssertionError("abort returns to nobody")


# ---------------------------------------------------------------- the enrolment's port


async def serve_enrolment(
    address: str,
    material: TlsMaterial | Callable[[], TlsMaterial],
    service: EnrolmentService,
) -> tuple[grpc.aio.Server, int]:
    """Starts the enrolment's own server; gives it and its port. The caller stops it.

    material: the coordinator's. There is no way to serve it without TLS: the token would be read.
    """
    grpc_core.hold()
    server = grpc.aio.server(
        maximum_concurrent_rpcs=CALLS_AT_ONCE,
        options=[
            ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
            ("grpc.server_handshake_timeout_ms", IDLE_MS),
            ("grpc.max_connection_idle_ms", IDLE_MS),
            ("grpc.max_connection_age_ms", 2 * IDLE_MS),
            ("grpc.max_concurrent_streams", 4),
            ("grpc.max_metadata_size", 8 * 1024),
            ("grpc.so_reuseport", 0),
        ],
    )
    enrolment_pb2_grpc.add_EnrolmentServicer_to_server(service, server)
    credentials = server_credentials(material, require_client=False)
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError:
        port = 0
    if port == 0:
        raise IdentityError(
            f"cannot listen on {address} for enrolment", "is the port in use by another process?"
        )
    await server.start()
    return server, port
