"""Certificates are renewed by nodes that reach no more than an edge or a broker: over sockets, with
edges and devices as daemons. The coordinator serves its links here, and no `Identity`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

import numpy as np
import pytest
from delian.cloud.authority.issuing import Issuing
from delian.cloud.authority.local_authority import LocalAuthority
from delian.cloud.service.relay_service import RelayService
from delian.core.learning.data.rows import DataSettings
from delian.core.node.identity.authority.authority import LIFE_S, Authority, issue_to
from delian.core.node.identity.enrolment.kept_deny_list import KnownDenied, page_of
from delian.core.node.identity.enrolment.renewal import RenewalRefused
from delian.core.node.identity.pki.certificates import (
    Role,
    TlsFiles,
    TlsMaterial,
    certificate_request,
    key_pem,
    new_key,
    server_credentials,
)
from delian.core.node.identity.pki.identity_folder import HomeAddress, IdentityFolder
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.mqtt import broker_acl
from delian.core.node.net.mqtt.broker import Broker, BrokerSettings, mosquitto_path
from delian.core.node.net.mqtt.mqtt_link import MqttHub, MqttIdentity
from delian.core.node.net.switch import Switch
from delian.core.node.service import uplinks
from delian.core.node.service.hosting import Who
from delian.core.node.service.uplinks import LIST_FRESH_S, Uplinks
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.protocol.ports import CLOUD, Node, Tier
from delian.core.wire.admission_pb2 import CheckIn, Eligibility
from delian.device.agent import daemon as device_daemon
from delian.device.agent.conditions import ConditionSettings
from delian.device.agent.daemon import DeviceSettings
from delian.device.agent.owner_limits import WorkerSettings
from delian.edge.service.daemon import EdgeDaemon, EdgeSettings
from support.file_registry import FileRegistry

DEVICE, EDGE, EDGE_0 = Node(Tier.DEVICE, 5), Node(Tier.EDGE, 3), Node(Tier.EDGE, 0)


async def until(true) -> None:
    async with asyncio.timeout(120):
        while not true():
            await asyncio.sleep(0.02)


class Farm:
    """A federation on this machine. life_s: of the certificates that renew others."""

    def __init__(self, folder: Path, life_s: int = LIFE_S) -> None:
        self.folder, self.life_s = folder, life_s
        self.authority = Authority.create(folder / "ca", "farm")
        self.closing = contextlib.AsyncExitStack()
        self.broker = ""
        self.homes: dict[tuple[Node, str], HomeAddress] = {}

    async def __aenter__(self) -> Farm:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.closing.aclose()

    def identity(self, node: Node, *homes: HomeAddress, due: bool = False) -> IdentityFolder:
        """due: its certificate is to be renewed at once."""
        key, role = new_key(), Role(node.tier.value)
        issued = self.authority.issue(certificate_request(key), role, node.number)
        folder = IdentityFolder(self.folder / f"identity-{role.value}-{node.number}")
        material = TlsMaterial(key_pem(key), issued.chain, self.authority.pem)
        # Long ago: renewals are spread over a part of what is left.
        renew_after_s = -LIFE_S if due else issued.renew_after_s
        folder.store(material, renew_after_s=renew_after_s, homes=homes)
        return folder

    async def run_broker(self) -> None:
        if mosquitto_path() is None:
            pytest.skip("mosquitto is not installed")
        key = new_key()
        chain = self.authority.issue_server(certificate_request(key), ["127.0.0.1"])
        files = TlsFiles(*(self.folder / f"broker-{part}.pem" for part in ("key", "cert", "ca")))
        for path, part in (
            (files.key, key_pem(key)),
            (files.certificate, chain),
            (files.authority, self.authority.pem),
        ):
            path.write_bytes(part)
        rules = broker_acl.mosquitto("farm", range(1, 9))
        broker = Broker(BrokerSettings(port=0, tls=files, acl=rules, kind="mosquitto"))
        await broker.start()
        self.closing.push_async_callback(broker.close)
        self.broker = broker.address

    async def run_cloud(self) -> None:
        own = self.identity(CLOUD)
        switch, guard = Switch(), Guard("farm", Tier.CLOUD, self.authority.denied)
        for node in (CLOUD, EDGE_0):
            switch.attach(node, lambda event, *_: None, MemoryBlobs())
        hub = GrpcHub(switch, "127.0.0.1:0", server_credentials(own.material), guard)
        self.homes[CLOUD, "grpc"] = HomeAddress(CLOUD, grpc=f"127.0.0.1:{await hub.start()}")
        switch.add_link(hub)
        self.closing.push_async_callback(hub.close)
        if self.broker:
            who = MqttIdentity("farm", CLOUD, own.files, guard.distrust)
            mqtt = MqttHub(switch, who, self.broker)
            mqtt.start()
            switch.add_link(mqtt)
            self.closing.push_async_callback(mqtt.close)
            self.homes[CLOUD, "mqtt"] = HomeAddress(CLOUD, mqtt=self.broker)
        registry = FileRegistry(self.folder / "registry", lambda node: [])
        issuing = Issuing(self.authority, registry, life_s=self.life_s)
        key, issued = issue_to(self.authority, Role.AUTHORITY, 0)
        shown = TlsMaterial(key, issued.chain, self.authority.pem)
        authority = LocalAuthority(self.authority, issuing, lambda: shown)
        self.cloud = RelayService(switch, authority, authority.page)
        self.closing.push_async_callback(self.cloud.close)

    async def run_edge(self, way: str) -> EdgeDaemon:
        home = self.homes[CLOUD, way]
        settings = EdgeSettings(
            self.folder / "edge",
            self.identity(EDGE, home).folder,
            listen="127.0.0.1:0",
            broker=self.broker,
            cloud=home,
        )
        edge = await asyncio.to_thread(EdgeDaemon, settings)
        self.closing.push_async_callback(edge.close)
        await edge.start()
        await until(lambda: edge.uplinks.reaches(CLOUD))
        self.homes[EDGE, "grpc"] = HomeAddress(EDGE, grpc=f"127.0.0.1:{edge.hubs.port}")
        self.homes[EDGE, "mqtt"] = HomeAddress(EDGE, mqtt=self.broker)
        return edge

    async def run_uplinks(self, node: Node, home: HomeAddress, folder: IdentityFolder) -> Uplinks:
        """A node that does nothing but to be there."""
        switch = Switch()
        switch.attach(node, lambda event, *_: None, MemoryBlobs())
        ups = Uplinks(switch, Who(node, "farm", folder), [home])
        self.closing.push_async_callback(ups.close)
        ups.start()
        (ups.grpc or ups.mqtt).start()
        await until(lambda: ups.home is not None)
        return ups


def within(scenario) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 300))


async def renew(ups: Uplinks, folder: IdentityFolder):
    key = folder.pending_key()
    request = certificate_request(key)
    return folder.accept(key, await ups.relayed.renew(folder.material(), request))


@pytest.mark.parametrize(
    ("below", "above"),
    [("grpc", "grpc"), ("mqtt", "grpc"), ("grpc", "mqtt"), ("mqtt", "mqtt"), ("mqtt", None)],
)
def test_a_device_renews_by_whatever_links_it_has(tmp_path, below, above):
    async def scenario() -> None:
        async with Farm(tmp_path) as farm:
            if "mqtt" in (below, above):
                await farm.run_broker()
            await farm.run_cloud()
            home = HomeAddress(EDGE_0, mqtt=farm.broker)
            edge = None
            if above is not None:
                edge = await farm.run_edge(above)
                home = farm.homes[EDGE, below]
            folder = farm.identity(DEVICE, home)
            before = folder.identity()
            ups = await farm.run_uplinks(DEVICE, home, folder)
            assert (await renew(ups, folder)).serial != before.serial
            assert farm.cloud.counts["renewed"] == 1
            if edge is not None:
                own = edge.who.identity
                assert (await renew(edge.uplinks, own)).node == EDGE
                farm.authority.revoke("device-5")
                edge._denied_asked.set()
                await until(lambda: edge.trust.denied().denies(before))

    within(scenario)


def test_a_device_that_its_edge_no_longer_trusts_is_not_even_passed_on(tmp_path):
    async def scenario() -> None:
        async with Farm(tmp_path) as farm:
            await farm.run_cloud()
            edge = await farm.run_edge("grpc")
            home = farm.homes[EDGE, "grpc"]
            folder = farm.identity(DEVICE, home)
            ups = await farm.run_uplinks(DEVICE, home, folder)
            await until(lambda: DEVICE in edge.hubs.grpc.peers)
            # It asks when it is connected too: on a slow machine only now, and it would hear of it.
            edge.trust.denied.fetch = lambda ask: asyncio.sleep(0, False)
            farm.authority.revoke("device-5")
            # Until the edge hears of it, it is the coordinator who refuses.
            with pytest.raises(RenewalRefused, match="revoked"):
                await renew(ups, folder)
            del edge.trust.denied.fetch
            edge._denied_asked.set()
            await until(lambda: DEVICE not in edge.hubs.grpc.peers)
            await until(lambda: ups.home is None)
            assert edge.uplinks.relayed.counts["renewals passed on"] == 1

    within(scenario)


@pytest.mark.parametrize("told", [False, True], ids=["while it is away", "just before it ends"])
def test_an_edge_that_starts_again_lets_a_revoked_device_go(tmp_path, told):
    """Though the device never comes back."""

    async def scenario() -> None:
        async with Farm(tmp_path) as farm:
            await farm.run_cloud()
            edge = await farm.run_edge("grpc")
            home = farm.homes[EDGE, "grpc"]
            ups = await farm.run_uplinks(DEVICE, home, farm.identity(DEVICE, home))
            willing = Eligibility(consented=True)
            ups.send(DEVICE, EDGE, CheckIn(device=5, sequence=1, protocol=1, eligibility=willing))
            await until(lambda: 5 in edge.driver.machine.state.pool)
            await ups.close()
            if told:
                edge.trust._forget = lambda node: None  # it ends before it comes to that
                farm.authority.revoke("device-5")
                edge._denied_asked.set()
                await until(lambda: edge.trust.denied().names)
            await edge.close()
            if not told:
                farm.authority.revoke("device-5")
            again = await farm.run_edge("grpc")
            await until(lambda: again.trust.denied().names)
            await until(lambda: not again.driver.machine.state.pool)

    within(scenario)


def test_the_coordinator_s_daemon_takes_errands(tmp_path):
    pytest.importorskip("sqlalchemy")
    from delian.cli.fleet.cloud_commands import gatherer
    from delian.cloud.service.daemon import CloudDaemon, CloudSettings

    async def scenario() -> None:
        async with Farm(tmp_path) as farm:
            settings = CloudSettings(
                tmp_path / "cloud",
                ca=tmp_path / "ca",
                news_s=0.1,
                listen="127.0.0.1:0",
                enrolment="",
                health="",
                certificate_days=3,
            )
            daemon = CloudDaemon(settings, gatherer)
            farm.closing.push_async_callback(daemon.close)
            await daemon.start()
            address = f"127.0.0.1:{daemon.ports['grpc']}"
            farm.homes[CLOUD, "grpc"] = HomeAddress(CLOUD, address)
            edge = await farm.run_edge("grpc")
            for home in (HomeAddress(EDGE_0, address), farm.homes[EDGE, "grpc"]):
                folder = farm.identity(DEVICE, home)
                ups = await farm.run_uplinks(DEVICE, home, folder)
                renewed = await renew(ups, folder)
                assert renewed.not_after < time.time() + 3 * 86400 + 60
                await ups.close()
            daemon.hosted.ca.revoke("device-5")
            await until(lambda: edge.trust.denied().revoked(DEVICE))

    within(scenario)


def agent_settings(folder: Path, identity: IdentityFolder, *homes: HomeAddress) -> DeviceSettings:
    return DeviceSettings(
        folder=folder / "device",
        identity=identity.folder,
        homes=homes,
        worker=WorkerSettings(data=DataSettings(str(folder / "data.npz"))),
        conditions=ConditionSettings(
            powered=True, unmetered=True, idle=True, consented=True, poll_s=1.0
        ),
    )


def test_a_device_gets_the_deny_list_from_its_edge_and_leaves_one_that_is_revoked(tmp_path):
    np.savez(tmp_path / "data.npz", x=np.zeros((4, 2), np.float32), y=np.zeros(4, np.int32))

    async def scenario() -> None:
        async with Farm(tmp_path) as farm:
            await farm.run_cloud()
            edge = await farm.run_edge("grpc")
            home, other = farm.homes[EDGE, "grpc"], HomeAddress(EDGE_0, grpc="127.0.0.1:1")
            settings = agent_settings(tmp_path, farm.identity(DEVICE, home, other), home, other)
            agent = await asyncio.to_thread(device_daemon._Agent, settings)
            farm.closing.push_async_callback(agent.close)
            await agent.start()
            await until(lambda: edge.trust.denied.signed is not None)
            agent._denied_asked.set()
            await until(lambda: agent.denied().version == farm.authority.denied().version)
            assert edge.uplinks.relayed.counts["pages"] >= 1
            state = agent.driver.machine.state
            await until(lambda: state.denied_issued_s == agent.denied().issued_s)
            await until(lambda: DEVICE in edge.hubs.grpc.peers and state.homes == [3, 0])
            # The edge would not pass on the list that revokes it; the device gets it otherwise.
            farm.authority.revoke("edge-3")

            async def otherwise(asked):
                return page_of(farm.authority.signed(), asked)

            assert await agent.denied.fetch(otherwise)
            await until(lambda: DEVICE not in edge.hubs.grpc.peers and state.homes == [0])
            assert not agent.uplinks.grpc.reaches(EDGE)
            agent.uplinks.send(DEVICE, EDGE, CheckIn(device=5))
            await until(lambda: state.home == 0)
            assert DEVICE not in edge.hubs.grpc.peers
            # Nor after a restart.
            await agent.close()
            again = await asyncio.to_thread(device_daemon._Agent, settings)
            farm.closing.push_async_callback(again.close)
            await again.start()
            assert not again.uplinks.grpc.reaches(EDGE)
            assert again.driver.machine.state.denied_version == agent.denied().version

    within(scenario)


@pytest.mark.parametrize("named", [False, True])
def test_a_device_whose_edge_keeps_the_newest_list_to_itself_asks_the_coordinator(tmp_path, named):
    """named: the edge's list is fresh; a task names a newer one."""

    async def scenario() -> None:
        authority = Authority.create(tmp_path / "ca", "farm")
        key, issued = issue_to(authority, Role.DEVICE, 5)
        folder = IdentityFolder(tmp_path / "own")
        folder.store(TlsMaterial(key, issued.chain, authority.pem), renew_after_s=60)
        old = authority.signed(now_s=time.time() - (0 if named else LIST_FRESH_S + 60))
        issue_to(authority, Role.EDGE, 3)
        authority.revoke("edge-3")
        known, asked = KnownDenied(folder), []
        known.wanted = authority.denied().version if named else 0

        class Home:
            async def denied(self, ask):
                asked.append("home")
                return page_of(old, ask)

        async def coordinator(identity, ask):
            asked.append("coordinator")
            return page_of(authority.signed(), ask)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(uplinks, "denied_call", coordinator)
            keeping = uplinks.keep_denied(folder, known, asyncio.Event(), Home(), home_first=True)
            task = asyncio.create_task(keeping)
            await until(lambda: known().revoked(EDGE))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        assert asked[:2] == ["home", "coordinator"]

    within(scenario)


#: A third of it is left for a renewal.
LIFE_SHORT_S = 9


# With seconds to live, the machine must not stall for a third of a certificate's life.
@pytest.mark.parametrize("life_s", [LIFE_S, pytest.param(LIFE_SHORT_S, marks=pytest.mark.slow)])
@pytest.mark.parametrize("way", ["grpc", "mqtt"])
def test_a_device_whose_certificate_is_due_renews_it_and_stays_connected(tmp_path, way, life_s):
    np.savez(tmp_path / "data.npz", x=np.zeros((4, 2), np.float32), y=np.zeros(4, np.int32))

    async def scenario() -> None:
        async with Farm(tmp_path, life_s) as farm:
            if way == "mqtt":
                await farm.run_broker()
            await farm.run_cloud()
            edge = await farm.run_edge("grpc")
            home = farm.homes[EDGE, way]
            # The coordinator is known to the device, at an address that does not answer.
            nowhere = HomeAddress(CLOUD, grpc="127.0.0.1:1")
            # The first certificate lasts, however long the device takes to start; those that it
            # then gets do not.
            folder = farm.identity(DEVICE, home, nowhere, due=True)
            lasting = folder.identity()
            settings = agent_settings(tmp_path, folder, home)
            stop = asyncio.Event()
            device = asyncio.create_task(device_daemon.serve(settings, stop))
            hub = edge.hubs.grpc if way == "grpc" else edge.hubs.mqtt
            await until(lambda: device.done() or folder.identity().serial != lasting.serial)
            first = folder.identity()
            if life_s == LIFE_SHORT_S:
                await until(lambda: device.done() or time.time() > first.not_after + 1)
                assert folder.identity().serial != first.serial
                await until(lambda: DEVICE in hub.peers)
                # It counts at once each node that it sends away: the last assertions find none.
                edge.hubs.grpc.review()
                assert DEVICE in hub.peers and farm.cloud.counts["renewed"] >= 2
            assert not device.done() and farm.cloud.counts["renewed"] >= 1
            await until(lambda: DEVICE in hub.peers)
            assert not {"certificate expired", "certificate"} & hub.faults.counts.keys()
            # What the device says still arrives, under the new certificate.
            await until(lambda: len(edge.driver.machine.state.pool) == 1)
            stop.set()
            await device

    within(scenario)
