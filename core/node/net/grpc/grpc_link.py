"""`GrpcUplink`: a node's way up over gRPC, to one home at a time.

The home is the node that is sent to: the first message to another one dials there, and the old line
ends a moment later. `grpc_line.py` is the time at one home.

Up, a large message is offered; the home answers Want and gets it by Push. Down, what the home
offers is fetched by Pull: a blob, if this node has asked for it, straight into its store; a large
message, if the node takes one of that size, into memory (`transfer.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import Message

from ....protocol.ports import Node
from ..loopback import INSECURE, check_loopback
from ..message_limits import Faults
from ..switch import Switch
from .grpc_line import Line
from .grpc_transport import TCP, Transport

if TYPE_CHECKING:
    from ...storage.blobs import BlobStore

#: Gives what to show at each dialling: of `identity.certificates.channel_credentials`.
Credentials = Callable[[], grpc.ChannelCredentials]


class GrpcUplink:
    """The way up of one node of this process; a Link.

    homes: node -> "host:port". credentials: None: without TLS, to loopback only. federation: whose
    names the homes' certificates carry. on_connected: called with the home whenever there is a new
    connection. on_refused: called with a home that does not let this node connect, and its reason.
    transport: makes the channels.

        uplink = GrpcUplink(switch, node, {Node(Tier.EDGE, 1): "edge:7443"}, credentials, "farm")
        switch.add_link(uplink)
        uplink.start()

    Raises DelianError where there are no credentials and a home is not on loopback.
    """

    def __init__(
        self,
        switch: Switch,
        node: Node,
        homes: Mapping[Node, str],
        credentials: Credentials | None,
        federation: str = INSECURE,
        *,
        on_connected: Callable[[Node], None] | None = None,
        on_refused: Callable[[Node, str], None] | None = None,
        rng: random.Random | None = None,
        transport: Transport = TCP,
    ) -> None:
        self.faults = Faults("grpc uplink")
        self.meter = switch.traffic.meter("grpc")
        self.switch = switch
        self.node = node
        self.credentials = credentials
        self.federation = federation
        self.on_connected = on_connected
        self.on_refused = on_refused
        self.rng = rng or random.Random()
        self.transport = transport
        self._homes: dict[Node, str] = {}
        self._line: Line | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed = False
        self.set_homes(homes)

    def set_homes(self, homes: Mapping[Node, str]) -> None:
        """Another address table. A line to a home that is not in it ends."""
        if self.credentials is None:
            for target in homes.values():
                check_loopback(target, "the home")
        self._homes = dict(homes)
        if self._line is not None and self._line.home not in self._homes:
            self._end(self._line.close())
            self._line = None

    def start(self) -> None:
        """Dials the first home now, and not with the first message."""
        if self._homes:
            self._go(next(iter(self._homes)))

    def redial(self) -> None:
        """Reconnects, with the current credentials: the certificate was renewed."""
        if self._line is not None:
            self._line.redial()

    async def close(self) -> None:
        """Says Goodbye, and ends. May be called twice."""
        self._closed = True
        if self._line is not None:
            await self._line.close()
            self._line = None
        for task in self._leaving:
            task.cancel()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    @property
    def home(self) -> Node | None:
        """The home that is connected now."""
        line = self._line
        return line.home if line is not None and line.connected else None

    # ------------------------------------------------ the Link

    def reaches(self, to: Node) -> bool:
        """False for a home whose line is down: it is being dialled again.

        Another home is dialled when it is sent to.
        """
        if to not in self._homes or self._closed:
            return False
        line = self._line
        return line is None or line.home != to or line.connected or not line.broken

    def send(self, sender: Node, to: Node, message: Message, traceparent: str = "") -> None:
        line = self._go(to)
        if line is not None:
            line.send(sender, message, traceparent)

    def send_blob(self, sender: Node, to: Node, digest: bytes, blobs: BlobStore) -> None:
        """Blobs go down only: counts and drops."""
        self.faults.count("blob upwards", sender)

    def _go(self, to: Node) -> Line | None:
        line = self._line
        if line is not None and line.home == to:
            return line
        target = self._homes.get(to)
        if target is None or self._closed:
            self.faults.count("unreachable", to)
            return None
        if line is not None:
            self._end(line.leave())
        self._line = Line(self, to, target)
        return self._line

    def _end(self, ending: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(ending)
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
