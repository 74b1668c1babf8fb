"""Transfers with one peer over MQTT: what is offered to it, and what it is sending.

`core/node/net/mqtt/mqtt_parts.py` says which part goes when; here the bytes come from a store and
go to one. A blob is written into the receiving node's store as it comes, and goes on where it ended
even after a restart. A large envelope is collected in memory (`transfer.Intake`), and goes on where
it ended if that was not long ago. Nothing is taken, or allocated, that is larger than the receiving
node expects (`Port.limit`), nor a blob that no node here has asked this peer for.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import DecodeError

from ....common.errors import DelianError
from ....protocol.ports import Node, ProtocolError
from ....wire.link_pb2 import TRANSFER_BLOB, TRANSFER_ENVELOPE, Envelope, Offer, Part, Want
from ...identity.pki.roles import may_send_blob
from .. import message_limits
from ..loop_clock import now_s
from ..switch import Switch
from ..transfer import Asked, Intake, Piece, Refused, Spool
from .mqtt_parts import PART_BYTES, WINDOW, Receiving, Sending

if TYPE_CHECKING:
    from ...storage.blobs import BlobStore, Partial

#: How long to wait for a Want before offering again; it doubles.
OFFER_S = 10.0
#: How long to wait for parts before saying again what is here; it doubles.
STALL_S = 3.0
PATIENCE_S_MAX = 60.0
#: A transfer that has just arrived is not taken again when it is offered again: the sender does not
#: know it yet. After this time the offer means that a node repeats itself.
DONE_S = 15.0
DONE_MAX = 64
_PARTS_AT_ONCE = 8  # taken before the sender is notified

Read = Callable[[int, int], Awaitable[bytes]]


@dataclass(slots=True)
class Outgoing:
    """Something that was offered."""

    offer: Offer
    sender: Node
    to: Node
    traceparent: str
    read: Read
    state: Sending
    pinned: BlobStore | None = None
    """The store that keeps the blob for us."""
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class Sink(Protocol):
    """Where a transfer that comes is written."""

    @property
    def offset(self) -> int: ...

    async def write(self, content: bytes) -> None: ...

    async def finish(self) -> bool: ...

    async def abort(self, keep: bool = True) -> None: ...


class _Envelope:
    """Collects an envelope in the process's intake."""

    def __init__(self, intake: Intake, peer: Node, spool: Spool) -> None:
        self.spool = spool
        self._intake, self._peer = intake, peer
        spool.writer = self

    @property
    def offset(self) -> int:
        return self.spool.offset

    async def write(self, content: bytes) -> None:
        if self.spool.writer is not self:
            raise ProtocolError("the transfer goes on by another way")
        part = Piece(self.spool.id, self.offset, content)
        self.spool.write(part, now_s())

    async def finish(self) -> bool:
        self._intake.drop(self._peer, self.spool)
        return self.spool.intact()

    async def abort(self, keep: bool = True) -> None:
        if self.spool.writer is self:
            self.spool.writer = None


@dataclass(slots=True)
class Incoming:
    """Something that comes."""

    offer: Offer
    sender: Node
    to: Node
    spool: Spool | None
    """Of an envelope."""
    parts: asyncio.Queue[Part]
    task: asyncio.Task[None] | None = None


class Conversation(Protocol):
    """What a peer gives its transfers."""

    switch: Switch
    faults: message_limits.Faults
    other: Node

    def say(self, sender: Node, to: Node, message: Offer | Want, traceparent: str = "") -> None:
        """Sends a message of the transport's own."""

    def kick(self) -> None:
        """There are parts to send."""

    async def take_envelope(self, envelope: Envelope, size: int) -> None:
        """A large envelope has arrived; returns when there is room for it. Raises ProtocolError."""


class Transfers:
    """Both directions with one peer."""

    def __init__(self, peer: Conversation, intake: Intake) -> None:
        self._peer = peer
        self._intake = intake
        self._outgoing: OrderedDict[bytes, Outgoing] = OrderedDict()
        self._outgoing_bytes = 0
        self._incoming: dict[bytes, Incoming] = {}
        self._asked = Asked()
        self._done: OrderedDict[bytes, float] = OrderedDict()
        self.parts_taken = 0
        self.parts_again = 0

    # ------------------------------------------------ sending

    def offer_envelope(self, sender: Node, to: Node, body: bytes, traceparent: str) -> None:
        """Offers an envelope that is too large to travel as it is."""

        async def read(offset: int, length: int) -> bytes:
            return body[offset : offset + length]

        offer = Offer(id=hashlib.sha256(body).digest(), size=len(body), kind=TRANSFER_ENVELOPE)
        self._offer(Outgoing(offer, sender, to, traceparent, read, Sending(len(body))), len(body))

    def offer_blob(
        self, sender: Node, to: Node, digest: bytes, size: int, blobs: BlobStore
    ) -> None:
        """Offers a blob of a store."""

        async def read(offset: int, length: int) -> bytes:
            return await blobs.read(digest, offset, length)

        offer = Offer(id=digest, size=size, kind=TRANSFER_BLOB)
        self._offer(Outgoing(offer, sender, to, "", read, Sending(size), blobs), 0)

    def _offer(self, out: Outgoing, held_bytes: int) -> None:
        if out.offer.id in self._outgoing:  # a machine repeats itself; this is on its way
            return
        if (
            len(self._outgoing) >= message_limits.OUTGOING_PER_PEER
            or self._outgoing_bytes + held_bytes > message_limits.OUTGOING_BYTES_PER_PEER
        ):
            self._peer.faults.count("too much to send", self._peer.other)
            return
        self._outgoing[out.offer.id] = out
        self._outgoing_bytes += held_bytes
        if out.pinned is not None:
            out.pinned.pin(out.offer.id)
        out.task = asyncio.get_running_loop().create_task(self._shepherd(out))

        def ended(_: asyncio.Task[None]) -> None:
            self._outgoing.pop(out.offer.id, None)
            self._outgoing_bytes -= held_bytes
            if out.pinned is not None:
                out.pinned.unpin(out.offer.id)

        out.task.add_done_callback(ended)

    async def _shepherd(self, out: Outgoing) -> None:
        """Offers until there is an answer, and again when answers stay away."""
        loop = asyncio.get_running_loop()
        heard_at, gap, pause = loop.time(), 0.0, OFFER_S
        self._peer.say(out.sender, out.to, out.offer, out.traceparent)
        while not out.state.done:
            try:
                async with asyncio.timeout(pause):  # wait_for may lose a cancellation
                    await out.heard.wait()
            except TimeoutError:
                if loop.time() - heard_at > message_limits.TRANSFER_IDLE_S:
                    self._peer.faults.count("not fetched", self._peer.other)
                    return
                pause = min(pause * 2, PATIENCE_S_MAX)
                self._peer.say(out.sender, out.to, out.offer, out.traceparent)
                continue
            out.heard.clear()
            gap = max(gap, loop.time() - heard_at)
            heard_at = loop.time()
            pause = min(max(OFFER_S, 3 * gap), PATIENCE_S_MAX)

    def take_want(self, want: Want) -> None:
        """The peer says what it has. Raises ProtocolError."""
        out = self._outgoing.get(want.id)
        if out is None:  # a late one, of a transfer that is over
            return
        if want.refused:
            self._peer.faults.count("offer was refused", self._peer.other, size=out.offer.size)
            if out.task is not None:
                out.task.cancel()
            return
        part_bytes = min(want.part_bytes, PART_BYTES)
        out.state.take_want(want.offset, want.have, part_bytes, now_s())
        out.heard.set()
        self._peer.kick()

    async def next_part(self) -> tuple[Part, Outgoing] | None:
        """The part to send now; transfers take turns."""
        for out in list(self._outgoing.values()):
            place = out.state.next_part(now_s())
            if place is None:
                continue
            self._outgoing.move_to_end(out.offer.id)
            try:
                content = await out.read(*place)
            except (DelianError, OSError) as error:
                self._peer.faults.count("blob is gone", out.sender, error=str(error))
                if out.task is not None:
                    out.task.cancel()
                continue
            return Part(id=out.offer.id, offset=place[0], content=content), out
        return None

    def restart(self) -> None:
        """The peer has new keys, or is new: what was under way is lost."""
        for out in self._outgoing.values():
            out.state.forget_sent()
            self._peer.say(out.sender, out.to, out.offer, out.traceparent)

    # ------------------------------------------------ receiving

    def asked(self, node: Node, digest: bytes) -> None:
        """`node`, of this process, has asked the peer for a blob."""
        self._asked.add(node, digest)
        # It may have been here a moment ago, and have been dropped.
        self._done.pop(digest, None)

    def take_offer(self, sender: Node, to: Node, offer: Offer) -> None:
        """The peer has something for `to`. It is refused, or a task begins to collect it."""
        known = self._incoming.get(offer.id)
        if known is not None:
            if known.parts.empty():
                known.parts.put_nowait(Part(id=offer.id))  # wakes the task; no part is empty
            return
        since = self._done.get(offer.id)
        if since is not None and now_s() - since < DONE_S:
            self._want(sender, to, offer, offer.size)
            return
        try:
            spool = self._accept(sender, to, offer)
        except Refused as refusal:
            self._peer.faults.count(refusal.kind, self._peer.other, size=offer.size)
            self._peer.say(to, sender, Want(id=offer.id[:32], refused=True))
            return
        coming = Incoming(offer, sender, to, spool, asyncio.Queue(2 * WINDOW))
        self._incoming[offer.id] = coming
        coming.task = asyncio.get_running_loop().create_task(self._collect(coming))
        coming.task.add_done_callback(lambda _: self._incoming.pop(offer.id))

    def _accept(self, sender: Node, to: Node, offer: Offer) -> Spool | None:
        """Where an offered envelope goes; None: it is a blob. Raises Refused."""
        port = self._peer.switch.port(to)
        if port is None:
            raise Refused("no such receiver", f"an offer to {to}")
        if len(self._incoming) >= message_limits.TRANSFERS_PER_PEER:
            raise Refused("too many offers", f"{len(self._incoming)} under way")
        if offer.kind == TRANSFER_BLOB:
            if not may_send_blob(sender.tier, to.tier):
                raise Refused("not allowed", f"a blob from {sender}")
            self._asked.check(to, offer)
            return None
        now = now_s()
        self._intake.expire(now)
        return self._intake.offer(self._peer.other, offer, port.limit(sender), now)

    def take_part(self, part: Part) -> None:
        """A part has come. Raises ProtocolError for one that is not expected."""
        coming = self._incoming.get(part.id)
        if coming is None:
            if part.id in self._done:  # sent twice
                self.parts_again += 1
                return
            raise ProtocolError("a part of an unexpected transfer")
        if not part.content:
            raise ProtocolError("a part without content")
        if coming.parts.full():
            raise ProtocolError("more parts than were asked for")
        coming.parts.put_nowait(part)

    async def _collect(self, coming: Incoming) -> None:
        """Takes a transfer in, to its end."""
        offer = coming.offer
        sink: Sink
        try:
            sink = await self._sink(coming)
        except (DelianError, OSError) as error:
            self._peer.faults.count("no room for a blob", coming.to, error=str(error))
            self._peer.say(coming.to, coming.sender, Want(id=offer.id, refused=True))
            return
        whole = False
        try:
            if await self._fill(coming, sink):
                whole = await sink.finish()
                await self._arrived(coming, sink, whole)
        except (DelianError, OSError) as error:
            self._peer.faults.count("store failed", coming.to, error=str(error))
        finally:
            if not whole:
                await sink.abort(keep=sink.offset < offer.size)

    async def _sink(self, coming: Incoming) -> Sink:
        port = self._peer.switch.port(coming.to)
        assert port is not None
        if coming.spool is not None:
            return _Envelope(self._intake, self._peer.other, coming.spool)
        partial: Partial = await port.blobs.begin(coming.offer.id, coming.offer.size)
        return partial

    async def _fill(self, coming: Incoming, sink: Sink) -> bool:
        """Whether all of it has come; False: nothing came for too long."""
        loop = asyncio.get_running_loop()
        state = Receiving(coming.offer.size, sink.offset)
        heard_at, gap, pause = loop.time(), 0.0, STALL_S
        while not state.done:
            self._want(coming.sender, coming.to, coming.offer, state.offset, state.have())
            try:
                async with asyncio.timeout(pause):
                    parts = [await coming.parts.get()]
            except TimeoutError:
                if loop.time() - heard_at > message_limits.TRANSFER_IDLE_S:
                    self._peer.faults.count("transfer stopped", self._peer.other)
                    return False
                pause = min(pause * 2, PATIENCE_S_MAX)
                continue
            while len(parts) < _PARTS_AT_ONCE and not coming.parts.empty():
                parts.append(coming.parts.get_nowait())
            for part in parts:
                await self._add(state, sink, part)
            if not any(part.content for part in parts):  # only offered again
                continue
            gap = max(gap, loop.time() - heard_at)
            heard_at = loop.time()
            pause = min(max(STALL_S, 3 * gap), PATIENCE_S_MAX)
        return True

    async def _add(self, state: Receiving, sink: Sink, part: Part) -> None:
        if not part.content:  # the offer came again: say again what is here
            return
        again = state.again
        try:
            ready = state.take(part.offset, part.content)
        except ProtocolError:
            self._peer.faults.count("part that was not asked for", self._peer.other)
            return
        self.parts_taken += 1
        self.parts_again += state.again - again
        for chunk in ready:
            await sink.write(chunk)

    async def _arrived(self, coming: Incoming, sink: Sink, whole: bool) -> None:
        offer = coming.offer
        if not whole:
            self._peer.faults.count("content does not hash to its id", self._peer.other)
            self._peer.say(coming.to, coming.sender, Want(id=offer.id, refused=True))
            return
        if offer.kind == TRANSFER_BLOB:
            self._asked.done(coming.to, offer.id)
            self._peer.switch.deliver_blob(coming.sender, coming.to, offer.id, offer.size)
        else:
            assert isinstance(sink, _Envelope)
            try:
                envelope = Envelope.FromString(bytes(sink.spool.take()))
                await self._peer.take_envelope(envelope, offer.size)
            except (DecodeError, ProtocolError):
                self._peer.faults.count("malformed", self._peer.other)
        self._done[offer.id] = now_s()
        if len(self._done) > DONE_MAX:
            self._done.popitem(last=False)
        self._want(coming.sender, coming.to, offer, offer.size)

    def _want(self, sender: Node, to: Node, offer: Offer, offset: int, have: bytes = b"") -> None:
        want = Want(id=offer.id, offset=offset, have=have, part_bytes=PART_BYTES)
        self._peer.say(to, sender, want)

    # ------------------------------------------------ the end

    async def close(self) -> None:
        """Ends what is under way; what there is of blobs stays for the next time."""
        tasks = [o.task for o in self._outgoing.values() if o.task is not None]
        tasks += [i.task for i in self._incoming.values() if i.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
