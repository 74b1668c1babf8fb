"""How a link to the node above is, asked on purpose: what `delian profile --link` measures.

Over the same stream that parts run on, so that it is what they will find: empty probes for the
round trip, padded ones each way for the bandwidth, of as many bytes as take long enough to be seen.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from ....common.errors import DelianError
from ....wire.subgraph_pb2 import SubgraphFrame
from ...cut.link_model import LinkProfile, Probe, estimate
from .stream import FrameStream, Key, StreamError, Whole
from .stream_client import Upstream

#: For a connection.
CONNECT_S = 15.0
#: A probe that is not answered by then is lost.
PROBE_S = 20.0
EMPTY, SIZED = 12, 4
SIZE_FIRST, SIZE_MAX = 16 * 1024, 4 * 1024 * 1024
#: A transfer that takes so long stands out from the round trip's changes.
LONG_S = 0.1


class Prober:
    """The owner of an `Upstream` that only probes.

    prober = Prober()
    link = await prober.measure(Upstream(node, homes, prober, credentials, federation))
    """

    def __init__(self) -> None:
        self._stream: asyncio.Future[FrameStream] | None = None

    async def measure(self, upstream: Upstream) -> LinkProfile:
        """Dials, probes, and ends. Raises DelianError where no node answers."""
        self._stream = asyncio.get_running_loop().create_future()
        upstream.start()
        try:
            async with asyncio.timeout(CONNECT_S):
                stream = await self._stream
        except TimeoutError:
            why = ", ".join(upstream.faults.counts) or "no answer"
            raise DelianError(
                f"the node above takes no probes ({why})",
                "it answers where it runs parts: delian edge run --serve BUNDLE",
            ) from None
        else:
            return estimate([p for way in (0, 1) for p in await self._probe(stream, way)])
        finally:
            await upstream.close()

    async def _probe(self, stream: FrameStream, way: int) -> list[Probe]:
        """way: 0: up, 1: down."""
        found = [await _once(stream, 0, 0) for _ in range(EMPTY)]
        known = [p.seconds for p in found if p.seconds is not None]
        if not known:
            return found
        size = SIZE_FIRST
        while True:
            probe = await _once(stream, *((size, 0) if way == 0 else (0, size)))
            if probe.seconds is None or probe.seconds > min(known) + LONG_S or size >= SIZE_MAX:
                break
            size *= 4
        more = [await _once(stream, probe.up, probe.down) for _ in range(SIZED - 1)]
        return [*found, probe, *more]

    # ------------------------------------------------ the owner's part: nothing else is said

    def back(self, stream: FrameStream) -> None:
        if self._stream is not None and not self._stream.done():
            self._stream.set_result(stream)

    def gone(self) -> None: ...

    def admit(self, key: Key, size: int) -> bool:
        return False

    def said(self, frame: SubgraphFrame) -> None:
        raise StreamError("unknown frame")

    def replied(self, reply: Whole) -> None: ...

    def taken(self, taken: int, waiting: int, at_us: int) -> None: ...

    def arriving(self, key: Key, done: int, of: int) -> None: ...


async def _once(stream: FrameStream, up: int, down: int) -> Probe:
    began = monotonic()
    try:
        async with asyncio.timeout(PROBE_S):
            await stream.probe(up, down)
    except TimeoutError:
        return Probe(up, down, None)
    return Probe(up, down, monotonic() - began)
