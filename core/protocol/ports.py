"""What a state machine knows of the world and asks of it: events, effects, and the seams.

A tier's protocol is `handle(event, now) -> effects`. It touches no socket, file, clock or thread,
and draws no random number that its `Rng` does not give, so one machine runs the same in a daemon
and in the simulator. A driver owes it:

- `now` is in nanoseconds, never falls, and goes on counting over restarts of the node;
- effects are carried out in order; events that came together may all be handled first;
- state is durable before a message that depends on it leaves (a driver that restarts nodes stores
  `snapshot()`);
- a timer that was cancelled or set again may still fire once: machines must ignore it;
- messages may be lost, repeated and reordered, and come from `Received.sender`.

The messages are the protobuf messages of `core.wire`; there is no second form of them. A message
that has been sent is never changed: in memory the receiver gets the same object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
from google.protobuf.message import Message

from ..common.errors import DelianError
from ..wire import admission_pb2, blob_pb2, round_pb2

Vector: TypeAlias = npt.NDArray[np.uint32]
Floats: TypeAlias = npt.NDArray[np.float32]
#: Bytes that are not changed, or a part of such.
Content: TypeAlias = bytes | memoryview

PROTOCOL = 1  # CheckIn.protocol and EdgeHello.protocol: the version of the messages here

# Limits on what a peer may say. Each receiver checks them; the .proto files quote them.
DEVICES_PER_EDGE_MAX = 100_000
EDGES_MAX = 4_096
DIMENSION_MAX = 2**28  # numbers in an update: 1 GiB of ring elements
BLOB_BYTES_MAX = 4 * 2**30
FROZEN_PARTS_MAX = 1_024  # of one model; with their names a task has 45 KiB
RETRY_MS_MAX = 7 * 24 * 3600 * 1000

MS = 1_000_000  # nanoseconds in a millisecond
SECOND = 1_000 * MS


class ProtocolError(DelianError):
    """A peer broke the protocol: it may not send the message, or is not the sender that it names.

    A driver counts it and drops the message. It never occurs without Byzantine nodes.
    """


class Tier(StrEnum):
    """The three tiers."""

    DEVICE = "device"
    EDGE = "edge"
    CLOUD = "cloud"


class Node(NamedTuple):
    """A sender or receiver: a tier and the node's number in it."""

    tier: Tier
    number: int

    def __str__(self) -> str:
        return "cloud" if self.tier is Tier.CLOUD else f"{self.tier.value} {self.number}"


CLOUD = Node(Tier.CLOUD, 0)


# ---------------------------------------------------------------- events

# Events and effects are not changed. Those that come by the dozen with every local update are not
# frozen all the same: to make a frozen one takes five times as long.


@dataclass(frozen=True, slots=True)
class Started:
    """The node has started: for the first time, or again with the state that it had."""

    stored: tuple[bytes, ...] = ()  # digests of the blobs in its store, whatever the state says
    unix_ns: int = 0  # the computer's own time, which identifies the start; 0: time is virtual


@dataclass(slots=True, unsafe_hash=True)
class Received:
    """A message has come."""

    sender: Node  # what the transport has authenticated
    message: Message
    #: The envelope of the message, where the transport has it: a journal stores it as it is.
    encoded: Content = field(default=b"", compare=False, repr=False)
    #: SHA-256 of `encoded`, where the transport has checked it.
    digest: bytes = field(default=b"", compare=False, repr=False)
    #: Of an Upload or an EdgeSum, where `message` lacks it: it is in `encoded`, or separate
    #: (`Send.vector`). So a model is not copied to be read.
    vector: Content | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True, unsafe_hash=True)
class TimerFired:
    """The time that `SetTimer` asked for has come."""

    name: str


@dataclass(frozen=True, slots=True)
class BlobStored:
    """The blob of a `StoreBlob` was handled."""

    digest: bytes
    intact: bool  # it is durable; False: it did not hash to its digest and is forgotten


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a `client_update` gave. No message carries `examples` and `loss`."""

    vector: Vector | None  # u32[D+1], the update in the ring (see `privacy.mechanisms.ring`)
    examples: int = 0
    loss: float = 0.0
    finite: bool = True  # whether loss and update are finite numbers
    split: bytes = field(default=b"", kw_only=True)  # its training with the edge (Upload.split)


@dataclass(frozen=True, slots=True)
class NewModel:
    """What a `server_update` gave. Both blobs are in the node's store."""

    weights: blob_pb2.BlobRef
    memory: blob_pb2.BlobRef | None = None  # the server optimiser's, where it has one


@dataclass(frozen=True, slots=True)
class ProgramStopped:
    """The program failed; see `reason`."""

    reason: round_pb2.FailureReason


@dataclass(frozen=True, slots=True)
class ProgramFinished:
    """A program that `RunProgram` asked for has ended."""

    ticket: int
    outcome: Outcome | NewModel | ProgramStopped


@dataclass(frozen=True, slots=True)
class Ordered:
    """A local command from the node's owner, operator or configuration, not from a peer."""

    order: Message  # one of those that `OrderedEvent` in proto/journal.proto lists


Event: TypeAlias = Started | Received | TimerFired | BlobStored | ProgramFinished | Ordered


# ---------------------------------------------------------------- effects


@dataclass(slots=True, unsafe_hash=True)
class Send:
    """Hand a message to the transport, which may lose it."""

    to: Node
    message: Message
    #: Bytes of the encoded message with `vector`; 0: not known. protobuf finds the size of a
    #: message by encoding it, which costs a copy of a large one.
    size: int = 0
    #: The vector of an Upload or an EdgeSum whose `message` lacks it (`Output.carries_vectors`).
    vector: Content | None = None


@dataclass(frozen=True, slots=True)
class SendBlob:
    """Send the stored blob of this digest: only stores and transports hold the bytes of blobs."""

    to: Node
    digest: bytes


@dataclass(frozen=True, slots=True)
class StoreBlob:
    """Check the content against its digest, keep it, and answer with `BlobStored`."""

    blob: blob_pb2.Blob


@dataclass(frozen=True, slots=True)
class DropBlob:
    """The node needs this blob no more."""

    digest: bytes


@dataclass(slots=True, unsafe_hash=True)
class SetTimer:
    """Fire `name` at `at` ns; replaces an earlier setting of the same name."""

    name: str
    at: int


@dataclass(slots=True, unsafe_hash=True)
class CancelTimer:
    """Do not fire a timer; no effect where none is set."""

    name: str


@dataclass(frozen=True, slots=True)
class RunProgram:
    """Run a program of the bundle and answer with `ProgramFinished`.

    client_update, evaluate: blobs (bundle, weights, then the frozen parts in order), arguments
        (key u32[2], RingPlan message) -> Outcome; the second makes the device's personal model as
        well, and its vector holds metrics
    server_update: blobs (bundle, weights), or (bundle, weights, memory) where there is one,
        arguments (mean f32[D], sum of weights) -> NewModel
    unmask: no blobs, arguments (sum u32[L], [(32-byte key, +1 or -1), ...], suite), and the
        ring plan where its noise is to be added as well, under a key that only this node has
        -> Outcome, whose vector is the sum with the masks of these keys added
    masks: no blobs, arguments ([(32-byte key, +1 or -1), ...], L, suite) -> Outcome, whose
        vector is the sum of these masks, u32[L]
    split_begin: an edge's, blobs as of client_update, no arguments -> Outcome without a vector:
        from then on devices may train with it. CancelProgram ends that
    split_end: an edge's, no blobs, arguments (ticket of the split_begin, [(device, name of its
        training), ...]) of trainings that were whole -> Outcome, whose vector is the sum of what
        the edge's leaves moved by, of weight zero; ProgramStopped where one is not here any more
    """

    ticket: int
    """Number of this run of a program, which the answer repeats."""
    program: str
    """Name of one of the above."""
    blobs: tuple[bytes, ...]
    """Contents of its blobs, in that order."""
    arguments: tuple[Any, ...]
    """Its arguments, in that order."""
    task: round_pb2.Task | None = None
    """Of a device's programs, the task that they are run for: it carries what lets them run."""


@dataclass(frozen=True, slots=True)
class CancelProgram:
    """The outcome is of no use any more."""

    ticket: int


@dataclass(frozen=True, slots=True)
class Record:
    """A fact for logs, metrics and reports. Nothing in the protocol depends on it."""

    kind: str
    fields: Mapping[str, Any]


Effect: TypeAlias = (
    Send
    | SendBlob
    | StoreBlob
    | DropBlob
    | SetTimer
    | CancelTimer
    | RunProgram
    | CancelProgram
    | Record
)


# ---------------------------------------------------------------- seams


class Clock(Protocol):
    """Where a driver has `now` from: ns, never falling."""

    def now(self) -> int: ...


class Rng(Protocol):
    """Random 64-bit words, each a pure function of its purpose and ids, without hidden state."""

    def word(self, purpose: str, *ids: int) -> int: ...

    def unit(self, purpose: str, *ids: int) -> float: ...

    def sample(self, items: list[int], k: int, purpose: str, *ids: int) -> list[int]: ...


def wire_size(head: Message, content: int) -> int:
    """Bytes of a message encoded, when one bytes field of `content` bytes is added to `head`."""
    length = max(1, (content.bit_length() + 6) // 7)  # of the varint that says the length
    return head.ByteSize() + (1 + length + content if content else 0)


def window(message: admission_pb2.RetryWindow) -> tuple[int, int]:
    """A retry window in ms, brought into its limits."""
    low = min(message.min_ms, RETRY_MS_MAX)
    return low, min(max(message.max_ms, low), RETRY_MS_MAX)
