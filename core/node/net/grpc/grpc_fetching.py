"""The lower side of transfers over gRPC, with one home: what this node pushes, and what it pulls.

A blob that this node has asked for goes straight into its store; a large message, if the node takes
one of that size, into memory. What a broken connection cuts off goes on with the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, Message

from ....common.errors import DelianError
from ....protocol.ports import Node, Received
from ....wire import link_pb2
from ...identity.pki.roles import may_send
from ...storage.codec import envelope_bytes, message_of, node_of
from ..loop_clock import now_s
from ..message_limits import TRANSFERS_PER_PEER, Faults
from ..switch import Switch
from ..traffic import Meter
from ..transfer import Asked, Intake, Outbox, Outgoing, Piece, Refused, Spool, part_bytes, read_part
from .grpc_ending import Ending
from .grpc_peer import CALL_ENDED, PART_S, PULL, PUSH, SMALL

if TYPE_CHECKING:
    from ...storage.blobs import BlobStore

log = logging.getLogger("delian.net.grpc")

#: Offers that are taken and not here yet; so many at once are fetched: TRANSFERS_PER_PEER.
FETCHING_MAX = 32

#: A transfer that ends with one of these is hopeless. With any other status, also gRPC's own
#: INTERNAL and UNKNOWN, the connection is at fault, and it goes on with the next.
_HOPELESS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)


class Fetching:
    """All transfers between a node of this process and its home.

    say: sends the home an encoded envelope. metadata: of each call.
    """

    def __init__(
        self,
        switch: Switch,
        faults: Faults,
        meter: Meter,
        home: Node,
        say: Callable[[bytes], None],
        metadata: Any,
    ) -> None:
        self.asked = Asked()
        self._switch, self._faults, self._home = switch, faults, home
        self._put, self._metadata = say, metadata
        self._meter = meter
        self._outbox = Outbox()
        self._intake = Intake()
        self._fetching: dict[
            bytes, tuple[link_pb2.Offer, Node]
        ] = {}  # offers that are taken, not here yet
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(TRANSFERS_PER_PEER)
        self._channel: Any = None

    # ------------------------------------------------ the connection

    def begin(self, channel: Any) -> None:
        """There is a connection: what was cut off goes on."""
        self._channel = channel
        for out in self._outbox.of(self._home):
            self._put(out.offer())
        for offer, to in list(self._fetching.values()):
            self._fetch(offer, to)

    async def pause(self) -> None:
        """The connection is gone."""
        self._channel = None
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        now = now_s()
        for out in self._outbox.expire(now):
            self._faults.count("not fetched", self._home, size=out.size)
        self._intake.expire(now)

    def close(self) -> None:
        """Forgets everything, once paused. What there is of blobs stays in the store."""
        self._outbox.clear()

    # ------------------------------------------------ offers

    def offer(self, sender: Node, message: Message, content: bytes) -> None:
        """Offers a large message; `content` is its envelope."""
        out = self._outbox.envelope(sender, self._home, message, content, now_s())
        if out is None:
            self._faults.count("too much to send", self._home)
        elif not out.users and self._channel is not None:  # else it is on its way, or will be
            self._put(out.offer())

    def take_want(self, want: link_pb2.Want) -> None:
        """The home has some of what was offered to it, all of it, or does not want it."""
        out = self._outbox.get(self._home, want.id)
        if out is None:
            return
        if want.refused or want.offset >= out.size:
            if want.refused:
                self._faults.count("offer was refused", self._home, size=out.size)
            self._outbox.drop(out)
        elif not out.users:
            out.users += 1

            def ended(_: asyncio.Task[None]) -> None:
                out.users -= 1

            # Not in the coroutine: one that is cancelled before its first step runs no `finally`.
            self._start(out.id, self._push(out, want.offset)).add_done_callback(ended)

    def take_offer(self, offer: link_pb2.Offer, to: Node) -> None:
        """Takes what this node expects. Raises Refused for the rest, and says so."""
        port = self._switch.port(to)
        try:
            if port is None:
                raise Refused("no such receiver", str(to))
            if offer.kind == link_pb2.TRANSFER_BLOB:
                self.asked.check(to, offer)
            else:
                self._intake.offer(self._home, offer, port.limit(self._home), now_s())
            if offer.id not in self._fetching and len(self._fetching) >= FETCHING_MAX:
                self._make_room()
        except Refused as refusal:
            self._say(to, link_pb2.Want(id=offer.id[:32], refused=True))
            raise refusal
        self._fetching[offer.id] = (offer, to)
        self._fetch(offer, to)

    def _make_room(self) -> None:
        """Forgets the oldest fetch that has failed and waits for the next connection.

        Those must not fill the places while this connection lasts. Raises Refused where all are
        under way.
        """
        stalled = next((id for id in self._fetching if id not in self._tasks), None)
        if stalled is None:
            raise Refused("too many offers", "so much is being fetched already")
        del self._fetching[stalled]

    def _say(self, sender: Node, message: link_pb2.Want) -> None:
        self._put(envelope_bytes(sender, self._home, message))

    # ------------------------------------------------ transfers

    def _start(self, id: bytes, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[id] = task

        def ended(_: asyncio.Task[None]) -> None:
            if self._tasks.get(id) is task:
                del self._tasks[id]

        task.add_done_callback(ended)
        return task

    async def _push(self, out: Outgoing, offset: int) -> None:
        """Sends a large message, from where the home says."""
        ending: Ending | None = None
        try:
            call = self._channel.stream_unary(PUSH)(metadata=self._metadata)
            ending = Ending(call)
            try:
                while offset < out.size:
                    content = await out.read(offset)
                    part = part_bytes(out.id, offset, content)
                    async with asyncio.timeout(PART_S):
                        await call.write(part)
                    self._meter.sent(self._home, len(part), "part")
                    offset += len(content)
                    out.touched = now_s()
                await call.done_writing()
                async with asyncio.timeout(PART_S):
                    reply = link_pb2.PushReply.FromString(await call)
            finally:
                call.cancel()
            if reply.offset == out.size:
                self._outbox.drop(out)
        except (TimeoutError, DecodeError):
            self._failed("push", None, lambda: self._outbox.drop(out))
        except CALL_ENDED:
            code = await ending.code() if ending is not None else None
            self._failed("push", code, lambda: self._outbox.drop(out))

    def _fetch(self, offer: link_pb2.Offer, to: Node) -> None:
        if offer.id not in self._tasks:
            self._start(offer.id, self._pull(offer, to))

    async def _pull(self, offer: link_pb2.Offer, to: Node) -> None:
        """Fetches what was offered; it stays in `_fetching` while there is hope."""
        port = self._switch.port(to)

        def give_up() -> None:
            self._fetching.pop(offer.id, None)

        try:
            async with self._slots:
                if port is None:
                    raise Refused("no such receiver", str(to))
                if offer.kind == link_pb2.TRANSFER_BLOB:
                    await self._pull_blob(offer, to, port.blobs)
                else:
                    await self._pull_envelope(offer)
            give_up()
            self._say(to, link_pb2.Want(id=offer.id, offset=offer.size))
        except (TimeoutError, *CALL_ENDED) as error:
            code = error.code() if isinstance(error, grpc.RpcError) else None
            self._failed("pull", code, give_up)
        except (DelianError, OSError, DecodeError) as error:
            kind = error.kind if isinstance(error, Refused) else "transfer failed"
            self._faults.count(kind, self._home, error=str(error))
            give_up()

    def _failed(self, what: str, code: grpc.StatusCode | None, give_up: Callable[[], None]) -> None:
        """A transfer's call has failed. What a broken connection ends goes on with the next."""
        name = code.name.lower() if code is not None else "no answer"
        self._faults.count(f"{what} ended: {name}", self._home)
        if code in _HOPELESS:
            give_up()

    async def _parts(self, id: bytes, offset: int) -> AsyncGenerator[Piece, None]:
        """The parts of what was offered, from `offset` on."""
        asked = link_pb2.PullRequest(id=id, offset=offset).SerializeToString()
        call = self._channel.unary_stream(PULL)(asked, metadata=self._metadata)
        try:
            while True:
                async with asyncio.timeout(PART_S):
                    content = await call.read()
                if content is grpc.aio.EOF:
                    break
                self._meter.received(self._home, len(content), "part")
                yield read_part(content)
            if (code := await call.code()) in _HOPELESS:
                raise Refused(f"pull ended: {code.name.lower()}", "")
            if code is not grpc.StatusCode.OK:
                raise asyncio.InvalidStateError(code.name)
        finally:
            call.cancel()

    async def _pull_blob(self, offer: link_pb2.Offer, to: Node, blobs: BlobStore) -> None:
        partial = await blobs.begin(offer.id, offer.size)
        try:
            if partial.offset < offer.size:
                async with aclosing(self._parts(offer.id, partial.offset)) as parts:
                    async for part in parts:
                        if part.id != offer.id or part.offset != partial.offset:
                            raise Refused("malformed part", f"a part at {part.offset}")
                        await partial.write(bytes(part.content))
            if partial.offset < offer.size:
                raise Refused("malformed part", "the parts end too early")
            intact = await partial.finish()
        finally:
            await partial.abort()
        if not intact:
            raise Refused("corrupt transfer", "it does not hash to its name")
        self.asked.done(to, offer.id)
        self._switch.deliver_blob(self._home, to, offer.id, offer.size)

    async def _pull_envelope(self, offer: link_pb2.Offer) -> None:
        spool = self._intake.get(self._home, offer.id)
        if spool is None:
            raise Refused("unknown transfer", "it has stood still for too long")
        spool.writer = self
        try:
            async with aclosing(self._parts(offer.id, spool.offset)) as parts:
                async for part in parts:
                    spool.write(part, now_s())
        finally:
            spool.writer = None
        if spool.offset < spool.size:
            raise Refused("malformed part", "the parts end too early")
        self._arrived(spool)

    def _arrived(self, spool: Spool) -> None:
        """A large envelope is whole. Raises ProtocolError for what it may not be."""
        self._intake.drop(self._home, spool)
        if not spool.intact():
            raise Refused("corrupt transfer", "it does not hash to its name")
        content = bytes(spool.take())
        said = link_pb2.Envelope.FromString(content)
        to, field = node_of(said.to), said.WhichOneof("message") or ""
        if node_of(said.sender) != self._home:
            raise Refused("wrong sender", "an envelope of another node")
        if field in SMALL or not may_send(self._home.tier, to.tier, field):
            raise Refused("not allowed", f"{field} to {to}")
        event = Received(self._home, message_of(said), content)
        self._switch.deliver(to, event, said.traceparent, spool.size)
