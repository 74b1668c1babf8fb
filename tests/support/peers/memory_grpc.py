"""gRPC in memory: the methods of `grpc.aio` that links use, without sockets and threads.

    network = MemoryNetwork()
    hub = GrpcHub(switch, "edge:1", network.tls, guard, transport=network)
    uplink = GrpcUplink(switch, node, {home: "edge:1"}, lambda: material, transport=network)

What a peer can do to the other end is as with gRPC: a writer waits while WINDOW_BYTES are unread
(RFC 9113, 5.2), the end of a client's call cancels its handler, a cancelled read or write of a
client ends its call, and a status comes after the messages before it. A client's credentials are
its TlsMaterial; the server's `auth_context` has the certificate, which nothing verifies. What
gRPC's core refuses (TLS, too many calls) is not here.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import grpc
from delian.core.node.identity.pki.certificates import TlsMaterial

#: A handler whose client's message is too long reads EOF, and is cancelled so much later.
CUT_S = 0.01
#: HTTP/2's first window of a stream (RFC 9113, 6.9.2).
WINDOW_BYTES = 65_535
OVER = "the call has ended"


class _Pipe:
    """Messages in one direction of a call. window: unread bytes from which on a writer waits."""

    def __init__(self, window: int) -> None:
        self._window, self._unread = window, 0
        self._contents: deque[bytes] = deque()
        self._waiting: list[asyncio.Future[None]] = []
        self.ended = False

    def begin(self, content: bytes) -> None:
        """The only message: it goes with the call itself."""
        self._contents.append(content)
        self.ended = True

    async def put(self, content: bytes) -> None:
        """Raises InvalidStateError after the reader has closed."""
        while not self.ended and self._unread >= self._window:
            await self._change()
        if self.ended:
            raise asyncio.InvalidStateError(OVER)
        self._contents.append(content)
        self._unread += len(content)
        self._changed()

    async def get(self) -> Any:
        """The next message; EOF after the last one."""
        while not self._contents:
            if self.ended:
                return grpc.aio.EOF
            await self._change()
        content = self._contents.popleft()
        self._unread -= len(content)
        self._changed()
        return content

    async def drained(self) -> None:
        while self._contents:
            await self._change()

    def end(self, drop: bool = False) -> None:
        """Nothing more is written. drop: nor read."""
        self.ended = True
        if drop:
            self._contents.clear()
        self._changed()

    async def _change(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _changed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)


class MemoryCall:
    """A call, as its client sees it."""

    def __init__(self, channel: MemoryChannel, method: str, metadata: Any, parsed: Any) -> None:
        loop = asyncio.get_running_loop()
        self.method, self.metadata, self.channel = method, metadata, channel
        self.up, self.down = _Pipe(WINDOW_BYTES), _Pipe(channel.window)
        self.begun = asyncio.Event()  # the initial metadata has come, or the end
        self.handler: asyncio.Task[None] | None = None
        self._bytes_max = 0
        self._parsed = parsed or bytes
        self._status: asyncio.Future[tuple[grpc.StatusCode, str]] = loop.create_future()
        channel.calls.add(self)
        server = channel.network.servers.get(channel.target)
        if server is None:
            self.finish(grpc.StatusCode.UNAVAILABLE, "no server at this address")
        else:
            self.handler, self._bytes_max = server.begin(self), server.bytes_max

    # ------------------------------------------------ its end

    def finish(self, code: grpc.StatusCode, details: str = "", drop: bool = False) -> None:
        """The end of the call has come. drop: what was not read is lost."""
        if not self._status.done():
            self.up.end(drop=True)
            self.down.end(drop)
            self.channel.calls.discard(self)
            self._status.set_result((code, details))
            self.begun.set()

    def break_off(self, code: grpc.StatusCode, details: str) -> bool:
        """The end of the call, whatever its handler does. False: it has ended before."""
        if self.done():
            return False
        self.finish(code, details, drop=True)
        if self.handler is not None:
            self.handler.cancel()
        return True

    def cancel(self) -> bool:
        return self.break_off(grpc.StatusCode.CANCELLED, "cancelled by the client")

    def done(self) -> bool:
        return self._status.done()

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._status.add_done_callback(lambda _: callback(self))

    async def code(self) -> grpc.StatusCode:
        return (await asyncio.shield(self._status))[0]

    async def details(self) -> str:
        return (await asyncio.shield(self._status))[1]

    async def initial_metadata(self) -> tuple[()]:
        await self.begun.wait()
        return ()

    async def _check(self) -> None:
        """Raises AioRpcError where the call's end is not a good one."""
        code, details = await asyncio.shield(self._status)
        if code is not grpc.StatusCode.OK:
            none = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(code, none, none, details=details)

    # ------------------------------------------------ its messages

    def begin(self, content: bytes) -> None:
        """The only message: it goes with the call itself."""
        if self._fits(content):
            self.up.begin(content)

    def _fits(self, content: bytes) -> bool:
        """Whether the server takes it; it ends the call otherwise."""
        if self.handler is None or len(content) <= self._bytes_max:
            return True
        self.finish(grpc.StatusCode.RESOURCE_EXHAUSTED, "the message is too long", drop=True)
        asyncio.get_running_loop().call_later(CUT_S, self.handler.cancel)
        return False

    async def write(self, content: bytes) -> None:
        if self.done():
            raise asyncio.InvalidStateError(OVER)
        if not self._fits(content):
            return
        try:
            await self.up.put(content)
        except asyncio.CancelledError:
            self.cancel()
            raise
        except asyncio.InvalidStateError:
            if self.done():
                await self._check()
            raise

    async def done_writing(self) -> None:
        self.up.end()

    async def read(self) -> Any:
        try:
            content = await self.down.get()
        except asyncio.CancelledError:
            self.cancel()
            raise
        if content is grpc.aio.EOF:
            await self._check()
            return content
        return self._parsed(content)

    async def _answer(self) -> Any:
        answer = await self.read()
        await self._check()
        return answer

    def __await__(self) -> Any:
        return self._answer().__await__()

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (content := await self.read()) is not grpc.aio.EOF:
            yield content


class MemoryChannel:
    """A connection that shows a certificate. window: of answers, in bytes."""

    def __init__(
        self, network: MemoryNetwork, target: str, material: TlsMaterial | None, window: int
    ) -> None:
        self.network, self.target, self.window = network, target, window
        self.material = material
        self.address = f"memory:{next(network.numbers)}"
        self.calls: set[MemoryCall] = set()

    def stream_stream(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        **_: Any,
    ) -> Callable[..., MemoryCall]:
        def call(metadata: Any = None) -> MemoryCall:
            return MemoryCall(self, method, metadata, response_deserializer)

        return call

    def unary_stream(
        self,
        method: str,
        request_serializer: Any = None,
        response_deserializer: Any = None,
        **_: Any,
    ) -> Callable[..., MemoryCall]:
        def call(request: Any, metadata: Any = None) -> MemoryCall:
            made = MemoryCall(self, method, metadata, response_deserializer)
            made.begin((request_serializer or bytes)(request))
            return made

        return call

    stream_unary, unary_unary = stream_stream, unary_stream

    async def close(self) -> None:
        for call in list(self.calls):
            call.cancel()

    async def __aenter__(self) -> MemoryChannel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class MemoryContext:
    """A call, as its handler sees it: `grpc.aio.ServicerContext`."""

    def __init__(self, call: MemoryCall, handler: Any) -> None:
        self._call = call
        self._parse = handler.request_deserializer or bytes
        self._serialize = handler.response_serializer or bytes

    def peer(self) -> str:
        return self._call.channel.address

    def auth_context(self) -> dict[str, list[bytes]]:
        shown = {"transport_security_type": [b"ssl"], "ssl_tls_version": [b"TLSv1.3"]}
        if (material := self._call.channel.material) is not None:
            shown["x509_pem_cert"] = [material.certificate]
        return shown

    def invocation_metadata(self) -> Any:
        return self._call.metadata or ()

    async def send_initial_metadata(self, _: Any) -> None:
        self._call.begun.set()

    async def read(self) -> Any:
        content = await self._call.up.get()
        return content if content is grpc.aio.EOF else self._parse(content)

    async def write(self, answer: Any) -> None:
        self._call.begun.set()
        await self._call.down.put(self._serialize(answer))

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        self._call.down.end()
        await self._call.down.drained()
        self._call.finish(code, details)
        raise grpc.aio.AbortError


class MemoryServer:
    """Serves at an address of its network from `start` to `stop`."""

    def __init__(self, network: MemoryNetwork, options: Any) -> None:
        self._network = network
        self.bytes_max: int = dict(options).get("grpc.max_receive_message_length", 4 << 20)
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._calls: set[MemoryCall] = set()
        self.at_work: set[asyncio.Task[None]] = set()
        self._address = ""

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._handlers += handlers

    def add_secure_port(self, address: str, credentials: Any) -> int:
        assert credentials is self._network.tls and address not in self._network.servers
        self._address = address
        return int(address.rpartition(":")[2])

    async def start(self) -> None:
        self._network.servers[self._address] = self

    async def stop(self, grace: float | None = None) -> None:
        """Takes no more calls, and cancels those that do not end in time."""
        self._network.servers.pop(self._address, None)
        at_work = list(self.at_work)
        if at_work and grace:
            await asyncio.wait(at_work, timeout=grace)
        for call in list(self._calls):
            call.break_off(grpc.StatusCode.UNAVAILABLE, "the server has stopped")
        await asyncio.gather(*at_work, return_exceptions=True)

    def begin(self, call: MemoryCall) -> asyncio.Task[None]:
        """A handler for a new call."""
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)
        handler = asyncio.get_running_loop().create_task(self._serve(call))
        self.at_work.add(handler)
        handler.add_done_callback(self.at_work.discard)
        return handler

    async def _serve(self, call: MemoryCall) -> None:
        asked = SimpleNamespace(method=call.method, invocation_metadata=call.metadata or ())
        handler = next(found for h in self._handlers if (found := h.service(asked)) is not None)
        try:
            await self._answer(handler, MemoryContext(call, handler))
            call.down.end()
            await call.down.drained()
            call.finish(grpc.StatusCode.OK)
        except grpc.aio.AbortError:
            """The call has its status."""
        except asyncio.CancelledError:
            """By its client; or by the handler itself, which to gRPC is no end of the call."""
        except Exception as fault:
            logging.getLogger(__name__).exception("a handler failed")
            call.finish(grpc.StatusCode.UNKNOWN, str(fault), drop=True)

    async def _answer(self, handler: Any, context: MemoryContext) -> None:
        if not handler.response_streaming:
            await context.write(await handler.stream_unary(None, context))
            return
        answers = handler.stream_stream(None, context)
        if hasattr(answers, "__aiter__"):
            async for answer in answers:
                await context.write(answer)
        else:  # it writes by itself
            await answers


class MemoryNetwork:
    """The servers of one event loop by "name:port": a Transport (`grpc_transport.py`)."""

    def __init__(self) -> None:
        self.servers: dict[str, MemoryServer] = {}
        self.numbers = itertools.count(1)
        self.tls = grpc.ServerCredentials(None)

    def server(self, options: Any, calls_max: int | None = None) -> MemoryServer:
        return MemoryServer(self, options)

    def channel(
        self,
        target: str,
        credentials: TlsMaterial | None,
        options: Any = (),
        window: int = WINDOW_BYTES,
    ) -> MemoryChannel:
        return MemoryChannel(self, target, credentials, window)

    @property
    def calls(self) -> int:
        """How many handlers are at work."""
        return sum(len(server.at_work) for server in self.servers.values())
