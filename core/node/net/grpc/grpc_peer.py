"""One node at the other end of a hub's stream, as the hub sees it.

Also the names and times that both ends of a link share.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import grpc

from ....protocol.ports import Node
from ....wire.link_pb2 import Goodbye
from ...identity.pki.certificates import PeerIdentity
from ...storage.codec import ERRAND_FIELDS
from .. import message_limits
from ..traffic import Meter

SERVICE = "delian.wire.Link"
CONNECT, PUSH, PULL = f"/{SERVICE}/Connect", f"/{SERVICE}/Push", f"/{SERVICE}/Pull"

#: For one part of a transfer, in either direction.
PART_S = 30.0
#: For one envelope to be taken by the peer's transport, and for the last one.
WRITE_S = 60.0
GOODBYE_S = 1.0

#: What a call that has ended, or just ends, raises, on either side.
CALL_ENDED = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)

#: Fields of an envelope that no transfer carries.
SMALL = frozenset({"", "offer", "want", "goodbye", "blob", *ERRAND_FIELDS.values()})


class Peer:
    """A node that is there."""

    __slots__ = (
        "context",
        "dropped",
        "ending",
        "identity",
        "left",
        "limited",
        "meter",
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
        self,
        node: Node,
        identity: PeerIdentity | None,
        context: Any,
        task: asyncio.Task[Any],
        meter: Meter,
    ) -> None:
        self.node = node
        self.identity = identity
        self.context = context
        self.task = task
        self.meter = meter
        self.queue: deque[bytes] | None = None  # made when it is needed: most peers are idle
        self.queued = 0  # bytes
        self.writer: asyncio.Task[None] | None = None
        self.ending: Goodbye | None = None
        self.left = False  # it has said Goodbye
        self.dropped = 0  # in a row
        self.tokens = float(message_limits.RATE_BURST)
        self.seen = 0.0
        self.limited = 0
        self.violations = 0

    def may_speak(self, now: float) -> bool:
        """Whether one more envelope is within the rate (a token bucket)."""
        self.tokens = min(
            float(message_limits.RATE_BURST),
            self.tokens + (now - self.seen) * message_limits.RATE_PER_S,
        )
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
        if (
            len(self.queue) >= message_limits.QUEUE_ENVELOPES_MAX
            or self.queued + len(content) > message_limits.QUEUE_BYTES_MAX
        ):
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
                self.meter.sent(self.node, len(content))
        except TimeoutError:
            self.end("too slow")
        except CALL_ENDED:
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
