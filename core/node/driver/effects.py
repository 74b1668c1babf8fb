"""What a node does to the outside: carries out the effects of its machine, in order.

Messages go to the switch and facts to `on_record`; timers, blobs and programs answer with events in
the node's own inbox, which takes them however full it is. What the machine counts on in the store
is pinned there until it says `DropBlob`, or until the node ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

from google.protobuf.message import Message

from ...protocol import ports
from ...wire.round_pb2 import PROGRAM_FAILED
from ..storage.blobs import BlobError, BlobStore
from .executor import ProgramRunner
from .inbox import Inbox, Item
from .timers import Timer, Timers

log = logging.getLogger("delian.node")

#: Larger blobs are hashed on a thread.
_HASH_INLINE_BYTES = 2**18
#: A timer further away is looked at again after this long.
_TIMER_MAX_S = 3600.0
#: A node that stood still for longer than this, as its process, its disk or its database did, gives
#: others the time that it has missed: their messages wait behind it. At most so much.
_STALL_NS, _STALL_NS_MAX = 1 * ports.SECOND, 30 * ports.SECOND
#: How long a program may take to obey CancelProgram before its task is cancelled.
_CANCEL_S = 10.0


class Carrier(Protocol):
    """What takes a node's messages: a Switch. Neither call waits."""

    def send(
        self, sender: ports.Node, to: ports.Node, message: Message, traceparent: str = ""
    ) -> None: ...

    def send_blob(self, sender: ports.Node, to: ports.Node, digest: bytes) -> None: ...


class Effects:
    """One node's way to the outside, on the event loop's thread."""

    def __init__(
        self,
        node: ports.Node,
        switch: Carrier,
        blobs: BlobStore,
        executor: ProgramRunner,
        clock: ports.Clock,
        inbox: Inbox,
        timers: Timers,
        counters: Counter[str],
        on_record: Callable[[ports.Record], None] | None = None,
    ) -> None:
        self._node, self._switch, self._blobs = node, switch, blobs
        self._executor, self._clock, self._inbox = executor, clock, inbox
        self._counters, self._on_record = counters, on_record
        self._loop = asyncio.get_running_loop()
        self._timers = timers
        #: How long the events of which the effects come have waited to be durable, ns.
        self.waited = 0
        self._programs: dict[int, asyncio.Task[None]] = {}
        self._cancelling: set[asyncio.Task[None]] = set()
        self._pinned: set[bytes] = set()
        self._ways: dict[type[Any], Callable[[Any, str], Awaitable[None] | None]] = {
            ports.Send: self._send,
            ports.SendBlob: self._send_blob,
            ports.StoreBlob: self._store_blob,
            ports.DropBlob: self._drop_blob,
            ports.SetTimer: self._set_timer,
            ports.CancelTimer: self._cancel_timer,
            ports.RunProgram: self._run_program,
            ports.CancelProgram: self._cancel_program,
            ports.Record: self._record,
        }

    async def carry_out(self, effect: ports.Effect, traceparent: str) -> None:
        """Does one effect. traceparent: of the message that led to it."""
        waiting = self._ways[type(effect)](effect, traceparent)
        if waiting is not None:
            await waiting

    def hold(self, digests: Iterable[bytes]) -> None:
        """Pins what the machine counts on."""
        for digest in digests:
            self._pin(digest)

    async def close(self) -> None:
        """Stops timers and programs, and lets go of blobs."""
        for name in list(self._timers):
            self._cancel_timer(ports.CancelTimer(name), "")
        for ticket in list(self._programs):
            self._cancel_program(ports.CancelProgram(ticket), "")
        await asyncio.gather(*self._cancelling, return_exceptions=True)
        for digest in list(self._pinned):
            self._unpin(digest)

    # ------------------------------------------------ messages, facts

    def _send(self, effect: ports.Send, traceparent: str) -> None:
        self._switch.send(self._node, effect.to, effect.message, traceparent)

    async def _send_blob(self, effect: ports.SendBlob, traceparent: str) -> None:
        if await self._has(effect.digest):
            self._switch.send_blob(self._node, effect.to, effect.digest)

    def _record(self, effect: ports.Record, traceparent: str) -> None:
        self._counters[f"record {effect.kind}"] += 1
        if self._on_record is not None:
            self._on_record(effect)

    # ------------------------------------------------ timers

    def _set_timer(self, effect: ports.SetTimer, traceparent: str) -> None:
        self._cancel_timer(ports.CancelTimer(effect.name), traceparent)
        # The messages of the same events go out only now, so their answers come later as well.
        self._arm(effect.name, self._timers.set(effect.name, effect.at + _missed(self.waited)))

    def _arm(self, name: str, timer: Timer) -> None:
        if not self._timers.stands(name, timer):
            return
        now = self._clock.now()
        if timer.due is not None and (missed := _missed(now - timer.due)):
            timer.at = max(timer.at, now) + missed
        left_s = (timer.at - now) / 1e9
        if left_s > 0:
            # The loop's clock may stand still while the computer sleeps, and ours counts ns: so it
            # is read again.
            wait_s = min(left_s, _TIMER_MAX_S)
            timer.due = now + int(wait_s * 1e9)
            timer.handle = self._loop.call_later(wait_s, self._arm, name, timer)
        else:
            timer.handle = None
            self._inbox.put(Item(ports.TimerFired(name), timer=timer))

    def _cancel_timer(self, effect: ports.CancelTimer, traceparent: str) -> None:
        timer = self._timers.cancel(effect.name)
        if timer is not None and timer.handle is not None:
            timer.handle.cancel()

    # ------------------------------------------------ blobs

    async def _store_blob(self, effect: ports.StoreBlob, traceparent: str) -> None:
        digest = effect.blob.digest
        try:
            intact = await self._keep(effect)
        except BlobError as fault:
            # As if it had not arrived: the machine asks again, later.
            intact = False
            self._counters["store failed"] += 1
            log.error("blob not kept: %s", fault.message, extra={"blob": digest.hex()[:16]})
        if intact:
            self._pin(digest)
        else:
            self._counters["corrupt blobs"] += 1
        self._inbox.put(Item(ports.BlobStored(digest, intact), traceparent))

    async def _keep(self, effect: ports.StoreBlob) -> bool:
        """Whether the blob is in the store now. One without content was put there by a link."""
        digest, content = effect.blob.digest, effect.blob.content
        if not content and effect.blob.size:
            return await self._blobs.size(digest) is not None
        if len(content) <= _HASH_INLINE_BYTES:
            found = hashlib.sha256(content).digest()
        else:
            found = await asyncio.to_thread(lambda: hashlib.sha256(content).digest())
        if found != digest:
            return False
        await self._blobs.put(content)
        return True

    async def _has(self, digest: bytes) -> bool:
        """Whether a blob is in the store, whole.

        Where it is not, the machine, which counts on it, is notified: it requests it again, or
        reports it.
        """
        try:
            here = await self._blobs.size(digest) is not None
        except BlobError as fault:
            log.error("blob not read: %s", fault.message, extra={"blob": digest.hex()[:16]})
            here = False
        if not here:
            self._counters["blobs gone"] += 1
            self._unpin(digest)
            self._inbox.put(Item(ports.BlobStored(digest, intact=False)))
        return here

    async def _drop_blob(self, effect: ports.DropBlob, traceparent: str) -> None:
        self._unpin(effect.digest)
        try:
            await self._blobs.drop(effect.digest)
        except BlobError as fault:
            log.warning("blob not dropped: %s", fault.message)

    def _pin(self, digest: bytes) -> None:
        if digest not in self._pinned:
            self._pinned.add(digest)
            self._blobs.pin(digest)

    def _unpin(self, digest: bytes) -> None:
        if digest in self._pinned:
            self._pinned.remove(digest)
            self._blobs.unpin(digest)

    # ------------------------------------------------ programs

    def _run_program(self, effect: ports.RunProgram, traceparent: str) -> None:
        assert effect.ticket not in self._programs, f"ticket {effect.ticket} is running"
        self._counters["programs"] += 1
        task = self._loop.create_task(self._program(effect, traceparent))
        self._programs[effect.ticket] = task

    async def _program(self, effect: ports.RunProgram, traceparent: str) -> None:
        try:
            here = [await self._has(digest) for digest in effect.blobs]
            stopped = ports.ProgramStopped(PROGRAM_FAILED)
            outcome = await self._executor.run(effect) if all(here) else stopped
        except Exception:
            log.exception("%s could not be run", effect.program, extra={"ticket": effect.ticket})
            outcome = ports.ProgramStopped(PROGRAM_FAILED)
        if self._programs.get(effect.ticket) is not asyncio.current_task():
            return  # cancelled meanwhile
        del self._programs[effect.ticket]
        if isinstance(outcome, ports.NewModel):
            self._pin(outcome.weights.digest)
            if outcome.memory is not None:
                self._pin(outcome.memory.digest)
        self._inbox.put(Item(ports.ProgramFinished(effect.ticket, outcome), traceparent))

    def _cancel_program(self, effect: ports.CancelProgram, traceparent: str) -> None:
        task = self._programs.pop(effect.ticket, None)
        if task is not None:
            cancelling = self._loop.create_task(self._cancel(effect.ticket, task))
            self._cancelling.add(cancelling)
            cancelling.add_done_callback(self._cancelling.discard)

    async def _cancel(self, ticket: int, task: asyncio.Task[None]) -> None:
        try:
            await asyncio.wait_for(self._executor.cancel(ticket), _CANCEL_S)
        except Exception:
            log.exception("a program could not be cancelled", extra={"ticket": ticket})
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _missed(stalled_ns: int) -> int:
    """By how much a timer is put off, ns, where the node stood still for so long."""
    return min(stalled_ns, _STALL_NS_MAX) if stalled_ns > _STALL_NS else 0
