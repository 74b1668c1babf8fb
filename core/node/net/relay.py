"""Relayed requests: what a node asks the coordinator through its links, when it has no other way.

    device                    edge                        coordinator
      |  -- RenewalAsk ------>  |  -- RenewalAsk ---------->  |   cloud/service/relay_service.py
      |  <-- RenewalAnswer ---  |  <-- RenewalAnswer -------  |
      |  -- DeniedAsk ------->  |  -- DeniedAsk ----------->  |   a page at a time
      |  <-- DeniedPage ------  |  <-- DeniedPage ----------  |

They travel in envelopes, over gRPC and MQTT alike, and are no transfers. No state machine sees them
and no journal keeps them: a node without an answer asks again later.

An edge passes renewals on for its devices, one device's for that device alone, and answers to the
device that they name; it reads neither. What makes that safe is in
`core/node/identity/enrolment/renewal_messages.py`: the edge is trusted with nothing but to carry,
or not to. The deny list is answered by each node from the one that it has itself: the CA has signed
it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from time import monotonic

from google.protobuf.message import Message

from ...protocol.ports import CLOUD, Node, Tier
from ...wire.enrolment_pb2 import EnrolReply
from ...wire.link_pb2 import DeniedAsk, DeniedPage, RenewalAnswer, RenewalAsk
from ..identity.authority.deny_list import SignedList
from ..identity.enrolment.kept_deny_list import PAGE_BYTES, page_of
from ..identity.enrolment.renewal import reply_of
from ..identity.enrolment.renewal_messages import claimed, hash_of, make_ask, not_now, result_of
from ..identity.pki.certificates import IdentityError, TlsMaterial
from ..identity.pki.roles import may_ask_for
from .message_limits import Buckets, Faults
from .switch import Switch

#: For the answer to one request: through an edge and back, and a coordinator that is busy.
ANSWER_S = 30.0
#: Pages of the deny list that one node may ask for: 6 MB at once, then one every 2 s.
PAGES_BURST, PAGES_PER_S = 128, 0.5
#: What an edge passes on of one device: a node that fails asks again after a minute and more.
DEVICE_BURST, DEVICE_PER_S = 4, 1 / 30
#: And of all its devices; a coordinator takes as much of an edge.
EDGE_BURST, EDGE_PER_S = 512, 32.0

#: The home that is connected now, by its name in messages; None: there is none.
Home = Callable[[], Node | None]


class RelayedRequests:
    """A node's side of it: asks for itself, and on an edge passes on for its devices.

    home: see `Home`. denied: on an edge, the deny list that it hands on; None: it has none yet.
    clock: of the rates, in seconds.
    """

    def __init__(
        self,
        switch: Switch,
        node: Node,
        home: Home,
        *,
        denied: Callable[[], SignedList | None] = lambda: None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.faults = Faults("errands")
        self.counts: Counter[str] = Counter()  # "renewals passed on", "answers passed on"
        self.node = node
        self._switch, self._home, self._clock = switch, home, clock
        self._denied = denied
        self._asked: dict[bytes, asyncio.Future[RenewalAnswer]] = {}
        self._page: tuple[int, asyncio.Future[DeniedPage]] | None = None
        self._of_device = Buckets(DEVICE_BURST, DEVICE_PER_S)
        self._of_all = Buckets(EDGE_BURST, EDGE_PER_S)
        self._pages = Buckets(PAGES_BURST, PAGES_PER_S)
        switch.on_relayed(RenewalAnswer, self._take_answer)
        switch.on_relayed(DeniedPage, self._take_page)
        if node.tier is Tier.EDGE:
            switch.on_relayed(RenewalAsk, self._take_ask)
            switch.on_relayed(DeniedAsk, self._take_denied)

    # ------------------------------------------------ for itself

    async def renew(
        self, material: TlsMaterial, request: bytes, timeout_s: float = ANSWER_S
    ) -> EnrolReply:
        """A certificate for the key of a request (PKCS #10, PEM). material: what the node has now.

        Raises RenewalRefused where the authority has refused under its signature, and
        IdentityError where there is no home, no answer, or none that proves anything.
        """
        home = self._somebody()
        ask = await asyncio.to_thread(make_ask, material, request)
        name = hash_of(ask)
        waits = self._asked[name] = asyncio.get_running_loop().create_future()
        try:
            self._switch.send(self.node, home, ask)
            async with asyncio.timeout(timeout_s):
                answer = await waits
        except TimeoutError:
            raise IdentityError("the renewal was not answered") from None
        finally:
            del self._asked[name]
        return await asyncio.to_thread(reply_of, answer, ask, material)

    async def denied(self, asked: DeniedAsk, timeout_s: float = ANSWER_S) -> DeniedPage:
        """A page of the deny list (`identity.denied.Ask`), one at a time.

        Raises IdentityError where there is no home, or no answer.
        """
        home = self._somebody()
        waits: asyncio.Future[DeniedPage] = asyncio.get_running_loop().create_future()
        self._page = asked.offset, waits
        self._switch.send(self.node, home, asked)
        try:
            async with asyncio.timeout(timeout_s):
                return await waits
        except TimeoutError:
            raise IdentityError(f"{home} did not answer with the deny list") from None
        finally:
            self._page = None

    def _somebody(self) -> Node:
        home = self._home()
        if home is None:
            raise IdentityError("there is no connection to a home")
        return home

    # ------------------------------------------------ what comes from above

    def _take_answer(self, sender: Node, to: Node, message: Message) -> None:
        assert isinstance(message, RenewalAnswer)
        try:
            node, result = result_of(message)
        except IdentityError as error:
            self.faults.count("malformed", sender, why=error.message)
            return
        waits = self._asked.get(result.claim_hash) if node == self.node else None
        if waits is not None:
            if not waits.done():
                waits.set_result(message)
        elif self.node.tier is Tier.EDGE and node.tier is Tier.DEVICE:
            self.counts["answers passed on"] += 1
            self._switch.send(self.node, node, message)
        else:
            self.faults.count("unexpected answer", sender)

    def _take_page(self, sender: Node, to: Node, message: Message) -> None:
        assert isinstance(message, DeniedPage)
        if len(message.entries) > PAGE_BYTES:
            self.faults.count("malformed", sender)
        elif self._page is None or self._page[0] != message.offset or self._page[1].done():
            self.faults.count("unexpected answer", sender)
        else:
            self._page[1].set_result(message)

    # ------------------------------------------------ what comes from below

    def _take_ask(self, sender: Node, to: Node, message: Message) -> None:
        """Of a node that the link has authenticated."""
        assert isinstance(message, RenewalAsk)
        try:
            node = claimed(message)
        except IdentityError as error:
            self.faults.count("malformed", sender, why=error.message)
            return
        if to != self.node or not may_ask_for(sender, node):
            self.faults.count("renewal for another", sender)
            return
        now = self._clock()
        if not self._of_device.take(sender, now) or not self._of_all.take(None, now):
            self.faults.count("too many renewals", sender)
            self._switch.send(self.node, sender, not_now(message, node, "too many renewals"))
            return
        if self._home() != CLOUD:
            self.counts["no way up"] += 1
            why = "this edge has no connection to the coordinator"
            self._switch.send(self.node, sender, not_now(message, node, why))
            return
        self.counts["renewals passed on"] += 1
        self._switch.send(self.node, CLOUD, message)

    def _take_denied(self, sender: Node, to: Node, message: Message) -> None:
        assert isinstance(message, DeniedAsk)
        signed = self._denied()
        if to != self.node or not self._pages.take(sender, self._clock()):
            self.faults.count("too many pages", sender)
        elif signed is None:
            self.counts["no deny list yet"] += 1
        else:
            self.counts["pages"] += 1
            self._switch.send(self.node, sender, page_of(signed, message))
