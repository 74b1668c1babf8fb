"""The way up to the cloud with an outbox behind it.

What cannot be sent now is stored, and sent first when the cloud can be reached again.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError, Message

from ...core.node.net.switch import Link
from ...core.node.storage.codec import envelope, message_of
from ...core.protocol.ports import CLOUD, Node, ProtocolError
from ...core.wire.admission_pb2 import EdgeHello
from ...core.wire.link_pb2 import Envelope
from ...core.wire.round_pb2 import EdgeProgress, EdgeSum
from .outbox import ITEM_BYTES_MAX, Outbox, Priority

if TYPE_CHECKING:
    from ...core.node.storage.blobs import BlobStore

log = logging.getLogger("delian.edge")

#: A day, as long as the machine itself offers a sum (`EdgePolicy.sum_keep_ns`).
SUM_VALID_MS = 24 * 3600 * 1000
STATE_VALID_MS = 10 * 60 * 1000
#: Messages that wait to be written down. Beyond them the machine's repetition has to do.
WAITING_MAX = 256
#: An envelope, and its place in the outbox: priority, key, how long it is wanted.
_Waiting = tuple[bytes, Priority, str, int]


class OutboxLink:
    """A Link (core.node.net.switch) to the cloud over `up`, which may come and go.

    It owns the outbox.

    The owner of `up` calls `connected` whenever it is connected again.
    """

    def __init__(self, node: Node, up: Link, outbox: Outbox) -> None:
        self._node, self._up, self._outbox = node, up, outbox
        self._waiting: asyncio.Queue[_Waiting] = asyncio.Queue(WAITING_MAX)
        self._taken: _Waiting | None = None  # of those, on its way to the disk
        self._back = asyncio.Event()
        self._disk = asyncio.Lock()
        self.kept = self.sent_late = self.dropped = 0

    # ------------------------------------------------ the Link

    def reaches(self, to: Node) -> bool:
        return to == CLOUD

    def send(self, sender: Node, to: Node, message: Message, traceparent: str = "") -> None:
        if self._up.reaches(to):
            self._up.send(sender, to, message, traceparent)
            return
        wanted = self._place(message)
        if wanted is None:
            return  # asked again by its timer
        priority, key, valid_ms = wanted
        if isinstance(message, EdgeSum) and len(message.sum) > ITEM_BYTES_MAX:
            self.dropped += 1
            return
        content = envelope(sender, to, message, traceparent).SerializeToString()
        try:
            self._waiting.put_nowait((content, priority, key, valid_ms))
        except asyncio.QueueFull:
            self.dropped += 1

    def send_blob(self, sender: Node, to: Node, digest: bytes, blobs: BlobStore) -> None:
        if self._up.reaches(to):
            self._up.send_blob(sender, to, digest, blobs)

    @staticmethod
    def _place(message: Message) -> tuple[Priority, str, int] | None:
        """Where a message stands in the outbox; None: it is not worth keeping."""
        if isinstance(message, EdgeSum):
            name = f"sum {message.run} {message.round} {message.attempt} {message.part}"
            return Priority.SUM, name, SUM_VALID_MS
        if isinstance(message, EdgeHello):
            return Priority.STATE, "hello", STATE_VALID_MS
        if isinstance(message, EdgeProgress):
            name = f"progress {message.run} {message.round} {message.attempt} {message.part}"
            return Priority.PROGRESS, name, STATE_VALID_MS
        return None

    # ------------------------------------------------ its work

    def connected(self) -> None:
        """The cloud is back: what waits goes first."""
        self._back.set()

    async def run(self) -> None:
        """Keeps and sends until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep())
            group.create_task(self._drain())

    async def _keep(self) -> None:
        while True:
            self._taken = await self._waiting.get()
            async with self._disk:
                kept = await self._put(self._taken)
            self._taken = None
            self.kept += kept
            self.dropped += not kept
            if self._up.reaches(CLOUD):  # it came back meanwhile
                self._back.set()

    async def _put(self, waiting: _Waiting) -> bool:
        content, priority, key, valid_ms = waiting
        return await asyncio.to_thread(
            self._outbox.put, content, priority, key=key, valid_ms=valid_ms
        )

    async def _drain(self) -> None:
        while True:
            await self._back.wait()
            self._back.clear()
            while self._up.reaches(CLOUD):
                async with self._disk:
                    items = await asyncio.to_thread(self._outbox.take)
                if not items:
                    break
                for item in items:
                    self._send_kept(item.content)
                async with self._disk:
                    await asyncio.to_thread(self._outbox.done, [item.id for item in items])

    def _send_kept(self, content: bytes) -> None:
        try:
            said = Envelope.FromString(content)
            message = message_of(said)
        except (DecodeError, ProtocolError) as error:
            log.warning("a message in the outbox cannot be read: %s", error)
            return
        self._up.send(self._node, CLOUD, message, said.traceparent)
        self.sent_late += 1

    async def close(self) -> None:
        """Writes down what still waits, and closes the outbox. After `run` was cancelled."""
        async with self._disk:
            if self._taken is not None:  # it may be there already, and then takes its own place
                await self._put(self._taken)
            while not self._waiting.empty():
                await self._put(self._waiting.get_nowait())
            await asyncio.to_thread(self._outbox.close)
