"""`GrpcHub`: serves the nodes below over gRPC, as service `Link` of proto/link.proto says.

A node that is there has one stream and, in this file, one `_Peer` and the one task that gRPC runs
for the stream: ten thousand of them may be idle. The task reads; a second one writes while there is
something to write. What goes out waits in a bounded queue, so a reader that is too slow loses
messages, then its stream. What comes in is checked before it goes on: the size, the sender, whether
such a node may say such a thing, how often. Each refusal is counted.

Large messages come by Push and go by Pull (`transfer.py`), under the identity that the stream has.
A stream that is to end, whatever the reason, ends in one way: `_Peer.end` notes the reason and
cancels the task, which says Goodbye.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, Message

from ..errors import DelianError
from ..identity.certificates import IdentityError, PeerIdentity
from ..identity.roles import may_send
from ..node.codec import envelope_bytes, message_of, node_of
from ..node.hosting import INSECURE, check_loopback
from ..ports import Node, ProtocolError
from ..wire.link_pb2 import Envelope, Goodbye, Offer, Part, PullRequest, PushReply, Want
from .grpc_guard import Door, Policy, Registrar, Servicer, name_of
from .limits import (
    DROPPED_MAX,
    INLINE_MAX,
    KIB,
    MIB,
    QUEUE_BYTES_MAX,
    QUEUE_ENVELOPES_MAX,
    RATE_BURST,
    RATE_DROPPED_MAX,
    RATE_PER_S,
    Faults,
)
from .switch import Switch
from .transfer import Intake, Outbox, Outgoing, Refused, Spool, part_bytes

if TYPE_CHECKING:
    from ..node.blobs import BlobStore

log = logging.getLogger("delian.net.grpc")

_SERVICE = "delian.wire.Link"
CONNECT, PUSH, PULL = f"/{_SERVICE}/Connect", f"/{_SERVICE}/Push", f"/{_SERVICE}/Pull"

#: A stream that has not said who it is by then is ended.
FIRST_S = 20.0
#: For one part of a transfer, in either direction.
PART_S = 30.0
#: For one envelope to be taken by the peer's transport, and for the last one.
WRITE_S = 60.0
GOODBYE_S = 1.0
#: How often peers are asked about again: whose certificate has run out or was revoked is sent away.
REVIEW_S = 30.0
#: Envelopes that break the rules before their stream is ended.
VIOLATIONS_MAX = 16
#: Calls at once on one connection; a node has a stream and a few transfers.
CALLS_PER_CONNECTION = 64
#: Parts of an operator's blob are a MiB; the link's own messages are smaller.
MESSAGE_BYTES_MAX = MIB + 64 * KIB
KEEPALIVE_MS = 120_000
KEEPALIVE_TIMEOUT_MS = 20_000


class _Peer:
    """A node that is there."""

    __slots__ = (
        "context",
        "dropped",
        "ending",
        "identity",
        "left",
        "limited",
        "node",
        "queue",
        "queued",
        "seen",
        "task",
        "tokens",
        "violations",
        "writer",
    )

    def __init__(
        self, node: Node, identity: PeerIdentity | None, context: Any, task: asyncio.Task[Any]
    ) -> None:
        self.node = node
        self.identity = identity
        self.context = context
        self.task = task
        self.queue: deque[bytes] | None = None  # made when it is needed: most peers are idle
        self.queued = 0  # bytes
        self.writer: asyncio.Task[None] | None = None
        self.ending: Goodbye | None = None
        self.left = False  # it has said Goodbye
        self.dropped = 0  # in a row
        self.tokens = float(RATE_BURST)
        self.seen = 0.0
        self.limited = 0
        self.violations = 0

    def may_speak(self, now: float) -> bool:
        """Whether one more envelope is within the rate (a token bucket)."""
        self.tokens = min(float(RATE_BURST), self.tokens + (now - self.seen) * RATE_PER_S)
        self.seen = now
        if self.tokens < 1.0:
            self.limited += 1
            return False
        self.tokens -= 1.0
        return True

    def put(self, content: bytes) -> bool:
        """Queues an envelope; False: there is no room."""
        if self.queue is None:
            self.queue = deque()
        if len(self.queue) >= QUEUE_ENVELOPES_MAX or self.queued + len(content) > QUEUE_BYTES_MAX:
            self.dropped += 1
            return False
        self.queue.append(content)
        self.queued += len(content)
        self.dropped = 0
        if self.writer is None:
            self.writer = asyncio.get_running_loop().create_task(self._write())
        return True

    async def _write(self) -> None:
        try:
            while self.queue:
                content = self.queue.popleft()
                self.queued -= len(content)
                async with asyncio.timeout(WRITE_S):
                    await self.context.write(content)
        except TimeoutError:
            self.end("too slow")
        except (grpc.RpcError, asyncio.InvalidStateError):
            self.task.cancel()  # the stream is gone
        finally:
            self.writer = None
            self.queue = None
            self.queued = 0

    def end(self, reason: str, retry_ms: int = 0) -> None:
        """Ends the stream, from anywhere."""
        if self.ending is None:
            self.ending = Goodbye(reason=reason[:200], retry_ms=retry_ms)
            self.task.cancel()


class GrpcHub:
    """A server for nodes below; a Link to them.

    address: "host:port"; port 0: any. credentials: of `identity.certificates.server_credentials`;
    None: no TLS, on loopback only. policy: `identity.roles.Guard`. servicers: see
    `grpc_guard.Servicer`; their calls pass the same policy. federation: of callers without
    certificates. calls_per_connection: more than the default only for what speaks for many nodes.

        hub = GrpcHub(switch, "127.0.0.1:0", None, Guard(INSECURE, Tier.EDGE))
        port = await hub.start()
        switch.add_link(hub)

    Raises DelianError where the address is not loopback and there are no credentials.
    """

    def __init__(
        self,
        switch: Switch,
        address: str,
        credentials: grpc.ServerCredentials | None,
        policy: Policy,
        *,
        servicers: Sequence[Servicer] = (),
        federation: str = INSECURE,
        calls_per_connection: int = CALLS_PER_CONNECTION,
        on_peer: Callable[[Node, bool], None] | None = None,
        intake: Intake | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        if credentials is None:
            check_loopback(address, "the address")
        self.faults = Faults("grpc hub")
        self.received_bytes = 0  # of large messages
        self.sent_bytes = 0  # of large messages and blobs
        self.address = address
        self._switch = switch
        self._credentials = credentials
        self._door = Door(policy, self.faults, federation if credentials is None else None)
        self._servicers = servicers
        self._calls = calls_per_connection
        self._on_peer = on_peer
        self._peers: dict[Node, _Peer] = {}
        self._intake = intake or Intake()
        self._outbox = outbox or Outbox()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Any = None

    # ------------------------------------------------ its life

    async def start(self) -> int:
        """Serves from now on; the port. Raises DelianError where the address is taken."""
        server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_concurrent_streams", self._calls),
                ("grpc.so_reuseport", 0),
                ("grpc.keepalive_time_ms", KEEPALIVE_MS),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
            ]
        )
        # Bytes in and out: what cannot be parsed is this file's to count.
        handlers = {
            "Connect": grpc.stream_stream_rpc_method_handler(self._connect),
            "Push": grpc.stream_unary_rpc_method_handler(self._push),
            "Pull": grpc.unary_stream_rpc_method_handler(self._pull),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        registrar = Registrar(server, self._door)
        for add in self._servicers:
            add(registrar)
        try:
            if self._credentials is None:
                port = server.add_insecure_port(self.address)
            else:
                port = server.add_secure_port(self.address, self._credentials)
        except RuntimeError as error:
            raise DelianError(
                f"cannot serve at {self.address}: {error}", "is another process using the port?"
            ) from None
        if not port:
            raise DelianError(f"cannot serve at {self.address}", "is the port in use?")
        self._server = server
        await server.start()
        self._spawn(self._keep_reviewing())
        return int(port)

    async def close(self, reason: str = "shutting down", retry_ms: int = 0) -> None:
        """Says Goodbye to everybody, and ends. May be called twice."""
        server, self._server = self._server, None
        if server is None:
            return
        tasks = [peer.task for peer in self._peers.values()]
        for peer in list(self._peers.values()):
            peer.end(reason, retry_ms)
        if tasks:
            await asyncio.wait(tasks, timeout=2 * GOODBYE_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.stop(GOODBYE_S)
        self._outbox.clear()

    @property
    def peers(self) -> tuple[Node, ...]:
        """The nodes that are here now."""
        return tuple(self._peers)

    def forget(self, node: Node, reason: str = "sent away", retry_ms: int = 0) -> None:
        """Ends a node's stream. One that is still trusted may come back."""
        peer = self._peers.get(node)
        if peer is not None:
            peer.end(reason, retry_ms)

    def review(self) -> None:
        """Sends away whom the policy does not allow any more: call it when somebody was revoked."""
        now = monotonic()
        for peer in list(self._peers.values()):
            reason = self._door.refusal(peer.identity, CONNECT)
            if reason is not None:
                self.faults.count(reason, peer.node)
                peer.end(reason)
        if expired := self._intake.expire(now):
            self.faults.counts["transfer stopped"] += expired
        for out in self._outbox.expire(now):
            self.faults.count("nobody took it", out.to, size=out.size)

    async def _keep_reviewing(self) -> None:
        while True:
            await asyncio.sleep(REVIEW_S)
            self.review()

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ------------------------------------------------ the Link

    def reaches(self, to: Node) -> bool:
        return to in self._peers

    def send(self, sender: Node, to: Node, message: Message, traceparent: str = "") -> None:
        peer = self._peers.get(to)
        if peer is None:
            self.faults.count("unreachable", to)
            return
        content = envelope_bytes(sender, to, message, traceparent)
        if len(content) > INLINE_MAX:
            out = self._outbox.envelope(sender, to, message, content, monotonic())
            if out is None:
                self.faults.count("too much to send", to)
                return
            content = out.offer()
        self._put(peer, content)

    def send_blob(self, sender: Node, to: Node, digest: bytes, blobs: BlobStore) -> None:
        self._spawn(self._offer_blob(sender, to, digest, blobs))

    async def _offer_blob(self, sender: Node, to: Node, digest: bytes, blobs: BlobStore) -> None:
        try:
            size = await blobs.size(digest)
        except (DelianError, OSError) as error:
            self.faults.count("store failed", sender, error=str(error))
            return
        peer = self._peers.get(to)
        if size is None or peer is None:
            self.faults.count("blob is gone" if size is None else "unreachable", to)
            return
        out = self._outbox.blob(sender, to, digest, size, blobs, monotonic())
        if out is None:
            self.faults.count("too much to send", to)
            return
        self._put(peer, out.offer())

    def _put(self, peer: _Peer, content: bytes) -> None:
        if peer.put(content):
            return
        self.faults.count("slow reader", peer.node)
        if peer.dropped > DROPPED_MAX:
            peer.end("too slow")

    # ------------------------------------------------ a stream

    async def _connect(self, _: Any, context: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = await self._enter(context, task)
        taken = self._peers.get(peer.node)
        if taken is not None:
            taken.end("replaced by a newer stream")
        self._peers[peer.node] = peer
        if taken is None and self._on_peer is not None:
            self._on_peer(peer.node, True)
        try:
            while True:
                content = await context.read()
                if content is grpc.aio.EOF:
                    break
                waits = self._take(peer, content)
                if waits is not None:
                    await waits
                if peer.left:
                    break
        except asyncio.CancelledError:
            if peer.ending is None:  # the node has gone
                raise
            task.uncancel()
        finally:
            if self._peers.get(peer.node) is peer:
                del self._peers[peer.node]
                if self._on_peer is not None:
                    self._on_peer(peer.node, False)
            if peer.writer is not None and peer.ending is None:
                peer.writer.cancel()
        if peer.ending is not None:
            log.info("%s: goodbye, %s", peer.node, peer.ending.reason)
            await self._say_goodbye(peer)

    async def _enter(self, context: Any, task: asyncio.Task[Any]) -> _Peer:
        """The peer of a new stream, once its first envelope has come. Ends the call otherwise."""
        # Where there are certificates, whoever may not connect is not even listened to.
        identity = await self._door.admit(context, CONNECT) if self._door.secure else None
        try:
            async with asyncio.timeout(FIRST_S):
                content = await context.read()
        except TimeoutError:
            self.faults.count("silent stream", name_of(identity) if identity else context.peer())
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "say who you are")
        if content is grpc.aio.EOF:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "say who you are")
        try:
            if len(content) > INLINE_MAX:
                raise ProtocolError("too long")
            said = Envelope.FromString(content)
            node = node_of(said.sender)
            if not self._door.secure:
                identity = self._door.claimed(node)
        except (DecodeError, ProtocolError, IdentityError):
            self.faults.count("malformed", context.peer())
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no envelope")
        if identity is None or identity.node != node:
            self.faults.count("wrong sender", name_of(identity))
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "you are somebody else")
        if not self._door.secure and (reason := self._door.refusal(identity, CONNECT)) is not None:
            self.faults.count(reason, node)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        await context.send_initial_metadata(())
        peer = _Peer(node, identity, context, task)
        peer.seen = monotonic()
        if said.WhichOneof("message") is not None:
            waits = self._take(peer, content)
            if waits is not None:
                await waits
        return peer

    async def _say_goodbye(self, peer: _Peer) -> None:
        """What still waits and the last envelope, if the peer takes them in time."""
        assert peer.ending is not None
        try:
            async with asyncio.timeout(GOODBYE_S):
                if peer.writer is not None:
                    await asyncio.wait([peer.writer])
                await peer.context.write(Envelope(goodbye=peer.ending).SerializeToString())
        except (TimeoutError, grpc.RpcError, asyncio.InvalidStateError):
            self.faults.counts["goodbye not taken"] += 1
        finally:
            if peer.writer is not None:
                peer.writer.cancel()

    # ------------------------------------------------ what it says

    def _take(self, peer: _Peer, content: bytes) -> Any:
        """One envelope. Gives something to wait for where its receiver has no room."""
        now = monotonic()
        if not peer.may_speak(now):
            self.faults.count("too many messages", peer.node)
            if peer.limited > RATE_DROPPED_MAX:
                peer.end("too many messages")
            return None
        try:
            if len(content) > INLINE_MAX:
                raise Refused("oversized", f"an envelope of {len(content)} bytes")
            return self._accept(peer, Envelope.FromString(content), len(content), now)
        except Refused as refusal:
            self._violated(peer, refusal.kind)
        except (DecodeError, ProtocolError):
            self._violated(peer, "malformed")
        return None

    def _violated(self, peer: _Peer, kind: str) -> None:
        self.faults.count(kind, peer.node)
        peer.violations += 1
        if peer.violations > VIOLATIONS_MAX:
            peer.end("breaks the protocol")

    def _accept(self, peer: _Peer, said: Envelope, size: int, now: float) -> Any:
        """Checks an envelope and hands it on. Raises ProtocolError."""
        if node_of(said.sender) != peer.node:
            raise Refused("wrong sender", "an envelope of somebody else")
        field = said.WhichOneof("message")
        if field == "goodbye":
            peer.left = True
            return None
        if field is None:
            raise Refused("unknown message", "nothing, or nothing that is known")
        to = node_of(said.to)
        if not may_send(peer.node.tier, to.tier, field):
            raise Refused("not allowed", f"{field} to {to}")
        if field == "offer":
            self._take_offer(peer, to, said.offer, now)
            return None
        if field == "want":
            self._take_want(peer, said.want)
            return None
        return self._deliver(peer.node, to, said, size)

    def _deliver(self, sender: Node, to: Node, said: Envelope, size: int) -> Any:
        message = message_of(said)
        port = self._switch.port(to)
        if port is None or port.offer is None:
            self._switch.deliver(sender, to, message, said.traceparent, size)
            return None
        return self._switch.hand_over(sender, to, message, said.traceparent, size)

    def _take_offer(self, peer: _Peer, to: Node, offer: Offer, now: float) -> None:
        port = self._switch.port(to)
        try:
            if port is None:
                raise Refused("nobody here", str(to))
            spool = self._intake.offer(peer.node, offer, port.limit(peer.node), now)
        except Refused as refusal:
            self._put(peer, envelope_bytes(to, peer.node, Want(id=offer.id[:32], refused=True)))
            raise refusal
        if spool.writer is None:
            want = Want(id=spool.id, offset=spool.offset)
            self._put(peer, envelope_bytes(to, peer.node, want))

    def _take_want(self, peer: _Peer, want: Want) -> None:
        """The node has what was offered to it, or does not want it; otherwise it pulls."""
        out = self._outbox.get(peer.node, want.id)
        if out is not None and (want.refused or want.offset == out.size):
            if want.refused:
                self.faults.count("offer was refused", peer.node, size=out.size)
            self._outbox.drop(out)

    # ------------------------------------------------ transfers

    async def _caller(self, context: Any, call: str) -> Node:
        """The node that makes a transfer. It must have its stream. Ends the call otherwise."""
        identity = await self._door.admit(context, call)
        node = None if identity is None else identity.node
        if node is None or node not in self._peers:
            self.faults.count("no stream", name_of(identity))
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "connect first")
        assert node is not None
        return node

    async def _push(self, _: Any, context: Any) -> bytes:
        node = await self._caller(context, PUSH)
        me = object()
        spool: Spool | None = None
        try:
            while True:
                async with asyncio.timeout(PART_S):
                    content = await context.read()
                if content is grpc.aio.EOF:
                    break
                part = Part.FromString(content)
                if spool is None:
                    spool = self._intake.get(node, part.id)
                    if spool is None:
                        raise Refused("unknown transfer", "it was not offered")
                    spool.writer = me
                if spool.writer is not me:
                    await context.abort(grpc.StatusCode.ABORTED, "another call goes on with it")
                spool.write(part, monotonic())
                self.received_bytes += len(part.content)
            if spool is not None and spool.offset == spool.size:
                await self._arrived(node, spool)
        except TimeoutError:
            self.faults.count("silent transfer", node)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no part came")
        except (DecodeError, ProtocolError) as error:
            kind = error.kind if isinstance(error, Refused) else "malformed part"
            self.faults.count(kind, node)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, kind)
        finally:
            if spool is not None and spool.writer is me:
                spool.writer = None
        return PushReply(offset=0 if spool is None else spool.offset).SerializeToString()

    async def _arrived(self, node: Node, spool: Spool) -> None:
        """A large envelope is whole. Raises ProtocolError for what it may not be."""
        self._intake.drop(node, spool)
        if not spool.intact():
            raise Refused("corrupt transfer", "it does not hash to its name")
        said = Envelope.FromString(bytes(spool.content))
        if node_of(said.sender) != node:
            raise Refused("wrong sender", "an envelope of somebody else")
        to = node_of(said.to)
        field = said.WhichOneof("message") or ""
        port = self._switch.port(to)
        if field in SMALL or not may_send(node.tier, to.tier, field):
            raise Refused("not allowed", f"{field} to {to}")
        if port is not None and spool.size > port.limit(node):
            raise Refused("oversized", f"{spool.size} bytes to {to}")
        waits = self._deliver(node, to, said, spool.size)
        if waits is not None:
            await waits

    async def _pull(self, content: bytes, context: Any) -> None:
        node = await self._caller(context, PULL)
        try:
            asked = PullRequest.FromString(content)
        except DecodeError:
            self.faults.count("malformed", node)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no request")
        out = self._outbox.get(node, asked.id)
        if out is None or asked.offset > out.size:
            self.faults.count("unknown transfer", node)
            await context.abort(grpc.StatusCode.NOT_FOUND, "it was not offered")
        assert out is not None
        out.users += 1
        try:
            await self._pour(out, asked.offset, context)
        except TimeoutError:
            self.faults.count("slow reader", node)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "too slow")
        except (DelianError, OSError) as error:
            self.faults.count("blob is gone", node, error=str(error))
            self._outbox.drop(out)
            await context.abort(grpc.StatusCode.NOT_FOUND, "it is gone")
        finally:
            out.users -= 1

    async def _pour(self, out: Outgoing, offset: int, context: Any) -> None:
        while offset < out.size:
            content = await out.read(offset)
            if not content:
                raise DelianError("the blob is shorter than it was")
            async with asyncio.timeout(PART_S):
                await context.write(part_bytes(out.id, offset, content))
            offset += len(content)
            out.touched = monotonic()
            self.sent_bytes += len(content)


#: What a transfer does not carry.
SMALL = frozenset({"", "offer", "want", "goodbye", "blob"})
