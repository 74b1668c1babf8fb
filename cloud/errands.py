"""The coordinator's side of errands: renewals and the deny list for nodes that reach it by links
alone, be it through an edge or through a broker (`core/net/errands.py`).

A renewal is taken from the node that it is for, or from an edge for a device, and proves the rest
itself (`core/identity/relayed.py`): the present certificate is of this CA, names the node and has
signed the claim with its key. Then it is asked what `Identity.Renew` asks of a TLS peer: whether
that certificate has ended, is denied, or is of a role that renews. Those refusals are signed, and
final for the node. Everything else that goes wrong is answered without a signature: try later.

A claim that is said again is answered again, without another certificate (`issuing.Issuing`, which
has the limits). Beyond what is remembered, after a restart, it costs certificates that only the
node can use.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from google.protobuf.message import Message

from ..core.errors import DelianError
from ..core.identity.certificates import IdentityError, TlsMaterial
from ..core.identity.denied import page_of
from ..core.identity.relayed import claimed, make_answer, not_now, read_ask
from ..core.identity.roles import Guard, may_ask_for
from ..core.net.errands import EDGE_BURST, EDGE_PER_S, PAGES_BURST, PAGES_PER_S
from ..core.net.limits import Buckets, Faults
from ..core.net.switch import Switch
from ..core.ports import Node, Tier
from ..core.wire.link_pb2 import DeniedAsk, RenewalAnswer, RenewalAsk
from .issuing import Issuing

log = logging.getLogger("delian.cloud.errands")

#: Renewals that wait for their turn.
WAITING_MAX = 256

_RENEW = "/delian.wire.Identity/Renew"


class IdentityErrands:
    """Takes the errands of a switch. `counts` says how often what went well, `faults` what not.

    material: the coordinator's key and certificate; may block. rates: of the rates, in seconds.
    """

    def __init__(
        self,
        switch: Switch,
        issuing: Issuing,
        material: Callable[[], TlsMaterial],
        *,
        rates: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()  # "renewed", "repeated", "pages"
        self.faults = Faults("errands")
        self._switch, self._issuing, self._authority = switch, issuing, issuing.authority
        self._material, self._rates = material, rates
        authority = issuing.authority
        self._guard = Guard(authority.federation, Tier.CLOUD, authority.denied, issuing.clock)
        self._of_sender = Buckets(EDGE_BURST, EDGE_PER_S)
        self._pages = Buckets(PAGES_BURST, PAGES_PER_S)
        # One at a time, in the order in which they came.
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        switch.on_errand(RenewalAsk, self._take_ask)
        switch.on_errand(DeniedAsk, self._take_denied)

    async def close(self) -> None:
        """Ends what is under way; the nodes ask again. May be called twice."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # ------------------------------------------------ renewals

    def _take_ask(self, sender: Node, to: Node, message: Message) -> None:
        """sender: the next hop, which the link has authenticated."""
        assert isinstance(message, RenewalAsk)
        try:
            node = claimed(message)
        except IdentityError as error:
            self.faults.count("malformed", sender, why=error.message)
            return
        if not may_ask_for(sender, node):
            self.faults.count("renewal for another", sender, node=str(node))
            return
        crowded = len(self._tasks) >= WAITING_MAX
        if crowded or not self._of_sender.take(sender, self._rates()):
            self.faults.count("too many renewals", sender)
            self._switch.send(to, sender, not_now(message, node, "the coordinator is busy"))
            return
        self._spawn(self._renew(sender, to, message, node))

    async def _renew(self, sender: Node, to: Node, ask: RenewalAsk, node: Node) -> None:
        async with self._turn:
            try:
                answer = await self._answer(ask, sender)
            except IdentityError as error:
                self.faults.count("refused", sender, node=str(node), why=error.message)
                answer = not_now(ask, node, "the coordinator did not accept it")
            except (DelianError, OSError) as error:
                log.error("a renewal failed", extra={"node": str(node), "why": str(error)})
                self.faults.count("failed", sender)
                answer = not_now(ask, node, "the coordinator failed")
        self._switch.send(to, sender, answer)

    async def _answer(self, ask: RenewalAsk, sender: Node) -> RenewalAnswer:
        """Raises IdentityError where nothing is proved, or it may go better later."""
        asked = await asyncio.to_thread(read_ask, ask, self._authority.certificate)
        reason = await asyncio.to_thread(self._guard.refusal, asked.identity, _RENEW)
        material = await asyncio.to_thread(self._material)
        if reason is not None:
            self.faults.count(reason, asked.identity.common_name, through=str(sender))
            return await asyncio.to_thread(make_answer, material, asked, None, reason)
        reply, fresh = await self._issuing.renew(asked.request, asked.identity, asked.certificate)
        self.counts["renewed" if fresh else "repeated"] += 1
        name = asked.identity.common_name
        log.info("renewed", extra={"node": name, "through": str(sender)})
        return await asyncio.to_thread(make_answer, material, asked, reply)

    # ------------------------------------------------ the deny list

    def _take_denied(self, sender: Node, to: Node, message: Message) -> None:
        assert isinstance(message, DeniedAsk)
        if len(self._tasks) >= WAITING_MAX or not self._pages.take(sender, self._rates()):
            self.faults.count("too many pages", sender)
            return
        self._spawn(self._page(sender, to, message))

    async def _page(self, sender: Node, to: Node, asked: DeniedAsk) -> None:
        try:
            signed = await asyncio.to_thread(self._authority.signed, now_s=self._issuing.clock())
        except (DelianError, OSError) as error:
            log.error("the deny list cannot be read", extra={"why": str(error)})
            return
        self.counts["pages"] += 1
        self._switch.send(to, sender, page_of(signed, asked))

    # ------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
