"""Orders of operators to the coordinator's machine, and when they are durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from ...core.protocol.ports import Event, Ordered, Record
from ...core.wire.journal_pb2 import DrainEdge
from ...core.wire.operator_pb2 import RunOrder
from ..protocol.machine import order_key

#: How long an order may wait for the machine and its journal.
ORDER_S = 30.0


class Node0(Protocol):
    """A node of this process: a Driver."""

    def post(self, event: Event) -> None: ...


class CloudNode(Node0, Protocol):
    """The coordinator's driver."""

    @property
    def machine(self) -> Any: ...

    @property
    def now(self) -> int: ...


class Orders:
    """Gives orders to the coordinator's machine and waits until they are durable."""

    def __init__(self, cloud: Callable[[], CloudNode]) -> None:
        self._cloud = cloud
        self._waiting: dict[tuple[str, str], list[asyncio.Future[None]]] = {}

    async def give(self, order: RunOrder | DrainEdge) -> None:
        """Submits an order.

        Raises DelianError when the order would be refused, and TimeoutError when the coordinator is
        too busy; the order may still be carried out after a timeout.
        """
        cloud = self._cloud()
        cloud.machine.check(order)
        key = order_key(order)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(done)
        try:
            cloud.post(Ordered(order))
            async with asyncio.timeout(ORDER_S):
                await done
        finally:
            left = [other for other in self._waiting.get(key, []) if other is not done]
            if left:
                self._waiting[key] = left
            else:
                self._waiting.pop(key, None)

    def recorded(self, record: Record) -> None:
        """Notify it of each record of the machine."""
        if record.kind == "ordered":
            key = (str(record.fields["about"]), str(record.fields["order"]))
            for done in self._waiting.get(key, []):
                if not done.done():
                    done.set_result(None)
