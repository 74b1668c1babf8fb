"""Daemons compute what simulated devices compute: client states, chains that remember, noise."""

from __future__ import annotations

import numpy as np
import pytest
from delian.simulations.processes.processes import Shape, fitted, simulate_processes
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file

#: Three devices and their edge: what they compute depends on no number of them.
FEW = Shape(3, 1, by_mqtt=0)
#: No device is late, on a machine of any speed.
LONG = "round.timeout_ms=180000"


def test_daemons_keep_what_simulated_devices_keep():
    asked = scenario_file.override(
        scenario_file.with_algorithm(scenario_file.load("digits"), "scaffold"),
        ["rounds=3", "evaluation.every=3", LONG],
    )
    real = simulate_processes(asked, FEW, threads=1)
    virtual = simulate(fitted(asked, FEW))
    assert real.stopped_by is None
    np.testing.assert_array_equal(real.bundle.weights, virtual.bundle.weights)


def test_daemons_remember_what_they_did_not_send_as_simulated_devices_do():
    text = "chain=top_k(0.1) | clip(4) | quantise(16) | mean"
    asked = scenario_file.override(scenario_file.load("digits"), ["rounds=3", text, LONG])
    real = simulate_processes(asked, FEW, threads=1)
    virtual = simulate(fitted(asked, FEW))
    assert real.stopped_by is None and real.chain == virtual.chain
    np.testing.assert_array_equal(real.bundle.weights, virtual.bundle.weights)


@pytest.mark.parametrize("central", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_daemons_make_noise_of_the_planned_size_with_keys_of_their_own(central):
    settings = [
        f'privacy.noise="{"central" if central else "distributed"}"',
        "privacy.epsilon=10.0",
        "privacy.cohort_min=4",
        "privacy.corrupt=0.1",
        "round.reports_min=4",
        "rounds=2",
        "evaluation.every=2",
        LONG,
    ]
    chosen = scenario_file.override(scenario_file.load("digits"), settings)
    models = []
    for _ in range(2):
        result = simulate_processes(chosen, Shape(devices=4, edges=1, by_mqtt=0), threads=1)
        assert [r.applied for r in result.rounds] == [True, True] and not result.why
        models.append(result.bundle.weights)
    ring = result.bundle.manifest.ring
    deviation = ring.clip * ring.noise * np.sqrt(1 if central else 4) / 4 * np.sqrt(2)
    assert models[0].std() == pytest.approx(deviation, rel=0.1)
    # The same scenario and seed, and other noise.
    assert (models[0] - models[1]).std() == pytest.approx(deviation * np.sqrt(2), rel=0.1)
