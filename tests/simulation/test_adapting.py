"""What local steps are worth: measured on real devices, and the figures that are made of it."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from delian.cli.simulation.summary import summary_text
from delian.core.common.errors import DelianError
from delian.simulations.report import adapting
from delian.simulations.report.measures import ACCURACY, SQUARED_ERROR
from delian.simulations.report.report import build_report, summarise, to_json
from delian.simulations.report.report_page import page
from delian.simulations.runs import comparison
from delian.simulations.runs.result import DeviceRecord
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario.scenario_file import load, override

SMALL = (
    *("fleet.devices=8", "data.held_out_devices=2", "fleet.edges=1", "round.cohort=4"),
    *("rounds=2", "algorithm.personal_steps=5", "evaluation.every=2"),
)


@pytest.fixture(scope="module")
def stepped():
    steps = ("evaluation.steps=[1, 5, 10]", "evaluation.target=0.2")
    return simulate(override(load("digits"), [*SMALL, *steps]), threads=1)


def test_the_scenario_s_own_steps_give_the_device_s_own_model(stepped) -> None:
    for device in stepped.devices:
        assert len(device.steps_query) == len(device.steps_support) == 4
        assert device.steps_query[0] == device.accuracy_before
        assert device.steps_query[2] == device.accuracy_after


def test_steps_change_nothing_else_in_a_report(stepped) -> None:
    plain = simulate(override(load("digits"), SMALL), threads=1)
    assert plain.trace_hash == stepped.trace_hash and plain.rounds == stepped.rounds
    assert all(d.steps_query == d.steps_support == () for d in plain.devices)
    summary = summarise(plain)
    assert summary["adaptation"] is None and summary["target"] is None
    assert "Step by step" not in page(build_report(plain))


def test_the_support_rows_are_those_that_are_learnt(stepped) -> None:
    """Many steps on the very rows: there they are better than on rows that were kept back."""
    of = summarise(stepped)["adaptation"]
    assert of["steps"] == [0, 1, 5, 10]
    assert of["support"][3] > of["support"][0] and of["support"][3] >= of["query"][3]
    means = [np.mean([d.steps_query[i] for d in stepped.devices if d.held_out]) for i in range(4)]
    assert of["held_out"] == pytest.approx(means)


def test_a_few_shot_device_s_steps_are_means_over_its_episodes(shared_data) -> None:
    scenario = override(
        load("omniglot-characters"),
        [
            *("rounds=1", "round.cohort=2", "evaluation.devices=2"),
            'model={name = "mlp", hidden = [8], batch_norm = true}',
            *("evaluation.episodes=3", "evaluation.steps=[3]"),
        ],
    )
    result = simulate(scenario, data_path=shared_data / "omniglot_small.npz", backend="reference")
    judged = [d for d in result.devices if d.steps_query]
    assert len(judged) == 2
    for device in judged:
        assert device.steps_query == (device.accuracy_before, device.accuracy_after)
        assert device.steps_support == ()
    assert summarise(result)["adaptation"]["support"] is None


def device(number: int, *accuracies: float, held_out: bool = False) -> DeviceRecord:
    first, last = accuracies[0], accuracies[-1]
    record = DeviceRecord(number, f"{number}", 0, 10, held_out, 1, first, last)
    return dataclasses.replace(record, steps_query=accuracies)


def test_figures_by_step_worked_out_by_hand() -> None:
    devices = [device(0, 0.5, 0.75), device(1, 0.5, 0.25, held_out=True)]
    found = adapting.summary(devices, (3,), ACCURACY)
    assert found is not None
    assert found["query"] == [0.5, 0.5] and found["worst_decile"] == [0.5, 0.25]
    assert found["harmed_share"] == [0.0, 0.5] and found["deviation"] == [0.0, 0.25]
    assert found["jain"] == pytest.approx([1.0, 1.0 / (2 * (0.5625 + 0.0625))])
    assert (found["trained"], found["held_out"]) == ([0.5, 0.75], [0.5, 0.25])
    errors = adapting.summary(devices, (3,), SQUARED_ERROR)
    assert errors is not None and errors["worst_decile"] == [0.5, 0.75]
    assert adapting.summary([], (3,), ACCURACY) is None


def test_fairness_from_all_alike_to_one_who_has_everything() -> None:
    assert adapting.jain([0.5] * 4) == 1.0 and adapting.deviation([0.5] * 4) == 0.0
    assert adapting.jain([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert adapting.jain([0.0, 0.0]) is None
    assert adapting.deviation([0.0, 1.0]) == 0.5


def test_a_target_counts_what_was_sent_for_nothing_too() -> None:
    rounds = [
        {"round": n, "bytes": {"device_edge_up": 10}, "virtual_seconds": 2.0, **accuracy}
        for n, accuracy in enumerate(
            ({"personalised_accuracy": a} for a in (0.5, None, 0.7, 0.9)), 1
        )
    ]
    found = adapting.reached(rounds, 0.7, ACCURACY.gain)
    assert found == {"target": 0.7, "round": 3, "bytes_up": 30.0, "seconds": 6.0}
    assert adapting.reached(rounds, 0.95, ACCURACY.gain)["round"] is None
    assert adapting.reached(rounds, 0.6, SQUARED_ERROR.gain)["round"] == 1


def test_the_page_shows_the_steps_and_the_target(stepped) -> None:
    report = json.loads(to_json(build_report(stepped)))
    shown = page(report)
    assert "Step by step" in shown and "rows adapted to" in shown and "local steps" in shown
    assert "Personal models came to 20.0% after 2 rounds" in shown
    assert "standard deviation over devices went from" in shown


def test_a_comparison_shows_the_steps_of_those_who_have_them(stepped) -> None:
    known = comparison.Entry("known", {1: {"summary": summarise(stepped), "curve": []}})
    bare = {**summarise(stepped), "adaptation": None}
    unknown = comparison.Entry("unknown", {1: {"summary": bare, "curve": []}})
    compared = comparison.compare([known, unknown])
    head, one, newcomers = comparison.steps_table(compared)
    assert head == ["local steps", "0", "1", "5", "10"]
    assert (one[0], newcomers[0]) == ("known", "known, never trained")
    expected = 100 * summarise(stepped)["adaptation"]["query"][3]
    assert float(one[-1]) == pytest.approx(expected, abs=0.06)
    assert comparison.steps_table(comparison.compare([unknown])) == []
    assert "Step by step" in comparison.page(compared, "steps")
    assert "Step by step" not in comparison.page(comparison.compare([unknown]), "steps")


@pytest.mark.parametrize("steps", ["[5, 1]", "[1, 1]", "[0]"])
def test_steps_that_do_not_rise_are_refused(steps: str) -> None:
    with pytest.raises(DelianError, match=r"evaluation\.steps|rise|greater"):
        override(load("digits"), [f"evaluation.steps={steps}"])


def test_the_terminal_s_last_lines_say_the_same(stepped, tmp_path) -> None:
    text = summary_text(build_report(stepped), tmp_path / "report.html")
    assert "by local steps: " in text and text.count(" after 10") == 1
    assert "20.0%: reached after 2 rounds, " in text
    plain = dataclasses.replace(stepped, scenario=override(load("digits"), SMALL))
    assert "by local steps" not in summary_text(build_report(plain), tmp_path / "report.html")
