"""What the driver's tests share: time that waits for nobody, a toy machine, things that record."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json

from delian.core.node.driver.driver import Driver
from delian.core.node.storage.codec import decode
from delian.core.node.storage.memory_storage import MemoryBlobs, MemoryDisk
from delian.core.protocol.ports import (
    Node,
    Ordered,
    Outcome,
    ProtocolError,
    Received,
    Record,
    Send,
    Started,
    Tier,
)
from delian.core.wire.admission_pb2 import Accept, CheckIn

from support.disk_journal import DiskJournal
from support.virtual_time import run as run

EDGE = Node(Tier.EDGE, 1)
START_NS = 1_700_000_000 * 10**9


class LoopClock:
    """Wall time that goes with the loop's."""

    def __init__(self, start: int = START_NS) -> None:
        self.start = start

    def now(self) -> int:
        return self.start + round(asyncio.get_running_loop().time() * 1e9)


def salt(size: int, numbers=itertools.count()) -> bytes:  # noqa: B008 a counter for all
    return hashlib.sha256(b"%d" % next(numbers)).digest()[:size]


def journal(disk: MemoryDisk | None = None) -> DiskJournal:
    return DiskJournal(MemoryDisk() if disk is None else disk, salt)


class Toy:
    """Counts check-ins by sequence and accepts each; a repeated one changes nothing. `script` says
    what an order leads to: sequence -> effects.
    """

    node = EDGE

    def __init__(self, snapshot: bytes | None = None, script=None) -> None:
        self.seen: list[int] = json.loads(snapshot) if snapshot else []
        self.script = script or {}
        self.events = []
        self.changed = True
        self.passed_on = False

    def snapshot(self) -> bytes:
        return json.dumps(self.seen).encode()

    def handle(self, event, now):
        self.events.append((event, now))
        self.changed, self.passed_on = True, False
        match event:
            case Received(sender, CheckIn() as message):
                if message.sequence == 777:
                    self.changed, self.passed_on = False, True
                    return [Send(sender, Accept(sequence=777))]
                if message.sequence == 666:
                    raise ProtocolError("not a number that one says")
                assert message.sequence != 999, "a fault of the machine"
                if message.sequence in self.seen:
                    self.changed = False
                    return [Record("ignored", {})]
                self.seen.append(message.sequence)
                return [
                    Send(sender, Accept(sequence=message.sequence)),
                    Record("counted", {"sequence": message.sequence}),
                    *self.script.get(message.sequence, ()),
                ]
            case Started() | Ordered():
                return []
        return []


def check_in(sequence: int, device: int = 7) -> Received:
    return Received(Node(Tier.DEVICE, device), CheckIn(device=device, sequence=sequence))


class Switchboard:
    """Records what is sent, as (node, message or digest, traceparent)."""

    def __init__(self) -> None:
        self.sent = []

    def send(self, sender, to, message, traceparent=""):
        self.sent.append((to, message, traceparent))

    def send_blob(self, sender, to, digest):
        self.sent.append((to, digest, ""))

    @property
    def accepted(self) -> list[int]:
        return [m.sequence for _, m, _ in self.sent if isinstance(m, Accept)]


class Runner:
    """Runs no program: the test says what comes of each."""

    def __init__(self, outcome=None) -> None:
        self.outcome = outcome
        self.running: dict[int, asyncio.Future] = {}
        self.cancelled: list[int] = []

    async def run(self, program):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        if self.outcome is not None:
            return self.outcome
        future = self.running[program.ticket] = asyncio.get_running_loop().create_future()
        return await future

    async def cancel(self, ticket):
        self.cancelled.append(ticket)
        future = self.running.pop(ticket, None)
        if future is not None and not future.done():
            future.set_result(Outcome(None))


def parts(**changes):
    """What a driver takes, in memory."""
    return {
        "journal": journal(),
        "switch": Switchboard(),
        "blobs": MemoryBlobs(),
        "executor": Runner(),
        "clock": LoopClock(),
        **changes,
    }


class Running:
    """A driver at work, for `async with`."""

    def __init__(
        self,
        script=None,
        limits=None,
        on_record=None,
        patience=lambda event: 0.0,
        **changes,
    ) -> None:
        self.parts = parts(**changes)
        self.switch, self.blobs = self.parts["switch"], self.parts["blobs"]
        self.executor, self.journal = self.parts["executor"], self.parts["journal"]
        self.driver = Driver(
            lambda snapshot: Toy(snapshot, script),
            **self.parts,
            on_record=on_record,
            limits=limits,
            patience=patience,
        )

    @property
    def toy(self):
        return self.driver.machine

    @property
    def events(self):
        """What the machine was told after the start."""
        return [event for event, _ in self.toy.events if not isinstance(event, Started)]

    async def __aenter__(self):
        self.task = asyncio.ensure_future(self.driver.run())
        await self.driver.started()
        return self

    async def __aexit__(self, *_):
        await self.driver.close()
        await asyncio.gather(self.task, return_exceptions=True)

    async def tell(self, *events):
        """Posts events and waits until their effects are done."""
        for event in events:
            self.driver.post(event)
        await self.settle()

    async def settle(self):
        for _ in range(20):
            await asyncio.sleep(0)


class SlowJournal:
    """A journal that takes its time, and remembers what is durable."""

    def __init__(self, seconds: float = 5.0) -> None:
        self.inner, self.seconds, self.durable = parts()["journal"], seconds, []
        self.appends, self.fault = 0, None
        self.load, self.checkpoint, self.close = (
            self.inner.load,
            self.inner.checkpoint,
            self.inner.close,
        )

    async def append(self, entries, records, tails):
        await asyncio.sleep(self.seconds)
        if self.fault is not None:
            raise self.fault
        await self.inner.append(entries, records, tails)
        self.appends += 1
        self.durable += [decode(entry)[0] for entry in entries]
