"""Runs a state machine for real.

Carries out the steps of `batches.py`, where the order of journal and effects is, on an event loop.

Whatever goes wrong in the machine or the journal stops the node: `run` raises, and no effect of the
batch was carried out. Starting it again recovers it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator

from ...common.errors import DelianError
from ...protocol.ports import Clock, Event, ProtocolError, Received, Record, RunProgram
from ..storage.blobs import BlobStore
from ..storage.journal import Journal
from .batches import Append, Batches, CarryOut, Checkpoint, DriverLimits, StateMachine, Step
from .clock import SteadyClock, WallClock
from .effects import Carrier, Effects
from .executor import ProgramRunner
from .log_deduplication import Once
from .traces import Traces, current

__all__ = ["Carrier", "Driver", "DriverLimits", "StateMachine"]

log = logging.getLogger("delian.node")


class Driver:
    """One node of this process, from `run` to `close`.

    make: gives the machine of a snapshot; of None, a new node's. None is given once in a node's
        life: its first state is checkpointed at once, and what changes in its configuration later
        comes as `Ordered`.
    journal: the driver's own from now on; it closes it.
    on_record: called with each Record once it is durable.
    traces: knows which trace an event belongs to; None: effects carry what came with the event.
    patience: seconds that an event may wait for others, to be made durable together. It never waits
        behind one that may not, or not so long: that takes along whatever waits.

        driver = Driver(make, journal, switch, blobs, executor)
        switch.attach(node, driver.post, blobs, limit)
        await driver.run()  # until close(); raises what has stopped the node

    `counters`: those of Batches and of Effects: "programs", "corrupt blobs", "store failed",
    "blobs gone" (damaged ones too), and "record KIND".
    """

    def __init__(
        self,
        make: Callable[[bytes | None], StateMachine],
        journal: Journal,
        switch: Carrier,
        blobs: BlobStore,
        executor: ProgramRunner,
        clock: Clock | None = None,
        on_record: Callable[[Record], None] | None = None,
        limits: DriverLimits | None = None,
        traces: Traces | None = None,
        patience: Callable[[Event], float] = lambda event: 0.0,
    ) -> None:
        self.limits = limits or DriverLimits()
        self._journal, self._switch = journal, switch
        self._blobs, self._executor, self._on_record = blobs, executor, on_record
        self._wall = time.time_ns if clock is None else None
        self._clock = SteadyClock(clock or WallClock(), self._wall)
        self._first = Once()  # refusals that were logged
        self._batches = Batches(make, self._clock, self.limits, self._refuse, traces)
        self._inbox, self.counters = self._batches.inbox, self._batches.counters
        self._patience = patience
        self._effects: Effects | None = None
        self._begun = False
        self._ready, self._ended = asyncio.Event(), asyncio.Event()
        self._closing = False
        self._fault: BaseException | None = None

    # ------------------------------------------------ what users call

    @property
    def machine(self) -> StateMachine:
        """The machine, after `started`. Its state may be a moment ahead of what is durable."""
        machine = self._batches.machine
        assert machine is not None, "the driver has not started"
        return machine

    @property
    def now(self) -> int:
        """The node's time, ns."""
        return self._clock.now()

    @property
    def waiting(self) -> int:
        """Events in the inbox."""
        return len(self._inbox)

    async def started(self) -> None:
        """Waits until the state is recovered and what Started led to is done.

        Raises what has stopped the node instead.
        """
        await self._ready.wait()
        if isinstance(self._fault, Exception):
            raise self._fault
        if self._fault is not None:
            raise DelianError("the node was stopped before it had started") from self._fault

    def post(self, event: Event, traceparent: str = "", size: int = 0) -> None:
        """Takes an event, on the event loop's thread; also before `run`.

        When the inbox is full, a message (only a message) is dropped and counted: its sender will
        repeat it. size: bytes of the message, where they are known.
        """
        if self._closing:
            return
        taken = self._batches.post(event, traceparent, size, self._patience(event))
        if not taken and self.counters["dropped"] == 1 and isinstance(event, Received):
            log.warning("inbox is full", extra={"sender": str(event.sender)})

    async def offer(self, event: Event, traceparent: str = "", size: int = 0) -> bool:
        """`post` that waits for room: how a link slows down its peers. False: the node ends."""
        while self._inbox.full and not self._closing:
            await self._inbox.room()
        self.post(event, traceparent, size)
        return not self._closing

    async def run(self) -> None:
        """Recovers the node and handles its events until `close`. Raises what has stopped it."""
        assert not self._begun, "a driver runs once"
        self._begun = True
        try:
            await self._recover()
            while not self._closing:
                await self._inbox.filled()
                await self._inbox.gathered()
                if self._closing:
                    break
                await self._carry_out(self._batches.batch())
                self._ready.set()
            await self._carry_out(self._batches.end())
        except Exception as fault:
            self._fault = fault
            machine = self._batches.machine
            name = str(machine.node) if machine else "a node"
            # An error of ours says what to do about it; of others it takes a developer to read.
            trace = None if isinstance(fault, DelianError) else fault
            log.error("%s stops: %s", name, fault, exc_info=trace, extra={"node": name})
            raise
        except BaseException as fault:  # cancelled, or the process is to end
            self._fault = fault
            raise
        finally:
            await self._end()

    async def close(self) -> None:
        """Finishes the current batch, checkpoints, stops programs and timers, closes the journal.

        What waits in the inbox is dropped: its arrival was not acknowledged. May be called twice,
        but not by the machine's own effects.
        """
        self._closing = True
        self._inbox.wake()
        if not self._begun:
            await self._journal.close()
        else:
            await self._ended.wait()

    # ------------------------------------------------ recovery and the end

    async def _recover(self) -> None:
        snapshot, entries = await self._journal.load()
        await self._carry_out(self._batches.recover(snapshot, entries))
        stored = await self._blobs.digests()
        self._effects = Effects(
            self.machine.node,
            self._switch,
            self._blobs,
            self._executor,
            self._clock,
            self._inbox,
            self._batches.timers,
            self.counters,
            self._on_record,
        )
        self._effects.hold(stored)
        unix_ns = 0 if self._wall is None else self._wall()
        self._batches.start(stored, unix_ns)
        name = str(self.machine.node)
        facts = {"node": name, "replayed": len(entries), "blobs": len(stored)}
        log.info("%s starts", name, extra=facts)

    async def _end(self) -> None:
        self._closing = True
        self._inbox.wake()
        try:
            if self._effects is not None:
                await self._effects.close()
        finally:
            try:
                await self._journal.close()
            finally:
                self._ready.set()
                self._ended.set()

    # ------------------------------------------------ steps

    async def _carry_out(self, steps: Iterator[Step]) -> None:
        """Carries each step out before it asks for the next."""
        began, waits = self._clock.now(), True
        for step in steps:
            if isinstance(step, CarryOut):
                assert self._effects is not None
                if waits:  # until now, for its batch to be durable
                    self._effects.waited, waits = self._clock.now() - began, False
                # Not for messages: a link's tasks outlive what they were begun for.
                inner = isinstance(step.effect, Record | RunProgram)
                current.set(step.traceparent if inner else "")
                await self._effects.carry_out(step.effect, step.traceparent)
            elif isinstance(step, Append):
                await self._journal.append(step.entries, step.records, step.tails)
            elif isinstance(step, Checkpoint):
                await self._journal.checkpoint(step.snapshot)
            else:
                await asyncio.sleep(0)
        current.set("")

    def _refuse(self, event: Event, fault: ProtocolError) -> None:
        """A peer broke the protocol: nothing of what it said is kept."""
        if isinstance(event, Received):
            kind, sender = type(event.message).__name__, str(event.sender)
        else:
            kind, sender = type(event).__name__, "this node"
        if not self._first(kind, sender):
            return
        facts = {"node": str(self.machine.node), "kind": kind, "sender": sender}
        log.warning("refused a %s of %s: %s", kind, sender, fault.message, extra=facts)
