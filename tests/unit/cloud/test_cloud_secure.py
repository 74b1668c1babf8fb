"""Secure aggregation at the coordinator, with devices that really mask."""

from __future__ import annotations

import numpy as np
import pytest
from delian.cloud.protocol import secure_rounds
from delian.cloud.protocol.coordinator_state import Phase
from delian.cloud.protocol.machine import Coordinator, restore
from delian.cloud.protocol.run_plan import PlanError, RunPlan
from delian.core.common.errors import DelianError
from delian.core.privacy.mechanisms import ring
from delian.core.protocol.ports import (
    SECOND,
    CancelProgram,
    Ordered,
    ProgramFinished,
    ProgramStopped,
    Received,
    Started,
)
from delian.core.wire.journal_pb2 import DeniedVersion
from delian.core.wire.operator_pb2 import RunOrder
from delian.core.wire.round_pb2 import OUT_OF_MEMORY, EdgeTask, Flush, RoundClosed
from delian.core.wire.secure_pb2 import (
    Cohort,
    Consent,
    Delivery,
    SecurePlan,
    Survivors,
)
from support import secure_bench as _bench

SECURE, Bench, everybody = _bench.SECURE, _bench.EightBench, _bench.everybody
_run = _bench._bench
RING, edge, WAVES = _run.RING, _run.edge, _run.WAVES


class TestARound:
    def test_the_model_is_that_of_the_plain_sum(self):
        bench = Bench().unmasking()
        assert bench.phase is Phase.UNMASKING and bench.programs
        assert bench.opened().phase is Phase.AGGREGATING
        program = bench.program()
        total = sum((bench.vector_of(d) for d in everybody(bench)), np.zeros(4, np.uint32))
        mean, weight = ring.decode(total, RING)
        np.testing.assert_array_equal(program.arguments[0], mean)
        assert program.program == "server_update" and program.arguments[1] == weight
        assert bench.updated().facts()["succeeded"]

    def test_no_sum_of_an_edge_says_anything(self):
        bench = Bench().unmasking()
        total = bench.programs[0].arguments[0]
        plain = sum((bench.vector_of(d) for d in everybody(bench)), np.zeros(4, np.uint32))
        assert (total != plain).all()

    def test_tasks_say_how_updates_are_masked(self):
        bench = Bench().waiting().hello(2, [20, 21, 22, 23])
        (task,) = bench.said(1, EdgeTask)
        assert task.task.secure == SECURE

    def test_tasks_name_the_deny_list_that_the_coordinator_goes_by(self):
        bench = Bench().waiting()
        bench.does(Ordered(DeniedVersion(version=6)))
        bench.hello(2, [20, 21, 22, 23])
        (task,) = bench.said(1, EdgeTask)
        assert task.task.secure.denied_version == 6

    def test_who_vanishes_after_the_shares_is_not_in_the_sum(self):
        bench = Bench().collecting()
        gone = bench.one[0]
        bench.mute.add(gone)
        bench.sums(without=[gone]).speak().opened()
        total = sum((bench.vector_of(d) for d in everybody(bench) if d != gone), np.uint32(0))
        np.testing.assert_array_equal(bench.program().arguments[0], ring.decode(total, RING)[0])
        assert bench.updated().facts()["reported"] == [d for d in everybody(bench) if d != gone]

    def test_devices_hear_that_it_is_over(self):
        bench = Bench().unmasking().opened().speak()
        assert sorted(bench.over) == everybody(bench)
        (note,) = bench.notes
        assert note["why"] == "" and note["round"] == note["attempt"] == 1
        n = len(everybody(bench))
        counts = ("asked", "members", "shared", "summed", "unmasked")
        assert [note[c] for c in counts] == [n] * 4 + [note["unmasked"]]
        assert list(note["seconds"]) == ["keys", "shares", "masks", "unmask"]

    def test_edges_hear_at_once_and_that_it_was_a_success_when_it_was(self):
        bench = Bench().collecting()
        bench.sums()
        assert [m.succeeded for m in bench.said(1, RoundClosed) if not m.HasField("device")] == [
            False
        ]
        bench.speak().opened()
        assert [m.succeeded for m in bench.said(1, RoundClosed) if not m.HasField("device")] == [
            True
        ]

    def test_the_next_round_has_other_keys(self):
        bench = Bench().unmasking().opened().updated().rested().speak()
        devices = {d for r, _, d in bench.crew if r == 1} & {d for r, _, d in bench.crew if r == 2}
        for device in devices:
            one, two = (bench.crew[r, 1, device].state.bundle for r in (1, 2))
            assert one.mask_key != two.mask_key and one.sealing_key != two.sealing_key


class TestSteps:
    def test_silent_devices_are_waited_for_a_while_and_then_left_out(self):
        bench = Bench()
        bench.mute.add(10)
        bench.collecting()
        assert 10 in everybody(bench), "all eight are tasked"
        assert not bench.said(1, Delivery)
        bench.fires("session/1/1", after=25 * SECOND).speak()
        assert bench.state.open[0].session.server.phase == "masks"
        bench.mute.clear()
        bench.poll(10)
        assert [device for device, _ in bench.out] == [10]

    def test_when_nearly_all_have_answered_the_last_are_waited_for_as_long_again(self):
        bench = Bench(secure=SecurePlan(suite=1, cohort_min=3, corrupt=0.1, dropout=0.2))
        bench.mute.add(10)
        bench.collecting()
        assert bench.state.open[0].session.step_ends_ns == bench.now + 2 * SECOND

    def test_who_gives_keys_and_no_shares_is_left_out_too(self):
        bench = Bench()
        bench.waiting().hello(2, [20, 21, 22, 23])
        bench.one, bench.two = bench.selected[1], bench.selected[2]
        silent = bench.one[0]
        words = bench._heard(bench.effects)
        for number, word in words:
            bench.hears(number, word)
        bench.mute.add(silent)
        bench.speak()
        assert bench.state.open[0].session.server.phase == "shares"
        bench.fires("session/1/1", after=25 * SECOND).speak()
        assert bench.state.open[0].session.server.phase == "masks"
        bench.mute.clear()
        bench.poll(silent)
        assert [device for device, _ in bench.out] == [silent]

    def test_what_is_more_than_a_link_holds_follows_in_a_moment(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(secure_rounds, "PUSH_BYTES", 1)
            self.in_pieces()

    def in_pieces(self):
        bench = Bench()
        bench.waiting().hello(2, [20, 21, 22, 23])
        bench.one, bench.two = bench.selected[1], bench.selected[2]
        for number, word in bench._heard(bench.effects):
            bench.hears(number, word)
        told = []
        for _ in range(7):
            told += [m.device for e in (1, 2) for m in bench.said(e, Cohort)]
            soon = bench.timer("session/1/1") - bench.now
            assert soon < SECOND
            bench.speak().fires("session/1/1", after=soon)
        told += [m.device for e in (1, 2) for m in bench.said(e, Cohort)]
        assert told == everybody(bench)
        for _ in range(8):
            bench.speak().fires("session/1/1", after=SECOND // 20)
        bench.sums().speak()
        for _ in range(8):
            bench.fires("session/1/1", after=SECOND // 20).speak()
        assert bench.opened().phase is Phase.AGGREGATING

    def test_too_few_keys_fail_the_attempt_and_say_who_is_missing(self):
        bench = Bench()
        bench.mute.update([10, 11, 12, 20, 21, 22])
        bench.collecting()
        bench.fires("session/1/1", after=25 * SECOND)
        assert bench.phase is Phase.WAITING and bench.state.attempt == 2
        why = bench.facts()["why"]
        assert "2 devices gave keys, of 3 at least" in why and "10" in why
        assert bench.said(1, RoundClosed) and bench.notes[-1]["why"] == why

    def test_a_word_may_come_through_another_edge(self):
        bench = Bench()
        bench.elsewhere[10] = 2
        bench.collecting().sums()
        assert 10 in bench.one
        through = {e for e in (1, 2) for m in bench.said(e, Survivors) if m.device == 10}
        assert through == {2}

    def test_silent_survivors_are_asked_again_until_time_is_over(self):
        bench = Bench().collecting()
        bench.mute.update(everybody(bench))
        bench.sums().speak()
        for _ in range(3):
            bench.fires("session/1/1", after=3 * SECOND)
            told = {m.device for e in (1, 2) for m in bench.said(e, Survivors)}
            assert told == set(everybody(bench))
        bench.fires("session/1/1", after=50 * SECOND)
        assert bench.phase is Phase.WAITING and "no consent from" in bench.facts()["why"]

    def test_a_few_may_fall_silent_at_the_end(self):
        bench = Bench().collecting()
        bench.mute.add(bench.one[0])
        bench.sums().speak()
        assert bench.opened().phase is Phase.AGGREGATING

    def test_the_sums_of_too_few_are_never_opened(self):
        bench = Bench(reports_min=1).collecting()
        two = everybody(bench)[:2]
        bench.sums(without=[d for d in everybody(bench) if d not in two])
        assert bench.facts()["why"] == "too few devices reported" and not bench.programs
        assert bench.notes[-1]["why"] == "too few devices reported"

    def test_with_too_few_neighbours_left_the_attempt_fails_in_words(self):
        bench = Bench().collecting()
        three = everybody(bench)[:3]
        bench.sums(without=[d for d in everybody(bench) if d not in three])
        assert "neighbours in the sum" in bench.facts()["why"] and bench.phase is Phase.WAITING

    def test_it_is_flushed_only_when_the_session_can_do_without_the_others(self):
        bench = Bench(cohort=4, over_selection=2.0).collecting()
        n = len(everybody(bench))
        assert n == 8
        bench.progress(1, 3).progress(2, 2)
        assert not bench.said(1, Flush)
        bench.progress(2, 3)
        assert bench.said(1, Flush)


class TestCrashes:
    def test_started_again_without_certificates_it_says_what_is_missing(self):
        bench = Bench().collecting()
        other = Coordinator(restore(bench.machine.snapshot()))
        with pytest.raises(DelianError, match="run 1 is under way with masks") as caught:
            other.handle(Started(), bench.now)
        assert "--insecure" in caught.value.hint

    @pytest.mark.parametrize("way", ["collecting", "masks", "survivors", "program"])
    def test_after_a_restart_the_sum_is_the_same(self, way):
        bench = Bench()
        if way == "collecting":
            bench.mute.add(10)
            bench.collecting()
            bench.mute.clear()
        else:
            bench.collecting()
        one, two = bench.one, bench.two
        if way == "survivors":
            bench.sums()
        elif way == "program":
            bench.sums().speak()
        bench = bench.again()
        bench.one, bench.two = one, two
        if way == "collecting":
            bench.poll(10)
        if way in ("collecting", "masks"):
            bench.sums().speak()
        assert bench.opened().phase is Phase.AGGREGATING
        total = sum((bench.vector_of(d) for d in everybody(bench)), np.zeros(4, np.uint32))
        np.testing.assert_array_equal(bench.program().arguments[0], ring.decode(total, RING)[0])

    def test_with_the_sum_opened_it_opens_nothing_again(self):
        bench = Bench().unmasking().opened().again()
        assert bench.program().program == "server_update"

    def test_a_program_that_fails_fails_the_attempt(self):
        bench = Bench().unmasking()
        bench.does(ProgramFinished(bench.programs[-1].ticket, ProgramStopped(OUT_OF_MEMORY)))
        assert bench.phase is Phase.WAITING
        assert bench.facts()["why"] == "the masks could not be taken out of the sum"

    def test_cancelled_it_stops_the_program(self):
        bench = Bench().unmasking()
        bench.orders("cancel")
        assert bench.of(CancelProgram) == [CancelProgram(bench.programs[-1].ticket)]
        assert bench.phase is Phase.CANCELLED

    def test_the_last_attempt_that_fails_ends_the_run(self):
        bench = Bench(attempts_max=1).unmasking()
        bench.does(ProgramFinished(bench.programs[-1].ticket, ProgramStopped(OUT_OF_MEMORY)))
        assert bench.phase is Phase.FAILED

    def test_a_pause_waits_for_the_sum(self):
        bench = Bench().unmasking().orders("pause")
        assert bench.phase is Phase.UNMASKING
        bench.orders("resume").orders("pause")
        bench.opened().updated()
        assert bench.phase is Phase.PAUSED
        assert bench.hears(1, Consent(run=1, round=1, attempt=1, device=10)).said(1)

    def test_other_weights_wait_for_the_sum(self):
        bench = Bench().unmasking().orders("weights", _run.blob("o"))
        assert bench.phase is Phase.UNMASKING
        assert bench.opened().updated().state.weights == _run.blob("o")


WITH = {"evaluation_every": 1, "evaluation_cohort": 6}


class TestEvaluation:
    def judging(self, **changes):
        bench = Bench(**{**WITH, **changes}).unmasking().opened().updated().rested().speak()
        bench.one, bench.two = bench.selected[1], bench.selected[2]
        return bench

    def test_metrics_are_masked_too(self):
        bench = self.judging()
        said = _run.metrics_of(bench, everybody(bench), 0.5)
        bench.sums(vectors=lambda d: said[d]).speak()
        assert bench.phase is Phase.UNMASKING
        (facts,) = bench.opened().records("evaluation")
        assert facts["metrics"]["personalised_loss"] == pytest.approx(0.5, rel=0.02)
        assert facts["devices"] == len(everybody(bench)) and bench.phase is Phase.WAITING

    def test_the_last_one_ends_the_run(self):
        bench = self.judging(rounds=1)
        said = _run.metrics_of(bench, everybody(bench), 0.5)
        bench.sums(vectors=lambda d: said[d]).speak().opened()
        assert bench.phase is Phase.DONE

    def test_one_that_cannot_be_opened_is_skipped(self):
        bench = self.judging()
        said = _run.metrics_of(bench, everybody(bench), 0.5)
        bench.mute.update(everybody(bench))
        bench.sums(vectors=lambda d: said[d]).speak()
        bench.fires("session/2/1", after=51 * SECOND)
        (skipped,) = bench.records("evaluation_skipped")
        assert "no consent" in skipped["why"] and bench.phase is Phase.WAITING

    def test_one_whose_keys_do_not_come_is_skipped(self):
        bench = Bench(**WITH).unmasking().opened()
        bench.mute.update(everybody(bench))
        bench.updated().rested().speak()
        bench.fires("session/2/1", after=25 * SECOND)
        assert bench.records("evaluation_skipped") and bench.phase is Phase.WAITING

    def test_one_with_too_few_reports_is_skipped(self):
        bench = self.judging()
        said = _run.metrics_of(bench, everybody(bench), 0.5)
        gone = everybody(bench)[2:]
        bench.sums(without=gone, vectors=lambda d: said[d])
        assert bench.records("evaluation_skipped")[0]["why"] == "too few devices reported"

    def test_after_a_restart_it_goes_on(self):
        bench = self.judging()
        one, two = bench.one, bench.two
        said = _run.metrics_of(bench, everybody(bench), 0.5)
        bench.sums(vectors=lambda d: said[d])
        bench = bench.again()
        bench.one, bench.two = one, two
        assert bench.opened().records("evaluation")


class Waves(_bench.SecureBench):
    """K = 4 updates make a model, M = 8 devices are at work, all in one wave."""

    def __init__(self, *arguments, **changes):
        super().__init__(*arguments, **{**WAVES, **changes})

    def training(self):
        """A wave behind each edge, of four devices."""
        self.started().fires("rest", after=5 * SECOND)
        self.hello(1, [10, 11, 12, 13]).speak()
        self.progress(1, 0)
        return self


class TestWaves:
    def unmasked(self, bench=None):
        bench = bench or Waves().training()
        return bench.sums().speak()

    def test_a_wave_is_taken_whole(self):
        bench = self.unmasked()
        assert bench.phase is Phase.COLLECTING and bench.programs
        bench.opened()
        assert bench.phase is Phase.AGGREGATING
        total = sum((bench.vector_of(d) for d in range(10, 14)), np.zeros(4, np.uint32))
        step = bench.program().arguments[0]
        np.testing.assert_allclose(step, ring.decode(total, RING)[0], rtol=1e-6)

    def test_its_edges_are_asked_for_no_parts(self):
        bench = Waves().training().progress(1, 4)
        assert not any(m.go_on for m in bench.said(1, Flush))

    def test_it_ends_early_when_its_session_can_do_without_the_last(self):
        bench = Waves(secure=SecurePlan(suite=1, cohort_min=3, corrupt=0.05, dropout=0.3))
        bench.started().fires("rest", after=5 * SECOND)
        bench.hello(1, list(range(10, 18))).speak().progress(1, 0)
        n = len(bench.selected[1])
        assert n == 8 and not bench.progress(1, n - 3).said(1, Flush)
        (flush,) = bench.progress(1, n - 2).said(1, Flush)
        assert not flush.go_on

    def test_none_begins_with_fewer_devices_than_may_be_in_a_sum(self):
        bench = Waves().started().fires("rest", after=5 * SECOND)
        assert not bench.hello(1, [10, 11]).state.open
        assert bench.hello(1, [10, 11, 12]).state.open

    def test_one_that_fails_leaves_nothing(self):
        bench = Waves().training()
        bench.mute.update(range(10, 14))
        bench.sums().speak()
        bench.fires("session/1/1", after=51 * SECOND)
        assert not bench.state.open and bench.phase is Phase.COLLECTING
        assert "no consent" in bench.notes[-1]["why"]
        assert bench.state.resolved == [10, 11, 12, 13] and not bench.state.parked

    def test_one_whose_keys_do_not_come_is_closed(self):
        bench = Waves()
        bench.mute.update([10, 11])
        bench.training()
        bench.fires("session/1/1", after=25 * SECOND)
        assert not bench.state.open and bench.said(1, RoundClosed)

    def test_a_model_that_is_being_made_does_not_mind_another_wave_s_sum(self):
        bench = Waves().training()
        bench.fires("rest", after=5 * SECOND).hello(2, [20, 21, 22, 23]).speak()
        first, second = [(w.round, w.attempt) for w in bench.state.open]
        for number, at in ((1, first), (2, second)):
            devices = bench.state.open[at[1] - first[1]].shares[number].devices
            bench.sum(number, {d: bench.masked(d, bench.vector_of(d), at) for d in devices}, at=at)
            bench.speak()
        assert len(bench.programs) == 2
        one = bench.programs[0]
        bench.opened()
        assert bench.phase is Phase.AGGREGATING
        update = bench.program().ticket
        bench.programs.append(one)
        bench.opened()
        bench.does(ProgramFinished(update, _run.NewModel(_run.NEXT)), after=SECOND)
        assert bench.state.round == 2

    def test_after_a_restart_it_goes_on(self):
        bench = self.unmasked().again()
        assert bench.opened().phase is Phase.AGGREGATING
        bench = Waves().training().again()
        assert self.unmasked(bench).opened().phase is Phase.AGGREGATING

    def test_cancelled_it_ends_the_session(self):
        bench = self.unmasked().orders("cancel")
        assert bench.of(CancelProgram) and bench.phase is Phase.CANCELLED
        assert bench.notes[-1]["why"] == "the run is over"
        assert bench.hears(1, Consent(run=1, round=1, attempt=1, device=10)).said(1)

    def test_a_late_word_is_answered(self):
        bench = self.unmasked().opened()
        (answer,) = bench.hears(1, Consent(run=1, round=1, attempt=1, device=10)).said(1)
        assert answer.device == 10

    def test_metrics_are_masked_too(self):
        bench = Waves(evaluation_every=1, evaluation_cohort=4).training()
        self.unmasked(bench).opened().updated()
        bench.fires("rest", after=5 * SECOND).hello(2, [20, 21, 22, 23]).speak()
        assert bench.state.open[-1].evaluates
        said = _run.metrics_of(bench, [20, 21, 22, 23], 0.5)
        bench.sums(vectors=lambda d: said[d]).speak()
        (facts,) = bench.opened().records("evaluation")
        assert facts["devices"] == 4


class TestPlans:
    def check(self, **changes):
        return RunPlan.from_message(1, _run.plan(**{"secure": SECURE, "cohort": 6, **changes}))

    def test_no_sum_is_read_of_fewer_than_the_plan_says(self):
        assert self.check(reports_min=1).reports_min == 3
        assert self.check(reports_min=5).reports_min == 5

    @pytest.mark.parametrize(
        ("field", "changes"),
        [
            ("secure.suite", {"suite": 0}),
            ("secure.suite", {"suite": 3}),
            ("secure.cohort_min", {"cohort_min": 2}),
            ("secure.cohort_min", {"cohort_min": 7}),
            ("secure.corrupt", {"corrupt": 1.0}),
            ("secure.dropout", {"dropout": float("nan")}),
            ("secure.dropout", {"corrupt": 0.5, "dropout": 0.4}),
        ],
    )
    def test_what_cannot_be_kept_is_refused_by_its_field(self, field, changes):
        plan = SecurePlan()
        plan.CopyFrom(SECURE)
        for name, value in changes.items():
            setattr(plan, name, value)
        with pytest.raises(PlanError) as caught:
            self.check(secure=plan)
        assert caught.value.field == field

    def test_a_round_of_two_cannot_be_masked_and_it_says_so(self):
        with pytest.raises(PlanError, match="a sum of 2 devices, and masks need 3 at least"):
            self.check(cohort=2)

    def test_more_than_a_thousand_devices_are_too_many_and_it_says_what_to_do(self):
        numbers = _run.round_pb2.RingPlan(clip=1.0, clients_max=20_000, bits=32, dimension=3)
        with pytest.raises(PlanError, match="at most 1000") as caught:
            self.check(cohort=900, over_selection=1.2, cohorts=1, ring=numbers)
        assert "cohorts" in caught.value.hint
        assert "privacy.aggregation=plain" in caught.value.hint
        with pytest.raises(PlanError, match="at most 1000") as caught:
            self.check(cohort=16_001, over_selection=1.0, ring=numbers)
        assert "over_selection" in caught.value.hint

    def test_a_coordinator_without_certificates_refuses_masks(self):
        bench = _run.Bench(secure=SECURE).does(Started())
        with pytest.raises(DelianError, match="keys cannot be attributed") as caught:
            bench.machine.check(RunOrder(run=1, submit=bench.plan))
        assert "--plain" in caught.value.hint


def test_no_record_shows_a_share():
    bench = Bench().unmasking()
    secrets = [
        u.share for m in bench.state.open[0].session.server.unmasks.values() for u in m.shares
    ]
    assert secrets and not any(repr(s)[2:-1] in repr(bench.notes) for s in secrets)
    bench.does(Received(edge(1), Consent(run=1, round=1, attempt=1, device=10)))
