"""A coordinator as a process, with light devices over gRPC: whole runs, and what kill -9 leaves."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

import grpc
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import Mlp, adam, sgd
from delian.core.learning.runtime import Runtime
from delian.core.node.driver.driver import Driver
from delian.core.node.net.grpc.grpc_guard import claim
from delian.core.node.net.grpc.grpc_link import GrpcUplink
from delian.core.node.net.loopback import INSECURE
from delian.core.node.net.mqtt.broker import Broker, BrokerSettings, mosquitto_path
from delian.core.node.net.mqtt.mqtt_link import MqttIdentity, MqttUplink
from delian.core.node.net.switch import Switch
from delian.core.node.storage.codec import address
from delian.core.node.storage.memory_storage import MemoryBlobs, MemoryDisk
from delian.core.privacy.mechanisms import ring
from delian.core.protocol.machine import Backoff
from delian.core.protocol.ports import MS, SECOND, Node, Ordered, Outcome, Tier
from delian.core.protocol.random_streams import Streams
from delian.core.wire.admission_pb2 import DeviceFacts, Eligibility, RetryWindow
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.journal_pb2 import Connected
from delian.core.wire.operator_pb2 import (
    ModelRequest,
    PlanMessage,
    PutPart,
    RunRequest,
    SubmitRequest,
    WatchRequest,
)
from delian.core.wire.operator_pb2_grpc import OperatorStub
from delian.device.protocol.device_state import DevicePolicy, DeviceState
from delian.device.protocol.machine import DeviceMachine
from support.disk_journal import DiskJournal

DEVICES, ROUNDS = 4, 2
HOME = Node(Tier.EDGE, 0)
POLICY = DevicePolicy(
    backoff=Backoff(300 * MS, 1 * SECOND, 2**20),
    retry_ms=(100, 300),
    rehome_ms=(50, 100),
    secure_required=False,
)


@pytest.fixture(scope="module")
def bundle():
    rows = SampleSet(np.zeros((6, 4), np.float32), np.zeros(6, np.int32), np.array(4), np.array(2))
    return build(
        Classification("small", lambda key: Mlp.init(key, 4, (3,), 2), Samples(2, 1.0)),
        FedAvg(local=sgd(0.1), server=adam(0.01), personal_steps=1, epochs=1),
        rows,
        example=TensorType(DType.F32, (2, 4)),
        clip=1.0,
        clients_max=8,
        weight_max=6.0,
        seed=1,
    )


class Coordinator:
    """`delian cloud run` in a process of its own."""

    def __init__(self, folder: Path, store: str = "", broker: str = "") -> None:
        self.folder, self.store, self.broker, self.port = folder, store, broker, 0
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        code = "import sys; from delian.cli.main import main; sys.argv[0] = 'delian'; main()"
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", code, "cloud", "run", "--insecure"),
            *("--state", str(self.folder), "--listen", f"127.0.0.1:{self.port}"),
            *("--store", self.store, "--broker", self.broker, "--set", "cloud.health="),
            cwd=self.folder.parent,
            stdout=asyncio.subprocess.PIPE,
            stderr=(self.folder.parent / "log").open("ab"),
        )
        line = await asyncio.wait_for(self.process.stdout.readline(), 120)
        assert line, (self.folder.parent / "log").read_text()[-2000:]
        self.port = json.loads(line)["ports"]["grpc"]

    async def end(self, how: signal.Signals) -> int:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, how)
        return await asyncio.wait_for(self.process.wait(), 120)

    @contextlib.asynccontextmanager
    async def operator(self):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            stub = OperatorStub(channel)

            def call(name, request, **options):
                return getattr(stub, name)(request, metadata=claim("operator-0"), **options)

            yield call


class Runner:
    """Trains nothing: a small vector that is a function of device and key. `gate` holds it up."""

    def __init__(self, device: int) -> None:
        self.device, self.runs = device, 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def run(self, program):
        self.runs += 1
        await self.gate.wait()
        key, told = program.arguments
        plan = ring.RingPlan(clip=told.clip, clients_max=told.clients_max, dimension=told.dimension)
        rng = np.random.default_rng([self.device, int(key[0]), int(key[1])])
        update = (rng.random(told.dimension, np.float32) - 0.5) / 10
        return Outcome(ring.encode(update, np.float32(0.5), key, plan), 4, 1.0)

    async def cancel(self, ticket):
        self.gate.set()


class Device:
    """A device's machine with its driver and link, and nothing else."""

    def __init__(self, number: int, port: int, broker: str = "") -> None:
        self.node = Node(Tier.DEVICE, number)
        self.runner, self.switch, blobs = Runner(number), Switch(), MemoryBlobs()
        if broker:
            who = MqttIdentity(INSECURE, self.node)
            self.link = MqttUplink(self.switch, who, {HOME: broker}, on_connected=self._connected)
        else:
            home = {HOME: f"127.0.0.1:{port}"}
            self.link = GrpcUplink(self.switch, self.node, home, None, on_connected=self._connected)
        self.switch.add_link(self.link)
        journal = DiskJournal(MemoryDisk(), lambda n: bytes(n))
        self.driver = Driver(lambda _: self._machine(), journal, self.switch, blobs, self.runner)
        self.switch.attach(self.node, self.driver.post, blobs)
        self.task = asyncio.create_task(self.driver.run())
        self.link.start()

    def _connected(self, home) -> None:
        """As the daemon does: a task may have come and gone with the coordinator."""
        self.driver.post(Ordered(Connected(home=address(home))))

    def _machine(self):
        may = Eligibility(powered=True, unmetered=True, idle=True, consented=True, fresh=True)
        state, facts = DeviceState(self.node.number), DeviceFacts(memory_mib=64)
        rng = Streams(self.node.number)
        return DeviceMachine(state, (HOME,), rng, facts, may, policy=POLICY)

    @property
    def answered(self) -> bool:
        return self.runner.runs > 0 and self.driver.machine.state.task is None

    async def close(self) -> None:
        self.runner.gate.set()
        await self.link.close()
        await self.driver.close()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.switch.close()


@contextlib.asynccontextmanager
async def devices(port, broker=""):
    """The fleet; where there is a broker, every other device speaks through it."""
    made = [Device(n, port, broker if n % 2 else "") for n in range(1, DEVICES + 1)]
    try:
        yield made
    finally:
        await asyncio.gather(*(device.close() for device in made))


async def submit(call, bundle, rounds=ROUNDS, round_s=120) -> int:
    """round_s: longer than a round takes of which nothing is lost, on whatever machine."""
    refs = []
    for content in (bundle.bare().to_bytes(), bundle.weights.tobytes()):
        ref = BlobRef(digest=hashlib.sha256(content).digest(), size=len(content))
        parts = [
            PutPart(blob=ref),
            PutPart(content=content[:1000]),
            PutPart(content=content[1000:]),
        ]
        refs.append(await call("PutBlob", iter(parts)))
    manifest = bundle.manifest
    plan = PlanMessage(
        name="small",
        rounds=rounds,
        cohort=DEVICES,
        over_selection=1.0,
        reports_min=DEVICES,
        bundle=refs[0],
        weights=refs[1],
        timeout_ms=round_s * 1000,
        attempts_max=50,
        wait_ms=300_000,
        after_task=RetryWindow(min_ms=50, max_ms=150),
        seed=7,
    )
    plan.ring.clip, plan.ring.clients_max = manifest.clip, manifest.clients_max
    plan.ring.bits, plan.ring.dimension = 32, manifest.dimension
    return (await call("Submit", SubmitRequest(plan=plan))).run


async def ended(call, run) -> list[dict]:
    """A run's events to its end. What a kill took with it an attempt waits for as long as it has
    time, and a device that found nobody comes back later each time.
    """
    events = []
    try:
        async for event in call("WatchRun", WatchRequest(run=run), timeout=400):
            events.append({"kind": event.kind, **json.loads(event.facts)})
    except grpc.aio.AioRpcError as error:
        raise AssertionError(f"no end after {events}") from error
    return events


async def final_weights(call, run, rounds=ROUNDS) -> np.ndarray:
    model = await call("GetModel", ModelRequest(run=run, round=rounds))
    content = b"".join([part.content async for part in call("GetBlob", model.weights)])
    return np.frombuffer(content, "<f4")


async def until(condition) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.02)


def expected(bundle, rounds) -> np.ndarray:
    """What the runtime makes of all devices' updates."""
    runtime = Runtime(bundle, "reference")
    state, memory = bundle.weights, runtime.memory()
    for number in range(1, rounds + 1):
        word = Streams(7).word("round key", 1, number).to_bytes(8, "little")
        total = None
        for device in range(1, DEVICES + 1):
            key = device_key(word, device)
            rng = np.random.default_rng([device, int(key[0]), int(key[1])])
            update = (rng.random(runtime.ring.dimension, np.float32) - 0.5) / 10
            vector = ring.encode(update, np.float32(0.5), key, runtime.ring)
            total = vector if total is None else total + vector
        mean, weight = ring.decode(total, runtime.ring)
        state, memory = runtime.server_update(state, memory, mean, weight=weight)
    return state


def device_key(word, device):
    body = b"delian device key v1" + word + device.to_bytes(8, "little")
    return np.frombuffer(hashlib.sha256(body).digest()[:8], "<u4")


def run(main):
    return asyncio.run(asyncio.wait_for(main, 560))


def test_a_run_ends_with_the_weights_of_the_runtime_and_an_orderly_end_leaves_a_checkpoint(
    bundle, tmp_path
):
    async def main():
        coordinator = Coordinator(tmp_path / "cloud")
        await coordinator.start()
        try:
            async with (
                coordinator.operator() as call,
                devices_after(call, bundle, coordinator) as (
                    run_number,
                    _,
                ),
            ):
                events = await ended(call, run_number)
                weights = await final_weights(call, run_number)
            assert [e["phase"] for e in events if e["kind"] == "phase"][-1] == "done"
            rounds = [e for e in events if e["kind"] == "round"]
            assert [(e["round"], e["reported"]) for e in rounds] == [(1, DEVICES), (2, DEVICES)]
            assert np.allclose(weights, expected(bundle, ROUNDS), atol=1e-6)
            assert await coordinator.end(signal.SIGTERM) == 0
            await coordinator.start()
            async with coordinator.operator() as call:
                assert (await call("GetRun", RunRequest(run=run_number))).phase == "done"
                assert np.array_equal(weights, await final_weights(call, run_number))
        finally:
            await coordinator.end(signal.SIGKILL)
        assert "Traceback" not in (tmp_path / "log").read_text()

    run(main())


def test_a_coordinator_that_is_killed_resumes_the_round_it_was_in(bundle, tmp_path, store):
    async def main():
        coordinator = Coordinator(tmp_path / "cloud", str(store))
        await coordinator.start()
        try:
            async with coordinator.operator() as call:
                number = await submit(call, bundle)
            async with devices(coordinator.port) as fleet:
                fleet[-1].runner.gate.clear()
                await until(lambda: all(d.answered for d in fleet[:-1]))
                await until(lambda: fleet[-1].runner.runs > 0)
                await coordinator.end(signal.SIGKILL)
                await coordinator.start()
                fleet[-1].runner.gate.set()
                async with coordinator.operator() as call:
                    events = await ended(call, number)
                    weights = await final_weights(call, number)
                # Each trained once a round: what had been acknowledged was not asked for again.
                assert [d.runner.runs for d in fleet] == [ROUNDS] * DEVICES
            rounds = [e for e in events if e["kind"] == "round"]
            assert [(e["round"], e["attempt"], e["reported"]) for e in rounds] == [
                (1, 1, DEVICES),
                (2, 1, DEVICES),
            ]
            assert np.allclose(weights, expected(bundle, ROUNDS), atol=1e-6)
        finally:
            await coordinator.end(signal.SIGKILL)

    run(main())


@pytest.mark.skipif(mosquitto_path() is None, reason="mosquitto is not installed")
def test_devices_on_both_transports_share_a_round(bundle, tmp_path):
    async def main():
        broker = Broker(BrokerSettings(kind="mosquitto", port=0))
        url = await broker.start()
        coordinator = Coordinator(tmp_path / "cloud", broker=url)
        await coordinator.start()
        try:
            async with coordinator.operator() as call:
                number = await submit(call, bundle)
                async with devices(coordinator.port, url):
                    events = await ended(call, number)
                weights = await final_weights(call, number)
            rounds = [e for e in events if e["kind"] == "round"]
            assert [(e["round"], e["reported"]) for e in rounds] == [(1, DEVICES), (2, DEVICES)]
            assert np.allclose(weights, expected(bundle, ROUNDS), atol=1e-6)
        finally:
            await coordinator.end(signal.SIGKILL)
            await broker.close()

    run(main())


def test_a_second_coordinator_in_the_same_place_is_refused(tmp_path):
    async def main():
        first = Coordinator(tmp_path / "cloud")
        await first.start()
        try:
            second = Coordinator(tmp_path / "cloud")
            with pytest.raises(AssertionError, match="in use"):
                await second.start()
            assert await second.end(signal.SIGKILL) == 2
        finally:
            await first.end(signal.SIGTERM)

    run(main())


@pytest.mark.parametrize("rounds", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_kills_at_any_moment_lose_and_repeat_no_update(bundle, tmp_path, rounds):
    moments = random.Random(1)

    async def main():
        coordinator = Coordinator(tmp_path / "cloud")
        await coordinator.start()
        try:
            async with coordinator.operator() as call:
                number = await submit(call, bundle, rounds, round_s=30)
            async with devices(coordinator.port):
                for _ in range(rounds):
                    await asyncio.sleep(moments.random() * 1.5)
                    await coordinator.end(signal.SIGKILL)
                    await coordinator.start()
                async with coordinator.operator() as call:
                    events = await ended(call, number)
                    weights = await final_weights(call, number, rounds)
            good = [e for e in events if e["kind"] == "round" and e["succeeded"]]
            assert [(e["round"], e["reported"]) for e in good] == [
                (number, DEVICES) for number in range(1, rounds + 1)
            ]
            assert np.allclose(weights, expected(bundle, rounds), atol=1e-6)
        finally:
            await coordinator.end(signal.SIGKILL)

    run(main())


@contextlib.asynccontextmanager
async def devices_after(call, bundle, coordinator):
    number = await submit(call, bundle)
    async with devices(coordinator.port) as fleet:
        yield number, fleet
