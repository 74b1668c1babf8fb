"""A small federation: a coordinator, an edge, and honest devices whose rounds must not suffer.
`memory_world.py` has one in memory, `system_world.py` one of daemons under mutual TLS.

A test asks for a round, does harm while the honest devices hold their updates back, and lets them
go. The round's model then tells whether the sum was exact: it is the digest of what the runtime
makes of the honest updates, computed here.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from delian.core.compiler.ir import DType, TensorType
from delian.core.learning import Classification, FedAvg, Samples, SampleSet
from delian.core.learning.build.bundle_builder import build
from delian.core.learning.nn import Mlp, sgd
from delian.core.learning.runtime import Runtime
from delian.core.node.driver.driver import Driver
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.pki.certificates import (
    Role,
    TlsFiles,
    TlsMaterial,
    certificate_request,
    key_pem,
    new_key,
)
from delian.core.node.net.mqtt.mqtt_link import MqttIdentity
from delian.core.node.net.switch import Switch
from delian.core.node.storage.memory_storage import MemoryBlobs, MemoryDisk
from delian.core.privacy.mechanisms import ring
from delian.core.protocol.machine import Backoff
from delian.core.protocol.ports import CLOUD, MS, SECOND, Clock, Node, Outcome, Tier
from delian.core.protocol.random_streams import Streams, device_key
from delian.core.wire.admission_pb2 import DeviceFacts, Eligibility, RetryWindow
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import PlanMessage
from delian.device.protocol.device_state import DevicePolicy, DeviceState
from delian.device.protocol.machine import DeviceMachine

from support.disk_journal import DiskJournal
from support.peers.peer_hosts import Usage

FEDERATION = "bad-peers"
EDGE, GATHERER = Node(Tier.EDGE, 1), Node(Tier.EDGE, 0)
SEED = 7
#: A round's deadline. The honest devices need a small part of it, on a slow machine too.
ROUND_MS = 60_000
WAIT_S = 180.0  # only so that nothing hangs
#: Honest devices, and where they go. Number 3 speaks MQTT where there is a broker.
HONEST = {1: EDGE, 2: EDGE, 3: EDGE, 4: GATHERER}
BY_MQTT = 3
POLICY = DevicePolicy(
    backoff=Backoff(400 * MS, 2 * SECOND, 2**20),
    retry_ms=(50, 150),
    rehome_ms=(50, 100),
    secure_required=False,
)


def make_bundle() -> Any:
    """A model whose update travels in parts: about 80 KiB."""
    rows = SampleSet(np.zeros((6, 64), np.float32), np.zeros(6, np.int32), np.array(4), np.array(2))
    return build(
        Classification("small", lambda key: Mlp.init(key, 64, (260,), 10), Samples(2, 1.0)),
        FedAvg(local=sgd(0.1), server=sgd(1.0), personal_steps=1, epochs=1),
        rows,
        example=TensorType(DType.F32, (2, 64)),
        clip=1.0,
        clients_max=16,
        weight_max=6.0,
        seed=1,
    )


def update_of(device: int, key: Any, told: Any) -> np.ndarray:
    """What a device answers to a task: a function of its number and key. told: the ring's plan."""
    plan = ring.RingPlan(clip=told.clip, clients_max=told.clients_max, dimension=told.dimension)
    rng = np.random.default_rng([device, int(key[0]), int(key[1])])
    update = (rng.random(told.dimension, np.float32) - 0.5) / 100
    vector: np.ndarray = ring.encode(update, np.float32(0.5), key, plan)
    return vector


class Runner:
    """Trains nothing. `gate` holds its answers back."""

    def __init__(self, device: int) -> None:
        self.device = device
        self.working = 0
        self.gate = asyncio.Event()

    async def run(self, program: Any) -> Outcome:
        self.working += 1
        try:
            await self.gate.wait()
        finally:
            self.working -= 1
        key, told = program.arguments
        return Outcome(update_of(self.device, key, told), 4, 1.0)

    async def cancel(self, ticket: int) -> None:
        """Its task is cancelled anyway."""


class Device:
    """An honest device: its machine, driver and link."""

    def __init__(self, world: World, number: int, home: Node) -> None:
        self.node, self.home = Node(Tier.DEVICE, number), home
        self.runner, self.switch, blobs = Runner(number), Switch(), MemoryBlobs()
        self.link = world.uplink(self.switch, self.node, home)
        self.switch.add_link(self.link)
        self.driver = Driver(
            lambda _: self._machine(),
            DiskJournal(MemoryDisk(), lambda n: bytes(n)),
            self.switch,
            blobs,
            self.runner,
            clock=world.clock,
        )
        self.switch.attach(self.node, self.driver.post, blobs)
        self.task = asyncio.create_task(self.driver.run())
        self.link.start()

    def _machine(self) -> DeviceMachine:
        may = Eligibility(powered=True, unmetered=True, idle=True, consented=True, fresh=True)
        state, facts = DeviceState(self.node.number), DeviceFacts(memory_mib=64)
        rng = Streams(self.node.number)
        return DeviceMachine(state, (self.home,), rng, facts, may, policy=POLICY)

    async def close(self) -> None:
        self.runner.gate.set()
        await self.link.close()
        await self.driver.close()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.switch.close()


class Round:
    """One round of a run of its own. facts: of its record, once it has ended."""

    def __init__(self, world: World, run: int, deadline_ms: int) -> None:
        self.world, self.run, self.deadline_ms = world, run, deadline_ms
        self.facts: dict[str, Any] = {}
        self.attempts = 0
        self.harm_ms = 0  # wall time: an attempt that ended before is no bad peer's doing

    async def under_way(self) -> None:
        """Until every honest device works for it."""
        await self.world.until(lambda: all(d.runner.working for d in self.world.honest))

    async def end(self) -> None:
        """Lets the honest devices answer, and waits for the round's end."""
        if self.facts:
            return
        await self.under_way()
        for device in self.world.honest:
            device.runner.gate.set()
        async with asyncio.timeout(WAIT_S):
            for ended_ms, facts in await self.world.attempts(self.run):
                self.attempts += ended_ms >= self.harm_ms
                self.facts = facts
                self.took_ms = ended_ms - facts["opened_ms"]
        for device in self.world.honest:
            device.runner.gate.clear()

    def check(
        self,
        counted: Iterable[int] = (),
        selected: int = len(HONEST),
        at_deadline: bool = False,
    ) -> None:
        """The round was whole before its deadline, or at it, and its sum is exact."""
        world, facts = self.world, self.facts
        assert facts["succeeded"] and self.attempts == 1, facts
        assert facts["selected"] == selected
        everybody = [*HONEST, *counted]
        assert facts["reported"] == len(everybody), facts
        if at_deadline:
            assert self.took_ms < 3 * self.deadline_ms, "the round went on past its deadline"
        else:
            assert self.took_ms < 0.9 * self.deadline_ms, "the deadline had to end the round"
        model = hashlib.sha256(world.expected(self.run, everybody).astype("<f4").tobytes())
        assert facts["model"] == model.hexdigest(), "the sum is not that of those who reported"


class World(ABC):
    """What the federations have in common. `cloud` and `edge` are its hosts (`peer_hosts`)."""

    #: How often `until` looks.
    poll_s = 0.02
    #: Tasks and files that come and go on their own: timers of an outbox, a request for the list.
    slack = 3
    #: Of drivers; None: the computer's.
    clock: Clock | None = None
    #: Whether its daemons are processes of their own.
    outside = False
    cloud: Any
    edge: Any
    #: Of MQTT; None: there is none.
    broker: Any = None

    def __init__(self, folder: Path, runner: asyncio.Runner) -> None:
        self.folder = folder
        self._runner = runner
        self.authority = Authority.create(folder / "ca", FEDERATION)
        self.bundle = make_bundle()
        self.runtime = Runtime(self.bundle, "reference")
        self.honest: list[Device] = []
        self._numbers = iter(range(101, 10_000))
        self._refs: list[BlobRef] = []

    def run(self, scene: Any) -> Any:
        """Plays a scene on the world's loop."""
        return self._runner.run(asyncio.wait_for(scene, 500))

    # ------------------------------------------------ what each has of its own

    @abstractmethod
    async def start(self) -> None:
        """Starts the hosts, then `begin`."""

    @abstractmethod
    async def close(self) -> None:
        """Ends the hosts, after `end`."""

    @abstractmethod
    def uplink(self, switch: Switch, node: Node, home: Node) -> Any:
        """An honest device's link."""

    @property
    @abstractmethod
    def enrolment_address(self) -> str:
        """Of the enrolment's port, for tokens."""

    @abstractmethod
    def enrolment_channel(self) -> Any:
        """A connection there, without a certificate."""

    @property
    @abstractmethod
    def broker_url(self) -> str:
        """Of MQTT."""

    @abstractmethod
    def publisher(self, material: TlsMaterial) -> Any:
        """A connection to the broker without a link, for `async with`: publishes topic, payload,
        as fast as it can.
        """

    @abstractmethod
    def channel(self, home: Node, material: TlsMaterial) -> Any:
        """A connection of its own to a home."""

    @abstractmethod
    def unread(self, home: Node, material: TlsMaterial, call: str) -> Any:
        """A call that takes no answer, for `async with`; `say(content, last)` sends."""

    @abstractmethod
    async def put(self, content: bytes) -> BlobRef:
        """Brings a blob into the coordinator's store."""

    @abstractmethod
    async def submit(self, plan: PlanMessage) -> int:
        """Begins a run."""

    @abstractmethod
    async def attempts(self, run: int) -> list[tuple[int, dict[str, Any]]]:
        """When each attempt ended, Unix ms, and its facts; once the run is over."""

    @abstractmethod
    async def revoke(self, name: str) -> None:
        """Revokes a node."""

    @abstractmethod
    async def counts(self, home: Node) -> dict[str, float]:
        """A home's metrics (see `peer_hosts.read_metrics`)."""

    @abstractmethod
    def logs(self, home: Node) -> tuple[list[str], ...]:
        """What was logged there."""

    def now_s(self) -> float:
        """Unix time."""
        return time.time()

    # ------------------------------------------------ its life

    async def begin(self) -> None:
        """Brings the honest devices, and plays a first round."""
        self.honest = [Device(self, number, home) for number, home in HONEST.items()]
        # What they hold is not a bad peer's.
        await self.until(lambda: all(d.link.home for d in self.honest), "for honest devices")
        for content in (self.bundle.bare().to_bytes(), self.bundle.weights.tobytes()):
            self._refs.append(await self.put(content))
        # Nor is what a first round brings that stays: streams for blobs, the honest devices' own.
        await (await self.round()).end()

    async def end(self) -> None:
        """Ends the honest devices and the hosts."""
        await asyncio.gather(*(device.close() for device in self.honest))
        for host in (self.edge, self.cloud):
            await host.close()

    # ------------------------------------------------ who is who

    def host(self, home: Node) -> Any:
        return self.edge if home == EDGE else self.cloud

    def server(self, home: Node) -> Node:
        """Whose certificate is shown there."""
        return EDGE if home == EDGE else CLOUD

    def new_number(self) -> int:
        """Number of a device that is new to the federation."""
        return next(self._numbers)

    def material(
        self,
        role: Role,
        number: int,
        *,
        life_s: int = 86_400,
        ago_s: int = 0,
        authority: Authority | None = None,
    ) -> TlsMaterial:
        """A certificate, issued `ago_s` seconds ago. authority: of another federation."""
        by = authority or self.authority
        key = new_key()
        at = ["127.0.0.1"] if role in (Role.EDGE, Role.CLOUD) else []
        issued = by.issue(
            certificate_request(key),
            role,
            number,
            addresses=at,
            life_s=life_s,
            now_s=self.now_s() - ago_s,
        )
        return TlsMaterial(key_pem(key), issued.chain, self.authority.pem)

    def files(self, name: str, material: TlsMaterial) -> TlsFiles:
        """The same as files, which the MQTT client wants."""
        folder = self.folder / "files" / name
        folder.mkdir(parents=True, exist_ok=True)
        parts = {"key": material.key, "cert": material.certificate, "ca": material.authority}
        for part, content in parts.items():
            (folder / f"{part}.pem").write_bytes(content)
        return TlsFiles(folder / "key.pem", folder / "cert.pem", folder / "ca.pem")

    def mqtt_identity(self, node: Node, material: TlsMaterial, **more: Any) -> MqttIdentity:
        files = self.files(str(node), material)
        return MqttIdentity(FEDERATION, node, lambda: files, **more)

    # ------------------------------------------------ rounds

    async def round(self, members: int = 0, counted: int = 0, deadline_ms: int = ROUND_MS) -> Round:
        """Submits a run of one round. members: bad devices that are tasked too; it begins when they
        are ready. counted: how many of them will answer.
        """
        everybody = len(HONEST) + members
        plan = PlanMessage(
            name="round",
            rounds=1,
            cohort=len(HONEST) + counted,
            over_selection=max(1.0, everybody / (len(HONEST) + counted)),
            reports_min=len(HONEST) + counted,
            attempts_max=3,
            bundle=self._refs[0],
            weights=self._refs[1],
            timeout_ms=deadline_ms,
            margin_ms=deadline_ms // 10,
            wait_ms=ROUND_MS,
            after_task=RetryWindow(min_ms=20, max_ms=60),
            seed=SEED,
        )
        manifest = self.bundle.manifest
        plan.ring.clip, plan.ring.clients_max = manifest.clip, manifest.clients_max
        plan.ring.bits, plan.ring.dimension = 32, manifest.dimension
        return Round(self, await self.submit(plan), deadline_ms)

    def expected(self, run: int, devices: Iterable[int]) -> np.ndarray:
        """The weights after the round of a run, when exactly these devices were added up."""
        word = Streams(SEED).word("round key", run, 1).to_bytes(8, "little")
        total = None
        for device in devices:
            key = np.array(device_key(word, device), np.uint32)
            vector = update_of(device, key, self.runtime.ring)
            total = vector if total is None else total + vector
        mean, _ = ring.decode(total, self.runtime.ring)
        weights: np.ndarray = self.runtime.server_update(
            self.bundle.weights, self.runtime.memory(), mean
        )[0]
        return weights

    # ------------------------------------------------ what can be seen

    def usage(self) -> dict[str, Usage]:
        return {"cloud": self.cloud.usage(), "edge": self.edge.usage()}

    async def counted(self, home: Node, name: str, more_than: float = 0) -> None:
        """Waits until a daemon has counted something."""

        async def has() -> bool:
            return (await self.counts(home)).get(name, 0) > more_than

        await self.until(has, f"for {name}")

    async def until(self, condition: Callable[[], Any], why: str = "") -> None:
        """Waits until something is so; a test that waits in vain fails."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            if loop.time() - began > WAIT_S:
                raise AssertionError(f"waited in vain {why}")
            await asyncio.sleep(self.poll_s)
