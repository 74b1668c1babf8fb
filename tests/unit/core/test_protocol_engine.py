"""The engine that runs a protocol's table, its pauses, and states as bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import pytest
from delian.core.protocol import snapshot
from delian.core.protocol.machine import IGNORE, Backoff, Machine, Output, Part, index, row
from delian.core.protocol.ports import (
    Node,
    ProtocolError,
    Record,
    SetTimer,
    Tier,
    TimerFired,
    Vector,
    wire_size,
)
from delian.core.protocol.snapshot import SnapshotError
from delian.core.wire.round_pb2 import Task, Upload
from hypothesis import given
from hypothesis import strategies as st


class Light(StrEnum):
    RED = "red"
    GREEN = "green"


class Sign(StrEnum):
    TICK = "tick"
    TWICE = "twice"
    NOISE = "noise"


@dataclass(slots=True)
class LightState:
    phase: Light = Light.RED
    ticks: int = 0


class Lamp(Part[LightState]):
    def tick(self, _):
        self.state.ticks += 1
        self.set_timer("tick", self.now + 1)

    def twice(self, _):
        self.tick(None)
        self.post(Sign.TICK)


class LightMachine(Machine[LightState]):
    rows = index(
        (
            row(Light.RED, Sign.TICK, Lamp.tick, Light.GREEN, "go"),
            row(Light.GREEN, Sign.TICK, Lamp.tick, Light.RED, "stop"),
            row(Light.RED, Sign.TWICE, Lamp.twice, Light.GREEN, "go and stop"),
            row(tuple(Light), Sign.NOISE, IGNORE, None, "count it"),
        )
    )
    node = Node(Tier.EDGE, 1)

    def __init__(self, state, timers=""):
        out = Output(timers)
        super().__init__(state, out, Lamp(state, out))

    def read(self, event):
        return Sign(event.name), None


def test_a_row_does_its_action_and_leads_to_its_phase():
    machine = LightMachine(LightState())
    assert machine.handle(TimerFired("tick"), 5) == [SetTimer("tick", 6)]
    assert machine.state == LightState(Light.GREEN, 1)


def test_a_posted_trigger_is_looked_up_in_the_new_phase():
    machine = LightMachine(LightState())
    assert len(machine.handle(TimerFired("twice"), 0)) == 2
    assert machine.state == LightState(Light.RED, 2)


def test_what_is_to_be_ignored_is_counted():
    machine = LightMachine(LightState())
    assert machine.handle(TimerFired("noise"), 0) == [
        Record("ignored", {"what": "timer noise", "trigger": "noise"})
    ]


def test_a_row_is_named_after_its_action():
    rows = LightMachine.rows
    assert rows[Light.RED, Sign.TWICE].name == "twice"
    assert rows[Light.RED, Sign.NOISE].name == "ignore"


def test_the_names_of_timers_may_have_a_prefix():
    machine = LightMachine(LightState(), "lamp/7/")
    assert machine.handle(TimerFired("tick"), 5) == [SetTimer("lamp/7/tick", 6)]


def test_only_an_event_with_an_action_or_a_new_phase_changes_the_state():
    machine = LightMachine(LightState())
    machine.handle(TimerFired("noise"), 0)
    assert not machine.changed
    machine.handle(TimerFired("tick"), 0)
    assert machine.changed and not machine.passed_on


def test_what_is_not_in_the_table_is_a_protocol_error_and_changes_nothing():
    machine = LightMachine(LightState(Light.GREEN, 3))
    with pytest.raises(ProtocolError, match="edge 1: twice is not allowed while green"):
        machine.handle(TimerFired("twice"), 0)
    assert machine.state == LightState(Light.GREEN, 3)
    assert machine.handle(TimerFired("tick"), 0) == [SetTimer("tick", 1)]


def test_no_two_rows_may_claim_one_place():
    with pytest.raises(AssertionError, match="two rows"):
        index((*LightMachine.rows.values(), row(Light.RED, Sign.TICK, Lamp.tick, None, "again")))


@given(st.integers(1, 200), st.integers(0, 10**9))
def test_pauses_grow_to_their_limit_and_allow_for_the_size(tries, size):
    backoff = Backoff(first_ns=10, max_ns=1000, bytes_per_second_min=1000)
    pause = backoff.pause(tries)
    assert 10 <= pause <= 1000
    assert backoff.pause(tries + 1) >= pause
    assert backoff.pause(tries, size) == pause + size * 10**6


@given(st.integers(0, 40_000), st.integers(1, 2**60))
def test_the_size_of_a_message_is_known_without_encoding_it(length, device):
    head = Upload(run=1, round=2, attempt=3, device=device)
    whole = Upload(run=1, round=2, attempt=3, device=device, vector=bytes(length))
    assert wire_size(head, length) == whole.ByteSize()


@dataclass(slots=True)
class Everything:
    number: int
    share: float
    text: str
    light: Light
    pair: tuple[int, str]
    blobs: list[bytes]
    table: dict[int, list[int]]
    vector: Vector
    task: Task | None = None
    nothing: LightState | None = None
    inner: LightState = field(default_factory=LightState)


def everything():
    return Everything(
        2**70,
        0.1,
        "ü",
        Light.GREEN,
        (1, "x"),
        [b"\0\xff", b""],
        {7: [1], 3: []},
        np.array([1, 2**32 - 1], np.uint32),
        Task(run=3, rng_key=b"12345678"),
    )


def test_a_state_survives_its_snapshot():
    state = everything()
    data = snapshot.dump(state)
    again = snapshot.load(Everything, data)
    assert np.array_equal(again.vector, state.vector) and again.vector.dtype == np.uint32
    assert list(again.table) == [7, 3], "a dict's order may mean something"
    again.vector = state.vector
    assert again == state
    assert snapshot.dump(again) == data


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d[:-1],
        lambda d: b"",
        lambda d: b"\xff" + d,
        lambda d: d.replace(b'"share":0.1', b'"share":"x"'),
        lambda d: d.replace(b'"number"', b'"nomber"'),
        lambda d: d.replace(b'"green"', b'"blue"'),
        lambda d: b"[]",
    ],
)
def test_a_damaged_snapshot_is_refused(damage):
    with pytest.raises(SnapshotError, match="cannot be read"):
        snapshot.load(Everything, damage(snapshot.dump(everything())))
