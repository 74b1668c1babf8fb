"""The interface of an authority, as the coordinator uses it.

The authority is a folder in this process (`LocalAuthority`) or another process (`RemoteAuthority`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...core.node.identity.pki.certificates import PeerIdentity
from ...core.wire import authority_pb2
from ...core.wire.link_pb2 import DeniedAsk, DeniedPage, RenewalAnswer, RenewalAsk
from ...core.wire.log_pb2 import LogAsk, LogPage
from ...core.wire.operator_pb2 import TokenReply, TokenRequest


class AuthorityPort(Protocol):
    """All methods raise IdentityError, also where the authority does not answer."""

    async def renew(self, ask: RenewalAsk) -> RenewalAnswer:
        """The signed answer to a node's ask.

        Raises TooMany beyond a limit, and IdentityError where the ask proves nothing: the node asks
        again later.
        """

    async def denied(self, asked: DeniedAsk) -> DeniedPage:
        """A page of the deny list (`denied.Ask`)."""

    async def log(self, asked: LogAsk) -> LogPage:
        """A page of the certificate log."""

    async def announce(self, announcement: authority_pb2.Announcement) -> authority_pb2.Announced:
        """Announces the coordinator's addresses for nodes.

        Gives the terms, and at the root the issuing authorities.
        """

    async def recall(self, pages: Sequence[DeniedPage]) -> authority_pb2.Announced:
        """Gives a deny list back to an authority that was restored from an older copy."""

    async def nodes(self, asked: authority_pb2.NodesAsk) -> authority_pb2.NodesPage:
        """The next nodes that were enrolled."""

    async def create_token(self, request: TokenRequest, caller: PeerIdentity | None) -> TokenReply:
        """A token for an operator's caller. Raises DelianError where tokens are made elsewhere."""

    async def revoke(self, request: authority_pb2.RevokeRequest) -> authority_pb2.RevokeReply:
        """Revokes a name; durable on return. Raises DelianError where that is done elsewhere."""
