"""Events and envelopes as bytes, by proto/journal.proto and proto/link.proto, and back.

`MESSAGE_FIELDS` is the one table of what state machines say to one another: a message's type and
its field of `Envelope`. Whatever is journaled or sent goes through it.

A message may be as large as a model. The generated classes would copy it once into the envelope and
once more into the entry before they encode it; here its encoding gets the few bytes of entry and
envelope put in front of it. The bytes are the same (https://protobuf.dev/programming-guides/encoding).
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message

from ...protocol import ports
from ...protocol.snapshot import SnapshotError
from ...wire import (
    admission_pb2,
    blob_pb2,
    helper_pb2,
    journal_pb2,
    link_pb2,
    log_pb2,
    operator_pb2,
    round_pb2,
    secure_pb2,
    subgraph_pb2,
)
from ...wire.journal_pb2 import Entry
from ...wire.link_pb2 import Address, Envelope

#: What state machines say to one another -> the field of Envelope that carries it.
MESSAGE_FIELDS: Mapping[type[Message], str] = {
    admission_pb2.CheckIn: "check_in",
    admission_pb2.Accept: "accept",
    admission_pb2.Reject: "reject",
    admission_pb2.EdgeHello: "edge_hello",
    admission_pb2.Pace: "pace",
    blob_pb2.FetchBlob: "fetch_blob",
    blob_pb2.Blob: "blob",
    round_pb2.Task: "task",
    round_pb2.Upload: "upload",
    round_pb2.Failure: "failure",
    round_pb2.UploadAck: "upload_ack",
    round_pb2.EdgeTask: "edge_task",
    round_pb2.EdgeProgress: "edge_progress",
    round_pb2.Flush: "flush",
    round_pb2.EdgeSum: "edge_sum",
    round_pb2.EdgeSumAck: "edge_sum_ack",
    round_pb2.RoundClosed: "round_closed",
    secure_pb2.KeyBundle: "key_bundle",
    secure_pb2.Cohort: "cohort",
    secure_pb2.SealedShares: "sealed_shares",
    secure_pb2.Delivery: "delivery",
    secure_pb2.Survivors: "survivors",
    secure_pb2.Consent: "consent",
    secure_pb2.UnmaskRequest: "unmask_request",
    secure_pb2.UnmaskShares: "unmask_shares",
    helper_pb2.HelpRequest: "help_request",
    helper_pb2.HelpSum: "help_sum",
}

#: What a node asks the coordinator through its links, outside its machine
#: (`core/node/net/relay.py`).
ERRAND_FIELDS: Mapping[type[Message], str] = {
    link_pb2.RenewalAsk: "renewal_ask",
    link_pb2.RenewalAnswer: "renewal_answer",
    link_pb2.DeniedAsk: "denied_ask",
    link_pb2.DeniedPage: "denied_page",
    subgraph_pb2.SubgraphFrame: "subgraph",
}

#: What no state machine sees: messages of transports, and relayed requests.
TRANSPORT_FIELDS: Mapping[type[Message], str] = {
    link_pb2.Offer: "offer",
    link_pb2.Want: "want",
    link_pb2.Goodbye: "goodbye",
    **ERRAND_FIELDS,
}

#: What a node's own side may order -> the field of OrderedEvent that carries it.
ORDER_FIELDS: Mapping[type[Message], str] = {
    journal_pb2.Conditions: "conditions",
    journal_pb2.Homes: "homes",
    journal_pb2.Drain: "drain",
    journal_pb2.Forget: "forget",
    operator_pb2.RunOrder: "run",
    journal_pb2.DrainEdge: "drain_edge",
    journal_pb2.DeniedVersion: "denied",
    journal_pb2.Connected: "connected",
    log_pb2.Checkpoint: "log_head",
    log_pb2.LogUpdate: "log_update",
    journal_pb2.Left: "left",
    journal_pb2.SplitTrained: "split_trained",
}

_ENVELOPE_FIELDS = {**MESSAGE_FIELDS, **TRANSPORT_FIELDS}
_MESSAGES = frozenset(MESSAGE_FIELDS.values())
_ERRANDS = frozenset(ERRAND_FIELDS.values())

_TIERS: Mapping[ports.Tier, link_pb2.NodeTier] = {
    ports.Tier.DEVICE: link_pb2.NODE_DEVICE,
    ports.Tier.EDGE: link_pb2.NODE_EDGE,
    ports.Tier.CLOUD: link_pb2.NODE_CLOUD,
}
_TIER_OF: Mapping[int, ports.Tier] = {int(number): tier for tier, number in _TIERS.items()}


# ---------------------------------------------------------------- addresses and envelopes


def address(node: ports.Node) -> Address:
    """A node as it is named on the wire."""
    return Address(tier=_TIERS[node.tier], number=node.number)


def node_of(address: Address) -> ports.Node:
    """The node that an address names. Raises ProtocolError where it names none."""
    tier = _TIER_OF.get(address.tier)
    if tier is None or (tier is ports.Tier.CLOUD and address.number != 0):
        raise ports.ProtocolError(
            f"no node has the address (tier {address.tier}, {address.number})"
        )
    return ports.Node(tier, address.number)


def envelope(
    sender: ports.Node, to: ports.Node, message: Message, traceparent: str = ""
) -> Envelope:
    """A message on its way; it may be one of the transport's own. Copies the message."""
    head = Envelope(sender=address(sender), to=address(to), traceparent=traceparent)
    getattr(head, _ENVELOPE_FIELDS[type(message)]).CopyFrom(message)
    return head


def envelope_bytes(
    sender: ports.Node, to: ports.Node, message: Message, traceparent: str = ""
) -> bytes:
    """`envelope(...)` encoded, without a copy of the message on the way."""
    said = traceparent.encode()
    trace = (_TRACEPARENT, _varint(len(said)), said) if said else ()
    return b"".join((_SENDER, _address(sender), _TO, _address(to), *trace, *_wrap(message)))


def read_envelope(content: ports.Content) -> tuple[Envelope, memoryview | None]:
    """An envelope decoded.

    Of an Upload that was encoded as protobuf does it the vector is not copied: it is returned next
    to an envelope that lacks it. Raises DecodeError.
    """
    parts = _cut(memoryview(content))
    if parts is None:
        return Envelope.FromString(bytes(content)), None
    head, upload, vector = parts
    length = _varint(len(upload))
    return Envelope.FromString(b"".join((head, _UPLOAD, length, upload))), vector


def message_of(envelope: Envelope) -> Message:
    """What an envelope says to a state machine.

    Raises ProtocolError where it says nothing, nothing known, or something for the transport.
    """
    field = envelope.WhichOneof("message")
    if field not in _MESSAGES:
        raise ports.ProtocolError(f"an envelope says {field or 'nothing that is known'} to a node")
    message: Message = getattr(envelope, field)
    return message


def relayed_of(envelope: Envelope) -> Message | None:
    """The relayed request or answer in an envelope; None: it has something else."""
    field = envelope.WhichOneof("message")
    return getattr(envelope, field) if field in _ERRANDS else None


# ---------------------------------------------------------------- events


def encode(event: ports.Event, now: int) -> bytes:
    """An event that was handled at `now` ns, as a journal entry."""
    match event:
        case ports.Received(encoded=content) if content:
            return b"".join((encode_head(event, now), content))
        case ports.Received(sender, message):
            body = (_SENDER, _address(sender), *_wrap(message))
            length = sum(len(part) for part in body)
            return b"".join((_now(now), _RECEIVED, _varint(length), *body))
        case ports.TimerFired(name):
            entry = Entry(now=now, timer=name)
        case ports.BlobStored(digest, intact):
            stored = journal_pb2.BlobStoredEvent(digest=digest, intact=intact)
            entry = Entry(now=now, blob_stored=stored)
        case ports.ProgramFinished():
            entry = Entry(now=now, program_finished=_finished(event))
        case ports.Started(stored=digests, unix_ns=unix_ns):
            started = journal_pb2.StartedEvent(stored=digests, unix_ns=unix_ns)
            entry = Entry(now=now, started=started)
        case ports.Ordered(order):
            ordered: dict[str, Any] = {ORDER_FIELDS[type(order)]: order}
            entry = Entry(now=now, ordered=journal_pb2.OrderedEvent(**ordered))
    return entry.SerializeToString()


def encode_head(event: ports.Received, now: int) -> bytes:
    """What comes before `event.encoded` in what `encode` gives."""
    return b"".join((_now(now), _RECEIVED, _varint(len(event.encoded))))


def decode(data: bytes) -> tuple[ports.Event, int]:
    """The event that `encode` wrote, and when it was handled, in ns. Raises SnapshotError."""
    try:
        entry = Entry.FromString(data)
        return _event(entry), entry.now
    except (DecodeError, ports.ProtocolError, ValueError) as fault:
        raise SnapshotError(
            f"a journal entry of {len(data)} bytes cannot be read: {fault}",
            "it was written by a newer version of delian, or damaged",
        ) from fault


def _event(entry: Entry) -> ports.Event:
    match entry.WhichOneof("event"):
        case "received":
            return ports.Received(node_of(entry.received.sender), message_of(entry.received))
        case "timer":
            return ports.TimerFired(entry.timer)
        case "blob_stored":
            return ports.BlobStored(entry.blob_stored.digest, entry.blob_stored.intact)
        case "program_finished":
            return _program_finished(entry.program_finished)
        case "started":
            return ports.Started(tuple(entry.started.stored), entry.started.unix_ns)
        case "ordered":
            field = entry.ordered.WhichOneof("order")
            if field is None:
                raise ValueError("an order that is not known")
            return ports.Ordered(getattr(entry.ordered, field))
        case _:
            raise ValueError("an event that is not known")


def _finished(event: ports.ProgramFinished) -> journal_pb2.ProgramFinishedEvent:
    message = journal_pb2.ProgramFinishedEvent(ticket=event.ticket)
    match event.outcome:
        case ports.Outcome(vector, examples, loss, finite) as outcome:
            assert vector is None or len(vector) > 0, "an empty vector is written as none"
            content = b"" if vector is None else vector.astype("<u4", copy=False).tobytes()
            message.outcome_of_update.CopyFrom(
                journal_pb2.OutcomeEvent(
                    vector=content, examples=examples, loss=loss, finite=finite, split=outcome.split
                )
            )
        case ports.NewModel(weights, memory):
            message.new_model.CopyFrom(journal_pb2.NewModelEvent(weights=weights, memory=memory))
        case ports.ProgramStopped(reason):
            message.stopped = reason
    return message


def _program_finished(message: journal_pb2.ProgramFinishedEvent) -> ports.ProgramFinished:
    match message.WhichOneof("outcome"):
        case "outcome_of_update":
            told = message.outcome_of_update
            content = told.vector
            vector = np.frombuffer(content, "<u4").astype(np.uint32) if content else None
            outcome = ports.Outcome(vector, told.examples, told.loss, told.finite, split=told.split)
            return ports.ProgramFinished(message.ticket, outcome)
        case "new_model":
            model = message.new_model
            memory = model.memory if model.HasField("memory") else None
            return ports.ProgramFinished(message.ticket, ports.NewModel(model.weights, memory))
        case "stopped":
            return ports.ProgramFinished(message.ticket, ports.ProgramStopped(message.stopped))
        case _:
            raise ValueError("an outcome that is not known")


# ---------------------------------------------------------------- snapshots

_SNAPSHOT = Struct("<4sQ")
_SNAPSHOT_MAGIC = b"DLS1"


def seal_snapshot(state: bytes, now: int) -> bytes:
    """What a driver hands to `Journal.checkpoint`: a machine's snapshot and the newest `now`."""
    return _SNAPSHOT.pack(_SNAPSHOT_MAGIC, now) + state


def open_snapshot(data: bytes) -> tuple[bytes, int]:
    """The machine's snapshot and `now` that `seal_snapshot` put together. Raises SnapshotError."""
    if len(data) < _SNAPSHOT.size or data[:4] != _SNAPSHOT_MAGIC:
        raise SnapshotError(
            f"a stored snapshot of {len(data)} bytes is none",
            "it was written by another version of delian, or damaged",
        )
    _, now = _SNAPSHOT.unpack_from(data)
    return data[_SNAPSHOT.size :], now


# ---------------------------------------------------------------- the encoding, by hand

_LENGTH_DELIMITED = 2
#: Seven bits in each: of 64 bits.
_VARINT_BYTES_MAX = 10


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _tag(of: type[Message], field: str) -> bytes:
    return _varint(of.DESCRIPTOR.fields_by_name[field].number << 3 | _LENGTH_DELIMITED)


_RECEIVED = _tag(Entry, "received")
_TAGS = {kind: _tag(Envelope, field) for kind, field in _ENVELOPE_FIELDS.items()}
_SENDER, _TO = _tag(Envelope, "sender"), _tag(Envelope, "to")
_TRACEPARENT = _tag(Envelope, "traceparent")
_UPLOAD, _VECTOR = _TAGS[round_pb2.Upload], _tag(round_pb2.Upload, "vector")
_NOW, _TIER, _NUMBER = (
    _varint(kind.DESCRIPTOR.fields_by_name[field].number << 3)
    for kind, field in ((Entry, "now"), (Address, "tier"), (Address, "number"))
)
_TIER_BYTES = {tier: _TIER + _varint(number) for tier, number in _TIERS.items()}


def _now(now: int) -> bytes:
    return _NOW + _varint(now) if now else b""


def _address(node: ports.Node) -> bytes:
    """An address with its length before it; like all that is zero, the number 0 is left out."""
    number = _NUMBER + _varint(node.number) if node.number else b""
    body = _TIER_BYTES[node.tier] + number
    return _varint(len(body)) + body


def _wrap(message: Message) -> tuple[bytes, ...]:
    """The last part of an envelope's bytes, which is the message in it."""
    body = message.SerializeToString()
    return _TAGS[type(message)], _varint(len(body)), body


def _cut(envelope: memoryview) -> tuple[memoryview, memoryview, memoryview] | None:
    """Of an envelope that ends with an Upload that ends with its vector.

    What comes before the Upload, what of it comes before the vector, and the vector. None: it is
    another one.
    """
    at = _skip(envelope, 0, (_SENDER, _TO, _TRACEPARENT))
    start, end = _field(envelope, at, _UPLOAD)
    if end != len(envelope):
        return None
    inside = start
    while inside < end and envelope[inside] & 7 == 0 and envelope[inside] < 0x80:
        inside = _read_varint(envelope, inside + 1)[1]
    first, last = _field(envelope, inside, _VECTOR)
    if last != end or first == last:
        return None
    return envelope[:at], envelope[start:inside], envelope[first:]


def _skip(data: memoryview, at: int, tags: tuple[bytes, ...]) -> int:
    """Where the first field begins that has none of these tags."""
    for tag in tags:
        end = _field(data, at, tag)[1]
        at = end if 0 <= end <= len(data) else at
    return at


def _field(data: memoryview, at: int, tag: bytes) -> tuple[int, int]:
    """Where the content of the field at `at` begins and ends; (-1, -1): it has another tag."""
    if data[at : at + len(tag)] != tag:
        return -1, -1
    length, start = _read_varint(data, at + len(tag))
    return start, start + length


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends; a number that ends nowhere ends behind all."""
    number = 0
    for shift, byte in enumerate(data[at : at + _VARINT_BYTES_MAX]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, at + shift + 1
    return 0, len(data) + 1
