"""The coordinator's own identity, the deny list that it goes by, and the federation's terms."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ..core.identity import terms
from ..core.identity.authority import Authority
from ..core.identity.certificates import IdentityError, Role
from ..core.identity.deny_list import DenyList
from ..core.identity.folder import IdentityFolder
from ..core.identity.local import coordinator_identity
from ..core.identity.roles import Guard
from ..core.ports import Node, Tier
from ..core.wire.operator_pb2 import PlanMessage

if TYPE_CHECKING:
    from .settings import CloudSettings

log = logging.getLogger("delian.cloud")

#: How often its own certificate is looked at.
RENEW_S = 3600.0


class Trust:
    """Who the coordinator is and whom it trusts. Made on a thread: it reads files."""

    def __init__(self, settings: CloudSettings) -> None:
        self._settings = settings
        self.authority = Authority(settings.authority or settings.folder / "ca")
        self._folder = settings.identity or settings.folder / "identity"
        self.own: IdentityFolder = coordinator_identity(
            self.authority, self._folder, settings.addresses
        )[0]
        self._listed = self.authority.denied()
        self.guard = Guard(self.authority.federation, Tier.CLOUD, self.denied)

    def denied(self) -> DenyList:
        """The list as it was a moment ago; quick, for it is asked at each call."""
        return self._listed

    def refresh(self) -> DenyList:
        """The list as it is. Blocks."""
        self._listed = self.authority.denied()
        return self._listed

    def reconcile(self, numbers: Mapping[Tier, int], revoked: Iterable[Node]) -> None:
        """Brings a CA's folder that was restored from an older copy up to what the registry knows:
        the last number of each tier, and the nodes that were revoked. Blocks.
        """
        for tier, number in numbers.items():
            self.authority.note_number(Role(tier.value), number)
        listed = self.authority.denied()
        for node in sorted(revoked):
            if listed.revoked(node):
                continue
            try:
                self.authority.revoke(f"{node.tier.value}-{node.number}", "as the registry says")
            except IdentityError as error:
                log.error("a revoked node is not on the deny list: %s", error)

    async def keep_identity(self, on_renewed: Callable[[], None]) -> None:
        """Renews the coordinator's own certificate when it is due."""
        while True:
            await asyncio.sleep(RENEW_S)
            _, renewed = await asyncio.to_thread(
                coordinator_identity,
                self.authority,
                self._folder,
                self._settings.addresses,
                now_s=time.time(),
            )
            if renewed:
                log.info("the coordinator's certificate was renewed")
                on_renewed()


def check_terms(authority: Authority | None, plan: PlanMessage) -> None:
    """Whether a plan keeps to the terms that its devices hold. authority: None without
    certificates. Blocks. Raises TermsError.
    """
    content = terms.published(authority.folder) if authority is not None else b""
    if authority is not None and content:
        held = terms.verify(content, authority.key, authority.federation)
        masks = plan.secure
        terms.check_run(held, plan.HasField("secure"), masks.cohort_min, masks.corrupt)
