"""A way up over both transports: messages over MQTT, models and updates over gRPC.

A connection to a broker costs a battery little, and passes where others do not; megabytes are
better off in a stream of their own. So the node is always at home over MQTT, and dials gRPC when it
has something large to send or to fetch, until nothing large has moved for a while. At the other end
both hubs have one switch, which answers over gRPC as long as the node is there, and over MQTT after
that (add the gRPC hub first). Where gRPC is not to be had, everything goes over MQTT, in parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from google.protobuf.message import Message

from ..node.blobs import BlobStore
from ..ports import Node
from ..wire.blob_pb2 import FetchBlob
from ..wire.round_pb2 import EdgeSum, Upload
from .limits import INLINE_MAX
from .switch import Link
from .traffic import Meter

#: A gRPC connection over which nothing large has moved for so long is ended.
IDLE_S = 60.0


class Bulk(Link, Protocol):
    """`GrpcUplink`, as far as this file knows it."""

    meter: Meter

    async def close(self) -> None: ...


class Control(Link, Protocol):
    """`MqttUplink`, as far as this file knows it."""

    def start(self) -> None: ...

    def expect(self, node: Node, at: Node, digest: bytes) -> None: ...

    async def close(self) -> None: ...


class HybridUplink:
    """See the module; a Link. make_bulk: gives a new `GrpcUplink` to the same homes."""

    def __init__(
        self, control: Control, make_bulk: Callable[[], Bulk], *, idle_s: float = IDLE_S
    ) -> None:
        self.control = control
        self.bulk: Bulk | None = None
        self._make_bulk = make_bulk
        self._idle_s = idle_s
        self._used = False
        self._watch: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Goes home over MQTT."""
        self.control.start()

    async def close(self) -> None:
        """Says goodbye over both. May be called twice."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
            self._watch = None
        bulk, self.bulk = self.bulk, None
        if bulk is not None:
            await bulk.close()
        await self.control.close()

    def reaches(self, to: Node) -> bool:
        return self.control.reaches(to) or (self.bulk is not None and self.bulk.reaches(to))

    def send(self, sender: Node, to: Node, message: Message, traceparent: str = "") -> None:
        link: Link = self.control
        if is_bulk(message):
            bulk = self._dialled()
            if bulk.reaches(to) or not self.control.reaches(to):
                link = bulk
                if isinstance(message, FetchBlob):  # the answer may come late, over MQTT
                    self.control.expect(sender, to, message.digest)
        link.send(sender, to, message, traceparent)

    def send_blob(self, sender: Node, to: Node, digest: bytes, blobs: BlobStore) -> None:
        self.control.send_blob(sender, to, digest, blobs)

    def _dialled(self) -> Bulk:
        self._used = True
        if self.bulk is None:
            self.bulk = self._make_bulk()
        if self._watch is None or self._watch.done():
            self._watch = asyncio.get_running_loop().create_task(self._hang_up())
        return self.bulk

    async def _hang_up(self) -> None:
        """Ends the connection when nothing large moves any more."""
        moved = -1
        while self.bulk is not None:
            before, moved = moved, self.bulk.meter.parts
            if moved == before and not self._used:
                bulk, self.bulk = self.bulk, None
                await bulk.close()
                return
            self._used = False
            await asyncio.sleep(self._idle_s)


def is_bulk(message: Message) -> bool:
    """Whether a message is large, or asks for something large."""
    if isinstance(message, Upload):
        return len(message.vector) > INLINE_MAX // 2
    if isinstance(message, EdgeSum):
        return len(message.sum) > INLINE_MAX // 2
    return isinstance(message, FetchBlob)
