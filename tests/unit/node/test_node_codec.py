"""The journal's bytes: every event comes back as it was, and as protobuf itself would write it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from delian.core.node.storage import codec
from delian.core.protocol.ports import (
    CLOUD,
    BlobStored,
    NewModel,
    Node,
    Ordered,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    ProtocolError,
    Received,
    Started,
    Tier,
    TimerFired,
)
from delian.core.protocol.snapshot import SnapshotError
from delian.core.wire.admission_pb2 import CheckIn
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.journal_pb2 import Entry, OrderedEvent
from delian.core.wire.link_pb2 import Address, Envelope, Goodbye, Offer
from delian.core.wire.round_pb2 import FailureReason, Upload
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

U64 = st.integers(0, 2**64 - 1)
NODES = st.builds(Node, st.sampled_from([Tier.DEVICE, Tier.EDGE]), U64) | st.just(CLOUD)
DIGESTS = st.binary(min_size=32, max_size=32)
REFS = st.builds(BlobRef, digest=DIGESTS, size=U64)
VECTORS = st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=8).map(
    lambda words: np.array(words, np.uint32)
)
SCALARS = {
    FieldDescriptor.TYPE_UINT64: U64,
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=300),
    FieldDescriptor.TYPE_STRING: st.text(max_size=20),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
}


@st.composite
def messages(draw, kind):
    """Any message of a type: each field absent or anything that its type holds."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if not draw(st.booleans()) or (field.message_type and field.message_type.has_options):
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            value = messages(field.message_type._concrete_class)
        elif field.type == FieldDescriptor.TYPE_ENUM:
            value = st.sampled_from([v.number for v in field.enum_type.values])
        else:
            value = SCALARS[field.type]
        if not field.is_repeated:
            if field.message_type:
                getattr(message, field.name).CopyFrom(draw(value))
            else:
                setattr(message, field.name, draw(value))
        else:
            getattr(message, field.name).extend(draw(st.lists(value, max_size=3)))
    return message


def any_of(table):
    return st.sampled_from(sorted(table, key=lambda kind: kind.__name__)).flatmap(messages)


OUTCOMES = (
    st.builds(
        Outcome,
        st.none() | VECTORS,
        examples=U64,
        loss=st.floats(allow_nan=False),
        finite=st.booleans(),
    )
    | st.builds(NewModel, REFS, st.none() | REFS)
    | st.builds(ProgramStopped, st.sampled_from(FailureReason.values()))
)
EVENTS = (
    st.builds(Started, st.lists(DIGESTS, max_size=4).map(tuple))
    | st.builds(Received, NODES, any_of(codec.MESSAGE_FIELDS))
    | st.builds(TimerFired, st.text(max_size=20))
    | st.builds(BlobStored, DIGESTS, st.booleans())
    | st.builds(ProgramFinished, U64, OUTCOMES)
    | st.builds(Ordered, any_of(codec.ORDER_FIELDS))
)


def plain(event):
    """An event in a form that compares: an Outcome holds an array."""
    if isinstance(event, ProgramFinished) and isinstance(event.outcome, Outcome):
        vector = event.outcome.vector
        listed = None if vector is None else (str(vector.dtype), vector.tolist())
        return event.ticket, dataclasses.replace(event.outcome, vector=listed)
    return event


@settings(max_examples=200, deadline=None)
@given(NODES, NODES, messages(Upload), st.text(max_size=60), st.data())
def test_an_upload_is_read_with_its_vector_beside_it(sender, to, upload, trace, data):
    said = codec.envelope(sender, to, upload, trace)
    content = said.SerializeToString()
    assert codec.envelope_bytes(sender, to, upload, trace) == content
    read, vector = codec.read_envelope(memoryview(b"-" + content)[1:])
    ends_with_it = bool(upload.vector) and not upload.HasField("seeds") and not upload.split
    assert (vector is not None) == ends_with_it
    if vector is not None:
        assert not read.upload.vector and vector.obj[1:] == content
        read.upload.vector = bytes(vector)
    assert read == said
    # Whatever else the bytes are, they are read as protobuf reads them, or not at all.
    at = data.draw(st.integers(0, len(content)))
    for other in (content[:at], content + content, content[:at] + content):
        assert _full(other) == _beside(other)


def _full(content):
    try:
        return Envelope.FromString(content)
    except DecodeError:
        return None


def _beside(content):
    try:
        read, vector = codec.read_envelope(content)
    except DecodeError:
        return None
    if vector is not None:
        read.upload.vector = bytes(vector)
    return read


@settings(max_examples=300, deadline=None)
@given(EVENTS, U64)
def test_every_event_comes_back_as_it_was(event, now):
    back, then = codec.decode(codec.encode(event, now))
    assert then == now and type(back) is type(event)
    assert plain(back) == plain(event)


@settings(max_examples=100, deadline=None)
@given(NODES, any_of(codec.MESSAGE_FIELDS), U64)
def test_a_received_message_is_encoded_as_protobuf_does(sender, message, now):
    wrapped = Envelope(sender=codec.address(sender))
    getattr(wrapped, codec.MESSAGE_FIELDS[type(message)]).CopyFrom(message)
    wanted = Entry(now=now, received=wrapped).SerializeToString()
    assert codec.encode(Received(sender, message), now) == wanted


@settings(max_examples=100, deadline=None)
@given(NODES, NODES, any_of(codec.MESSAGE_FIELDS), st.sampled_from(["", "00-aa-bb-01"]))
def test_an_envelope_carries_its_message(sender, to, message, traceparent):
    wrapped = codec.envelope(sender, to, message, traceparent)
    assert codec.node_of(wrapped.sender) == sender and codec.node_of(wrapped.to) == to
    assert wrapped.traceparent == traceparent and codec.message_of(wrapped) == message
    written = codec.envelope_bytes(sender, to, message, traceparent)
    assert written == wrapped.SerializeToString()


def test_a_loss_that_is_not_a_number_comes_back():
    event = ProgramFinished(1, Outcome(None, 3, math.nan, False))
    back, _ = codec.decode(codec.encode(event, 0))
    assert math.isnan(back.outcome.loss) and not back.outcome.finite


def test_the_tables_name_every_message_of_the_contract():
    oneof = Envelope.DESCRIPTOR.oneofs_by_name["message"]
    named = {**codec.MESSAGE_FIELDS, **codec.TRANSPORT_FIELDS}
    assert {f.name: f.message_type for f in oneof.fields} == {
        field: kind.DESCRIPTOR for kind, field in named.items()
    }
    orders = OrderedEvent.DESCRIPTOR.oneofs_by_name["order"]
    assert {f.name: f.message_type for f in orders.fields} == {
        field: kind.DESCRIPTOR for kind, field in codec.ORDER_FIELDS.items()
    }


@pytest.mark.parametrize("said", [Envelope(), Envelope(offer=Offer()), Envelope(goodbye=Goodbye())])
def test_what_is_not_for_a_node_is_refused(said):
    with pytest.raises(ProtocolError):
        codec.message_of(said)


@pytest.mark.parametrize("named", [Address(), Address(tier=9), Address(tier=3, number=1)])
def test_an_address_of_nobody_is_refused(named):
    with pytest.raises(ProtocolError):
        codec.node_of(named)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 9,
        Entry(now=1).SerializeToString(),
        Entry(received=Envelope(check_in=CheckIn())).SerializeToString(),
        Entry(received=Envelope(sender=codec.address(CLOUD))).SerializeToString(),
        codec.encode(Received(CLOUD, Upload(vector=b"1" * 40)), 7)[:-1],
    ],
)
def test_a_damaged_entry_is_a_snapshot_error(data):
    with pytest.raises(SnapshotError):
        codec.decode(data)


def test_a_sealed_snapshot_opens():
    assert codec.open_snapshot(codec.seal_snapshot(b"state", 2**63)) == (b"state", 2**63)
    with pytest.raises(SnapshotError):
        codec.open_snapshot(b"something else")
