"""The coordinator's side of errands: renewals and the deny list for nodes that reach it by links
alone, be it through an edge or through a broker (`core/net/errands.py`).

A renewal is taken from the node that it is for, or from an edge for a device, and proves the rest
itself (`core/identity/relayed.py`): the present certificate is of this CA, names the node and has
signed the claim with its key. Then it is asked what `Identity.Renew` asks of a TLS peer: whether
that certificate has ended, is denied, or is of a role that renews. Those refusals are signed, and
final for the node. Everything else that goes wrong is answered without a signature: try later.

A claim that is said again is answered again, without another certificate: what was given out for a
present certificate and a new key is remembered. Beyond what is remembered (after a restart) it
costs certificates that only the node can use, and `RENEWALS_MAX` bounds them for good.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from ..core.errors import DelianError
from ..core.identity.authority import LIFE_S, Authority, DenyList, serial_bytes
from ..core.identity.certificates import IdentityError, TlsMaterial, public_bytes, requested_key
from ..core.identity.relayed import Asked, claimed, make_answer, not_now, read_ask
from ..core.identity.roles import Guard, may_ask_for
from ..core.net.errands import (
    DEVICE_BURST,
    DEVICE_PER_S,
    EDGE_BURST,
    EDGE_PER_S,
    PAGE_SERIALS_MAX,
)
from ..core.net.limits import Buckets, Faults
from ..core.net.switch import Switch
from ..core.ports import Node, Tier
from ..core.wire.enrolment_pb2 import EnrolReply
from ..core.wire.link_pb2 import DeniedAsk, DeniedPage, RenewalAnswer, RenewalAsk
from .enrolment import NodeRegistry, reply_of

log = logging.getLogger("delian.cloud.errands")

#: Certificates that may renew one certificate over links. A node needs one.
RENEWALS_MAX = 32
#: Renewals that wait for their turn.
WAITING_MAX = 256
#: Replies that are remembered, some 2 KB each: two hours of a fleet of a million.
KNOWN_MAX = 4_096
#: Pages of the deny list that an edge may ask for: the whole list at once, then one every 2 s.
PAGES_BURST, PAGES_PER_S = 128, 0.5

_RENEW = "/delian.wire.Identity/Renew"


@dataclass(frozen=True, slots=True)
class _Given:
    """A reply, and when (Unix time) it was made."""

    reply: EnrolReply
    at: float


class IdentityErrands:
    """Takes the errands of a switch. `counts` says how often what went well, `faults` what not.

    material: the coordinator's key and certificate; may block. clock: Unix time. rates: of the
    rates, in seconds.
    """

    def __init__(
        self,
        switch: Switch,
        authority: Authority,
        registry: NodeRegistry,
        material: Callable[[], TlsMaterial],
        *,
        life_s: int = LIFE_S,
        clock: Callable[[], float] = time.time,
        rates: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()  # "renewed", "repeated", "pages"
        self.faults = Faults("errands")
        self._switch, self._authority, self._registry = switch, authority, registry
        self._material, self._life_s, self._clock, self._rates = material, life_s, clock, rates
        self._guard = Guard(authority.federation, Tier.CLOUD, authority.denied, clock)
        self._known: OrderedDict[tuple[int, bytes], _Given] = OrderedDict()
        self._of_sender = Buckets(EDGE_BURST, EDGE_PER_S)
        self._of_node = Buckets(DEVICE_BURST, DEVICE_PER_S)
        self._pages = Buckets(PAGES_BURST, PAGES_PER_S)
        # One at a time: what comes twice at once is to be answered by one certificate.
        self._turn = asyncio.Lock()
        self._sorted: tuple[int, list[int]] = (0, [])
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
        key = asked.identity.serial, public_bytes(requested_key(asked.request))
        reason = await asyncio.to_thread(self._guard.refusal, asked.identity, _RENEW)
        material = await asyncio.to_thread(self._material)
        if reason is not None:
            self.faults.count(reason, asked.identity.common_name, through=str(sender))
            return await asyncio.to_thread(make_answer, material, asked, None, reason)
        reply = self._remembered(key) or await self._issue(asked, key, sender)
        return await asyncio.to_thread(make_answer, material, asked, reply)

    async def _issue(self, asked: Asked, key: tuple[int, bytes], sender: Node) -> EnrolReply:
        name = asked.identity.common_name
        if not self._of_node.take(asked.node, self._rates()):
            raise IdentityError("too many renewals of one node")
        now = self._clock()
        issued = await asyncio.to_thread(
            self._authority.renew,
            asked.request,
            asked.identity,
            asked.certificate,
            life_s=self._life_s,
            renewals_max=RENEWALS_MAX,
            now_s=now,
        )
        reply = await reply_of(issued, self._authority, self._registry, now)
        self._known[key] = _Given(reply, now)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        self.counts["renewed"] += 1
        log.info("renewed", extra={"node": name, "through": str(sender)})
        return reply

    def _remembered(self, key: tuple[int, bytes]) -> EnrolReply | None:
        """What this very key was given, unless it is due for renewal already."""
        given = self._known.get(key)
        if given is None:
            return None
        passed = max(0, int(self._clock() - given.at))
        if passed >= given.reply.renew_after_s:
            del self._known[key]
            return None
        self.counts["repeated"] += 1
        reply = EnrolReply()
        reply.CopyFrom(given.reply)
        reply.renew_after_s -= passed
        return reply

    # ------------------------------------------------ the deny list

    def _take_denied(self, sender: Node, to: Node, message: Message) -> None:
        assert isinstance(message, DeniedAsk)
        if len(self._tasks) >= WAITING_MAX or not self._pages.take(sender, self._rates()):
            self.faults.count("too many pages", sender)
            return
        self._spawn(self._page(sender, to, message))

    async def _page(self, sender: Node, to: Node, asked: DeniedAsk) -> None:
        try:
            known = await asyncio.to_thread(self._authority.denied)
        except (DelianError, OSError) as error:
            log.error("the deny list cannot be read", extra={"why": str(error)})
            return
        page = DeniedPage(version=known.version, offset=asked.offset, total=len(known.serials))
        if asked.version != known.version:
            serials = self._in_order(known)[asked.offset : asked.offset + PAGE_SERIALS_MAX]
            page.serials.extend(map(serial_bytes, serials))
        self.counts["pages"] += 1
        self._switch.send(to, sender, page)

    def _in_order(self, known: DenyList) -> list[int]:
        if self._sorted[0] != known.version:
            self._sorted = known.version, sorted(known.serials)
        return self._sorted[1]

    # ------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
