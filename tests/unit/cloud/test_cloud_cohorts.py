"""A masked round of several cohorts at the coordinator, with devices that really mask."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from delian.cloud.protocol.coordinator_state import Phase
from delian.cloud.protocol.run_plan import PlanError, RunPlan
from delian.core.privacy.mechanisms import ring
from delian.core.privacy.secagg import masks
from delian.core.protocol.ports import (
    CancelProgram,
    Outcome,
    ProgramFinished,
    ProgramStopped,
    RunProgram,
    Send,
)
from delian.core.wire.operator_pb2 import (
    BUFFERED,
    KRUM,
    MEDIAN,
    TRIMMED_MEAN,
    Aggregation,
    PrivacyPlan,
)
from delian.core.wire.round_pb2 import OUT_OF_MEMORY, EdgeTask, RoundClosed
from delian.core.wire.secure_pb2 import SecurePlan
from support import secure_bench as _bench

_run = _bench._bench
ONE, TWO = list(range(10, 22)), list(range(30, 42))
RING = ring.RingPlan(clip=1e6, clients_max=24, dimension=3)
FIELDS = {
    "cohort": 18,
    "over_selection": 1.3,
    "cohorts": 3,
    "ring": RING.message(),
    "secure": SecurePlan(suite=1, cohort_min=4, corrupt=0.1, dropout=0.1),
}


def vector(device):
    """An update of weight one half, in this ring."""
    half = int(RING.weight_scale) // 2
    return np.array([device, -device, 7, half], np.int64).astype(np.uint32)


class Bench(_bench.SecureBench):
    """24 devices, all of whom are tasked, in three cohorts of eight."""

    def __init__(self, *arguments, **changes):
        super().__init__(*arguments, **{**FIELDS, **changes})

    def asked(self):
        """All devices ready, and tasked."""
        self.started()
        self.fires("rest", after=self.timer("rest") - self.now)
        self.hello(1, ONE)
        return self.hello(2, TWO)

    def collecting(self):
        return self.asked().speak()

    @property
    def cohorts(self):
        return self.state.open

    def sum_of(self, cohort, without=(), updates=vector):
        """The edges' honest sums of one cohort."""
        at = (cohort.round, cohort.attempt)
        for number, share in cohort.shares.items():
            there = [d for d in share.devices if d not in without]
            said = {d: self.masked(d, updates(d), at) for d in there}
            self.sum(number, said, at=at)
        return self

    def unmasking(self, without=()):
        """All sums are in, and who speaks has given shares."""
        for cohort in list(self.collecting().cohorts):
            self.sum_of(cohort, without).speak()
        return self

    def open_one(self, program):
        """The program that takes one cohort's masks out has run."""
        total, keys, suite = program.arguments
        plain = np.array(total)
        masks.add(plain, keys, suite)
        return self.does(ProgramFinished(program.ticket, Outcome(plain)))

    def opened(self):
        for program in list(self.programs):
            self.open_one(program)
        return self

    def edges_told(self):
        return [
            (e.to.number, e.message.attempt, e.message.succeeded)
            for e in self.effects
            if isinstance(e, Send)
            and isinstance(e.message, RoundClosed)
            and not e.message.HasField("device")
        ]


def everybody(bench):
    return sorted(d for cohort in bench.cohorts for d in cohort.selected())


def whole(devices):
    return ring.decode(sum((vector(d) for d in devices), np.zeros(4, np.uint32)), RING)


class TestCutting:
    def test_each_device_is_in_one_cohort_and_none_is_small(self):
        bench = Bench().collecting()
        assert [len(c.selected()) for c in bench.cohorts] == [8, 8, 8]
        assert everybody(bench) == [*ONE, *TWO]
        assert [c.attempt for c in bench.cohorts] == [1, 2, 3]

    def test_devices_of_an_edge_stay_together_so_that_edges_have_few_tasks(self):
        bench = Bench().collecting()
        assert sum(len(c.shares) for c in bench.cohorts) == 4  # two edges, and two cuts

    def test_the_seed_decides_who_is_with_whom(self):
        def cut(seed):
            return [c.selected() for c in Bench(seed=seed).collecting().cohorts]

        assert cut(1) == cut(1)
        assert any(cut(seed) != cut(1) for seed in (2, 3))

    def test_tasks_do_not_end_each_other_and_have_one_key(self):
        bench = Bench().asked()
        tasks = [m for number in (1, 2) for m in bench.said(number, EdgeTask)]
        assert len(tasks) == 4 and not any(t.alone for t in tasks)
        assert len({t.task.rng_key for t in tasks}) == 1

    def test_fewer_devices_make_fewer_cohorts_that_are_large_enough(self):
        bench = Bench(reports_min=8).started()
        bench.fires("rest", after=bench.timer("rest") - bench.now)
        bench.hello(1, ONE[:9])
        bench.fires("wait", after=60 * 10**9)
        assert sorted(len(c.selected()) for c in bench.cohorts) == [4, 5]

    def test_who_fits_neither_one_cohort_nor_makes_two_waits_for_the_next_round(self, monkeypatch):
        # A cohort has 10 members at most here, and each must have 6.
        monkeypatch.setattr("delian.cloud.protocol.cohorts.MEMBERS_MAX", 10)
        secure = SecurePlan(suite=1, cohort_min=6, corrupt=0.1, dropout=0.1)
        bench = Bench(reports_min=6, secure=secure).started()
        bench.fires("rest", after=bench.timer("rest") - bench.now)
        bench.hello(1, ONE[:11])
        bench.fires("wait", after=60 * 10**9)
        assert [len(c.selected()) for c in bench.cohorts] == [10]

    def test_a_round_of_one_cohort_is_as_ever(self):
        bench = Bench(cohorts=1)
        bench.collecting()
        machine = bench.machine.runs.machines[1]
        assert len(bench.cohorts) == 1 and machine.rounds.cohorts is None


class TestARound:
    def test_the_model_is_that_of_the_sum_over_all_cohorts(self):
        bench = Bench().unmasking()
        assert bench.phase is Phase.COLLECTING and len(bench.programs) == 3
        bench.opened()
        assert bench.phase is Phase.AGGREGATING
        mean, weight = whole([*ONE, *TWO])
        np.testing.assert_array_equal(bench.program().arguments[0], mean)
        assert bench.program().arguments[1] == weight
        facts = bench.updated().facts()
        assert facts["succeeded"] and facts["reported"] == [*ONE, *TWO] and facts["weight"] == 12

    def test_the_record_names_the_sum_over_all_cohorts(self):
        bench = Bench().unmasking().opened()
        total = sum((vector(d) for d in [*ONE, *TWO]), np.zeros(4, np.uint32))
        assert bench.updated().facts()["sum"] == hashlib.sha256(total.tobytes()).digest()

    def test_cohorts_go_through_their_steps_by_themselves(self):
        bench = Bench().collecting()
        first, second, _ = bench.cohorts
        bench.sum_of(first).speak().open_one(bench.programs[0])
        assert first.session is None and second.session.server.phase == "masks"
        assert bench.phase is Phase.COLLECTING
        assert not bench.of(RunProgram)

    def test_sessions_have_nothing_in_common(self):
        bench = Bench().collecting()
        rosters = {c.session.server.leaves for c in bench.cohorts}
        digests = {c.session.server.session.task for c in bench.cohorts}
        assert len(rosters) == len(digests) == 3

    def test_the_next_round_begins_when_the_model_is_there(self):
        bench = Bench().unmasking().opened().updated()
        assert bench.phase is Phase.WAITING and bench.state.round == 2
        bench.hello(1, ONE).hello(2, TWO)
        bench.fires("rest", after=5 * 10**9).speak()
        assert [(c.round, c.attempt) for c in bench.cohorts] == [(2, 1), (2, 2), (2, 3)]

    def test_edges_hear_of_success_when_the_round_has_it(self):
        bench = Bench().unmasking()
        for program in bench.programs[:-1]:
            assert not bench.open_one(program).edges_told()
        told = bench.open_one(bench.programs[-1]).edges_told()
        assert len(told) == 4 and all(succeeded for _, _, succeeded in told)

    def test_a_cohort_is_flushed_when_it_has_its_part(self):
        # One in five may be silent: after shares some may go, and a part is six of eight.
        secure = SecurePlan(suite=1, cohort_min=4, corrupt=0.05, dropout=0.3)
        bench = Bench(secure=secure).collecting()
        cohort = bench.cohorts[0]
        for number, share in cohort.shares.items():
            bench.progress(number, len(share.devices), at=(1, cohort.attempt))
        assert cohort.flushed and not bench.cohorts[1].flushed


class TestFailures:
    def few(self, bench):
        """The first cohort is too small for its sum to be read."""
        cohort = bench.cohorts[0]
        return cohort, cohort.selected()[3:]

    def test_a_cohort_that_fails_takes_no_other_with_it(self):
        bench = Bench(reports_min=16).collecting()
        cohort, gone = self.few(bench)
        bench.mute.update(gone)
        for each in list(bench.cohorts):
            bench.sum_of(each, gone).speak()
        left = [d for c in bench.cohorts[1:] for d in c.selected()]
        assert cohort.why == "too few devices reported" and len(bench.programs) == 2
        bench.opened()
        np.testing.assert_array_equal(bench.program().arguments[0], whole(left)[0])
        facts = bench.updated().facts()
        assert facts["succeeded"] and facts["reported"] == sorted(left)
        whys = [note["why"] for note in bench.notes]
        assert sorted(whys) == ["", "", "too few devices reported"]

    def test_a_round_with_too_few_reports_is_tried_again_with_other_numbers(self):
        bench = Bench(reports_min=17).collecting()
        _, gone = self.few(bench)
        bench.mute.update(gone)
        for each in list(bench.cohorts):
            bench.sum_of(each, gone).speak()
        bench.opened()
        facts = bench.facts()
        assert not facts["succeeded"] and "2 of 3 cohorts gave a sum, of 16 devices" in facts["why"]
        assert bench.phase is Phase.WAITING and (bench.state.round, bench.state.attempt) == (1, 4)

    def test_a_program_that_stops_fails_its_cohort(self):
        bench = Bench(reports_min=8).unmasking()
        bench.does(ProgramFinished(bench.programs[0].ticket, ProgramStopped(OUT_OF_MEMORY)))
        assert bench.phase is Phase.COLLECTING and bench.cohorts[0].why
        for program in bench.programs[1:]:
            bench.open_one(program)
        assert bench.phase is Phase.AGGREGATING and bench.program().arguments[1] == 8

    def test_when_time_is_over_each_cohort_goes_on_with_what_is_there(self):
        bench = Bench(reports_min=8).collecting()
        bench.sum_of(bench.cohorts[0]).speak()
        bench.fires("round", after=bench.cohorts[0].ends_ns - bench.now).speak()
        assert [bool(c.why) for c in bench.cohorts] == [False, True, True]
        bench.opened()
        assert bench.phase is Phase.AGGREGATING

    def test_an_edge_that_starts_anew_costs_the_cohorts_that_it_was_in(self):
        bench = Bench(reports_min=4).collecting()
        for each in list(bench.cohorts):
            for number, share in list(each.shares.items()):
                if number == 1:
                    at = (each.round, each.attempt)
                    said = {d: bench.masked(d, vector(d), at) for d in share.devices}
                    bench.sum(1, said, at=at)
        bench.hello(2, [], incarnation=2).speak()
        alone = [c for c in bench.cohorts if 2 in c.shares and 1 not in c.shares]
        assert alone and all(c.why for c in alone)
        assert any(not c.why for c in bench.cohorts)

    def test_an_edge_s_bad_sum_is_refused(self):
        bench = Bench().collecting()
        cohort = bench.cohorts[0]
        number, share = next(iter(cohort.shares.items()))
        said = {d: vector(d) for d in share.devices}
        bench.sum(number, said, at=(1, cohort.attempt), count=99)
        assert bench.records("refused_sum") and share.over

    def test_what_is_not_of_an_open_cohort_is_answered_and_changes_nothing(self):
        bench = Bench().collecting()
        before = bench.machine.snapshot()
        bench.sum(1, {10: vector(10)}, at=(1, 9))
        bench.progress(1, 3, at=(1, 9))
        bench.fires("session/1/9")
        bench.does(ProgramFinished(2**32 + 999, Outcome(None)))
        assert bench.machine.snapshot() == before


class TestRestarts:
    def test_a_restart_goes_on_in_every_cohort(self):
        bench = Bench().collecting()
        first = bench.cohorts[0]
        bench.sum_of(first)
        again = bench.again()
        assert again.cohorts[0].session.server.phase == "unmasking"
        again.programs = [p for p in again.programs if p.program == "unmask"]
        for each in list(again.cohorts[1:]):
            again.sum_of(each).speak()
        assert len({p.ticket for p in again.programs}) == 3
        assert again.opened().phase is Phase.AGGREGATING
        np.testing.assert_array_equal(again.program().arguments[0], whole([*ONE, *TWO])[0])

    def test_after_a_restart_masks_are_taken_out_again(self):
        bench = Bench().unmasking()
        again = bench.again()
        fresh = [p for p in again.of(RunProgram) if p.program == "unmask"]
        assert len(fresh) == 3
        for program in fresh:
            again.open_one(program)
        assert again.phase is Phase.AGGREGATING

    def test_the_sums_survive_while_the_model_is_made(self):
        bench = Bench().unmasking().opened()
        again = bench.again()
        np.testing.assert_array_equal(again.program().arguments[0], bench.program().arguments[0])

    def test_edges_that_are_silent_are_asked_again_for_each_cohort(self):
        bench = Bench().collecting()
        bench.fires("repeat", after=2 * 10**9)
        asked = [m.task.attempt for n in (1, 2) for m in bench.said(n, EdgeTask)]
        assert sorted(set(asked)) == [1, 2, 3] and len(asked) == 4


class TestOrders:
    def test_cancelling_ends_every_session(self):
        bench = Bench().collecting()
        bench.sum_of(bench.cohorts[0]).speak()
        bench.orders("cancel")
        assert bench.phase is Phase.CANCELLED
        assert [c.ticket for c in bench.of(CancelProgram)] == [bench.programs[0].ticket]
        assert [note["why"] for note in bench.notes] == ["cancelled"] * 3
        assert {a for _, a, _ in bench.edges_told()} == {2, 3}

    def test_a_pause_lets_all_cohorts_end(self):
        bench = Bench().unmasking().orders("pause").opened().updated()
        assert bench.phase is Phase.PAUSED


class TestRules:
    def test_a_hostile_device_spoils_its_cohort_and_the_median_of_cohorts_holds(self):
        bench = Bench(aggregation=Aggregation(rule=MEDIAN, hostile=0.3)).collecting()
        liar = bench.cohorts[1].selected()[0]

        def updates(device):
            if device == liar:
                return np.array([2**30, 2**30, 2**30, vector(0)[-1]], np.uint32)
            return vector(20)

        for each in list(bench.cohorts):
            bench.sum_of(each, updates=updates).speak()
        bench.opened()
        made, weight = bench.program().arguments
        np.testing.assert_allclose(made.update(), whole([20])[0], rtol=1e-6)
        assert weight == 12 and bench.updated().facts()["sum"] == b""

    def test_a_rule_needs_three_cohorts_with_a_sum(self):
        rule = Aggregation(rule=TRIMMED_MEAN, hostile=0.3)
        bench = Bench(aggregation=rule, reports_min=12).collecting()
        gone = bench.cohorts[0].selected()
        bench.mute.update(gone)
        for each in list(bench.cohorts):
            bench.sum_of(each, gone).speak()
        bench.opened()
        assert "2 of 3 cohorts gave a sum" in bench.facts()["why"]

    def test_it_waits_for_devices_for_three(self):
        plan = RunPlan.from_message(1, _run.plan(**FIELDS, aggregation=Aggregation(rule=MEDIAN)))
        assert (plan.reports_min, plan.cohorts_min, plan.apart) == (12, 3, False)


class TestEvaluations:
    def test_one_cohort_judges(self):
        bench = Bench(evaluation_every=1, rounds=2).unmasking().opened().updated()
        bench.hello(1, ONE).hello(2, TWO)
        bench.fires("rest", after=5 * 10**9).speak()
        assert bench.phase is Phase.EVALUATING and len(bench.cohorts) == 1
        assert len(bench.cohorts[0].selected()) == 8  # a third of the round's
        (attempt,) = bench.cohorts
        bench.plan.evaluation_cohort = 6
        said = _run.metrics_of(bench, attempt.selected(), 1.0)
        bench.sum_of(attempt, updates=said.__getitem__).speak()
        assert bench.phase is Phase.UNMASKING
        bench.open_one(bench.programs[-1])
        assert bench.records("evaluation") and bench.phase is Phase.WAITING
        bench.hello(1, ONE).hello(2, TWO)
        bench.fires("rest", after=5 * 10**9).speak()
        assert [(c.round, c.attempt) for c in bench.cohorts] == [(2, 2), (2, 3), (2, 4)]


class TestPlans:
    def check(self, **changes):
        return RunPlan.from_message(1, _run.plan(**{**FIELDS, **changes}))

    def test_a_round_for_which_one_session_is_too_small_is_cut_by_itself(self):
        numbers = ring.RingPlan(clip=1.0, clients_max=3_250, dimension=3).message()
        plan = self.check(cohort=2_500, cohorts=0, ring=numbers, secure=_bench.SECURE)
        assert plan.cohorts == 4 and plan.evaluation_cohort == 625

    @pytest.mark.parametrize(
        ("field", "changes"),
        [
            ("cohorts", {"cohorts": 17}),
            ("cohorts", {"mode": BUFFERED, "buffer": 8, "concurrency": 20}),
            ("secure.cohort_min", {"cohorts": 5}),
            ("aggregation.rule", {"cohorts": 2, "aggregation": Aggregation(rule=MEDIAN)}),
            ("aggregation.hostile", {"aggregation": Aggregation(rule=KRUM, hostile=0.4)}),
            ("cohorts", {"privacy": PrivacyPlan(epsilon=1.0, delta=1e-6)}),
        ],
    )
    def test_what_cannot_be_kept_is_refused_by_its_field(self, field, changes):
        with pytest.raises(PlanError) as caught:
            self.check(**changes)
        assert caught.value.field == field

    def test_plain_rounds_are_not_cut(self):
        with pytest.raises(PlanError, match="only masked rounds"):
            RunPlan.from_message(1, _run.plan(cohorts=2))
