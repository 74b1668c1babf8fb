"""Small fleets: what a run waits for, and how it explains that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from delian.cloud.protocol import roster
from delian.cloud.protocol.coordinator_state import CoordinatorPolicy, Phase
from delian.cloud.protocol.outlook import Outlook, sentence
from delian.cloud.service.fleet_registry import live
from delian.core.protocol.ports import SECOND, TimerFired
from delian.core.wire.admission_pb2 import NO_WORK, NOT_CONSENTED, NOT_ELIGIBLE
from support.run_bench import Bench, vector

ROUND = {"cohort": 12, "over_selection": 1.25, "reports_min": 3, "rest_ms": 0, "wait_ms": 90_000}


def fleet(ready=(), **away):
    """A run of 15 devices, and the fleet behind edge 1, all of it known for long."""
    bench = Bench(**ROUND).started()
    bench.hello(1, list(ready), **away)
    bench.now += 10 * SECOND
    return bench.fires("rest")


def outlook(bench, run=1):
    return bench.machine.runs.outlook(run)


def look(bench):
    """The coordinator's own timer fires, when it is to."""
    return bench.does(TimerFired("look"), after=bench.machine.state.look_at_ns - bench.now)


class TestSmallFleets:
    def test_a_fleet_that_is_all_there_trains_at_once(self):
        bench = fleet([1, 2, 3, 4])
        assert bench.phase is Phase.COLLECTING
        assert bench.selected == {1: [1, 2, 3, 4]}

    def test_over_selection_waits_for_no_device_that_does_not_exist(self):
        bench = Bench(**{**ROUND, "cohort": 4}).started().hello(1, [1, 2, 3, 4])
        bench.now += 10 * SECOND
        assert bench.fires("rest").selected == {1: [1, 2, 3, 4]}

    def test_new_devices_are_waited_for_until_no_more_come(self):
        bench = Bench(**ROUND).started().fires("rest").hello(1, [1, 2, 3])
        assert bench.phase is Phase.WAITING
        bench.hello(1, [1, 2, 3, 4], after=4 * SECOND)
        assert bench.phase is Phase.WAITING
        assert look(bench).selected == {1: [1, 2, 3, 4]}
        assert bench.now == 9 * SECOND, "five seconds after the last of them"

    def test_idle_devices_are_waited_for(self):
        bench = fleet([1, 2, 3], away={NO_WORK: [4]})
        assert bench.phase is Phase.WAITING
        assert bench.hello(1, [1, 2, 3, 4]).selected == {1: [1, 2, 3, 4]}

    def test_a_fleet_that_is_large_enough_is_not_counted(self, monkeypatch):
        bench = Bench(policy=CoordinatorPolicy(explain_ns=0), **ROUND).started()
        monkeypatch.delattr(roster.Roster, "attendance")
        bench.hello(1, [1, 2], away={NO_WORK: list(range(10, 30))})
        assert bench.fires("rest", after=10 * SECOND).phase is Phase.WAITING
        assert bench.hello(1, list(range(10, 25))).phase is Phase.COLLECTING

    def test_devices_that_cannot_work_are_not_waited_for(self):
        bench = fleet([1, 2, 3], away={NOT_CONSENTED: [4], NOT_ELIGIBLE: [5]})
        assert bench.selected == {1: [1, 2, 3]}

    def test_devices_that_come_back_from_a_round_are_waited_for(self):
        bench = fleet([1, 2, 3, 4])
        bench.hello(1, []).sum(1, {d: vector(1, 1, 1) for d in (1, 2, 3, 4)}).updated()
        bench.fires("rest").hello(1, [1, 2, 3])
        assert bench.phase is Phase.WAITING, "the fourth answered a moment ago"
        assert bench.hello(1, [1, 2, 3, 4]).selected == {1: [1, 2, 3, 4]}

    def test_one_that_does_not_come_back_is_waited_for_half_a_minute(self):
        bench = fleet([1, 2, 3, 4])
        bench.hello(1, []).sum(1, {d: vector(1, 1, 1) for d in (1, 2, 3, 4)}).updated()
        bench.fires("rest").hello(1, [1, 2, 3])
        began = bench.now
        assert look(look(bench)).selected == {1: [1, 2, 3]}
        assert bench.now - began <= 30 * SECOND

    def test_one_that_never_answered_is_not_waited_for(self):
        bench = fleet([1, 2, 3, 4])
        bench.hello(1, []).sum(1, {d: vector(1, 1, 1) for d in (1, 2, 3)}).updated()
        assert bench.fires("rest").hello(1, [1, 2, 3]).selected == {1: [1, 2, 3]}

    def test_what_the_operator_says_must_be_ready_is_waited_for(self):
        bench = Bench(**ROUND, pool_min=5).started().hello(1, [1, 2, 3, 4])
        bench.now += 10 * SECOND
        assert bench.fires("rest").phase is Phase.WAITING
        assert look(bench.hello(1, [1, 2, 3, 4, 5])).phase is Phase.COLLECTING

    def test_too_few_for_a_round_are_too_few(self):
        bench = fleet([1, 2])
        assert bench.phase is Phase.WAITING
        assert bench.fires("wait", after=90 * SECOND).facts()["why"] == "too few devices are ready"

    def test_an_evaluation_asks_those_that_are_there(self):
        bench = Bench(**ROUND, evaluation_every=2, evaluation_cohort=400).started()
        bench.plan.evaluation_cohort = 400
        bench.hello(1, [1, 2, 3, 4]).does(TimerFired("look"), after=10 * SECOND).fires("rest")
        for _ in range(2):
            bench.sum(1, {d: vector(1, 1, 1) for d in (1, 2, 3, 4)}).updated().hello(1, [])
            bench.fires("rest").hello(1, [1, 2, 3, 4])
        assert bench.phase is Phase.EVALUATING and bench.selected == {1: [1, 2, 3, 4]}

    def test_runs_take_turns_on_a_small_fleet(self):
        bench = fleet([1, 2, 3, 4])
        bench.submit(run=2).fires("rest", run=2).hello(1, [])
        assert outlook(bench, 2).working == ((1, 4),)
        bench.sum(1, {d: vector(1, 1, 1) for d in (1, 2, 3, 4)}).updated()
        bench.fires("rest").hello(1, [1, 2, 3, 4])
        assert bench.machine.state.runs[2].phase is Phase.COLLECTING
        assert bench.phase is Phase.WAITING and outlook(bench).working == ((2, 4),)

    def test_after_a_restart_it_waits_no_longer_than_before(self):
        bench = Bench(**ROUND).started().fires("rest").hello(1, [1, 2, 3]).again()
        bench.fires("rest")
        assert look(look(bench)).selected == {1: [1, 2, 3]}
        assert bench.now == 5 * SECOND


class TestOutlook:
    def test_it_says_what_is_needed_and_what_is_there(self):
        bench = fleet([1, 2], away={NO_WORK: [3], NOT_CONSENTED: [4, 5], NOT_ELIGIBLE: [6]})
        expected = Outlook(
            wanted=15, least=3, ready=2, idle=1, unconsented=2, unfit=1, next_try_ns=90 * SECOND
        )
        assert outlook(bench) == expected

    def test_none_of_a_run_that_does_not_wait(self):
        assert outlook(fleet([1, 2, 3, 4])) is None
        assert outlook(fleet([1]), run=7) is None

    def test_a_run_behind_another_says_so(self):
        bench = fleet([1, 2]).submit(run=2).fires("rest", run=2)
        assert outlook(bench).behind == () and outlook(bench, 2).behind == (1,)

    def test_a_run_that_waits_records_why_once_and_again_when_it_changes(self):
        bench = fleet([1])
        (first,) = bench.records("outlook")
        assert first == {"run": 1, **outlook(bench).facts()}
        assert not bench.hello(1, [1], after=20 * SECOND).records("outlook"), "nothing has changed"
        bench = fleet([1])
        assert not bench.hello(1, [1], away={NOT_CONSENTED: [2]}).records("outlook"), "too soon"
        (again,) = bench.hello(1, [1], away={NOT_CONSENTED: [2]}, after=10 * SECOND).records(
            "outlook"
        )
        assert again["unconsented"] == 1

    def test_a_run_that_trains_at_once_records_nothing(self):
        bench = fleet([1, 2, 3, 4])
        assert not bench.does(TimerFired("look"), after=60 * SECOND).records("outlook")

    def test_a_simulation_has_no_such_records(self):
        bench = Bench(policy=CoordinatorPolicy(explain_ns=0), **ROUND).started().hello(1, [1])
        bench.does(TimerFired("look"), after=60 * SECOND)
        assert not bench.records("outlook")

    def test_messages_and_facts_carry_it_whole(self):
        whole = Outlook(15, 6, True, 4, 1, 1, 2, ((2, 1), (9, 3)), (2, 9), 90 * SECOND)
        assert Outlook.from_message(whole.message(0)) == whole
        assert whole.facts()["said"] == sentence(replace(whole, next_try_ns=0))


def doing(bench, after=0):
    """What devices do, and when they were seen, as `delian fleet ls` shows it."""
    now = bench.now + after
    found = live(bench.machine.state, now, bench.policy).items()
    return {
        node.number: (each.state, each.seen_ms) for node, each in found if node.tier == "device"
    }


class TestWhatDevicesDo:
    def test_each_is_named_by_what_its_edge_says(self):
        bench = fleet([1, 2], away={NO_WORK: [3], NOT_CONSENTED: [4], NOT_ELIGIBLE: [5]})
        states = ("ready", "ready", "idle", "unconsented", "unfit")
        assert doing(bench) == {n: (state, 0) for n, state in enumerate(states, 1)}

    def test_one_that_comes_back_from_a_task_is_idle_and_then_silent_since_then(self):
        bench = fleet([1, 2, 3])
        assert {state for state, _ in doing(bench).values()} == {"working"}
        bench.hello(1, []).sum(1, {d: vector(1, 1, 1) for d in (1, 2, 3)}).updated()
        ended = 10_000
        assert doing(bench) == dict.fromkeys((1, 2, 3), ("idle", ended))
        assert doing(bench, 31 * SECOND) == dict.fromkeys((1, 2, 3), ("silent", ended))

    def test_an_edge_that_names_ever_other_devices_takes_no_memory(self, monkeypatch):
        monkeypatch.setattr(roster, "SEEN_MAX", 50)
        bench = Bench(**ROUND).started()
        for first in range(0, 1000, 10):
            bench.hello(1, list(range(first, first + 10)), after=SECOND)
            assert len(bench.machine.state.edges[1].seen) <= 60

    def test_one_that_left_the_pool_is_seen_as_of_its_last_hello(self):
        bench = fleet([1, 2]).hello(1, [1, 2], after=20 * SECOND).hello(1, [1], after=SECOND)
        assert doing(bench, 31 * SECOND)[2] == ("silent", 30_000)


@pytest.mark.parametrize(
    ("outlook", "words"),
    [
        (
            Outlook(15, 6, False, 4, 0, 1, 0, ((2, 1),), (2,), 90 * SECOND),
            "needs 15 devices (at least 6), 4 ready, 1 without consent, 1 working in run 2;"
            " the fleet lacks 1 device; behind run 2; next try in 90 s",
        ),
        (Outlook(4, 4, ready=1, idle=3), "needs 4 devices, 1 ready, 3 idle"),
        (
            Outlook(1, 1, True, unfit=2),
            "needs up to 1 device to evaluate, 0 ready, 2 unfit; the fleet lacks 1 device",
        ),
    ],
)
def test_the_words(outlook, words):
    assert sentence(outlook) == words
