"""A buffered-asynchronous run, event by event: K = 4 updates make a model, M = 8 devices are at
work.
"""

from __future__ import annotations

import numpy as np
import pytest
from delian.cloud.protocol.buffered import Buffered
from delian.cloud.protocol.buffered_machine import TABLE, WAVES_MAX
from delian.cloud.protocol.coordinator_state import Phase
from delian.cloud.protocol.staleness import staleness_weight
from delian.core.protocol.machine import IGNORE
from delian.core.protocol.ports import (
    SECOND,
    CancelProgram,
    DropBlob,
    ProgramFinished,
    ProgramStopped,
    RunProgram,
    SendBlob,
)
from delian.core.wire.blob_pb2 import FetchBlob
from delian.core.wire.round_pb2 import (
    EVALUATE,
    NON_FINITE,
    PROGRAM_FAILED,
    DeviceFailure,
    EdgeSumAck,
    EdgeTask,
    Flush,
    RoundClosed,
)
from support import run_bench as _bench

BUNDLE = _bench.BUNDLE
NEXT = _bench.NEXT
RING = _bench.RING
WAVES = _bench.WAVES
WEIGHTS = _bench.WEIGHTS
blob = _bench.blob
edge = _bench.edge
judged = _bench.judged
vector = _bench.vector

HERE = [10, 11, 12, 13]
THERE = [20, 21, 22, 23]


class Bench(_bench.Bench):
    """`one` and `two`: the devices of the first wave behind either edge."""

    def __init__(self, *arguments, **changes):
        super().__init__(*arguments, **{**WAVES, **changes})

    def training(self):
        """The first wave: all eight, four behind each edge; both edges have shown life."""
        self.started().hello(1, HERE)
        self.hello(2, THERE)
        self.fires("rest", after=5 * SECOND)
        self.one, self.two = HERE, THERE
        for wave in list(self.state.open):
            for number in wave.shares:
                self.progress(number, 0, at=(wave.round, wave.attempt))
        return self

    def waves(self):
        return [(w.round, w.attempt) for w in self.state.open]

    def wave_of(self, device):
        """The newest wave that a device is in."""
        return next(
            (w.round, w.attempt)
            for w in reversed(self.state.open)
            if any(device in s.devices for s in w.shares.values())
        )

    def part(self, number, devices, steps=(1, 1, 1), at=None, **changes):
        """Part of an edge's sum, after which it goes on."""
        changes = {"more": True, **changes}
        return self.sum(number, {d: vector(*steps) for d in devices}, at=at, **changes)

    def full(self):
        """Four updates of the first wave are in."""
        self.training().part(1, [10, 11], at=self.wave_of(10))
        return self.part(2, [20, 21], at=self.wave_of(20))

    def new(self):
        """The second model; 12, 13, 22 and 23 are still at work on the first."""
        return self.full().updated()

    def back(self, *devices):
        """Devices are ready again, and the run has rested."""
        self.hello(1, [d for d in devices if d < 20]).hello(2, [d for d in devices if d >= 20])
        return self.fires("rest", after=5 * SECOND)


def failed(devices):
    return [DeviceFailure(device=d) for d in devices]


def mean_of(bench):
    return bench.program().arguments


def test_every_action_in_the_table_is_one_of_the_machine():
    assert {r.action for r in TABLE} - {IGNORE} <= set(vars(Buffered).values())


class TestWaves:
    def test_all_devices_that_have_a_place_begin_from_the_newest_model(self):
        bench = Bench().started().hello(1, HERE)
        (message,) = bench.said(1, EdgeTask)
        assert list(message.devices) == HERE and message.task.weights == WEIGHTS
        assert (message.task.round, message.task.attempt) == (1, 1)
        bench.hello(2, [*THERE, 24, 25])
        (message,) = bench.said(2, EdgeTask)
        assert len(message.devices) == 4 and (message.task.round, message.task.attempt) == (1, 2)
        bench.hello(1, [14, 15]).fires("rest", after=5 * SECOND)
        assert not bench.said(1), "eight are at work"

    def test_a_single_device_begins_when_the_run_has_rested(self):
        bench = Bench(concurrency=16).started().hello(1, [10])
        assert not bench.said(1)
        assert bench.fires("rest", after=5 * SECOND).said(1, EdgeTask)

    def test_a_device_that_has_answered_leaves_its_place(self):
        bench = Bench().training().progress(1, 2, at=(1, 1))
        bench.hello(1, [10, 14])
        assert [list(m.devices) for m in bench.said(1, EdgeTask)] == [[14]]

    def test_an_edge_that_counts_more_than_it_has_makes_no_places(self):
        bench = Bench().training()
        bench.progress(1, 2**32 - 1, at=(1, 1)).progress(1, 2**32 - 1, at=(1, 1), part=1)
        bench.hello(1, [*range(100, 140)]).fires("rest", after=5 * SECOND)
        assert all(wave.working() >= 0 for wave in bench.state.open)
        # As many as are to be at work: a sum of more might not fit the ring.
        assert max(len(wave.selected()) for wave in bench.state.open) <= 8

    def test_each_wave_has_its_own_key(self):
        bench = Bench().started().hello(1, HERE)
        first = bench.said(1, EdgeTask)[0].task.rng_key
        assert bench.hello(2, THERE).said(2, EdgeTask)[0].task.rng_key != first

    def test_only_a_wave_that_is_alone_says_so(self):
        bench = Bench().started().hello(1, HERE)
        assert bench.said(1, EdgeTask)[0].alone
        assert not bench.hello(2, THERE).said(2, EdgeTask)[0].alone

    def test_no_more_waves_than_edges_can_keep_are_open(self):
        bench = Bench(concurrency=16, rest_ms=0).started()
        for device in range(10, 10 + WAVES_MAX + 3):
            bench.hello(1, [device])
        assert len(bench.waves()) == 16 and bench.machine.runs.active()[0].wanted() == 0

    def test_silent_edges_are_tasked_again_until_they_answer(self):
        bench = Bench().started().hello(1, HERE)
        assert bench.fires("repeat/1/1", after=3 * SECOND).said(1)[0].time_ms == 97_000
        bench.progress(1, 0)
        assert not bench.fires("repeat/1/1", after=4 * SECOND).effects

    def test_a_fetch_does_not_say_for_which_wave(self):
        bench = Bench().started().hello(1, HERE)
        bench.hears(1, FetchBlob(digest=WEIGHTS.digest))
        assert bench.of(SendBlob) and not bench.ignored()
        assert bench.fires("repeat/1/1", after=3 * SECOND).said(1, EdgeTask)

    def test_a_wave_whose_devices_have_all_answered_is_over(self):
        bench = Bench().training().part(1, HERE[:2], at=(1, 1))
        bench.part(1, [12], failures=[DeviceFailure(device=13)], at=(1, 1), part=1, more=False)
        assert bench.waves() == [(1, 2)]
        assert [m.succeeded for m in bench.said(1, RoundClosed)] == [False], "weights are kept"
        assert not bench.machine.state.edges[1].taken

    def test_a_wave_whose_time_is_over_is_closed_and_what_came_stays(self):
        bench = Bench().training().part(1, HERE[:3], at=(1, 1))
        bench.fires("wave/1/1", after=90 * SECOND)
        assert bench.ignored()
        bench.fires("wave/1/1", after=5 * SECOND)
        assert bench.waves() == [(1, 2)] and bench.said(1, RoundClosed)
        bench.sum(1, {13: vector(1, 1, 1)}, at=(1, 1), part=1)
        assert bench.said(1) == [EdgeSumAck(run=1, round=1, attempt=1, part=1)]
        bench.part(2, [20], at=(1, 2))
        assert bench.phase is Phase.AGGREGATING, "three of the closed wave and one of the other"
        assert mean_of(bench)[1] == 2.0
        facts = bench.updated().facts()
        assert facts["reported"] == [10, 11, 12, 20] and facts["selected"] == [10, 11, 12, 13, 20]

    def test_an_edge_that_is_lost_takes_what_it_had_with_it(self):
        bench = Bench().training().part(1, [10], at=(1, 1)).progress(1, 2, at=(1, 1), part=1)
        bench.hello(1, [], incarnation=2)
        assert bench.records("edge_lost") and bench.waves() == [(1, 2)]
        bench.part(2, [20, 21], at=(1, 2))
        assert bench.phase is Phase.COLLECTING, "one and two are three"
        bench.part(2, [22], at=(1, 2), part=1)
        assert bench.phase is Phase.AGGREGATING

    def test_what_nobody_could_do_is_not_tried_again_at_once(self):
        bench = Bench(rest_ms=0).started().hello(1, HERE)
        bench.sum(1, {}, at=(1, 1))
        bench.hello(1, HERE)
        assert not bench.said(1, EdgeTask)
        assert bench.fires("rest", after=2 * SECOND).said(1, EdgeTask)


class TestParts:
    def test_when_enough_are_with_the_edges_those_that_have_some_are_asked(self):
        bench = Bench().training().progress(1, 3, at=(1, 1))
        assert not bench.said(1)
        bench.progress(2, 1, at=(1, 2))
        assert bench.said(1) == [Flush(run=1, round=1, attempt=1, part=0, go_on=True)]
        assert bench.said(2) == [Flush(run=1, round=1, attempt=2, part=0, go_on=True)]

    def test_an_edge_with_nothing_is_not_asked(self):
        bench = Bench().training().progress(1, 4, at=(1, 1))
        assert bench.said(1, Flush) and not bench.said(2)

    def test_a_part_is_asked_for_once_and_repeated_when_it_does_not_come(self):
        bench = Bench().training().progress(1, 4, at=(1, 1)).progress(1, 4, at=(1, 1))
        assert not bench.said(1)
        assert bench.fires("repeat/1/1", after=3 * SECOND).said(1, Flush)
        bench.part(1, HERE[:3], at=(1, 1))
        assert not bench.fires("repeat/1/1", after=4 * SECOND).said(1, Flush)

    def test_parts_that_are_here_and_at_the_edges_count_together(self):
        bench = Bench().training().part(1, [10, 11], at=(1, 1)).progress(2, 2, at=(1, 2))
        assert bench.said(2, Flush) and not bench.said(1)

    def test_a_count_of_the_next_part_may_come_before_this_one(self):
        bench = Bench().training().progress(1, 1, at=(1, 1), part=1)
        share = bench.state.open[0].shares[1]
        assert (share.counted, share.later) == (0, 1)
        bench.part(1, [10, 11], at=(1, 1))
        assert (share.part, share.counted, share.later) == (1, 1, 0)
        assert bench.progress(1, 1, at=(1, 1), part=3).ignored()

    def test_a_part_comes_again_when_its_acknowledgement_was_lost(self):
        bench = Bench().training().part(1, [10], at=(1, 1)).part(1, [10], at=(1, 1))
        assert bench.said(1) == [EdgeSumAck(run=1, round=1, attempt=1, part=0)]
        assert bench.state.open[0].unused == [10]

    def test_a_part_that_overtook_another_is_not_acknowledged(self):
        bench = Bench().training().part(1, [11], at=(1, 1), part=1)
        assert bench.ignored() and not bench.said(1)

    @pytest.mark.parametrize("changes", [{"count": 3}, {"devices": [10, 20]}, {"sum": b"1234"}])
    def test_a_part_that_no_honest_edge_sends_is_not_counted(self, changes):
        fields = {"more": True, "at": (1, 1), **changes}
        bench = Bench().training().sum(1, dict.fromkeys([10, 11], vector(1, 1, 1)), **fields)
        assert bench.records("refused_sum") and bench.waves() == [(1, 2)]

    def test_a_device_is_counted_once_in_a_wave(self):
        bench = Bench().training().part(1, [10], at=(1, 1)).part(1, [10], at=(1, 1), part=1)
        assert bench.records("refused_sum")


class TestModels:
    def test_four_updates_make_a_model(self):
        bench = Bench().full()
        assert bench.phase is Phase.AGGREGATING
        run = bench.program()
        assert (run.program, run.blobs) == ("server_update", (BUNDLE.digest, WEIGHTS.digest))
        step, weight = run.arguments
        assert weight == 2.0
        np.testing.assert_allclose(step, np.full(3, 4 / RING.scale / 2.0), rtol=1e-6)
        bench.updated()
        assert (bench.phase, bench.state.round, bench.state.weights) == (Phase.COLLECTING, 2, NEXT)
        assert bench.facts()["staleness"] == {0: 4} and bench.facts()["attempt"] == 2

    def test_old_weights_stay_while_waves_from_them_are_open(self):
        bench = Bench().new()
        assert not bench.of(DropBlob)
        assert bench.hears(1, FetchBlob(digest=WEIGHTS.digest)).of(SendBlob)
        bench.part(1, [12, 13], at=(1, 1), part=1, more=False)
        assert [m.succeeded for m in bench.said(1, RoundClosed)] == [True]
        assert not bench.of(DropBlob)
        bench.part(2, [22], at=(1, 2), part=1, more=False)
        assert bench.of(DropBlob) == [DropBlob(WEIGHTS.digest)]

    def test_later_waves_begin_from_the_new_model(self):
        bench = Bench().new().back(10, 11, 20, 21)
        tasks = [m.task for m in bench.said(1, EdgeTask)]
        assert all(t.weights == NEXT and t.round == 2 for t in tasks)
        assert {(2, 1)} <= set(bench.waves())

    def test_older_updates_count_less_by_hand(self):
        """Two fresh updates of (2, 0, 4) and two that are one model old, of (6, 4, 0), each of
        weight one half:

            delta = (s(0) * 1 * (2, 0, 4) + s(1) * 1 * (6, 4, 0)) / 2,  s(1) = 1 / sqrt(2)
        """
        bench = Bench().new().back(10, 11, 20, 21)
        bench.part(1, [12, 13], (6, 4, 0), at=(1, 1), part=1, more=False)
        fresh = bench.wave_of(10)
        bench.part(1, [10, 11], (2, 0, 4), at=fresh)
        assert bench.phase is Phase.AGGREGATING
        step, weight = mean_of(bench)
        assert weight == 2.0
        old = 1 / np.sqrt(2.0)
        # One update of so many steps has the mean steps / scale / one half.
        expected = np.array([2 + 6 * old, 4 * old, 4]) / 2 / RING.scale / 0.5
        np.testing.assert_allclose(step, expected, rtol=1e-6)
        assert bench.updated(blob("x")).facts()["staleness"] == {0: 2, 1: 2}

    def test_weights_of_staleness(self):
        assert [staleness_weight(t) for t in (0, 3, 8)] == [1.0, 0.5, pytest.approx(1 / 3)]

    def test_updates_that_are_too_old_are_dropped_and_counted(self):
        bench = Bench(rounds=9, staleness_max=1).new()
        for letter in "xy":
            bench.back(10, 11, 20, 21)
            bench.part(1, [10, 11], at=bench.wave_of(10))
            assert bench.phase is Phase.COLLECTING, "stale ones do not count"
            bench.part(2, [20, 21], at=bench.wave_of(20))
            bench.updated(blob(letter))
            if letter == "x":
                bench.part(1, [12, 13], at=(1, 1), part=1, more=False)
                (stale,) = bench.records("stale")
                assert (stale["round"], stale["count"]) == (1, 2)
        facts = bench.facts()
        assert facts["stale"] == 2 and facts["reported"] == [10, 11, 20, 21]
        assert facts["selected"] == [10, 11, 12, 13, 20, 21]

    def test_what_comes_while_a_model_is_made_counts_for_the_next(self):
        bench = Bench().full().part(1, [12, 13], at=(1, 1), part=1, more=False)
        bench.part(2, [22, 23], at=(1, 2), part=1, more=False)
        assert bench.phase is Phase.AGGREGATING and not bench.of(RunProgram)
        bench.updated()
        assert bench.phase is Phase.AGGREGATING and bench.state.round == 2
        np.testing.assert_allclose(
            mean_of(bench)[0], np.full(3, 2 / RING.scale / np.sqrt(2.0)), rtol=1e-6
        )

    def test_a_sum_larger_than_the_ring_holds_is_decoded_in_pieces(self):
        bench = Bench(buffer=8, concurrency=8).training()
        for wave, number, devices in (((1, 1), 1, HERE), ((1, 2), 2, THERE)):
            bench.part(number, devices, at=wave, more=False)
        step, weight = mean_of(bench)
        assert weight == 4.0
        np.testing.assert_allclose(step, np.full(3, 2 / RING.scale), rtol=1e-6)

    def test_failures_are_recorded_with_their_reasons(self):
        bench = Bench().training()
        failures = [DeviceFailure(device=13, reason=NON_FINITE)]
        bench.part(1, [10, 11, 12], failures=failures, at=(1, 1), more=False)
        facts = bench.part(2, [20], at=(1, 2)).updated().facts()
        assert facts["refused"] == {13: NON_FINITE}

    def test_all_models_are_made(self):
        bench = Bench(rounds=1).full().updated()
        assert bench.phase is Phase.DONE and bench.ended.weights == NEXT
        assert bench.said(1, RoundClosed) and bench.said(2, RoundClosed)
        assert bench.of(DropBlob) == [DropBlob(WEIGHTS.digest)]


class TestFailing:
    def test_a_server_update_that_fails_loses_its_updates_and_the_run_goes_on(self):
        bench = Bench().full()
        bench.does(ProgramFinished(bench.state.ticket, ProgramStopped(PROGRAM_FAILED)))
        assert bench.phase is Phase.COLLECTING and bench.state.spoilt == 1
        assert not bench.facts()["succeeded"]
        bench.part(1, [12, 13], at=(1, 1), part=1)
        assert bench.phase is Phase.COLLECTING and bench.state.spoilt == 1

    def test_a_model_makes_good_for_what_was_lost_before(self):
        bench = Bench().full()
        bench.does(ProgramFinished(bench.state.ticket, ProgramStopped(PROGRAM_FAILED)))
        bench.part(1, [12, 13], at=(1, 1), part=1)
        bench.part(2, [22, 23], at=bench.wave_of(22), part=1)
        assert bench.phase is Phase.AGGREGATING and bench.state.spoilt == 1
        assert bench.updated().state.spoilt == 0

    def test_a_rest_that_ends_while_a_model_is_made_is_over_for_good(self):
        bench = Bench().training().sum(1, {}, at=(1, 1), failures=failed(HERE))
        assert bench.state.cooling and not bench.state.rested, "nothing came of a wave"
        bench.sum(2, {d: vector(1, 1, 1) for d in THERE}, at=(1, 2))
        assert bench.phase is Phase.AGGREGATING
        bench.fires("rest", after=10 * SECOND)
        assert bench.updated().state.rested

    def test_sums_that_cannot_be_decoded_are_lost(self):
        bench = Bench().training()
        nothing = np.zeros(4, np.uint32)
        bench.sum(1, dict.fromkeys(HERE, nothing), at=(1, 1))
        assert bench.phase is Phase.COLLECTING and "weights" in bench.facts()["why"]

    def test_without_updates_it_gives_up_after_a_while(self):
        bench = Bench(attempts_max=2).started()
        bench.fires("wait", after=160 * SECOND)
        assert bench.phase is Phase.COLLECTING and bench.facts()["why"] == "no updates come"
        bench.fires("wait", after=160 * SECOND)
        assert bench.phase is Phase.FAILED and bench.ended.why == "no updates come"
        assert bench.records("run_failed")

    def test_updates_restart_its_patience(self):
        bench = Bench().training()
        bench.now += 50 * SECOND
        bench.part(1, [10], at=(1, 1))
        assert bench.timer("wait") == bench.now + 160 * SECOND

    def test_an_update_that_fails_too_often_ends_the_run(self):
        bench = Bench(attempts_max=1).full()
        bench.does(ProgramFinished(bench.state.ticket, ProgramStopped(PROGRAM_FAILED)))
        assert bench.phase is Phase.FAILED

    def test_while_others_have_the_devices_it_does_not_fail(self):
        bench = Bench(attempts_max=1).training().submit(run=2)
        bench.fires("wait", run=2, after=160 * SECOND)
        assert 2 in bench.machine.state.runs
        for wave in ("wave/1/1", "wave/1/2"):
            bench.fires(wave)
        bench.fires("wait", run=2, after=160 * SECOND)
        assert bench.machine.state.ended[2].phase is Phase.FAILED


class TestEvaluation:
    def due(self, **plan):
        return Bench(**{"evaluation_every": 1, "evaluation_cohort": 4, "rounds": 3, **plan}).new()

    def test_a_wave_judges_the_newest_model_beside_the_others(self):
        bench = self.due().hello(1, [10, 11])
        bench.hello(2, [20, 21])
        tasks = [m.task for n in (1, 2) for m in bench.said(n, EdgeTask)]
        assert {(t.purpose, t.weights.digest) for t in tasks} == {(EVALUATE, NEXT.digest)}
        assert {(t.round, t.attempt) for t in tasks} == {(2, 1)} and not tasks[0].ring.dimension - 4
        assert len(bench.waves()) == 3 and bench.phase is Phase.COLLECTING
        bench.progress(1, 2, at=(2, 1)).progress(2, 2, at=(2, 1))
        assert bench.said(1) == [Flush(run=1, round=2, attempt=1)]

    def test_fewer_will_do_once_it_has_rested(self):
        bench = self.due().hello(1, [10, 11])
        assert not bench.said(1, EdgeTask)
        assert bench.fires("rest", after=5 * SECOND).said(1, EdgeTask)[0].task.purpose == EVALUATE

    def test_without_devices_it_is_skipped(self):
        bench = self.due().fires("judges", after=60 * SECOND)
        (said,) = bench.records("evaluation_skipped")
        assert said["round"] == 1 and not bench.state.evaluates
        assert bench.phase is Phase.COLLECTING

    def judged(self, bench, loss):
        """The newest wave reports."""
        wave = bench.state.open[-1]
        for number in list(wave.shares):
            bench.one, bench.two = (wave.shares[n].devices if n == number else [] for n in (1, 2))
            side = bench.one or bench.two
            vectors = _bench.metrics_of(bench, side, loss)
            bench.sum(number, vectors, at=(wave.round, wave.attempt))
        return bench

    def test_its_metrics_are_recorded(self):
        bench = self.judged(self.due().back(10, 11, 20, 21), 0.5)
        (said,) = bench.records("evaluation")
        assert (said["round"], said["devices"], said["model"]) == (1, 4, NEXT.digest)
        assert said["metrics"]["personalised_loss"] == pytest.approx(0.5, rel=1e-3)

    def test_one_at_a_time(self):
        bench = self.due().back(10, 11, 20, 21)
        bench.part(1, [12, 13], at=(1, 1), part=1, more=False)
        bench.part(2, [22, 23], at=(1, 2), part=1, more=False)
        bench.updated(blob("x"))
        assert bench.records("evaluation_skipped")[0]["why"] == "the one before it is not over"

    def test_the_last_model_is_judged_alone(self):
        bench = self.due(rounds=1)
        assert bench.phase is Phase.EVALUATING and not bench.state.open
        bench.back(10, 11, 20, 21)
        assert bench.phase is Phase.EVALUATING and len(bench.state.open) == 1
        assert self.judged(bench, 0.5).phase is Phase.DONE
        assert bench.records("evaluation")

    def test_the_last_evaluation_may_be_skipped(self):
        bench = self.due(rounds=1).fires("judges", after=60 * SECOND)
        assert bench.phase is Phase.DONE and bench.records("evaluation_skipped")

    def test_it_stops_early(self):
        bench = self.due(patience=1, rounds=9).back(10, 11, 20, 21)
        self.judged(bench, 0.5)
        bench.part(1, [12, 13], at=(1, 1), part=1, more=False)
        bench.part(2, [22, 23], at=(1, 2), part=1, more=False)
        bench.updated(blob("x")).back(10, 11, 20, 21)
        self.judged(bench, 0.6)
        assert bench.phase is Phase.DONE and bench.ended.why == "no better in 1 evaluations"


class TestOrders:
    def test_a_pause_lets_waves_end_and_begins_none(self):
        bench = Bench().training().orders("pause")
        assert bench.phase is Phase.COLLECTING
        bench.hello(1, [14, 15]).sum(1, {10: vector(1, 1, 1)}, at=(1, 1))
        bench.sum(2, {20: vector(1, 1, 1)}, at=(1, 2))
        assert bench.phase is Phase.PAUSED and not bench.of(RunProgram)
        assert bench.orders("pause").ignored()
        bench.orders("resume").hello(1, HERE)
        assert bench.phase is Phase.COLLECTING and bench.said(1, EdgeTask)
        bench.part(1, [10, 11], at=bench.wave_of(10))
        assert bench.phase is Phase.AGGREGATING, "what came before the pause counts"

    def test_a_pause_while_a_model_is_made(self):
        bench = Bench().training().part(1, HERE, at=(1, 1), more=False)
        bench.part(2, THERE[:1], at=(1, 2), more=False).orders("pause")
        assert bench.phase is Phase.AGGREGATING
        assert bench.updated().phase is Phase.PAUSED and bench.state.round == 2

    def test_a_pause_can_be_taken_back(self):
        bench = Bench().training().orders("pause").orders("resume")
        assert bench.phase is Phase.COLLECTING and bench.orders("resume").ignored()

    def test_the_last_evaluation_can_be_paused(self):
        bench = Bench(rounds=1, evaluation_every=1).new().orders("pause")
        assert bench.phase is Phase.PAUSED
        assert bench.orders("resume").phase is Phase.EVALUATING
        assert bench.fires("judges", after=60 * SECOND).phase is Phase.DONE

    @pytest.mark.parametrize("where", ["training", "full", "new"])
    def test_a_cancelled_run_keeps_its_newest_model(self, where):
        bench = getattr(Bench(), where)()
        ticket = bench.state.ticket
        bench.orders("cancel")
        assert bench.phase is Phase.CANCELLED and bench.said(1, RoundClosed)
        assert bench.ended.weights == (NEXT if where == "new" else WEIGHTS)
        assert bench.of(CancelProgram) == ([CancelProgram(ticket)] if where == "full" else [])

    def test_ordered_weights_drop_what_began_from_others(self):
        bench = Bench().training().part(1, [10, 11], at=(1, 1)).orders("weights", blob("o"))
        assert bench.state.weights == blob("o") and not bench.state.open
        assert bench.said(1, RoundClosed) and bench.of(DropBlob) == [DropBlob(WEIGHTS.digest)]
        bench.hello(1, []).hello(1, HERE)
        (message,) = bench.said(1, EdgeTask)
        assert message.task.weights == blob("o")
        assert (message.task.round, message.task.attempt) == (1, 3)

    def test_ordered_weights_wait_for_the_model_that_is_being_made(self):
        bench = Bench().full().orders("weights", blob("o"))
        assert bench.state.weights == WEIGHTS
        bench.updated()
        assert bench.facts()["model"] == NEXT.digest and bench.state.weights == blob("o")
        assert {e.digest for e in bench.of(DropBlob)} == {WEIGHTS.digest, NEXT.digest}

    def test_weights_ordered_while_the_last_model_is_judged_are_judged_in_its_place(self):
        bench = Bench(rounds=1, evaluation_every=1, evaluation_cohort=4).new().back(10, 11, 20, 21)
        assert bench.phase is Phase.EVALUATING and len(bench.state.open) == 1
        bench.orders("weights", blob("o"))
        assert bench.records("evaluation_skipped") and bench.phase is Phase.EVALUATING
        bench.back(10, 11, 20, 21)
        assert [w.weights for w in bench.state.open] == [blob("o")]

    def test_ordered_weights_end_the_waves_that_a_pause_waits_for(self):
        bench = Bench().training().orders("pause").orders("weights", blob("o"))
        assert bench.phase is Phase.PAUSED
        assert bench.orders("weights", blob("p")).phase is Phase.PAUSED
        assert bench.state.weights == blob("p")


class TestRestart:
    def test_open_waves_go_on(self):
        bench = Bench().training().part(1, [10, 11], at=(1, 1))
        again = bench.again()
        assert not again.said(1, EdgeTask), "that edge has shown life"
        assert again.timer("wave/1/1") == bench.state.open[0].ends_ns
        again.part(1, [12], at=(1, 1), part=1).part(2, [20], at=(1, 2))
        assert again.phase is Phase.AGGREGATING

    def test_an_edge_that_has_not_answered_is_tasked_again(self):
        assert Bench().started().hello(1, HERE).again().said(1, EdgeTask)

    def test_a_model_is_made_again_of_the_same(self):
        bench = Bench().full()
        again = bench.again()
        assert np.array_equal(mean_of(bench)[0], mean_of(again)[0])
        assert again.updated().state.round == 2

    def test_a_rest_goes_on_while_a_model_is_made_again(self):
        bench = Bench().training().sum(1, {}, at=(1, 1), failures=failed(HERE))
        again = bench.sum(2, {d: vector(1, 1, 1) for d in THERE}, at=(1, 2)).again()
        assert again.phase is Phase.AGGREGATING and not again.state.rested
        again.fires("rest", after=again.timer("rest") - again.now)
        assert again.state.rested

    def test_a_paused_run_stays_paused(self):
        bench = Bench().started().orders("pause").again()
        assert bench.phase is Phase.PAUSED

    def test_an_evaluation_that_is_due_stays_due(self):
        again = Bench(evaluation_every=1).new().again()
        assert again.timer("judges") == again.now + 60 * SECOND


@pytest.mark.parametrize("name", ["wait", "judges", "wave/9/9", "repeat/1/9", "x/1/2/3"])
def test_a_timer_that_was_cancelled_may_still_fire(name):
    assert Bench().full().fires(name).ignored()
