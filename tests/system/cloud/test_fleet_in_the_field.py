"""A coordinator, an edge and devices as daemons with certificates: an operator sends a device away,
and takes an edge out of service.
"""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("grpc")

import grpc
from delian.cloud.protocol.coordinator_state import CoordinatorPolicy
from delian.cloud.service.daemon import CloudDaemon, CloudSettings
from delian.core.learning.data.rows import DataSettings
from delian.core.node.identity.authority.authority import Authority
from delian.core.node.identity.enrolment.joining import join
from delian.core.node.identity.pki.certificates import (
    TlsFiles,
    channel_credentials,
    channel_options,
)
from delian.core.node.identity.pki.identity_folder import HomeAddress, IdentityFolder
from delian.core.node.identity.pki.local_identity import broker_files, operator_identity
from delian.core.node.net.free_ports import free_ports
from delian.core.node.net.mqtt.broker import Broker, BrokerSettings, mosquitto_path
from delian.core.node.net.mqtt.broker_acl import mosquitto
from delian.core.node.storage.codec import address
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire import link_pb2
from delian.core.wire.operator_pb2 import NodeRequest, PlanMessage, RunOrder, TokenRequest
from delian.core.wire.operator_pb2_grpc import OperatorStub
from delian.core.wire.round_pb2 import RingPlan
from delian.device.agent import daemon as devices
from delian.device.agent.conditions import ConditionSettings
from delian.device.agent.owner_limits import WorkerSettings
from delian.edge.protocol.edge_state import EdgeState, Phase
from delian.edge.protocol.machine import EdgeMachine, restore
from delian.edge.service.daemon import EdgeDaemon, EdgeSettings

EDGE, OWN = Node(Tier.EDGE, 1), Node(Tier.EDGE, 0)
TIERS = {Tier.DEVICE: link_pb2.NODE_DEVICE, Tier.EDGE: link_pb2.NODE_EDGE}


def gatherer(snapshot):
    return EdgeMachine(EdgeState(0, 1) if snapshot is None else restore(snapshot))


def run(main):
    asyncio.run(asyncio.wait_for(main, 400))


async def until(condition):
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.01)


class Farm:
    """A federation in one process. Everything in it ends with `stack`."""

    def __init__(self, folder, stack) -> None:
        self.folder, self.stack = folder, stack
        np.savez(folder / "data.npz", x=np.zeros((8, 4), np.float32), y=np.zeros(8, np.int32))

    async def start(self, broker: bool) -> None:
        authority = Authority.create(self.folder / "ca", "farm")
        operator_identity(authority, self.folder / "operator")
        self.broker = await self._broker(authority) if broker else ""
        self.port, self.edge_port = free_ports(2)
        settings = CloudSettings(
            self.folder / "cloud",
            listen=f"127.0.0.1:{self.port}",
            enrolment="127.0.0.1:0",
            public_enrolment="127.0.0.1:1",
            health="",
            ca=self.folder / "ca",
            addresses=("127.0.0.1",),
            backend="reference",
            policy=CoordinatorPolicy(after_reject_ms=(50, 100), after_task_ms=(50, 100)),
        )
        self.cloud = CloudDaemon(settings, gatherer)
        self.stack.push_async_callback(self.cloud.close)
        await self.cloud.start()
        channel = grpc.aio.secure_channel(
            f"127.0.0.1:{self.port}",
            channel_credentials(IdentityFolder(self.folder / "operator").material()),
            options=list(channel_options("farm", CLOUD)),
        )
        await self.stack.enter_async_context(channel)
        self.operator = OperatorStub(channel)
        await self._want_devices()

    async def _broker(self, authority) -> str:
        broker_files(authority, self.folder / "broker", ["127.0.0.1"])
        files = TlsFiles(*(self.folder / "broker" / f"{n}.pem" for n in ("key", "cert", "ca")))
        acl = mosquitto("farm", [EDGE.number])
        broker = Broker(BrokerSettings(port=0, tls=files, acl=acl, kind="mosquitto"))
        self.stack.push_async_callback(broker.close)
        return await broker.start()

    async def _want_devices(self) -> None:
        """A run that waits for more devices than there are: so all are wanted."""
        plan = PlanMessage(name="wanting", rounds=1, cohort=9, over_selection=1.0, pool_min=90)
        plan.bundle.CopyFrom(await self.cloud.blobs.put(b"programs"))
        plan.weights.CopyFrom(await self.cloud.blobs.put(bytes(12)))
        plan.wait_ms = 3_600_000
        plan.ring.CopyFrom(RingPlan(clip=1.0, clients_max=9, bits=32, dimension=3))
        number = await self.cloud.registry.add_run(plan)
        await self.cloud.orders.give(RunOrder(run=number, submit=plan))

    async def join(self, tier: Tier) -> IdentityFolder:
        token = (await self.operator.CreateToken(TokenRequest(tier=TIERS[tier]))).token
        own = IdentityFolder(self.folder / f"identity-{token[-8:]}")
        await join(token, own.folder, address=f"127.0.0.1:{self.cloud.ports['enrolment']}")
        return own

    async def edge(self, own: IdentityFolder) -> EdgeDaemon:
        settings = EdgeSettings(
            folder=self.folder / "edge",
            identity=own.folder,
            listen=f"127.0.0.1:{self.edge_port}",
            broker=self.broker,
        )
        made = EdgeDaemon(settings)
        self.stack.push_async_callback(made.close)
        await made.start()
        return made

    async def device(self, edge: EdgeDaemon, transport: str = "grpc") -> Node:
        own = await self.join(Tier.DEVICE)
        node = own.identity().node
        ways = {"grpc": f"127.0.0.1:{edge.hubs.port}", "mqtt": self.broker}
        home = HomeAddress(EDGE, **{transport: ways[transport]})
        settings = devices.DeviceSettings(
            folder=self.folder / f"device-{node.number}",
            identity=own.folder,
            homes=(home, HomeAddress(OWN, grpc=f"127.0.0.1:{self.port}")),
            worker=WorkerSettings(
                data=DataSettings(str(self.folder / "data.npz")), backend="reference"
            ),
            conditions=ConditionSettings(powered=True, unmetered=True, idle=True, consented=True),
        )
        stop, ready = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(devices.serve(settings, stop, lambda facts: ready.set()))

        async def end() -> None:
            stop.set()
            await task

        self.stack.push_async_callback(end)
        await ready.wait()
        return node

    async def ask(self, call: str, node: Node, **request) -> str:
        """What state the node is in then."""
        asked = NodeRequest(node=address(node), **request)
        return (await getattr(self.operator, call)(asked)).state


@contextlib.asynccontextmanager
async def farm(folder, broker=False):
    async with contextlib.AsyncExitStack() as stack:
        made = Farm(folder, stack)
        await made.start(broker)
        yield made


def pool(edge: EdgeDaemon) -> set[int]:
    return set(edge.driver.machine.state.pool)


@pytest.mark.parametrize("transport", ["grpc", "mqtt"])
def test_a_revoked_device_is_cut_off_behind_its_edge_at_once(tmp_path, transport):
    """The edge asks for the list every five minutes; this takes less than the test's patience."""
    if transport == "mqtt" and mosquitto_path() is None:
        pytest.skip("mosquitto is not installed")

    async def main():
        async with farm(tmp_path, broker=transport == "mqtt") as made:
            edge = await made.edge(await made.join(Tier.EDGE))
            bad, good = await made.device(edge, transport), await made.device(edge, transport)
            hub = edge.hubs.mqtt if transport == "mqtt" else edge.hubs.grpc
            await until(lambda: pool(edge) == {bad.number, good.number})
            assert {bad, good} <= set(hub.peers)
            assert not edge.trust.denied().names
            assert await made.ask("RevokeNode", bad) == "revoked"
            await until(lambda: pool(edge) == {good.number} and bad not in hub.peers)
            if transport == "grpc":  # which tells it at once: it tries again, and is not let in
                await until(lambda: hub.faults.counts["revoked"] > 0)
            assert good in hub.peers and bad not in hub.peers
            assert not pool_of(made.cloud)
            assert edge.trust.denied().names == made.cloud.trust.denied().names != {}

    run(main())


def test_an_edge_that_was_away_asks_for_the_list_when_it_is_back(tmp_path):
    async def main():
        async with farm(tmp_path) as made:
            own = await made.join(Tier.EDGE)
            edge = await made.edge(own)
            bad = await made.device(edge)
            await until(lambda: pool(edge) == {bad.number})
            await edge.close()
            await made.ask("RevokeNode", bad)
            again = await made.edge(own)
            listed = made.cloud.trust.denied().names
            await until(lambda: again.trust.denied().names == listed != {})
            await until(lambda: again.hubs.grpc.faults.counts["revoked"] > 0)
            assert bad not in again.hubs.grpc.peers

    run(main())


def test_a_drained_edge_sends_its_devices_on_also_after_a_restart_and_takes_them_back(tmp_path):
    async def main():
        async with farm(tmp_path) as made:
            own = await made.join(Tier.EDGE)
            edge = await made.edge(own)
            device = await made.device(edge)
            await until(lambda: pool(edge) == {device.number})
            assert await made.ask("DrainNode", EDGE) in ("draining", "drained")
            await until(lambda: pool_of(made.cloud) == {device.number} and not pool(edge))
            views = made.cloud.cloud.machine.state.edges
            await until(lambda: views[1].told_draining and not views[1].ready)
            assert await made.ask("GetNode", EDGE) == "drained"
            await edge.close()
            edge = await made.edge(own)
            assert edge.driver.machine.state.phase is Phase.DRAINING
            # The other way round, back at the edge that serves again.
            await made.ask("DrainNode", EDGE, undo=True)
            await until(lambda: edge.driver.machine.state.phase is Phase.SERVING)
            await until(lambda: not views[1].told_draining)
            assert await made.ask("GetNode", EDGE) == "ready"
            second = await made.device(edge)
            await until(lambda: pool(edge) == {second.number})

    run(main())


def pool_of(cloud: CloudDaemon) -> set[int]:
    """At the coordinator's own edge."""
    return set(cloud.gatherer.machine.state.pool)
