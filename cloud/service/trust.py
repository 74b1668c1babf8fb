"""The coordinator's own identity, and its copies of what the authority signs.

The deny list, the federation's terms, and the numbers that were assigned.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from ...core.common.errors import DelianError
from ...core.node.identity.authority import terms
from ...core.node.identity.authority.deny_list import DenyList, SignedList
from ...core.node.identity.authority.issued_numbers import KeptNumbers
from ...core.node.identity.enrolment.kept_deny_list import PAGE_BYTES, KnownDenied, page_of
from ...core.node.identity.enrolment.renewal import Renewer, reply_of
from ...core.node.identity.enrolment.renewal_messages import make_ask
from ...core.node.identity.log.certificate_log import CertificateLog
from ...core.node.identity.log.log_copy import LogCopy
from ...core.node.identity.pki import certificates
from ...core.node.identity.pki.identity_folder import HomeAddress, IdentityFolder, home_message
from ...core.node.identity.pki.roles import Guard
from ...core.protocol.ports import Tier
from ...core.protocol.random_streams import Streams
from ...core.wire.authority_pb2 import Announced, Announcement
from ...core.wire.enrolment_pb2 import EnrolReply, FederationTerms
from ...core.wire.link_pb2 import DeniedAsk, DeniedPage
from ...core.wire.log_pb2 import LogAsk, LogPage
from ...core.wire.operator_pb2 import PlanMessage
from ..authority.port import AuthorityPort

log = logging.getLogger("delian.cloud")

#: How often a certificate that is made on the CA's machine is checked.
REMAKE_S = 3600.0
NUMBERS = "numbers"
#: In the coordinator's folder: its copy of the certificate log.
LOG_FOLDER = "certificate-log"


class Trust:
    """The coordinator's identity and the nodes that it trusts. Made on a thread: it reads files.

    own: the coordinator's identity. log: the certificate log, where the CA's folder is here; None:
    a copy is kept in `folder`. Raises IdentityError.
    """

    def __init__(
        self, own: IdentityFolder, folder: Path, log: CertificateLog | None = None
    ) -> None:
        self.own = own
        material = own.material()
        identity = material.identity()
        if identity.tier is not certificates.Role.CLOUD:
            raise certificates.IdentityError(
                f"{own.folder} is the identity of {identity.common_name}, not of a coordinator",
                "get one with a token of: delian token --tier cloud",
            )
        self.federation = identity.federation
        self._known = KnownDenied(own)
        self.log: CertificateLog | LogCopy
        if log is None:
            root = certificates.load_certificate(material.authority)
            self.log = LogCopy(folder / LOG_FOLDER, root, self.federation, own.terms)
        else:
            self.log = log
        self.guard = Guard(self.federation, Tier.CLOUD, self.denied)
        self._numbers = self.numbers(0)
        self.reached = True  # the authority, at the last try

    def denied(self) -> DenyList:
        """The list as it was a moment ago; quick, for it is asked at each call."""
        return self._known()

    def signed(self) -> SignedList | None:
        """The same as it is passed on; None: not fetched yet."""
        return self._known.signed

    def page(self, asked: DeniedAsk) -> DeniedPage | None:
        """A page of the deny list for a node, the first with the head of the certificate log.

        None: there is no list yet. Blocks.
        """
        signed = self._known.signed
        if signed is None:
            return None
        return page_of(signed, asked, lambda size: self.log.update(size, time.time()))

    def log_page(self, asked: LogAsk) -> LogPage:
        """A page of the certificate log. Blocks. Raises IdentityError."""
        return self.log.page(asked, time.time())

    def terms(self) -> FederationTerms | None:
        """The federation's terms as they were a moment ago; None: it has none. Blocks."""
        return self.own.terms()

    def numbers(self, authority: int) -> KeptNumbers:
        """What an authority has said of the numbers that it gave out. authority: the root: 0."""
        name = f"{NUMBERS}-{authority}" if authority else NUMBERS
        return KeptNumbers(self.own.folder / name)

    # ------------------------------------------------ the authority

    async def sync(
        self, authority: AuthorityPort, home: HomeAddress | None, draining: Iterable[int] = ()
    ) -> bool:
        """Exchanges news with the authority; what came is durable on return.

        home: where nodes reach the coordinator; None: not known yet. False: the authority did not
        answer, or not as it must; the copies stay as they are.
        """
        try:
            announcement = await asyncio.to_thread(self._announcement, home, draining)
            told = await authority.announce(announcement)
            if told.recall:
                told = await authority.recall(self._pages())
            await asyncio.to_thread(self._take, told)
            await self._known.fetch(authority.denied)
            if isinstance(self.log, LogCopy):
                await self.log.fetch(authority.log)
        except (DelianError, OSError, TimeoutError) as error:
            if self.reached:
                log.warning("no news from the authority: %s", error)
            self.reached = False
            return False
        if not self.reached:
            log.info("the authority answers again")
        self.reached = True
        return True

    def _announcement(self, home: HomeAddress | None, draining: Iterable[int]) -> Announcement:
        made = Announcement(denied_version=self._known().version)
        if home is not None:
            made.home.CopyFrom(home_message(home))
            made.draining.extend(sorted(draining))
        if (numbers := self._numbers.newest()) is not None:
            made.numbers.CopyFrom(numbers)
        return made

    def _pages(self) -> list[DeniedPage]:
        """The whole list, for an authority that has an older one."""
        signed = self._known.signed
        if signed is None:
            return []
        starts = range(0, max(1, len(signed.entries)), PAGE_BYTES)
        return [page_of(signed, DeniedAsk(offset=start)) for start in starts]

    def _take(self, told: Announced) -> None:
        if told.terms:
            authority = self.own.material().authority
            self.own.take_terms(told.terms, authority, self.federation, owned=False)
        self._numbers.take(told.numbers)

    # ------------------------------------------------ its own certificate

    async def renew(self, authority: AuthorityPort, on_renewed: Callable[[], None]) -> None:
        """Keeps the certificate alive by asking the authority, as every node does.

        Raises RenewalRefused when the authority trusts it no more.
        """

        async def ask(request: bytes) -> EnrolReply:
            material = await asyncio.to_thread(self.own.material)
            made = await asyncio.to_thread(make_ask, material, request)
            answer = await authority.renew(made)
            return await asyncio.to_thread(reply_of, answer, made, material)

        def renewed(identity: certificates.PeerIdentity) -> None:
            on_renewed()

        await Renewer(self.own, ask, renewed, Streams(0)).run()


async def remake(make: Callable[[float], bool], on_renewed: Callable[[], None]) -> None:
    """Renews a certificate that is made on the CA's machine.

    make: makes it when it is due at that Unix time, and gives whether it did; blocks.
    """
    while True:
        await asyncio.sleep(REMAKE_S)
        if await asyncio.to_thread(make, time.time()):
            log.info("the coordinator's certificate was renewed")
            on_renewed()


def check_terms(held: FederationTerms | None, plan: PlanMessage) -> None:
    """Whether a plan keeps to the terms that its devices hold.

    held: None without certificates. Raises TermsError.
    """
    if held is not None:
        masks, ring = plan.secure, plan.ring
        noised = ring.noise > 0 and not ring.central
        terms.check_run(held, plan.HasField("secure"), masks.cohort_min, masks.corrupt, noised)
