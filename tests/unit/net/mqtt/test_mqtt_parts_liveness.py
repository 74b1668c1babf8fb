"""A transfer in parts cannot wait for ever: all states of small transfers, each taken to its end.

A state is the sender, the receiver and what is under way between them. From each state, every step
is taken that the two can take or the channel can cause: a part is sent, arrives or is lost; a Want
is said, arrives (with news of a slow link or of a fast one) or is lost. From every state so found
the channel then delivers all, and the transfer must end: a state that comes again on this way is a
transfer that waits for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from delian.core.node.net.mqtt import mqtt_parts
from delian.core.node.net.mqtt.mqtt_parts import PART_BYTES_MIN as PART
from delian.core.node.net.mqtt.mqtt_parts import REORDER, SLOW_S, Receiving, Sending

Want = tuple[int, bytes]  # Want.offset, Want.have


class State(NamedTuple):
    """offset, have, window, told: of the sender. sent: (position, turn), the oldest first, turns
    counted back from the sender's. here, early: what the receiver has. parts, wants: under way.
    """

    offset: int
    have: frozenset[int]
    window: int
    told: Want | None
    sent: tuple[tuple[int, int], ...]
    here: int
    early: frozenset[int]
    parts: tuple[int, ...] = ()
    wants: tuple[Want, ...] = ()


def sender_of(state: State, size: int) -> Sending:
    sender = Sending(size)
    sender.part_bytes, sender.offset, sender.window = PART, state.offset, state.window
    sender._have, sender._told = set(state.have), state.told
    sender._sent = {position: (turn, 0.0) for position, turn in state.sent}
    return sender


def receiver_of(state: State, size: int) -> Receiving:
    receiver = Receiving(size, state.here, PART)
    receiver._early = dict.fromkeys(state.early, bytes(PART))
    return receiver


def with_sender(state: State, sender: Sending) -> State:
    """Turns matter by their order, and by whether they are more than REORDER apart."""
    sent, turn, before = [], 0, sender._turn
    for position, (its, _) in sorted(sender._sent.items(), key=lambda s: -s[1][0]):
        turn -= min(before - its, REORDER + 1)
        before = its
        sent.append((position, turn))
    return state._replace(
        offset=sender.offset,
        have=frozenset(sender._have),
        window=sender.window,
        told=sender._told,
        sent=tuple(reversed(sent)),
    )


def sends(state: State, size: int) -> State | None:
    sender = sender_of(state, size)
    place = sender.next_part(0.0)
    if place is None:
        return None
    return with_sender(state._replace(parts=(*state.parts, place[0])), sender)


def arrives(state: State, size: int) -> State:
    """The next part."""
    receiver = receiver_of(state, size)
    receiver.take(state.parts[0], bytes(PART))
    return state._replace(
        here=receiver.offset, early=frozenset(receiver._early), parts=state.parts[1:]
    )


def says(state: State, size: int) -> State:
    """The receiver says what it has."""
    return state._replace(wants=(*state.wants, (state.here, receiver_of(state, size).have())))


def hears(state: State, size: int, slow: bool) -> State:
    """The next Want reaches the sender."""
    sender = sender_of(state, size)
    sender.take_want(*state.wants[0], PART, 2 * SLOW_S if slow else 0.0)
    return with_sender(state._replace(wants=state.wants[1:]), sender)


def steps(state: State, size: int, parts_max: int, wants_max: int) -> Iterator[State]:
    """parts_max, wants_max: under way at once. What is beyond them is taken to be lost."""
    if (sent := sends(state, size)) is not None:
        yield sent if len(sent.parts) <= parts_max else sent._replace(parts=state.parts)
    if state.parts:
        yield arrives(state, size)
        yield state._replace(parts=state.parts[1:])
    if len(state.wants) < wants_max:
        yield says(state, size)
    if state.wants:
        yield hears(state, size, slow=False)
        yield hears(state, size, slow=True)
        yield state._replace(wants=state.wants[1:])


def delivered(state: State, size: int) -> State:
    """What a channel that loses nothing makes of a state, until the receiver's next Want is in."""
    while state.wants:
        state = hears(state, size, slow=False)
    while (sent := sends(state, size)) is not None:
        state = sent
    while state.parts:
        state = arrives(state, size)
    return hears(says(state, size), size, slow=False)


def explored(size: int, parts_max: int, wants_max: int) -> int:
    """How many states there are. AssertionError for one from which the transfer does not end."""
    begin = State(0, frozenset(), mqtt_parts.WINDOW_START, None, (), 0, frozenset())
    begin = hears(says(begin, size), size, slow=False)
    found, todo = {begin}, [begin]
    while todo:
        for state in steps(todo.pop(), size, parts_max, wants_max):
            if state not in found:
                found.add(state)
                todo.append(state)
    ends: set[State] = set()
    for state in found:
        way: dict[State, None] = {}
        while state.offset < size and state not in ends:
            assert state not in way, f"waits for ever: {state}"
            way[state] = None
            state = delivered(state, size)
        ends.update(way)
    return len(found)


@pytest.mark.parametrize(
    ("parts", "parts_max", "wants_max"),
    [(1, 2, 2), (2, 2, 2), (3, 2, 1), pytest.param(4, 1, 1, marks=pytest.mark.slow)],
)
def test_a_transfer_ends_from_every_state_once_the_channel_delivers(
    monkeypatch, parts, parts_max, wants_max
):
    monkeypatch.setattr(mqtt_parts, "WINDOW", 4)  # few states: it grows no further
    assert explored(parts * PART, parts_max, wants_max) > 5**parts
