"""The report says what the result says, the same each time, on one page that needs nothing else."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import numpy as np
import pytest
from delian.cli.simulation.summary import summary_text
from delian.core.common.errors import DelianError
from delian.core.learning.data import Deal, Labelled, federate
from delian.simulations.federation.round_records import Evaluation
from delian.simulations.report import data_page, report_plots, svg
from delian.simulations.report.report import (
    build_report,
    claim_folder,
    summarise,
    to_json,
    write_report,
)
from delian.simulations.report.report_page import page
from delian.simulations.runs.confidence import spread_of
from delian.simulations.runs.result import DeviceRecord
from delian.simulations.scenario.scenario_file import load, override, with_algorithm


@pytest.fixture(scope="module")
def scenario():
    return override(load("synthetic-mlp"), ["data.held_out_devices=20", "fleet.devices=40"])


@pytest.fixture(scope="module")
def result(make_result, scenario):
    return make_result(scenario)


def device(number, before, after, held_out=False):
    return DeviceRecord(number, f"device {number}", 0, 10, held_out, 1, before, after)


def test_the_summary_s_figures_worked_out_by_hand(result):
    devices = [device(i, 0.5, 0.75) for i in range(18)]
    devices += [device(18, 1.0, 0.5, held_out=True), device(19, 0.0, 0.25, held_out=True)]
    devices += [device(20, None, None)]
    summary = summarise(dataclasses.replace(result, devices=tuple(devices)))
    assert summary["evaluated"] == 20
    assert summary["global_accuracy"] == pytest.approx((18 * 0.5 + 1) / 20)
    assert summary["personalised_accuracy"] == pytest.approx((18 * 0.75 + 0.75) / 20)
    assert (summary["harmed"], summary["harmed_share"]) == (1, 0.05)
    # The worst tenth of twenty devices is two of them.
    assert summary["worst_decile_global"] == pytest.approx((0.0 + 0.5) / 2)
    assert summary["worst_decile_personalised"] == pytest.approx((0.25 + 0.5) / 2)
    assert summary["seen"]["gain"] == pytest.approx(0.25)
    assert summary["held_out"]["global_accuracy"] == pytest.approx(0.5)
    assert summary["held_out"]["harmed"] == 1


def test_bytes_and_counts_are_sums_over_rounds(result):
    summary = summarise(result)
    assert summary["rounds"] == len(result.rounds)
    assert summary["updates"] == sum(r.reported for r in result.rounds)
    assert summary["bytes"]["device_edge_up"] == 20_000 * summary["reported"]
    assert summary["virtual_seconds"] == pytest.approx(3.5 * len(result.rounds))


def test_nothing_outside_host_depends_on_the_machine(result):
    later = dataclasses.replace(result, host={"total_seconds": 99.0, "cpu": "another"})
    one, other = build_report(result), build_report(later)
    assert one.pop("host") != other.pop("host")
    assert to_json(one) == to_json(other)


def test_report_json_parses_back_and_has_every_part(result):
    report = json.loads(to_json(build_report(result)))
    assert report["format"] == 1
    assert {"scenario", "summary", "rounds", "devices", "trace_hash", "data", "host"} < set(report)
    assert report["rounds"][0]["bytes"]["device_edge_up"] > 0
    assert report["devices"][3]["accuracy_after"] == result.devices[3].accuracy_after


def test_nan_becomes_null(result):
    first = dataclasses.replace(result.rounds[0], global_loss=float("nan"))
    broken = dataclasses.replace(result, rounds=(first, *result.rounds[1:]))
    assert json.loads(to_json(build_report(broken)))["rounds"][0]["global_loss"] is None


def test_names_that_are_no_utf_8_do_not_cost_the_report(tmp_path, result):
    odd = os.fsdecode(b"m\xfcsli.npz")
    named = dataclasses.replace(result, data={**result.data, "source": odd})
    write_report(build_report(named), tmp_path)
    kept = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert kept["data"]["source"] == odd
    assert "m\\udcfcsli.npz" in (tmp_path / "report.html").read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Checks that tags nest, and gathers what the page would load."""

    VOID = ("meta", "line", "rect", "circle", "path", "br", "link", "img")

    def __init__(self):
        super().__init__()
        self.open, self.loads, self.text = [], [], []

    def handle_starttag(self, tag, attrs):
        self.loads += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def check_page(html):
    reader = Reader()
    reader.feed(html)
    assert not reader.open
    assert all(link.startswith("data:text/csv;") for link in reader.loads)  # files in the page
    assert not re.search(r"<script|https?:|@import|url\(", html)
    drawings = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    for drawing in drawings:
        ElementTree.fromstring(drawing)
        assert "nan" not in drawing.lower().replace("finance", "")
    return " ".join(" ".join(reader.text).split()), drawings


def test_the_page_loads_nothing_and_tells_the_headline(result):
    report = build_report(result)
    told, drawings = check_page(page(report))
    assert f"{100 * report['summary']['personalised_accuracy']:.1f}" in told
    assert "never trained" in told and result.trace_hash in told
    assert len(drawings) >= 12


def test_the_page_of_a_comparison_names_both(make_result, scenario, result):
    other = make_result(with_algorithm(scenario, "fomaml"), shared=0.6, personal=0.95, seed=3)
    report = build_report(result, other)
    told, _ = check_page(page(report))
    assert "FedAvg" in told and "first-order MAML" in told
    assert report["compare"]["summary"]["algorithm"] == "fomaml"


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_a_run_that_was_stopped_early_has_a_page_too(make_result, scenario, rounds):
    stopped = make_result(scenario, rounds=rounds)
    if rounds == 0:
        blank = [
            dataclasses.replace(d, accuracy_before=None, accuracy_after=None)
            for d in stopped.devices
        ]
        stopped = dataclasses.replace(stopped, devices=tuple(blank))
    told, _ = check_page(page(build_report(stopped, stopped)))
    assert f"Stopped after {rounds} of 10 rounds" in told


def test_a_run_that_gave_up_says_why(make_result, scenario, result):
    few = make_result(scenario, rounds=4)
    last = dataclasses.replace(few.rounds[-1], applied=False)
    gave_up = dataclasses.replace(
        few, rounds=(*few.rounds[:-1], last), stopped_by="failure", why="too few devices reported"
    )
    told, _ = check_page(page(build_report(gave_up)))
    assert "Gave up after 3 of 10 rounds: too few devices reported." in told
    assert "1 attempt had too few reports" in told and "a round may take more than one" in told
    told, _ = check_page(page(build_report(result, gave_up)))
    assert "FedAvg: Gave up after 3 of 10 rounds" in told


def test_every_selected_device_is_told_of_once(result):
    spared = dataclasses.replace(result.rounds[0], reported=8, dropped=1, spare=1)
    report = build_report(dataclasses.replace(result, rounds=(spared, *result.rounds[1:])))
    summary = report["summary"]
    assert summary["spare"] == 1
    assert summary["selected"] == sum(
        summary[kind] for kind in ("reported", "refused", "dropped", "late", "spare")
    )
    told, _ = check_page(page(report))
    assert "1 had not answered yet when the round had enough" in told


def test_the_page_of_few_shot_tasks_says_that_the_shared_model_can_only_guess(result):
    report = build_report(result)
    report["scenario"]["data"] = {"source": "omniglot", "ways": 5}
    told, _ = check_page(page(report))
    assert "chance is 20.0%" in told and "numbers its 5 classes at random" in told


def in_real_time(result):
    """The same as real daemons would have left it."""
    rounds = tuple(
        dataclasses.replace(r, wall_seconds=0.25, virtual_seconds=0.0, seconds={"waiting": 0.0})
        for r in result.rounds
    )
    return dataclasses.replace(result, rounds=rounds, trace_hash="")


def test_the_page_of_real_daemons_has_real_time_and_no_chart_of_a_time_that_was_not(result):
    report = build_report(in_real_time(result))
    assert report["summary"]["wall_seconds"] == pytest.approx(0.25 * len(result.rounds))
    told, _ = check_page(page(report))
    assert "The rounds take 2.5 s of real time" in told and "real daemons" in told
    assert "irtual" not in told and "Where the devices’ time went" not in told
    assert "Trace" not in told
    assert "0.25 s" in told, "each round in the table"
    told, _ = check_page(page(build_report(result)))
    assert "of virtual time" in told and "real" not in told


def test_the_page_of_a_report_that_knows_no_real_time_is_made_too(result):
    report = build_report(result)
    del report["summary"]["wall_seconds"], report["evaluations"]
    for row in report["rounds"]:
        del row["wall_seconds"]
    check_page(page(report))


def test_what_devices_said_is_drawn_and_an_early_end_is_told(result):
    said = tuple(
        Evaluation(
            number,
            devices,
            {
                "global_accuracy": 0.5,
                "personalised_accuracy": 0.875,
                "global_loss": 1.25,
                "personalised_loss": 0.5,
                "queries": 120.0,
            },
        )
        for number, devices in ((1, 12), (2, 15))
    )
    why = "no better in 2 evaluations"
    told, drawings = check_page(
        page(build_report(dataclasses.replace(result, evaluations=said, why=why)))
    )
    assert "2 models were judged through the protocol, by 12 to 15 devices each" in told
    assert "87.5%" in told and "1.2500" in told
    assert "Ended early, after 10 of 10 rounds: no better in 2 evaluations." in told
    plain, fewer = check_page(page(build_report(result)))
    assert "What devices say" not in plain and len(drawings) == len(fewer) + 2


def test_one_measured_round_is_drawn_as_a_point(make_result, scenario):
    told, drawings = check_page(page(build_report(make_result(scenario, rounds=1))))
    assert "After 1 round the shared model" in told
    assert any('class="dot personal"' in d for d in drawings if "Accuracy per round" in d)


def test_axes_that_count_have_no_fractions():
    assert svg.ticks(1, 5, 10, 1) == [1, 2, 3, 4, 5]
    assert svg.ticks(0, 2, 4, 1) == [0, 1, 2]


def test_names_from_data_are_escaped(result):
    named = dataclasses.replace(result.devices[0], name="<b>&\"'</b>")
    evil = dataclasses.replace(result, devices=(named, *result.devices[1:]))
    html = page(build_report(evil))
    check_page(html)
    assert "<b>&" not in html


@pytest.mark.parametrize("devices", [1, 2, 500])
def test_any_number_of_devices_can_be_drawn(devices):
    records = [
        dataclasses.asdict(device(i, i / devices, 1.0, held_out=i % 3 == 1)) for i in range(devices)
    ]
    for width in (svg.WIDE, svg.NARROW):
        ElementTree.fromstring(report_plots.device_gains(records, width))
        gains = [r["accuracy_after"] - r["accuracy_before"] for r in records]
        ElementTree.fromstring(report_plots.gain_histogram(gains, width))


def test_every_gain_is_in_the_histogram():
    gains = [-1.0, -0.05, 0.0, 0.05, 0.3, 1.0]
    drawn = report_plots.gain_histogram(gains, svg.WIDE)
    counts = [int(n) for n in re.findall(r"<title>(\d+) devices?:", drawn)]
    assert sum(counts) == len(gains)


def test_a_folder_with_a_report_is_not_written_over(tmp_path, result):
    claim_folder(tmp_path / "run")
    where = write_report(build_report(result), tmp_path / "run")
    assert where.name == "report.html" and (where.parent / "report.json").exists()
    with pytest.raises(DelianError, match="holds an earlier report") as caught:
        claim_folder(tmp_path / "run")
    assert "--out" in caught.value.hint


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DelianError, match="cannot make the folder"):
        claim_folder(tmp_path / "file" / "run")


def test_the_spread_leaves_out_a_tenth_on_either_side():
    assert spread_of([float(i) for i in range(11)]) == (1.0, 9.0)
    assert spread_of([0.5]) == (0.5, 0.5)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.42, "0.42 s"), (4.2, "4.2 s"), (42, "42 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations_are_told_as_people_would(seconds, told):
    assert svg.duration(seconds) == told


@pytest.mark.parametrize(
    ("count", "told"),
    [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (123_456, "123 kB"), (8e6, "8.0 MB")],
)
def test_sizes_are_told_as_people_would(count, told):
    assert svg.size(count) == told


def test_ticks_are_round_and_inside():
    assert svg.ticks(0, 1, 5) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert svg.ticks(1, 30, 10) == [5, 10, 15, 20, 25, 30]
    assert svg.ticks(3, 3, 5) == [3]


@pytest.mark.parametrize("name", ["fedper", "fedrep"])
def test_a_shared_model_that_no_device_uses_is_called_so(name, make_result, scenario, tmp_path):
    result = make_result(override(with_algorithm(scenario, name), ["algorithm.personal_steps=0"]))
    report = build_report(result)
    what = "the shared body under the head that was first drawn, which no device uses"
    assert page(report).count(what) == 2
    assert f"shared: {what}" in summary_text(report, tmp_path)
    assert "own models, without further steps, give" in page(report)
    other = build_report(make_result(scenario))
    assert "no device uses" not in page(other) + summary_text(other, tmp_path)


def test_devices_that_were_left_out_are_in_page_and_summary(make_result, scenario, tmp_path):
    said = "2 devices have fewer than 4 examples and were left out"
    result = make_result(scenario)
    card = {**result.data, "left_out": 2, "left_out_text": said}
    report = build_report(dataclasses.replace(result, data=card))
    assert said in page(report) and said in summary_text(report, tmp_path)
    assert "left out" not in summary_text(build_report(result), tmp_path)


def test_devices_that_were_left_out_are_in_the_card_s_page():
    owners = np.repeat(np.arange(3), (5, 3, 6))
    x, y = np.zeros((len(owners), 2), np.float32), np.zeros(len(owners), np.int32)
    made = federate(
        Labelled("three", x, y, owners, ("a", "b", "c")),
        deal=Deal(partition="natural", min_examples=4),
        devices=None,
        query_fraction=0.5,
        held_out_devices=0,
        seed=1,
    )
    said = dict(data_page.lines(data_page.facts(made)))["left out"]
    assert said == "1 device has fewer than 4 examples and was left out"
