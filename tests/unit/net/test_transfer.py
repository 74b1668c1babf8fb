"""Offers, spools and the outbox, without a network."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from delian.core.node.net.message_limits import (
    ASKED_PER_PEER,
    INLINE_MAX,
    PART_BYTES,
    PART_BYTES_MAX,
    PART_REST_BYTES,
    TRANSFER_STALLED_S,
)
from delian.core.node.net.transfer import (
    Asked,
    Intake,
    Outbox,
    Piece,
    Refused,
    Spool,
    part_bytes,
    part_length,
    read_part,
)
from delian.core.node.storage.memory_storage import MemoryBlobs
from delian.core.protocol.ports import BLOB_BYTES_MAX, Node, ProtocolError, Tier
from delian.core.wire.link_pb2 import TRANSFER_BLOB, TRANSFER_ENVELOPE, Offer, Part
from delian.core.wire.round_pb2 import Upload
from google.protobuf.message import DecodeError

ANN, BOB = Node(Tier.DEVICE, 1), Node(Tier.DEVICE, 2)
MIB = 2**20


def offer(number: int, size: int, kind: int = TRANSFER_ENVELOPE) -> Offer:
    return Offer(id=bytes([number] * 32), size=size, kind=kind)


def part(id: bytes, offset: int, content: bytes) -> Piece:
    return read_part(part_bytes(id, offset, content))


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 300_000])
def test_a_part_is_encoded_as_protobuf_does_it(size):
    whole = Part(id=b"i" * 32, offset=7, content=b"c" * size)
    assert part_bytes(whole.id, 7, whole.content) == whole.SerializeToString()


def test_parts_make_the_whole_in_order():
    content = bytes(range(256)) * 2000
    spool = Spool(hashlib.sha256(content).digest(), len(content), 0.0)
    at = 0
    for length in (100_000, 1, 5_000, 200_000, len(content)):
        assert not spool.intact()
        length = min(length, len(content) - at)
        spool.write(part(spool.id, at, content[at : at + length]), 1.0)
        at += length
    assert spool.intact() and spool.touched == 1.0
    assert spool.take() == content and spool.offset == 0


@pytest.mark.parametrize(
    ("id", "offset", "content"),
    [
        (bytes(32), 0, b"x"),  # of another transfer
        (b"i" * 32, 1, b"x"),  # beyond a gap
        (b"i" * 32, 0, b""),
        (b"i" * 32, 0, bytes(1001)),  # more than was offered
        (b"i" * 32, 2**63, b"x"),
    ],
)
def test_a_part_that_does_not_belong_changes_nothing(id, offset, content):
    spool = Spool(b"i" * 32, 1000, 0.0)
    with pytest.raises(ProtocolError):
        spool.write(part(id, offset, content), 1.0)
    assert spool.offset == 0 and spool.touched == 0.0


def test_a_part_may_not_be_larger_than_a_part():
    spool = Spool(b"i" * 32, 2 * PART_BYTES, 0.0)
    with pytest.raises(ProtocolError):
        spool.write(part(b"i" * 32, 0, bytes(PART_BYTES_MAX + 1)), 0.0)


@pytest.mark.parametrize("size", [1, 1000, PART_BYTES, PART_BYTES_MAX, PART_BYTES_MAX + 1, 5 << 20])
def test_parts_cover_the_whole_and_a_little_rest_goes_with_the_last(size):
    lengths, at = [], 0
    while at < size:
        lengths.append(part_length(at, size))
        at += lengths[-1]
    assert sum(lengths) == size and all(n == PART_BYTES for n in lengths[:-1])
    assert PART_REST_BYTES < lengths[-1] <= PART_BYTES_MAX or len(lengths) == 1


@pytest.mark.parametrize("offset", [0, 1, 127, 128, 2**31, 2**56 - 1, 2**56, 2**64 - 1])
@pytest.mark.parametrize("content", [b"", b"x", b"y" * 200, b"z" * 70_000])
def test_a_part_is_read_as_protobuf_reads_it(offset, content):
    data = part_bytes(b"i" * 32, offset, content)
    found = read_part(data)
    assert (found.id, found.offset, bytes(found.content)) == (b"i" * 32, offset, content)
    short = Part(id=b"short", offset=offset, content=content)
    found = read_part(short.SerializeToString())
    assert (found.id, found.offset, bytes(found.content)) == (b"short", offset, content)


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x20" + b"i" * 32 + b"\x1a",
        b"\x0a\x20" + b"i" * 32 + b"\x1a\x05abc",
        b"\x0a\x20" + b"i" * 32 + b"\x10" + b"\xff" * 11,
        b"\x0a\x20" + b"i" * 31,
        b"\xff" * 50,
    ],
)
def test_what_is_no_part_is_refused(data):
    with pytest.raises(DecodeError):
        read_part(data)


def test_fields_of_a_part_may_come_in_any_order_and_twice():
    whole = part_bytes(b"i" * 32, 7, b"content")
    again = b"\x1a\x03new" + whole + b"\x10\x09" + b"\x78\x01"
    part = Part.FromString(again)
    found = read_part(again)
    assert (found.id, found.offset, found.content) == (part.id, part.offset, part.content)
    assert (part.offset, part.content) == (9, b"content")


# ---------------------------------------------------------------- offers


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (Offer(id=b"short", size=10, kind=TRANSFER_ENVELOPE), "malformed offer"),
        (offer(1, 0), "malformed offer"),
        (offer(1, 10, 0), "malformed offer"),
        (offer(1, 10, 9), "malformed offer"),
        (offer(1, 10, TRANSFER_BLOB), "malformed offer"),
        (offer(1, 1001), "oversized offer"),
        (offer(1, 2**64 - 1), "oversized offer"),
    ],
)
def test_an_offer_is_refused_before_anything_is_allocated(said, kind):
    intake = Intake()
    with pytest.raises(Refused) as caught:
        intake.offer(ANN, said, 1000, 0.0)
    assert caught.value.kind == kind
    assert len(intake) == 0 and intake.bytes_held == 0


def test_an_offer_that_comes_again_goes_on_with_its_spool():
    intake = Intake()
    spool = intake.offer(ANN, offer(1, 100), 100, 0.0)
    spool.write(part(spool.id, 0, b"x" * 60), 0.0)
    assert intake.offer(ANN, offer(1, 100), 100, 5.0).offset == 60
    with pytest.raises(Refused):
        intake.offer(ANN, offer(1, 99), 100, 5.0)
    # The same name from somebody else is another transfer.
    assert intake.offer(BOB, offer(1, 100), 100, 5.0).offset == 0
    assert intake.get(BOB, spool.id) is not spool
    intake.drop(ANN, spool)
    intake.drop(ANN, spool)
    assert intake.get(ANN, spool.id) is None and len(intake) == 1 and intake.bytes_held == 100


def test_one_message_always_fits_whatever_a_peer_may_hold():
    intake = Intake(bytes_per_peer=10, bytes_max=20)
    assert intake.offer(ANN, offer(1, 1000), 1000, 0.0)


def test_a_peer_has_its_share_of_the_memory_and_its_oldest_idle_transfer_makes_room():
    intake = Intake(transfers_per_peer=3, bytes_per_peer=100)
    for number in (1, 2, 3):
        intake.offer(ANN, offer(number, 40 if number < 3 else 20), 100, float(number))
    intake.offer(ANN, offer(4, 20), 100, 4.0)
    assert intake.get(ANN, bytes([1] * 32)) is None
    assert intake.bytes_held == 80
    for number in (2, 3, 4):
        intake.get(ANN, bytes([number] * 32)).writer = object()
    with pytest.raises(Refused) as caught:
        intake.offer(ANN, offer(5, 20), 100, 5.0)
    assert caught.value.kind == "too many offers"
    assert intake.offer(BOB, offer(5, 20), 100, 5.0)


def test_all_peers_share_what_there_is_and_what_stands_still_makes_room():
    intake = Intake(bytes_max=100)
    stalled = intake.offer(ANN, offer(1, 60), 100, 0.0)
    with pytest.raises(Refused):
        intake.offer(BOB, offer(2, 60), 100, TRANSFER_STALLED_S - 1)
    assert intake.offer(BOB, offer(2, 60), 100, TRANSFER_STALLED_S + 1)
    assert intake.get(ANN, stalled.id) is None and intake.bytes_held == 60


def test_what_makes_no_headway_is_forgotten():
    intake = Intake(idle_s=100.0)
    slow = intake.offer(ANN, offer(1, 60), 100, 0.0)
    intake.offer(ANN, offer(2, 60), 100, 0.0)
    slow.write(part(slow.id, 0, b"x"), 50.0)
    assert intake.expire(99.0) == []
    intake.offer(ANN, offer(2, 60), 100, 99.0)  # to offer again is no headway
    assert intake.expire(101.0) == [ANN]
    assert intake.get(ANN, slow.id) is slow
    assert intake.expire(151.0) == [ANN] and intake.bytes_held == 0


def test_only_blobs_that_were_asked_for_are_taken():
    asked = Asked()
    blob = offer(1, 10, TRANSFER_BLOB)

    def kind_of_refusal(said: Offer, node: Node = ANN) -> str:
        with pytest.raises(Refused) as caught:
            asked.check(node, said)
        return caught.value.kind

    assert kind_of_refusal(blob) == "offer of a blob that was not requested"
    asked.add(ANN, blob.id)
    asked.check(ANN, blob)
    assert kind_of_refusal(blob, BOB) == "offer of a blob that was not requested"
    assert kind_of_refusal(offer(1, BLOB_BYTES_MAX + 1, TRANSFER_BLOB)) == "oversized offer"
    assert kind_of_refusal(offer(1, 10)) == "malformed offer"
    asked.done(ANN, blob.id)
    assert kind_of_refusal(blob) == "offer of a blob that was not requested"
    asked.add(ANN, blob.id)
    for number in range(ASKED_PER_PEER):
        asked.add(ANN, number.to_bytes(32))
    assert kind_of_refusal(blob) == "offer of a blob that was not requested"


# ---------------------------------------------------------------- the outbox


def large(device: int = 1, size: int = INLINE_MAX + 1) -> tuple[Upload, bytes]:
    message = Upload(device=device, vector=bytes(size))
    return message, message.SerializeToString()


def test_a_message_that_is_repeated_waits_once():
    outbox = Outbox()
    message, content = large()
    first = outbox.envelope(ANN, BOB, message, content, 0.0)
    assert outbox.envelope(ANN, BOB, message, content, 1.0) is first
    equal, _ = large()
    assert outbox.envelope(ANN, BOB, equal, content, 2.0) is first and first.touched == 2.0
    assert outbox.of(BOB) == [first] and outbox.bytes_held == len(content)
    assert outbox.get(BOB, first.id) is first and outbox.get(ANN, first.id) is None
    outbox.drop(first)
    outbox.drop(first)
    assert outbox.bytes_held == 0 and outbox.of(BOB) == []


def test_the_outbox_has_room_for_so_much():
    outbox = Outbox(per_peer=2, bytes_per_peer=200_000, bytes_max=300_000)

    def put(device: int, to: Node, size: int):
        return outbox.envelope(ANN, to, *large(device, size), 0.0)

    assert put(1, BOB, 250_000)  # one always fits
    assert put(2, BOB, 70_000) is None
    assert put(3, ANN, 100_000) is None
    outbox.clear()
    assert put(1, BOB, 70_000) and put(2, BOB, 70_000)
    assert put(3, BOB, 70_000) is None


def test_a_blob_is_pinned_while_it_is_offered():
    async def story():
        outbox, blobs = Outbox(idle_s=10.0), MemoryBlobs()
        ref = await blobs.put(b"x" * 100)
        out = outbox.blob(ANN, BOB, ref.digest, ref.size, blobs, 0.0)
        assert outbox.blob(ANN, BOB, ref.digest, ref.size, blobs, 5.0) is out
        await blobs.drop(ref.digest)
        assert await out.read(90) == b"x" * 10
        out.users = 1
        assert outbox.expire(100.0) == []
        out.users = 0
        assert outbox.expire(14.0) == []
        assert outbox.expire(16.0) == [out]
        await blobs.drop(ref.digest)
        assert await blobs.digests() == ()

    asyncio.run(story())
