"""The lower end of a stream of frames: a node's way to the node that runs the upper parts.

`Upstream` dials its homes in turn, keeps one stream at one of them and dials again when it breaks,
at first at once: requests that wait for an answer meanwhile learn that the home is gone, and do
without it. The home is asked for nothing that its name is not in the certificate for.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grpc

from ....common.errors import DelianError
from ....node.identity.pki.certificates import IdentityError, channel_options
from ....node.net.grpc import grpc_core
from ....node.net.grpc.grpc_ending import Ending
from ....node.net.grpc.grpc_guard import claim
from ....node.net.grpc.grpc_peer import CALL_ENDED
from ....node.net.loopback import INSECURE, check_loopback
from ....node.net.message_limits import Faults
from ....node.net.traffic import Traffic
from ....protocol.ports import Node
from ....wire.subgraph_pb2 import SubgraphFrame
from ..request_limits import FRAME_BYTES_MAX, VIOLATIONS_MAX
from .stream import FrameStream, Key, StreamError, Whole
from .stream_service import RUN

log = logging.getLogger("delian.subgraphs")

#: For the connection and the home's first sign.
DIAL_S = 10.0
#: The pause after a stream broke, at first; it doubles.
PAUSE_S = 0.1
PAUSE_S_MAX = 5.0
KEEPALIVE_MS = 30_000
KEEPALIVE_TIMEOUT_MS = 10_000


class Owner(Protocol):
    """The user of a stream; called on the event loop."""

    def back(self, stream: FrameStream) -> None:
        """There is a stream (again)."""

    def admit(self, key: Key, size: int) -> bool:
        """Whether a reply is taken that begins to come (`FrameStream`)."""

    def said(self, frame: SubgraphFrame) -> None:
        """The answer to an opening; may raise StreamError."""

    def replied(self, reply: Whole) -> None:
        """A reply is whole; may raise StreamError."""

    def taken(self, taken: int, waiting: int, at_us: int) -> None:
        """`FrameStream.on_taken`."""

    def arriving(self, key: Key, done: int, of: int) -> None:
        """`FrameStream.on_arriving`."""

    def gone(self) -> None:
        """The stream broke."""


class Upstream:
    """The stream of one node to its home.

    homes: (node, "host:port"), in order of preference. credentials: what to show, asked at each
    dialling; None: nothing, to loopback only. traffic: of the process, which
    counts the frames.

        upstream = Upstream(node, [(Node(Tier.EDGE, 1), "edge:7451")], owner, credentials, "farm")
        upstream.start()
    """

    def __init__(
        self,
        node: Node,
        homes: Sequence[tuple[Node, str]],
        owner: Owner,
        credentials: Callable[[], grpc.ChannelCredentials] | None,
        federation: str = INSECURE,
        traffic: Traffic | None = None,
    ) -> None:
        if not homes:
            raise DelianError(f"no home of {node} supports gRPC", "name one as host:port")
        if credentials is None:
            for _, target in homes:
                check_loopback(target, "the home")
        self._meter = (traffic or Traffic()).meter("grpc")
        self.faults = Faults("subgraphs above")
        self.stream: FrameStream | None = None
        self._node, self._homes, self._owner = node, tuple(homes), owner
        self._credentials, self._federation = credentials, federation
        self._task: asyncio.Task[None] | None = None
        self._redial = asyncio.Event()

    def start(self) -> None:
        """Dials from now on."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    def redial(self) -> None:
        """Dials again, with the current credentials."""
        self._redial.set()

    async def close(self) -> None:
        """Ends. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _keep(self) -> None:
        tries = 0
        while True:
            home, target = self._homes[tries % len(self._homes)]
            try:
                spoke = await self._visit(home, target)
            except (IdentityError, OSError) as error:
                log.warning("%s cannot dial: %s", self._node, error)
                spoke = False
            tries = 0 if spoke else tries + 1
            pause = min(PAUSE_S * 2.0 ** min(tries, 16), PAUSE_S_MAX) * random.uniform(0.5, 1.0)
            await asyncio.sleep(pause)

    async def _visit(self, home: Node, target: str) -> bool:
        """Dials, and runs the stream until it ends; whether it ever began."""
        self._redial.clear()
        metadata = claim(self._node) if self._credentials is None else None
        channel = await self._dial(home, target)
        call: Any = channel.stream_stream(RUN)(metadata=metadata)
        ending = Ending(call)
        work: list[asyncio.Task[Any]] = []
        try:
            async with asyncio.timeout(DIAL_S):
                await call.initial_metadata()
            if call.done():
                await self._count(call, ending, home)
                return False

            async def write(content: bytes) -> None:
                await call.write(content)
                self._meter.sent(home, len(content), "frame")

            stream = FrameStream(
                write,
                self._owner.admit,
                on_taken=self._owner.taken,
                on_arriving=self._owner.arriving,
            )
            loop = asyncio.get_running_loop()
            jobs = (stream.run(), self._read(call, stream, home), self._redial.wait())
            work = [loop.create_task(job) for job in jobs]
            self.stream = stream
            self._owner.back(stream)
            try:
                await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.stream = None
                self._owner.gone()
            await self._count(call, ending, home)
            return True
        except TimeoutError:
            self.faults.count("no answer", home)
            return False
        except CALL_ENDED:
            await self._count(call, ending, home)
            return False
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            call.cancel()
            await channel.close()

    async def _count(self, call: Any, ending: Ending, home: Node) -> None:
        """Counts how a stream ended."""
        if not call.done():
            return
        with contextlib.suppress(*CALL_ENDED):
            code = await ending.code()
            self.faults.count(f"stream ended: {code.name.lower()}", home)

    async def _dial(self, home: Node, target: str) -> Any:
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
        ]
        grpc_core.hold()
        if self._credentials is None:
            options.append(("grpc.enable_http_proxy", 0))
            return grpc.aio.insecure_channel(target, options)
        credentials = await asyncio.to_thread(self._credentials)
        options += channel_options(self._federation, home)
        return grpc.aio.secure_channel(target, credentials, options)

    async def _read(self, call: Any, stream: FrameStream, home: Node) -> None:
        violations = 0
        while (content := await call.read()) is not grpc.aio.EOF:
            self._meter.received(home, len(content), "frame")
            try:
                came = stream.take(content)
                if isinstance(came, Whole):
                    self._owner.replied(came)
                elif came is not None:
                    self._owner.said(came)
            except StreamError as error:
                self.faults.count(error.kind, "the home")
                violations += 1
                if violations > VIOLATIONS_MAX:
                    return
