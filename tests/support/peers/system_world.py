"""The federation of real daemons: mutual TLS over loopback, a broker where there is one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiomqtt
import grpc
from delian.core.node.identity.pki.certificates import (
    Role,
    TlsFiles,
    TlsMaterial,
    authority_options,
    certificate_request,
    channel_credentials,
    channel_options,
    enrolment_credentials,
    key_pem,
    new_key,
    node_name,
)
from delian.core.node.identity.pki.identity_folder import HomeAddress, IdentityFolder
from delian.core.node.identity.pki.tls_contexts import client_context
from delian.core.node.net.blob_upload import parts_of
from delian.core.node.net.grpc.grpc_link import GrpcUplink
from delian.core.node.net.mqtt import broker_acl
from delian.core.node.net.mqtt.broker import Broker, BrokerSettings, mosquitto_path
from delian.core.node.net.mqtt.mqtt_link import MqttUplink
from delian.core.node.net.switch import Switch
from delian.core.protocol.ports import CLOUD, Node
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import PlanMessage, SubmitRequest, WatchRequest
from delian.core.wire.operator_pb2_grpc import OperatorStub

from support.peers.peer_hosts import (
    Inside,
    Lines,
    Outside,
    cloud_inside,
    edge_inside,
    http_get,
    read_metrics,
)
from support.peers.peer_wires import Http2
from support.peers.peer_world import BY_MQTT, EDGE, FEDERATION, GATHERER, World


class SystemWorld(World):
    """outside: its daemons are processes."""

    def __init__(self, folder: Path, runner: asyncio.Runner, outside: bool = False) -> None:
        super().__init__(folder, runner)
        self.outside = outside
        self.broker: Broker | None = None
        self._broker_log = Lines()
        self.cloud: Inside | Outside
        self.edge: Inside | Outside

    # ------------------------------------------------ its life

    async def start(self) -> None:
        folder = self.folder
        if mosquitto_path() is not None:
            rules = broker_acl.mosquitto(FEDERATION, range(1, 9))
            tls = self.files("broker", self._broker_material())
            self.broker = Broker(BrokerSettings(port=0, kind="mosquitto", tls=tls, acl=rules))
            logging.getLogger("delian.net.broker").addHandler(self._broker_log)
            await self.broker.start()
        broker, ca = self.broker_url, folder / "ca"
        (folder / "edge").mkdir()
        if self.outside:
            self.cloud = Outside("cloud", folder / "cloud", authority=str(ca), broker=broker)
        else:
            self.cloud = cloud_inside(folder / "cloud", ca, broker)
        ports = await self.cloud.start()
        where = f"127.0.0.1:{ports['grpc']}"
        identity = IdentityFolder(folder / "edge" / "identity")
        edge = self.material(Role.EDGE, EDGE.number)
        homes = [HomeAddress(CLOUD, grpc=where)]
        identity.store(edge, renew_after_s=10**6, homes=homes)
        if self.outside:
            self.edge = Outside("edge", folder / "edge", cloud=where, broker=broker)
        else:
            self.edge = edge_inside(folder / "edge", where, broker)
        await self.edge.start()
        await self.begin()

    async def close(self) -> None:
        await self.end()
        if self.broker is not None:
            await self.broker.close()
            logging.getLogger("delian.net.broker").removeHandler(self._broker_log)

    # ------------------------------------------------ links

    def uplink(self, switch: Switch, node: Node, home: Node) -> GrpcUplink | MqttUplink:
        material = self.material(Role.DEVICE, node.number)
        if node.number == BY_MQTT and self.broker is not None:
            who = self.mqtt_identity(node, material)
            return MqttUplink(switch, who, {home: self.broker_url})
        homes = {home: self.address(home)}
        return GrpcUplink(switch, node, homes, lambda: channel_credentials(material), FEDERATION)

    @contextlib.asynccontextmanager
    async def unread(self, home: Node, material: TlsMaterial, call: str) -> AsyncIterator[Http2]:
        wire = await Http2.connect(self, self.files("unread", material), home)
        try:
            await wire.call(call, node_name(FEDERATION, self.server(home)))
            yield wire
        finally:
            wire.close()

    @property
    def enrolment_address(self) -> str:
        return f"127.0.0.1:{self.cloud.ports['enrolment']}"

    def enrolment_channel(self) -> Any:
        options = [*authority_options(FEDERATION), ("grpc.use_local_subchannel_pool", 1)]
        credentials = enrolment_credentials(self.authority.pem)
        return grpc.aio.secure_channel(self.enrolment_address, credentials, options)

    def client(self, files: TlsFiles, timeout_s: float = 60.0) -> aiomqtt.Client:
        """The broker itself, without a link."""
        return aiomqtt.Client(
            "127.0.0.1",
            int(self.broker_url.rpartition(":")[2]),
            protocol=aiomqtt.ProtocolVersion.V5,
            tls_context=client_context(files),
            timeout=timeout_s,
        )

    @contextlib.asynccontextmanager
    async def publisher(self, material: TlsMaterial) -> AsyncIterator[Any]:
        async with self.client(self.files("publisher", material)) as broker:
            yield broker.publish  # QoS 0: without an acknowledgement

    @property
    def broker_url(self) -> str:
        return "" if self.broker is None else self.broker.address

    def address(self, home: Node) -> str:
        host = self.edge if home == EDGE else self.cloud
        return f"127.0.0.1:{host.ports['grpc']}"

    def _broker_material(self) -> TlsMaterial:
        key = new_key()
        chain = self.authority.issue_server(certificate_request(key), ["127.0.0.1"])
        return TlsMaterial(key_pem(key), chain, self.authority.pem)

    def channel(self, home: Node, material: TlsMaterial) -> Any:
        """A connection of its own to a daemon."""
        options = [
            *channel_options(FEDERATION, self.server(home)),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
        ]
        return grpc.aio.secure_channel(self.address(home), channel_credentials(material), options)

    # ------------------------------------------------ the operator

    @contextlib.asynccontextmanager
    async def operator(self) -> AsyncIterator[Any]:
        if not hasattr(self, "_operator"):
            self._operator = self.material(Role.OPERATOR, 1)
        async with self.channel(GATHERER, self._operator) as channel:
            yield OperatorStub(channel)

    async def put(self, content: bytes) -> BlobRef:
        async with self.operator() as stub:
            ref: BlobRef = await stub.PutBlob(parts_of(content)[1])
        return ref

    async def submit(self, plan: PlanMessage) -> int:
        async with self.operator() as stub:
            return int((await stub.Submit(SubmitRequest(plan=plan))).run)

    async def attempts(self, run: int) -> list[tuple[int, dict[str, Any]]]:
        async with self.operator() as stub:
            events = [event async for event in stub.WatchRun(WatchRequest(run=run))]
        return [(e.time_ms, json.loads(e.facts)) for e in events if e.kind == "round"]

    async def revoke(self, name: str) -> None:
        await asyncio.to_thread(self.authority.revoke, name)

    # ------------------------------------------------ what can be seen

    async def counts(self, home: Node) -> dict[str, float]:
        """A daemon's metrics (see `peer_hosts.read_metrics`), and the broker's."""
        port = self.host(home).ports["health"]
        counts = read_metrics(await http_get(port, "/metrics"))
        if self.broker is not None:
            counts["broker: complaints"] = self.broker.complaints
        return counts

    def logs(self, home: Node) -> tuple[list[str], list[str]]:
        """What a daemon has logged, and the broker."""
        return self.host(home).log(), self._broker_log.lines
