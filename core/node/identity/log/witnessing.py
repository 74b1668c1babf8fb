"""The authority's side of witnesses.

It sends them each newer head of the certificate log, and publishes a head when a quorum has
co-signed it.

Devices whose terms name a quorum accept nothing else. So a certificate can be used in masked sums
when the next head is co-signed: seconds after it was issued, while witnesses answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping

from ....common.errors import DelianError
from ....wire.log_pb2 import Checkpoint, CosignAsk, Cosignature, CosignReply
from ..authority.authority import Authority
from ..authority.founding import terms_of
from ..authority.terms import WITNESSES_MAX
from .certificate_log import RESIGN_S, update_of
from .log_entries import LogError, LogHead, cosigned, read_head

log = logging.getLogger("delian.identity")

#: How often the log is looked at; a burst of enrolments is one head.
PUSH_EVERY_S = 5.0
#: Tries at one witness: its first answer may be the size of its last head.
TRIES = 2

#: Asks one witness; raises IdentityError where it refuses or does not answer.
AskWitness = Callable[[CosignAsk], Awaitable[CosignReply]]


class Witnessing:
    """Collects co-signatures. Run one in the process that has the CA's folder."""

    def __init__(
        self,
        authority: Authority,
        witnesses: Mapping[str, AskWitness],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """witnesses: by address. clock: Unix time in seconds. Raises LogError for too many."""
        if len(witnesses) > WITNESSES_MAX:
            raise LogError(f"{len(witnesses)} witnesses; at most {WITNESSES_MAX}")
        self._authority, self._witnesses, self._clock = authority, witnesses, clock
        self._sizes: dict[str, int] = {}  # of the last head of each witness
        self._failed: set[str] = set()

    async def run(self, every_s: float = PUSH_EVERY_S) -> None:
        """Pushes until it is cancelled. What goes wrong is logged and tried again."""
        while True:
            try:
                await self.push()
            except (DelianError, OSError) as error:
                log.error("no head of the certificate log was published: %s", error)
            await asyncio.sleep(every_s)

    async def push(self) -> bool:
        """Publishes the newest head, if it is not published and a quorum co-signs it.

        Whether it did. Raises IdentityError.
        """
        newest = await asyncio.to_thread(self._newest)
        if newest is None:
            return False
        names = list(self._witnesses)
        found = await asyncio.gather(*(self._ask(name, newest) for name in names))
        newest.cosignatures.extend(one for one in found if one is not None)
        held = await asyncio.to_thread(terms_of, self._authority)
        if held is None:
            return False
        count = len(cosigned(newest, held.witnesses))
        if count < held.quorum:
            head = read_head(newest.head)
            log.warning(
                "the head of %d entries has %d cosignatures of the %d that the terms ask for",
                head.size,
                count,
                held.quorum,
            )
            return False
        await asyncio.to_thread(self._authority.log.publish, newest)
        return True

    def _newest(self) -> Checkpoint | None:
        """The newest head, without cosignatures; None: it is published, or no witness is asked."""
        held, now = terms_of(self._authority), self._clock()
        if held is None or held.quorum == 0 or not self._witnesses:
            return None
        made = Checkpoint()
        made.CopyFrom(self._authority.log.checkpoint(now))
        kept = self._authority.log.kept()
        if kept is not None and _is_published(read_head(made.head), read_head(kept.head), now):
            counted = len(cosigned(kept, held.witnesses))
            if counted >= held.quorum:
                return None
        return made

    async def _ask(self, name: str, newest: Checkpoint) -> Cosignature | None:
        """One witness's cosignature; None: it gave none, which is logged once."""
        try:
            for _ in range(TRIES):
                size = self._sizes.get(name, 0)
                tree = self._authority.log.tree
                update = await asyncio.to_thread(update_of, newest, tree, size)
                reply = await self._witnesses[name](CosignAsk(update=update))
                self._sizes[name] = reply.size
                if reply.HasField("cosignature"):
                    self._failed.discard(name)
                    return reply.cosignature
            raise LogError(f"it knows a head of {reply.size} entries, which this log does not have")
        except (DelianError, OSError, TimeoutError) as error:
            if name not in self._failed:
                log.error("the witness %s does not co-sign: %s", name, error)
            self._failed.add(name)
            return None


def _is_published(newest: LogHead, kept: LogHead, now_s: float) -> bool:
    return kept.size == newest.size and now_s - kept.issued_s < RESIGN_S
