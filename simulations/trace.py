"""A hash of all that happened: equal for equal seeds, whatever the threads, the machine's load or
PYTHONHASHSEED.

Each event that reaches a machine goes in with its virtual time, its node and its content. A large
content goes in by a digest: blobs by their SHA-256, which they carry; updates by the wrapping sum
of their words, taken where they are made (a sum of 64-bit words misses two errors that cancel, and
costs a fortieth of SHA-256). What is computed from them, the edges' sums and the new weights,
follows, and the weights' SHA-256 is in the next task.
"""

from __future__ import annotations

import hashlib
from struct import Struct

import numpy as np

from ..core.ports import (
    BlobStored,
    Event,
    NewModel,
    Node,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    Received,
    Started,
    Tier,
    TimerFired,
    Vector,
)
from ..core.wire.blob_pb2 import Blob
from ..core.wire.round_pb2 import EdgeSum, Upload

_HEAD = Struct("<QBQ")
_IDS = Struct("<QQQQ")
_OUTCOME = Struct("<QQd?")
_TIER = {Tier.DEVICE: 1, Tier.EDGE: 2, Tier.CLOUD: 3}
_FLUSH_BYTES = 1 << 16


class Trace:
    """Collects events; `hexdigest` is their hash so far."""

    __slots__ = ("_hash", "_pending", "events")

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"delian trace v1")
        self._pending = bytearray()
        self.events = 0

    def add(self, now: int, node: Node, event: Event) -> None:
        self.events += 1
        pending = self._pending
        pending += _HEAD.pack(now, _TIER[node.tier], node.number)
        pending += _content(event)
        if len(pending) > _FLUSH_BYTES:
            self._hash.update(pending)
            pending.clear()

    def note(self, now: int, node: Node, what: bytes) -> None:
        """Something that no machine sees: a crash, a link that went silent."""
        self._pending += _HEAD.pack(now, _TIER[node.tier], node.number) + what

    def hexdigest(self) -> str:
        self._hash.update(self._pending)
        self._pending.clear()
        return self._hash.hexdigest()


def _content(event: Event) -> bytes:
    match event:
        case Received(sender, message):
            head = b"R" + _HEAD.pack(0, _TIER[sender.tier], sender.number)
            name = type(message).__name__.encode()
            if isinstance(message, Blob):
                return head + name + message.digest
            if isinstance(message, Upload):
                who = _IDS.pack(message.run, message.round, message.attempt, message.device)
                return head + name + who
            if isinstance(message, EdgeSum):
                who = _IDS.pack(message.run, message.round, message.attempt, message.edge)
                return head + name + who + str(list(message.devices)).encode()
            return head + name + message.SerializeToString(deterministic=True)
        case TimerFired(name):
            return b"T" + name.encode()
        case BlobStored(digest, intact):
            return b"B" + digest + bytes([intact])
        case ProgramFinished(ticket, Outcome(vector, examples, loss, finite)):
            words = 0 if vector is None else checksum(vector)
            return (
                b"P" + ticket.to_bytes(8, "little") + _OUTCOME.pack(words, examples, loss, finite)
            )
        case ProgramFinished(ticket, NewModel(weights)):
            return b"M" + ticket.to_bytes(8, "little") + weights.digest
        case ProgramFinished(ticket, ProgramStopped(reason)):
            return b"F" + ticket.to_bytes(8, "little") + int(reason).to_bytes(4, "little")
        case Started():
            return b"S"
    raise AssertionError(f"unknown event {event}")


def checksum(vector: Vector) -> int:
    """The sum of a vector's 64-bit words modulo 2^64, and of what is left over."""
    even = len(vector) & ~1
    words = vector[:even].view(np.uint64)
    odd = int(vector[-1]) if even < len(vector) else 0
    return (int(np.add.reduce(words, dtype=np.uint64)) + odd) % 2**64
