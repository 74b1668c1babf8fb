"""A device, its driver and its journal, killed at every point at which that can matter: it goes on
where it was, and has told nobody what it then does not know."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import itertools

import numpy as np
import pytest
from delian.core.node.driver.driver import Driver, DriverLimits
from delian.core.node.driver.effects import Effects
from delian.core.node.storage import codec
from delian.core.node.storage.memory_storage import MemoryBlobs, MemoryDisk
from delian.core.protocol.ports import Node, Outcome, Received, Tier
from delian.core.protocol.random_streams import Streams
from delian.core.wire.admission_pb2 import (
    Accept,
    CheckIn,
    DeviceFacts,
    Eligibility,
    RetryWindow,
)
from delian.core.wire.blob_pb2 import Blob, BlobRef, FetchBlob
from delian.core.wire.round_pb2 import COUNTED, RingPlan, Task, Upload, UploadAck
from delian.device.protocol.device_state import DevicePolicy
from delian.device.protocol.machine import DeviceMachine, DeviceState, restore
from support import node_bench as _bench

HOME, DEVICE = Node(Tier.EDGE, 2), Node(Tier.DEVICE, 7)
ROUNDS = 2
BUNDLE = b"programs" * 10
LIMITS = DriverLimits(checkpoint_entries=9)


class Killed(BaseException):
    """Power fails."""


def weights(round: int) -> bytes:
    return b"weights %d" % round


def ref(content: bytes) -> BlobRef:
    return BlobRef(digest=hashlib.sha256(content).digest(), size=len(content))


class Home:
    """The device's edge, which never fails: it hands out rounds and remembers what it was told."""

    def __init__(self) -> None:
        self.round = 1
        self.driver: Driver | None = None
        self.sequences: list[int] = []
        self.uploads: dict[int, bytes] = {}
        self.counted: list[int] = []
        self.done = asyncio.Event()

    def send(self, sender, to, message, traceparent=""):
        assert (sender, to) == (DEVICE, HOME)
        wire = codec.envelope_bytes(sender, to, message)
        match codec.message_of(codec.Envelope.FromString(wire)):
            case CheckIn() as said:
                self.sequences.append(said.sequence)
                window = RetryWindow(min_ms=100, max_ms=200)
                answer = Accept(sequence=said.sequence, lease_ms=60_000, after_task=window)
                self.answer(answer)
                self.answer(self.task())
            case FetchBlob() as said:
                known = {ref(c).digest: c for c in (BUNDLE, weights(self.round))}
                if said.digest in known:
                    content = known[said.digest]
                    self.answer(Blob(digest=said.digest, size=len(content), content=content))
            case Upload() as said:
                assert self.uploads.setdefault(said.round, said.vector) == said.vector
                if said.round == self.round:
                    self.counted.append(said.round)
                    self.round += 1
                    if self.round > ROUNDS:
                        self.done.set()
                self.answer(UploadAck(run=1, round=said.round, attempt=1, device=7, status=COUNTED))

    def task(self) -> Task:
        return Task(
            run=1,
            round=self.round,
            attempt=1,
            bundle=ref(BUNDLE),
            weights=ref(weights(self.round)),
            ring=RingPlan(clip=1, clients_max=10, bits=32, dimension=3),
            time_ms=3_600_000,
            rng_key=b"roundkey",
        )

    def answer(self, message) -> None:
        driver = self.driver
        asyncio.get_running_loop().call_later(
            0.02, lambda: driver.post(Received(HOME, message)) if driver is self.driver else None
        )


class Trainer:
    """Trains for a second; the update is a function of the weights and the key."""

    def __init__(self, blobs) -> None:
        self.blobs = blobs

    async def run(self, program):
        await asyncio.sleep(1)
        content = await self.blobs.read(program.blobs[1])
        seed = content + program.arguments[0].tobytes()
        words = np.frombuffer(hashlib.sha256(seed).digest()[:16], np.uint32).copy()
        words[-1] = 1  # what it weighs
        return Outcome(words, 1, 0.5)

    async def cancel(self, ticket):
        """A kill does not wait."""


def make(snapshot):
    return DeviceMachine(
        restore(snapshot) if snapshot else DeviceState(7),
        (HOME,),
        Streams(1),
        DeviceFacts(),
        Eligibility(consented=True),
        DevicePolicy(secure_required=False),
    )


class World:
    """What outlives the device's process."""

    def __init__(self, seed: int = 0) -> None:
        self.home, self.disk, self.blobs = Home(), MemoryDisk(), MemoryBlobs()
        self.rng = Streams(seed)
        self.lives = 0

    def driver(self) -> Driver:
        clock = _bench.LoopClock()
        journal = _bench.journal(self.disk)
        driver = Driver(
            make, journal, self.home, self.blobs, Trainer(self.blobs), clock, limits=LIMITS
        )
        self.home.driver = driver
        return driver

    async def live(self, power_fails: bool) -> None:
        """Lives until the rounds are done, however often it is killed."""
        async with asyncio.timeout(3000):
            while not self.home.done.is_set():
                self.lives += 1
                told = max(self.home.sequences, default=0)
                before = len(self.home.sequences)
                driver = self.driver()
                running = asyncio.ensure_future(driver.run())
                done = asyncio.ensure_future(self.home.done.wait())
                await asyncio.wait([running, done], return_when=asyncio.FIRST_COMPLETED)
                done.cancel()
                if self.home.done.is_set() and not running.done():
                    await driver.close()
                (fault,) = await asyncio.gather(running, return_exceptions=True)
                assert fault is None or isinstance(fault, Killed), fault
                if power_fails and fault is not None:
                    self.disk.crash(self.rng)
                since = self.home.sequences[before:]
                # Each life counts on from what its home has heard: had the device told what it
                # then forgot, it would say a number a second time.
                assert all(s > told for s in since) and since == sorted(since)
        assert self.home.counted == list(range(1, ROUNDS + 1))


class Axe:
    """Kills at the n-th of whatever calls it."""

    def __init__(self, at: int | None = None) -> None:
        self.at, self.count = at, 0

    def __call__(self, *_) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


def with_axe(monkeypatch, axe, after: bool):
    carry_out = Effects.carry_out

    async def carry_out_until_killed(self, effect, traceparent):
        if not after:
            axe()
        await carry_out(self, effect, traceparent)
        if after:
            axe()

    monkeypatch.setattr(Effects, "carry_out", carry_out_until_killed)


def live(seed: int, power_fails: bool, before=None) -> int:
    """How many lives the device needed. before: called before each operation of its disk."""

    async def main():
        world = World(seed)
        world.disk.before = before
        await world.live(power_fails)
        return world.lives

    return _bench.run(main())


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("power_fails", [False, True])
def test_killed_at_any_effect_a_device_goes_on(monkeypatch, after, power_fails):
    lives = [0]
    for at in itertools.count(1):
        axe = Axe(at)
        with monkeypatch.context() as patch:
            with_axe(patch, axe, after)
            lives.append(live(at, power_fails))
        if axe.count < at:
            break
    assert len(lives) > 15 * ROUNDS
    # The last effects come when its home has all that it wants.
    assert set(lives[1:-5]) == {2} and lives[-1] == 1


@pytest.mark.parametrize("power_fails", [False, True])
def test_killed_at_any_operation_of_its_disk_a_device_goes_on(power_fails):
    for at in itertools.count(1):
        axe = Axe(at)
        live(at, power_fails, before=axe)
        if axe.count < at:
            break
    assert at > 15 * ROUNDS


@pytest.mark.parametrize("seed", range(40))
def test_killed_again_and_again_a_device_goes_on(monkeypatch, seed):
    deaths = iter(5 + int(30 * Streams(seed).unit("death", n)) for n in range(12))
    axe = Axe(next(deaths))
    with_axe(monkeypatch, axe, after=False)

    async def main():
        world = World(seed)
        lived = world.driver

        def driver():
            axe.at, axe.count = next(deaths, None), 0
            return lived()

        world.driver = driver
        world.disk.before = axe
        await world.live(power_fails=True)

    _bench.run(main())


def test_a_replay_gives_the_state_that_was_lived():
    lived, replayed = [], []

    async def main():
        world = World()
        send = world.home.send

        def compare():
            lived.append(world.home.driver.machine.snapshot())
            snapshot, entries = _bench.journal(copy.deepcopy(world.disk)).segments.load()
            state, last = codec.open_snapshot(snapshot)
            machine = make(state)
            for entry in entries:
                event, now = codec.decode(entry)
                assert now >= last
                last = now
                machine.handle(event, now)
            replayed.append(machine.snapshot())

        def send_and_compare(*arguments):
            send(*arguments)
            # A moment later: the batch is done, and nothing else has come.
            asyncio.get_running_loop().call_later(0.01, compare)

        world.home.send = send_and_compare
        await world.live(power_fails=False)

    _bench.run(main())
    assert lived == replayed and len(lived) >= 3 * ROUNDS
