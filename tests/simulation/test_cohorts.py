"""Masked rounds of several cohorts through all three tiers, and models that are given up."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest
from delian.cloud.protocol.run_plan import RunPlan
from delian.core.common.errors import DelianError
from delian.core.learning import metrics
from delian.core.learning.runtime import Score
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.ports import Outcome
from delian.core.wire.blob_pb2 import BlobRef
from delian.core.wire.operator_pb2 import MEDIAN
from delian.simulations.federation.fault_settings import Crash, Faults
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import Fleet
from delian.simulations.runs.stage import Stage
from delian.simulations.scenario.federation_plan import FederationPlan
from delian.simulations.scenario.scenario_file import load, override
from support.stub_training import StubTraining

RING = RingPlan(clip=10.0, clients_max=64, dimension=20)
SECURE = {"aggregation": "secure", "cohort_min": 5, "corrupt": 0.1, "dropout": 0.2}
PLAN = {
    "rounds": 2,
    "cohort": 30,
    "over_selection": 1.0,
    "ring": RING,
    "fleet": Fleet(36, 4),
    "pool_share": 1.0,
}


def trained(training=None, seed=3, ring=RING, **changes):
    plan = FederationPlan.of(**{**PLAN, "ring": ring, **changes})
    federation = Federation(plan, training or StubTraining(ring), seed=seed)
    return federation, federation.run()


class TestRounds:
    def test_a_cut_round_gives_the_model_of_one_that_is_not(self):
        plain, told = trained()
        cut, result = trained(**SECURE, cohorts=3)
        assert [r.reported for r in result.rounds] == [r.reported for r in told.rounds]
        assert result.counts["session"] == 6
        np.testing.assert_array_equal(cut.weights, plain.weights)

    def test_the_same_seed_gives_the_same_round(self):
        one, two = (trained(**SECURE, cohorts=3)[1] for _ in range(2))
        assert one.trace_hash == two.trace_hash

    def test_who_vanishes_costs_no_more_than_its_update(self):
        training = StubTraining(RING)
        fleet = Fleet(36, 4, dropout=0.1)
        federation, result = trained(training, **SECURE, cohorts=3, fleet=fleet, timeout_ms=60_000)
        assert all(r.succeeded for r in result.rounds[-2:]) and not result.failed
        assert any(len(r.reported) < 30 for r in result.rounds)
        # The weight is half a device's: the sum holds those who reported, and nobody else.
        for record in result.rounds:
            if record.succeeded:
                assert record.weight == len(record.reported) / 2
        assert np.isfinite(federation.weights).all()

    def test_an_edge_that_dies_takes_its_cohorts_with_it_and_no_others(self):
        faults = Faults(crashes=(Crash(edge=1, at_s=3.4, back_s=8.0),))
        _, result = trained(
            **SECURE, cohorts=3, rounds=1, faults=faults, reports_min=10, timeout_ms=60_000
        )
        (record,) = [r for r in result.rounds if r.succeeded]
        assert 10 <= len(record.reported) < 30
        assert not result.failed and record.weight == len(record.reported) / 2

    def test_a_coordinator_that_restarts_goes_on_with_all_cohorts(self):
        plain, _ = trained(rounds=1)
        faults = Faults(restarts_s=(2.7, 3.4, 4.1))
        cut, result = trained(**SECURE, cohorts=3, rounds=1, faults=faults)
        assert [r.attempt for r in result.rounds] == [3]
        np.testing.assert_array_equal(cut.weights, plain.weights)

    def test_a_rule_over_cohorts_means_bears_a_hostile_device(self):
        class Attacked(StubTraining):
            def update_of(self, device, key):
                made = np.full(RING.length, 1000, np.uint32)
                if device == 7:
                    made[:] = np.uint32(2**32 - 2**24)
                made[-1] = self.weight_steps
                return made

        wanted = 1000 / RING.scale * 2
        by_median, _ = trained(
            Attacked(RING), **SECURE, cohorts=5, rule="median", hostile=0.3, rounds=1,
            cohort=36,
        )  # fmt: skip
        np.testing.assert_allclose(by_median.weights, wanted, rtol=1e-5)
        by_mean, _ = trained(Attacked(RING), **SECURE, cohorts=5, rounds=1, cohort=36)
        assert (np.abs(by_mean.weights - wanted) > wanted).all()

    @pytest.mark.slow
    def test_a_round_of_2500_devices_is_exact(self):
        ring = RingPlan(clip=10.0, clients_max=2_500, dimension=50)
        big = {"cohort": 2_500, "fleet": Fleet(2_500, 10), "rounds": 1, "timeout_ms": 600_000}
        plain, _ = trained(ring=ring, **big)
        secure = {**SECURE, "cohort_min": 400, "dropout": 0.1}
        masked, result = trained(ring=ring, **secure, cohorts=3, **big)
        assert len(result.rounds[0].reported) == 2_500 and result.counts["session"] == 3
        np.testing.assert_array_equal(masked.weights, plain.weights)


class TestGoingBack:
    class Spoilt(StubTraining):
        """Its third model is bad, as every device finds that judges it."""

        made = 0

        def __init__(self, loss):
            super().__init__(RING)
            self.loss = loss

        def server_update(self, weights, memory, mean, weight):
            self.made += 1
            step = np.full_like(weights, -100.0 if self.made == 3 else 1.0)
            return weights + step, b""

        def evaluate(self, device, weights, key, plan):
            good = bool(weights[0] >= 0)
            count = 10.0
            loss, accuracy = (0.5, 0.9) if good else (self.loss, 0.3)
            score = Score(loss * count, accuracy * count, count)
            future: Future[Outcome] = Future()
            future.set_result(Outcome(metrics.encode(score, score, key, plan), 10, 0.5))
            return future

    @pytest.mark.parametrize(
        ("loss", "limits", "goes"),
        [
            (0.55, {"rollback_worse": 0.05}, True),
            (0.55, {"rollback_worse": 0.15}, False),
            (0.45, {"rollback_accuracy": 0.2}, True),  # though its loss is the best
            (0.55, {"rollback_accuracy": 0.7}, False),
        ],
    )
    @pytest.mark.parametrize("masks", [{}, {**SECURE, "cohorts": 3}])
    def test_a_model_that_devices_find_much_worse_is_given_up(self, loss, limits, goes, masks):
        changes = {"rounds": 4, "evaluation_every": 1, **limits, **masks}
        federation, result = trained(self.Spoilt(loss), **changes)
        told = [(e.round, e.rolled_back_to) for e in result.evaluations]
        assert told == [(1, None), (2, None), (3, 1 if goes else None), (4, None)]
        assert result.counts.get("rolled_back", 0) == goes
        assert federation.weights[0] == (2 if goes else -97)


class TestScenarios:
    def masked(self, *settings):
        return override(load("digits"), ["privacy.aggregation=secure", *settings])

    def test_a_round_too_large_for_one_session_is_cut(self):
        large = self.masked("fleet.devices=1700", "round.cohort=1500", "data.min_examples=2")
        assert (large.plan().cohorts, large.plan().smallest_sum) == (2, 750)
        assert self.masked("round.cohort=10").plan().cohorts == 1
        assert override(load("digits"), ["round.mode=buffered"]).plan().cohorts == 1

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            (["privacy.cohorts=4", "round.cohort=10"], "a sum of 2 devices"),
            (["round.rule=median"], "reads the means of cohorts, and needs 3"),
            (["round.rule=median", "round.mode=buffered"], "the weighted mean only"),
            (["round.hostile=0.1"], "only a rule reads it"),
            (["privacy.cohorts=2", "privacy.aggregation=plain"], "only masked rounds read it"),
            (["evaluation.rollback_worse=0.1"], "only a federated evaluation reads it"),
            (["privacy.cohorts=2", "privacy.noise=central", "privacy.epsilon=1"], "one cohort"),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, settings, message):
        with pytest.raises(DelianError, match=message):
            self.masked(*settings)

    def test_the_plan_says_what_the_scenario_says(self):
        settings = ["privacy.cohorts=3", "round.cohort=12", "round.rule=median"]
        settings += ["evaluation.federated=true", "evaluation.rollback_accuracy=0.1"]
        chosen = self.masked("fleet.devices=30", *settings, "round.hostile=0.3")
        stage = Stage(chosen, None, None, "reference", lambda event: None)
        blob = BlobRef(digest=bytes(32), size=4 * stage.runtime.ring.dimension)
        message = stage.plan(stage.runtime.ring).message(blob, blob, 1)
        plan = RunPlan.from_message(1, message)
        assert (plan.cohorts, plan.aggregation, plan.round.hostile) == (3, MEDIAN, 0.3)
        assert (plan.evaluation.rollback_accuracy, plan.evaluation_cohort, plan.cohort_min) == (
            0.1,
            4,
            3,
        )
