"""The upper side of transfers over gRPC: what nodes below push, and what they pull.

An offer is answered by Want, when its receiver takes such a thing; the parts that follow are added
to its spool, whichever call they come by. What is offered downwards waits in the outbox until the
node has pulled it and said so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from ....common.errors import DelianError
from ....protocol.ports import Content, Node, ProtocolError
from ....wire.link_pb2 import Envelope, Offer, PullRequest, PushReply, Want
from ...identity.pki.roles import may_send
from ...storage.codec import envelope_bytes, node_of, read_envelope
from ..backoff import Patience
from ..loop_clock import now_s
from ..message_limits import Faults
from ..mqtt.kept_parts import KeptParts
from ..switch import Switch
from ..traffic import Meter
from ..transfer import Intake, Outbox, Outgoing, Refused, Spool, part_length, read_part
from .grpc_peer import CALL_ENDED, PART_S, SMALL

log = logging.getLogger("delian.net.grpc")

#: Takes an envelope, its bytes, their SHA-256 and the vector that the envelope lacks. Gives
#: something to wait for, where the receiver has no room.
Deliver = Callable[
    [Node, Node, Envelope, Content, bytes, memoryview | None], Awaitable[bool] | None
]


class Serving:
    """All transfers of one hub. The caller of `push` and `pull` knows which node it is.

    say: sends a node an encoded envelope. deliver: hands a checked one to its receiver.
    """

    def __init__(
        self,
        switch: Switch,
        faults: Faults,
        meter: Meter,
        say: Callable[[Node, bytes], None],
        deliver: Deliver,
        intake: Intake,
        outbox: Outbox,
    ) -> None:
        self.intake, self.outbox = intake, outbox
        self.faults = faults
        self._meter = meter
        self._parts = KeptParts()
        self._pulling = 0
        self._switch, self._say, self._deliver = switch, say, deliver

    def expire(self, now: float) -> None:
        """Forgets what has stood still for too long, and parts that are not pulled now."""
        if not self._pulling:
            self._parts.clear()
        for peer in self.intake.expire(now):
            self.faults.count("transfer stopped", peer)
        for out in self.outbox.expire(now):
            self.faults.count("not fetched", out.to, size=out.size)

    def take_offer(self, node: Node, to: Node, offer: Offer, now: float) -> None:
        port = self._switch.port(to)
        try:
            if port is None:
                raise Refused("no such receiver", str(to))
            spool = self.intake.offer(node, offer, port.limit(node), now)
        except Refused as refusal:
            self._say(node, envelope_bytes(to, node, Want(id=offer.id[:32], refused=True)))
            raise refusal
        if spool.writer is None:
            want = Want(id=spool.id, offset=spool.offset)
            self._say(node, envelope_bytes(to, node, want))

    def take_want(self, node: Node, want: Want) -> None:
        """The node has what was offered to it, or does not want it; otherwise it pulls."""
        out = self.outbox.get(node, want.id)
        if out is not None and (want.refused or want.offset == out.size):
            if want.refused:
                self.faults.count("offer was refused", node, size=out.size)
            self.outbox.drop(out)

    async def push(self, node: Node, context: Any) -> bytes:
        """A node's parts, to their end; the encoded PushReply.

        Aborts the call where they are bad, or stay away.
        """
        me = object()
        spool: Spool | None = None
        here = 0
        try:
            async with Patience(PART_S) as patience:
                while (content := await context.read()) is not grpc.aio.EOF:
                    patience.headway()
                    self._meter.received(node, len(content), "part")
                    part = read_part(content)
                    if spool is None:
                        spool = self.intake.get(node, part.id)
                        if spool is None:
                            raise Refused("unknown transfer", "it was not offered")
                        spool.writer = me
                    if spool.writer is not me:
                        await context.abort(grpc.StatusCode.ABORTED, "another call goes on with it")
                    spool.write(part, now_s())
                    here = spool.offset
            if spool is not None and spool.offset == spool.size:
                await self._arrived(node, spool)
            else:
                self._broke_off(node)
        except asyncio.CancelledError:
            self._broke_off(node)
            raise
        except TimeoutError:
            self.faults.count("silent transfer", node)
            _let_go(spool, me)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no part came")
        except (DecodeError, ProtocolError) as error:
            kind = error.kind if isinstance(error, Refused) else "malformed part"
            self.faults.count(kind, node)
            _let_go(spool, me)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, kind)
        finally:
            _let_go(spool, me)
        return PushReply(offset=here).SerializeToString()

    def _broke_off(self, node: Node) -> None:
        """The node has gone, or sent what gRPC's core does not take."""
        self.faults.counts["broken off"] += 1
        log.info("%s: a transfer broke off", node)

    async def _arrived(self, node: Node, spool: Spool) -> None:
        """A large envelope is whole. Raises ProtocolError for what it may not be."""
        self.intake.drop(node, spool)
        if not spool.intact():
            raise Refused("corrupt transfer", "it does not hash to its name")
        content = spool.take()
        said, vector = read_envelope(content)
        if node_of(said.sender) != node:
            raise Refused("wrong sender", "an envelope of another node")
        to = node_of(said.to)
        field = said.WhichOneof("message") or ""
        port = self._switch.port(to)
        if field in SMALL or not may_send(node.tier, to.tier, field):
            raise Refused("not allowed", f"{field} to {to}")
        if port is not None and spool.size > port.limit(node):
            raise Refused("oversized", f"{spool.size} bytes to {to}")
        waits = self._deliver(node, to, said, content, spool.id, vector)
        if waits is not None:
            await waits

    async def pull(self, node: Node, asked: PullRequest, context: Any) -> None:
        """Writes what was offered to the node, from where it wants it.

        Aborts the call where there is no such thing, or the node is too slow.
        """
        out = self.outbox.get(node, asked.id)
        if out is None or asked.offset > out.size:
            self.faults.count("unknown transfer", node)
            await context.abort(grpc.StatusCode.NOT_FOUND, "it was not offered")
        assert out is not None
        out.users += 1
        self._pulling += 1
        try:
            await self._pour(out, asked.offset, context)
        except TimeoutError:
            self.faults.count("slow reader", node)
            # What it does not take is still on its way: a status would have to wait behind it.
            raise asyncio.CancelledError from None
        except CALL_ENDED as error:
            # The node is gone; there is no caller to report to, and gRPC logs what it does not
            # know.
            self.faults.counts["broken off"] += 1
            raise asyncio.CancelledError from error
        except (DelianError, OSError) as error:
            self.faults.count("blob is gone", node, error=str(error))
            self.outbox.drop(out)
            await context.abort(grpc.StatusCode.NOT_FOUND, "it is gone")
        finally:
            out.users -= 1
            self._pulling -= 1

    async def _pour(self, out: Outgoing, offset: int, context: Any) -> None:
        while offset < out.size:
            part = await self._parts.get(out, offset)
            async with asyncio.timeout(PART_S):
                await context.write(part)
            self._meter.sent(out.to, len(part), "part")
            offset += part_length(offset, out.size)
            out.touched = now_s()


def _let_go(spool: Spool | None, writer: object) -> None:
    """The call that adds to a spool ends; another may go on.

    Before the caller receives the end, for it may come back at once.
    """
    if spool is not None and spool.writer is writer:
        spool.writer = None
