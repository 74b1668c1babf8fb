"""The conversation with one other node over MQTT: keys, a queue, and what comes.

Hub and uplink have the same: a `Peer` takes messages for the other node, holds them in a bounded
queue while there is no connection or no keys, seals and publishes them with messages before parts,
and opens, checks and hands over what the other node says.

A channel (`core/node/net/mqtt/seal.py`) is *pending* from the agreement on, and *current* from the
first frame that was opened with it; the one before stays in use until then, and for what is under
way still opens frames for a while. A repeated old presence
cannot end a conversation, and no frame is lost when keys change.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError, Message

from ....protocol.ports import Node, Received
from ....wire.blob_pb2 import FetchBlob
from ....wire.link_pb2 import Envelope, Offer, Part, Want
from ...identity.pki.certificates import PeerIdentity
from ...identity.pki.roles import may_send
from ...storage import codec
from ...storage.blobs import BlobStore
from .. import message_limits
from ..switch import Switch
from ..traffic import Kind as Counted
from ..traffic import Meter
from ..transfer import Intake
from .mqtt_client import Publication, Unsent
from .mqtt_transfers import Outgoing, Transfers
from .seal import Channel, SealError, channel_named
from .topics import Direction, Kind, Topic, hosts

log = logging.getLogger("delian.net.mqtt")

#: What was not fetched by then is worth nothing: machines have repeated it.
MESSAGE_EXPIRY_S = 120
#: Publications of one peer that the broker has not acknowledged.
SLOTS = 8
_MESSAGES = frozenset(codec.MESSAGE_FIELDS.values())
_AGAIN_S = 1.0  # after the broker did not acknowledge though it is connected


@dataclass(slots=True)
class Office:
    """What the peers of a link have in common."""

    federation: str
    me: Node
    """The name under which this process publishes."""
    sends: Direction
    """The direction of what it says."""
    switch: Switch
    faults: message_limits.Faults
    meter: Meter
    intake: Intake
    connected: Callable[[], bool]
    """Whether the connection is up."""
    publish: Callable[[Publication], Awaitable[None]]
    """Publishes on the connection."""
    distrust: Callable[[PeerIdentity], str | None]
    """Why a peer is not trusted any more, or None."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def spawn(self, coroutine: Awaitable[None]) -> asyncio.Task[None]:
        """Runs something that `close` will wait for."""

        async def run() -> None:
            await coroutine

        task = asyncio.get_running_loop().create_task(run())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def close(self) -> None:
        """Ends what is still running."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(slots=True)
class _Item:
    """Something to publish."""

    kind: Kind
    body: bytes
    traceparent: str
    expires_at: float
    sealed: tuple[Channel, bytes] | None = None
    """The frame, and the channel that it is good for."""
    part: tuple[Part, Outgoing] | None = None


class Peer:
    """See the module. other: the name under which the other process publishes."""

    def __init__(self, office: Office, other: Node, confirmed: Callable[[Peer], None]) -> None:
        self.office = office
        self.other = other
        self.switch = office.switch
        self.faults = office.faults
        self.identity: PeerIdentity | None = None
        self.session = 0  # the other's, of the current channel
        self.current: Channel | None = None
        self.heard_at = 0.0
        self.said_at: float | None = None  # the first thing said that nothing has answered
        self.transfers = Transfers(self, office.intake)
        self._pending: tuple[Channel, int, PeerIdentity | None] | None = None
        self._before: tuple[Channel, float] | None = None  # and until when it is good
        self._confirmed = confirmed
        self._queue: deque[_Item] = deque()
        self._queued_bytes = 0
        self._slots = asyncio.Semaphore(SLOTS)
        self._pump_task: asyncio.Task[None] | None = None
        self._tokens, self._tokens_at = float(message_limits.RATE_BURST), 0.0
        self._limited = 0
        self._closed = False

    # ------------------------------------------------ keys

    def propose(self, channel: Channel, session: int, identity: PeerIdentity | None) -> None:
        """Keys that the other may have too; it has when it uses them."""
        if self.current is None or self.current.name != channel.name:
            self._pending = (channel, session, identity)

    def greet(self) -> None:
        """Says something with the newest keys, so that the other sees that we have them.

        A hub answers it.
        """
        channel = self.current
        if self._pending is not None and self.office.sends is Direction.UP:
            channel = self._pending[0]
        if channel is None:
            return
        envelope = Envelope(sender=codec.address(self.office.me), to=codec.address(self.other))
        topic, body = self._topic(Kind.ENVELOPE, self.office.sends), envelope.SerializeToString()
        message = Publication(topic, channel.seal(topic, body), expiry_s=MESSAGE_EXPIRY_S)
        self.office.spawn(self._publish_once(message, len(body)))

    async def _publish_once(self, message: Publication, size: int) -> None:
        try:
            await self.office.publish(message)
        except Unsent:
            self.faults.counts["unsent"] += 1
            return
        self._has_said(size)

    def _has_said(self, size: int, kind: Counted = "envelope") -> None:
        self.office.meter.sent(self.other, size, kind)
        if self.said_at is None:
            self.said_at = asyncio.get_running_loop().time()

    def _open(self, topic: str, frame: bytes) -> bytes:
        name = channel_named(frame)
        if self.current is not None and name == self.current.name:
            return self.current.open(topic, frame)
        now = asyncio.get_running_loop().time()
        if self._before is not None and name == self._before[0].name and now < self._before[1]:
            return self._before[0].open(topic, frame)
        if self._pending is None or name != self._pending[0].name:
            raise SealError("stale")
        channel, session, identity = self._pending
        body = channel.open(topic, frame)
        same_life = self.current is not None and session == self.session
        if self.current is not None:
            self._before = self.current, now + MESSAGE_EXPIRY_S
        self.current, self.session, self.identity = channel, session, identity
        self._pending = None
        self._confirmed(self)
        if not same_life:
            self.transfers.restart()
        self.kick()
        return body

    # ------------------------------------------------ what we say

    def send(self, sender: Node, to: Node, message: Message, traceparent: str = "") -> None:
        """Queues a message of a node of this process."""
        body = codec.envelope_bytes(sender, to, message, traceparent)
        if isinstance(message, FetchBlob):
            self.transfers.asked(sender, message.digest)
        if len(body) > message_limits.INLINE_MAX:
            self.transfers.offer_envelope(sender, to, body, traceparent)
        else:
            self._enqueue(body, traceparent)

    def send_blob(self, sender: Node, to: Node, digest: bytes, blobs: BlobStore) -> None:
        """Offers a blob."""
        self.office.spawn(self._offer_blob(sender, to, digest, blobs))

    async def _offer_blob(self, sender: Node, to: Node, digest: bytes, blobs: BlobStore) -> None:
        size = await blobs.size(digest)
        if size is None:
            self.faults.count("blob is gone", sender)
        elif not self._closed:
            self.transfers.offer_blob(sender, to, digest, size, blobs)

    def say(self, sender: Node, to: Node, message: Offer | Want, traceparent: str = "") -> None:
        """Queues a message of the transport's own."""
        self._enqueue(codec.envelope_bytes(sender, to, message, traceparent), traceparent)

    def _enqueue(self, body: bytes, traceparent: str) -> None:
        full = len(self._queue) >= message_limits.QUEUE_ENVELOPES_MAX
        if full or self._queued_bytes + len(body) > message_limits.QUEUE_BYTES_MAX:
            self.faults.count("queue is full", self.other)
            return
        expires_at = asyncio.get_running_loop().time() + MESSAGE_EXPIRY_S
        self._queue.append(_Item(Kind.ENVELOPE, body, traceparent, expires_at))
        self._queued_bytes += len(body)
        self.kick()

    def kick(self) -> None:
        """Goes on with sending, if it can."""
        ready = self.current is not None and self.office.connected() and not self._closed
        if ready and (self._pump_task is None or self._pump_task.done()):
            self._pump_task = self.office.spawn(self._pump())

    async def _pump(self) -> None:
        while self.current is not None and self.office.connected():
            await self._slots.acquire()
            item = self._next_message()
            if item is None:
                item = await self._next_part()
            if item is not None:
                task = self.office.spawn(self._publish(item))
                task.add_done_callback(lambda _: self._slots.release())
                continue
            self._slots.release()
            if not self._queue:  # something may have come while a store was read
                return

    def _next_message(self) -> _Item | None:
        now = asyncio.get_running_loop().time()
        while self._queue:
            item = self._queue.popleft()
            self._queued_bytes -= len(item.body)
            if item.expires_at > now:
                return item
            self.faults.counts["expired"] += 1
        return None

    async def _next_part(self) -> _Item | None:
        found = await self.transfers.next_part()
        if found is None:
            return None
        return _Item(Kind.PART, found[0].SerializeToString(), found[1].traceparent, 0.0, part=found)

    async def _publish(self, item: _Item) -> None:
        channel = self.current
        if channel is None:
            self._take_back(item)
            return
        topic = self._topic(item.kind, self.office.sends)
        if item.sealed is None or item.sealed[0] is not channel:
            # The same frame again is recognised as a repetition; a new one would not be.
            item.sealed = (channel, channel.seal(topic, item.body))
        message = Publication(
            topic,
            item.sealed[1],
            expiry_s=MESSAGE_EXPIRY_S,
            traceparent=item.traceparent,
        )
        try:
            await self.office.publish(message)
        except Unsent:
            self._take_back(item)
            if self.office.connected():
                asyncio.get_running_loop().call_later(_AGAIN_S, self.kick)
            return
        self._has_said(len(item.body), "envelope" if item.part is None else "part")

    def _take_back(self, item: _Item) -> None:
        if item.part is not None:
            part, out = item.part
            out.state.take_back(part.offset)
            return
        self._queue.appendleft(item)
        self._queued_bytes += len(item.body)

    def _topic(self, kind: Kind, direction: Direction) -> str:
        lower, upper = self.office.me, self.other
        if self.office.sends is Direction.DOWN:
            lower, upper = upper, lower
        return str(Topic(self.office.federation, lower, direction, kind, upper))

    # ------------------------------------------------ what the other says

    def take(self, topic: Topic, text: str, frame: bytes) -> None:
        """A frame has come.

        Raises ProtocolError (a SealError names its kind) to have it counted as a refusal.
        """
        body = self._open(text, frame)
        kind: Counted = "part" if topic.kind is Kind.PART else "envelope"
        self.office.meter.received(self.other, len(body), kind)
        if self.identity is not None and (reason := self.office.distrust(self.identity)):
            self._forget_keys()
            raise SealError(reason)
        now = asyncio.get_running_loop().time()
        self.heard_at, self.said_at = now, None
        try:
            if topic.kind is Kind.PART:
                self.transfers.take_part(Part.FromString(body))
                return
            self._within_rate(now)
            if len(body) > message_limits.INLINE_MAX:
                raise SealError("oversized")
            self._take(Envelope.FromString(body), len(body))
        except DecodeError:
            raise SealError("malformed") from None

    async def take_envelope(self, envelope: Envelope, size: int) -> None:
        """A large envelope has arrived in parts; returns when there was room for its message.

        Raises ProtocolError.
        """
        sender, to, what = self._addressed(envelope)
        if what not in _MESSAGES:
            raise SealError("malformed")
        event = Received(sender, codec.message_of(envelope))
        await self.switch.hand_over(to, event, envelope.traceparent, size)

    def _take(self, envelope: Envelope, size: int) -> None:
        sender, to, what = self._addressed(envelope)
        if what is None:  # a greeting, or something newer than this software
            if self.office.sends is Direction.DOWN:
                self.greet()
        elif what == "offer":
            self.transfers.take_offer(sender, to, envelope.offer)
        elif what == "want":
            self.transfers.take_want(envelope.want)
        elif what == "goodbye":
            log.info("peer says goodbye", extra={"peer": str(self.other)})
        elif (request := codec.relayed_of(envelope)) is not None:
            self.switch.take_relayed(sender, to, request)
        else:
            event = Received(sender, codec.message_of(envelope))
            self.switch.deliver(to, event, envelope.traceparent, size)

    def _addressed(self, envelope: Envelope) -> tuple[Node, Node, str | None]:
        """Sender, receiver and content. Raises ProtocolError where that may not be."""
        what = envelope.WhichOneof("message")
        sender, to = codec.node_of(envelope.sender), codec.node_of(envelope.to)
        if not hosts(self.other, sender):
            raise SealError("wrong sender")
        if what is not None and not (
            hosts(self.office.me, to) and may_send(sender.tier, to.tier, what)
        ):
            raise SealError("not allowed")
        return sender, to, what

    def _within_rate(self, now: float) -> None:
        grown = self._tokens + (now - self._tokens_at) * message_limits.RATE_PER_S
        self._tokens, self._tokens_at = min(float(message_limits.RATE_BURST), grown), now
        if self._tokens < 1:
            self._limited += 1
            if (
                self._limited > message_limits.RATE_DROPPED_MAX
            ):  # from now on it costs nothing to refuse it
                self._limited = 0
                self._forget_keys()
            raise SealError("too many messages")
        self._tokens -= 1

    # ------------------------------------------------ the end

    def silence(self) -> None:
        """The other is gone: what is queued for it goes too, its transfers may still go on."""
        self._forget_keys()
        self.said_at = None
        self._queue.clear()
        self._queued_bytes = 0

    def _forget_keys(self) -> None:
        self.current = self._pending = self._before = None

    async def close(self) -> None:
        """Ends the conversation."""
        self._closed = True
        self.silence()
        await self.transfers.close()


class Below:
    """A node below, as the hub knows it. birth, welcome: the last ones."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.birth = b""
        self.welcome = b""
        self.here = False  # as it was last sent
