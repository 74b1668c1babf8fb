"""Scenarios with noise: what they promise, what they learn, and what they may not ask for."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from delian.cli.simulation.summary import summary_text
from delian.core.common.errors import DelianError
from delian.core.privacy.mechanisms import noise_mechanism
from delian.core.privacy.mechanisms.ring import RingPlan
from delian.simulations.report.report import build_report
from delian.simulations.report.run_warnings import drowned
from delian.simulations.runs.result import Notice, RoundFinished
from delian.simulations.runs.simulate import simulate
from delian.simulations.runs.stage import Stage
from delian.simulations.scenario import scenario_file

SMALL = [
    "rounds=2",
    "fleet.devices=16",
    "round.cohort=12",
    "round.over_selection=1.0",
    "round.reports_min=9",
    "data.held_out_devices=3",
    "evaluation.every=2",
]


def scenario(*settings):
    chosen = scenario_file.with_algorithm(scenario_file.load("digits"), "fedavg")
    return scenario_file.override(chosen, [*SMALL, *settings])


@pytest.mark.parametrize("noise", ["distributed", "central"])
def test_a_scenario_with_noise_runs_through_the_whole_protocol(noise):
    models = []
    for epsilon in (100.0, 1.0):
        result = simulate(
            scenario(f'privacy.noise="{noise}"', f"privacy.epsilon={epsilon}", "fleet.dropout=0.0"),
            threads=2,
        )
        assert [r.applied for r in result.rounds] == [True, True] and not result.why
        manifest = result.bundle.manifest
        assert manifest.bits < (32 if manifest.central else 28), "as wide as noise needs"
        assert manifest.noise > 0 and manifest.central == (noise == "central")
        models.append(result.bundle.weights)
    # More privacy, more noise.
    assert 0 < np.std(models[0]) < 0.2 * np.std(models[1])


def test_the_default_has_neither_noise_nor_masks():
    result = simulate(scenario(), threads=2)
    assert result.bundle.manifest.noise == 0.0


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (['privacy.noise="central"'], "epsilon"),
        (["privacy.epsilon=2.0"], "privacy.noise"),
        (['privacy.noise="central"', "privacy.epsilon=2.0", 'privacy.aggregation="plain"'], "mask"),
        (
            ['privacy.noise="central"', "privacy.epsilon=2.0", "evaluation.federated=true"],
            "noise",
        ),
        (
            ['privacy.noise="central"', "privacy.epsilon=2.0", 'round.mode="buffered"'],
            "rounds",
        ),
        (['privacy.noise="local"', "privacy.epsilon=2.0"], "noise"),
        (['privacy.noise="central"', "privacy.epsilon=0.0"], "epsilon"),
    ],
)
def test_what_cannot_be_promised_is_refused(settings, says):
    with pytest.raises(DelianError, match=says):
        scenario(*settings)


def test_noise_that_a_few_devices_cannot_make_is_refused_in_words():
    with pytest.raises(DelianError, match="corrupt"):
        simulate(
            scenario(
                'privacy.noise="distributed"',
                "privacy.epsilon=2.0",
                "privacy.corrupt=0.7",
                "privacy.dropout=0.05",
                "round.reports_min=3",
                "privacy.cohort_min=3",
            )
        )


def test_rotated_updates_learn_the_same_through_all_tiers():
    still = ["fleet.dropout=0.0", "network.device_edge.loss=0.0", 'privacy.aggregation="secure"']
    plain, rotated = (
        simulate(scenario(*still, f"privacy.rotated={on}"), threads=2) for on in ("false", "true")
    )
    ring = rotated.bundle.manifest.ring
    assert ring.rotated and ring.length == 8193 and plain.bundle.manifest.ring.length == 4811
    assert [r.applied for r in rotated.rounds] == [True, True]
    np.testing.assert_allclose(rotated.bundle.weights, plain.bundle.weights, atol=1e-4)


def test_rotation_and_noise_go_together():
    settings = ['privacy.noise="distributed"', "privacy.epsilon=50.0", "privacy.rotated=true"]
    result = simulate(scenario(*settings), threads=2)
    assert any(r.applied for r in result.rounds) and np.all(np.isfinite(result.bundle.weights))


def test_narrow_rings_are_fewer_bytes_on_both_hops_and_learn_nearly_the_same():
    still = ["fleet.dropout=0.0", 'privacy.aggregation="secure"']
    wide, narrow = (
        simulate(scenario(*still, f"privacy.bits={bits}"), threads=2) for bits in (32, 20)
    )
    assert (
        narrow.bundle.manifest.ring.bits == 20 and [r.applied for r in narrow.rounds] == [True] * 2
    )
    for hop in ("device_edge_up", "edge_cloud_up"):
        saved = sum(
            w.bytes[hop] - n.bytes[hop] for w, n in zip(wide.rounds, narrow.rounds, strict=True)
        )
        vectors = sum(r.reported if hop == "device_edge_up" else 3 for r in narrow.rounds)
        assert saved >= 0.9 * vectors * (4 - 20 / 8) * 4_811
    error = np.linalg.norm(narrow.bundle.weights - wide.bundle.weights)
    assert 0 < error < 0.05 * np.linalg.norm(wide.bundle.weights)


def test_noise_that_drowns_the_updates_is_said_before_the_rounds_and_at_the_end():
    said = []
    noised = scenario('privacy.noise="distributed"', "privacy.epsilon=1.0", "rounds=1")
    result = simulate(noised, threads=2, on_event=said.append)
    kinds = [type(event) for event in said]
    (notice,) = [event for event in said if isinstance(event, Notice)]
    assert kinds.index(Notice) < kinds.index(RoundFinished)
    assert "the noise that epsilon 1 takes is" in notice.text
    assert "12 updates" in notice.text and "4,810 parameters" in notice.text
    report = build_report(result)
    assert report["summary"]["warnings"][0] == notice.text
    spent = report["summary"]["privacy"]
    assert 0 < spent["epsilon"] <= spent["promised"] == 1.0 and spent["delta"] == 1e-6
    assert spent["epsilon"] == result.rounds[-1].epsilon
    told = summary_text(report, Path("report.html"))
    assert f"epsilon {spent['epsilon']:.3g} of 1 spent, delta 1e-06, distributed noise" in told


def test_how_many_devices_it_takes_is_how_many_it_takes():
    asked = scenario('privacy.noise="central"', "privacy.epsilon=4.0", "privacy.clip=2.0")
    stages = noise_mechanism.PrivacyTarget(4.0, 1e-6, 20, 12, central=True)
    ring = noise_mechanism.planned(RingPlan(2.0, 500, 650), stages)
    excess = noise_mechanism.drowning(ring, 12)
    assert excess > 2.0
    enough = int(re.search(r"about ([\d,]+) devices", drowned(asked, ring))[1].replace(",", ""))
    assert (
        noise_mechanism.drowning(ring, enough) <= 1.0 < noise_mechanism.drowning(ring, enough - 20)
    )
    plenty = SimpleNamespace(round=SimpleNamespace(cohort=enough))
    assert drowned(plenty, ring) == "" == drowned(asked, RingPlan(2.0, 500, 650))


def test_distributed_noise_of_all_adds_up():
    plan = RingPlan(2.0, 500, 650, noise=1.0)
    alone, many = (noise_mechanism.drowning(plan, count) for count in (1, 100))
    assert alone == pytest.approx(np.sqrt(650)) and many == pytest.approx(alone / 10)


def test_the_bundled_scenario_with_privacy_is_not_drowned():
    bundled = scenario_file.load("digits-private")
    bundle = Stage(bundled, None, None, "reference", lambda event: None).bundle
    assert 0.3 < noise_mechanism.drowning(bundle.manifest.ring, bundled.round.cohort) < 1.0
    assert drowned(bundled, bundle.manifest.ring) == ""
