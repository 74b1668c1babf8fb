"""A run in rounds, event by event, as the coordinator drives it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from delian.cloud.protocol.coordinator_state import Phase
from delian.cloud.protocol.rounds import Rounds
from delian.cloud.protocol.rounds_machine import TABLE
from delian.cloud.protocol.run_plan import PlanError, RunPlan
from delian.core.protocol.machine import IGNORE
from delian.core.protocol.ports import (
    SECOND,
    DropBlob,
    NewModel,
    Node,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    ProtocolError,
    Received,
    Record,
    RunProgram,
    Send,
    SendBlob,
    Tier,
)
from delian.core.wire.admission_pb2 import CheckIn, EdgeHello, Pace
from delian.core.wire.blob_pb2 import FetchBlob
from delian.core.wire.round_pb2 import (
    DEADLINE,
    EVALUATE,
    NON_FINITE,
    OUT_OF_MEMORY,
    PROGRAM_FAILED,
    DeviceFailure,
    EdgeSumAck,
    EdgeTask,
    Flush,
    RoundClosed,
)
from support import run_bench as _bench

Bench = _bench.Bench
BUNDLE = _bench.BUNDLE
WEIGHTS = _bench.WEIGHTS
NEXT = _bench.NEXT
HALF = _bench.HALF
RING = _bench.RING
edge = _bench.edge
vector = _bench.vector


def test_every_action_in_the_table_is_one_of_the_machine():
    assert {r.action for r in TABLE} - {IGNORE} <= set(vars(Rounds).values())


class TestWaiting:
    def test_it_waits_until_enough_devices_are_ready(self):
        bench = Bench().waiting()
        assert bench.phase is Phase.WAITING and not bench.of(Send)
        bench.hello(2, [20, 21])
        assert bench.phase is Phase.COLLECTING
        assert sum(len(d) for d in bench.selected.values()) == 6

    def test_a_pool_that_must_be_larger_is_waited_for(self):
        bench = Bench(pool_min=8).waiting().hello(2, [20, 21, 22])
        assert bench.phase is Phase.WAITING
        assert bench.hello(2, [20, 21, 22, 23]).phase is Phase.COLLECTING

    def test_it_rests_before_the_next_round_so_that_devices_may_come_back(self):
        bench = Bench().aggregating().updated()
        assert bench.timer("rest") == bench.now + 5 * SECOND
        bench.hello(1, list(range(10, 16))).hello(2, list(range(20, 26)))
        assert bench.phase is Phase.WAITING
        assert bench.fires("rest").ignored(), "too early"
        assert bench.fires("rest", after=5 * SECOND).phase is Phase.COLLECTING

    def test_after_a_while_it_goes_on_with_fewer(self):
        bench = Bench().waiting()
        assert bench.fires("wait", after=60 * SECOND).phase is Phase.COLLECTING
        assert bench.selected == {1: [10, 11, 12, 13]}

    def test_without_devices_it_tries_a_limited_number_of_times(self):
        bench = Bench().started()
        for attempt in (1, 2, 3):
            assert bench.state.attempt == attempt
            bench.fires("wait", after=60 * SECOND)
            assert not bench.facts()["succeeded"]
        assert bench.phase is Phase.FAILED
        assert bench.ended.why == "too few devices are ready"

    def test_an_old_hello_does_not_replace_a_newer_one(self):
        bench = Bench().waiting()
        bench.hears(1, EdgeHello(edge=1, incarnation=1, sequence=1, protocol=1, ready=[99]))
        assert bench.ignored() and bench.machine.state.edges[1].ready == [10, 11, 12, 13]

    def test_an_edge_not_heard_of_for_long_is_not_selected_from(self):
        bench = Bench(wait_ms=300_000).waiting()
        bench.now += 121 * SECOND
        bench.hello(2, [20, 21, 22, 23])
        assert bench.phase is Phase.WAITING

    def test_a_device_behind_two_edges_is_selected_once(self):
        bench = Bench().waiting().hello(2, [10, 11, 20, 21])
        chosen = [d for devices in bench.selected.values() for d in devices]
        assert sorted(chosen) == [10, 11, 12, 13, 20, 21]


class TestSelection:
    def test_it_is_uniform_over_the_ready_devices(self):
        counts = dict.fromkeys([*range(10, 14), *range(20, 24)], 0)
        for seed in range(400):
            bench = Bench(seed=seed).waiting().hello(2, [20, 21, 22, 23])
            for devices in bench.selected.values():
                for d in devices:
                    counts[d] += 1
        # Each device in 6 of 8: binomial with n = 400 and p = 3/4, five standard deviations.
        assert all(abs(c - 300) < 5 * np.sqrt(400 * 0.75 * 0.25) for c in counts.values())

    def test_it_depends_on_seed_and_round_and_not_on_the_order_of_hellos(self):
        one = Bench().waiting().hello(2, [20, 21, 22, 23])
        two = Bench().started()
        two.hello(2, [20, 21, 22, 23]).hello(1, [10, 11, 12, 13]).fires("rest")
        assert two.selected == one.selected
        others = {
            str(Bench(seed=s).waiting().hello(2, [20, 21, 22, 23]).selected) for s in range(9)
        }
        assert len(others) > 3

    def test_each_edge_gets_one_task_for_its_devices(self):
        bench = Bench().collecting()
        (message,) = bench.said(1)
        assert type(message) is EdgeTask and list(message.devices) == bench.one
        task = message.task
        assert (task.run, task.round, task.attempt) == (1, 1, 1)
        assert (task.bundle, task.weights) == (BUNDLE, WEIGHTS)
        assert (message.time_ms, task.time_ms) == (100_000, 90_000)
        assert len(task.rng_key) == 8 and task.ring.dimension == 3

    def test_a_second_attempt_has_the_same_key_and_another_selection(self):
        bench = Bench(reports_min=4, pool_min=8).collecting()
        first = bench.said(1)[0].task, dict(bench.selected)
        bench.fires("round", after=100 * SECOND)
        bench.hello(1, [10, 11, 12, 13]).hello(2, [20, 21, 22, 23])
        bench.fires("rest", after=5 * SECOND)
        second = bench.said(1)[0].task
        assert second.attempt == 2 and second.rng_key == first[0].rng_key
        assert bench.selected != first[1]

    def test_a_plan_whose_ring_holds_fewer_than_are_tasked_is_refused(self):
        bench = Bench(cohort=12, over_selection=1.5).started()
        (refused,) = bench.records("refused_order")
        assert "ring.clients_max" in refused["why"] and not bench.machine.state.runs


class TestCollecting:
    def test_edges_that_are_silent_are_asked_again_with_the_time_that_is_left(self):
        bench = Bench().collecting().progress(1, 0)
        bench.fires("repeat", after=3 * SECOND)
        assert not bench.said(1)
        assert [m.time_ms for m in bench.said(2)] == [97_000]

    def test_a_fetch_is_answered_and_a_sign_of_life(self):
        bench = Bench().collecting().hears(1, FetchBlob(digest=WEIGHTS.digest))
        assert bench.of(SendBlob) == [SendBlob(edge(1), WEIGHTS.digest)]
        assert not bench.fires("repeat", after=3 * SECOND).said(1)
        assert bench.hears(1, FetchBlob(digest=b"?" * 32)).ignored()

    def test_with_enough_updates_it_asks_for_the_sums_until_they_come(self):
        bench = Bench().collecting().progress(1, 2)
        assert not bench.said(1)
        bench.progress(2, 2)
        flush = Flush(run=1, round=1, attempt=1)
        assert bench.said(1) == bench.said(2) == [flush]
        assert bench.fires("repeat", after=3 * SECOND).said(1) == [flush]
        bench.sum(1, {d: vector(0, 0, 1) for d in bench.one})
        assert not bench.fires("repeat", after=3 * SECOND).said(1)

    def test_progress_never_falls(self):
        bench = Bench().collecting().progress(1, 3).progress(1, 1)
        assert bench.progress(2, 1).said(1, Flush)

    def test_a_sum_is_acknowledged_each_time_and_counted_once(self):
        bench = Bench().collecting()
        vectors = {d: vector(1, 2, 3) for d in bench.one}
        for _ in range(2):
            bench.sum(1, vectors)
            assert bench.said(1) == [EdgeSumAck(run=1, round=1, attempt=1)]
        assert np.array_equal(bench.total, sum(vectors.values()))

    def test_a_sum_of_an_earlier_attempt_is_acknowledged_and_not_counted(self):
        bench = Bench().aggregating().updated()
        bench.sum(1, {10: vector(1, 1, 1)}, at=(1, 1))
        assert bench.said(1) == [EdgeSumAck(run=1, round=1, attempt=1)]
        assert not bench.state.open

    @pytest.mark.parametrize(
        "changes",
        [
            {"count": 9},
            {"sum": b"1234"},
            {"sum": b""},
            {"devices": [20, 21]},
            {"devices": [11, 10], "count": 2},
            {"devices": [10, 10], "count": 2},
            {"failures": [DeviceFailure(device=99)]},
        ],
    )
    def test_a_sum_that_no_honest_edge_sends_is_not_counted(self, changes):
        bench = Bench(over_selection=2.0).collecting()
        bench.sum(1, {d: vector(1, 2, 3) for d in bench.one}, **changes)
        assert [r.kind for r in bench.of(Record)] == ["refused_sum"]
        assert bench.total is None
        assert bench.sum(1, {d: vector(1, 2, 3) for d in bench.one}).total is None

    def test_a_device_cannot_be_both_in_the_sum_and_failed(self):
        bench = Bench().collecting()
        d = bench.one[0]
        bench.sum(1, {d: vector(1, 2, 3)}, failures=[DeviceFailure(device=d)])
        assert bench.total is None

    def test_an_edge_that_starts_anew_has_lost_what_it_had(self):
        bench = Bench().collecting().hello(1, [], incarnation=2)
        assert bench.phase is Phase.COLLECTING
        bench.sum(2, {d: vector(1, 2, 3) for d in bench.two})
        assert bench.phase is Phase.AGGREGATING, "it is not waited for"


class TestClosing:
    def test_when_all_edges_have_reported_the_mean_updates_the_model(self):
        bench = Bench().aggregating()
        (run,) = bench.of(RunProgram)
        assert (run.program, run.blobs) == ("server_update", (BUNDLE.digest, WEIGHTS.digest))
        mean, weight = run.arguments
        n, m = len(bench.one), len(bench.two)
        assert weight == (n + m) * HALF / RING.weight_scale
        # n updates of steps (1, 2, 3) and m of (-1, 0, 5).
        steps = np.array([n - m, 2 * n, 3 * n + 5 * m])
        np.testing.assert_allclose(mean, steps / RING.scale / weight, rtol=1e-6)
        assert bench.said(2, RoundClosed)[0].succeeded

    def test_the_next_round_begins_at_the_new_model(self):
        bench = Bench().aggregating().updated()
        assert (bench.state.round, bench.state.attempt) == (2, 1)
        assert bench.state.weights == NEXT and bench.of(DropBlob) == [DropBlob(WEIGHTS.digest)]
        facts = bench.facts()
        assert facts["succeeded"] and facts["round"] == 1
        assert facts["reported"] == facts["selected"] == sorted(bench.one + bench.two)

    def test_the_record_names_the_sum_by_its_hash(self):
        bench = Bench().aggregating()
        total = bench.total.tobytes()
        assert bench.updated().facts()["sum"] == hashlib.sha256(total).digest()
        short = Bench().collecting().fires("round", after=100 * SECOND)
        assert short.facts()["sum"] == b""

    def test_a_model_that_did_not_change_is_kept(self):
        assert not Bench().aggregating().updated(WEIGHTS).of(DropBlob)

    def test_after_the_last_round_devices_are_sent_home(self):
        bench = Bench(rounds=1).aggregating().updated()
        assert bench.phase is Phase.DONE
        assert [m.ready_max for m in bench.said(1, Pace)] == [0]
        assert (bench.ended.round, bench.ended.weights, bench.ended.why) == (1, NEXT, "")

    def test_at_the_deadline_enough_reports_make_a_round(self):
        bench = Bench().collecting().sum(1, {d: vector(1, 2, 3) for d in bench_one(2)})
        assert bench.fires("round", after=99 * SECOND).ignored()
        assert bench.fires("round", after=1 * SECOND).phase is Phase.AGGREGATING

    def test_at_the_deadline_too_few_reports_fail_the_attempt(self):
        bench = Bench().collecting()
        bench.sum(1, {bench.one[0]: vector(1, 2, 3)})
        bench.fires("round", after=100 * SECOND)
        assert (bench.phase, bench.state.round, bench.state.attempt) == (Phase.WAITING, 1, 2)
        facts = bench.facts()
        assert not facts["succeeded"] and facts["why"] == "too few devices reported"
        assert not bench.said(2, RoundClosed)[0].succeeded
        assert not bench.state.open

    def test_failures_are_recorded_with_their_reasons(self):
        bench = Bench().collecting()
        first, *rest = bench.one
        failures = [DeviceFailure(device=first, reason=NON_FINITE)]
        bench.sum(1, {d: vector(1, 2, 3) for d in rest}, failures)
        bench.sum(2, {d: vector(1, 2, 3) for d in bench.two}).updated()
        assert bench.facts()["refused"] == {first: NON_FINITE}

    @pytest.mark.parametrize("outcome", [ProgramStopped(PROGRAM_FAILED), Outcome(None)])
    def test_a_server_update_that_fails_fails_the_attempt(self, outcome):
        bench = Bench().aggregating().does(ProgramFinished((1 << 32) + 1, outcome))
        assert bench.phase is Phase.WAITING and bench.state.attempt == 2
        assert bench.state.weights == WEIGHTS

    @pytest.mark.parametrize(
        ("reason", "why"),
        [
            (DEADLINE, "the server update failed: it exceeded its time limit"),
            (OUT_OF_MEMORY, "the server update failed: it is out of memory"),
            (PROGRAM_FAILED, "the server update failed"),
        ],
    )
    def test_updates_that_fail_again_and_again_end_the_run_and_say_why(self, reason, why):
        bench = Bench(attempts_max=1).aggregating()
        bench.does(ProgramFinished(bench.state.ticket, ProgramStopped(reason)))
        assert bench.phase is Phase.FAILED and bench.ended.why == why

    def test_an_update_that_does_not_end_is_not_tried_for_ever_after_restarts(self):
        bench = Bench(attempts_max=1).aggregating().again().again()
        (program,) = bench.of(RunProgram)
        bench.does(ProgramFinished(program.ticket, ProgramStopped(DEADLINE)))
        assert bench.phase is Phase.FAILED
        assert bench.again().of(RunProgram) == []

    def test_a_sum_that_cannot_be_decoded_fails_the_attempt(self):
        bench = Bench().collecting()
        nothing = np.zeros(4, np.uint32)
        bench.sum(1, dict.fromkeys(bench.one, nothing)).sum(2, dict.fromkeys(bench.two, nothing))
        assert bench.phase is Phase.WAITING and bench.state.attempt == 2
        assert "weights" in bench.facts()["why"]

    def test_after_too_many_failed_attempts_the_run_gives_up_and_says_why(self):
        bench = Bench(attempts_max=1).collecting().fires("round", after=100 * SECOND)
        assert bench.phase is Phase.FAILED
        assert bench.ended.why == "too few devices reported"
        kinds = [r.kind for r in bench.of(Record)]
        assert kinds == ["unanswered", "unanswered", "round", "run_failed", "phase"]
        assert [r.fields["edge"] for r in bench.of(Record)[:2]] == [1, 2]


def bench_one(count):
    """The first devices that seed 1 selects behind edge 1."""
    return Bench().collecting().one[:count]


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (Node(Tier.DEVICE, 1), CheckIn(device=1)),
        (edge(1), CheckIn(device=1)),
        (edge(1), EdgeHello(edge=2, incarnation=1, sequence=1)),
        (edge(1), Flush()),
    ],
)
def test_who_says_what_he_may_not_say_breaks_the_protocol(sender, message):
    with pytest.raises(ProtocolError):
        Bench().collecting().does(Received(sender, message))


@pytest.mark.parametrize("name", ["rest", "wait", "round", "repeat", "unheard of"])
def test_a_timer_that_was_cancelled_may_still_fire(name):
    assert Bench().aggregating().fires(name).ignored()


def test_an_outcome_of_another_ticket_is_ignored():
    assert Bench().aggregating().does(ProgramFinished((1 << 32) + 9, NewModel(NEXT))).ignored()


class TestRestart:
    @pytest.mark.parametrize("where", ["waiting", "collecting", "aggregating", "paused"])
    def test_its_state_survives_a_snapshot(self, where):
        bench = getattr(Bench(), where)()
        again = bench.again().machine
        again.state.pace = bench.machine.state.pace
        assert again.snapshot() == again.snapshot()

    def test_a_plan_that_was_accepted_before_is_not_checked_again(self):
        bench = Bench().collecting()
        plan = bench.state.plan  # as a version with wider bounds has accepted it
        plan.attempts_max, plan.patience, plan.wait_ms = 5_000, 1, 10**9
        with pytest.raises(PlanError):
            RunPlan.from_message(1, plan)
        again = bench.again()
        made = again.machine.runs.machine_of(again.state).run.plan
        assert (made.round.attempts_max, made.evaluation.patience) == (5_000, 1)
        assert made.wait_ns == 10**15
        again.progress(1, 2)
        assert again.phase is Phase.COLLECTING

    def test_while_waiting_it_waits_again(self):
        again = Bench().waiting().again()
        assert again.hello(2, [20, 21, 22, 23]).phase is Phase.WAITING, "it rests first"
        assert again.fires("rest").phase is Phase.COLLECTING

    def test_while_collecting_it_asks_the_edges_again_and_keeps_what_it_had(self):
        bench = Bench().collecting()
        bench.sum(1, {d: vector(1, 2, 3) for d in bench.one})
        again = bench.again()
        assert not again.said(1) and again.said(2, EdgeTask)
        assert again.timer("round") == bench.state.open[0].ends_ns
        again.sum(2, {d: vector(-1, 0, 5) for d in bench.two})
        expected = Bench().aggregating().program().arguments
        mean, weight = again.program().arguments
        assert weight == expected[1] and np.array_equal(mean, expected[0])

    def test_while_aggregating_it_updates_again(self):
        bench = Bench().aggregating()
        again = bench.again()
        first, second = bench.program(), again.program()
        assert np.array_equal(first.arguments[0], second.arguments[0])
        assert second.ticket != first.ticket
        assert again.updated().state.round == 2

    def test_while_evaluating_it_asks_the_edges_again(self):
        again = Bench(evaluation_every=1).evaluating().again()
        assert [m.task.purpose for m in again.said(1, EdgeTask)] == [EVALUATE]

    def test_while_paused_it_stays_paused(self):
        again = Bench().paused().again()
        assert again.phase is Phase.PAUSED and not again.of(Record)[1:]
        assert again.orders("resume").phase is Phase.WAITING

    def test_a_run_that_is_over_stays_over(self):
        bench = Bench(rounds=1).aggregating().updated()
        assert bench.again().phase is Phase.DONE


def test_a_record_of_a_round_names_the_run_and_the_models():
    facts = Bench().aggregating().updated().facts()
    assert (facts["run"], facts["parent"], facts["model"]) == (1, b"w" * 32, b"v" * 32)
    assert facts["model_size"] == 12


def test_each_change_of_phase_is_recorded():
    bench = Bench().waiting()
    assert bench.hello(2, [20, 21, 22, 23]).records("phase") == [
        {"run": 1, "phase": "collecting", "why": ""}
    ]
    bench.fires("round", after=100 * SECOND)
    assert bench.records("phase") == [
        {"run": 1, "phase": "waiting", "why": "too few devices reported"}
    ]
