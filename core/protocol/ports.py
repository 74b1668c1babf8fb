"""What a state machine may know of the world and ask of it: events in, effects out, and the seams
behind them.

A tier's protocol is `handle(event, now) -> effects`. It touches no socket, file, clock or thread,
and draws no random number that its `Rng` does not give, so one machine runs the same in a daemon
and in the simulator. A driver owes it:

- `now` is in nanoseconds, never falls, and goes on counting over restarts of the node;
- effects are carried out in order; events that came together may all be handled first;
- state is durable before a message that depends on it leaves (a driver that restarts nodes stores
  `snapshot()`);
- a timer that was cancelled or set again may still fire once: machines must ignore it;
- messages may be lost, repeated and reordered, and come from whom `Received.sender` says.

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

PROTOCOL = 1  # CheckIn.protocol and EdgeHello.protocol: the version of the messages spoken here

# Limits on what a peer may say. Each receiver checks them; the .proto files quote them.
DEVICES_PER_EDGE_MAX = 100_000
EDGES_MAX = 4_096
DIMENSION_MAX = 2**28  # numbers in an update: 1 GiB of ring elements
BLOB_BYTES_MAX = 4 * 2**30
RETRY_MS_MAX = 7 * 24 * 3600 * 1000

MS = 1_000_000  # nanoseconds in a millisecond
SECOND = 1_000 * MS


class ProtocolError(DelianError):
    """A peer broke the protocol: a message that it may not send, or one that names somebody else as
    its sender.

    A driver counts it and drops the message; a simulation without Byzantine nodes must never see
    it.
    """


class Tier(StrEnum):
    """The three tiers."""

    DEVICE = "device"
    EDGE = "edge"
    CLOUD = "cloud"


class Node(NamedTuple):
    """Who sends or receives: a tier and the node's number in it."""

    tier: Tier
    number: int

    def __str__(self) -> str:
        return "cloud" if self.tier is Tier.CLOUD else f"{self.tier.value} {self.number}"


CLOUD = Node(Tier.CLOUD, 0)


# ---------------------------------------------------------------- events

# Nobody changes an event or an effect. Those that come by the dozen with every local update are not
# frozen all the same: to make a frozen one takes five times as long.


@dataclass(frozen=True, slots=True)
class Started:
    """The node has started: for the first time, or again with the state that it had.

    stored: digests of the blobs that are in its store now, whatever the state remembers of them.
    unix_ns: the computer's own time, ns, which tells this start from all others; zero where time is
    virtual.
    """

    stored: tuple[bytes, ...] = ()
    unix_ns: int = 0


@dataclass(slots=True, unsafe_hash=True)
class Received:
    """A message has come. `sender` is what the transport has authenticated. encoded: the envelope
    that it came in, where the transport has it: a journal keeps that, and encodes nothing again.
    digest: SHA-256 of `encoded`, where the transport has checked it. vector: of an Upload or an
    EdgeSum, where it was left out of `message`, because it is in `encoded` or came beside it
    (`Send.beside`): a model is not copied to be read.
    """

    sender: Node
    message: Message
    encoded: Content = field(default=b"", compare=False, repr=False)
    digest: bytes = field(default=b"", compare=False, repr=False)
    vector: Content | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True, unsafe_hash=True)
class TimerFired:
    """The time that `SetTimer` asked for has come."""

    name: str


@dataclass(frozen=True, slots=True)
class BlobStored:
    """What `StoreBlob` handed over is durable (`intact`), or did not hash to its digest and is
    forgotten.
    """

    digest: bytes
    intact: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a `client_update` gave.

    `vector`: u32[D+1], the update in the ring (see `privacy.ring`), None when there is none.
    `examples` and `loss` stay where they were computed: no message carries them. `finite`: whether
    loss and update are finite numbers.
    """

    vector: Vector | None
    examples: int = 0
    loss: float = 0.0
    finite: bool = True


@dataclass(frozen=True, slots=True)
class NewModel:
    """What a `server_update` gave: the new weights, and the server optimiser's memory where it has
    one. Both are in the node's store.
    """

    weights: blob_pb2.BlobRef
    memory: blob_pb2.BlobRef | None = None


@dataclass(frozen=True, slots=True)
class ProgramStopped:
    """A program gave nothing."""

    reason: round_pb2.FailureReason


@dataclass(frozen=True, slots=True)
class ProgramFinished:
    """A program that `RunProgram` asked for has ended."""

    ticket: int
    outcome: Outcome | NewModel | ProgramStopped


@dataclass(frozen=True, slots=True)
class Ordered:
    """The node's own side has spoken: its owner, its operator, its configuration.

    order: one of the messages that `OrderedEvent` in proto/journal.proto lists.
    """

    order: Message


Event: TypeAlias = Started | Received | TimerFired | BlobStored | ProgramFinished | Ordered


# ---------------------------------------------------------------- effects


@dataclass(slots=True, unsafe_hash=True)
class Send:
    """Hand a message to the transport, which may lose it.

    size: bytes of the encoded message where the machine knows them, else 0: protobuf finds the size
    of a message by encoding it, which costs a copy of a large one. beside: the vector of an Upload
    or an EdgeSum whose `message` lacks it; only where the driver carries such
    (`Output.carries_beside`). size counts it.
    """

    to: Node
    message: Message
    size: int = 0
    beside: Content | None = None


@dataclass(frozen=True, slots=True)
class SendBlob:
    """Send the stored blob of this digest. Machines name blobs; only stores and transports hold
    their bytes.
    """

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
    name: str


@dataclass(frozen=True, slots=True)
class RunProgram:
    """Run a program of the bundle and answer with `ProgramFinished`.

    client_update, evaluate: blobs (bundle, weights), arguments (key u32[2], RingPlan message) ->
        Outcome; the second makes the device's personal model as well, and its vector holds metrics.
    server_update: blobs (bundle, weights), or (bundle, weights, memory) where there is one,
        arguments (mean f32[D], sum of weights) -> NewModel
    unmask: no blobs, arguments (sum u32[L], [(32-byte key, +1 or -1), ...], suite), and the ring
        plan where its noise is to be added as well, under a key that only this node has -> Outcome,
        whose vector is the sum with the masks of these keys added
    masks: no blobs, arguments ([(32-byte key, +1 or -1), ...], L, suite) -> Outcome, whose vector
        is the sum of these masks, u32[L]

    task: of a device's programs, the task that they are run for: it carries what lets them run.
    """

    ticket: int
    program: str
    blobs: tuple[bytes, ...]
    arguments: tuple[Any, ...]
    task: round_pb2.Task | None = None


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
    """Random 64-bit words, each a pure function of what it is for: no order of calls, no hidden
    state.
    """

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
