"""Parts of blobs, ready to be sent.

All devices of a round pull the same ones at about the same time, so each is read from the store and
encoded once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from ....common.errors import DelianError
from ..message_limits import PARTS_KEPT_BYTES
from ..transfer import Outgoing, part_bytes


async def read_part(out: Outgoing, offset: int) -> bytes:
    """The encoded part of what is offered, at `offset`. Raises BlobError where it is gone."""
    content = await out.read(offset)
    if not content:
        raise DelianError("the blob is shorter than it was")
    return part_bytes(out.id, offset, content)


class KeptParts:
    """The parts that were asked for last. A part that is being read is asked for by several."""

    def __init__(self) -> None:
        self._reading: dict[tuple[bytes, int], asyncio.Task[bytes]] = {}
        self._kept: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        self._bytes = 0

    async def get(self, out: Outgoing, offset: int) -> bytes:
        """As `read_part`."""
        if out.blobs is None:  # a message to one node alone
            return await read_part(out, offset)
        key = (out.id, offset)
        part = self._kept.get(key)
        if part is not None:
            self._kept.move_to_end(key)
            return part
        reading = self._reading.get(key)
        if reading is None:
            reading = asyncio.get_running_loop().create_task(read_part(out, offset))
            self._reading[key] = reading
            reading.add_done_callback(lambda done: self._keep(key, done))
        # One that is cut off leaves it to the others.
        return await asyncio.shield(reading)

    def _keep(self, key: tuple[bytes, int], done: asyncio.Task[bytes]) -> None:
        del self._reading[key]
        if done.cancelled() or done.exception() is not None:
            return  # waiting tasks are notified
        part = done.result()
        self._kept[key] = part
        self._bytes += len(part)
        while self._bytes > PARTS_KEPT_BYTES:
            self._bytes -= len(self._kept.popitem(last=False)[1])

    def clear(self) -> None:
        """Forgets what is not being read."""
        self._kept.clear()
        self._bytes = 0
