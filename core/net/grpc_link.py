"""`GrpcUplink`: a node's way up over gRPC, to one home at a time.

The home is whoever is spoken to: the first message to another one dials there, and the old line
ends a moment later. A `_Line` is the time at one home: it dials, speaks, and when the connection
breaks dials again, with pauses that grow and differ from node to node. What waits to be said then
goes first, what was being sent or fetched goes on where it ended.

Up, a large message is offered; the home answers Want and gets it by Push. Down, what the home
offers is fetched by Pull: a blob, if this node has asked for it, straight into its store; a large
message, if the node takes one of that size, into memory (`transfer.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from time import monotonic
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, Message

from ..errors import DelianError
from ..identity.certificates import channel_options
from ..identity.roles import may_send
from ..node.codec import address, envelope_bytes, message_of, node_of
from ..node.hosting import INSECURE, check_loopback
from ..ports import RETRY_MS_MAX, Node, ProtocolError
from ..wire.blob_pb2 import FetchBlob
from ..wire.link_pb2 import (
    TRANSFER_BLOB,
    Envelope,
    Goodbye,
    Offer,
    Part,
    PullRequest,
    PushReply,
    Want,
)
from .grpc_guard import claim
from .grpc_server import CONNECT, GOODBYE_S, PART_S, PULL, PUSH, SMALL, WRITE_S
from .limits import (
    FRAME_BYTES_MAX,
    INLINE_MAX,
    QUEUE_BYTES_MAX,
    QUEUE_ENVELOPES_MAX,
    TRANSFERS_PER_PEER,
    Faults,
)
from .switch import Switch
from .transfer import Asked, Intake, Outbox, Outgoing, Refused, Spool, part_bytes

if TYPE_CHECKING:
    from ..node.blobs import BlobStore

log = logging.getLogger("delian.net.grpc")

#: For the connection and the home's first sign.
DIAL_S = 20.0
#: The pause after a connection broke, at first; it doubles.
PAUSE_S = 0.5
PAUSE_S_MAX = 60.0
#: After a refusal (identity, rights) it begins at this: trying again helps little.
PAUSE_REFUSED_S = 15.0
#: A connection that lasted so long was a good one: the pauses begin anew.
GOOD_S = 30.0
#: How long the old line stays when the node goes to another home.
LEAVE_S = 2.0
KEEPALIVE_MS = 120_000
KEEPALIVE_TIMEOUT_MS = 20_000

#: Offers that are taken and not here yet; so many at once are fetched: TRANSFERS_PER_PEER.
FETCHING_MAX = 32

#: Gives what to show at each dialling: of `identity.certificates.channel_credentials`.
Credentials = Callable[[], grpc.ChannelCredentials]

_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
#: Of a transfer: the connection is at fault, not the transfer.
_BROKEN = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
)


class GrpcUplink:
    """The way up of one node of this process; a Link.

    homes: node -> "host:port". credentials: None: without TLS, to loopback only. federation: whose
    names the homes' certificates carry. on_connected: called with the home whenever there is a
    connection anew.

        uplink = GrpcUplink(switch, node, {Node(Tier.EDGE, 1): "edge:7443"}, credentials, "farm")
        switch.add_link(uplink)
        uplink.start()

    Raises DelianError where there are no credentials and a home is not on loopback.
    """

    def __init__(
        self,
        switch: Switch,
        node: Node,
        homes: Mapping[Node, str],
        credentials: Credentials | None,
        federation: str = INSECURE,
        *,
        on_connected: Callable[[Node], None] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.faults = Faults("grpc uplink")
        self.sent_bytes = 0  # of large messages
        self.received_bytes = 0  # of large messages and blobs
        self.dialled = 0
        self.switch = switch
        self.node = node
        self.credentials = credentials
        self.federation = federation
        self.on_connected = on_connected
        self.rng = rng or random.Random()
        self._homes: dict[Node, str] = {}
        self._line: _Line | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self.set_homes(homes)

    def set_homes(self, homes: Mapping[Node, str]) -> None:
        """Another address table; a line to a home that is not in it stays until it breaks."""
        if self.credentials is None:
            for target in homes.values():
                check_loopback(target, "the home")
        self._homes = dict(homes)

    def start(self) -> None:
        """Dials the first home now, and not with the first message."""
        if self._homes:
            self._go(next(iter(self._homes)))

    def redial(self) -> None:
        """Dials anew, with the credentials of now: the certificate was renewed."""
        if self._line is not None:
            self._line.redial()

    async def close(self) -> None:
        """Says Goodbye, and ends. May be called twice."""
        self._closed = True
        if self._line is not None:
            await self._line.close()
            self._line = None
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    @property
    def home(self) -> Node | None:
        """The home that is connected now."""
        line = self._line
        return line.home if line is not None and line.connected else None

    # ------------------------------------------------ the Link

    def reaches(self, to: Node) -> bool:
        """False for a home whose line is down: it is being dialled again. Another home is dialled
        when it is spoken to.
        """
        if to not in self._homes or self._closed:
            return False
        line = self._line
        return line is None or line.home != to or line.connected or not line.broken

    def send(self, sender: Node, to: Node, message: Message, traceparent: str = "") -> None:
        line = self._go(to)
        if line is not None:
            line.send(sender, message, traceparent)

    def send_blob(self, sender: Node, to: Node, digest: bytes, blobs: BlobStore) -> None:
        """Blobs go down only: counts and drops."""
        self.faults.count("blob upwards", sender)

    def _go(self, to: Node) -> _Line | None:
        line = self._line
        if line is not None and line.home == to:
            return line
        target = self._homes.get(to)
        if target is None or self._closed:
            self.faults.count("unreachable", to)
            return None
        if line is not None:
            task = asyncio.get_running_loop().create_task(line.leave())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        self._line = _Line(self, to, target)
        return self._line


class _Line:
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
        self._outbox = Outbox()
        self._intake = Intake()
        self._asked = Asked()
        self._fetching: dict[bytes, tuple[Offer, Node]] = {}  # offers that are taken, not here yet
        self._transfers: dict[bytes, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(TRANSFERS_PER_PEER)
        self._channel: Any = None
        self._goodbye: Goodbye | None = None
        self._closing = False
        self._wished = asyncio.Event()  # to dial anew, or to end
        self._drained = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    # ------------------------------------------------ the connection

    async def _run(self) -> None:
        tries = 0
        while True:
            began = monotonic()
            refused = await self._visit()
            now = monotonic()
            for out in self._outbox.expire(now):
                self._up.faults.count("nobody took it", self.home, size=out.size)
            self._intake.expire(now)
            tries = 0 if now - began > GOOD_S else tries + 1
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
            # Later than asked rather than sooner, and not everybody at once.
            return min(goodbye.retry_ms, RETRY_MS_MAX) / 1000 * self._up.rng.uniform(1.0, 1.5)
        pause = min(PAUSE_S * 2.0 ** min(tries - 1, 20), PAUSE_S_MAX)
        return max(pause, PAUSE_REFUSED_S if refused else 0.0) * self._up.rng.uniform(0.5, 1.0)

    async def _visit(self) -> bool:
        """Dials, and speaks until the connection ends. Whether the home refuses this node."""
        self._up.dialled += 1
        channel = self._channel = self._dial()
        call = channel.stream_stream(CONNECT)(metadata=self._metadata())
        work: list[asyncio.Task[Any]] = []
        try:
            async with asyncio.timeout(DIAL_S):
                hello = Envelope(sender=address(self._up.node), to=address(self.home))
                await call.write(hello.SerializeToString())
                await call.initial_metadata()
            if call.done():  # refused: there was a status instead of metadata
                return await self._ended(call)
            self._greet()
            loop = asyncio.get_running_loop()
            work = [
                loop.create_task(job)
                for job in (self._read(call), self._write(call), self._wished.wait())
            ]
            await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
            if not work[0].done() and not work[1].done():
                await self._part(call)
                return False
            return await self._ended(call)
        except TimeoutError:
            self._up.faults.count("no answer", self.home)
            return False
        except (grpc.RpcError, asyncio.InvalidStateError):
            return await self._ended(call)
        finally:
            self.connected, self.broken = False, True
            work += self._transfers.values()
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)
            call.cancel()
            await channel.close()

    def _greet(self) -> None:
        """The connection is there: what was cut off goes on."""
        self.connected, self.broken = True, False
        log.info("%s: connected to %s", self._up.node, self.home)
        self._filled.set()
        for out in self._outbox.of(self.home):
            self._put(out.offer())
        for offer, to in list(self._fetching.values()):
            self._fetch(offer, to)
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
        except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError):
            self._up.faults.counts["goodbye not taken"] += 1

    async def _ended(self, call: Any) -> bool:
        """Counts how a connection ended; whether it was a refusal."""
        try:
            async with asyncio.timeout(GOODBYE_S):
                code = await call.code()
        except (TimeoutError, asyncio.CancelledError):
            code = grpc.StatusCode.UNKNOWN
        if code is not grpc.StatusCode.OK:
            self._up.faults.count(f"connection ended: {code.name.lower()}", self.home)
        return code in _REFUSALS

    def _dial(self) -> Any:
        options: list[tuple[str, Any]] = [
            ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
            ("grpc.use_local_subchannel_pool", 1),  # a connection of this node's own
            ("grpc.enable_retries", 0),
            ("grpc.keepalive_time_ms", KEEPALIVE_MS),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        if self._up.credentials is None:
            options.append(("grpc.enable_http_proxy", 0))
            return grpc.aio.insecure_channel(self._target, options)
        options += channel_options(self._up.federation, self.home)
        return grpc.aio.secure_channel(self._target, self._up.credentials(), options)

    def _metadata(self) -> Any:
        return claim(self._up.node) if self._up.credentials is None else None

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
        self._outbox.clear()

    # ------------------------------------------------ speaking

    def send(self, sender: Node, message: Message, traceparent: str) -> None:
        """Says a message, or offers it."""
        if isinstance(message, FetchBlob):
            self._asked.add(sender, message.digest)
        content = envelope_bytes(sender, self.home, message, traceparent)
        if len(content) > INLINE_MAX:
            out = self._outbox.envelope(sender, self.home, message, content, monotonic())
            if out is None:
                self._up.faults.count("too much to send", self.home)
                return
            if out.users or not self.connected:  # it is on its way, or offered on connecting
                return
            content = out.offer()
        self._put(content)

    def _put(self, content: bytes) -> None:
        if len(self._queue) >= QUEUE_ENVELOPES_MAX or self._queued + len(content) > QUEUE_BYTES_MAX:
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
                self._queue.popleft()
                self._queued -= len(content)
            self._drained.set()
            self._filled.clear()
            await self._filled.wait()

    # ------------------------------------------------ listening

    async def _read(self, call: Any) -> None:
        while (content := await call.read()) is not grpc.aio.EOF:
            try:
                self._take(Envelope.FromString(content))
            except Refused as refusal:
                self._up.faults.count(refusal.kind, self.home)
            except (DecodeError, ProtocolError):
                self._up.faults.count("malformed", self.home)
            if self._goodbye is not None:
                log.info("%s: %s says goodbye, %s", self._up.node, self.home, self._goodbye.reason)
                return

    def _take(self, said: Envelope) -> None:
        """One envelope. Raises ProtocolError."""
        field = said.WhichOneof("message")
        if field == "goodbye":
            self._goodbye = said.goodbye
            return
        if field is None:
            raise Refused("unknown message", "nothing, or nothing that is known")
        if node_of(said.sender) != self.home:
            raise Refused("wrong sender", "an envelope of somebody else")
        to = node_of(said.to)
        if not may_send(self.home.tier, to.tier, field) or field == "blob":
            raise Refused("not allowed", f"{field} to {to}")
        if field == "want":
            self._take_want(said.want)
        elif field == "offer":
            self._take_offer(said.offer, to)
        else:
            self._up.switch.deliver(self.home, to, message_of(said), said.traceparent)

    def _take_want(self, want: Want) -> None:
        out = self._outbox.get(self.home, want.id)
        if out is None:
            return
        if want.refused or want.offset >= out.size:
            if want.refused:
                self._up.faults.count("offer was refused", self.home, size=out.size)
            self._outbox.drop(out)
        elif not out.users:
            out.users += 1
            self._start(out.id, self._push(out, want.offset))

    def _take_offer(self, offer: Offer, to: Node) -> None:
        """Takes what this node expects. Raises Refused for the rest, and says so."""
        port = self._up.switch.port(to)
        try:
            if port is None:
                raise Refused("nobody here", str(to))
            if offer.kind == TRANSFER_BLOB:
                self._asked.check(to, offer)
            else:
                self._intake.offer(self.home, offer, port.limit(self.home), monotonic())
            if offer.id not in self._fetching and len(self._fetching) >= FETCHING_MAX:
                raise Refused("too many offers", "so much is being fetched already")
        except Refused as refusal:
            self._say(to, Want(id=offer.id[:32], refused=True))
            raise refusal
        self._fetching[offer.id] = (offer, to)
        self._fetch(offer, to)

    def _say(self, sender: Node, message: Want) -> None:
        self._put(envelope_bytes(sender, self.home, message))

    # ------------------------------------------------ transfers

    def _start(self, id: bytes, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._transfers[id] = task

        def ended(_: asyncio.Task[None]) -> None:
            if self._transfers.get(id) is task:
                del self._transfers[id]

        task.add_done_callback(ended)

    async def _push(self, out: Outgoing, offset: int) -> None:
        """Sends a large message, from where the home says."""
        try:
            call = self._channel.stream_unary(PUSH)(metadata=self._metadata())
            try:
                while offset < out.size:
                    content = await out.read(offset)
                    async with asyncio.timeout(PART_S):
                        await call.write(part_bytes(out.id, offset, content))
                    offset += len(content)
                    self._up.sent_bytes += len(content)
                    out.touched = monotonic()
                await call.done_writing()
                async with asyncio.timeout(PART_S):
                    reply = PushReply.FromString(await call)
            finally:
                call.cancel()
            if reply.offset == out.size:
                self._outbox.drop(out)
        except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError, DecodeError) as error:
            self._failed("push", error, lambda: self._outbox.drop(out))
        finally:
            out.users -= 1

    def _fetch(self, offer: Offer, to: Node) -> None:
        if offer.id not in self._transfers:
            self._start(offer.id, self._pull(offer, to))

    async def _pull(self, offer: Offer, to: Node) -> None:
        """Fetches what was offered; it stays in `_fetching` while there is hope."""
        port = self._up.switch.port(to)

        def give_up() -> None:
            self._fetching.pop(offer.id, None)

        try:
            async with self._slots:
                if port is None:
                    raise Refused("nobody here", str(to))
                if offer.kind == TRANSFER_BLOB:
                    await self._pull_blob(offer, to, port.blobs)
                else:
                    await self._pull_envelope(offer)
            give_up()
            self._say(to, Want(id=offer.id, offset=offer.size))
        except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError) as error:
            self._failed("pull", error, give_up)
        except (DelianError, OSError, DecodeError) as error:
            kind = error.kind if isinstance(error, Refused) else "transfer failed"
            self._up.faults.count(kind, self.home, error=str(error))
            give_up()

    def _failed(self, what: str, error: BaseException, give_up: Callable[[], None]) -> None:
        """A transfer's call has failed. What a broken connection ends goes on with the next."""
        code = error.code() if isinstance(error, grpc.RpcError) else None
        name = code.name.lower() if code is not None else "no answer"
        self._up.faults.count(f"{what} ended: {name}", self.home)
        if code is not None and code not in _BROKEN:
            give_up()

    async def _parts(self, id: bytes, offset: int) -> AsyncGenerator[Part, None]:
        """The parts of what was offered, from `offset` on."""
        asked = PullRequest(id=id, offset=offset).SerializeToString()
        call = self._channel.unary_stream(PULL)(asked, metadata=self._metadata())
        try:
            while True:
                async with asyncio.timeout(PART_S):
                    content = await call.read()
                if content is grpc.aio.EOF:
                    break
                part = Part.FromString(content)
                self._up.received_bytes += len(part.content)
                yield part
            if (code := await call.code()) is not grpc.StatusCode.OK:
                raise Refused(f"pull ended: {code.name.lower()}", "")
        finally:
            call.cancel()

    async def _pull_blob(self, offer: Offer, to: Node, blobs: BlobStore) -> None:
        partial = await blobs.begin(offer.id, offer.size)
        try:
            if partial.offset < offer.size:
                async with aclosing(self._parts(offer.id, partial.offset)) as parts:
                    async for part in parts:
                        if part.id != offer.id or part.offset != partial.offset:
                            raise Refused("malformed part", f"a part at {part.offset}")
                        await partial.write(part.content)
            if partial.offset < offer.size:
                raise Refused("malformed part", "the parts end too early")
            intact = await partial.finish()
        finally:
            await partial.abort()
        if not intact:
            raise Refused("corrupt transfer", "it does not hash to its name")
        self._asked.done(to, offer.id)
        self._up.switch.deliver_blob(self.home, to, offer.id, offer.size)

    async def _pull_envelope(self, offer: Offer) -> None:
        spool = self._intake.get(self.home, offer.id)
        if spool is None:
            raise Refused("unknown transfer", "it has stood still for too long")
        spool.writer = self
        try:
            async with aclosing(self._parts(offer.id, spool.offset)) as parts:
                async for part in parts:
                    spool.write(part, monotonic())
        finally:
            spool.writer = None
        if spool.offset < spool.size:
            raise Refused("malformed part", "the parts end too early")
        self._arrived(spool)

    def _arrived(self, spool: Spool) -> None:
        """A large envelope is whole. Raises ProtocolError for what it may not be."""
        self._intake.drop(self.home, spool)
        if not spool.intact():
            raise Refused("corrupt transfer", "it does not hash to its name")
        said = Envelope.FromString(bytes(spool.content))
        to, field = node_of(said.to), said.WhichOneof("message") or ""
        if node_of(said.sender) != self.home:
            raise Refused("wrong sender", "an envelope of somebody else")
        if field in SMALL or not may_send(self.home.tier, to.tier, field):
            raise Refused("not allowed", f"{field} to {to}")
        self._up.switch.deliver(self.home, to, message_of(said), said.traceparent, spool.size)
