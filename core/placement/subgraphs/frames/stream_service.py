"""The upper end of the streams of frames: service `Subgraphs` on a node's gRPC server.

It is one of the servicers of a `GrpcHub` (`net/grpc_server.py`): the same port, the same policy. A
stream is here a `Line`; a node may have a few, for its agent and for programs of its owner's, and
when it opens one more its oldest ends. What a frame may be is checked by `stream.py`; what is said
in it is for the owner of the service.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Protocol

import grpc

from ....node.identity.pki.certificates import IdentityError, PeerIdentity
from ....node.net.grpc.grpc_guard import Door, Policy, name_of
from ....node.net.grpc.grpc_peer import CALL_ENDED
from ....node.net.loopback import INSECURE
from ....node.net.message_limits import Buckets, Faults
from ....node.net.traffic import Traffic
from ....wire.subgraph_pb2 import SubgraphFrame
from .. import request_limits as limits
from .stream import FrameStream, Key, StreamError, Whole

log = logging.getLogger("delian.subgraphs")

SERVICE = "delian.wire.Subgraphs"
RUN = f"/{SERVICE}/Run"
#: How often it is asked again whether a peer is still trusted.
REVIEW_S = 30.0


class Line:
    """A connected lower node. number: of this visit. ended: called once, at its end."""

    def __init__(
        self, number: int, name: str, peer: PeerIdentity | None, ended: Callable[[], object]
    ) -> None:
        self.number, self.name, self.peer = number, name, peer
        self.node = None if peer is None else peer.node
        self.violations = 0
        self.why: str | None = None
        self.stream: FrameStream
        self._ended = ended

    def say(self, frame: SubgraphFrame) -> None:
        """Sends a frame of control; a peer that takes none is sent away."""
        try:
            self.stream.say(frame)
        except StreamError as error:
            self.end(error.kind)

    def reply(self, key: Key, content: bytes) -> None:
        """Sends a message; a peer that takes none is sent away."""
        try:
            self.stream.send(key, content)
        except StreamError as error:
            self.end(error.kind)

    def end(self, reason: str) -> None:
        """Ends the stream, from anywhere."""
        if self.why is None:
            self.why = reason
            self._ended()


class Owner(Protocol):
    """The owner of a service; called on the event loop."""

    def came(self, line: Line) -> None:
        """There is a stream; `line.stream` sends."""

    def admit(self, line: Line, key: Key, size: int) -> bool:
        """Whether a request is taken that begins to come (`FrameStream`)."""

    def said(self, line: Line, frame: SubgraphFrame) -> None:
        """An opening, a closing or a cancellation; may raise StreamError."""

    def asked(self, line: Line, request: Whole) -> None:
        """A request is whole; may raise StreamError."""

    def gone(self, line: Line) -> None:
        """The stream has ended."""


class SubgraphService:
    """Serves lower nodes.

    policy: which nodes may call (`identity.roles.Guard`). federation: of callers without
    certificates; None: they have them. numbers: of the lines; another service of the same owner has
    the same counter. traffic: of the process, which counts the frames. Give it to a GrpcHub as a
    servicer:

        service = SubgraphService(owner, guard, None)
        hub = GrpcHub(switch, address, credentials, guard, servicers=(service.add,))
    """

    def __init__(
        self,
        owner: Owner,
        policy: Policy,
        federation: str | None = INSECURE,
        numbers: Iterator[int] | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self._meter = (traffic or Traffic()).meter("grpc")
        self.faults = Faults("subgraphs")
        self.lines: dict[int, Line] = {}
        self._owner = owner
        self._door = Door(policy, self.faults, federation)
        self._numbers = numbers or itertools.count(1)
        self._rate = Buckets(limits.FRAMES_BURST, limits.FRAMES_PER_S, limits.STREAMS_MAX)

    def add(self, server: Any) -> None:
        """Adds its handlers to a server."""
        handler = grpc.stream_stream_rpc_method_handler(self._run)
        server.add_registered_method_handlers(SERVICE, {"Run": handler})

    def review(self) -> None:
        """Closes lines that the policy does not allow any more, and lines that block all others."""
        for line in list(self.lines.values()):
            reason = self._door.refusal(line.peer, RUN)
            if reason is not None:
                self.faults.count(reason, line.name)
                line.end(reason)
            elif line.stream.stalled:
                self.faults.count("stalled", line.name)
                line.end("stalled")

    async def keep_reviewing(self) -> None:
        """Does so again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(REVIEW_S)
            self.review()

    def close(self) -> None:
        """Ends all streams."""
        for line in list(self.lines.values()):
            line.end("shutting down")

    async def _run(self, _: Any, context: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        line = await self._enter(context, task)
        writer = asyncio.get_running_loop().create_task(line.stream.run())
        writer.add_done_callback(lambda done: _ended(done, line))
        own = [other for other in self.lines.values() if other.name == line.name]
        if len(own) >= limits.STREAMS_PER_PEER:
            own[0].end("replaced by a newer stream")
        self.lines[line.number] = line
        self._owner.came(line)
        try:
            while (content := await context.read()) is not grpc.aio.EOF:
                if line.node is not None:
                    self._meter.received(line.node, len(content), "frame")
                self._take(line, content)
        except asyncio.CancelledError:
            if line.why is None:  # the node has gone
                self.faults.counts["broken off"] += 1
                raise
            task.uncancel()
        finally:
            del self.lines[line.number]
            self._owner.gone(line)
            line.why = line.why or "gone"
            writer.cancel()
        log.info("%s: its stream of parts ended: %s", line.name, line.why)
        if line.why != "gone":
            await context.abort(grpc.StatusCode.ABORTED, line.why)

    async def _enter(self, context: Any, task: asyncio.Task[Any]) -> Line:
        """The line of a new stream; the policy has let it in."""
        try:
            peer = self._door.identify(context)
        except IdentityError:
            peer = None
        if peer is None:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no identity was presented")
            raise AssertionError("an aborted call goes no further")
        if len(self.lines) >= limits.STREAMS_MAX:
            self.faults.count("too many streams", name_of(peer))
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams")
        line = Line(next(self._numbers), name_of(peer), peer, task.cancel)

        async def write(content: bytes) -> None:
            await context.write(content)
            if line.node is not None:
                self._meter.sent(line.node, len(content), "frame")

        line.stream = FrameStream(write, lambda key, size: self._admit(line, key, size))
        await context.send_initial_metadata(())
        return line

    def _admit(self, line: Line, key: Key, size: int) -> bool:
        return self._owner.admit(line, key, size)

    def _take(self, line: Line, content: bytes) -> None:
        """One frame. What breaks the rules is counted; a peer that repeats it is disconnected."""
        try:
            if not self._rate.take(line.name, monotonic()):
                raise StreamError("too fast")
            came = line.stream.take(content)
            if isinstance(came, Whole):
                self._owner.asked(line, came)
            elif came is not None:
                self._owner.said(line, came)
        except StreamError as error:
            self.faults.count(error.kind, line.name)
            line.violations += 1
            if line.violations > limits.VIOLATIONS_MAX or error.kind == "slow reader":
                line.end(error.kind)


def _ended(writer: asyncio.Task[None], line: Line) -> None:
    """The writer has ended: by itself only where the call has, or at a fault."""
    if writer.cancelled():
        return
    fault = writer.exception()
    if fault is not None and not isinstance(fault, CALL_ENDED):
        log.error("%s: a stream of parts failed: %s", line.name, fault)
    line.end("gone")
