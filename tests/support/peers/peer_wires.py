"""What a bad peer speaks with: links that say anything, in any order, or nothing.

`Stream` is a gRPC stream of raw envelopes, `Http2` the bytes below it, `Mqtt` a link over a broker
that has agreed on keys and then seals what it likes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import grpc
from delian.core.node.identity.pki.certificates import TlsFiles, TlsMaterial, node_name
from delian.core.node.identity.pki.tls_contexts import client_context
from delian.core.node.net.grpc.grpc_ending import Ending
from delian.core.node.net.grpc.grpc_peer import CONNECT, PULL, PUSH
from delian.core.node.net.mqtt.mqtt_client import Publication
from delian.core.node.net.mqtt.mqtt_link import MqttUplink
from delian.core.node.net.mqtt.topics import Direction, Kind, Topic
from delian.core.node.net.switch import Switch
from delian.core.node.storage.codec import address, envelope_bytes, message_of
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.protocol.ports import Node
from delian.core.wire.link_pb2 import Envelope, Part, PullRequest, PushReply
from google.protobuf.message import Message

from support.peers.peer_world import EDGE, FEDERATION, World

if TYPE_CHECKING:
    from support.peers.system_world import SystemWorld

#: For an answer: longer than daemons in the field wait for a bad peer.
ANSWER_S = 180.0


class Stream:
    """A stream to a home that says what it is told. who: whom the certificate names."""

    def __init__(self, world: World, who: Node, material: TlsMaterial, home: Node = EDGE) -> None:
        self.world, self.who, self.home = world, who, home
        self.channel = world.channel(home, material)
        self.call: Any = None
        self.pushed: Ending | None = None  # how the last transfer upwards ended
        self.goodbye = ""
        self._heard: asyncio.Queue[Message | None] = asyncio.Queue()
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        if self.call is not None:
            self.call.cancel()
        await self.channel.close()

    async def connect(self) -> Stream:
        """Says its name; returns when it is let in."""
        self.open()
        async with asyncio.timeout(ANSWER_S):
            await self.call.write(self._hello())
            await self.call.initial_metadata()
        self._reader = asyncio.create_task(self._read())
        return self

    async def refusal(self, first: bytes | None = None) -> grpc.StatusCode:
        """Says its name, or whatever is to come first, and is not let in: why."""
        self.open()
        async with asyncio.timeout(ANSWER_S):
            with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                await self.call.write(self._hello() if first is None else first)
            return await self._ending.code()

    def open(self) -> None:
        """Says nothing yet."""
        self.call = self.channel.stream_stream(CONNECT)()
        self._ending = Ending(self.call)

    def _hello(self) -> bytes:
        return Envelope(sender=address(self.who), to=address(self.home)).SerializeToString()

    async def _read(self) -> None:
        """Hears all that is said, so that nothing is lost when the stream ends."""
        with contextlib.suppress(grpc.aio.AioRpcError):
            while (content := await self.call.read()) is not grpc.aio.EOF:
                said = Envelope.FromString(content)
                if said.WhichOneof("message") == "goodbye":
                    self.goodbye = said.goodbye.reason
                elif said.WhichOneof("message"):
                    self._heard.put_nowait(message_of_any(said))
        self._heard.put_nowait(None)

    async def say(self, *said: bytes | Message, to: Node | None = None) -> None:
        """Sends messages under its own name, and bytes as they are."""
        for each in said:
            if isinstance(each, Message):
                each = envelope_bytes(self.who, to or self.home, each)
            async with asyncio.timeout(ANSWER_S):
                await self.call.write(each)

    async def hear(self, kind: type[Message]) -> Any:
        """The next message of a kind; what else comes is dropped."""
        async with asyncio.timeout(ANSWER_S):
            while True:
                found = await self._heard.get()
                assert found is not None, f"the stream ended before a {kind.__name__}"
                if isinstance(found, kind):
                    return found

    async def end(self) -> grpc.StatusCode:
        """Waits until the home ends the stream; `goodbye` has its reason then."""
        async with asyncio.timeout(ANSWER_S):
            await (self._reader or self._read())
            return await self._ending.code()

    async def push(self, parts: Iterable[Part | bytes], wait_s: float = 0.0) -> int:
        """A transfer upwards, then `wait_s` of silence; what the home says to have. Raises
        AioRpcError.
        """
        call = self.channel.stream_unary(PUSH)()
        self.pushed = Ending(call)
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            for part in parts:
                await call.write(part if isinstance(part, bytes) else part.SerializeToString())
            if wait_s:
                await asyncio.wait([asyncio.ensure_future(call.code())], timeout=wait_s)
            await call.done_writing()
        async with asyncio.timeout(ANSWER_S):
            return PushReply.FromString(await call).offset

    async def pull(self, id: bytes, offset: int = 0) -> bytes:
        """A transfer downwards. Raises AioRpcError."""
        call = self.channel.unary_stream(PULL)(
            PullRequest(id=id, offset=offset).SerializeToString()
        )
        found = b""
        async with asyncio.timeout(ANSWER_S):
            async for content in call:
                found += Part.FromString(content).content
        return found


def message_of_any(said: Envelope) -> Message:
    """What an envelope says, the transport's own messages too."""
    field = said.WhichOneof("message")
    if field in ("offer", "want", "goodbye"):
        found: Message = getattr(said, field)
        return found
    return message_of(said)


# ---------------------------------------------------------------- below gRPC

_DATA, _HEADERS, _SETTINGS = 0, 1, 4
_STREAM = 1
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Http2:
    """One HTTP/2 connection with a call and a receive window of nothing: it takes no answer, ever
    (RFC 9113).

    Header fields are literals without indexing (RFC 7541, 6.2.2).
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, world: SystemWorld, files: TlsFiles, home: Node = EDGE) -> Http2:
        reader, writer = await tls_connection(world, client_context(files), home)
        made = cls(reader, writer)
        no_window = struct.pack(">HI", 4, 0)  # SETTINGS_INITIAL_WINDOW_SIZE
        writer.write(_PREFACE + _frame(_SETTINGS, 0, 0, no_window))
        writer.write(_frame(_SETTINGS, 1, 0, b""))  # of theirs, whatever they are
        await writer.drain()
        return made

    async def call(self, path: str, authority: str) -> None:
        """Opens the call."""
        fields = [
            (":method", "POST"),
            (":scheme", "https"),
            (":path", path),
            (":authority", authority),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
        ]
        block = b"".join(_literal(name, value) for name, value in fields)
        self._writer.write(_frame(_HEADERS, 4, _STREAM, block))
        await self._writer.drain()

    async def say(self, content: bytes, last: bool = False) -> None:
        """One gRPC message. All of them together must fit 64 KiB."""
        body = struct.pack(">BI", 0, len(content)) + content
        self._writer.write(_frame(_DATA, int(last), _STREAM, body))
        await self._writer.drain()

    async def closed(self) -> None:
        """Until the other end closes."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(65536):
                pass

    def close(self) -> None:
        self._writer.transport.abort()


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + body


def _literal(name: str, value: str) -> bytes:
    parts = [bytes([len(text)]) + text for text in (name.encode(), value.encode())]
    return b"\0" + b"".join(parts)


async def tls_connection(
    world: SystemWorld, context: ssl.SSLContext, home: Node = EDGE
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """TLS to a daemon, without gRPC."""
    context.set_alpn_protocols(["h2"])
    host, _, port = world.address(home).rpartition(":")
    name = node_name(FEDERATION, world.server(home))
    return await asyncio.open_connection(host, int(port), ssl=context, server_hostname=name)


# ---------------------------------------------------------------- MQTT


class Mqtt:
    """A link over the broker whose frames are made by hand."""

    def __init__(self, world: World, who: Node, material: TlsMaterial, home: Node = EDGE) -> None:
        self.world, self.who, self.home = world, who, home
        self.switch, self.inbox = Switch(), asyncio.Queue[Message]()
        self.switch.attach(who, self._take, MemoryBlobs(), lambda sender: 1 << 20)
        self.link = MqttUplink(
            self.switch, world.mqtt_identity(who, material), {home: world.broker_url}
        )

    def _take(self, event: Any, traceparent: str = "", size: int = 0) -> None:
        self.inbox.put_nowait(event.message)

    async def __aenter__(self) -> Mqtt:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.link.close()

    async def connect(self) -> Mqtt:
        """Returns when there are keys."""
        self.link.start()
        await self.world.until(lambda: self.link.home == self.home, "for keys")
        return self

    @property
    def peer(self) -> Any:
        return self.link._visit.peer

    def topic(self, kind: Kind) -> str:
        return str(Topic(FEDERATION, self.who, Direction.UP, kind, self.home))

    def sealed(self, body: bytes, kind: Kind = Kind.ENVELOPE) -> bytes:
        """A frame with anything in it."""
        frame: bytes = self.peer.current.seal(self.topic(kind), body)
        return frame

    async def publish(self, frame: bytes, kind: Kind = Kind.ENVELOPE, retain: bool = False) -> None:
        """Puts bytes into one of its topics."""
        await self.peer.office.publish(Publication(self.topic(kind), frame, retain))

    async def say(self, *said: bytes | Message, to: Node | None = None) -> None:
        """Sends messages under its own name, and bytes as they are, sealed."""
        for each in said:
            if isinstance(each, Message):
                each = envelope_bytes(self.who, to or self.home, each)
            await self.publish(self.sealed(each))

    async def say_part(self, part: Part) -> None:
        await self.publish(self.sealed(part.SerializeToString(), Kind.PART), Kind.PART)

    async def hear(self, kind: type[Message]) -> Any:
        """The next message of a kind."""
        async with asyncio.timeout(ANSWER_S):
            while True:
                found = await self.inbox.get()
                if isinstance(found, kind):
                    return found
