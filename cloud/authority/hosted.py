"""A CA's folder that this process serves.

The key, the tokens, the enrolment port and the authority's own certificate. `delian authority run`
has one, and so has a coordinator without a separate authority.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.common.errors import DelianError
from ...core.node.identity.authority.approvals import TokenLimits
from ...core.node.identity.authority.tokens import TokenBook
from ...core.node.identity.pki.identity_folder import HomeAddress
from ...core.node.identity.pki.leaf_certificate import DAY_S
from ...core.node.identity.pki.local_identity import authority_identity
from .enrolment import EnrolmentService, RateLimit, serve_enrolment
from .issuing import Issuing
from .local_authority import LocalAuthority
from .root_client import Refused, RootAuthority, open_authority

if TYPE_CHECKING:
    from ..service.fleet_registry import Fleet

log = logging.getLogger("delian.cloud.authority")

#: How often its own certificate is looked at.
RENEW_S = 3600.0
#: How often a daemon asks for news: revocations, terms, nodes that joined.
NEWS_S = 5.0


@dataclass(frozen=True, slots=True)
class HostingSettings:
    """What is served of a CA's folder. Addresses are "host:port"."""

    ca: Path
    enrolment: str = ""
    """Empty: no node can join."""
    public_enrolment: str = ""
    """What tokens name; empty: `enrolment`."""
    addresses: tuple[str, ...] = ()
    """For the authority's certificate."""
    certificate_days: int = 30
    enrolments_per_minute: float = 60.0
    token_uses: int = 20
    """Of tokens for devices without approval."""
    superior: str = ""
    """Of an issuing authority, the root."""
    public: str = ""
    """Where the coordinator reaches this one."""
    news_s: float = NEWS_S
    """How often an issuing authority asks the root for news."""


class HostedAuthority:
    """The folder, open. Made on a thread: it reads files. Raises IdentityError."""

    def __init__(self, settings: HostingSettings) -> None:
        self._settings = settings
        self.ca, self.superior = open_authority(settings.ca, settings.superior)
        self.ca.check_log()
        self.reached = True  # the root, at the last try
        if self.superior is not None:
            self._refresh(self.superior, "")  # nothing is served yet
        self.own = authority_identity(self.ca, settings.addresses)[0]
        self._tokens = TokenBook(self.ca.folder, self.ca.lock)
        self._limits = TokenLimits(self.ca.folder, self.ca.lock, settings.token_uses)
        self.enrolment: EnrolmentService | None = None

    def authority(
        self,
        registry: Fleet,
        announced: Callable[[HomeAddress, frozenset[int]], None] = lambda home, draining: None,
    ) -> LocalAuthority:
        """What answers. registry: the members of the federation."""
        settings = self._settings
        issuing = Issuing(self.ca, registry, life_s=settings.certificate_days * DAY_S)
        return LocalAuthority(
            self.ca,
            issuing,
            self.own.material,
            tokens=self._tokens,
            limits=self._limits,
            enrolment=settings.public_enrolment or settings.enrolment,
            announced=announced,
            superior=self.superior,
        )

    async def open_enrolment(self, authority: LocalAuthority, closers: AsyncExitStack) -> int:
        """Serves enrolment until `closers` end it; gives the port, 0: there is none.

        Raises IdentityError.
        """
        settings = self._settings
        if not settings.enrolment:
            return 0
        limit = RateLimit(per_minute=settings.enrolments_per_minute)
        self.enrolment = EnrolmentService(authority.issuing, self._tokens, limit=limit)
        server, port = await serve_enrolment(settings.enrolment, self.own.material, self.enrolment)
        closers.push_async_callback(server.stop, 1.0)
        return port

    def refused(self) -> dict[str, int]:
        """Enrolments that were refused, by kind."""
        counts = {} if self.enrolment is None else self.enrolment.counts
        return {kind: count for kind, count in counts.items() if kind != "enrolled"}

    async def follow_superior(self) -> None:
        """Exchanges news with the root, for ever.

        Of the root itself: ends at once. Raises Refused when the root trusts this authority no
        more.
        """
        while self.superior is not None:
            await asyncio.to_thread(self._refresh, self.superior, self._settings.public)
            await asyncio.sleep(self._settings.news_s)

    def _refresh(self, superior: RootAuthority, public: str) -> None:
        try:
            superior.refresh(public)
        except Refused:
            raise
        except (DelianError, OSError, TimeoutError) as error:
            if superior.signed() is None:
                raise
            if self.reached:
                log.warning("nothing is issued: %s", error)
            self.reached = False
        else:
            if not self.reached:
                log.info("the root authority answers again")
            self.reached = True

    async def keep_identity(self) -> None:
        """Renews the authority's own certificate when it is due."""
        while True:
            await asyncio.sleep(RENEW_S)
            made = asyncio.to_thread(
                authority_identity, self.ca, self._settings.addresses, now_s=time.time()
            )
            if (await made)[1]:
                log.info("the authority's certificate was renewed")
