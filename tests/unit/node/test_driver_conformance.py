"""One trace, two drivers: what machines did in the simulator they do again, effect for effect,
under the daemons' driver, and once more from the journal that this one wrote."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest
from delian.cloud.protocol.machine import Coordinator
from delian.cloud.protocol.machine import restore as restore_cloud
from delian.core.node.driver.driver import Driver, DriverLimits
from delian.core.node.driver.effects import Effects
from delian.core.node.storage import codec
from delian.core.node.storage.memory_storage import MemoryDisk
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import Started, Tier
from delian.device.protocol.machine import DeviceMachine
from delian.device.protocol.machine import restore as restore_device
from delian.edge.protocol.machine import EdgeMachine
from delian.edge.protocol.machine import restore as restore_edge
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import Fleet
from delian.simulations.federation.network import LINKS
from delian.simulations.scenario.federation_plan import FederationPlan
from google.protobuf.message import Message
from support import node_bench as _bench
from support.stub_training import StubTraining
from support.virtual_time import run as run_virtually

RING = RingPlan(clip=1.0, clients_max=64, dimension=20)


def plain(value):
    """A value in a form that compares: arrays and messages as bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    if isinstance(value, Message):
        return type(value).__name__, value.SerializeToString(deterministic=True)
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return type(value).__name__, *(plain(getattr(value, f.name)) for f in fields)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


class Trace:
    """What one machine was told, and when, and what it did about each."""

    def __init__(self, machine) -> None:
        self.machine = machine
        self.began = machine.snapshot()
        self.entries: list[bytes] = []
        self.effects = []
        handle = machine.handle

        def handle_and_record(event, now):
            self.entries.append(codec.encode(event, now))
            effects = handle(event, now)
            self.effects.append([plain(effect) for effect in effects])
            return effects

        machine.handle = handle_and_record

    def again(self, snapshot: bytes):
        """A new machine like the traced one."""
        old = self.machine
        match old:
            case DeviceMachine():
                state = restore_device(snapshot)
                facts, eligibility = state.facts, state.eligibility
                return DeviceMachine(
                    state,
                    (),
                    old.device.rng,
                    facts,
                    eligibility,
                    old.owner.policy,
                    identity=old.owner.identity,
                )
            case EdgeMachine():
                return EdgeMachine(restore_edge(snapshot), old.policy)
            case Coordinator():
                return Coordinator(restore_cloud(snapshot), old.runs.identity, old.policy)


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    """Of all machines of a federation with loss, repetitions and devices that vanish."""
    found: dict[int, Trace] = {}

    def observe(now, host, event):
        if id(host.machine) not in found:
            found[id(host.machine)] = Trace(host.machine)

    fleet = Fleet(12, 2, link=LINKS["poor"], dropout=0.2)
    plan = FederationPlan.of(RING, fleet, rounds=8, cohort=5, over_selection=1.4)
    result = Federation(plan, StubTraining(RING), seed=3, observer=observe, beside=False).run()
    assert not result.failed and len(found) == 15
    return list(found.values())


class TraceClock:
    """The time of the event that is handled next."""

    def __init__(self, times: list[int]) -> None:
        self.times, self.driver = times, None

    def now(self) -> int:
        handled = 0 if self.driver is None else self.driver.counters["events"]
        return self.times[min(handled, len(self.times) - 1)]


async def drive(trace: Trace, monkeypatch, limits: DriverLimits):
    """The effects that the driver carries out, and the machine, when it is told the same."""
    effects, disk = [], MemoryDisk()

    async def carry_out(self, effect, traceparent):
        effects.append(plain(effect))

    monkeypatch.setattr(Effects, "carry_out", carry_out)
    entries = [codec.decode(entry) for entry in trace.entries]
    started, _ = entries[0]
    assert isinstance(started, Started), "a node's first event"
    journal = _bench.journal(disk)
    await journal.load()
    await journal.checkpoint(codec.seal_snapshot(trace.began, 0))
    clock = TraceClock([now for _, now in entries])
    parts = _bench.parts(journal=_bench.journal(disk), clock=clock)

    async def digests():
        return started.stored

    parts["blobs"].digests = digests
    driver = clock.driver = Driver(trace.again, limits=limits, **parts)
    for event, _ in entries[1:]:
        driver.post(event)
    running = asyncio.ensure_future(driver.run())
    while driver.counters["events"] < len(entries) and not running.done():
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return effects, driver, disk


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_the_simulator_s_trace_gives_the_same_effects_under_the_driver(
    traces, monkeypatch, tier, batch
):
    limits = DriverLimits(
        batch_events_max=batch, inbox_events_max=10**6, checkpoint_entries=10 * batch
    )
    chosen = [trace for trace in traces if trace.machine.node.tier is tier]
    assert chosen and max(len(trace.entries) for trace in chosen) > 30
    for trace in chosen:
        effects, driver, disk = run_virtually(drive(trace, monkeypatch, limits))
        assert effects == [effect for several in trace.effects for effect in several]
        assert driver.machine.snapshot() == trace.machine.snapshot()
        # And what the driver has journaled gives the same state a third time.
        snapshot, entries = _bench.journal(disk).segments.load()
        machine = trace.again(codec.open_snapshot(snapshot)[0])
        for entry in entries:
            machine.handle(*codec.decode(entry))
        assert machine.snapshot() == trace.machine.snapshot()


def test_what_the_machines_call_unchanged_is_unchanged(traces):
    skipped = 0
    for trace in traces:
        machine = trace.again(trace.began)
        before = machine.snapshot()
        for entry in trace.entries:
            machine.handle(*codec.decode(entry))
            after = machine.snapshot()
            if not machine.changed:
                skipped += 1
                assert after == before
            before = after
    assert skipped > 0
