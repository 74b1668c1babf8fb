"""A real broker for a module's tests, nodes that listen, and a cable that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from delian.core.node.identity.authority.authority import Authority, issue_to
from delian.core.node.identity.pki.certificates import (
    Role,
    TlsFiles,
    TlsMaterial,
    certificate_request,
    key_pem,
    new_key,
)
from delian.core.node.net.mqtt import broker as brokers
from delian.core.node.net.mqtt.mqtt_link import MqttHub, MqttIdentity, MqttUplink
from delian.core.node.net.switch import Switch
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.protocol.ports import CLOUD, Node, Received, Tier

WAIT_S = 120.0  # only so that nothing hangs
UPDATE_BYTES_MAX = 16 * 2**20


async def until(condition: Callable[[], bool]) -> None:
    """Waits until something is so; a test that waits in vain fails."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


class Station:
    """A node with a switch of its own, as a process has it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.blobs = MemoryBlobs()
        self.switch = Switch()
        self.received: list[Received] = []
        self.bytes_max = UPDATE_BYTES_MAX
        self.traces: list[str] = []
        self.switch.attach(node, self.take, self.blobs, lambda sender: self.bytes_max)

    def take(self, event: Received, traceparent: str = "", size: int = 0) -> None:
        self.received.append(event)
        self.traces.append(traceparent)

    @property
    def messages(self) -> list[object]:
        return [event.message for event in self.received]

    def send(self, to: Node, message: object) -> None:
        self.switch.send(self.node, to, message)

    async def gets(self, count: int) -> list[object]:
        """The messages, when there are so many."""
        await until(lambda: len(self.received) >= count)
        return self.messages


class Cable:
    """A TCP proxy to a broker. After `cut_after` bytes upwards it cuts, once."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.up_bytes = 0
        self.cut_after: int | None = None
        self.cuts = 0
        self.plugged = True

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"mqtt://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()
        await self._server.wait_closed()

    def cut(self) -> None:
        self.cuts += 1
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.plugged:
            writer.transport.abort()
            return
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, back}
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, back, True), self._pass(there, writer, False))
        self._writers -= {writer, back}
        writer.close()
        back.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up: bool
    ) -> None:
        while chunk := await reader.read(65536):
            if up:
                self.up_bytes += len(chunk)
                if self.cut_after is not None and self.up_bytes > self.cut_after:
                    self.cut_after = None
                    self.cut()
                    return
            writer.write(chunk)
            await writer.drain()
        writer.close()


class RunningBroker:
    """A broker on a loop and thread of its own, for tests that each have their own loop."""

    def __init__(self, settings: brokers.BrokerSettings) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.broker = brokers.Broker(settings)
        self.start()

    def start(self) -> None:
        self._do(self.broker.start())

    def _do(self, coroutine: object) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    @property
    def url(self) -> str:
        return self.broker.address

    @property
    def port(self) -> int:
        return self.broker.port

    def kill(self) -> None:
        """As a power cut does it, then starts it again."""
        os.kill(self.broker.pid, signal.SIGKILL)
        self._do(self.broker.wait())
        self.start()

    def close(self) -> None:
        self._do(self.broker.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def need_mosquitto() -> None:
    if brokers.mosquitto_path() is None:
        pytest.skip("mosquitto is not installed")


@pytest.fixture(scope="module")
def mosquitto():
    """mosquitto on loopback, without TLS."""
    need_mosquitto()
    running = RunningBroker(brokers.BrokerSettings(port=0, kind="mosquitto"))
    yield running
    running.close()


@pytest.fixture(scope="session")
def mqtt() -> SimpleNamespace:
    """What tests of this folder share."""

    def hub(station, url, files=None, federation="farm", **more):
        identity = MqttIdentity(federation, station.node, files, **more)
        made = MqttHub(station.switch, identity, url)
        station.switch.add_link(made)
        made.start()
        return made

    def uplink(station, homes, files=None, federation="farm", **more):
        identity = MqttIdentity(federation, station.node, files, **more)
        made = MqttUplink(station.switch, identity, homes)
        station.switch.add_link(made)
        made.start()
        return made

    @contextlib.asynccontextmanager
    async def closing(*links):
        try:
            yield
        finally:
            for link in reversed(links):
                await link.close()

    return SimpleNamespace(
        Station=Station,
        Cable=Cable,
        RunningBroker=RunningBroker,
        need_mosquitto=need_mosquitto,
        until=until,
        hub=hub,
        uplink=uplink,
        closing=closing,
        device=lambda n=5: Node(Tier.DEVICE, n),
        edge=lambda n=3: Node(Tier.EDGE, n),
        cloud=CLOUD,
    )


class Federation:
    """A CA and files for whoever is asked for."""

    def __init__(self, folder: Path, name: str = "farm") -> None:
        self.folder = folder
        self.authority = Authority.create(folder / "ca", name)

    def material(self, role: Role, number: int, **more: object) -> TlsMaterial:
        key, issued = issue_to(self.authority, role, number)
        return TlsMaterial(key, issued.chain, self.authority.pem)

    def files(self, name: str, material: TlsMaterial) -> TlsFiles:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        parts = {"key": material.key, "cert": material.certificate, "ca": material.authority}
        for part, content in parts.items():
            (folder / f"{part}.pem").write_bytes(content)
        return TlsFiles(folder / "key.pem", folder / "cert.pem", folder / "ca.pem")

    def node(self, node: Node) -> TlsFiles:
        role = Role(node.tier.value)
        return self.files(f"{role}-{node.number}", self.material(role, node.number))

    def broker(self) -> TlsFiles:
        key = new_key()
        chain = self.authority.issue_server(certificate_request(key), ["127.0.0.1", "localhost"])
        return self.files("broker", TlsMaterial(key_pem(key), chain, self.authority.pem))


@pytest.fixture(scope="module")
def farm(tmp_path_factory) -> Federation:
    return Federation(tmp_path_factory.mktemp("farm"))


@pytest.fixture(scope="session")
def make_federation() -> type[Federation]:
    return Federation
