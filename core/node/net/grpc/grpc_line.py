"""An uplink's time at one home.

It dials, sends, and when the connection breaks dials again, with pauses that grow and differ from
node to node. What waits to be said then goes first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, Message

from ....protocol.ports import RETRY_MS_MAX, Node, ProtocolError, Received, Tier
from ....wire.blob_pb2 import FetchBlob
from ....wire.link_pb2 import Envelope, Goodbye
from ...identity.pki.certificates import channel_options
from ...identity.pki.roles import may_send
from ...storage.codec import address, envelope_bytes, message_of, node_of, relayed_of
from .. import message_limits
from ..loop_clock import now_s
from ..transfer import Refused
from .grpc_ending import Ending
from .grpc_fetching import Fetching
from .grpc_guard import claim
from .grpc_peer import CALL_ENDED, CONNECT, GOODBYE_S, WRITE_S

if TYPE_CHECKING:
    from .grpc_link import GrpcUplink

log = logging.getLogger("delian.net.grpc")

#: For the connection and the home's first sign.
DIAL_S = 20.0
#: The pause after a connection broke, at first; it doubles.
PAUSE_S = 0.5
PAUSE_S_MAX = 60.0
#: After a refusal (identity, rights) it begins at this: trying again helps little.
PAUSE_REFUSED_S = 15.0
#: A connection that lasted so long was a good one: the pauses begin again.
GOOD_S = 30.0
#: How long the old line stays when the node goes to another home.
LEAVE_S = 2.0
KEEPALIVE_MS = 120_000
KEEPALIVE_TIMEOUT_MS = 20_000

_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


class Line:
    """An uplink's time at one home."""

    def __init__(self, uplink: GrpcUplink, home: Node, target: str) -> None:
        self.home = home
        self.connected = False
        self.broken = False  # dialled in vain, or lost
        self._up = uplink
        self._target = target
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._filled = asyncio.Event()
        metadata: Any = claim(uplink.node) if uplink.credentials is None else None
        self.transfers = Fetching(
            uplink.switch, uplink.faults, uplink.meter, home, self._put, metadata
        )
        # What a coordinator says to an edge is for thousands of devices.
        self._pace = message_limits.Pace() if uplink.node.tier is Tier.DEVICE else None
        self._goodbye: Goodbye | None = None
        self._closing = False
        self._wished = asyncio.Event()  # to reconnect, or to end
        self._drained = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    # ------------------------------------------------ the connection

    async def _run(self) -> None:
        tries = 0
        while True:
            began = now_s()
            refused = await self._visit()
            tries = 0 if now_s() - began > GOOD_S else tries + 1
            try:
                async with asyncio.timeout(self._pause(tries, refused)):
                    await self._wished.wait()
            except TimeoutError:
                pass
            self._wished.clear()
            if self._closing:
                return

    def _pause(self, tries: int, refused: bool) -> float:
        """Seconds until the line dials again."""
        goodbye, self._goodbye = self._goodbye, None
        if goodbye is not None and goodbye.retry_ms:
            # Later than asked rather than sooner, and not all at once.
            return min(goodbye.retry_ms, RETRY_MS_MAX) / 1000 * self._up.rng.uniform(1.0, 1.5)
        pause: float = min(PAUSE_S * 2.0 ** min(tries - 1, 20), PAUSE_S_MAX)
        return max(pause, PAUSE_REFUSED_S if refused else 0.0) * self._up.rng.uniform(0.5, 1.0)

    async def _visit(self) -> bool:
        """Dials, and sends until the connection ends. Whether the home refuses this node."""
        channel = self._dial()
        call = channel.stream_stream(CONNECT)()  # its first envelope names the sender
        ending = Ending(call)
        work: list[asyncio.Task[Any]] = []
        try:
            async with asyncio.timeout(DIAL_S):
                said = Envelope(sender=address(self._up.node), to=address(self.home))
                hello = said.SerializeToString()
                await call.write(hello)
                self._up.meter.sent(self.home, len(hello))
                await call.initial_metadata()
            if call.done():  # refused: there was a status instead of metadata
                return await self._ended(ending)
            self._greet(channel)
            loop = asyncio.get_running_loop()
            work = [
                loop.create_task(job)
                for job in (self._read(call), self._write(call), self._wished.wait())
            ]
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            if not work[0].done() and not work[1].done():
                await self._part(call)
                return False
            return await self._ended(ending)
        except TimeoutError:
            self._up.faults.count("no answer", self.home)
            return False
        except CALL_ENDED:
            return await self._ended(ending)
        finally:
            self.connected, self.broken = False, True
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            await self.transfers.pause()
            call.cancel()
            await channel.close()

    def _greet(self, channel: Any) -> None:
        """The connection is there: what was cut off goes on."""
        self.connected, self.broken = True, False
        log.info("%s: connected to %s", self._up.node, self.home)
        self._filled.set()
        self.transfers.begin(channel)
        if self._up.on_connected is not None:
            self._up.on_connected(self.home)

    async def _part(self, call: Any) -> None:
        """Says what waits, and goodbye, if the home listens."""
        if self._closing:
            goodbye = Goodbye(reason="leaving")
            self._put(envelope_bytes(self._up.node, self.home, goodbye))
        try:
            async with asyncio.timeout(GOODBYE_S):
                await self._drained.wait()
                await call.done_writing()
        except (TimeoutError, *CALL_ENDED):
            self._up.faults.counts["goodbye not taken"] += 1

    async def _ended(self, ending: Ending) -> bool:
        """Counts how a connection ended; whether it was a refusal."""
        try:
            async with asyncio.timeout(GOODBYE_S):
                code = await ending.code()
        except (TimeoutError, asyncio.CancelledError):
            code = grpc.StatusCode.UNKNOWN
        if code is not grpc.StatusCode.OK:
            self._up.faults.count(f"connection ended: {code.name.lower()}", self.home)
        refused = code in _REFUSALS
        if refused and self._up.on_refused is not None:
            self._up.on_refused(self.home, await ending.details())
        return refused

    def _dial(self) -> Any:
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", message_limits.FRAME_BYTES_MAX),
            ("grpc.use_local_subchannel_pool", 1),  # a connection of this node's own
            ("grpc.enable_retries", 0),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        if self._up.credentials is None:
            options.append(("grpc.enable_http_proxy", 0))
            return self._up.transport.channel(self._target, None, options)
        options += channel_options(self._up.federation, self.home)
        return self._up.transport.channel(self._target, self._up.credentials(), options)

    def redial(self) -> None:
        """Ends the connection and dials again at once."""
        self._wished.set()

    async def leave(self) -> None:
        """Ends the line once what waits has had a moment to go."""
        try:
            await asyncio.sleep(LEAVE_S)
        finally:
            await self.close()

    async def close(self) -> None:
        """Says Goodbye, if the home listens, and ends."""
        self._closing = True
        self._wished.set()
        if self.connected:
            await asyncio.wait([self._task], timeout=3 * GOODBYE_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.transfers.close()

    # ------------------------------------------------ speaking

    def send(self, sender: Node, message: Message, traceparent: str) -> None:
        """Says a message, or offers it."""
        if isinstance(message, FetchBlob):
            self.transfers.asked.add(sender, message.digest)
        content = envelope_bytes(sender, self.home, message, traceparent)
        if len(content) > message_limits.INLINE_MAX:
            self.transfers.offer(sender, message, content)
        else:
            self._put(content)

    def _put(self, content: bytes) -> None:
        if (
            len(self._queue) >= message_limits.QUEUE_ENVELOPES_MAX
            or self._queued + len(content) > message_limits.QUEUE_BYTES_MAX
        ):
            self._up.faults.count("queue is full", self.home)
            return
        self._queue.append(content)
        self._queued += len(content)
        self._drained.clear()
        self._filled.set()

    async def _write(self, call: Any) -> None:
        while True:
            while self._queue:
                content = self._queue[0]  # stays until it is written: a broken line says it again
                async with asyncio.timeout(WRITE_S):
                    await call.write(content)
                self._up.meter.sent(self.home, len(content))
                self._queue.popleft()
                self._queued -= len(content)
            self._drained.set()
            self._filled.clear()
            await self._filled.wait()

    # ------------------------------------------------ listening

    async def _read(self, call: Any) -> None:
        while (content := await call.read()) is not grpc.aio.EOF:
            self._up.meter.received(self.home, len(content))
            try:
                self._take(Envelope.FromString(content))
            except Refused as refusal:
                self._up.faults.count(refusal.kind, self.home)
            except (DecodeError, ProtocolError):
                self._up.faults.count("malformed", self.home)
            if self._goodbye is not None:
                log.info("%s: %s says goodbye, %s", self._up.node, self.home, self._goodbye.reason)
                return
            if self._pace is not None and (wait_s := self._pace.wait_s(now_s())) > 0.0:
                self._up.faults.count("too many messages", self.home)
                await asyncio.sleep(wait_s)

    def _take(self, said: Envelope) -> None:
        """One envelope. Raises ProtocolError."""
        field = said.WhichOneof("message")
        if field == "goodbye":
            self._goodbye = said.goodbye
            return
        if field is None:
            raise Refused("unknown message", "nothing, or nothing that is known")
        if node_of(said.sender) != self.home:
            raise Refused("wrong sender", "an envelope of another node")
        to = node_of(said.to)
        if not may_send(self.home.tier, to.tier, field) or field == "blob":
            raise Refused("not allowed", f"{field} to {to}")
        if field == "want":
            self.transfers.take_want(said.want)
        elif field == "offer":
            self.transfers.take_offer(said.offer, to)
        elif (request := relayed_of(said)) is not None:
            self._up.switch.take_relayed(self.home, to, request)
        else:
            self._up.switch.deliver(to, Received(self.home, message_of(said)), said.traceparent)
