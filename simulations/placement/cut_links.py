"""A simulated link between two tiers, as the streams of partitioned execution use it.

Each direction carries one chunk at a time; the chunks of several messages take turns, and each
takes as long as the link's trace says at that moment. A chunk then travels for the latency. What
has arrived is acknowledged, and acknowledgements and other small frames take the latency and no
room. A link that breaks forgets what is on it.

Faults are per message: one may be lost on the way, or come twice. A transport that repairs losses,
as gRPC does, has neither; the machines must bear both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ...core.protocol.ports import SECOND
from ...core.protocol.random_streams import Streams
from ..federation.virtual_time import Schedule
from .links_over_time import LinkTrace

Action = Callable[[], None]

#: A chunk takes about so long on the link, within limits.
CHUNK_S = 0.02
CHUNK_BYTES_MIN, CHUNK_BYTES_MAX = 1024, 64 * 1024
#: What a message takes on the wire in addition to its tensors.
HEAD_BYTES = 96


@dataclass(frozen=True, slots=True)
class Faults:
    """Chances that a message is lost, or comes twice."""

    loss: float = 0.0
    duplication: float = 0.0


@dataclass(slots=True)
class _Message:
    name: object
    size: int
    left: int
    arrived: Action
    began: Callable[[int], None] | None
    over: bool = False


class Direction:
    """One way of a link.

    acknowledged: called with (bytes so far, at) when the sender receives it; None: the other side
    does not say.
    """

    def __init__(
        self,
        schedule: Schedule[Action],
        trace: LinkTrace,
        up: bool,
        streams: Streams,
        ids: tuple[int, ...],
        faults: Faults,
        acknowledged: Callable[[int, int, int], None] | None = None,
    ) -> None:
        self._schedule, self._trace, self._up = schedule, trace, up
        self._streams, self._ids, self._faults = streams, ids, faults
        self._acknowledged = acknowledged
        self._queue: deque[_Message] = deque()
        self._now: _Message | None = None  # of which a chunk is being sent
        self._life = 0  # counts how often the link was made
        self._arrived = 0  # bytes, since it was made
        self._handed = 0  # bytes that were to be sent, less those called off
        self._count = 0
        self.alive = True

    def send(
        self,
        name: object,
        size: int,
        arrived: Action,
        began: Callable[[int], None] | None = None,
    ) -> None:
        """Sends a message of so many bytes.

        `began(now)` when its first chunk arrives, `arrived` when all of it has.
        """
        if not self.alive:
            return
        size += HEAD_BYTES
        self._handed += size
        self._queue.append(_Message(name, size, size, arrived, began))
        self._next()

    def call_off(self, name: object) -> None:
        """What is not sent yet of a message is not sent any more."""
        for message in list(self._queue):
            if message.name == name:
                self._handed -= message.left
                self._queue.remove(message)
        if self._now is not None and self._now.name == name:  # but for the chunk on its way
            self._now.over = True

    def tell(self, arrived: Action) -> None:
        """A small frame: takes the latency and no room.

        Not subject to faults: those that ask again are the openings, and they are asked for again
        after many seconds.
        """
        if not self.alive:
            return
        life = self._life
        later = self._schedule.now + self._trace.latency_at(self._schedule.now)
        self._schedule.at(later, lambda: arrived() if self.alive and life == self._life else None)

    def broke(self) -> None:
        """What is on the link is gone."""
        self.alive = False
        self._life += 1
        self._queue.clear()
        self._now = None
        self._arrived = self._handed = 0

    def mended(self) -> None:
        self.alive = True

    def _next(self) -> None:
        if self._now is not None or not self._queue:
            return
        message = self._queue.popleft()
        now, trace = self._schedule.now, self._trace
        rates = trace.up if self._up else trace.down
        size = int(rates[trace.at(now)] * CHUNK_S)
        size = min(message.left, max(CHUNK_BYTES_MIN, min(CHUNK_BYTES_MAX, size)))
        left_at = trace.sent_at(now, size, self._up)
        self._now = message
        life = self._life
        self._schedule.at(left_at, lambda: self._left(message, size, life))

    def _left(self, message: _Message, size: int, life: int) -> None:
        """A chunk has left."""
        if life != self._life:
            return
        self._now = None
        first = message.left == message.size
        message.left -= size
        now = self._schedule.now
        arrival = now + self._trace.latency_at(now)
        last = message.left <= 0
        if message.over:
            self._handed -= message.left
        elif not last:
            self._queue.append(message)
        self._schedule.at(arrival, lambda: self._came(message, size, first, last, life))
        self._next()

    def _came(self, message: _Message, size: int, first: bool, last: bool, life: int) -> None:
        """A chunk has arrived."""
        if life != self._life:
            return
        now = self._schedule.now
        self._arrived += size
        if first and message.began is not None:
            message.began(now)
        if self._acknowledged is not None:
            arrived, heard = self._arrived, now + self._trace.latency_at(now)
            self._schedule.at(heard, lambda: self._acknowledge(arrived, now, life))
        if last:
            self._deliver(message)

    def _acknowledge(self, arrived: int, at: int, life: int) -> None:
        if life == self._life and self._acknowledged is not None:
            self._acknowledged(arrived, max(0, self._handed - arrived), at)

    def _deliver(self, message: _Message) -> None:
        faults = self._faults
        self._count += 1
        if faults.loss and self._streams.unit("cut lost", *self._ids, self._count) < faults.loss:
            return
        message.arrived()
        unit = self._streams.unit("cut twice", *self._ids, self._count)
        if faults.duplication and unit < faults.duplication:
            life = self._life
            later = self._schedule.now + round(unit / faults.duplication * SECOND)
            self._schedule.at(later, lambda: message.arrived() if life == self._life else None)
