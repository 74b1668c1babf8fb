"""An edge that trains a part of the model with its devices: when that begins and ends, and that no
half of an update is ever in a sum.
"""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.protocol.ports import (
    CLOUD,
    BlobStored,
    Ordered,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    Received,
    Record,
    RunProgram,
    Send,
    Started,
)
from delian.core.wire.journal_pb2 import SplitTrained
from delian.core.wire.round_pb2 import (
    PROGRAM_FAILED,
    REFUSED,
    EdgeSum,
    EdgeSumAck,
    Flush,
    RoundClosed,
    UploadAck,
)
from delian.edge.protocol.edge_state import EdgePolicy, EdgeState
from delian.edge.protocol.machine import EdgeMachine, restore
from support import edge_bench as bench

NAME, OTHER = b"n" * 16, b"o" * 16
PART = np.array([5, 0, 7, 0], np.uint32)
ROUND = {"run": 1, "round": 1, "attempt": 1}


class Life:
    """An edge without an identity, and what it has done."""

    def __init__(self, splits=True, split=True):
        self.machine = EdgeMachine(EdgeState(4, incarnation=1), EdgePolicy(splits=splits))
        self.now, self.effects = 0, []
        self.give(Started(()))
        for number in (1, 2):
            self.give(Received(bench.device(number), bench.check_in(number)))
        task = bench.edge_task([1, 2], signed=False, split=split)
        self.give(Received(CLOUD, task))

    def give(self, event):
        self.now += 1
        made = self.machine.handle(event, self.now)
        self.effects += made
        return made

    def stored(self):
        return [x for d in (bench.BUNDLE, bench.WEIGHTS) for x in self.give(BlobStored(d, True))]

    def upload(self, number, split=NAME):
        """Of a device that has trained with the edge before, where it names that."""
        if split:
            self.trained(number, split)
        return self.give(Received(bench.device(number), bench.upload(number, split=split)))

    def trained(self, number, name=NAME, **at):
        return self.give(Ordered(SplitTrained(**{**ROUND, **at}, device=number, name=name)))

    def claim(self, number, split=NAME):
        """An upload alone."""
        return self.give(Received(bench.device(number), bench.upload(number, split=split)))

    def finish(self, outcome):
        (ticket,) = [e.ticket for e in programs(self.effects) if e.program == "split_end"][-1:]
        return self.give(ProgramFinished(ticket, outcome))


def programs(effects):
    return [e for e in effects if isinstance(e, RunProgram)]


def sums(effects):
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, EdgeSum)]


def test_it_begins_once_when_bundle_and_weights_are_here():
    life = Life()
    assert not programs(life.effects)
    begun = programs(life.stored())
    assert [e.program for e in begun] == ["split_begin"]
    assert begun[0].blobs == (bench.BUNDLE, bench.WEIGHTS)
    assert begun[0].arguments == ("1.1.1",)
    assert begun[0].task.split


def test_it_does_not_begin_where_operator_or_run_do_not_want_it():
    for life in (Life(splits=False), Life(split=False)):
        assert not programs(life.stored())
        life.claim(1)
        life.upload(2, split=b"")
        (found,) = sums(life.effects)
        assert found.devices == [2] and [f.reason for f in found.failures] == [PROGRAM_FAILED]


def test_the_sum_waits_for_the_edges_parts_and_has_them():
    life = Life()
    life.stored()
    life.upload(1)
    made = life.upload(2, split=b"")
    (end,) = programs(made)
    assert end.program == "split_end" and end.arguments == ("1.1.1", [(1, NAME)])
    assert not sums(life.effects)
    (found,) = sums(life.finish(Outcome(PART)))
    expected = bench.vector(1) + bench.vector(2) + PART
    assert found.sum == expected.tobytes() and found.devices == [1, 2]
    assert not sums(life.give(ProgramFinished(end.ticket, Outcome(PART)))), "it is added once"
    life.give(Received(CLOUD, EdgeSumAck(**ROUND, part=0)))
    assert "1.1.1" not in life.machine.state.collections


def test_without_the_edges_parts_no_device_is_in_the_sum():
    for outcome in (ProgramStopped(PROGRAM_FAILED), Outcome(None), Outcome(PART[:2])):
        life = Life()
        life.stored()
        life.upload(1)
        life.upload(2, split=b"")
        (found,) = sums(life.finish(outcome))
        assert not found.sum and not found.devices
        assert [f.device for f in found.failures] == [1, 2]


def test_a_round_in_which_nobody_trained_with_it_is_ended_and_sent_at_once():
    life = Life()
    life.stored()
    life.upload(1, split=b"")
    (found,) = sums(life.upload(2, split=b""))
    assert found.devices == [1, 2]
    made = life.give(Received(CLOUD, EdgeSumAck(**ROUND, part=0)))
    (end,) = programs(made)
    assert end.program == "split_end" and end.arguments == ("1.1.1", [])


def test_a_round_that_is_closed_ends_what_has_begun():
    life = Life()
    life.stored()
    life.upload(1)
    made = life.give(Received(CLOUD, RoundClosed(**ROUND)))
    (end,) = programs(made)
    assert end.arguments == ("1.1.1", []) and not sums(life.effects)


def test_an_edge_that_starts_again_begins_again_and_asks_for_what_it_has_lost():
    life = Life()
    life.stored()
    life.upload(1)
    life.machine = EdgeMachine(restore(life.machine.snapshot()), EdgePolicy(splits=True))
    begun = programs(life.give(Started((bench.BUNDLE, bench.WEIGHTS))))
    assert [e.program for e in begun] == ["split_begin"]
    life.upload(2)
    (found,) = sums(life.finish(ProgramStopped(PROGRAM_FAILED)))
    assert not found.devices


def test_it_waits_for_its_parts_over_a_start_too():
    life = Life()
    life.stored()
    life.upload(1)
    life.upload(2)
    life.machine = EdgeMachine(restore(life.machine.snapshot()), EdgePolicy(splits=True))
    (end,) = programs(life.give(Started((bench.BUNDLE, bench.WEIGHTS))))
    assert end.program == "split_end" and end.arguments[1] == [(1, NAME), (2, NAME)]
    (found,) = sums(life.finish(Outcome(PART)))
    assert found.devices == [1, 2]


def test_a_part_of_a_sum_is_never_sent_without_the_edges():
    life = Life()
    life.stored()
    life.upload(1)
    assert not sums(life.give(Received(CLOUD, Flush(**ROUND, part=0, go_on=True))))
    made = life.give(Received(CLOUD, Flush(**ROUND, part=0)))
    assert not sums(made) and programs(made)[0].arguments[1] == [(1, NAME)]


@pytest.mark.parametrize("name", [b"x" * 16, OTHER, b"short", b"long" * 9])
def test_a_name_of_no_training_is_refused_and_costs_its_sender_alone(name):
    life = Life()
    life.stored()
    life.trained(2, OTHER)
    made = life.claim(1, split=name)
    (answer,) = [e.message for e in made if isinstance(e, Send)]
    assert isinstance(answer, UploadAck) and answer.status == REFUSED
    assert "split_unknown" in [e.kind for e in made if isinstance(e, Record)]
    assert programs(life.claim(2, OTHER))[0].arguments[1] == [(2, OTHER)]
    (found,) = sums(life.finish(Outcome(PART)))
    assert found.devices == [2] and found.sum == (bench.vector(2) + PART).tobytes()
    assert [f.device for f in found.failures] == [1]


def test_a_training_of_another_attempt_or_a_device_without_the_task_counts_nowhere():
    life = Life()
    life.stored()
    for number, at in ((1, {"attempt": 2}), (1, {"run": 2}), (3, {})):
        made = life.trained(number, **at)
        assert not life.machine.state.collections["1.1.1"].trained and not programs(made)
    life.claim(1)
    life.claim(2, split=b"")
    (found,) = sums(life.effects)
    assert found.devices == [2]


def test_an_edge_that_starts_again_refuses_trainings_of_its_former_life_alone():
    life = Life()
    life.stored()
    life.trained(1)
    life.machine = EdgeMachine(restore(life.machine.snapshot()), EdgePolicy(splits=True))
    life.give(Started((bench.BUNDLE, bench.WEIGHTS)))
    life.claim(1)
    life.upload(2, split=b"t" * 16)
    (found,) = sums(life.finish(Outcome(PART)))
    assert found.devices == [2]
