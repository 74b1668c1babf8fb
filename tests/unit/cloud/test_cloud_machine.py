"""The coordinator: its edges, the pace, several runs on one pool of devices, orders, limits."""

from __future__ import annotations

import pytest
from delian.cloud.protocol.coordinator_state import (
    RUNS_ACTIVE_MAX,
    RUNS_ENDED_MAX,
    CoordinatorPolicy,
    Phase,
    Serving,
)
from delian.cloud.protocol.machine import DEVICE_NUMBER_MAX, PACE_NUMBER_MAX, TABLE
from delian.cloud.protocol.runs import Runs
from delian.core.common.errors import DelianError
from delian.core.protocol.machine import IGNORE
from delian.core.protocol.ports import (
    EDGES_MAX,
    SECOND,
    BlobStored,
    DropBlob,
    NewModel,
    Node,
    Ordered,
    ProgramFinished,
    ProtocolError,
    Received,
    RunProgram,
    SendBlob,
    Started,
    Tier,
    TimerFired,
)
from delian.core.wire.admission_pb2 import NO_WORK, Pace, Requirements, RetryWindow
from delian.core.wire.blob_pb2 import BlobRef, FetchBlob
from delian.core.wire.journal_pb2 import DeniedVersion, Drain, DrainEdge
from delian.core.wire.operator_pb2 import RunOrder
from delian.core.wire.round_pb2 import EdgeProgress, EdgeSumAck, EdgeTask
from support import run_bench as _bench

Bench = _bench.Bench
NEXT = _bench.NEXT
WEIGHTS = _bench.WEIGHTS
blob = _bench.blob
edge = _bench.edge
vector = _bench.vector

ALL = [*range(10, 18)], [*range(20, 28)]


def test_every_action_in_the_table_is_one_of_the_machine():
    assert {r.action for r in TABLE} - {IGNORE} <= set(vars(Runs).values())


class TestPace:
    def test_an_edge_that_asks_gets_it(self):
        bench = Bench(policy=CoordinatorPolicy(lease_ms=77)).started()
        (pace,) = bench.hello(1, [], asks_pace=True).said(1)
        assert pace.lease_ms == 77 and pace.ready_max > 0
        assert not bench.hello(1, []).said(1)

    def test_without_a_run_no_devices_are_wanted(self):
        bench = Bench().does(Started()).hello(1, [], asks_pace=True)
        assert [p.ready_max for p in bench.said(1, Pace)] == [0]

    def test_a_run_that_begins_and_one_that_ends_change_it(self):
        bench = Bench().does(Started()).hello(1, []).hello(2, [])
        bench.submit()
        assert [p.ready_max > 0 for p in bench.said(1, Pace) + bench.said(2, Pace)] == [True] * 2
        bench.submit(run=2)
        assert not bench.said(1, Pace), "it has not changed"
        bench.orders("cancel")
        assert not bench.said(1, Pace)
        bench.orders("cancel", run=2)
        assert [p.ready_max for p in bench.said(1, Pace)] == [0]

    def test_a_paused_run_wants_no_devices(self):
        bench = Bench().waiting().orders("pause")
        assert [p.ready_max for p in bench.said(1, Pace)] == [0]
        assert [p.ready_max > 0 for p in bench.orders("resume").said(1, Pace)] == [True]

    def test_a_change_is_repeated_until_the_edge_names_it(self):
        bench = Bench().does(Started()).hello(1, [])
        old = bench.machine.state.paced
        (pace,) = bench.submit().said(1, Pace)
        for _ in range(5):
            assert bench.hello(1, [], pace=old).said(1, Pace) == [pace]
        assert not bench.hello(1, [], pace=pace.number).said(1, Pace)

    def test_after_a_coordinator_that_was_lost_its_numbers_go_on(self):
        bench = Bench().started().hello(1, [])
        (pace,) = bench.hello(1, [], pace=90).said(1, Pace)
        assert pace.number == 91 and not bench.hello(1, [], pace=91).said(1)
        assert bench.hello(1, [], pace=PACE_NUMBER_MAX).ignored()

    def test_a_device_whose_number_nobody_can_have_is_no_hello_s(self):
        bench = Bench().started()
        for number in (DEVICE_NUMBER_MAX, 2**64 - 1):
            assert bench.hello(1, [10, number]).ignored()
            assert bench.hello(1, [10], away={NO_WORK: [11, number]}).ignored()
        assert bench.hello(1, [10, DEVICE_NUMBER_MAX - 1]).machine.state.edges[1].ready

    def test_a_device_must_be_of_use_to_every_run(self):
        bench = Bench(requirements=Requirements(powered=True, memory_mib=100)).started()
        bench.plan.requirements.CopyFrom(Requirements(idle=True, memory_mib=50, storage_mib=7))
        bench.submit(run=2).hello(1, [], asks_pace=True)
        assert bench.said(1, Pace)[0].requirements == Requirements(
            powered=True, idle=True, memory_mib=100, storage_mib=7
        )
        bench.orders("cancel")
        assert not bench.said(1, Pace)[0].requirements.powered

    def test_devices_come_back_as_soon_as_the_run_in_the_greatest_hurry_says(self):
        bench = Bench(after_task=RetryWindow(min_ms=900, max_ms=1_000)).started()
        bench.plan.after_task.CopyFrom(RetryWindow(min_ms=100, max_ms=5_000))
        bench.submit(run=2).hello(1, [], asks_pace=True)
        assert bench.said(1, Pace)[0].after_task == RetryWindow(min_ms=100, max_ms=1_000)


class TestSharing:
    """Runs of cohort 4, over-selected to 6, on sixteen devices."""

    def two(self, **plan):
        bench = Bench(rest_ms=0, **plan).started().submit(run=2, seed=2)
        return bench.fires("rest").fires("rest", run=2)

    def devices(self, bench, run):
        runs = bench.machine.state.runs
        return {d for a in runs[run].open for d in a.selected()}

    def finish(self, bench, run):
        """All edges of a run's attempt report, and the model is there."""
        state = bench.machine.state.runs[run]
        (attempt,) = state.open
        for number, share in attempt.shares.items():
            vectors = {d: vector(1, 1, 1) for d in share.devices}
            bench.sum(number, vectors, run=run, at=(attempt.round, attempt.attempt))
        made = NewModel(blob(chr(64 + 8 * run + state.round)))
        bench.does(ProgramFinished(state.ticket, made), after=SECOND)

    def test_two_runs_take_their_cohorts_from_one_pool(self):
        bench = self.two().hello(1, ALL[0]).hello(2, ALL[1])
        one, two = self.devices(bench, 1), self.devices(bench, 2)
        assert len(one) == len(two) == 6 and not one & two

    def test_each_has_its_own_selection_keys_tickets_and_timers(self):
        bench = self.two().hello(1, ALL[0])
        bench.hello(2, ALL[1])
        tasks = [m.task for m in bench.said(2, EdgeTask)]
        assert {t.run for t in tasks} <= {1, 2}
        first, second = (bench.machine.state.runs[r] for r in (1, 2))
        for run in (first, second):
            (attempt,) = run.open
            for number, share in attempt.shares.items():
                bench.sum(number, {d: vector(1, 1, 1) for d in share.devices}, run=run.run)
        assert first.ticket == (1 << 32) + 1 and second.ticket == (2 << 32) + 1
        assert first.phase is second.phase is Phase.AGGREGATING
        bench.does(ProgramFinished(first.ticket, NewModel(NEXT)))
        assert (first.phase, second.phase) == (Phase.WAITING, Phase.AGGREGATING)

    def test_the_one_that_took_longest_ago_is_first(self):
        bench = self.two(rounds=9).hello(1, ALL[0])
        assert len(self.devices(bench, 1)) == 6 and not self.devices(bench, 2)
        self.finish(bench, 1)
        bench.fires("rest").hello(1, ALL[0])
        assert len(self.devices(bench, 2)) == 6 and not self.devices(bench, 1)
        self.finish(bench, 2)
        bench.fires("rest", run=2).hello(1, ALL[0])
        assert len(self.devices(bench, 1)) == 6

    def test_a_small_run_does_not_overtake_a_large_one_that_waits(self):
        bench = Bench(rest_ms=0).does(Started())
        bench.submit(cohort=9, wait_ms=500_000).submit(run=2, cohort=2)
        bench.fires("rest").fires("rest", run=2)
        bench.hello(1, ALL[0])
        assert not self.devices(bench, 1) and not self.devices(bench, 2), "14 are kept for run 1"
        bench.hello(2, ALL[1])
        assert len(self.devices(bench, 1)) == 14
        assert not self.devices(bench, 2)
        bench.hello(2, [*ALL[1], 30])
        assert len(self.devices(bench, 2)) == 3, "the two that were left, and a newcomer"

    def test_two_that_have_waited_their_time_split_what_there_is(self):
        bench = self.two(cohort=8, reports_min=2).hello(1, ALL[0], after=58 * SECOND)
        bench.fires("wait", after=2 * SECOND)
        assert len(self.devices(bench, 1)) == 4
        bench.fires("wait", run=2)
        assert len(self.devices(bench, 2)) == 4

    def test_while_others_work_too_few_ready_devices_are_no_failed_attempt(self):
        bench = self.two().hello(1, ALL[0])
        bench.fires("wait", run=2, after=60 * SECOND)
        second = bench.machine.state.runs[2]
        assert (second.phase, second.failed) == (Phase.COLLECTING, 0), "two are left, and enough"
        bench = self.two(reports_min=4).hello(1, ALL[0])
        bench.fires("wait", run=2, after=60 * SECOND)
        second = bench.machine.state.runs[2]
        assert (second.phase, second.failed) == (Phase.WAITING, 0)
        bench.fires("round", after=40 * SECOND)
        bench.hello(1, []).fires("wait", run=2, after=20 * SECOND)
        assert bench.machine.state.runs[2].failed == 1, "nobody has any"

    def test_a_device_that_was_just_taken_is_not_given_away_again(self):
        bench = self.two().hello(1, ALL[0])
        taken = self.devices(bench, 1)
        bench.hello(1, ALL[0]).hello(2, [20, 21, 22, 23])
        assert not self.devices(bench, 2) & taken, "the hello was on its way before the task"
        bench.hello(1, []).hello(1, ALL[0])
        assert len(self.devices(bench, 2)) == 6

    def test_an_edge_that_is_lost_is_lost_to_every_run(self):
        bench = self.two().hello(1, ALL[0]).hello(2, ALL[1])
        owing = [r for r in (1, 2) if 1 in bench.machine.state.runs[r].open[0].shares]
        bench.hello(1, [], incarnation=2)
        assert len(bench.records("edge_lost")) == len(owing)

    def test_a_blob_that_another_run_names_is_not_dropped(self):
        bench = self.two().hello(1, ALL[0])
        bench.hello(2, ALL[1])
        self.finish(bench, 1)
        assert not bench.of(DropBlob), "run 2 still begins from it"
        self.finish(bench, 2)
        assert bench.of(DropBlob) == [DropBlob(WEIGHTS.digest)]
        assert bench.hears(1, FetchBlob(digest=WEIGHTS.digest)).ignored()
        state = bench.machine.state.runs
        for run in (1, 2):
            digest = state[run].weights.digest
            assert bench.hears(1, FetchBlob(digest=digest)).of(SendBlob) == [
                SendBlob(edge(1), digest)
            ]

    def test_a_run_that_is_over_frees_its_devices(self):
        bench = self.two().hello(1, ALL[0])
        taken = self.devices(bench, 1)
        assert set(bench.machine.state.edges[1].taken) == taken
        bench.orders("cancel")
        assert not bench.machine.state.edges[1].taken


class TestOrders:
    def test_a_run_begins_by_an_order_and_says_so(self):
        bench = Bench().does(Started()).submit(run=3)
        assert bench.records("phase") == [{"run": 3, "phase": "waiting", "why": ""}]

    def test_numbers_increase(self):
        bench = Bench().does(Started()).submit(run=3)
        for run in (1, 3):
            (refused,) = bench.submit(run=run).records("refused_order")
            assert refused["run"] == run and "cannot begin after run 3" in refused["why"]

    def test_a_plan_that_cannot_be_kept_is_refused_by_its_field(self):
        bench = Bench().does(Started()).submit(reports_min=9)
        assert bench.records("refused_order")[0]["why"].startswith("plan.reports_min")
        assert not bench.machine.state.runs and bench.machine.state.newest == 0

    def test_runs_side_by_side_are_limited(self):
        bench = Bench().does(Started())
        for run in range(1, RUNS_ACTIVE_MAX + 1):
            assert not bench.submit(run=run).records("refused_order")
        assert "active" in bench.submit(run=99).records("refused_order")[0]["why"]
        bench.orders("cancel", run=5)
        assert not bench.submit(run=99).records("refused_order")

    def test_what_is_remembered_of_runs_that_are_over_is_limited(self):
        bench = Bench().does(Started())
        for run in range(1, RUNS_ENDED_MAX + 11):
            bench.submit(run=run).orders("cancel", run=run)
        assert list(bench.machine.state.ended) == list(range(11, RUNS_ENDED_MAX + 11))
        assert not bench.machine.state.runs and not bench.machine.runs.machines

    @pytest.mark.parametrize("kind", ["pause", "resume", "cancel"])
    def test_an_order_to_a_run_that_is_not_there_is_refused(self, kind):
        bench = Bench().does(Started()).submit().orders("cancel")
        assert bench.orders(kind).records("refused_order")[0]["why"] == "run 1 is cancelled"
        assert bench.orders(kind, run=7).records("refused_order")[0]["why"] == "run 7 is not active"

    def test_an_order_that_orders_nothing_is_refused(self):
        assert Bench().started().does(Ordered(RunOrder(run=1))).records("refused_order")

    def test_check_says_the_same_before(self):
        bench = Bench().started()
        bench.machine.check(RunOrder(run=1, pause=True))
        with pytest.raises(DelianError, match="run 2 is not active"):
            bench.machine.check(RunOrder(run=2, pause=True))

    def test_an_order_of_another_kind_is_a_fault_of_the_daemon(self):
        with pytest.raises(AssertionError, match="Drain"):
            Bench().started().does(Ordered(Drain()))


def drain(bench, number, draining=True):
    return bench.does(Ordered(DrainEdge(edge=number, draining=draining)))


class TestDraining:
    def test_the_edge_alone_is_told_at_once_and_until_it_says_that_it_has_heard(self):
        bench = drain(Bench().started().hello(1, []).hello(2, []), 1)
        (pace,) = bench.said(1, Pace)
        assert pace.draining and pace.ready_max > 0 and not bench.said(2)
        assert bench.records("drain") == [{"edge": 1, "draining": True}]
        for _ in range(5):
            hello = bench.hello(1, [], pace=pace.number - 1)
            assert [p.draining for p in hello.said(1, Pace)] == [True]
        assert not bench.hello(1, [], told_draining=True).said(1)
        assert drain(bench, 1).ignored() and not bench.machine.changed

    def test_undone_it_is_told_in_the_same_way(self):
        bench = drain(Bench().started().hello(1, []), 1).hello(1, [], told_draining=True)
        (pace,) = drain(bench, 1, False).said(1, Pace)
        assert not pace.draining
        hello = bench.hello(1, [], told_draining=True, pace=pace.number - 1)
        assert hello.said(1) == [pace]
        assert not bench.hello(1, []).said(1)
        assert drain(bench, 1, False).ignored()

    def test_nobody_is_selected_there_and_what_it_has_begun_goes_on(self):
        bench = drain(Bench().waiting(), 1)
        bench.hello(2, [20, 21, 22, 23, 24, 25])
        assert set(bench.selected) == {2}
        bench = drain(Bench().collecting(), 1)
        one, two = ({d: vector(1, 2, 3) for d in devices} for devices in (bench.one, bench.two))
        bench.sum(1, one).sum(2, two)
        assert bench.program().program == "server_update"

    def test_back_in_service_its_devices_are_selected(self):
        bench = drain(drain(Bench().waiting(), 1).hello(2, [20, 21, 22]), 1, False)
        assert set(bench.selected) == {1, 2}

    def test_an_edge_may_be_drained_before_it_is_heard_of_and_over_restarts(self):
        bench = drain(Bench().started(), 7).again()
        assert [p.draining for p in bench.hello(7, [1], asks_pace=True).said(7)] == [True]
        assert not bench.machine.runs.roster().ready(bench.now)

    def test_a_change_of_pace_does_not_undo_it(self):
        bench = drain(Bench().started().hello(1, []), 1).hello(1, [], told_draining=True)
        (pace,) = bench.orders("cancel").said(1, Pace)
        assert pace.draining and pace.ready_max == 0

    def test_how_many_is_limited(self):
        bench = Bench().started()
        bench.machine.state.draining.update(dict.fromkeys(range(EDGES_MAX), True))
        with pytest.raises(DelianError, match="out of service"):
            bench.machine.check(DrainEdge(edge=EDGES_MAX, draining=True))
        assert drain(bench, EDGES_MAX).ignored()
        bench.machine.check(DrainEdge(edge=1, draining=False))
        assert not drain(bench, 1, False).ignored()


class TestDenied:
    def test_all_edges_hear_of_another_list_at_once_and_again(self):
        bench = Bench().started().hello(1, []).hello(2, [])
        bench.does(Ordered(DeniedVersion(version=3)))
        assert [p.denied_version for p in bench.said(1) + bench.said(2)] == [3, 3]
        assert bench.hello(1, [], pace=1).said(1)[0].denied_version == 3
        assert bench.does(Ordered(DeniedVersion(version=3))).ignored()
        again = bench.again()
        assert again.hello(9, [], asks_pace=True).said(9)[0].denied_version == 3


class TestNamesOfRuns:
    def test_a_timer_of_no_active_run_is_ignored(self):
        bench = Bench().waiting()
        for name in ("rest", "run/2/rest", "run/1", "run/x/rest", "run/01/rest"):
            assert bench.does(TimerFired(name)).ignored(), name

    def test_run_1_and_run_11_are_two(self):
        bench = Bench().started().submit(run=11)
        bench.fires("rest", run=11)
        assert [r.rested for r in bench.machine.state.runs.values()] == [False, True]

    def test_a_sum_of_a_run_that_is_over_is_acknowledged(self):
        bench = Bench().collecting()
        one = {d: vector(1, 2, 3) for d in bench.one}
        bench.orders("cancel").sum(1, one, at=(1, 1), part=3)
        assert bench.said(1) == [EdgeSumAck(run=1, round=1, attempt=1, part=3)]
        progress = EdgeProgress(run=1, round=1, attempt=1, edge=1)
        assert bench.hears(1, progress).ignored()

    def test_a_program_of_a_run_that_is_over_is_ignored(self):
        bench = Bench().aggregating()
        ticket = bench.state.ticket
        assert bench.orders("cancel").does(ProgramFinished(ticket, NewModel(NEXT))).ignored()


def test_before_it_has_started_nothing_is_allowed():
    with pytest.raises(ProtocolError, match="offline"):
        Bench().hello(1, [])


def test_what_an_ignored_event_leaves_is_the_state_that_was():
    bench = Bench().collecting()
    before = bench.machine.snapshot()
    bench.fires("rest")
    assert bench.ignored() and not bench.machine.changed
    assert bench.machine.snapshot() == before
    assert bench.progress(1, 1).machine.changed


def test_a_restart_finds_every_run_where_it_was():
    bench = Bench().collecting().submit(run=2).again()
    assert bench.machine.state.phase is Serving.SERVING
    assert bench.said(1, EdgeTask) and bench.of(RunProgram) == []
    assert bench.timer("rest", run=2) == bench.now
    assert bench.machine.state.newest == 2


def test_edges_and_their_devices_are_limited():
    bench = Bench().started()
    bench.hello(1, list(range(100_001)))
    assert bench.ignored() and not bench.machine.state.edges


def test_devices_and_other_tiers_are_not_heard():
    with pytest.raises(ProtocolError):
        Bench().started().does(Received(Node(Tier.DEVICE, 1), FetchBlob()))


def test_a_blob_of_no_run_is_not_given():
    bench = Bench().started().hears(1, FetchBlob(digest=BlobRef(digest=b"?" * 32).digest))
    assert bench.ignored()


class TestBlobsThatAreGone:
    @pytest.mark.parametrize("where", ["waiting", "collecting", "aggregating"])
    def test_a_run_whose_weights_are_gone_pauses_and_says_which(self, where):
        bench = getattr(Bench(), where)()
        run = bench.machine.state.runs[1]
        bench.does(BlobStored(run.weights.digest, False))
        assert run.pausing and run.weights.digest.hex() in run.stopped_by
        if where == "waiting":
            (fact,) = bench.records("phase")
            assert fact["phase"] == "paused" and "backup" in fact["why"]
        bench.orders("resume")
        assert not run.pausing and not run.stopped_by

    def test_a_run_that_does_not_need_it_goes_on(self):
        bench = Bench().waiting().does(BlobStored(b"?" * 32, False))
        assert not bench.machine.state.runs[1].pausing
        assert bench.does(BlobStored(b"?" * 32, True)).ignored()
