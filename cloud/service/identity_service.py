"""Renewals and the deny list over gRPC, as service `Identity` of proto/enrolment.proto.

The coordinator serves it to the nodes below and passes renewals on to the authority; the authority
serves it to the coordinator. What is asked for is the same as over links (`relay_service.py`): a
renewal is proved by the node's present key (`core/node/identity/enrolment/renewal_messages.py`), so
a relay can only withhold it. Here the peer is a node that asks for itself or for one whose requests
it may pass on (`roles.PASSES_ON`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import grpc

from ...core.node.identity.authority.authority_book import TooMany
from ...core.node.identity.enrolment.kept_deny_list import TIME_METADATA
from ...core.node.identity.enrolment.renewal_messages import claimed, result_of
from ...core.node.identity.pki.certificates import IdentityError, PeerIdentity, identity_of_context
from ...core.node.identity.pki.roles import Guard, may_ask_for
from ...core.node.net.grpc.grpc_requests import refuse
from ...core.node.net.message_limits import Buckets
from ...core.node.net.relay import EDGE_BURST, EDGE_PER_S
from ...core.wire import enrolment_pb2_grpc, link_pb2, log_pb2
from ..authority.port import AuthorityPort

log = logging.getLogger("delian.cloud.service.identity_service")

#: Pages of the deny list that one caller may ask for: the largest list at once, then 8 a second.
PAGES_BURST, PAGES_PER_S = 2_048, 8.0

_RENEW, _DENIED = "/delian.wire.Identity/Renew", "/delian.wire.Identity/Denied"
_LOG = "/delian.wire.Identity/Log"


class IdentityService(enrolment_pb2_grpc.IdentityServicer):
    """Serves `Identity`. `counts` says how often what happened, for metrics.

    pages, log_pages: of the deny list that is handed out, or None, and of the certificate log; may
    block. clock: Unix time.
    """

    def __init__(
        self,
        authority: AuthorityPort,
        guard: Guard,
        pages: Callable[[link_pb2.DeniedAsk], link_pb2.DeniedPage | None],
        log_pages: Callable[[log_pb2.LogAsk], log_pb2.LogPage],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._authority, self._guard = authority, guard
        self._pages_of, self._log_pages = pages, log_pages
        self._clock, self._rates = clock, time.monotonic
        self._asks = Buckets(EDGE_BURST, EDGE_PER_S)
        self._pages = Buckets(PAGES_BURST, PAGES_PER_S)
        self.counts = {"renewed": 0, "refused": 0, "limited": 0, "denied_asked": 0}

    async def Renew(self, request: link_pb2.RenewalAsk, context: Any) -> link_pb2.RenewalAnswer:
        """The authority's answer to an ask of the peer, or of a node whose request it passes on."""
        peer = await self._peer(context, _RENEW)
        name = peer.common_name
        try:
            node = claimed(request)
            if peer.node is None or not may_ask_for(peer.node, node):
                raise IdentityError("the renewal is for another node")
            if not self._asks.take(name, self._rates()):
                raise TooMany("too many renewals", "wait a minute")
            answer = await self._authority.renew(request)
            _, result = result_of(answer)
        except TooMany as error:
            self.counts["limited"] += 1
            log.warning("renewal limited", extra={"node": name, "why": error.message})
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, error.message)
        except IdentityError as error:
            self.counts["refused"] += 1
            log.warning("renewal failed", extra={"node": name, "why": error.message})
            await refuse(context, grpc.StatusCode.INVALID_ARGUMENT, error.message)
        self.counts["renewed" if result.reply else "refused"] += 1
        log.info("renewed", extra={"node": str(node), "through": name, "why": result.refusal})
        return answer

    async def Denied(self, request: link_pb2.DeniedAsk, context: Any) -> link_pb2.DeniedPage:
        """A page of the deny list."""
        peer = await self._peer(context, _DENIED)
        if not self._pages.take(peer.common_name, self._rates()):
            self.counts["limited"] += 1
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many pages")
        self.counts["denied_asked"] += 1
        # By the way, what time it is here: `delian doctor` compares.
        context.set_trailing_metadata(((TIME_METADATA, str(int(self._clock() * 1000))),))
        page = await asyncio.to_thread(self._pages_of, request)
        if page is None:
            await refuse(context, grpc.StatusCode.UNAVAILABLE, "there is no deny list yet")
        return page

    async def Log(self, request: log_pb2.LogAsk, context: Any) -> log_pb2.LogPage:
        """A page of the certificate log."""
        peer = await self._peer(context, _LOG)
        if not self._pages.take(peer.common_name, self._rates()):
            self.counts["limited"] += 1
            await refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many pages")
        try:
            return await asyncio.to_thread(self._log_pages, request)
        except IdentityError as error:
            log.error("the certificate log cannot be read", extra={"why": error.message})
            await refuse(context, grpc.StatusCode.UNAVAILABLE, error.message)

    async def _peer(self, context: Any, call: str) -> PeerIdentity:
        """The caller.

        It is checked here too, whatever serves the port: no certificate is renewed for an unchecked
        peer.
        """
        try:
            peer = identity_of_context(context.auth_context())
        except IdentityError as error:
            self.counts["refused"] += 1
            await refuse(context, grpc.StatusCode.UNAUTHENTICATED, error.message)
        refusal = await asyncio.to_thread(self._guard.refusal, peer, call)
        if peer is None or refusal is not None:
            self.counts["refused"] += 1
            name = "unknown peer" if peer is None else peer.common_name
            log.warning("call refused", extra={"node": name, "call": call, "why": refusal})
            code = grpc.StatusCode.PERMISSION_DENIED
            await refuse(context, code, refusal or "no certificate")
        return peer
