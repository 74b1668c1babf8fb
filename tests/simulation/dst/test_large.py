"""Federations whose devices replay recorded updates."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.privacy.mechanisms import ring
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.core.protocol.random_streams import Streams, device_key
from delian.simulations.dst.large import run_large
from delian.simulations.federation.federation import Federation
from delian.simulations.federation.fleet import Fleet
from delian.simulations.runs.recorded import RecordedTraining, record
from delian.simulations.scenario.federation_plan import FederationPlan


@pytest.fixture(scope="module")
def recording():
    return record(3)


def test_a_recording_says_what_devices_have_learnt(recording):
    assert len(recording.updates) == 3 and recording.bundle
    for update, weight in recording.updates:
        assert update.shape == recording.first.shape and 0 < weight <= 1
        assert 0 < np.linalg.norm(update) <= recording.clip
    first, second, _ = recording.updates
    assert not np.array_equal(first[0], second[0]), "each on its own data"


def test_the_model_moves_by_the_mean_of_what_is_replayed(recording):
    plan = RingPlan(clip=recording.clip, clients_max=64, dimension=recording.first.size)
    training = RecordedTraining(recording, plan)
    federation = Federation(
        FederationPlan.of(plan, Fleet(20, 2), rounds=1, cohort=6), training, seed=5
    )
    (made,) = federation.run().rounds
    key = Streams(5).word("round key", 1, 1).to_bytes(8, "little")
    chosen = [training.which(d, np.array(device_key(key, d), np.uint32)) for d in made.reported]
    total = sum(training.vectors[i] for i in chosen).astype(np.uint32)
    mean, weight = ring.decode(total, plan)
    assert made.weight == weight
    np.testing.assert_allclose(federation.weights - recording.first, mean, atol=1e-6)


def test_a_small_large_run_makes_all_its_models():
    run = run_large(devices=200, edges=4, rounds=2, cohort=20)
    assert run.updates >= 40 and run.rounds == 2
    assert run_large(devices=200, edges=4, rounds=2, cohort=20).trace == run.trace


@pytest.mark.slow
def test_of_a_hundred_thousand_devices_each_takes_about_what_it_takes_of_a_tenth_of_them():
    """By this machine's own measure, whatever it is; what looks at all devices for one takes ten
    times as much.
    """
    few = run_large(devices=10_000, cohort=1_000)
    run = run_large()
    assert run.devices == 100_000 and run.updates >= 30_000
    assert run.cpu_s / run.updates < 4 * few.cpu_s / few.updates
