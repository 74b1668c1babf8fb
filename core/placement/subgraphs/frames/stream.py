"""One end of a stream of frames (proto/subgraph.proto): what both ends do alike.

Outwards, frames of control go first and the chunks of several messages take turns. What is sent and
not yet said to be taken is bounded by a window of twice the link's bandwidth times its round trip:
so no queue builds up within the transport, where nothing could overtake it, and a link that becomes
slower is felt within a round trip. A chunk is what the link carries in 5 ms.

The other end says of each chunk or probe when it came, by its own clock. Two that followed one
another on a busy link came apart by the time that the later one took on the slowest hop (packet
pairs: Keshav, "A control-theoretic approach to flow control", SIGCOMM 1991). A gap that was there
already when they left says nothing of the link, and is left out.

Inwards, the first chunk of a message says how large the message is; whether that is allowed is
asked before room is made for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import monotonic

from google.protobuf.message import DecodeError

from ....protocol.ports import ProtocolError
from ....wire import subgraph_pb2 as pb
from .. import request_limits as limits

#: A message's name on a stream: its session, and its sequence there.
Key = tuple[int, int]

#: Bytes on their way while nothing is known of the link.
WINDOW_BYTES_FIRST = 32 * 1024
WINDOW_BYTES_MAX = 8 * 1024 * 1024
#: A message of so many bytes begins with a small piece, so that what follows measures the link.
PAIR_BYTES = 2 * 1024
FIRST_BYTES = 256
#: Bytes by which the bandwidth is measured once.
SAMPLE_BYTES = 4 * 1024
#: What the newest sample counts.
SAMPLE_SHARE = 0.3
#: How long the least round trip stands.
RTT_S = 10.0
#: Below this, gaps are the clock's and the scheduler's.
GAP_S = 20e-6
#: Probes under way.
PROBES_MAX = 256


class StreamError(ProtocolError):
    """The other end breaks the rules. kind: few and fixed, for counters."""

    def __init__(self, kind: str, message: str = "") -> None:
        super().__init__(message or kind)
        self.kind = kind


@dataclass(slots=True)
class _Outgoing:
    key: Key
    content: memoryview
    offset: int = 0


@dataclass(slots=True)
class _Padding:
    """A probe, or a padded answer to one, that waits for its turn."""

    frame: pb.SubgraphFrame
    size: int


@dataclass(slots=True)
class _Incoming:
    content: bytearray
    began: float
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Whole:
    """A message is whole: an encoded SubgraphRequest or SubgraphReply."""

    key: Key
    content: bytearray


class FrameStream:
    """One end of a stream.

    write: hands an encoded frame to the transport, and returns when it has taken it. admit: asked
    of each message that begins to come, with its size; it raises StreamError for one that must not,
    and says False for one that is of no use any more. on_taken: called with the bytes that the
    other end has taken, those that wait here or are on their way, and the microseconds of its
    clock. on_arriving: called for each message with how many of its bytes have come, and of how
    many. chunk_max, window_max: bytes of a chunk, and of what is on its way.

        stream = FrameStream(write, admit)
        task = create_task(stream.run())         # writes
        event = stream.take(content)             # for each frame that was read
    """

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        admit: Callable[[Key, int], bool],
        *,
        on_taken: Callable[[int, int, int], None] | None = None,
        on_arriving: Callable[[Key, int, int], None] | None = None,
        chunk_max: int = limits.CHUNK_BYTES_MAX,
        window_max: int = WINDOW_BYTES_MAX,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._write, self._admit, self._clock = write, admit, clock
        self._on_taken, self._on_arriving = on_taken, on_arriving
        self._chunk_max, self._window_max = chunk_max, window_max
        self._began = clock()
        self._control: deque[bytes] = deque()
        self._waiting: deque[_Outgoing | _Padding] = deque()
        self._wake = asyncio.Event()
        self._incoming: dict[Key, _Incoming] = {}
        self.held = 0  # bytes of unfinished messages
        # What was sent, and what of it the other end has taken: (bytes so far, when it was sent).
        self._sent = self._taken = self._arrived = 0
        self._marks: deque[tuple[int, float]] = deque()
        # Of the last that was taken: bytes so far, when it left, came (there), and was
        # acknowledged.
        self._last: tuple[int, float, float, float] | None = None
        self._sample: tuple[int, float] = (0, 0.0)  # bytes, seconds
        self.rate: float | None = None  # bytes a second outwards, as it seems
        self._rtts: deque[tuple[float, float]] = deque()  # rising, within RTT_S
        self._probes: dict[int, asyncio.Future[pb.SubgraphProbed] | None] = {}  # the last piece's
        self._probe_number = 0
        self.above: pb.SubgraphLink | None = None  # from answers to probes

    # ------------------------------------------------ outwards

    def say(self, frame: pb.SubgraphFrame) -> None:
        """Sends a frame of control. Raises StreamError when too many wait already."""
        if len(self._control) >= limits.CONTROL_MAX:
            raise StreamError("slow reader", "it does not take what is said to it")
        self._control.append(frame.SerializeToString())
        self._wake.set()

    def send(self, key: Key, content: bytes) -> None:
        """Sends a message in chunks. Raises StreamError when too many wait already."""
        if len(self._waiting) >= limits.MESSAGES_MAX:
            raise StreamError("slow reader", "it does not take what is sent to it")
        self._waiting.append(_Outgoing(key, memoryview(content)))
        self._wake.set()

    def drop(self, key: Key) -> None:
        """Sends no more of a message, and takes no more of the one that has its name here."""
        self._waiting = deque(
            out for out in self._waiting if isinstance(out, _Padding) or out.key != key
        )
        came = self._incoming.pop(key, None)
        if came is not None:
            self.held -= len(came.content)

    def probe(self, padding: int, answer: int = 0) -> asyncio.Future[pb.SubgraphProbed]:
        """Sends so many bytes, behind what waits already, and is answered with so many.

        The result is there when all of them are. Raises StreamError where there are too many
        probes.
        """
        if len(self._probes) >= PROBES_MAX:
            raise StreamError("slow reader", "it answers no probes")
        sizes = _pieces(padding, self._chunk_max)
        answers = _pieces(answer, self._chunk_max)
        future: asyncio.Future[pb.SubgraphProbed] = asyncio.get_running_loop().create_future()
        for n in range(max(len(sizes), len(answers))):
            size = sizes[n] if n < len(sizes) else 0
            back = answers[n] if n < len(answers) else 0
            self._probe_number += 1
            made = pb.SubgraphProbe(
                number=self._probe_number, padding=bytes(size), answer_bytes=back
            )
            self._waiting.append(_Padding(pb.SubgraphFrame(probe=made), size))
            self._probes[made.number] = None
        self._probes[self._probe_number] = future
        self._wake.set()
        return future

    @property
    def waiting(self) -> int:
        """Bytes that wait here, or are on their way and not said to be taken."""
        here = sum(
            out.size if isinstance(out, _Padding) else len(out.content) - out.offset
            for out in self._waiting
        )
        return here + self._sent - self._taken

    @property
    def stalled(self) -> bool:
        """Whether the other end is overdue to go on with a message, or to take one."""
        now = self._clock()
        if self._marks and now - self._marks[0][1] > limits.TAKEN_S:
            return True
        return any(now - came.began > limits.MESSAGE_S for came in self._incoming.values())

    async def run(self) -> None:
        """Writes, until it is cancelled or the transport fails."""
        while True:
            self._wake.clear()
            while self._control:
                await self._write(self._control.popleft())
            if self._waiting and self._sent - self._taken < self._window():
                await self._write_next()
            elif not self._control:
                await self._wake.wait()

    async def _write_next(self) -> None:
        out = self._waiting.popleft()
        if isinstance(out, _Padding):
            frame = out.frame
        else:
            length = self._chunk() if out.offset or len(out.content) < PAIR_BYTES else FIRST_BYTES
            piece = out.content[out.offset : out.offset + length]
            frame = pb.SubgraphFrame(
                chunk=pb.SubgraphChunk(
                    session=out.key[0],
                    sequence=out.key[1],
                    size=len(out.content),
                    offset=out.offset,
                    content=bytes(piece),
                )
            )
            out.offset += len(piece)
            if out.offset < len(out.content):
                self._waiting.append(out)
        content = frame.SerializeToString()
        self._sent += len(content)
        self._marks.append((self._sent, self._clock()))
        await self._write(content)

    def _window(self) -> float:
        if self.rate is None or not self._rtts:
            return WINDOW_BYTES_FIRST
        wanted = 2 * self.rate * self._rtts[0][1] + 2 * self._chunk()
        return min(wanted, self._window_max)

    def _chunk(self) -> int:
        if self.rate is None:
            return 4 * limits.CHUNK_BYTES_MIN
        return int(min(max(self.rate * limits.CHUNK_S, limits.CHUNK_BYTES_MIN), self._chunk_max))

    # ------------------------------------------------ inwards

    def take(self, content: bytes) -> pb.SubgraphFrame | Whole | None:
        """What a frame that has come is.

        One of control for this end's owner, a message that is whole, or nothing to handle. Raises
        StreamError.
        """
        if len(content) > limits.FRAME_BYTES_MAX:
            raise StreamError("oversized frame", f"{len(content)} bytes")
        try:
            frame = pb.SubgraphFrame.FromString(content)
        except DecodeError:
            raise StreamError("malformed") from None
        kind = frame.WhichOneof("frame")
        if kind == "chunk":
            self._arrival(len(content))
            return self._take_chunk(frame.chunk)
        if kind == "taken":
            self._take_taken(frame.taken)
        elif kind == "probe":
            self._arrival(len(content))
            self._answer_probe(frame.probe)
        elif kind == "probed":
            if frame.probed.padding:
                self._arrival(len(content))
            self._take_probed(frame.probed)
        elif kind is None:
            raise StreamError("unknown frame")
        else:
            return frame
        return None

    def _take_chunk(self, chunk: pb.SubgraphChunk) -> Whole | None:
        key, size = (chunk.session, chunk.sequence), chunk.size
        length = len(chunk.content)
        if (
            length > limits.CHUNK_BYTES_MAX
            or not 0 < size <= limits.MESSAGE_BYTES_MAX
            or not length
        ):
            raise StreamError("malformed chunk", f"{length} of {size} bytes")
        came = self._incoming.get(key)
        if came is None:
            if chunk.offset:  # the rest of one that was dropped
                return None
            if not self._admit(key, size):
                return None
            came = self._incoming[key] = _Incoming(bytearray(size), self._clock())
            self.held += size
        if len(came.content) != size or chunk.offset != came.offset or came.offset + length > size:
            self.drop(key)
            raise StreamError("malformed chunk", f"{length} bytes at {chunk.offset} of {size}")
        came.content[came.offset : came.offset + length] = chunk.content
        came.offset += length
        if self._on_arriving is not None:
            self._on_arriving(key, came.offset, size)
        if came.offset < size:
            return None
        del self._incoming[key]
        self.held -= size
        return Whole(key, came.content)

    def _arrival(self, size: int) -> None:
        self._arrived += size
        taken = pb.SubgraphTaken(bytes=self._arrived, at_us=self._now_us())
        self.say(pb.SubgraphFrame(taken=taken))

    def _now_us(self) -> int:
        return int((self._clock() - self._began) * 1e6)

    # ------------------------------------------------ measuring

    def _take_taken(self, taken: pb.SubgraphTaken) -> None:
        if not self._taken <= taken.bytes <= self._sent:
            raise StreamError("malformed", "it takes what was not sent")
        now, came = self._clock(), taken.at_us / 1e6
        while self._marks and self._marks[0][0] <= taken.bytes:
            upto, left = self._marks.popleft()
            if upto == taken.bytes:
                self._note_rtt(now - left, now)
                self._note_gap(upto, left, came)
                self._last = (upto, left, came, now)
        self._taken = taken.bytes
        self._wake.set()
        if self._on_taken is not None:
            self._on_taken(taken.bytes, self.waiting, taken.at_us)

    def _note_rtt(self, seconds: float, now: float) -> None:
        while self._rtts and self._rtts[-1][1] >= seconds:
            self._rtts.pop()
        self._rtts.append((now, seconds))
        while self._rtts[0][0] < now - RTT_S:
            self._rtts.popleft()

    def _note_gap(self, upto: int, left: float, came: float) -> None:
        if self._last is None:
            return
        size, gap = upto - self._last[0], came - self._last[2]
        if gap < 0:
            raise StreamError("malformed", "time goes back")
        if left >= self._last[3] or gap < 0.9 * (left - self._last[1]):
            return  # the sender paused
        size, gap = self._sample[0] + size, self._sample[1] + gap
        self._sample = (size, gap)
        if size < SAMPLE_BYTES:
            return
        found = size / max(gap, GAP_S)
        # Of the seconds a byte: the time of what comes next is linear in them.
        before = found if self.rate is None else self.rate
        self.rate = 1 / (SAMPLE_SHARE / found + (1 - SAMPLE_SHARE) / before)
        self._sample = (0, 0.0)

    def _answer_probe(self, probe: pb.SubgraphProbe) -> None:
        if max(len(probe.padding), probe.answer_bytes) > limits.CHUNK_BYTES_MAX:
            raise StreamError("malformed", "a probe with too much padding")
        padded = sum(isinstance(out, _Padding) for out in self._waiting) < PROBES_MAX
        frame = pb.SubgraphFrame(
            probed=pb.SubgraphProbed(
                number=probe.number,
                at_us=self._now_us(),
                padding=bytes(probe.answer_bytes if padded else 0),
                above=self.above,
            )
        )
        if frame.probed.padding:  # takes its turn, within the window
            self._waiting.append(_Padding(frame, len(frame.probed.padding)))
            self._wake.set()
        else:
            self.say(frame)

    def _take_probed(self, probed: pb.SubgraphProbed) -> None:
        if probed.number not in self._probes or len(probed.padding) > limits.CHUNK_BYTES_MAX:
            raise StreamError("malformed", "an answer to no probe")
        future = self._probes.pop(probed.number)
        if future is not None and not future.done():
            future.set_result(probed)


def _pieces(size: int, most: int) -> list[int]:
    """How padding is cut: as a message is, a small piece first."""
    first = FIRST_BYTES if size >= PAIR_BYTES else 0
    full, rest = divmod(size - first, most)
    return [n for n in (first, *(most for _ in range(full)), rest) if n] or [0]
