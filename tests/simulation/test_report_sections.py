"""Losses, costs, classes and baselines of a run, on its page and in files that the page offers."""

from __future__ import annotations

import base64
import csv
import dataclasses
import io
import itertools
import json
import re

import delian as dl
import numpy as np
import pytest
from delian.cli.simulation.kept_report_files import Asked
from delian.cli.simulation.summary import summary_text
from delian.core.learning.sampling import SampleSet
from delian.simulations.report import class_plots, report_plots
from delian.simulations.report.measures import ACCURACY, Measure
from delian.simulations.report.report import build_report
from delian.simulations.report.report_page import page
from delian.simulations.runs import baselines
from delian.simulations.runs.result import Baseline
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario.scenario_file import load, override

SMALL = [
    "fleet.devices=8",
    "data.held_out_devices=2",
    "round.cohort=4",
    "rounds=3",
    "evaluation.every=1",
]


@pytest.fixture(scope="module")
def scenario():
    return override(load("synthetic-mlp"), SMALL)


@pytest.fixture(scope="module")
def run(scenario):
    return simulate(scenario, threads=2, baselines=True)


@pytest.fixture(scope="module")
def report(run):
    return json.loads(json.dumps(build_report(run, command="delian simulate mine --seed 3")))


def files(html):
    """The files that a page offers, by name, as rows."""
    found = {}
    for name, text in re.findall(r'download="([^"]+)" href="data:text/csv[^,]*,([^"]*)"', html):
        rows = list(csv.reader(io.StringIO(base64.b64decode(text).decode())))
        assert found.setdefault(name, rows) == rows
    return found


def text_of(html):
    plain = re.sub(r"<style>.*?</style>|<[^>]*>", " ", html, flags=re.DOTALL)
    return " ".join(plain.split())


def test_the_figures_of_each_plot_can_be_downloaded_from_the_page(run, report):
    offered = files(page(report))
    names = "learning rounds devices classes confusion baselines traffic time labels"
    assert set(offered) == {f"{name}.csv" for name in names.split()}
    head, *rows = offered["learning.csv"]
    assert len(rows) == 3
    last = dict(zip(head, rows[-1], strict=True))
    assert float(last["personalised_accuracy"]) == run.rounds[-1].personalised_accuracy
    assert float(last["training_loss"]) == run.rounds[-1].training_loss
    sent = sum(r.bytes["device_edge_up"] for r in run.rounds)
    assert float(last["bytes_up"]) == sent
    assert float(last["seconds"]) == pytest.approx(sum(r.virtual_seconds for r in run.rounds))
    assert [row[0] for row in offered["devices.csv"][1:]] == [str(d.device) for d in run.devices]


def test_a_file_has_no_more_rows_than_a_page_should_carry(report, monkeypatch):
    from delian.simulations.report import page_parts

    monkeypatch.setattr(page_parts, "CSV_ROWS_MAX", 2)
    assert {len(rows) for rows in files(page(report)).values()} == {3}


def test_losses_are_drawn_and_of_a_regression_the_training_loss_alone(report):
    html = page(report)
    assert html.count('aria-label="Loss per round"') == 2  # wide and narrow
    assert "0.000" not in re.findall(r'aria-label="Loss per round".*?</svg>', html, re.DOTALL)[0]
    assert "Loss. Training:" in text_of(html)
    numbers = json.loads(json.dumps(report))
    numbers["scenario"]["data"] |= {"targets": "numbers", "source": "npz"}
    drawn = re.findall(r'aria-label="Loss per round".*?</svg>', page(numbers), re.DOTALL)[0]
    assert "training" in drawn and "personal" not in drawn


def test_accuracy_is_drawn_over_bytes_and_over_time(report):
    html = page(report)
    for over in ("bytes sent by devices", "virtual time"):
        drawn = re.search(rf'aria-label="Accuracy over {over}".*?</svg>', html, re.DOTALL)[0]
        (line,) = re.findall(r'<path d="M([^"]+)" class="line personal"', drawn)
        along = [float(point.split()[0]) for point in line.split("L")]
        assert along == sorted(along) and len(along) == 3


def test_classes_add_up_to_the_accuracies_of_the_run(run):
    view, last = run.classes, run.rounds[-1]
    matrix = np.array(view["confusion"])
    assert matrix.sum() == sum(view["examples"]) > 0
    assert np.trace(matrix) / matrix.sum() == pytest.approx(last.global_pooled_accuracy)
    right = [s * n for s, n in zip(view["personalised"], view["examples"], strict=True) if n]
    assert sum(right) / matrix.sum() == pytest.approx(last.personalised_pooled_accuracy)
    assert view["labels"] == [str(name) for name in run.data["label_names"]]


def test_the_page_names_the_class_that_is_known_least(report):
    classes = {
        "labels": ["rose", "lily", "iris"],
        "confusion": [[9, 1, 0], [0, 10, 0], [2, 3, 5]],
        "examples": [10, 10, 10],
        "shared": [0.9, 1.0, 0.5],
        "personalised": [0.9, 1.0, 0.8],
    }
    html = page({**report, "classes": classes})
    told = text_of(html)
    assert "The shared model knows iris least: it is right on 50.0% of its 10 examples" in told
    assert "and takes 3 for lily . Personal models are right on 80.0%." in told.replace(
        "lily.", "lily ."
    )
    assert "iris taken for lily: 3 of 10" in html
    assert files(html)["confusion.csv"][3] == ["iris", "2", "3", "5"]


def test_characters_that_cannot_be_seen_are_named(report):
    classes = {
        "labels": ["a", " ", "\n"],
        "confusion": [[3, 0, 0], [1, 1, 0], [0, 0, 2]],
        "examples": [3, 2, 2],
        "shared": [1.0, 0.5, 1.0],
        "personalised": [1.0, 0.5, 1.0],
    }
    html = page({**report, "classes": classes})
    assert "The shared model knows <b>space</b> least" in html and "newline taken for a" in html
    assert files(html)["confusion.csv"][3][0] == "\n"


def test_many_classes_have_bars_of_the_least_known_and_no_matrix(report):
    count = 40
    classes = {
        "labels": [f"class {i}" for i in range(count)],
        "confusion": np.diag(np.arange(1, count + 1)).tolist(),
        "examples": list(range(1, count + 1)),
        "shared": [1.0] * count,
        "personalised": [1.0] * count,
    }
    html = page({**report, "classes": classes})
    assert f"The {class_plots.BARS_MAX} classes with the lowest accuracy" in html
    assert "Confusion matrix" not in html and "confusion.csv" not in files(html)
    assert len(files(html)["classes.csv"]) == 1 + count


def test_models_of_numbers_and_stopped_runs_have_no_classes(scenario, report):
    few = ["fleet.devices=12", "data.held_out_devices=2", "round.cohort=4", "round.reports_min=2"]
    numbers = override(load("sinusoid"), [*few, "rounds=1"])
    assert simulate(numbers, threads=1).classes is None
    stopped = simulate(scenario, threads=1, stop=lambda: True, baselines=True)
    assert stopped.classes is None and stopped.baselines is None
    told = text_of(page({**report, "classes": None, "baselines": None}))
    assert "Classes" not in told and "without the federation" not in told


def test_baselines_change_nothing_of_the_run_and_are_the_same_with_any_threads(scenario, run):
    plain = simulate(scenario, threads=1)
    assert plain.baselines is None and plain.trace_hash == run.trace_hash
    np.testing.assert_array_equal(plain.bundle.weights, run.bundle.weights)
    again = simulate(scenario, threads=1, baselines=True)
    assert again.baselines == run.baselines


def test_baselines_learn_by_as_many_updates_as_they_say(scenario, run):
    alone, pooled = run.baselines["alone"], run.baselines["pooled"]
    assert alone.updates == 3 and pooled.updates == sum(r.reported for r in run.rounds)
    assert set(alone.accuracies) == set(pooled.accuracies) == set(range(8))
    untrained = simulate(override(scenario, ["algorithm.learning_rate=1e-9"]), baselines=True)

    def mean(baseline):
        return np.mean([before for before, _ in baseline.accuracies.values()])

    for way in ("alone", "pooled"):
        assert mean(run.baselines[way]) > mean(untrained.baselines[way]) + 0.05


def test_pooled_rows_are_those_of_training_devices_each_once_in_a_pass(scenario):
    counts = [3, 5, 4, 6]
    devices, at = [], 0
    for count in counts:
        x = np.zeros((9, 2), np.float32)
        x[:count, 0] = np.arange(at, at + count)
        x[count:, 0] = -1
        devices.append(SampleSet(x, np.zeros(9, np.int32), np.array(count), np.array(2)))
        at += count

    class Stage:
        arrays = devices
        data = type("Data", (), {"training": (0, 1, 3)})
        scenario = type("Scenario", (), {"seed": 7})

    rows, taken = baselines._rows(Stage), []
    for _ in range(14):
        table = next(rows)
        assert table.x.shape == (9, 2) and int(table.support) == 5 and int(table.query) == 0
        taken += table.x[:5, 0].astype(int).tolist()
    wanted = sorted([*range(8), *range(12, 18)])
    assert sorted(taken[:14]) == sorted(taken[14:28]) == wanted
    assert taken[:14] != taken[14:28] != sorted(taken[14:28])


def test_the_page_and_the_terminal_compare_with_devices_alone_and_a_pool(run, report, tmp_path):
    found = report["baselines"]
    ours = report["summary"]["personalised_accuracy"]
    told = text_of(page(report))
    assert "With and without the federation" in told
    gap = abs(100 * (ours - found["alone"]["personalised_accuracy"]))
    assert f"{gap:.1f} points" in told or "level with those of devices that train alone" in told
    assert {key: found[key]["evaluated"] for key in found} == {"alone": 8, "pooled": 8}
    said = summary_text(report, tmp_path / "report.html")
    for name in ("each device alone", "all rows in one place"):
        assert name in said and name in told


def test_a_regression_is_compared_in_its_own_words(report):
    numbers = json.loads(json.dumps(report))
    numbers["scenario"]["data"] |= {"targets": "numbers", "source": "npz"}
    numbers["summary"] |= {"global_accuracy": 3097.4, "personalised_accuracy": 3106.0}
    for way, value in (("alone", 5824.0), ("pooled", 3006.0)):
        numbers["baselines"][way]["personalised_accuracy"] = value
    told = text_of(page(numbers))
    assert (
        "mean squared error 3,106, 2,718 less than those of devices that train alone, and 100.0"
        " more than those made from a pool of all rows"
    ) in told
    assert ["3,097", "shared", "model", "mean", "squared", "error", "over", "devices"][0] in told
    assert "its root is 55.65" in told and "Mean squared error" in told


def test_few_shot_devices_are_compared_alone_only(report):
    told = text_of(page({**report, "baselines": {"alone": report["baselines"]["alone"]}}))
    assert "each device alone" in told and "all rows in one place" not in told


def test_a_page_says_its_command_and_explains_its_words(report):
    html = page(report)
    told = text_of(html)
    assert "Made by delian simulate mine --seed 3" in told
    assert html.count("delian simulate mine --seed 3") == 1
    for word in ("spare", "late", "newcomers, never trained, held-out devices", "virtual time"):
        assert f"<dt>{word}</dt>" in html
    assert "epsilon" not in told
    spent = {"noise": "central", "epsilon": 3.456, "promised": 4.0, "delta": 1e-6}
    noised = {**report, "summary": {**report["summary"], "privacy": spent}}
    told = text_of(page(noised))
    assert "3.46 epsilon of 4, delta 1e-06: differential privacy" in told
    assert "epsilon, delta" in told


def test_headers_of_tables_say_what_they_are_for_and_keys_scroll(report):
    html = page(report)
    assert "<th>" not in html and '<th scope="col">' in html and '<th scope="row">' in html
    names = re.findall(r'<div class="scroll" tabindex="0" role="region" aria-label="([^"]+)"', html)
    assert len(names) == html.count('<div class="scroll"') == len(set(names)) > 1
    drawings = re.findall(r"<svg(?! class=\"mark\")[^>]*>(.{7})", html)
    assert drawings and set(drawings) == {"<title>"}


def test_labels_at_the_ends_of_lines_stay_above_the_axis():
    rows = [report_plots.Series(f"line {i}", "shared", [(1.0, 0.01), (9.0, 0.0)]) for i in range(4)]
    drawn = report_plots.accuracy_lines(rows, 880)
    places = [float(y) for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)" class="name', drawn)]
    axis = float(re.search(r'y1="([\d.]+)" y2="[\d.]+" class="axis"', drawn)[1])
    assert len(places) == 4 and max(places) < axis
    assert all(b - a >= 14.9 for a, b in itertools.pairwise(places))


def test_the_command_of_a_run_gives_its_options_again():
    settings = ["model.file=/somewhere/net.py", 'data.target="a b"']
    asked = Asked("/somewhere", "digits", settings, "my data.csv", None, "fedavg", 3, "native")
    assert asked.command("virtual", None, None, None) == (
        "delian simulate digits --set model.file=net.py --set 'data.target=\"a b\"'"
        " --data 'my data.csv'"
        " --compare fedavg --seed 3"
    )
    plain = dataclasses.replace(
        asked, source="", settings=[], data=None, compare=None, seed=None, backend="reference"
    )
    assert plain.command("virtual", None, None, None, True).endswith(" reference --baselines")
    assert plain.command("processes", 6, 2, None) == (
        "delian simulate --backend reference --mode processes --devices 6 --edges 2"
    )


def test_baselines_of_devices_that_were_not_judged_are_absent(run):
    some = dict.fromkeys(range(4), (0.5, 0.75))
    report = build_report(dataclasses.replace(run, baselines={"alone": Baseline(3, some)}))
    found = report["baselines"]["alone"]
    assert found["evaluated"] == 4 and found["personalised_accuracy"] == 0.75


def test_dl_simulate_has_baselines_too():
    run = dl.simulate("synthetic-mlp", settings=SMALL, baselines=True, backend="reference")
    assert set(run.result.baselines) == {"alone", "pooled"} and run.result.classes is not None


def near_the_top(*heights):
    """A line of a share, and its band."""
    line = [(float(k + 1), y) for k, y in enumerate(heights)]
    band = [(x, y - 0.1, min(1.0, y + 0.02)) for x, y in line]
    return [report_plots.Series("shared", "shared", line, band)]


def test_lines_near_100_percent_are_drawn_again_on_an_axis_of_their_own():
    zoomed = report_plots.zoomed(near_the_top(0.4, 0.93, 0.95, 0.96, 0.97), ACCURACY)
    assert zoomed is not None
    lines, begins = zoomed
    assert begins == pytest.approx(0.9) and [x for x, _ in lines[0].line] == [2, 3, 4, 5]
    drawn = report_plots.accuracy_lines(lines, 880, begins=begins)
    assert "the vertical axis begins at 90%" in drawn and ">92%<" in drawn and ">0%<" not in drawn
    assert lines[0].band == () and "Z" not in drawn.partition('class="line')[0]


@pytest.mark.parametrize("heights", [(0.4, 0.6, 0.9, 0.95), (0.95, 0.96), (0.9, 0.95, 0.97, 0.7)])
def test_other_lines_have_the_whole_axis_alone(heights):
    assert report_plots.zoomed(near_the_top(*heights), ACCURACY) is None
    assert report_plots.zoomed(near_the_top(0.9, 0.95, 0.97), Measure("error", error=True)) is None
