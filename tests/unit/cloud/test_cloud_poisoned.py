"""Runs that expect to be poisoned: rules that see each update, and the way back to the best."""

from __future__ import annotations

import numpy as np
import pytest
from delian.cloud.protocol.coordinator_state import Phase
from delian.cloud.protocol.run_plan import PlanError, RunPlan
from delian.core.privacy.mechanisms import ring
from delian.core.protocol.ports import DropBlob, RunProgram
from delian.core.wire.operator_pb2 import (
    BUFFERED,
    KRUM,
    MEDIAN,
    TRIMMED_MEAN,
    WEIGHTED_MEAN,
    Aggregation,
)
from delian.core.wire.round_pb2 import EdgeTask
from support import run_bench as _bench

RING, Bench = _bench.RING, _bench.Bench
blob, judged, message, vector = _bench.blob, _bench.judged, _bench.plan, _bench.vector

FAR = int(RING.scale * 1e5)


class Apart(Bench):
    """Edges send updates one by one."""

    def sum(self, number, vectors, **changes):
        content = b"".join(vectors[device].tobytes() for device in sorted(vectors))
        return super().sum(number, vectors, **{"sum": content, **changes})

    @classmethod
    def by(cls, rule=MEDIAN, corrupt=0.25, **changes):
        return cls(aggregation=Aggregation(rule=rule, hostile=corrupt), **changes)


class TestRules:
    def test_edges_are_asked_for_updates_one_by_one_and_for_sums_of_metrics(self):
        bench = Apart.by(evaluation_every=1).collecting()
        assert all(m.apart for m in bench.said(1, EdgeTask) + bench.said(2, EdgeTask))
        for number in (1, 2):
            bench.sum(number, {d: vector(1, 2, 3) for d in bench.selected[number]})
        bench.updated().rested()
        assert bench.phase is Phase.EVALUATING
        assert not any(m.apart for m in bench.said(1, EdgeTask) + bench.said(2, EdgeTask))
        assert not Bench().collecting().said(1, EdgeTask)[0].apart

    @pytest.mark.parametrize("rule", [MEDIAN, TRIMMED_MEAN])
    def test_a_hostile_update_does_not_move_the_model(self, rule):
        bench = Apart.by(rule, over_selection=1.25).collecting()
        updates = {d: vector(1000, 2000, 3000) for d in (*bench.one, *bench.two)}
        liar = bench.one[0]
        updates[liar] = vector(-FAR, FAR, FAR)
        bench.sum(1, {d: updates[d] for d in bench.one})
        bench.sum(2, {d: updates[d] for d in bench.two})
        (run,) = bench.of(RunProgram)
        mean, weight = run.arguments
        honest = np.array([1000, 2000, 3000]) / RING.scale * 2  # of weight one half
        np.testing.assert_allclose(mean.update(), honest, rtol=1e-5)
        assert weight == pytest.approx(len(updates) / 2)
        total = np.sum(list(updates.values()), axis=0, dtype=np.uint32)
        assert np.abs(ring.decode(total, RING)[0]).max() > 1e4, "the mean is lost"
        facts = bench.updated().facts()
        assert facts["succeeded"] and facts["reported"] == sorted(updates)

    def test_a_sum_in_place_of_updates_is_refused(self):
        bench = Apart.by().collecting()
        total = (vector(1, 2, 3) * np.uint32(len(bench.one))).tobytes()
        bench.sum(1, {d: vector(1, 2, 3) for d in bench.one}, sum=total)
        assert bench.records("refused_sum")
        assert Bench().collecting().sum(1, {}).records("refused_sum") == []

    def test_as_much_is_taken_of_an_edge_as_the_largest_run_asks_for(self):
        assert Bench().machine.report_bytes_max == 0
        assert Bench().collecting().machine.report_bytes_max == RING.nbytes
        bench = Apart.by().collecting()
        assert bench.machine.report_bytes_max == 6 * RING.nbytes
        assert bench.again().machine.report_bytes_max == 6 * RING.nbytes

    def test_what_has_come_survives_a_restart(self):
        bench = Apart.by().collecting()
        one, two = bench.one, bench.two
        bench.sum(1, {d: vector(d, 0, 0) for d in one})
        again = bench.again()
        again.sum(2, {d: vector(d, 0, 0) for d in two})
        (run,) = again.of(RunProgram)
        wanted = np.median([*one, *two]) / RING.scale * 2
        np.testing.assert_allclose(run.arguments[0].update(), [wanted, 0, 0], rtol=1e-5)
        (repeated,) = again.again().of(RunProgram)
        assert np.array_equal(repeated.arguments[0].update(), run.arguments[0].update())

    def test_too_few_updates_for_the_rule_fail_the_attempt(self):
        bench = Apart.by(KRUM, 0.2, reports_min=2).collecting()
        bench.sum(1, {bench.one[0]: vector(1, 2, 3)})
        bench.sum(2, {bench.two[0]: vector(1, 2, 3)})
        facts = bench.facts()
        assert not facts["succeeded"] and "krum needs 3 updates" in facts["why"]
        assert bench.phase is Phase.WAITING and bench.state.failed == 1

    def test_updates_that_no_honest_device_could_send_fail_the_attempt_when_no_other_came(self):
        bench = Apart.by().collecting()
        bad = np.array([1, 2, 3, 0], np.uint32)
        bench.sum(1, dict.fromkeys(bench.one, bad))
        bench.sum(2, dict.fromkeys(bench.two, bad))
        assert "no update has a weight" in bench.facts()["why"]


# ---------------------------------------------------------------- plans


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("aggregation.rule", {"aggregation": Aggregation(rule=99)}),
        ("aggregation.hostile", {"aggregation": Aggregation(rule=MEDIAN, hostile=0.5)}),
        ("aggregation.hostile", {"aggregation": Aggregation(rule=MEDIAN, hostile=float("nan"))}),
        ("aggregation.hostile", {"aggregation": Aggregation(rule=WEIGHTED_MEAN, hostile=0.1)}),
        ("aggregation.hostile", {"aggregation": Aggregation(rule=KRUM, hostile=0.25)}),
        (
            "aggregation.rule",
            {"aggregation": Aggregation(rule=MEDIAN), "mode": BUFFERED, "buffer": 4},
        ),
        ("rollback_worse", {"rollback_worse": 0.1}),
        ("rollback_worse", {"rollback_worse": -0.1, "evaluation_every": 1}),
        ("rollback_worse", {"rollback_worse": float("nan"), "evaluation_every": 1}),
        (
            "rollback_worse",
            {"rollback_worse": 0.1, "evaluation_every": 1, "mode": BUFFERED, "buffer": 4},
        ),
    ],
)
def test_what_cannot_be_kept_is_refused_by_its_field(field, changes):
    with pytest.raises(PlanError) as error:
        RunPlan.from_message(1, message(**changes))
    assert error.value.field == field


def test_masked_updates_can_only_be_added():
    plan = message(aggregation=Aggregation(rule=MEDIAN))
    plan.secure.suite, plan.secure.cohort_min = 1, 3
    plan.secure.corrupt, plan.secure.dropout = 0.1, 0.1
    with pytest.raises(PlanError, match="reads the means of cohorts") as caught:
        RunPlan.from_message(1, plan)
    assert "cohorts=3" in caught.value.message
    plan.ClearField("aggregation")
    assert not RunPlan.from_message(1, plan).apart


def test_a_round_s_updates_must_fit_in_memory():
    large = {"cohort": 64, "over_selection": 1.0, "reports_min": 1}
    plan = message(aggregation=Aggregation(rule=MEDIAN), **large)
    plan.ring.clients_max, plan.ring.dimension = 64, 2**20
    plan.weights.size = 2**22
    with pytest.raises(PlanError, match="one by one are"):
        RunPlan.from_message(1, plan)
    plan.cohort = 16
    made = RunPlan.from_message(1, plan)
    assert made.report_bytes == 16 * 4 * (2**20 + 1)
    plan.ClearField("aggregation")
    assert RunPlan.from_message(1, plan).report_bytes == 4 * (2**20 + 1)


# ---------------------------------------------------------------- the way back


class TestGoingBack:
    def after(self, losses, **plan):
        """A model a round, each judged with such a loss; what the last judgement said."""
        changes = {"rounds": 9, "evaluation_every": 1, "evaluation_cohort": 4, **plan}
        bench = Bench(**changes).waiting()
        bench.hello(2, [20, 21, 22, 23])
        dropped = []
        for n, loss in enumerate(losses):
            for number in (1, 2):
                bench.sum(number, {d: vector(1, 1, 1) for d in bench.selected[number]})
                dropped += bench.of(DropBlob)
            bench.updated(blob(chr(65 + n)))
            dropped += bench.of(DropBlob)
            bench.rested()
            bench.one, bench.two = bench.selected[1], bench.selected[2]
            judged(bench, loss)
            dropped += bench.of(DropBlob)
            if n + 1 < len(losses) and bench.phase is not Phase.DONE:
                bench.rested()
        return bench, [d.digest for d in dropped]

    def test_a_much_worse_model_brings_the_best_one_back(self):
        bench, dropped = self.after([0.9, 0.5, 0.7], rollback_worse=0.2)
        (said,) = bench.records("rolled_back")
        assert (said["run"], said["round"]) == (1, 4)
        assert (said["model"], said["left"]) == (blob("B").digest, blob("C").digest)
        assert said["loss"] == pytest.approx(0.7, rel=1e-3)
        assert said["best"] == pytest.approx(0.5, rel=1e-3)
        (ordered,) = bench.records("model_ordered")
        assert ordered["model"] == blob("B").digest
        assert bench.state.weights == blob("B") and bench.state.round == 4
        assert blob("B").digest not in dropped and blob("A").digest in dropped
        bench.rested()
        assert bench.said(1, EdgeTask)[0].task.weights == blob("B")

    def test_a_little_worse_does_not(self):
        bench, _ = self.after([0.9, 0.5, 0.59], rollback_worse=0.2)
        assert not bench.records("rolled_back") and bench.state.weights == blob("C")
        bench, _ = self.after([0.9, 0.5, 5.0])
        assert not bench.records("rolled_back") and bench.state.weights == blob("C")

    def test_the_best_is_kept_over_a_restart_and_until_there_is_a_better_one(self):
        bench, dropped = self.after([0.9, 0.5, 0.55, 0.56], rollback_worse=0.2)
        assert blob("B").digest not in dropped
        again = bench.again()
        assert again.state.best_weights == blob("B")
        bench, dropped = self.after([0.9, 0.5, 0.55, 0.4], rollback_worse=0.2)
        assert blob("B").digest in dropped and bench.state.best_weights == blob("D")

    def test_going_back_counts_as_no_better(self):
        bench, _ = self.after([0.5, 0.9, 0.9, 0.9], rollback_worse=0.2, patience=3)
        assert bench.phase is Phase.DONE
        assert bench.ended.why == "no better in 3 evaluations"
        assert bench.ended.weights == blob("A"), "it ends with the best, not with the last"

    def test_a_run_whose_last_model_is_worse_ends_with_the_best(self):
        bench, _ = self.after([0.5, 0.9], rounds=2, rollback_worse=0.2)
        assert bench.phase is Phase.DONE and bench.ended.weights == blob("A")
        assert bench.records("rolled_back") and bench.ended.round == 2

    def test_what_an_operator_has_ordered_counts_for_more(self):
        bench, _ = self.after([0.5], rollback_worse=0.2)
        bench.rested()
        for number in (1, 2):
            bench.sum(number, {d: vector(1, 1, 1) for d in bench.selected[number]})
        bench.updated(blob("B")).rested()
        bench.one, bench.two = bench.selected[1], bench.selected[2]
        bench.orders("weights", blob("o"))
        judged(bench, 2.0)
        assert bench.records("rolled_back") and bench.state.weights == blob("o")
        assert bench.state.worse == 0

    def test_a_paused_run_goes_back_too(self):
        bench, _ = self.after([0.5], rollback_worse=0.2)
        bench.rested()
        for number in (1, 2):
            bench.sum(number, {d: vector(1, 1, 1) for d in bench.selected[number]})
        bench.updated(blob("B")).rested()
        bench.one, bench.two = bench.selected[1], bench.selected[2]
        bench.orders("pause")
        judged(bench, 2.0)
        assert bench.phase is Phase.PAUSED and bench.state.weights == blob("A")
        assert bench.orders("resume").phase is Phase.WAITING
