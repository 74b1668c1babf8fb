"""Parts over a channel that loses, repeats and delays: all of it arrives, and little twice."""

from __future__ import annotations

import os
import random

import pytest
from delian.core.node.net.mqtt.mqtt_parts import (
    PART_BYTES,
    PART_BYTES_MIN,
    WINDOW,
    WINDOW_MIN,
    Receiving,
    Sending,
)
from delian.core.protocol.ports import ProtocolError
from hypothesis import example, given, settings
from hypothesis import strategies as st

PART = PART_BYTES_MIN


def carry(content, rng, loss=0.0, repeat=0.0, delay=0, offset=0):
    """Moves `content` and gives both sides. A tick is a message; a side that waits in vain for 50
    ticks says again what it has, as the timers do.
    """
    sender, receiver = Sending(len(content)), Receiving(len(content), offset, PART)
    got = bytearray(content[:offset])
    now, waited, way = 0.0, 0, []
    wants = [(receiver.offset, receiver.have())]
    while not sender.done:
        now += 0.01
        assert now < 2_000, "it does not end"
        moved = False
        for want in wants:
            if rng.random() >= loss:
                sender.take_want(*want, PART, now)
                moved = True
        wants = []
        while (place := sender.next_part(now)) is not None:
            at, length = place
            for _ in range(1 + (rng.random() < repeat)):
                if rng.random() >= loss:
                    way.append((rng.randrange(delay + 1) + now, at, content[at : at + length]))
        due = sorted((p for p in way if p[0] <= now), key=lambda p: p[0])[:4]
        for part in due:
            way.remove(part)
            for chunk in receiver.take(part[1], part[2]):
                got += chunk
            assert len(receiver._early) <= WINDOW
        waited = 0 if due or moved else waited + 1
        if due or waited > 50:
            wants, waited = [(receiver.offset, receiver.have())], 0
    assert receiver.done and bytes(got) == content
    return sender, receiver


def test_over_a_good_channel_each_part_travels_once():
    content = os.urandom(100 * PART + 7)
    sender, receiver = carry(content, random.Random(0))
    assert sender.resent == receiver.again == 0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 80 * PART),
    loss=st.sampled_from([0.0, 0.05, 0.3]),
    repeat=st.sampled_from([0.0, 0.2]),
    offset=st.integers(0, 3 * PART),
)
@example(seed=7311, size=9673, loss=0.3, repeat=0.0, offset=0)  # more under way than the window
def test_over_a_bad_channel_everything_arrives(seed, size, loss, repeat, offset):
    rng = random.Random(seed)
    carry(rng.randbytes(size), rng, loss, repeat, offset=min(offset, size))


def test_a_transfer_goes_on_where_it_ended():
    content = os.urandom(40 * PART)
    sender, _ = carry(content, random.Random(1), offset=30 * PART)
    assert sender._turn == 10


def test_no_more_than_the_window_is_under_way():
    sender = Sending(1000 * PART)
    sender.take_want(0, b"", PART, 0.0)
    sent = 0
    while sender.next_part(0.0) is not None:
        sent += 1
    assert sent == sender.window <= WINDOW


def test_the_window_shrinks_on_a_link_with_a_queue():
    sender, offset, now = Sending(1000 * PART), 0, 0.0
    for _ in range(20):
        sender.take_want(offset, b"", PART, now)
        while sender.next_part(now) is not None:
            offset += PART
        now += 5.0
    assert sender.window == WINDOW_MIN and sender.resent == 0


def test_a_receiver_that_waits_in_vain_gets_one_part_again_not_all():
    sender = Sending(100 * PART)
    sender.take_want(0, b"", PART, 0.0)
    while sender.next_part(0.0) is not None:
        pass
    sender.take_want(0, b"", PART, 3.0)
    assert sender.next_part(3.0) == (0, PART) and sender.next_part(3.0) is None


def test_a_part_that_others_overtook_is_sent_again():
    sender = Sending(10 * PART)
    sender.take_want(0, b"", PART, 0.0)
    sender.window = WINDOW
    while sender.next_part(0.0) is not None:
        pass
    sender.take_want(PART, bytes([0b11111110]), PART, 0.1)  # the second one is missing
    assert sender.next_part(0.2) == (PART, PART)


def test_a_receiver_that_has_lost_its_memory_gets_all_again():
    sender = Sending(4 * PART)
    sender.take_want(2 * PART, b"", PART, 0.0)
    sender.forget_sent()
    sender.take_want(0, b"", PART, 1.0)
    assert sender.next_part(1.0) == (0, PART)


@pytest.mark.parametrize(
    ("offset", "have", "part_bytes"),
    [
        (0, b"", 0),
        (0, b"", PART_BYTES_MIN - 1),
        (0, b"", PART_BYTES + 1),
        (10 * PART + 1, b"", PART),
        (0, bytes(5000), PART),
    ],
)
def test_a_want_that_cannot_be_is_refused(offset, have, part_bytes):
    with pytest.raises(ProtocolError):
        Sending(10 * PART).take_want(offset, have, part_bytes, 0.0)


@pytest.mark.parametrize(
    ("offset", "length"),
    [(1, PART), (0, PART - 1), (0, PART + 1), (WINDOW * PART, PART), (99 * PART, PART), (200, 1)],
)
def test_a_part_that_was_not_asked_for_is_refused(offset, length):
    receiver = Receiving(99 * PART, 0, PART)
    with pytest.raises(ProtocolError):
        receiver.take(offset, bytes(length))
    assert receiver.offset == 0 and not receiver._early
