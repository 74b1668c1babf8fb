"""The coordinator's side of relayed requests (`core/node/net/relay.py`).

Renewals and the deny list for nodes that reach it by links alone, through an edge or a broker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from google.protobuf.message import Message

from ...core.common.errors import DelianError
from ...core.node.identity.enrolment.renewal_messages import claimed, not_now, result_of
from ...core.node.identity.pki.certificates import IdentityError
from ...core.node.identity.pki.roles import may_ask_for
from ...core.node.net.message_limits import Buckets, Faults
from ...core.node.net.relay import EDGE_BURST, EDGE_PER_S, PAGES_BURST, PAGES_PER_S
from ...core.node.net.switch import Switch
from ...core.protocol.ports import Node
from ...core.wire.link_pb2 import DeniedAsk, DeniedPage, RenewalAsk
from ..authority.port import AuthorityPort

log = logging.getLogger("delian.cloud.service.relay_service")

#: Renewals that wait for their turn.
WAITING_MAX = 256


class RelayService:
    """Answers the relayed requests of a switch. `counts`: what went well; `faults`: what failed.

    pages: of the deny list that the coordinator has, or None; may block. rates: of the rates, in
    seconds.
    """

    def __init__(
        self,
        switch: Switch,
        authority: AuthorityPort,
        pages: Callable[[DeniedAsk], DeniedPage | None],
        *,
        rates: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()  # "renewed", "pages"
        self.faults = Faults("errands")
        self._switch, self._authority, self._pages_of = switch, authority, pages
        self._rates = rates
        self._of_sender = Buckets(EDGE_BURST, EDGE_PER_S)
        self._pages = Buckets(PAGES_BURST, PAGES_PER_S)
        self._tasks: set[asyncio.Task[None]] = set()
        switch.on_relayed(RenewalAsk, self._take_ask)
        switch.on_relayed(DeniedAsk, self._take_denied)

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
        try:
            answer = await self._authority.renew(ask)
            _, result = result_of(answer)
            if result.reply:
                self.counts["renewed"] += 1
                log.info("renewed", extra={"node": str(node), "through": str(sender)})
            else:
                self.faults.count("refused for good", str(node), why=result.refusal[:80])
        except IdentityError as error:
            self.faults.count("refused", sender, node=str(node), why=error.message)
            answer = not_now(ask, node, "the authority did not accept it, or is away")
        except (DelianError, OSError) as error:
            log.error("a renewal failed", extra={"node": str(node), "why": str(error)})
            self.faults.count("failed", sender)
            answer = not_now(ask, node, "the coordinator failed")
        self._switch.send(to, sender, answer)

    # ------------------------------------------------ the deny list

    def _take_denied(self, sender: Node, to: Node, message: Message) -> None:
        assert isinstance(message, DeniedAsk)
        if len(self._tasks) >= WAITING_MAX or not self._pages.take(sender, self._rates()):
            self.faults.count("too many pages", sender)
            return
        self._spawn(self._page(sender, to, message))

    async def _page(self, sender: Node, to: Node, asked: DeniedAsk) -> None:
        try:
            page = await asyncio.to_thread(self._pages_of, asked)
        except (DelianError, OSError) as error:
            log.error("the deny list cannot be read", extra={"why": str(error)})
            return
        if page is None:
            self.counts["no deny list yet"] += 1
            return
        self.counts["pages"] += 1
        self._switch.send(to, sender, page)

    # ------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
