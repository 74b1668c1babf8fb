"""Two processes' worth of nodes in one loop, joined by gRPC over a cable that can be cut."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import SimpleNamespace

import grpc
import pytest
from delian.core.node.identity.pki.roles import Guard
from delian.core.node.net.grpc.grpc_ending import Ending
from delian.core.node.net.grpc.grpc_guard import claim
from delian.core.node.net.grpc.grpc_link import GrpcUplink
from delian.core.node.net.grpc.grpc_peer import CONNECT, PULL, PUSH
from delian.core.node.net.grpc.grpc_server import GrpcHub
from delian.core.node.net.loopback import INSECURE
from delian.core.node.net.switch import Switch
from delian.core.node.storage.codec import envelope_bytes
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.protocol.ports import CLOUD, Node, Received, Tier
from delian.core.wire.blob_pb2 import FetchBlob
from delian.core.wire.link_pb2 import Envelope
from delian.core.wire.round_pb2 import Upload

WAIT_S = 120.0  # only so that nothing hangs
UPDATE_BYTES_MAX = 32 * 2**20


async def until(condition: Callable[[], bool]) -> None:
    """Waits until something is so; a test that waits in vain fails."""
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.005)


class Station:
    """A node with a switch of its own, as a process has it. It sends the blobs that it is asked
    for.
    """

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
        if isinstance(event.message, FetchBlob):
            self.switch.send_blob(self.node, event.sender, event.message.digest)

    @property
    def messages(self) -> list[object]:
        """What came, with the vectors that stood beside it."""
        found = []
        for event in self.received:
            message = event.message
            if event.vector is not None:
                assert not message.vector
                message = Upload(vector=bytes(event.vector))
                message.MergeFrom(event.message)
            found.append(message)
        return found

    def send(self, to: Node, message: object, traceparent: str = "") -> None:
        self.switch.send(self.node, to, message, traceparent)

    async def gets(self, count: int) -> list[object]:
        """The messages, when there are so many."""
        await until(lambda: len(self.received) >= count)
        return self.messages


class Cable:
    """A TCP proxy. It cuts all connections once, after `cut_after` bytes in either direction."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._writers: set[asyncio.StreamWriter] = set()
        self.passed = 0
        self.cut_after: int | None = None
        self.cuts = 0

    async def __aenter__(self) -> Cable:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
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
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, back}
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._pass(reader, back), self._pass(there, writer))
        self._writers -= {writer, back}
        writer.close()
        back.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(65536):
            self.passed += len(chunk)
            if self.cut_after is not None and self.passed > self.cut_after:
                self.cut_after = None
                self.cut()
                return
            writer.write(chunk)
            await writer.drain()
        writer.close()


class Stranger:
    """Speaks the bare calls of service Link, as well or as badly as a test wants."""

    def __init__(self, port: int, node: Node) -> None:
        self.node = node
        self.pushed: Ending | None = None  # how the last transfer ended
        self._channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{port}", [("grpc.use_local_subchannel_pool", 1)]
        )

    async def connect(self, hello: bytes | None = None) -> object:
        """A stream that has said `hello`; None: who it is, and that was let in."""
        call = self._channel.stream_stream(CONNECT)()
        await call.write(self.says() if hello is None else hello)
        if hello is None:
            await call.initial_metadata()
        return call

    def says(self, message: object = None, to: Node | None = None) -> bytes:
        """An envelope of this node."""
        if message is None:
            said = Envelope()
            said.sender.tier, said.sender.number = 1, self.node.number
            return said.SerializeToString()
        return envelope_bytes(self.node, to or Node(Tier.EDGE, 3), message)

    def mute(self) -> object:
        """A stream that says nothing."""
        return self._channel.stream_stream(CONNECT)()

    async def push(self, *parts: bytes, end: bool = True) -> bytes:
        call = self._channel.stream_unary(PUSH)(metadata=claim(self.node))
        self.pushed = Ending(call)
        # The server may have ended the call already: what it says of it comes with the answer.
        with contextlib.suppress(asyncio.InvalidStateError):
            for part in parts:
                await call.write(part)
            if end:
                await call.done_writing()
        return await call

    def pull(self, request: bytes) -> object:
        return self._channel.unary_stream(PULL)(request, metadata=claim(self.node))

    async def close(self) -> None:
        await self._channel.close()


@contextlib.asynccontextmanager
async def serving(station: Station, **more: object):
    """A hub of the station's, without TLS, and its port."""
    guard = Guard(INSECURE, Tier.EDGE if station.node.tier is Tier.EDGE else Tier.CLOUD)
    hub = GrpcHub(station.switch, "127.0.0.1:0", None, guard, **more)
    port = await hub.start()
    station.switch.add_link(hub)
    try:
        yield hub, port
    finally:
        await hub.close()


@contextlib.asynccontextmanager
async def dialling(station: Station, homes: dict[Node, str | int], **more: object):
    """An uplink of the station's, without TLS."""
    table = {n: f"127.0.0.1:{a}" if isinstance(a, int) else a for n, a in homes.items()}
    link = GrpcUplink(station.switch, station.node, table, None, **more)
    station.switch.add_link(link)
    try:
        yield link
    finally:
        await link.close()


@pytest.fixture(scope="session")
def net() -> SimpleNamespace:
    """What tests of this folder share."""
    return SimpleNamespace(
        Station=Station,
        Cable=Cable,
        Stranger=Stranger,
        serving=serving,
        dialling=dialling,
        until=until,
        device=lambda n=5: Node(Tier.DEVICE, n),
        edge=lambda n=3: Node(Tier.EDGE, n),
        cloud=CLOUD,
    )
