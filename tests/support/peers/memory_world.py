"""The federation in memory: the hubs, links and machines of the daemons, over `memory_grpc` and
`memory_mqtt`, in virtual time. Certificates are real ones; they end, and all limits of time hold,
by the loop's clock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from delian.cloud.authority.enrolment import (
    CALLS_AT_ONCE,
    IDLE_MS,
    REQUEST_BYTES_MAX,
    EnrolmentService,
    RateLimit,
)
from delian.cloud.authority.issuing import Issuing
from delian.cloud.protocol.coordinator_state import OVER, CoordinatorPolicy, CoordinatorState
from delian.cloud.protocol.machine import Coordinator
from delian.cloud.service.daemon import EDGE_BYTES_MAX
from delian.cloud.service.fleet_registry import Fleet
from delian.cloud.store.database import Database
from delian.cloud.store.records import FACTS
from delian.core.learning.aggregate.robust import update_of
from delian.core.learning.runtime import Runtime
from delian.core.node.driver.driver import Driver
from delian.core.node.driver.log_deduplication import RecordLog
from delian.core.node.identity.authority.deny_list import DenyList
from delian.core.node.identity.authority.tokens import TokenBook
from delian.core.node.identity.pki.certificates import Role, TlsMaterial
from delian.core.node.identity.pki.identity_folder import HomeAddress
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_link import GrpcUplink
from delian.core.node.net.grpc.grpc_requests import serve_all
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.loop_clock import now_s
from delian.core.node.net.mqtt.mqtt_client import Publication
from delian.core.node.net.mqtt.mqtt_link import MqttHub, MqttIdentity, MqttUplink
from delian.core.node.net.switch import Limit, Switch
from delian.core.node.service.prometheus import Sources, text
from delian.core.node.storage.memory_storage import MemoryBlobs, MemoryDisk
from delian.core.protocol.ports import CLOUD, NewModel, Node, Ordered, Record, RunProgram
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.enrolment_pb2_grpc import add_EnrolmentServicer_to_server
from delian.core.wire.operator_pb2 import PlanMessage, RunOrder
from delian.core.wire.operator_pb2_grpc import OperatorServicer, add_OperatorServicer_to_server
from delian.edge.protocol.edge_state import EdgeState
from delian.edge.protocol.machine import EdgeMachine

from support.disk_journal import DiskJournal
from support.node_bench import LoopClock
from support.peers.memory_grpc import MemoryCall, MemoryNetwork
from support.peers.memory_mqtt import MemoryBroker
from support.peers.peer_hosts import QUICK, Lines, Usage, read_metrics
from support.peers.peer_world import BY_MQTT, EDGE, FEDERATION, GATHERER, World

#: Devices come back less often than in real time: an idle minute is to cost little.
AFTER_REJECT_MS, AFTER_TASK_MS = (1_000, 3_000), (20, 60)
EDGE_POLICY = replace(QUICK, after_reject_ms=AFTER_REJECT_MS, after_task_ms=AFTER_TASK_MS)
ENROLMENT = "enrolment:1"
ADDRESSES = {CLOUD: "cloud:1", GATHERER: "cloud:1", EDGE: "edge:1"}


class Updates:
    """Makes the coordinator's next model, as its daemon's worker does."""

    def __init__(self, runtime: Runtime, blobs: MemoryBlobs) -> None:
        self._runtime, self._blobs = runtime, blobs

    async def run(self, program: RunProgram) -> NewModel:
        assert program.program == "server_update", program.program
        _, weights, *_ = program.blobs
        mean, weight = program.arguments
        state = np.frombuffer(await self._blobs.read(weights), "<f4")
        memory = self._runtime.memory()
        after, _ = self._runtime.server_update(state, memory, update_of(mean), weight=weight)
        return NewModel(await self._blobs.put(after.astype("<f4").tobytes()), None)

    async def cancel(self, ticket: int) -> None:
        """It is over before anybody can."""


class MemoryHost:
    """What a daemon has of nodes and links. The deny list and its review are `World`'s."""

    def __init__(self, world: MemoryWorld, server: Node) -> None:
        self._world = world
        self.switch, self.blobs = Switch(), MemoryBlobs()
        self.sources = Sources(traffic=self.switch.traffic)
        self.sources.refusals["switch"] = lambda: self.switch.faults.counts
        self.drivers: list[Driver] = []
        self._tasks: list[asyncio.Task[None]] = []
        guard = Guard(FEDERATION, server.tier, lambda: world.denied, world.now_s)
        self.hub = GrpcHub(
            self.switch,
            ADDRESSES[server],
            world.network.tls,
            guard,
            servicers=[] if server == EDGE else [_serve_operators],
            federation=FEDERATION,
            transport=world.network,
        )
        self.sources.refusals["grpc"] = lambda: self.hub.faults.counts
        material = world.material(Role(server.tier.value), server.number)
        who = world.mqtt_identity(server, material, distrust=guard.distrust)
        self.mqtt = MqttHub(self.switch, who, world.broker_url)
        self.sources.refusals["mqtt"] = lambda: self.mqtt.faults.counts

    def add(self, node: Node, make: Any, limit: Limit, told: Any) -> Driver:
        """A node of this host. told: takes its records."""
        driver = Driver(
            make,
            DiskJournal(MemoryDisk(), bytes),
            self.switch,
            self.blobs,
            Updates(self._world.runtime, self.blobs),
            clock=self._world.clock,
            on_record=told,
        )
        self.drivers.append(driver)
        self.switch.attach(node, driver.post, self.blobs, limit, driver.offer)
        self.sources.drivers[str(node)] = driver
        return driver

    async def start(self) -> None:
        for driver in self.drivers:
            self._tasks.append(asyncio.create_task(driver.run()))
            await driver.started()
        await self.hub.start()
        self.mqtt.start()
        self.switch.add_link(self.hub)
        self.switch.add_link(self.mqtt)

    def counts(self) -> dict[str, float]:
        return read_metrics(text(self.sources.families()).decode())

    def check(self) -> None:
        """Raises what has ended a node."""
        for task in self._tasks:
            assert not task.done(), task.exception()

    def usage(self) -> Usage:
        held = self.hub.transfers.intake.bytes_held
        return Usage(self._world.network.calls, len(asyncio.all_tasks()), 0, held)

    async def close(self) -> None:
        await self.hub.close()
        await self.mqtt.close()
        for driver in self.drivers:
            await driver.close()
        await asyncio.gather(*self._tasks)
        await self.switch.close()


def _serve_operators(server: Any) -> None:
    """Every call is refused at the door, or is an error."""
    add_OperatorServicer_to_server(OperatorServicer(), server)


class MemoryWorld(World):
    """Begins at the time of its certificates."""

    poll_s = 0.25  # of virtual time
    slack = 0

    def __init__(self, folder: Path, runner: asyncio.Runner) -> None:
        super().__init__(folder, runner)
        self.network, self.broker = MemoryNetwork(), MemoryBroker()
        self.clock = LoopClock(time.time_ns())
        self.denied = DenyList()
        self._lines = Lines()
        self._runs = 0
        self._attempts: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        self._over: set[int] = set()

    # ------------------------------------------------ its life

    async def start(self) -> None:
        log = logging.getLogger("delian")
        self._level = log.level
        log.addHandler(self._lines)
        log.setLevel(logging.INFO)
        self._make_cloud()
        self._make_edge()
        await self._serve_enrolment()
        await self.cloud.start()
        await self.edge.start()
        await self.begin()

    def _make_cloud(self) -> None:
        host = self.cloud = MemoryHost(self, CLOUD)
        policy = CoordinatorPolicy(after_reject_ms=AFTER_REJECT_MS, after_task_ms=AFTER_TASK_MS)
        desk = host.add(
            CLOUD,
            lambda _: Coordinator(CoordinatorState(), policy=policy),
            lambda sender: EDGE_BYTES_MAX + desk.machine.report_bytes_max,
            self._recorded,
        )
        zero = host.add(
            GATHERER,
            lambda _: EdgeMachine(EdgeState(GATHERER.number, 1), EDGE_POLICY),
            lambda sender: zero.machine.limit(sender),
            self._log_of("cloud"),
        )
        self._log_record = self._log_of("cloud")
        self._desk = desk

    def _make_edge(self) -> None:
        host = self.edge = MemoryHost(self, EDGE)
        driver = host.add(
            EDGE,
            lambda _: EdgeMachine(EdgeState(EDGE.number, 1), EDGE_POLICY),
            lambda sender: driver.machine.limit(sender),
            self._log_of("edge"),
        )
        self._way_up = self._uplink(host.switch, EDGE, CLOUD, Role.EDGE)
        host.switch.add_link(self._way_up)

    async def _serve_enrolment(self) -> None:
        self._database = await Database.open(self.folder / "fleet.db")
        fleet = Fleet(self._database, HomeAddress(CLOUD, ADDRESSES[CLOUD]))
        issuing = Issuing(self.authority, fleet, clock=self.now_s, rates=now_s)
        book = TokenBook(self.authority.folder, self.authority.lock)
        # A flood of tries must be over when the next test comes.
        limit = RateLimit(per_minute=600.0)
        service = EnrolmentService(issuing, book, limit=limit, limiter_clock=now_s)
        self._enrolment, _ = await serve_all(
            ENROLMENT,
            partial(add_EnrolmentServicer_to_server, service),
            service.unreadable,
            bytes_max=REQUEST_BYTES_MAX,
            calls_max=CALLS_AT_ONCE,
            idle_ms=IDLE_MS,
            credentials=self.network.tls,
            transport=self.network,
        )
        self.cloud.sources.refusals["enrolment"] = lambda: service.counts

    def _log_of(self, tier: str) -> RecordLog:
        return RecordLog(logging.getLogger(f"delian.{tier}"))

    async def close(self) -> None:
        await self._way_up.close()
        await self._enrolment.stop()
        await self._database.close()
        await self.end()
        log = logging.getLogger("delian")
        log.setLevel(self._level)
        log.removeHandler(self._lines)

    # ------------------------------------------------ links

    def _uplink(self, switch: Switch, node: Node, home: Node, role: Role) -> GrpcUplink:
        material = self.material(role, node.number)
        return GrpcUplink(
            switch,
            node,
            {home: ADDRESSES[home]},
            lambda: material,
            FEDERATION,
            transport=self.network,
        )

    def uplink(self, switch: Switch, node: Node, home: Node) -> GrpcUplink | MqttUplink:
        if node.number == BY_MQTT:
            who = self.mqtt_identity(node, self.material(Role.DEVICE, node.number))
            return MqttUplink(switch, who, {home: self.broker_url})
        return self._uplink(switch, node, home, Role.DEVICE)

    @property
    def enrolment_address(self) -> str:
        return ENROLMENT

    def enrolment_channel(self) -> Any:
        return self.network.channel(ENROLMENT, None)

    @property
    def broker_url(self) -> str:
        return "mqtts://memory:1"

    def mqtt_identity(self, node: Node, material: TlsMaterial, **more: Any) -> MqttIdentity:
        told = {"connect": self.broker.connect, "clock": self.now_s, **more}
        return super().mqtt_identity(node, material, **told)

    @contextlib.asynccontextmanager
    async def publisher(self, material: TlsMaterial) -> AsyncIterator[Any]:
        async def publish(topic: str, payload: bytes) -> None:
            self.broker.publish(None, Publication(topic, payload))

        yield publish

    def channel(self, home: Node, material: TlsMaterial) -> Any:
        return self.network.channel(ADDRESSES[home], material)

    @contextlib.asynccontextmanager
    async def unread(self, home: Node, material: TlsMaterial, call: str) -> AsyncIterator[Unread]:
        async with self.network.channel(ADDRESSES[home], material, window=0) as channel:
            yield Unread(channel.stream_stream(call)())

    # ------------------------------------------------ runs

    async def put(self, content: bytes) -> BlobRef:
        ref = await self.cloud.blobs.put(content)
        self.cloud.blobs.pin(ref.digest)
        return ref

    async def submit(self, plan: PlanMessage) -> int:
        self._runs += 1
        order = RunOrder(run=self._runs, submit=plan)
        self._desk.machine.check(order)
        self._desk.post(Ordered(order))
        return self._runs

    async def attempts(self, run: int) -> list[tuple[int, dict[str, Any]]]:
        await self.until(lambda: run in self._over, f"for the end of run {run}")
        return self._attempts[run]

    def _recorded(self, record: Record) -> None:
        self._log_record(record)
        if record.kind == "round":
            # Through JSON, as an operator receives it.
            facts = json.loads(json.dumps(FACTS["round"](record.fields)))
            ended = self._attempts.setdefault(record.fields["run"], [])
            ended.append((int(self.now_s() * 1000), facts))
        elif record.kind == "phase" and record.fields["phase"] in OVER:
            self._over.add(record.fields["run"])

    # ------------------------------------------------ what can be seen

    async def revoke(self, name: str) -> None:
        self.authority.revoke(name)
        self.denied = self.authority.denied()

    async def counts(self, home: Node) -> dict[str, float]:
        return self.host(home).counts()

    def logs(self, home: Node) -> tuple[list[str], ...]:
        return (self._lines.lines,)

    def now_s(self) -> float:
        # In threads too, as `clock` does not.
        return self.clock.start / 1e9 + self._runner.get_loop().time()


class Unread:
    """A call whose answers find no room."""

    def __init__(self, call: MemoryCall) -> None:
        self._call = call

    async def say(self, content: bytes, last: bool = False) -> None:
        await self._call.write(content)
        if last:
            await self._call.done_writing()
