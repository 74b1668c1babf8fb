"""The authority as another process, asked over mutual TLS.

The connection is to the authority's own name, whatever address was dialled, and shows the
coordinator's certificate. Answers are limited in size before they are read; what is in them is
verified by its users (`trust.Trust`, the nodes).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from ...core.common.errors import DelianError
from ...core.common.printable import escaped
from ...core.node.identity.authority.authority_book import TooMany
from ...core.node.identity.enrolment.joining import check_labels
from ...core.node.identity.enrolment.kept_deny_list import PAGE_BYTES
from ...core.node.identity.enrolment.renewal_messages import RESULT_BYTES_MAX, result_of
from ...core.node.identity.pki import certificates
from ...core.node.net.grpc import grpc_core
from ...core.protocol.ports import Node
from ...core.wire import authority_pb2, authority_pb2_grpc, enrolment_pb2_grpc
from ...core.wire.enrolment_pb2 import EnrolReply
from ...core.wire.link_pb2 import DeniedAsk, DeniedPage, RenewalAnswer, RenewalAsk
from ...core.wire.log_pb2 import LogAsk, LogPage
from ...core.wire.operator_pb2 import TokenReply, TokenRequest
from .enrolment import NODES_AT_ONCE

log = logging.getLogger("delian.cloud.authority")

#: For one answer: less than a node waits for its renewal.
CALL_S = 20.0
#: A page of nodes: 256 of 16 labels with 512 bytes each is the most that could be.
REPLY_BYTES_MAX = max(PAGE_BYTES, RESULT_BYTES_MAX, 256 * 16 * 600) + 16 * 1024
#: A Unix time that a row can hold.
_MS_MAX = 2**62
#: Calls under way at once; more wait.
CALLS_MAX = 32

Renewed = Callable[[Node, certificates.PeerIdentity], Awaitable[None]]


class RemoteAuthority:
    """An `AuthorityPort`.

    address: "host:port". material: the coordinator's key and certificate; asked for at each
    connection, may block. renewed: called with each certificate that was passed on. number: of an
    issuing authority; the root: 0. site: of its nodes.
    """

    def __init__(
        self,
        address: str,
        material: Callable[[], certificates.TlsMaterial],
        renewed: Renewed | None = None,
        *,
        number: int = 0,
        site: str = "",
    ) -> None:
        self.address, self.number, self.site = address, number, site
        self._material, self._renewed = material, renewed
        self._channel: grpc.aio.Channel | None = None
        self._shown: certificates.TlsMaterial | None = None
        self._turns = asyncio.Semaphore(CALLS_MAX)

    async def close(self) -> None:
        """May be called twice."""
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    # ------------------------------------------------ the port

    async def renew(self, ask: RenewalAsk) -> RenewalAnswer:
        answer: RenewalAnswer = await self._call(enrolment_pb2_grpc.IdentityStub, "Renew", ask)
        await self._note(answer)
        return answer

    async def _note(self, answer: RenewalAnswer) -> None:
        """Reports the certificate in an answer.

        The node verifies it; here it is for the book of nodes alone, so what is wrong with it is
        only logged.
        """
        try:
            node, result = result_of(answer)
            if result.reply and self._renewed is not None:
                made = certificates.identity_of(EnrolReply.FromString(result.reply).certificate)
                if made.node == node:
                    await self._renewed(node, made)
        except (DelianError, DecodeError) as error:
            log.warning("a renewal is not in the book of nodes: %s", error)

    async def denied(self, asked: DeniedAsk) -> DeniedPage:
        page: DeniedPage = await self._call(enrolment_pb2_grpc.IdentityStub, "Denied", asked)
        return page

    async def log(self, asked: LogAsk) -> LogPage:
        page: LogPage = await self._call(enrolment_pb2_grpc.IdentityStub, "Log", asked)
        return page

    async def announce(self, announcement: authority_pb2.Announcement) -> authority_pb2.Announced:
        told: authority_pb2.Announced = await self._ask("Announce", announcement)
        return told

    async def recall(self, pages: Sequence[DeniedPage]) -> authority_pb2.Announced:
        told: authority_pb2.Announced = await self._ask("Recall", iter(pages))
        return told

    async def nodes(self, asked: authority_pb2.NodesAsk) -> authority_pb2.NodesPage:
        page: authority_pb2.NodesPage = await self._ask("Nodes", asked)
        return _checked(page, asked.after, self.number, self.site)

    async def create_token(
        self, request: TokenRequest, caller: certificates.PeerIdentity | None
    ) -> TokenReply:
        self._elsewhere("delian token")

    async def revoke(self, request: authority_pb2.RevokeRequest) -> authority_pb2.RevokeReply:
        self._elsewhere(f"delian fleet revoke {request.name}")

    # ------------------------------------------------ parts

    def _elsewhere(self, command: str) -> NoReturn:
        raise DelianError(
            f"this coordinator has no CA key: the authority at {self.address} does that",
            f"{command} --authority {self.address}",
        )

    async def _ask(self, name: str, request: Any) -> Any:
        return await self._call(authority_pb2_grpc.AuthorityStub, name, request)

    async def _call(self, stub: Callable[[Any], Any], name: str, request: Any) -> Any:
        async with self._turns:
            channel = await self._open()
            try:
                return await getattr(stub(channel), name)(request, timeout=CALL_S)
            except grpc.aio.AioRpcError as error:
                detail = escaped((error.details() or "no reason given")[:200])
                code = error.code().name.lower().replace("_", " ")
                kind = certificates.IdentityError
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    kind = TooMany
                raise kind(f"the authority at {self.address}: {detail} ({code})") from None

    async def _open(self) -> grpc.aio.Channel:
        """The connection, with the certificate of now."""
        material = await asyncio.to_thread(self._material)
        if self._channel is not None and material == self._shown:
            return self._channel
        before = self._channel
        grpc_core.hold()
        options = [
            *certificates.authority_options(material.identity().federation, self.number),
            ("grpc.max_receive_message_length", REPLY_BYTES_MAX),
        ]
        credentials = certificates.channel_credentials(material)
        self._channel = grpc.aio.secure_channel(self.address, credentials, options=options)
        self._shown = material
        if before is not None:
            await before.close(CALL_S)
        return self._channel


def _checked(
    page: authority_pb2.NodesPage, after: int, authority: int = 0, site: str = ""
) -> authority_pb2.NodesPage:
    """The page, if it is what was asked for and fits the store.

    authority: that gave it; site: of its nodes, where it is an issuing one. Raises IdentityError.
    """
    if len(page.nodes) > NODES_AT_ONCE:
        raise certificates.IdentityError(f"the authority gave {len(page.nodes)} nodes at once")
    last = after
    for node in page.nodes:
        times = 0 < node.enrolled_ms <= _MS_MAX and node.certificate_ends_ms <= _MS_MAX
        if not last < node.number <= certificates.NUMBER_MAX or not times:
            raise certificates.IdentityError("the authority's page of nodes is not in order")
        check_labels(node.labels)
        if node.number >> certificates.NUMBER_BITS != authority or (
            authority and node.site != site
        ):
            raise certificates.IdentityError(
                f"the authority {authority} gave a node that is not its own"
            )
        if node.site:
            certificates.check_site(node.site)
        last = node.number
    return page
