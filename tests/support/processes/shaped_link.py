"""A TCP relay that is a slow link: bandwidth and latency each way, which may change while it runs.

    async with ShapedLink("127.0.0.1:7451", Shape.symmetric(5.85e6 / 8, 0.020)) as link:
        ...                                   # dial 127.0.0.1:{link.port}
        link.change(Shape.symmetric(0.6e6 / 8, 0.020))

Each direction is a queue that is served at the bandwidth, for all connections together, and then a
delay. What is read is at most a couple of milliseconds of the link, nothing more is read before
that has left, and what has not been read waits in the sender's socket: so senders feel the link as
they would feel a real one. The instants are computed, not slept: a task that wakes up late makes
the next block leave no later, so n bytes take n / bandwidth + latency, whatever the timers of the
machine. After a pause nothing is owed: a link that was idle carries no burst.

It loses nothing and reorders nothing, as TCP sees a link.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any

#: A block is what the link carries in so long, within these bounds.
BLOCK_S = 0.002
BLOCK_BYTES_MIN = 1_460
BLOCK_BYTES_MAX = 64 * 1024
#: What the kernel keeps for a sender that waits, more or less.
SOCKET_BYTES = 256 * 1024
#: Blocks that are on their way; with the block's time this bounds what the latency can hold.
BLOCKS_MAX = 1_024
#: What was here already waited for the link; a task that wakes up later than this lost the time.
LATE_S = 0.02
#: A link that is cut is looked at again so often.
CUT_S = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """Bandwidth and latency of a shaped TCP link."""

    up: float = math.inf
    """From the node that dials to the one that accepts, bytes a second."""
    down: float = math.inf
    """In the other direction."""
    latency_s: float = 0.0
    """One way."""

    def __post_init__(self) -> None:
        assert self.up > 0 and self.down > 0 and self.latency_s >= 0

    @classmethod
    def symmetric(cls, bandwidth: float, latency_s: float = 0.0) -> Shape:
        """The same both ways."""
        return cls(bandwidth, bandwidth, latency_s)


class _Way:
    """One direction of the link: when it has carried what it was given."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.carried = 0


class ShapedLink:
    """The relay.

    target: "host:port" of the node that is dialled through it. port: where to dial, once it has
    started; 0: any.
    """

    def __init__(self, target: str, shape: Shape, host: str = "127.0.0.1", port: int = 0) -> None:
        name, _, number = target.rpartition(":")
        self._target = (name, int(number))
        self._host, self.port = host, port
        self.shape = shape
        self._up, self._down = _Way(), _Way()
        self._cut = False
        self._listener: socket.socket | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._relays: set[asyncio.Task[Any]] = set()  # of these tasks, one a connection
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> int:
        """Listens; the port."""
        self._loop = asyncio.get_running_loop()
        listener = socket.create_server((self._host, self.port))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
        listener.setblocking(False)
        self._listener = listener
        self.port = listener.getsockname()[1]
        self._spawn(self._accept(listener))
        return self.port

    async def close(self) -> None:
        """Ends all connections. May be called twice."""
        listener, self._listener = self._listener, None
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if listener is not None:
            listener.close()

    async def __aenter__(self) -> ShapedLink:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def change(self, shape: Shape) -> None:
        """Another bandwidth and latency from now on; for what is read from now on."""
        self.shape = shape
        now = monotonic()
        for way in (self._up, self._down):
            way.free_at = min(way.free_at, now + BLOCK_S)

    def cut(self, cut: bool = True) -> None:
        """Nothing gets through, without an error, until it is mended (False): a silent loss."""
        self._cut = cut

    def drop(self) -> None:
        """Breaks the connections that there are, from any thread; what was on its way is lost."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in self._relays])

    @property
    def carried(self) -> tuple[int, int]:
        """Bytes up and down until now."""
        return self._up.carried, self._down.carried

    # ------------------------------------------------ connections

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            below, _ = await loop.sock_accept(listener)
            relay = self._spawn(self._relay(below))
            self._relays.add(relay)
            relay.add_done_callback(self._relays.discard)

    async def _relay(self, below: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        above = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        with contextlib.ExitStack() as closing, contextlib.suppress(OSError):
            closing.callback(below.close)
            closing.callback(above.close)
            for end in (below, above):
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            above.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
            await loop.sock_connect(above, self._target)
            try:
                async with asyncio.TaskGroup() as group:
                    for source, sink, way in (
                        (below, above, self._up),
                        (above, below, self._down),
                    ):
                        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(BLOCKS_MAX)
                        group.create_task(self._take(source, queue, way))
                        group.create_task(self._give(sink, queue))
            except* OSError:
                pass  # a connection broke: both ends go

    def _rate(self, way: _Way) -> float:
        return self.shape.up if way is self._up else self.shape.down

    async def _take(
        self, source: socket.socket, queue: asyncio.Queue[tuple[float, bytes]], way: _Way
    ) -> None:
        """Reads what the link can carry, when it can."""
        loop = asyncio.get_running_loop()
        first = monotonic()  # nothing waited for the link before that
        while True:
            rate = self._rate(way)
            room = int(min(max(rate * BLOCK_S, BLOCK_BYTES_MIN), BLOCK_BYTES_MAX))
            try:
                block = source.recv(room)
                begin = max(way.free_at, first or monotonic() - LATE_S)
            except BlockingIOError:
                block = await loop.sock_recv(source, room)
                begin = max(way.free_at, monotonic())
            first = 0.0
            way.carried += len(block)
            way.free_at = begin + len(block) / rate
            while (left := way.free_at - monotonic()) > 0:
                await asyncio.sleep(left)
            while self._cut:
                await asyncio.sleep(CUT_S)
                way.free_at = monotonic()
            await queue.put((way.free_at + self.shape.latency_s, block))
            if not block:
                return

    async def _give(self, sink: socket.socket, queue: asyncio.Queue[tuple[float, bytes]]) -> None:
        """Hands on what has arrived."""
        loop = asyncio.get_running_loop()
        while True:
            due, block = await queue.get()
            while (left := due - monotonic()) > 0:
                await asyncio.sleep(left)
            if not block:
                sink.shutdown(socket.SHUT_WR)
                return
            await loop.sock_sendall(sink, block)


@contextlib.contextmanager
def in_thread(*links: ShapedLink) -> Iterator[None]:
    """Runs relays on an event loop of their own thread, for callers that have none.

    Change them by `change` from any thread: it sets a few numbers.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="shaped links", daemon=True)
    thread.start()
    try:
        for link in links:
            asyncio.run_coroutine_threadsafe(link.start(), loop).result()
        yield
    finally:
        for link in links:
            asyncio.run_coroutine_threadsafe(link.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
