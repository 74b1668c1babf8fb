"""`GrpcHub`: serves the nodes below over gRPC, as service `Link` of proto/link.proto says.

A node that is there has one stream and, in this file, one `Peer` and the one task that gRPC runs
for the stream: ten thousand of them may be idle. The task reads; a second one writes while there is
something to write. What goes out waits in a bounded queue, so a reader that is too slow loses
messages, then its stream. What comes in is checked before it goes on: the size, the sender, whether
such a node may say such a thing, how often. Each refusal is counted.

Large messages come by Push and go by Pull (`transfer.py`), under the identity that the stream has.
A stream that is to end, whatever the reason, ends in one way: `Peer.end` notes the reason and
cancels the task, which says Goodbye.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, Message

from ....common.errors import DelianError
from ....protocol.ports import Content, Node, ProtocolError, Received
from ....wire.link_pb2 import Envelope, PullRequest
from ...identity.pki.certificates import IdentityError, TlsMaterial, server_credentials
from ...identity.pki.roles import may_send
from ...storage.codec import envelope_bytes, message_of, node_of, relayed_of
from .. import message_limits
from ..loop_clock import now_s
from ..loopback import INSECURE, check_loopback
from ..switch import Switch
from ..transfer import Intake, Outbox, Refused
from .grpc_guard import Connections, Door, Policy, Servicer, UnknownCalls, name_of
from .grpc_peer import CALL_ENDED, CONNECT, GOODBYE_S, PULL, PUSH, SERVICE, Peer
from .grpc_requests import Registrar, read_request
from .grpc_serving import Serving
from .grpc_transport import TCP, Transport

if TYPE_CHECKING:
    from ...storage.blobs import BlobStore

log = logging.getLogger("delian.net.grpc")

#: A connection that has not agreed on TLS by then is closed.
HANDSHAKE_MS = 20_000
#: When a stream ends, how long to wait for whether the peer ended it, or gRPC's core cut it off.
CUT_S = 0.05
#: Envelopes that break the rules before their stream is ended.
VIOLATIONS_MAX = 16
#: Calls at once on one connection; a node has a stream and a few transfers.
CALLS_PER_CONNECTION = 64
#: Parts of an operator's blob are a MiB; the link's own messages are smaller.
MESSAGE_BYTES_MAX = message_limits.MIB + 64 * message_limits.KIB
KEEPALIVE_MS = 120_000
KEEPALIVE_TIMEOUT_MS = 20_000


class GrpcHub:
    """A server for nodes below; a Link to them.

    address: "host:port"; port 0: any. credentials: where to read the server's key and certificate
    at each connection (`IdentityFolder.material`), or of `identity.certificates.server_credentials`
    (then connections that TLS refuses are not counted); None: no TLS, on loopback only. policy:
    `identity.roles.Guard`. servicers: see `grpc_guard.Servicer`; their calls pass the same policy.
    federation: of callers without certificates. calls_per_connection: more than the default only
    for a process with many nodes. transport: makes the server.

        hub = GrpcHub(switch, "127.0.0.1:0", None, Guard(INSECURE, Tier.EDGE))
        port = await hub.start()
        switch.add_link(hub)

    Raises DelianError where the address is not loopback and there are no credentials.
    """

    def __init__(
        self,
        switch: Switch,
        address: str,
        credentials: grpc.ServerCredentials | Callable[[], TlsMaterial] | None,
        policy: Policy,
        *,
        servicers: Sequence[Servicer] = (),
        federation: str = INSECURE,
        calls_per_connection: int = CALLS_PER_CONNECTION,
        on_peer: Callable[[Node, bool], None] | None = None,
        intake: Intake | None = None,
        outbox: Outbox | None = None,
        transport: Transport = TCP,
        times: message_limits.PeerTimes | None = None,
    ) -> None:
        if credentials is None:
            check_loopback(address, "the address")
        self.faults = message_limits.Faults("grpc hub")
        self.address = address
        self._switch = switch
        self._meter = switch.traffic.meter("grpc")
        self._door = Door(policy, self.faults, federation if credentials is None else None)
        if callable(credentials):
            self._door.connections = Connections(credentials)
            credentials = server_credentials(self._door.connections)
        self._credentials = credentials
        self._servicers = servicers
        self._transport = transport
        self.times = times or message_limits.PeerTimes()
        self._now = now_s
        self._calls = calls_per_connection
        self._on_peer = on_peer
        self._peers: dict[Node, Peer] = {}
        self.transfers = Serving(
            switch,
            self.faults,
            self._meter,
            self._say,
            self._deliver,
            intake or Intake(),
            outbox or Outbox(),
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Any = None

    # ------------------------------------------------ its life

    async def start(self) -> int:
        """Serves from now on; the port. Raises DelianError where the address is taken."""
        self._now = asyncio.get_running_loop().time  # as `now_s`, and quicker: for each message
        server = self._transport.server(
            [
                ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
                ("grpc.max_concurrent_streams", self._calls),
                ("grpc.so_reuseport", 0),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
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
            "Pull": grpc.stream_stream_rpc_method_handler(self._pull),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        registrar = Registrar(server, self._door.guarded)
        for add in self._servicers:
            add(registrar)
        server.add_generic_rpc_handlers(
            (UnknownCalls(self._door, self.faults),)
        )  # after all others
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
        """Sends Goodbye to all, and ends. May be called twice."""
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
        self.transfers.outbox.clear()

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
        """Disconnects nodes that the policy no longer allows: call it when a node was revoked."""
        for peer in list(self._peers.values()):
            reason = self._door.refusal(peer.identity, CONNECT)
            if reason is not None:
                self.faults.count(reason, peer.node)
                peer.end(reason)
        self.transfers.expire(now_s())
        connections = self._door.connections
        if connections is not None and (more := connections.review()):
            self.faults.counts["connections without a call"] = connections.silent
            facts = {"more": more, "kind": "connections without a call"}
            log.warning("%d more connections without a call: refused by TLS?", more, extra=facts)

    async def _keep_reviewing(self) -> None:
        while True:
            await asyncio.sleep(self.times.review_s)
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
        if len(content) > message_limits.INLINE_MAX:
            out = self.transfers.outbox.envelope(sender, to, message, content, now_s())
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
        out = self.transfers.outbox.blob(sender, to, digest, size, blobs, now_s())
        if out is None:
            self.faults.count("too much to send", to)
            return
        self._put(peer, out.offer())

    def _say(self, to: Node, content: bytes) -> None:
        peer = self._peers.get(to)
        if peer is not None:
            self._put(peer, content)

    def _put(self, peer: Peer, content: bytes) -> None:
        if peer.put(content):
            return
        self.faults.count("slow reader", peer.node)
        if peer.dropped > message_limits.DROPPED_MAX:
            peer.end("too slow")

    # ------------------------------------------------ a stream

    async def _connect(self, _: Any, context: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer = await self._enter(context, task)
        taken = self._peers.get(peer.node)
        if taken is not None:
            self.faults.counts["replaced"] += 1
            taken.end("replaced by a newer stream")
        self._peers[peer.node] = peer
        if taken is None and self._on_peer is not None:
            self._on_peer(peer.node, True)
        try:
            while True:
                content = await context.read()
                if content is grpc.aio.EOF:
                    await asyncio.sleep(CUT_S)  # cancelled where the core has cut the stream off
                    break
                self._meter.received(peer.node, len(content))
                waits = self._take(peer, content)
                if waits is not None:
                    await waits
                if peer.left:
                    break
        except asyncio.CancelledError:
            if peer.ending is None:  # the node has gone, or sent what the core does not take
                self.faults.counts["broken off"] += 1
                log.info("%s: the stream broke off", peer.node)
                raise
            task.uncancel()
        finally:
            if self._door.connections is not None:
                self._door.connections.left(context.peer())
            if self._peers.get(peer.node) is peer:
                del self._peers[peer.node]
                if self._on_peer is not None:
                    self._on_peer(peer.node, False)
            if peer.writer is not None and peer.ending is None:
                peer.writer.cancel()
        if peer.ending is not None:
            log.info("%s: goodbye, %s", peer.node, peer.ending.reason)
            if not await self._say_goodbye(peer):
                # What it did not take would have to go first: only the call's end ends that.
                raise asyncio.CancelledError

    async def _enter(self, context: Any, task: asyncio.Task[Any]) -> Peer:
        """The peer of a new stream, once its first envelope has come. Ends the call otherwise."""
        # Where there are certificates, nothing is read from a node that may not connect.
        identity = await self._door.admit(context, CONNECT) if self._door.secure else None
        try:
            async with asyncio.timeout(self.times.first_s):
                content = await context.read()
        except TimeoutError:
            self.faults.count("silent stream", name_of(identity) if identity else context.peer())
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no first message came")
        if content is grpc.aio.EOF:  # it has gone, or sent what the core does not take
            self.faults.count("broken off", name_of(identity) if identity else context.peer())
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no first message came")
        try:
            if len(content) > message_limits.INLINE_MAX:
                raise ProtocolError("too long")
            said = Envelope.FromString(content)
            node = node_of(said.sender)
            if not self._door.secure:
                identity = self._door.claimed(node)
        except (DecodeError, ProtocolError, IdentityError):
            self.faults.count("malformed", name_of(identity) if identity else context.peer())
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no envelope")
        if identity is None or identity.node != node:
            self.faults.count("wrong sender", name_of(identity))
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "the certificate names another node"
            )
        if not self._door.secure and (reason := self._door.refusal(identity, CONNECT)) is not None:
            self.faults.count(reason, node)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, reason)
        await context.send_initial_metadata(())
        self._meter.received(node, len(content))
        peer = Peer(node, identity, context, task, self._meter)
        peer.seen = now_s()
        if said.WhichOneof("message") is not None:
            waits = self._take(peer, content)
            if waits is not None:
                await waits
        return peer

    async def _say_goodbye(self, peer: Peer) -> bool:
        """What still waits and the last envelope; whether the peer took them in time."""
        assert peer.ending is not None
        try:
            async with asyncio.timeout(GOODBYE_S):
                if peer.writer is not None:
                    await asyncio.wait([peer.writer])
                content = Envelope(goodbye=peer.ending).SerializeToString()
                await peer.context.write(content)
                self._meter.sent(peer.node, len(content))
        except (TimeoutError, *CALL_ENDED):
            self.faults.counts["goodbye not taken"] += 1
            return False
        finally:
            if peer.writer is not None:
                peer.writer.cancel()
        return True

    # ------------------------------------------------ what it says

    def _take(self, peer: Peer, content: bytes) -> Any:
        """One envelope. Gives something to wait for where its receiver has no room."""
        now = self._now()
        if not peer.may_speak(now):
            self.faults.count("too many messages", peer.node)
            if peer.limited > message_limits.RATE_DROPPED_MAX:
                peer.end("too many messages")
            return None
        try:
            if len(content) > message_limits.INLINE_MAX:
                raise Refused("oversized", f"an envelope of {len(content)} bytes")
            return self._accept(peer, Envelope.FromString(content), content, now)
        except Refused as refusal:
            self._violated(peer, refusal.kind)
        except (DecodeError, ProtocolError):
            self._violated(peer, "malformed")
        return None

    def _violated(self, peer: Peer, kind: str) -> None:
        self.faults.count(kind, peer.node)
        peer.violations += 1
        if peer.violations > VIOLATIONS_MAX:
            peer.end("breaks the protocol")

    def _accept(self, peer: Peer, said: Envelope, content: bytes, now: float) -> Any:
        """Checks an envelope and hands it on. Raises ProtocolError."""
        if node_of(said.sender) != peer.node:
            raise Refused("wrong sender", "an envelope of another node")
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
            self.transfers.take_offer(peer.node, to, said.offer, now)
            return None
        if field == "want":
            self.transfers.take_want(peer.node, said.want)
            return None
        if (request := relayed_of(said)) is not None:
            self._switch.take_relayed(peer.node, to, request)
            return None
        return self._deliver(peer.node, to, said, content)

    def _deliver(
        self,
        sender: Node,
        to: Node,
        said: Envelope,
        content: Content,
        digest: bytes = b"",
        vector: memoryview | None = None,
    ) -> Any:
        event = Received(sender, message_of(said), content, digest, vector)
        about = (said.traceparent, len(content))
        port = self._switch.port(to)
        if port is None or port.offer is None:
            self._switch.deliver(to, event, *about)
            return None
        return self._switch.hand_over(to, event, *about)

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
        return await self.transfers.push(await self._caller(context, PUSH), context)

    async def _pull(self, _: Any, context: Any) -> None:
        node = await self._caller(context, PULL)
        asked = await read_request(
            context, PullRequest.FromString, lambda kind, _: self.faults.count(kind, node)
        )
        await self.transfers.pull(node, asked, context)
