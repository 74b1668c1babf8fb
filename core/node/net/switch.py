"""Where a message goes: to a node of this process, or into a link that reaches its receiver.

A process hosts nodes (the coordinator's hosts the cloud and edge 0) and has links to others. A node
is attached with its inbox; what a driver sends passes through `send` and `send_blob`, and what a
link has received and authenticated through `deliver`. Nothing here waits: a message that cannot go
anywhere is counted and dropped, since the machines repeat what matters.

A blob's bytes never pass through a message. Between two nodes of one process a blob is copied from
store to store, or not at all when both have the same store; a link writes what it receives into the
store of the receiving node. In either case the node then gets a `Blob` without content: its digest
is in the store, whole and checked.

Everything runs on the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import Message

from ...common.errors import DelianError
from ...protocol.ports import Event, Node, Received
from ...wire.blob_pb2 import Blob
from .message_limits import MESSAGE_BYTES_DEFAULT, PART_BYTES, TRACEPARENT_MAX, Faults
from .traffic import Traffic

if TYPE_CHECKING:
    from ..storage.blobs import BlobStore

log = logging.getLogger("delian.net")


class Inbox(Protocol):
    """Takes a node's events, on the loop's thread, and never blocks: `Driver.post`."""

    def __call__(self, event: Event, traceparent: str = "", size: int = 0, /) -> None: ...


class Offer(Protocol):
    """Takes them too, but waits for room first: `Driver.offer`. False: the node has stopped."""

    def __call__(
        self, event: Event, traceparent: str = "", size: int = 0, /
    ) -> Awaitable[bool]: ...


#: Takes a relayed request (`relay.py`) from a node that the link has authenticated; never blocks.
Relayed = Callable[[Node, Node, Message], None]

#: The largest message, in bytes, that a node would take from this sender now.
Limit = Callable[[Node], int]


def default_limit(sender: Node) -> int:
    """Takes nothing large."""
    return MESSAGE_BYTES_DEFAULT


class Link(Protocol):
    """A way to nodes of other processes: gRPC or MQTT, upwards or downwards."""

    def reaches(self, to: Node) -> bool:
        """Whether a message to this node would go through this link now."""

    def send(self, sender: Node, to: Node, message: Message, traceparent: str = "") -> None:
        """Sends, or queues, or drops and counts. Never blocks; the message is not changed after."""

    def send_blob(self, sender: Node, to: Node, digest: bytes, blobs: BlobStore) -> None:
        """Offers a blob of `blobs` to `to`. Never blocks."""


@dataclass(frozen=True, slots=True)
class Port:
    """A node that this process hosts, as the links see it."""

    node: Node
    inbox: Inbox
    blobs: BlobStore
    limit: Limit
    offer: Offer | None = None


class Switch:
    """The switchboard of one process. `traffic`: what its links have moved."""

    def __init__(self) -> None:
        self.faults = Faults("switch")
        self.traffic = Traffic()
        self.sent = 0
        self.delivered = 0
        self._ports: dict[Node, Port] = {}
        self._links: list[Link] = []
        self._relayed: dict[type[Message], Relayed] = {}
        self._copies: dict[tuple[Node, bytes], asyncio.Task[None]] = {}

    # ------------------------------------------------ nodes

    def attach(
        self,
        node: Node,
        inbox: Inbox,
        blobs: BlobStore,
        limit: Limit = default_limit,
        offer: Offer | None = None,
    ) -> None:
        """Makes `node` a node of this process.

        inbox: takes its events. limit: see `Limit`. offer: takes what comes over a link, waiting
        for room, which slows the peer down; without it `inbox` does.
        """
        assert node not in self._ports, f"{node} is attached already"
        self._ports[node] = Port(node, inbox, blobs, limit, offer)

    def detach(self, node: Node) -> None:
        """`node` is gone; what still comes for it is counted and dropped."""
        self._ports.pop(node, None)

    def add_link(self, link: Link) -> None:
        """Adds a way out. Links are asked in the order in which they were added."""
        self._links.append(link)

    def remove_link(self, link: Link) -> None:
        if link in self._links:
            self._links.remove(link)

    def on_relayed(self, kind: type[Message], take: Relayed) -> None:
        """The handler of a kind of relayed requests, for all nodes of this process."""
        assert kind not in self._relayed, f"{kind.__name__} is taken care of already"
        self._relayed[kind] = take

    def port(self, node: Node) -> Port | None:
        """The attached node's port; None when it is not of this process."""
        return self._ports.get(node)

    # ------------------------------------------------ from nodes

    def send(self, sender: Node, to: Node, message: Message, traceparent: str = "") -> None:
        """Sends a message of an attached node. Drops and counts what has no way."""
        self.sent += 1
        port = self._ports.get(to)
        if port is not None:
            _post(port, Received(sender, message), traceparent)
            return
        link = self._link(to)
        if link is None:
            self.faults.count("unreachable", to)
            return
        link.send(sender, to, message, traceparent)

    def send_blob(self, sender: Node, to: Node, digest: bytes) -> None:
        """Sends a blob out of the sender's store."""
        source = self._ports.get(sender)
        assert source is not None, f"{sender} is not attached"
        self.sent += 1
        port = self._ports.get(to)
        if port is not None:
            self._copy(source, port, digest)
            return
        link = self._link(to)
        if link is None:
            self.faults.count("unreachable", to)
            return
        link.send_blob(sender, to, digest, source.blobs)

    def _link(self, to: Node) -> Link | None:
        for link in self._links:
            if link.reaches(to):
                return link
        return None

    # ------------------------------------------------ from links

    def deliver(self, to: Node, event: Received, traceparent: str = "", size: int = 0) -> bool:
        """Hands over a message whose sender the link has authenticated. False: `to` is not here.

        size: its bytes, where the link knows them.
        """
        port = self._ports.get(to)
        if port is None:
            self.faults.count("no such receiver", event.sender, to=str(to))
            return False
        self.delivered += 1
        _post(port, event, _checked(traceparent), size)
        return True

    def take_relayed(self, sender: Node, to: Node, message: Message) -> bool:
        """Delivers a relayed request. False: it has no receiver."""
        take = self._relayed.get(type(message))
        if take is None or to not in self._ports:
            self.faults.count("request to an unknown node", sender, to=str(to))
            return False
        take(sender, to, message)
        return True

    async def hand_over(
        self, to: Node, event: Received, traceparent: str = "", size: int = 0
    ) -> bool:
        """`deliver` that waits while the receiver has no room for more."""
        port = self._ports.get(to)
        if port is None or port.offer is None:
            return self.deliver(to, event, traceparent, size)
        self.delivered += 1
        return await port.offer(event, _checked(traceparent), size)

    def deliver_blob(self, sender: Node, to: Node, digest: bytes, size: int) -> bool:
        """Says that a blob of `size` bytes is in the store of `to`, whole and checked."""
        return self.deliver(to, Received(sender, Blob(digest=digest, size=size)))

    # ------------------------------------------------ blobs within the process

    def _copy(self, source: Port, target: Port, digest: bytes) -> None:
        key = (target.node, digest)
        if key in self._copies:
            return
        task = asyncio.get_running_loop().create_task(self._copy_now(source, target, digest))
        self._copies[key] = task
        task.add_done_callback(lambda _: self._copies.pop(key, None))

    async def _copy_now(self, source: Port, target: Port, digest: bytes) -> None:
        try:
            size = await source.blobs.size(digest)
            if size is None:
                self.faults.count("blob is gone", source.node)
                return
            if source.blobs is not target.blobs and await target.blobs.size(digest) is None:
                partial = await target.blobs.begin(digest, size)
                while partial.offset < size:
                    await partial.write(await source.blobs.read(digest, partial.offset, PART_BYTES))
                if not await partial.finish():
                    self.faults.count("blob does not hash to its digest", source.node)
                    return
        except (DelianError, OSError) as error:
            self.faults.count("store failed", target.node, error=str(error))
            return
        self.deliver_blob(source.node, target.node, digest, size)

    async def close(self) -> None:
        """Ends what is under way within the process. Links are closed by their makers."""
        copies = list(self._copies.values())
        for task in copies:
            task.cancel()
        await asyncio.gather(*copies, return_exceptions=True)


def _post(port: Port, event: Event, traceparent: str, size: int = 0) -> None:
    if traceparent or size:
        port.inbox(event, traceparent, size)
    else:
        port.inbox(event)


def _checked(traceparent: str) -> str:
    """A trace context from outside, when it can be one."""
    return traceparent if len(traceparent) <= TRACEPARENT_MAX else ""
