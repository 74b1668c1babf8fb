"""A run in experiment trackers: what they are given, when they fail, and what they are named."""

from __future__ import annotations

import dataclasses
import sys

import pytest
from delian.core.common.errors import DelianError
from delian.simulations.integrations.tracker import figures_of, flat
from delian.simulations.integrations.trackers import Trackers, recorded, trackers
from delian.simulations.runs.result import Phase, Replayed, RoundFinished, Started
from delian.simulations.scenario.scenario_file import load, with_algorithm


@pytest.fixture(scope="module")
def result(make_result):
    return make_result(load("synthetic-mlp"))


class Notes:
    """A tracker that keeps what it is given."""

    def __init__(self):
        self.calls = []

    def started(self, name, settings, time_ms):
        self.calls.append(("started", name, settings))

    def figures(self, step, values, time_ms):
        self.calls.append(("figures", step, values))

    def ended(self, outcome, values):
        self.calls.append(("ended", outcome, values))

    def where(self):
        return "notes"


def pass_on(listener, result, rounds=None):
    listener(Started(result.scenario, 100, 0))
    listener(Phase("compiling"))
    for record in result.rounds if rounds is None else rounds:
        listener(RoundFinished(record))


def test_a_tracker_gets_settings_each_round_and_the_end(result):
    notes = Notes()
    listener = Trackers([notes])
    pass_on(listener, result)
    listener.close(result)
    (kind, name, settings), *middle, (last, outcome, values) = notes.calls
    assert (kind, last, outcome) == ("started", "ended", "finished")
    assert name == f"synthetic-mlp-fedavg-{result.scenario.seed}"
    assert settings["algorithm.name"] == "fedavg" and settings["rounds"] == "10"
    assert [step for _, step, _ in middle] == [r.round for r in result.rounds]
    assert middle[2][2]["accuracy/personalized"] == result.rounds[2].personalised_accuracy
    assert middle[0][2]["bytes/device_edge_up"] == result.rounds[0].bytes["device_edge_up"]
    assert "loss/training" not in middle[0][2]  # it is not known
    assert values["final/global_accuracy"] == pytest.approx(0.7, abs=0.05)
    assert values["total/bytes_device_edge_up"] == 20_000 * sum(r.reported for r in result.rounds)


def test_the_runs_of_a_comparison_are_two(result, make_result):
    notes = Notes()
    listener = Trackers([notes])
    other = make_result(with_algorithm(result.scenario, "fomaml"))
    pass_on(listener, result)
    listener.ended(result)
    pass_on(listener, other)
    listener.close(dataclasses.replace(other, stopped_by="interrupt"))
    assert [call[1] for call in notes.calls if call[0] != "figures"] == [
        "synthetic-mlp-fedavg-1",
        "finished",
        "synthetic-mlp-fomaml-1",
        "stopped",
    ]


def test_a_resumed_run_is_recorded_whole(result):
    notes = Notes()
    listener = Trackers([notes])
    listener(Started(result.scenario, 100, 0))
    listener(Replayed(result.rounds[3], result.rounds[:4]))
    for record in result.rounds[4:]:
        listener(RoundFinished(record))
    assert [call[1] for call in notes.calls[1:]] == [r.round for r in result.rounds]


def test_attempts_that_changed_nothing_are_no_step(result):
    notes = Notes()
    listener = Trackers([notes])
    pass_on(listener, result, [dataclasses.replace(result.rounds[0], applied=False)])
    assert [call[0] for call in notes.calls] == ["started"]


def test_a_tracker_that_fails_does_not_cost_the_run_and_says_so_once(result, capsys):
    class Full(Notes):
        def figures(self, step, values, time_ms):
            raise OSError("No space left on device")

    notes = Notes()
    listener = Trackers([Full(), notes])
    pass_on(listener, result)
    listener.close(result)
    assert capsys.readouterr().err == "delian: Full records no more: No space left on device\n"
    assert len(notes.calls) == 2 + len(result.rounds)
    assert listener.where() == ["notes"]


def test_a_run_that_breaks_off_is_recorded_as_failed(result):
    notes = Notes()
    listener = Trackers([notes])
    with pytest.raises(ValueError, match="no"), recorded(listener, lambda event: None) as on_event:
        on_event(Started(result.scenario, 100, 0))
        raise ValueError("no")
    assert notes.calls[-1] == ("ended", "failed", {})
    listener.failed()  # once
    assert len(notes.calls) == 2


def test_names_of_a_tasks_own_metrics_are_names_that_trackers_take(result):
    record = dataclasses.replace(
        result.rounds[0],
        global_metrics={"F1 of 'a'": 0.5, "none": None},
        personalised_metrics={"F1 of 'a'": float("nan"), "none": None},
    )
    found = figures_of(record, "accuracy")
    assert found["F1 of _a_/shared"] == 0.5
    assert not [name for name in found if name.startswith(("none", "F1 of _a_/personalized"))]


def test_settings_are_flat_and_text():
    tables = {"rounds": 3, "data": {"source": "digits", "scale": [1, 2]}, "privacy": {"bits": None}}
    assert flat(tables) == {
        "rounds": "3",
        "data.source": "digits",
        "data.scale": "[1, 2]",
        "privacy.bits": "null",
    }


@pytest.mark.parametrize(
    ("given", "package", "extra"),
    [
        ({"tensorboard": "runs"}, "tensorboard.summary", "[tensorboard]"),
        ({"mlflow": "runs"}, "mlflow", "[mlflow]"),
        ({"wandb": "offline"}, "wandb", "[wandb]"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(given, package, extra, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(DelianError, match="is not installed") as raised:
        trackers(**given)
    assert extra in raised.value.hint and not list(tmp_path.iterdir())


def test_other_modes_of_wandb_are_refused_with_the_way():
    with pytest.raises(DelianError, match="nothing is sent") as raised:
        trackers(wandb="online")
    assert "wandb sync" in raised.value.hint
