"""A federation whose sums carry noise: from the devices that add it to the model that is made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from delian.core.privacy.mechanisms import noise_mechanism
from delian.core.privacy.mechanisms.noise_mechanism import PrivacyTarget
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import Fleet
from delian.simulations.scenario.federation_plan import FederationPlan
from delian.simulations.scenario.scenario_file import load, override
from support.stub_training import StubTraining

ROUNDS, COHORT = 3, 12
PROMISE = PrivacyTarget(epsilon=8.0, delta=1e-6, releases=ROUNDS, survivors=COHORT - 2)
PLAIN = RingPlan(clip=1.0, clients_max=COHORT, dimension=400)
SECURE = {"aggregation": "secure", "cohort_min": 10, "corrupt": 0.1, "dropout": 0.1}


class Training(StubTraining):
    """Updates within the clip, of a full weight; those of `long` devices are not within it."""

    def __init__(self, ring, long=()):
        super().__init__(ring)
        self.long = long

    def update_of(self, device, key):
        steps = super().update_of(device, key)
        signed = steps[:-1].view(np.int32)
        if device in self.long:
            signed *= 64
        else:
            signed //= 64
        steps[-1] = int(self.plan.weight_scale)
        return steps


def noise_of(promise):
    """The settings of a privacy target."""
    if promise is None:
        return {}
    asked = {"epsilon": promise.epsilon, "delta": promise.delta, "noise_corrupt": promise.corrupt}
    return {"noise": "central" if promise.central else "distributed", **asked}


def federation(promise, training=Training, **changes):
    ring = PLAIN if promise is None else noise_mechanism.planned(PLAIN, promise)
    settings = {
        "rounds": ROUNDS,
        "cohort": COHORT,
        "reports_min": COHORT - 2,
        "ring": ring,
        "fleet": Fleet(COHORT, 2),
        "over_selection": 1.0,
        **SECURE,
        **noise_of(promise),
        **changes,
    }
    return Federation(FederationPlan.of(**settings), training(ring), seed=1)


@pytest.mark.parametrize(("min_reports", "least"), [(1, 6), (11, 11)])
def test_devices_accept_the_floor_of_a_scenario_that_asks_for_noise_alone(min_reports, least):
    noise = ["privacy.noise=distributed", "privacy.epsilon=8"]
    changes = [f"round.reports_min={min_reports}", *noise]
    plan = override(load("digits"), changes).plan()
    assert plan.cohort_min == plan.reports_min == least


@pytest.mark.parametrize("central", [False, True])
def test_the_model_is_the_sum_and_noise_of_the_planned_size(central):
    promise = replace(PROMISE, central=central)
    made = federation(promise)
    result = made.run()
    assert not result.failed and [len(r.reported) for r in result.rounds] == [COHORT] * ROUNDS
    ring = made.plan.ring
    # The updates themselves are below a hundredth of the noise.
    deviation = ring.noise * (1 if central else np.sqrt(COHORT)) / COHORT * np.sqrt(ROUNDS)
    assert made.weights.std() == pytest.approx(deviation, rel=0.15)
    assert np.all(np.isfinite(made.weights))


def test_without_a_promise_the_same_federation_has_no_noise():
    made = federation(None)
    made.run()
    assert 0 < np.abs(made.weights).max() < 1e-3


def test_equal_seeds_give_equal_noise_and_each_round_has_its_own():
    models = []
    for rounds in (1, 1, 2):
        promise = replace(PROMISE, releases=2)
        made = federation(promise, rounds=rounds)
        made.run()
        models.append(made.weights)
    assert np.array_equal(models[0], models[1])
    second = models[2] - models[0]
    assert abs(np.corrcoef(second, models[0])[0, 1]) < 0.2


def test_a_device_whose_program_does_not_clip_sends_nothing():
    made = federation(PROMISE, training=lambda ring: Training(ring, long=(3,)))
    result = made.run()
    assert not result.failed and len(result.rounds) == ROUNDS
    for record in result.rounds:
        assert record.succeeded and 3 not in record.reported and len(record.reported) == COHORT - 1
