"""A coordinator that was put back from an older copy of its store, and one that was only started
again: which of the words that come are of what it has begun.
"""

from __future__ import annotations

import json

import pytest
from delian.cloud.protocol.coordinator_state import Attempt, Phase
from delian.cloud.protocol.helpers import grouped
from delian.cloud.protocol.machine import restore
from delian.core.protocol.ports import SECOND, Started
from delian.core.protocol.run_names import named, number_of
from delian.core.wire.round_pb2 import EdgeSumAck, EdgeTask, RoundClosed
from delian.core.wire.secure_pb2 import KeyBundle
from support import secure_bench as _secure
from unit.cloud import test_cloud_privacy as _privacy

_bench = _secure._bench
vector = _bench.vector

#: Unix time of starts: the first, the one after the copy was made, and the one from the copy.
FIRST, LOST, BACK = (1_790_000_000 * SECOND + n * 500 * SECOND for n in range(3))


def begins(bench, at=FIRST):
    """A coordinator with a run, started at a moment of the computer's own time."""
    bench.does(Started(unix_ns=at)).submit()
    bench.fires("rest", after=bench.timer("rest") - bench.now)
    return bench.hello(1, [10, 11, 12, 13]).hello(2, [20, 21, 22, 23])


def from_copy(bench, copy, at):
    """The coordinator as a copy of its state has it, started at a moment."""
    other = type(bench)(restore(copy), bench.identity, bench.policy, bench.run)
    other.plan, other.now, other.hellos = bench.plan, bench.now + 100 * SECOND, bench.hellos
    return other.does(Started(unix_ns=at))


def name(bench):
    """What the run is called in the newest attempt's messages."""
    return bench.state.open[-1].name


def report(bench, run, **changes):
    """The honest sums of the newest attempt, under a name."""
    for number, devices in bench.selected.items():
        at = bench.at
        bench.sum(number, {d: vector(1, 2, 3) for d in devices}, at=at, run=run, **changes)
    return bench


def round_two(bench):
    return bench.updated().rested()


@pytest.fixture
def histories():
    """Two coordinators in round 2, from one copy: the one that is lost, and the one put back."""
    one = begins(_bench.Bench())
    report(one, name(one))
    copy = one.machine.snapshot()
    lost, back = from_copy(one, copy, LOST), from_copy(one, copy, BACK)
    return round_two(lost), round_two(back)


def test_a_sum_of_the_lost_history_is_not_counted(histories):
    lost, back = histories
    assert lost.at == back.at == (2, 1) and lost.selected == back.selected
    assert number_of(name(lost)) == number_of(name(back)) == 1
    report(back, name(lost))
    assert back.phase is Phase.COLLECTING and back.total is None
    (ack,) = back.said(2, EdgeSumAck)
    assert ack.run == name(lost), "its edge may forget it"
    assert report(back, name(back)).phase is Phase.AGGREGATING


def test_under_one_name_it_would_be():
    """What the name is for: nothing else tells these sums apart."""
    lost, back = (begins(_bench.Bench(), at=0) for _ in range(2))
    assert name(lost) == name(back) and lost.selected == back.selected
    assert report(back, 1).phase is Phase.AGGREGATING


def test_progress_of_the_lost_history_says_nothing(histories):
    lost, back = histories
    back.progress(1, 3, run=name(lost))
    assert back.ignored() and not back.state.open[0].shares[1].alive
    back.progress(1, 3, run=name(back))
    assert back.state.open[0].shares[1].alive


def test_keys_of_the_lost_history_are_in_no_session():
    one = begins(_secure.SecureBench())
    copy = one.machine.snapshot()
    one.fires("round", after=100 * SECOND).rested()
    back = from_copy(one, copy, BACK)
    assert back.at == (1, 1) and name(back) == name(one) != 0, "it was begun before the copy"
    back.fires("round", after=100 * SECOND).rested()
    assert back.at == one.at == (1, 2)
    device = back.selected[1][0]
    key = KeyBundle(run=name(one), round=1, attempt=2, device=device)
    (answer,) = back.hears(1, key).said(1)
    assert isinstance(answer, RoundClosed) and answer.run == name(one)
    assert not back.state.open[0].book.server.refused


def test_a_run_that_takes_the_number_of_a_lost_one_has_another_name():
    one = begins(_bench.Bench())
    copy = one.machine.snapshot()
    names = set()
    for at in (LOST, BACK):
        other = from_copy(one, copy, at).submit(run=2)
        names.add(other.machine.state.runs[2].name)
    assert len(names) == 2 and {number_of(n) for n in names} == {2}


def test_what_was_begun_before_a_restart_goes_on_under_its_name():
    one = begins(_bench.Bench())
    before = name(one)
    again = from_copy(one, one.machine.snapshot(), LOST)
    (task,) = again.said(1, EdgeTask)
    assert task.task.run == before == name(again)
    assert report(again, before).phase is Phase.AGGREGATING
    assert name(round_two(again)) not in (before, 0)


def test_what_was_written_before_there_were_names_goes_on_under_its_number():
    one = begins(_bench.Bench(), at=0)
    stored = json.loads(one.machine.snapshot())
    del stored["epoch"]
    for _, run in stored["runs"]:
        del run["name"]
        for attempt in run["open"]:
            del attempt["name"]
    again = from_copy(one, json.dumps(stored).encode(), LOST)
    assert {t.task.run for t in again.said(1, EdgeTask)} == {1}
    assert report(again, 1).phase is Phase.AGGREGATING
    assert name(round_two(again)) > 2**32


def test_a_run_that_promises_privacy_keeps_its_name():
    """Who is ahead of the copy then refuses to do a round twice, which it would pay for again."""
    one = begins(_privacy.Bench())
    again = from_copy(one, one.machine.snapshot(), LOST)
    again.fires("round", after=100 * SECOND).rested()
    assert again.at == (1, 2) and name(again) == name(one) > 2**32


def test_helpers_are_shown_no_batch_of_two_names():
    def wave(attempt, run, devices):
        found = Attempt(1, attempt, False, _bench.WEIGHTS, 0, 0, name=run)
        found.unused = devices
        return found

    old, new = named(1, 5), named(1, 9)
    waves = [wave(1, old, [1, 2, 3]), wave(2, new, [4, 5, 6]), wave(3, new, [7])]
    assert [[w.attempt for w in g] for g in grouped(waves, 3, 100)] == [[1], [2, 3]]
    few = [wave(1, old, [1, 2, 3]), wave(2, new, [4, 5])]
    assert [[w.attempt for w in g] for g in grouped(few, 3, 100)] == [[1]]
