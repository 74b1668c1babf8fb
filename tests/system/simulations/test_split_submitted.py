"""`delian run submit --set split.enabled=true` to daemons: the model of the virtual mode, also when
a side is killed in the middle of a step.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest
from delian.simulations.federation.fault_settings import Crash, Faults
from delian.simulations.federation.federation import Federation
from delian.simulations.runs.simulate import simulate
from delian.simulations.runs.stage import Stage
from support.processes.split_fleet import DEVICES, ROUNDS, SplitFleet, scenario


@pytest.fixture(scope="module")
def virtual():
    return simulate(scenario()).bundle.weights


def rounds_of(events):
    """(attempt, devices that reported, whether it succeeded) of each attempt at a round."""
    facts = [event["facts"] for event in events if event["kind"] == "round"]
    return [(one["round"], one["attempt"], one["reported"], one["succeeded"]) for one in facts]


def test_a_submitted_run_gives_the_model_of_the_virtual_mode(virtual, tmp_path):
    with SplitFleet(tmp_path) as fleet:
        events = list(fleet.submit())
        assert rounds_of(events) == [(n, 1, DEVICES, True) for n in range(1, ROUNDS + 1)]
        assert events[-1]["facts"]["phase"] == "done"
        assert [fleet.trained(device) for device in range(DEVICES)] == [ROUNDS] * DEVICES
        np.testing.assert_allclose(fleet.model(ROUNDS), virtual, rtol=0, atol=2e-6)


def test_a_device_that_is_killed_in_a_step_trains_again_and_counts_once(virtual, tmp_path):
    with SplitFleet(tmp_path, gated=[0]) as fleet:
        events = fleet.submit()
        fleet.gate.wait(1)
        assert not fleet.trained(0)
        fleet.children.all["device-0"].kill()
        fleet.gate.open()
        fleet.children.all["device-0"].start()
        assert rounds_of(events) == [(n, 1, DEVICES, True) for n in range(1, ROUNDS + 1)]
        assert [fleet.trained(device) for device in range(DEVICES)] == [ROUNDS] * DEVICES
        np.testing.assert_allclose(fleet.model(ROUNDS), virtual, rtol=0, atol=2e-6)


def test_an_edge_that_is_killed_in_a_step_loses_the_attempt_and_rounds_go_on(tmp_path):
    """It has all devices in the middle of their trainings, as the virtual one that crashes."""
    with SplitFleet(tmp_path, gated=range(DEVICES)) as fleet:
        events = fleet.submit()
        fleet.gate.wait(DEVICES)
        fleet.children.all["edge-1"].kill()
        fleet.gate.open()
        fleet.children.all["edge-1"].start()
        attempts, expected, weights = rounds_of(events), *crashed()
        assert attempts == expected == [(1, 1, 0, False), (1, 2, 4, True), (2, 1, 4, True)]
        np.testing.assert_allclose(fleet.model(ROUNDS), weights, rtol=0, atol=2e-6)


def crashed():
    """Attempts and model in virtual time; trainings take some 60 s of it."""
    stage = Stage(scenario(), None, None, "native", lambda event: None)
    with closing(stage), stage.workers(1) as workers:
        training = stage.training(workers, lambda done, of: None)
        faults = Faults(crashes=(Crash(edge=0, at_s=8.0, back_s=9.0),))
        plan = stage.plan(training.ring).but(faults=faults)
        result = Federation(plan, training, seed=scenario().seed).run()
    attempts = [(r.round, r.attempt, len(r.reported), r.succeeded) for r in result.rounds]
    return attempts, training.state
