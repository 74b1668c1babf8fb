"""Promises at the coordinator: plans that would not keep them, sums that are paid for, runs that
end when nothing is left to pay with.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from delian.cloud.protocol.coordinator_state import Phase
from delian.cloud.protocol.run_plan import PlanError, RunPlan
from delian.core.privacy.mechanisms import noise_mechanism
from delian.core.privacy.mechanisms.noise_mechanism import PrivacyTarget
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.privacy.secagg import masks
from delian.core.privacy.task_limits import is_sane
from delian.core.protocol.ports import Outcome, ProgramFinished, ProgramStopped
from delian.core.wire.operator_pb2 import BUFFERED, PrivacyPlan
from delian.core.wire.round_pb2 import PROGRAM_FAILED
from delian.core.wire.secure_pb2 import SecurePlan
from support import secure_bench as _bench

_run = _bench._bench

PLAIN = RingPlan(clip=1e6, clients_max=16, dimension=3)
PROMISE = PrivacyTarget(epsilon=4.0, delta=1e-6, releases=2, survivors=8, corrupt=0.1)
RING = noise_mechanism.planned(PLAIN, PROMISE)
CENTRAL = noise_mechanism.planned(PLAIN, replace(PROMISE, central=True))
ASKED = PrivacyPlan(epsilon=4.0, delta=1e-6, corrupt=0.1)
#: Devices let no sum be read of fewer than their noise is planned for.
SECURE = SecurePlan(suite=1, cohort_min=8, corrupt=0.1, dropout=0.1)
LOW = SecurePlan(suite=1, cohort_min=7, corrupt=0.1, dropout=0.1)
#: All eight that are tasked must report.
WANTED = {
    "cohort": 8,
    "over_selection": 1.0,
    "reports_min": 8,
    "rounds": 2,
    "attempts_max": 5,
    "privacy": ASKED,
    "secure": SECURE,
}


class Bench(_bench.SecureBench):
    """Eight devices in rounds with noise."""

    def __init__(self, *arguments, ring=RING, **changes):
        super().__init__(*arguments, **{**WANTED, "ring": ring.message(), **changes})

    @staticmethod
    def vector_of(device):
        steps = np.array([device, -device, 7, RING.weight_scale], np.int64)
        return steps.astype(np.uint32)

    def opened(self):
        total, keys, suite, *_ = self.programs[-1].arguments
        plain = np.array(total)
        masks.add(plain, keys, suite)
        return self.does(ProgramFinished(self.programs[-1].ticket, Outcome(plain)))

    def stopped(self):
        return self.does(ProgramFinished(self.program().ticket, ProgramStopped(PROGRAM_FAILED)))

    def again_unmasking(self):
        """The next attempt, as far as its sum."""
        self.rested().speak()
        return self.sums().speak().opened()


def read(**changes):
    message = _run.plan(**{**WANTED, "ring": RING.message(), **changes})
    for name in [n for n, value in changes.items() if value is None]:
        message.ClearField(name)
    return RunPlan.from_message(1, message)


def test_a_plan_says_what_is_promised():
    plan = read()
    assert plan.promise == PROMISE and plan.ring == RING
    central = read(ring=CENTRAL.message())
    assert central.promise == replace(PROMISE, central=True) and central.ring == CENTRAL
    assert read(ring=PLAIN.message(), privacy=None).promise is None


def test_central_noise_may_be_read_of_fewer():
    assert read(ring=CENTRAL.message(), secure=LOW).promise.central


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"privacy": None}, "privacy"),
        ({"ring": PLAIN.message()}, "privacy"),
        ({"ring": replace(RING, noise=RING.noise * 0.99).message()}, "privacy"),
        ({"rounds": 3}, "privacy"),
        ({"reports_min": 7, "secure": LOW}, "privacy"),
        ({"privacy": PrivacyPlan(epsilon=3.9, delta=1e-6, corrupt=0.1)}, "privacy"),
        ({"privacy": PrivacyPlan(epsilon=4.0, delta=1e-7, corrupt=0.1)}, "privacy"),
        ({"privacy": PrivacyPlan(epsilon=4.0, delta=1e-6, corrupt=0.2)}, "privacy"),
        ({"privacy": PrivacyPlan(epsilon=4.0, delta=1e-6, corrupt=0.9)}, "privacy"),
        ({"privacy": PrivacyPlan(epsilon=4.0, delta=1e-6, corrupt=1.0)}, "privacy.corrupt"),
        ({"privacy": PrivacyPlan(delta=1e-6)}, "privacy.epsilon"),
        ({"privacy": PrivacyPlan(epsilon=4.0)}, "privacy.delta"),
        ({"secure": None}, "secure"),
        ({"secure": LOW}, "secure.cohort_min"),
        ({"mode": BUFFERED, "buffer": 8, "concurrency": 8}, "mode"),
        ({"evaluation_every": 1, "evaluation_cohort": 8}, "evaluation_every"),
    ],
)
def test_a_plan_that_would_not_keep_its_promise_is_refused(changes, field):
    with pytest.raises(PlanError) as refused:
        read(**changes)
    assert refused.value.field == field and refused.value.hint


def test_each_sum_is_paid_for_before_devices_give_what_opens_it():
    bench = Bench().collecting()
    assert bench.state.budget is None
    bench.sums()
    assert bench.phase is Phase.UNMASKING and not bench.programs
    assert bench.state.budget.releases == 1
    bench.speak().opened()
    assert bench.phase is Phase.AGGREGATING and bench.state.budget.releases == 1
    bench.updated().again_unmasking()
    budget = bench.state.budget
    assert budget.releases == 2 and 0.99 * 4.0 < budget.epsilon_spent <= 4.0


def test_the_record_of_a_round_says_what_all_of_them_came_to():
    bench = Bench().unmasking().opened().updated()
    said = bench.facts()["privacy"]
    assert said["releases"] == 1 and said["delta"] == 1e-6
    assert 0 < said["epsilon"] < 4.0


def test_a_run_that_ends_before_its_paid_sum_is_open_says_what_was_paid():
    bench = Bench().collecting().sums()
    assert bench.records("phase")[-1]["privacy"]["releases"] == 1
    bench.orders("cancel")
    said = bench.records("phase")[-1]
    assert said["phase"] == "cancelled" and said["privacy"]["releases"] == 1
    assert said["privacy"]["epsilon"] > 0


def test_more_devices_than_were_counted_on_make_a_sum_cheaper():
    costs = []
    six = SecurePlan(suite=1, cohort_min=6, corrupt=0.1, dropout=0.1)
    for survivors in (6, 8):
        promise = replace(PROMISE, survivors=6)
        ring = noise_mechanism.planned(PLAIN, promise)
        bench = Bench(ring=ring, reports_min=6, secure=six).collecting()
        bench.sums(without=[*bench.one, *bench.two][survivors:]).speak().opened()
        costs.append(bench.state.budget.epsilon_spent)
    assert costs[1] < costs[0]


def test_attempts_that_come_to_nothing_are_paid_for_and_end_the_run_when_nothing_is_left():
    bench = Bench().unmasking().opened().stopped()
    assert bench.phase is Phase.WAITING and bench.state.budget.releases == 1
    bench.again_unmasking()
    assert bench.state.budget.releases == 2
    # Before anybody is tasked for a sum that could not be paid for.
    bench.stopped()
    assert bench.ended.phase is Phase.FAILED
    assert "privacy budget is spent" in bench.ended.why and "of 4 after 2" in bench.ended.why


def test_a_coordinator_that_starts_again_does_not_pay_twice():
    bench = Bench().unmasking().opened()
    again = bench.again()
    assert again.phase is Phase.AGGREGATING and again.program().program == "server_update"
    assert again.state.budget.releases == 1
    assert again.state.budget.epsilon_spent == bench.state.budget.epsilon_spent


def test_only_central_noise_is_added_to_the_sum_and_where_its_masks_are_taken_out():
    own, central = Bench().unmasking(), Bench(ring=CENTRAL).unmasking()
    assert len(own.programs[-1].arguments) == 3
    assert central.programs[-1].arguments[3] == CENTRAL


def test_tasks_ask_for_the_noise():
    bench = Bench().waiting().hello(2, [20, 21, 22, 23])
    (task,) = bench.said(1, _bench.EdgeTask)
    assert RingPlan.of(task.task.ring) == RING
    assert task.task.secure.noise_survivors == PROMISE.survivors


def test_nobody_takes_a_task_with_noise_and_without_masks():
    bench = Bench().waiting().hello(2, [20, 21, 22, 23])
    (message,) = bench.said(1, _bench.EdgeTask)
    task = message.task
    assert is_sane(task)
    task.ClearField("secure")
    assert not is_sane(task)
    task.ring.CopyFrom(PLAIN.message())
    assert is_sane(task)
