"""A hash of all that happened.

Equal for equal seeds, whatever the threads, the machine's load or PYTHONHASHSEED.

Each event that reaches a machine goes in with its virtual time, its node and its content. A large
content goes in by a digest: blobs by the name that they carry; updates by the wrapping sum of their
words, taken where they are made (a sum of 64-bit words misses two errors that cancel, and costs a
fortieth of SHA-256). What is computed from them, the edges' sums and the new weights, follows, and
the weights' name is in the next task.

A bundle's name is its SHA-256, as in a fleet. Weights have one of many such sums (`weights_name`):
no device of a simulation doubts what it is sent, and no thread can train while SHA-256 of a whole
model is made.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, MutableMapping
from struct import Struct
from typing import Any

import numpy as np

from ...core.protocol import ports
from ...core.wire.blob_pb2 import Blob
from ...core.wire.round_pb2 import EdgeSum, Upload
from .training import Trained

_HEAD = Struct("<QBQ")
_RECEIVED = Struct("<QBQcQBQ")  # a head, "R", and the sender's head
_IDS = Struct("<QQQQ")
_OUTCOME = Struct("<QQd?")
_TIER = {ports.Tier.DEVICE: 1, ports.Tier.EDGE: 2, ports.Tier.CLOUD: 3}
_KINDS: dict[type, bytes] = {}  # names of messages
_FLUSH_BYTES = 1 << 16
_ROW = 1024  # f32 numbers between those that go into one sum


class Trace:
    """Collects events; `hexdigest` is their hash so far."""

    __slots__ = ("_hash", "_last", "_last_bytes", "_pending", "events")

    def __init__(self) -> None:
        self._hash = hashlib.sha256(b"delian trace v1")
        self._pending = bytearray()
        self._last: Any = None  # a message that came to several nodes is encoded once
        self._last_bytes = b""
        self.events = 0

    def add(self, now: int, node: ports.Node, event: ports.Event) -> None:
        self.events += 1
        pending = self._pending
        if isinstance(event, ports.Received):
            tier, number = event.sender
            pending += _RECEIVED.pack(
                now, _TIER[node.tier], node.number, b"R", 0, _TIER[tier], number
            )
            pending += self._content(event.message)
        else:
            pending += _HEAD.pack(now, _TIER[node.tier], node.number)
            pending += _CONTENT[type(event)](event)
        if len(pending) > _FLUSH_BYTES:
            self._hash.update(pending)
            pending.clear()

    def note(self, now: int, node: ports.Node, what: bytes) -> None:
        """Something that no machine sees: a crash, a link that went silent."""
        self._pending += _HEAD.pack(now, _TIER[node.tier], node.number) + what

    def _content(self, message: Any) -> bytes:
        if message is self._last:
            return self._last_bytes
        kind = type(message)
        name = _KINDS.get(kind)
        if name is None:
            name = _KINDS[kind] = kind.__name__.encode()
        if kind is Blob:  # not kept, nor are those that may hold a vector: they are large
            digest: bytes = message.digest
            return name + digest
        if kind is Upload or kind is EdgeSum:
            return name + _name(message)
        content: bytes = name + message.SerializeToString(deterministic=True)
        self._last, self._last_bytes = message, content
        return content

    def hexdigest(self) -> str:
        self._hash.update(self._pending)
        self._pending.clear()
        return self._hash.hexdigest()


def _name(message: Any) -> bytes:
    """What an update or a sum of them is of; its content was noted where it was made."""
    if type(message) is Upload:
        return _IDS.pack(message.run, message.round, message.attempt, message.device)
    who = _IDS.pack(message.run, message.round, message.attempt, message.edge)
    return who + np.array(message.devices, "<u8").tobytes()


def _finished(event: ports.ProgramFinished) -> bytes:
    head = b"P" + event.ticket.to_bytes(8, "little")
    match event.outcome:
        case ports.Outcome(vector, examples, loss, finite) as outcome:
            known = outcome.checksum if isinstance(outcome, Trained) else None
            words = known if known is not None else 0 if vector is None else checksum(vector)
            return head + b"O" + _OUTCOME.pack(words, examples, loss, finite)
        case ports.NewModel(weights, memory):
            return head + b"M" + weights.digest + (memory.digest if memory is not None else b"")
        case ports.ProgramStopped(reason):
            return head + b"F" + int(reason).to_bytes(4, "little")


_CONTENT: dict[type, Callable[[Any], bytes]] = {
    ports.TimerFired: lambda event: b"T" + event.name.encode(),
    ports.BlobStored: lambda event: b"B" + event.digest + bytes([event.intact]),
    ports.ProgramFinished: _finished,
    ports.Started: lambda event: b"S" + b"".join(event.stored),
    ports.Ordered: lambda event: b"O" + event.order.SerializeToString(deterministic=True),
}


def checksum(vector: ports.Vector) -> int:
    """The sum of a vector's 64-bit words modulo 2^64, and of what is left over."""
    even = len(vector) & ~1
    words = vector[:even].view(np.uint64)
    odd = int(vector[-1]) if even < len(vector) else 0
    return (int(np.add.reduce(words, dtype=np.uint64)) + odd) % 2**64


def weights_name(weights: ports.Floats) -> bytes:
    """32 bytes that stand for a model's weights f32[D].

    SHA-256 of their number and of sums modulo 2^64 of their 64-bit words, in rows of 512: one for
    each row, one for each column. A tenth of the time of SHA-256 of them all. Weights of one name
    differ in four numbers or more, in two rows and two columns, in which all that was added is
    taken away again.
    """
    weights = np.ascontiguousarray(weights)
    whole = weights.size // _ROW * _ROW
    rows = weights[:whole].view(np.uint64).reshape(-1, _ROW // 2)
    digest = hashlib.sha256(weights.size.to_bytes(8, "little"))
    for axis in (0, 1):
        digest.update(np.add.reduce(rows, axis=axis, dtype=np.uint64).data)
    digest.update(weights[whole:].data)
    return digest.digest()


def share(
    weights: ports.Floats, named: MutableMapping[bytes, ports.Floats]
) -> tuple[bytes, ports.Floats]:
    """A name for weights, and the array that has it in `named`.

    These, or equal ones that were there. Where other ones are there with equal sums, theirs is the
    SHA-256.
    """
    name = weights_name(weights)
    there = named.setdefault(name, weights)
    if there is not weights and there.tobytes() != weights.tobytes():
        name = hashlib.sha256(weights.data).digest()
        there = named.setdefault(name, weights)
    return name, there
