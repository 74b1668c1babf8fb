"""Devices judge a run's models, and a run stops when they get no better."""

from __future__ import annotations

import numpy as np
import pytest
from delian.cloud.protocol.coordinator_state import Phase
from delian.core.learning import metrics
from delian.core.protocol.ports import (
    SECOND,
    DropBlob,
)
from delian.core.wire.round_pb2 import (
    EVALUATE,
    EdgeTask,
    Flush,
    RoundClosed,
)
from support import run_bench as _bench

Bench = _bench.Bench
NEXT = _bench.NEXT
blob = _bench.blob
vector = _bench.vector
judged = _bench.judged


class TestEvaluation:
    def test_devices_judge_each_model_before_the_next_round(self):
        bench = Bench(evaluation_every=1, evaluation_cohort=4).evaluating()
        assert bench.phase is Phase.EVALUATING
        task = bench.said(1, EdgeTask)[0].task
        assert (task.purpose, task.round, task.attempt) == (EVALUATE, 2, 1)
        assert task.weights == NEXT and task.ring.dimension == 4
        judged(bench, 0.5)
        (said,) = bench.records("evaluation")
        assert (said["run"], said["round"], said["devices"]) == (1, 1, 6)
        assert said["model"] == NEXT.digest
        metrics = said["metrics"]
        assert metrics["global_loss"] == pytest.approx(1.0, rel=1e-4)
        assert metrics["personalised_loss"] == pytest.approx(0.5, rel=1e-4)
        assert metrics["global_accuracy"] == pytest.approx(0.25, rel=1e-4)
        assert metrics["personalised_accuracy"] == pytest.approx(0.75, rel=1e-4)
        assert metrics["queries"] == pytest.approx(600, rel=1e-3)
        assert bench.phase is Phase.WAITING
        bench.rested()
        assert bench.phase is Phase.COLLECTING and bench.at == (2, 2)
        assert bench.said(1, EdgeTask)[0].task.weights == NEXT

    def test_the_edges_keep_the_weights_for_the_round(self):
        bench = judged(Bench(evaluation_every=1, evaluation_cohort=4).evaluating(), 0.5)
        assert [m.succeeded for m in bench.said(2, RoundClosed)] == [False]
        assert not bench.of(DropBlob)

    def test_it_takes_its_target_and_asks_for_the_sums(self):
        bench = Bench(evaluation_every=1, evaluation_cohort=4).evaluating()
        bench.progress(1, 2).progress(2, 2)
        assert bench.said(1, Flush) and bench.said(2, Flush)

    def test_every_so_many_models_and_the_last(self):
        bench = Bench(rounds=3, evaluation_every=2, evaluation_cohort=4)
        bench.aggregating().updated()
        assert not bench.state.evaluates
        bench.rested()
        for number in (1, 2):
            bench.sum(number, {d: vector(1, 1, 1) for d in bench.selected[number]})
        bench.updated(blob("x"))
        assert bench.state.evaluates
        bench.rested()
        bench.one, bench.two = bench.selected[1], bench.selected[2]
        assert not judged(bench, 0.5).state.evaluates
        bench.rested()
        for number in (1, 2):
            bench.sum(number, {d: vector(1, 1, 1) for d in bench.selected[number]})
        bench.updated(blob("y"))
        assert bench.phase is Phase.WAITING and bench.state.evaluates
        bench.rested()
        bench.one, bench.two = bench.selected[1], bench.selected[2]
        assert judged(bench, 0.5).phase is Phase.DONE
        assert (bench.ended.round, bench.ended.weights) == (3, blob("y"))

    def test_too_few_ready_devices_skip_it(self):
        bench = Bench(evaluation_every=1).aggregating().updated()
        bench.hello(1, []).hello(2, [])
        bench.fires("wait", after=60 * SECOND)
        (said,) = bench.records("evaluation_skipped")
        assert said["why"] == "too few devices are ready" and said["round"] == 1
        assert bench.phase is Phase.WAITING and bench.state.failed == 0

    def test_too_few_reports_skip_it(self):
        bench = Bench(evaluation_every=1).evaluating()
        bench.fires("round", after=100 * SECOND)
        (said,) = bench.records("evaluation_skipped")
        assert said["why"] == "too few devices reported"
        assert bench.phase is Phase.WAITING and bench.state.failed == 0

    def test_an_edge_that_is_lost_counts_for_nothing_in_it(self):
        bench = Bench(evaluation_every=1).evaluating().hello(2, [], incarnation=2)
        bench.sum(1, {})
        assert bench.records("evaluation_skipped")

    def test_a_sum_that_cannot_be_decoded_skips_it(self):
        bench = Bench(evaluation_every=1).evaluating()
        for number, chosen in ((1, bench.one), (2, bench.two)):
            bench.sum(number, {d: np.zeros(5, np.uint32) for d in chosen})
        assert "weights" in bench.records("evaluation_skipped")[0]["why"]

    def test_a_sum_of_another_length_is_refused(self):
        bench = Bench(evaluation_every=1).evaluating()
        bench.sum(1, {d: vector(1, 2, 3) for d in bench.one})
        assert bench.records("refused_sum")

    def test_all_evaluations_have_one_key_and_rounds_have_theirs(self):
        bench = Bench(rounds=3, evaluation_every=1, evaluation_cohort=4).collecting()
        keys = [bench.said(1, EdgeTask)[0].task.rng_key]
        for letter in "xy":
            for number in (1, 2):
                bench.sum(number, {d: vector(1, 1, 1) for d in bench.selected[number]})
            bench.updated(blob(letter)).rested()
            keys.append(bench.said(1, EdgeTask)[0].task.rng_key)
            bench.one, bench.two = bench.selected[1], bench.selected[2]
            judged(bench, 0.5).rested()
            keys.append(bench.said(1, EdgeTask)[0].task.rng_key)
        train, first, second, third = keys[0], keys[1], keys[2], keys[3]
        assert first == third and len({train, first, second, keys[4]}) == 4


class TestStoppingEarly:
    def losses(self, losses, **plan):
        """Runs rounds with an evaluation of such a loss after each; gives how many there were."""
        changes = {"rounds": 9, "evaluation_every": 1, "evaluation_cohort": 4, **plan}
        bench = Bench(**changes).waiting()
        bench.hello(2, [20, 21, 22, 23])
        for n, loss in enumerate(losses):
            for number in (1, 2):
                bench.sum(number, {d: vector(1, 1, 1) for d in bench.selected[number]})
            bench.updated(blob(chr(65 + n))).rested()
            bench.one, bench.two = bench.selected[1], bench.selected[2]
            if judged(bench, loss).phase is Phase.DONE:
                break
            bench.rested()
        return bench, n + 1

    def test_it_stops_when_the_personal_loss_gets_no_better(self):
        bench, models = self.losses([0.9, 0.5, 0.6, 0.5, 0.1], patience=2)
        assert (bench.phase, models) == (Phase.DONE, 4)
        assert bench.ended.why == "no better in 2 evaluations" and bench.ended.round == 4
        assert bench.records("phase") == [
            {"run": 1, "phase": "done", "why": "no better in 2 evaluations"}
        ]

    def test_better_is_a_share_of_the_best(self):
        bench, models = self.losses([1.0, 0.95, 0.85, 0.8], patience=1, improvement_min=0.1)
        assert (bench.phase, models) == (Phase.DONE, 2)
        bench, models = self.losses([1.0, 0.85, 0.7], patience=1, improvement_min=0.1)
        assert (bench.phase, models) == (Phase.COLLECTING, 3)

    def test_losses_at_their_limit_tell_nothing_until_one_is_below(self):
        most = metrics.LOSS_MAX
        bench, models = self.losses([most, most, most, 50.0, 40.0], patience=2)
        assert (bench.phase, models) == (Phase.COLLECTING, 5)
        bench, models = self.losses([50.0, most, most, most], patience=2)
        assert (bench.phase, models) == (Phase.DONE, 3)

    def test_without_patience_it_goes_on(self):
        bench, models = self.losses([0.1, 0.2, 0.3, 0.4])
        assert (bench.phase, models) == (Phase.COLLECTING, 4)
