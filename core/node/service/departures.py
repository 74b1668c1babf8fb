"""Devices that have lost their connection and not come back; an edge's machine leaves them out.

A connection that breaks is often there again a moment later, so a device is gone only after a
while. A broker does not say when a device leaves; its lease ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container

from ...protocol.ports import Node, Tier

#: A device that has been without a connection for so long is gone. Longer than a node's first
#: pauses before it dials again.
GONE_S = 10.0


class Departures:
    """Waits for devices that have gone.

    Args:
        here: the nodes that are connected now, over any link.
        gone: called on the event loop with a device that did not come back.
        wait_s: how long a device is waited for.
    """

    def __init__(
        self,
        here: Callable[[], Container[Node]],
        gone: Callable[[Node], None],
        wait_s: float = GONE_S,
    ) -> None:
        self._here, self._gone, self._wait_s = here, gone, wait_s
        self._waits: dict[Node, asyncio.TimerHandle] = {}

    def peer(self, node: Node, is_here: bool) -> None:
        """A node has come or gone; call it on the event loop."""
        if node.tier is not Tier.DEVICE:
            return
        if (waits := self._waits.pop(node, None)) is not None:
            waits.cancel()
        if not is_here:
            loop = asyncio.get_running_loop()
            self._waits[node] = loop.call_later(self._wait_s, self._over, node)

    def _over(self, node: Node) -> None:
        del self._waits[node]
        if node not in self._here():
            self._gone(node)

    def close(self) -> None:
        """Waits for none any more."""
        for waits in self._waits.values():
            waits.cancel()
        self._waits.clear()
