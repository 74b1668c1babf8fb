"""The gRPC service `Authority` of proto/authority.proto.

The coordinator, operators and issuing authorities call it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, NoReturn, TypeVar

import grpc

from ...core.common.errors import DelianError
from ...core.node.identity.authority.authority_book import TooMany
from ...core.node.identity.authority.deny_list import ENTRY_BYTES, NODES_MAX
from ...core.node.identity.authority.revoked import holder_of
from ...core.node.identity.enrolment.kept_deny_list import PAGE_BYTES
from ...core.node.identity.pki.certificates import IdentityError, Role
from ...core.node.net.grpc.grpc_requests import refuse
from ...core.node.net.message_limits import Buckets
from ...core.protocol.ports import Node, Tier
from ...core.wire import authority_pb2, authority_pb2_grpc, operator_pb2
from ...core.wire.link_pb2 import DeniedPage
from ..service.audit_log import AuditLog
from ..service.call_records import CallRecord, caller_of, own_site
from ..service.fleet_registry import Fleet
from ..service.registry import NotKnown
from ..store.database import StoreError
from .local_authority import LocalAuthority

T = TypeVar("T")

#: Calls of one caller: a coordinator makes three in 5 s, an issuing authority two, and one for each
#: certificate.
CALLS_BURST, CALLS_PER_S = 256, 8.0
#: Pages of the largest list.
PAGES_MAX = NODES_MAX * ENTRY_BYTES // PAGE_BYTES + 1


class AuthorityService(authority_pb2_grpc.AuthorityServicer):
    """Serves `Authority`. `counts` says how often what happened, for metrics.

    fleet: the nodes, with their sites. audit: the record of calls.
    """

    def __init__(self, authority: LocalAuthority, fleet: Fleet, audit: AuditLog) -> None:
        self._authority, self._fleet, self._audit = authority, fleet, audit
        self._record = CallRecord(audit)
        self._calls, self._rates = Buckets(CALLS_BURST, CALLS_PER_S), time.monotonic
        self.counts = {"announced": 0, "orders": 0, "refused": 0, "limited": 0}

    async def Announce(
        self, request: authority_pb2.Announcement, context: Any
    ) -> authority_pb2.Announced:
        self.counts["announced"] += 1
        return await self._answer(context, lambda: self._authority.announce(request))

    async def Recall(self, request_iterator: Any, context: Any) -> authority_pb2.Announced:
        async def work() -> authority_pb2.Announced:
            pages: list[DeniedPage] = []
            async for page in request_iterator:
                pages.append(page)
                if len(pages) > PAGES_MAX or len(page.entries) > PAGE_BYTES:
                    raise IdentityError("the list is longer than one can be")
            return await self._authority.recall(pages)

        return await self._answer(context, work)

    async def Nodes(self, request: authority_pb2.NodesAsk, context: Any) -> authority_pb2.NodesPage:
        return await self._answer(context, lambda: self._authority.nodes(request))

    async def CreateToken(
        self, request: operator_pb2.TokenRequest, context: Any
    ) -> operator_pb2.TokenReply:
        caller = caller_of(context).identity
        return await self._change(
            context, "CreateToken", request, lambda: self._authority.create_token(request, caller)
        )

    async def Revoke(
        self, request: authority_pb2.RevokeRequest, context: Any
    ) -> authority_pb2.RevokeReply:
        site, caller = own_site(context), caller_of(context).identity

        async def work() -> authority_pb2.RevokeReply:
            if caller is not None and caller.tier is Role.AUTHORITY:
                return await self._authority.revoke_own(caller, request)
            if site is not None:  # an owner decides about the nodes of the own site
                holder = holder_of(request.name)
                if holder is None or holder[0] not in (Role.DEVICE, Role.EDGE):
                    raise NotKnown(f"`{request.name[:80]}` is no node", "write device-5 or edge-2")
                await self._fleet.node(Node(Tier(holder[0].value), holder[1]), {}, site)
            return await self._authority.revoke(request)

        return await self._change(context, "Revoke", request, work)

    async def Register(
        self, request: authority_pb2.RegisterRequest, context: Any
    ) -> authority_pb2.RegisterReply:
        caller = caller_of(context).identity
        assert caller is not None  # the table of roles lets no other in

        async def work() -> authority_pb2.RegisterReply:
            return await asyncio.to_thread(self._authority.register, caller, request.address)

        return await self._answer(context, work)

    async def Append(
        self, request: authority_pb2.AppendRequest, context: Any
    ) -> authority_pb2.AppendReply:
        caller = caller_of(context).identity
        assert caller is not None

        async def work() -> authority_pb2.AppendReply:
            return await asyncio.to_thread(self._authority.append, caller, request.certificate)

        return await self._answer(context, work)

    async def Audit(
        self, request: operator_pb2.AuditRequest, context: Any
    ) -> AsyncIterator[operator_pb2.AuditLine]:
        after = request.after
        await self._answer(context, self._audit.sign)
        while True:
            lines, after = await self._answer(context, partial(self._audit.page, after))
            for line in lines:
                yield operator_pb2.AuditLine(line=line)
            if not lines:
                return

    # ------------------------------------------------ answers

    async def _change(
        self, context: Any, method: str, request: Any, work: Callable[[], Awaitable[T]]
    ) -> T:
        def recorded() -> Awaitable[T]:
            return self._record.during(caller_of(context), method, request, work)

        answer = await self._answer(context, recorded)
        self.counts["orders"] += 1
        return answer

    async def _answer(self, context: Any, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives; an error of ours ends the call with its words."""
        code, text = grpc.StatusCode.INTERNAL, ""
        if not self._calls.take(caller_of(context).name, self._rates()):
            self.counts["limited"] += 1
            await self._refuse(context, grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls")
        try:
            return await work()
        except TooMany as fault:
            code, text = grpc.StatusCode.RESOURCE_EXHAUSTED, fault.message
        except NotKnown as fault:
            code, text = grpc.StatusCode.NOT_FOUND, fault.message
        except StoreError as fault:
            code, text = grpc.StatusCode.UNAVAILABLE, fault.message
        except DelianError as fault:
            hint = f"\n{fault.hint}" if fault.hint else ""
            code, text = grpc.StatusCode.INVALID_ARGUMENT, fault.message + hint
        await self._refuse(context, code, text)

    async def _refuse(self, context: Any, code: grpc.StatusCode, text: str) -> NoReturn:
        self.counts["refused"] += 1
        await refuse(context, code, text)
