"""Transfers over gRPC without the I/O: what is on its way in, what waits to be fetched.

A large envelope goes up or down as content with a name, its SHA-256. *In*: an `Intake` says whether
an offer is taken, before anything is allocated, and keeps a `Spool` for each that is; parts are
added at its end; the whole must hash to its name. A spool whose connection breaks is kept for a
while, and the same offer goes on where it ended. *Out*: an `Outbox` keeps what was offered until
the receiver has it, has refused it, or has left it alone for too long.

Blobs use the same outbox; on the way in they go into the node's store, which keeps what is there of
one by itself. `grpc_server.py` and `grpc_link.py` move the bytes. Times are seconds of a monotonic
clock.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import Message

from ...protocol.ports import BLOB_BYTES_MAX, Content, Node, ProtocolError
from ...wire.link_pb2 import TRANSFER_BLOB, TRANSFER_ENVELOPE, Offer, Part, TransferKind
from ..storage.codec import envelope_bytes
from . import message_limits

if TYPE_CHECKING:
    from ..storage.blobs import BlobStore

ID_BYTES = 32
_ID_HEAD = bytes([Part.DESCRIPTOR.fields_by_name["id"].number << 3 | 2, ID_BYTES])
_OFFSET_TAG = Part.DESCRIPTOR.fields_by_name["offset"].number << 3
_CONTENT_TAG = Part.DESCRIPTOR.fields_by_name["content"].number << 3 | 2
#: Seven bits in each: more than any offset has.
_VARINT_BYTES_MAX = 8
#: What is smaller is copied: to keep it where it is would take more memory than it has bytes.
_PIECE_BYTES_MIN = 32 * 1024


class Refused(ProtocolError):
    """An offer that is not taken; `kind` is what it is counted as."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def part_bytes(id: bytes, offset: int, content: bytes) -> bytes:
    """A Part encoded, without a copy of the content on the way."""
    length, size = bytearray([_CONTENT_TAG]), len(content)
    while size > 0x7F:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    length.append(size)
    head = Part(id=id, offset=offset).SerializeToString()
    return b"".join((head, length, content)) if content else head


class Piece(NamedTuple):
    """A Part that was read."""

    id: bytes
    offset: int
    content: bytes | memoryview


def read_part(data: bytes) -> Piece:
    """A Part decoded; of one that was encoded as protobuf does it the content is not copied.

    Raises DecodeError.
    """
    at, offset, length = len(_ID_HEAD) + ID_BYTES, 0, -1
    if data.startswith(_ID_HEAD):
        if data[at : at + 1] == bytes([_OFFSET_TAG]):
            offset, at = _varint(data, at + 1)
        if data[at : at + 1] == bytes([_CONTENT_TAG]):
            length, at = _varint(data, at + 1)
    if length >= 0 and at + length == len(data):
        return Piece(data[len(_ID_HEAD) : len(_ID_HEAD) + ID_BYTES], offset, memoryview(data)[at:])
    part = Part.FromString(data)
    return Piece(part.id, part.offset, part.content)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends; (-1, 0) where it is none, or one too long."""
    number = 0
    for shift, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, at + shift + 1
    return -1, 0


def part_length(offset: int, size: int) -> int:
    """Bytes of the part at `offset` of so many over gRPC."""
    left = size - offset
    return left if left <= message_limits.PART_BYTES_MAX else message_limits.PART_BYTES


# ---------------------------------------------------------------- in


class Spool:
    """A large envelope on its way in: its beginning, in memory."""

    __slots__ = ("_hash", "_pieces", "id", "offset", "size", "touched", "writer")

    def __init__(self, id: bytes, size: int, now: float) -> None:
        self.id = id
        self.size = size
        self.offset = 0  # how many bytes are here
        # Grow with what comes: an offer alone takes no memory.
        self._pieces: list[bytearray | memoryview] = []
        self.touched = now  # the last headway
        self.writer: object | None = (
            None  # the writer that adds to it now; a later one takes its place
        )
        self._hash = hashlib.sha256()

    def write(self, part: Piece, now: float) -> None:
        """Adds a part at the end. Raises ProtocolError where it does not belong there."""
        content, length = part.content, len(part.content)
        if part.id != self.id or part.offset != self.offset or not length:
            raise ProtocolError(f"a part at {part.offset} of a transfer that is at {self.offset}")
        if length > message_limits.PART_BYTES_MAX or self.offset + length > self.size:
            raise ProtocolError(f"a part of {length} bytes at {part.offset} of {self.size}")
        self._hash.update(content)
        if length >= _PIECE_BYTES_MIN:
            self._pieces.append(memoryview(content))
        else:
            if not self._pieces or not isinstance(self._pieces[-1], bytearray):
                self._pieces.append(bytearray())
            self._pieces[-1] += content  # type: ignore[operator]
        self.offset += length
        self.touched = now

    def intact(self) -> bool:
        """Whether what is here is the whole, and hashes to its name."""
        return self.offset == self.size and self._hash.digest() == self.id

    def take(self) -> Content:
        """What is here, as it came where that was one piece.

        Afterwards there is nothing here any more.
        """
        pieces, self._pieces, self.offset = self._pieces, [], 0
        if len(pieces) == 1 and isinstance(pieces[0], memoryview):
            return pieces[0]
        return b"".join(pieces)


class Intake:
    """The spools of one process, within its limits."""

    def __init__(
        self,
        *,
        transfers: int = message_limits.TRANSFERS_MAX,
        transfers_per_peer: int = message_limits.TRANSFERS_PER_PEER,
        bytes_max: int = message_limits.SPOOL_BYTES_MAX,
        bytes_per_peer: int = message_limits.SPOOL_BYTES_PER_PEER,
        idle_s: float = message_limits.TRANSFER_IDLE_S,
    ) -> None:
        self._transfers, self._per_peer = transfers, transfers_per_peer
        self._bytes_max, self._bytes_per_peer = bytes_max, bytes_per_peer
        self._idle_s = idle_s
        self._peers: dict[Node, dict[bytes, Spool]] = {}
        self._count = 0
        self.bytes_held = 0

    def offer(self, peer: Node, offer: Offer, allowed: int, now: float) -> Spool:
        """The spool for an offered envelope, new or as far as it had come.

        allowed: the largest that its receiver takes from this peer. Raises Refused.
        """
        if len(offer.id) != ID_BYTES or not offer.size or offer.kind != TRANSFER_ENVELOPE:
            raise Refused("malformed offer", "an offer without a name, a size or a kind")
        if offer.size > allowed:
            raise Refused("oversized offer", f"{offer.size} bytes offered; {allowed} are allowed")
        mine = self._peers.get(peer, {})
        known = mine.get(offer.id)
        if known is not None:
            if known.size != offer.size:
                raise Refused("malformed offer", "one name, two sizes")
            return known
        while not self._fits(mine, offer.size):
            self.drop(*self._in_the_way(peer, mine, offer.size, now))
        spool = Spool(offer.id, offer.size, now)
        self._peers.setdefault(peer, mine)[offer.id] = spool
        self._count += 1
        self.bytes_held += offer.size
        return spool

    def _in_the_way(
        self, peer: Node, mine: dict[bytes, Spool], size: int, now: float
    ) -> tuple[Node, Spool]:
        """Whose unfinished one makes room.

        The peer's own that is not being written, for its sender may have given it up; else any that
        stands still. Raises Refused.
        """
        idle = [(peer, s) for s in mine.values() if s.writer is None]
        if not idle and self._within_share(mine, size):
            every = ((p, s) for p, theirs in self._peers.items() for s in theirs.values())
            idle = [(p, s) for p, s in every if s.touched + message_limits.TRANSFER_STALLED_S < now]
        if not idle:
            raise Refused("too many offers", f"no room for {size} bytes")
        return min(idle, key=lambda found: found[1].touched)

    def _within_share(self, mine: dict[bytes, Spool], size: int) -> bool:
        held = sum(s.size for s in mine.values())
        return len(mine) < self._per_peer and (not mine or held + size <= self._bytes_per_peer)

    def _fits(self, mine: dict[bytes, Spool], size: int) -> bool:
        return (
            self._within_share(mine, size)
            and self._count < self._transfers
            and (not self._count or self.bytes_held + size <= self._bytes_max)
        )

    def get(self, peer: Node, id: bytes) -> Spool | None:
        """The spool of an offer that was taken."""
        return self._peers.get(peer, {}).get(id)

    def drop(self, peer: Node, spool: Spool) -> None:
        """Forgets a spool: it has arrived, or is of no use."""
        mine = self._peers.get(peer, {})
        if mine.get(spool.id) is not spool:
            return
        del mine[spool.id]
        if not mine:
            del self._peers[peer]
        spool.writer = None  # its writer finds out
        self._count -= 1
        self.bytes_held -= spool.size

    def expire(self, now: float) -> list[Node]:
        """Forgets the spools that have stood still for too long; whose they were."""
        old = [
            (peer, spool)
            for peer, mine in self._peers.items()
            for spool in mine.values()
            if spool.touched + self._idle_s < now
        ]
        for peer, spool in old:
            self.drop(peer, spool)
        return [peer for peer, _ in old]

    def __len__(self) -> int:
        return self._count


class Asked:
    """The blobs that nodes of this process have asked one peer for: no others are taken."""

    def __init__(self) -> None:
        self._digests: OrderedDict[tuple[Node, bytes], None] = OrderedDict()

    def add(self, node: Node, digest: bytes) -> None:
        """`node` has asked for a blob. The oldest of too many is forgotten."""
        self._digests[node, digest] = None
        self._digests.move_to_end((node, digest))
        if len(self._digests) > message_limits.ASKED_PER_PEER:
            self._digests.popitem(last=False)

    def check(self, node: Node, offer: Offer) -> None:
        """Raises Refused for an offer of a blob that `node` has not asked for."""
        if len(offer.id) != ID_BYTES or offer.kind != TRANSFER_BLOB:
            raise Refused("malformed offer", "an offer without a name or a kind")
        if (node, offer.id) not in self._digests:
            raise Refused("offer of a blob that was not requested", offer.id.hex()[:16])
        if not 0 < offer.size <= BLOB_BYTES_MAX:
            raise Refused("oversized offer", f"a blob of {offer.size} bytes")

    def done(self, node: Node, digest: bytes) -> None:
        """It has come."""
        self._digests.pop((node, digest), None)


# ---------------------------------------------------------------- out


@dataclass(slots=True, eq=False)
class Outgoing:
    """What was offered: an envelope's bytes, or a blob of a store."""

    id: bytes
    size: int
    kind: TransferKind
    sender: Node
    to: Node
    touched: float
    content: bytes = b""
    message: Message | None = None
    blobs: BlobStore | None = None
    users: int = 0
    """Transfers under way."""
    _offer: bytes = field(default=b"", repr=False)

    async def read(self, offset: int, length: int = 0) -> bytes:
        """The content from `offset` on; zero: as much as a part takes.

        Raises BlobError where the blob is gone.
        """
        length = length or part_length(offset, self.size)
        if self.blobs is not None:
            return await self.blobs.read(self.id, offset, length)
        return self.content[offset : offset + length]

    def offer(self) -> bytes:
        """The envelope that offers it."""
        if not self._offer:
            offer = Offer(id=self.id, size=self.size, kind=self.kind)
            self._offer = envelope_bytes(self.sender, self.to, offer)
        return self._offer


class Outbox:
    """What waits to be fetched, within limits. A blob in it is pinned in its store."""

    def __init__(
        self,
        *,
        per_peer: int = message_limits.OUTGOING_PER_PEER,
        bytes_per_peer: int = message_limits.OUTGOING_BYTES_PER_PEER,
        bytes_max: int = message_limits.OUTGOING_BYTES_MAX,
        idle_s: float = message_limits.TRANSFER_IDLE_S,
    ) -> None:
        self._per_peer, self._bytes_per_peer = per_peer, bytes_per_peer
        self._bytes_max, self._idle_s = bytes_max, idle_s
        self._peers: dict[Node, dict[bytes, Outgoing]] = {}
        self.bytes_held = 0

    def envelope(
        self, sender: Node, to: Node, message: Message, content: bytes, now: float
    ) -> Outgoing | None:
        """Keeps a large message; None: there is no room.

        One that waits already, for a machine repeats itself, is kept once.
        """
        assert len(content) > message_limits.INLINE_MAX
        for known in self._peers.get(to, {}).values():
            if known.message is message:
                return known
        id = hashlib.sha256(content).digest()
        return self._add(
            Outgoing(id, len(content), TRANSFER_ENVELOPE, sender, to, now, content, message)
        )

    def blob(
        self, sender: Node, to: Node, digest: bytes, size: int, blobs: BlobStore, now: float
    ) -> Outgoing | None:
        """Keeps the name of a blob that is offered; None: there is no room."""
        return self._add(Outgoing(digest, size, TRANSFER_BLOB, sender, to, now, blobs=blobs))

    def _add(self, out: Outgoing) -> Outgoing | None:
        mine = self._peers.get(out.to, {})
        known = mine.get(out.id)
        if known is not None:
            known.touched = out.touched
            return known
        held = sum(len(o.content) for o in mine.values())
        if (
            len(mine) >= self._per_peer
            or (mine and held + len(out.content) > self._bytes_per_peer)
            or (self.bytes_held and self.bytes_held + len(out.content) > self._bytes_max)
        ):
            return None
        self._peers.setdefault(out.to, mine)[out.id] = out
        self.bytes_held += len(out.content)
        if out.blobs is not None:
            out.blobs.pin(out.id)
        return out

    def get(self, to: Node, id: bytes) -> Outgoing | None:
        return self._peers.get(to, {}).get(id)

    def of(self, to: Node) -> list[Outgoing]:
        """What waits for one peer, the oldest first."""
        return list(self._peers.get(to, {}).values())

    def drop(self, out: Outgoing) -> None:
        """The receiver has it, or does not want it."""
        mine = self._peers.get(out.to, {})
        if mine.get(out.id) is not out:
            return
        del mine[out.id]
        if not mine:
            del self._peers[out.to]
        self.bytes_held -= len(out.content)
        if out.blobs is not None:
            out.blobs.unpin(out.id)

    def expire(self, now: float) -> list[Outgoing]:
        """Forgets, and gives back, what was left alone for too long."""
        old = [
            out
            for mine in self._peers.values()
            for out in mine.values()
            if not out.users and out.touched + self._idle_s < now
        ]
        for out in old:
            self.drop(out)
        return old

    def clear(self) -> None:
        """Forgets everything."""
        for mine in list(self._peers.values()):
            for out in list(mine.values()):
                self.drop(out)
