"""Every algorithm of the catalogue in a scenario: masks change nothing, threads change nothing."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.aggregate.stages import SERVERS
from delian.core.learning.runtime import Runtime
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file

SMALL = [
    "rounds=3",
    "fleet.devices=9",
    "fleet.dropout=0.2",
    "round.cohort=5",
    "round.over_selection=1.2",
    "round.reports_min=3",
    "data.held_out_devices=2",
    "model.hidden=[8]",
    "evaluation.every=3",
]
#: Everybody selected reports.
ALL = ("fleet.dropout=0.0", "round.over_selection=1.0", "round.reports_min=5")
#: Those whose devices remember something, in the different ways that there are.
REMEMBERING = ("scaffold", "fedrep")


def scenario(algorithm, *settings):
    chosen = scenario_file.with_algorithm(scenario_file.load("digits"), algorithm)
    return scenario_file.override(chosen, [*SMALL, *settings])


@pytest.mark.parametrize("how", ["secure", "plain"])
def test_scaffold_s_control_moves_by_those_who_reported(how, monkeypatch):
    """With dropouts fewer report than a round selects: the server's program takes their number."""
    told, update = [], Runtime.server_update

    def hear(self, state, memory, mean, out=None, *, weight=None):
        after, kept = update(self, state, memory, mean, out, weight=weight)
        half = len(mean) // 2
        told.append(weight)
        share = np.dot(after[half:] - state[half:], mean[half:]) / np.dot(mean[half:], mean[half:])
        assert share == pytest.approx(weight / 7, rel=1e-3)  # nine devices, two of them held out
        return after, kept

    monkeypatch.setattr(Runtime, "server_update", hear)
    lossy = ("fleet.dropout=0.5", "round.over_selection=1.0", "rounds=4")
    result = simulate(scenario("scaffold", *lossy, f'privacy.aggregation="{how}"'))
    assert told == [r.reported for r in result.rounds if r.applied]
    assert min(told) < 5


def test_devices_are_judged_without_personal_steps():
    """By what they keep: another model than the shared one. ProtoNet has none without a batch."""
    result = simulate(scenario("ditto", *ALL, "algorithm.personal_steps=0"))
    trained = [d for d in result.devices if d.rounds]
    assert any(d.accuracy_after != d.accuracy_before for d in trained)
    fresh = [d for d in result.devices if d.held_out]
    assert fresh and all(d.accuracy_after is not None for d in fresh)
    with pytest.raises(DelianError, match="personal_steps"):
        scenario("protonet", "algorithm.personal_steps=0")


@pytest.mark.parametrize("algorithm", REMEMBERING)
def test_masks_change_nothing(algorithm):
    """Uploads add up under masks, whatever is in them: the models are equal to the bit."""
    masked, plain = (
        simulate(scenario(algorithm, *ALL, f'privacy.aggregation="{how}"'), threads=2)
        for how in ("secure", "plain")
    )
    for result in (masked, plain):
        assert [r.reported for r in result.rounds] == [5, 5, 5]
    assert np.all(np.isfinite(masked.bundle.weights)) and np.any(masked.bundle.weights)
    np.testing.assert_array_equal(masked.bundle.weights, plain.bundle.weights)


@pytest.mark.parametrize("server", sorted(SERVERS))
def test_every_server_optimiser_makes_the_next_model(server):
    settings = [f'algorithm.server_optimizer="{server}"', "algorithm.server_learning_rate=0.1"]
    result = simulate(scenario("fedavg", *ALL, *settings, "rounds=2", "evaluation.every=2"))
    assert [r.applied for r in result.rounds] == [True] * 2
    assert np.all(np.isfinite(result.bundle.weights))
    assert (len(result.bundle.manifest.memory) > 0) == (server != "sgd")


def test_threads_that_compute_ahead_change_no_client_state():
    one, three = (simulate(scenario("scaffold"), threads=n) for n in (1, 3))
    assert one.trace_hash == three.trace_hash
    np.testing.assert_array_equal(one.bundle.weights, three.bundle.weights)
    judged = [[d.accuracy_after for d in result.devices] for result in (one, three)]
    assert judged[0] == judged[1]


def test_what_a_device_remembers_makes_the_next_round_another():
    """Without its control variates SCAFFOLD would be federated averaging of equal weights."""
    kept = simulate(scenario("scaffold", "fleet.dropout=0.0"), threads=2)
    manifest = kept.bundle.manifest
    sizes = [
        sum(leaf.size for leaf in leaves) for leaves in (manifest.client_state, manifest.state)
    ]
    assert sizes[1] == 2 * sizes[0] > 0
    model = kept.bundle.weights[: sizes[0]]
    control = kept.bundle.weights[sizes[0] :]
    assert np.linalg.norm(control) > 1e-3 * np.linalg.norm(model)
