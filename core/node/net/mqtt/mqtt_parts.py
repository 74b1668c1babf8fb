"""A transfer over MQTT: which part goes next, which ones are lost, and when to be patient.

There is no stream to lean on: a broker may drop what it cannot hold, and a connection may end with
parts under way. So the receiver says what it has, and the sender does the rest:

- The receiver answers an offer, and from then on every few parts, by *Want*: how far it has all,
  and a bit for each part beyond that is here too. Parts that came early wait in memory, never more
  than `WINDOW` of them; what it has all of goes to the store, so a transfer goes on where it ended,
  over whichever transport comes next.
- Parts arrive in the order in which they were sent, bar what is lost: a part that is missing while
  one sent `REORDER` later is here is sent again.
- A *Want* that says what the last one said means that the receiver waits in vain: the first missing
  part is sent again, and what it says then shows whether the others are lost as well. A slow link
  only gets that one twice.
- The sender has at most `window` parts under way. That begins small and grows with every part that
  arrives, and is halved when a part took longer than `SLOW_S`: parts share the connection with
  messages, which must not wait behind megabytes. So there may be more under way than the window
  allows now, and all of them may be lost: the first missing part is sent whatever the window says.
  Without this exception the sender waits for a *Want* and the receiver for a part.

Two classes without I/O; `core/node/net/mqtt/mqtt_peer.py` moves the bytes. Positions are byte
offsets; a part begins a multiple of `part_bytes` after the first *Want*'s offset.
"""

from __future__ import annotations

from collections.abc import Iterator

from ....protocol.ports import ProtocolError
from ..message_limits import KIB

#: Content of a part. With its head it fits the 128 KiB that brokers are sure to take.
PART_BYTES = 96 * KIB
#: A receiver may ask for smaller parts, but not for so many that they are all heads.
PART_BYTES_MIN = KIB
#: Parts under way at most, and parts that came early and wait in memory.
WINDOW = 32
WINDOW_START = 4
WINDOW_MIN = 2
#: How much later than a missing part another must have been sent to prove it lost.
REORDER = 3
#: A part that takes longer than this to arrive says that the link has a queue.
SLOW_S = 2.0
#: Bytes of Want.have that are looked at (proto/link.proto).
HAVE_BYTES_MAX = 4096


class Sending:
    """The sender's side of one transfer of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.part_bytes = 0  # the receiver says it
        self.offset = 0  # the receiver has all before it
        self.window = WINDOW_START
        self.resent = 0
        self._have: set[int] = set()  # beyond `offset`
        self._sent: dict[
            int, tuple[int, float]
        ] = {}  # position -> (turn, when), not seen there yet
        self._turn = 0
        self._told: tuple[int, bytes] | None = None  # the last Want
        self._began: set[int] = set()  # positions within the window that were sent once

    @property
    def done(self) -> bool:
        return self.part_bytes > 0 and self.offset == self.size

    def forget_sent(self) -> None:
        """Nothing of what is under way will arrive: the peer has started again."""
        self._sent.clear()
        self._told = None

    def take_want(self, offset: int, have: bytes, part_bytes: int, now_s: float) -> None:
        """Learns what the receiver has. Raises ProtocolError where that cannot be."""
        if not PART_BYTES_MIN <= part_bytes <= PART_BYTES or not 0 <= offset <= self.size:
            raise ProtocolError(f"a Want for parts of {part_bytes} bytes from {offset} on")
        if len(have) > HAVE_BYTES_MAX:
            raise ProtocolError("a Want with too long a list")
        if part_bytes != self.part_bytes or (offset - self.offset) % part_bytes:
            if offset != self.size:  # whose last part is a short one
                self.forget_sent()
            self.part_bytes = part_bytes
        told = (offset, have)
        again = told == self._told
        self._told = told
        self.offset = offset
        self._have = {p for p in self._positions() if _bit(have, (p - offset) // part_bytes)}
        self._settle(now_s)
        if again:
            first = next((p for p in self._positions() if p not in self._have), None)
            if first is not None:
                self._sent.pop(first, None)

    def _settle(self, now_s: float) -> None:
        """Strikes out what has arrived, and what is lost."""
        arrived = [p for p in self._sent if p < self.offset or p in self._have]
        newest, oldest_s = -1, 0.0
        for position in arrived:
            turn, at = self._sent.pop(position)
            if turn > newest:
                newest, oldest_s = turn, now_s - at
        for position, (turn, _) in list(self._sent.items()):
            if turn < newest - REORDER:
                del self._sent[position]
        if arrived and oldest_s > SLOW_S:
            self.window = max(WINDOW_MIN, self.window // 2)
        elif arrived:
            self.window = min(WINDOW, self.window + len(arrived))
        self._began = {p for p in self._began if p >= self.offset}

    def next_part(self, now_s: float) -> tuple[int, int] | None:
        """Offset and length of the part to send now; None: wait for a Want."""
        if self.part_bytes == 0:
            return None
        missing = (p for p in self._positions() if p not in self._have)
        position = next(missing, None)
        if position in self._sent:  # the window holds for all but the first missing part
            if len(self._sent) >= self.window:
                return None
            position = next((p for p in missing if p not in self._sent), None)
        if position is None:
            return None
        self._turn += 1
        self._sent[position] = (self._turn, now_s)
        self.resent += position in self._began
        self._began.add(position)
        return position, min(self.part_bytes, self.size - position)

    def take_back(self, position: int) -> None:
        """A part that `next_part` gave was not sent after all."""
        self._sent.pop(position, None)

    def _positions(self) -> Iterator[int]:
        """Where parts begin, from the first missing one on, as far as a receiver takes them."""
        end = min(self.size, self.offset + WINDOW * self.part_bytes)
        return iter(range(self.offset, end, self.part_bytes))


class Receiving:
    """The receiver's side of one transfer. offset: how many of its `size` bytes are here."""

    def __init__(self, size: int, offset: int = 0, part_bytes: int = PART_BYTES) -> None:
        assert 0 <= offset <= size
        self.size = size
        self.offset = offset
        self.part_bytes = part_bytes
        self.again = 0  # parts that were here already
        self._early: dict[int, bytes] = {}

    @property
    def done(self) -> bool:
        return self.offset == self.size

    def take(self, offset: int, content: bytes) -> list[bytes]:
        """What of it, and of what waited for it, can now be added at the end.

        Raises ProtocolError for a part that was not asked for.
        """
        if offset < self.offset:
            self.again += 1
            return []
        index, rest = divmod(offset - self.offset, self.part_bytes)
        length = min(self.part_bytes, self.size - offset)
        if rest or index >= WINDOW or length <= 0 or len(content) != length:
            raise ProtocolError(f"a part of {len(content)} bytes at {offset} was not asked for")
        if offset in self._early:
            self.again += 1
            return []
        self._early[offset] = content
        ready = []
        while (chunk := self._early.pop(self.offset, None)) is not None:
            ready.append(chunk)
            self.offset += len(chunk)
        return ready

    def have(self) -> bytes:
        """Want.have."""
        bits = 0
        for offset in self._early:
            bits |= 1 << (offset - self.offset) // self.part_bytes
        return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _bit(have: bytes, index: int) -> bool:
    byte = index // 8
    return byte < len(have) and bool(have[byte] >> index % 8 & 1)
