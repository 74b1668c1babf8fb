"""What a broker could try: forge, repeat, move, mix up. Each ends in a refusal that has a name."""

from __future__ import annotations

import random

import pytest
from delian.core.node.identity.pki.certificates import Role
from delian.core.node.net.mqtt.seal import (
    PRESENCE_BYTES_MAX,
    WINDOW,
    Credentials,
    Ephemeral,
    ReplayWindow,
    SealError,
    agree,
    channel_named,
    new_session,
    presence_in,
)
from delian.core.protocol.ports import Node, Tier
from delian.core.wire.mqtt_pb2 import PRESENCE_BIRTH, Presence, SignedPresence
from hypothesis import given
from hypothesis import strategies as st

DEVICE, OTHER, EDGE = Node(Tier.DEVICE, 5), Node(Tier.DEVICE, 6), Node(Tier.EDGE, 3)
UP = "delian/v1/farm/device/device-5/up/envelope/edge-3"
DOWN = "delian/v1/farm/device/device-5/down/envelope/edge-3"


@pytest.fixture(scope="module")
def who(farm):
    """Credentials of a node of the federation."""
    known = {}

    def make(node, material=None, **more):
        if node not in known:
            known[node] = farm.material(Role(node.tier.value), node.number)
        shown = material or known[node]
        return Credentials("farm", node, lambda: shown, **more)

    return make


def meet(lower, upper, session=7):
    """Both channels of an agreement, and the presences on the way to it."""
    home = lower.read(upper.home(session))
    mine, theirs = Ephemeral(lower.sealed), Ephemeral(upper.sealed)
    birth = lower.birth(new_session(), mine, home)
    welcome = upper.welcome(session, theirs, upper.read(birth))
    lower.read(welcome)
    parts = presence_in(birth), presence_in(welcome)
    return (
        agree(*parts, mine, lower=True, sealed=lower.sealed),
        agree(*parts, theirs, lower=False, sealed=upper.sealed),
        (birth, welcome, mine, theirs),
    )


def refused(kind, action, *arguments):
    with pytest.raises(SealError) as error:
        action(*arguments)
    assert error.value.message == kind


@pytest.fixture
def pair(who):
    lower, upper, _ = meet(who(DEVICE), who(EDGE))
    return lower, upper


def test_both_sides_come_to_the_same_keys(pair):
    lower, upper = pair
    assert lower.name == upper.name
    for body in (b"", b"check in", bytes(90_000)):
        frame = lower.seal(UP, body)
        assert channel_named(frame) == upper.name
        assert upper.open(UP, frame) == body
        assert lower.open(DOWN, upper.seal(DOWN, body)) == body


def test_the_broker_reads_nothing(pair):
    assert b"check in" not in pair[0].seal(UP, b"check in")


def test_each_birth_has_keys_of_its_own(who):
    first, second = meet(who(DEVICE), who(EDGE))[0], meet(who(DEVICE), who(EDGE))[1]
    assert first.name != second.name
    refused("stale", second.open, UP, first.seal(UP, b"x"))


@pytest.mark.parametrize(
    "topic",
    [
        DOWN,
        UP.replace("device-5", "device-6"),
        UP.replace("farm", "barn"),
        UP.replace("envelope", "part"),
        UP.replace("edge-3", "edge-4"),
    ],
)
def test_a_message_cannot_be_moved(pair, topic):
    refused("forged", pair[1].open, topic, pair[0].seal(UP, b"x"))


def test_no_bit_can_be_changed(pair):
    frame = pair[0].seal(UP, b"some body")
    for index in range(1, len(frame)):
        changed = bytearray(frame)
        changed[index] ^= 1
        with pytest.raises(SealError):
            pair[1].open(UP, bytes(changed))
    assert pair[1].open(UP, frame) == b"some body"  # the forgeries have not moved the window


def test_what_the_upper_node_says_does_not_pass_for_the_lower_one_s(pair):
    refused("forged", pair[1].open, UP, pair[1].seal(UP, b"x"))


@pytest.mark.parametrize("length", [0, 1, 16, 17, 20, 32])
def test_a_frame_that_is_cut_short_is_refused(pair, length):
    with pytest.raises(SealError):
        pair[1].open(UP, pair[0].seal(UP, b"")[:length])


def test_a_message_counts_once(pair):
    frame = pair[0].seal(UP, b"x")
    pair[1].open(UP, frame)
    refused("replayed", pair[1].open, UP, frame)


def test_messages_may_change_places_within_the_window(pair):
    frames = [pair[0].seal(UP, b"%d" % i) for i in range(WINDOW)]
    random.Random(1).shuffle(frames)
    assert len({pair[1].open(UP, frame) for frame in frames}) == WINDOW


def test_a_message_that_is_older_than_the_window_is_refused(pair):
    first = pair[0].seal(UP, b"first")
    for _ in range(WINDOW):
        pair[1].open(UP, pair[0].seal(UP, b"x"))
    refused("replayed", pair[1].open, UP, first)


@given(st.lists(st.integers(0, 3 * WINDOW), max_size=300))
def test_the_window_takes_each_counter_once(counters):
    window, seen, newest = ReplayWindow(), set(), 0
    for counter in counters:
        expected = counter > 0 and counter not in seen and counter > newest - WINDOW
        assert window.is_new(counter) == expected
        if expected:
            window.add(counter)
            seen.add(counter)
            newest = max(newest, counter)
    assert window.newest == newest


def test_a_jump_of_the_counter_costs_no_memory():
    window = ReplayWindow()
    window.add(2**63)
    assert not window.is_new(2**63) and window.is_new(2**63 - 1)


# ---------------------------------------------------------------- presences


def test_a_presence_names_who_signed_it(who):
    seen = who(EDGE).read(
        who(DEVICE).birth(1, Ephemeral(True), who(DEVICE).read(who(EDGE).home(7)))
    )
    assert seen.node == DEVICE and seen.other == EDGE and seen.presence.other_session == 7
    assert seen.identity is not None and seen.identity.common_name == "device-5"


def altered(payload, **fields):
    """A presence with other contents and the old signature."""
    signed = SignedPresence.FromString(payload)
    presence = Presence.FromString(signed.presence)
    for name, value in fields.items():
        setattr(presence, name, value)
    return SignedPresence(
        presence=presence.SerializeToString(), signature=signed.signature
    ).SerializeToString()


@pytest.mark.parametrize("fields", [{"session": 2}, {"other_session": 8}, {"key": bytes(32)}])
def test_a_presence_that_somebody_changed_is_refused(who, fields):
    birth = who(DEVICE).birth(1, Ephemeral(True), who(DEVICE).read(who(EDGE).home(7)))
    refused("forged", who(EDGE).read, altered(birth, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"version": 2},
        {"version": 0},
        {"federation": "barn"},
        {"state": 0},
        {"state": 9},
        {"key": b""},
        {"key": bytes(33)},
        {"certificate": bytes(5000)},
    ],
)
def test_a_presence_of_another_form_is_refused(who, fields):
    birth = who(DEVICE).birth(1, Ephemeral(True), who(DEVICE).read(who(EDGE).home(7)))
    refused("malformed", who(EDGE).read, altered(birth, **fields))


def test_a_presence_with_somebody_else_s_certificate_is_refused(who, farm):
    thief = who(OTHER, farm.material(Role.DEVICE, 5))
    refused("forged", who(EDGE).read, thief.home(1))


def test_an_operator_is_no_node(who, farm):
    posing = who(OTHER, farm.material(Role.OPERATOR, 6))
    refused("forged", who(EDGE).read, posing.home(1))


def test_another_ca_s_certificate_is_refused(who, make_federation, tmp_path):
    stranger = make_federation(tmp_path)
    posing = who(DEVICE, stranger.material(Role.DEVICE, 5))
    refused("certificate", who(EDGE).read, posing.home(1))


def test_a_certificate_that_has_ended_is_refused(who):
    home = who(EDGE).home(1)
    assert who(DEVICE).read(home).node == EDGE
    with pytest.raises(SealError, match="certificate"):
        who(DEVICE, clock=lambda: 4e9).read(home)


@pytest.mark.parametrize("payload", [b"", b"\xff" * 40, bytes(PRESENCE_BYTES_MAX + 1)])
def test_garbage_is_no_presence(who, payload):
    with pytest.raises(SealError):
        who(EDGE).read(payload)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_presence_or_refused(payload):
    with pytest.raises(SealError):
        Credentials("farm", EDGE, None).read(payload)


def test_a_birth_that_is_repeated_gives_nobody_old_keys(who):
    """The welcome brings a key of its own, so the old frames are worth nothing."""
    lower, upper, (birth, _, _, _) = meet(who(DEVICE), who(EDGE))
    frame = lower.seal(UP, b"x")
    assert upper.open(UP, frame) == b"x"
    again = Ephemeral(True)
    welcome = who(EDGE).welcome(7, again, who(EDGE).read(birth))
    new = agree(presence_in(birth), presence_in(welcome), again, lower=False, sealed=True)
    refused("stale", new.open, UP, frame)


def test_a_key_of_small_order_is_refused(who):
    mine = Ephemeral(True)
    birth = Presence(state=PRESENCE_BIRTH, key=bytes(32)).SerializeToString()
    with pytest.raises(SealError, match="forged"):
        agree(birth, b"", mine, lower=False, sealed=True)


def test_without_certificates_sessions_are_told_apart_all_the_same():
    lower, upper = Credentials("farm", DEVICE, None), Credentials("farm", EDGE, None)
    mine, theirs, _ = meet(lower, upper)
    frame = mine.seal(UP, b"plain")
    assert frame.endswith(b"plain") and theirs.open(UP, frame) == b"plain"
    refused("replayed", theirs.open, UP, frame)
    refused("stale", meet(lower, upper)[1].open, UP, frame)
