"""Regression from a scenario's file to its report: sinusoids, numbers of one's own under a model of
one's own, and what reports call an error.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.runtime import Score
from delian.simulations.report import measures
from delian.simulations.report.report import build_report, summarise, to_json
from delian.simulations.report.report_page import page
from delian.simulations.runs import comparison
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file
from delian.simulations.scenario.datasets import load_data, with_data

SMALL = (
    "fleet.devices=12",
    "data.held_out_devices=4",
    "data.support=20",
    "data.query=30",
    "round.cohort=4",
    "round.reports_min=4",
    "rounds=3",
    "evaluation.every=1",
)


def small(*changes: str) -> scenario_file.Scenario:
    return scenario_file.override(scenario_file.load("sinusoid"), [*SMALL, *changes])


def test_a_sinusoid_is_a_device_and_newcomers_have_as_many_points_as_shots() -> None:
    data = load_data(small("data.shots=5"))
    assert len(data.devices) == 12 and len(data.held_out) == 4
    for number, device in enumerate(data.devices):
        assert device.support == (5 if number in data.held_out else 20)
        assert device.query == 30 and device.y.dtype == np.float32
        x, y = device.x[: device.examples, 0].astype(float), device.y[: device.examples]
        # A sin(x - phi) = a sin x + b cos x: two numbers explain all.
        basis = np.stack([np.sin(x), np.cos(x)], axis=1)
        found, *_ = np.linalg.lstsq(basis, y, rcond=None)
        np.testing.assert_allclose(basis @ found, y, atol=1e-5)
        assert 0.1 <= np.hypot(*found) <= 5 and np.abs(x).max() <= 5
    assert data.card.numbers and sum(map(sum, data.card.label_counts)) == 8 * 50 + 4 * 35


def test_an_oracle_is_told_amplitude_and_phase() -> None:
    device = load_data(small("data.oracle=true")).devices[0]
    x, amplitude, phase = device.x[: device.examples].T
    np.testing.assert_allclose(
        device.y[: device.examples], amplitude * np.sin(x - phase), atol=1e-5
    )
    assert len(set(amplitude)) == len(set(phase)) == 1


@pytest.fixture(scope="module")
def result():
    return simulate(small(), backend="reference", threads=1)


def test_errors_are_judged_where_numbers_are_learnt(result) -> None:
    last, summary = result.rounds[-1], summarise(result)
    before = [d.accuracy_before for d in result.devices]
    after = [d.accuracy_after for d in result.devices]
    assert summary["measure"] == "mean squared error"
    assert last.global_accuracy == pytest.approx(last.global_loss)
    assert summary["global_accuracy"] == pytest.approx(np.mean(before))
    assert summary["gain"] == pytest.approx(np.mean(before) - np.mean(after))
    assert summary["harmed"] == sum(a > b for b, a in zip(before, after, strict=True))
    assert summary["worst_decile_global"] == max(before)


def test_r_squared_compares_the_error_with_the_variance_of_what_is_right(result) -> None:
    data = load_data(result.scenario)
    y = np.concatenate([d.y[d.support : d.examples] for d in data.devices]).astype(float)
    last = result.rounds[-1]
    wanted = 1 - last.global_pooled_accuracy / y.var()
    assert last.global_r_squared == pytest.approx(wanted, rel=1e-6)
    assert 0 < last.global_absolute_error <= np.sqrt(last.global_pooled_accuracy)


def test_a_report_of_errors_shows_plain_numbers_and_says_what_is_better(result) -> None:
    report = json.loads(to_json(build_report(result, result)))
    text = page(report)
    assert "Mean squared error: less is better." in text
    assert 'aria-label="Mean squared error per round"' in text
    assert "how much the error fell" in text and "R²" in text
    learning = text[text.index("<h2>Learning") : text.index("<h2>Which devices gain")]
    assert "%" not in learning.replace("0%", "").split("<table>")[0]


def test_personal_models_that_come_apart_have_a_page(result) -> None:
    last = replace(result.rounds[-1], personalised_absolute_error=float("inf"))
    broken = replace(result, rounds=(*result.rounds[:-1], last))
    assert "and then no number." in page(json.loads(to_json(build_report(broken))))


def test_errors_of_large_numbers_are_told_as_they_are() -> None:
    measure = measures.SQUARED_ERROR
    assert measure.of(Score(3e12, 0.0, 2.0)) == 1.5e12
    assert measure.of(Score(float("nan"), 0.0, 2.0)) == measures.ERROR_MAX > 1e12


def test_reports_of_labels_have_no_errors_in_them() -> None:
    plain = {"data": {"source": "digits"}}
    measure = measures.measure_of(plain)
    assert measure.show(0.5) == "50.0%" and measure.gain(0.2, 0.5) > 0
    assert measure.worst([0.5, 0.1]) == [0.1, 0.5]


def test_a_comparison_of_errors_seeks_the_lower_one(result) -> None:
    curve = [
        {"round": r.round, "bytes_up": 10.0, "personalised_accuracy": r.personalised_accuracy}
        for r in result.rounds
    ]
    entry = comparison.Entry("one", {1: {"summary": summarise(result), "curve": curve}})
    highest = max(p["personalised_accuracy"] for p in curve)
    assert entry.reached(highest + 1.0) == {1: (1, 10.0)} and entry.reached(0.0) == {}
    assert not comparison.more_is_better("personal", entry.measure)
    compared = comparison.compare([entry], target=highest + 1.0)
    head, row = comparison.table(compared)
    assert head[-2] == f"rounds to {highest + 1.0:g}" and "%" not in "".join(row)
    assert "Less is better." in comparison.page(compared, "errors")


def test_numbers_of_one_s_own_are_learnt_by_a_model_of_one_s_own(tmp_path: Path) -> None:
    """Two numbers a row, by a linear model from a file: least squares finds them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 3)).astype(np.float32)
    truth = np.array([[1, 0], [0, 2], [-1, 1]], np.float32)
    np.savez(tmp_path / "numbers.npz", x=x, y=x @ truth)
    (tmp_path / "model.py").write_text(
        "import delian as dl\nimport numpy as np\n\n\n@dl.module\nclass Line:\n    w: object\n\n"
        "    def __call__(self, x, weight):\n        return x @ self.w\n\n\n"
        "def init(key, shape, classes):\n"
        "    return Line(np.zeros((shape[0], classes), np.float32))\n"
    )
    file = tmp_path / "own.toml"
    file.write_text(
        'name = "own"\nrounds = 12\n[data]\nsource = "npz"\npath = "numbers.npz"\n'
        'targets = "numbers"\npartition = "iid"\n[model]\nname = "python"\nfile = "model.py"\n'
        '[algorithm]\nname = "fedavg"\nepochs = 4\nlearning_rate = 0.1\n[fleet]\ndevices = 6\n'
        "[round]\ndevices = 6\n[privacy]\nclip = 50.0\n"
    )
    own = simulate(scenario_file.load(str(file)), backend="reference", threads=1)
    assert own.rounds[-1].global_accuracy < 1e-3 < own.rounds[0].global_accuracy
    assert own.rounds[-1].global_r_squared > 0.99


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (("data.partition=dirichlet",), "deals by labels"),
        (("data.partition=iid", "model.classes=3"), "no classes"),
    ],
)
def test_what_only_labels_have_is_refused(tmp_path: Path, changes: tuple[str, ...], told: str):
    np.savez(tmp_path / "n.npz", x=np.ones((20, 2), np.float32), y=np.ones(20))
    base = with_data(scenario_file.load("digits"), tmp_path / "n.npz")
    with pytest.raises(DelianError, match=told):
        scenario_file.override(base, ["data.targets=numbers", *changes])


def test_devices_are_not_asked_to_judge_errors_that_they_cannot_say(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    file = tmp_path / "n.npz"
    changes = ["evaluation.federated=true", "data.source=npz", "data.targets=numbers"]
    changes += ["data.partition=iid", "data.held_out_devices=0", f'data.path="{file}"']
    changes += ["fleet.devices=6", "round.cohort=3"]
    scenario = scenario_file.override(scenario_file.load("digits"), changes)
    np.savez(file, x=x, y=200 + 30 * x[:, 0])
    with pytest.raises(DelianError, match=r"mean square of 3.91e\+04, .* up to 64"):
        load_data(scenario)
    np.savez(file, x=x, y=x[:, 0])
    assert load_data(scenario).training
    np.savez(file, x=x, y=200 + 30 * x[:, 0])
    assert load_data(scenario_file.override(scenario, ["evaluation.federated=false"])).training


def test_prototypes_of_numbers_are_refused() -> None:
    chosen = scenario_file.with_algorithm(small(), "protonet")
    with pytest.raises(DelianError, match="prototypes of classes"):
        simulate(chosen, backend="reference", threads=1)


@pytest.mark.parametrize(
    "y", [np.ones((4, 2, 2)), np.array(["a"] * 4), np.array([1, np.nan, 1, 1])]
)
def test_a_file_without_numbers_is_refused(tmp_path: Path, y: np.ndarray) -> None:
    from delian.core.learning import data

    np.savez(tmp_path / "n.npz", x=np.ones((4, 2), np.float32), y=y)
    with pytest.raises(DelianError, match="`y`"):
        data.npz(tmp_path / "n.npz", numbers=True)
