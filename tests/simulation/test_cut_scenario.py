"""Scenarios of partitioned execution: links over time, files, runs, reports and the command."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from delian.cli.main import app
from delian.core.common.errors import DelianError
from delian.core.compiler.parse import parse_function
from delian.core.placement.cut.cut import Cut
from delian.core.placement.cut.link_model import LinkProfile
from delian.core.placement.cut.placement_plan import Piece, PlacementPlan
from delian.core.placement.subgraphs.part_programs import Model
from delian.core.protocol.ports import MS, SECOND
from delian.core.protocol.random_streams import Streams
from delian.simulations.placement import cut_scenario
from delian.simulations.placement.cut_check import check_cuts
from delian.simulations.placement.cut_page import page
from delian.simulations.placement.cut_report import quantile, run_scenario
from delian.simulations.placement.links_over_time import (
    MBPS,
    MOBILES,
    LinkTrace,
    mobile,
    read_trace,
)
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]

SMALL = """
name = "small"
seconds = 20.0
[devices]
count = 2
every_ms = 400.0
[links]
kinds = ["wifi", "4g"]
[[cuts]]
name = "here"
device_ms = 300.0
[[cuts]]
name = "there"
edge_ms = 30.0
up_bytes = 60000
down_bytes = 40
[[outages]]
from_s = 8.0
to_s = 12.0
"""


@pytest.fixture
def small(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


# ---------------------------------------------------------------- links


def test_a_transfer_takes_as_long_as_the_bandwidth_on_its_way_says():
    trace = LinkTrace(
        (0, SECOND, 2 * SECOND), (1000.0, 500.0, 2000.0), (1.0,) * 3, (MS,) * 3, 3 * SECOND
    )
    assert trace.sent_at(0, 100, up=True) == SECOND // 10
    assert trace.sent_at(SECOND // 2, 750, up=True) == SECOND + SECOND // 2
    # Over the end of the trace, which repeats: 1000 + 500 + 2000, and 500 of the next 1000.
    assert trace.sent_at(0, 4000, up=True) == 3 * SECOND + SECOND // 2
    assert trace.sent_at(7 * SECOND, 250, up=True) == 7 * SECOND + SECOND // 2
    assert trace.mean_up() == pytest.approx(3500 / 3)


@pytest.mark.parametrize("kind", MOBILES)
def test_a_mobile_link_has_the_mean_that_the_literature_gives_it(kind):
    trace = mobile(kind, Streams(5), 0, 100_000.0)
    assert trace.mean_up() / MBPS == pytest.approx(MOBILES[kind].mbps, rel=0.03)
    assert len(set(trace.up)) == 5
    # Neighbours only: no level is skipped.
    levels = sorted(set(trace.up))
    numbers = [levels.index(rate) for rate in trace.up]
    assert all(abs(a - b) == 1 for a, b in pairwise(numbers))


def test_a_mobile_link_is_a_function_of_seed_and_device():
    assert mobile("4g", Streams(1), 0, 60.0) == mobile("4g", Streams(1), 0, 60.0)
    assert mobile("4g", Streams(1), 0, 60.0) != mobile("4g", Streams(1), 1, 60.0)
    assert mobile("4g", Streams(1), 0, 60.0) != mobile("4g", Streams(2), 0, 60.0)


def test_a_trace_file_is_read(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("seconds,mbps,latency\n0,8,20\n10,0.8,40\n20,0\n")
    trace = read_trace(path, latency_ms=7, down=2.0)
    assert trace.starts == (0, 10 * SECOND, 20 * SECOND)
    assert trace.up == (1e6, 1e5, 0.001 * MBPS), "no bandwidth at all would never end"
    assert trace.down[0] == 2e6
    assert trace.latency == (20 * MS, 40 * MS, 7 * MS)
    assert trace.length == 30 * SECOND


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "does not begin at 0"),
        ("1,5\n", "does not begin at 0"),
        ("0,5\n0,6\n", "do not rise"),
        ("0,5\n1e-9,6\n", "by a millisecond"),
        ("0,5\n1,fast\n", "line 2"),
        ("0,5\n1,nan\n", "line 2"),
        ("0,5,10,3\n", "line 1"),
        ("0,5,1e9\n", "out of range"),
    ],
)
def test_a_trace_file_that_is_none_is_refused(tmp_path, content, said):
    path = tmp_path / "trace.csv"
    path.write_text(content)
    with pytest.raises(DelianError, match=said):
        read_trace(path, latency_ms=5)


def test_a_trace_file_has_a_limit(tmp_path, monkeypatch):
    path = tmp_path / "trace.csv"
    path.write_text("".join(f"{k},1\n" for k in range(20)))
    monkeypatch.setattr("delian.simulations.placement.links_over_time.ROWS_MAX", 10)
    with pytest.raises(DelianError, match="more than 10 rows"):
        read_trace(path, latency_ms=5)


# ---------------------------------------------------------------- scenarios


def test_the_bundled_scenarios_are_right():
    assert "subgraphs-mobile" in cut_scenario.bundled()
    for name in cut_scenario.bundled():
        assert cut_scenario.load(name).name == name


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("nonsense=1", "nonsense"),
        ("seconds=-1", "seconds"),
        ("links.kinds=['5g']", "kinds"),
        ("plan='p.json'", "either cuts or a plan"),
        ("check=true", "takes a plan"),
        ("links.kinds=['file']", "needs one"),
        ("seconds", "not key=value"),
        ("seconds=86400\ndevices.count=10000", "requests"),
    ],
)
def test_a_wrong_key_is_named(small, setting, said):
    with pytest.raises(DelianError, match=said):
        cut_scenario.load(str(small), setting.split("\n"))


@pytest.mark.parametrize(
    "content",
    ["a = " + "[" * 100_000, "\0", 'name = "', b"\xff"],
    ids=["deep", "zero", "torn", "byte"],
)
def test_a_file_that_is_no_scenario_is_refused(tmp_path, content):
    path = tmp_path / "scenario.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DelianError, match=r"scenario\.toml"):
        cut_scenario.load(str(path))


def test_a_plan_that_no_scenario_takes_is_refused(tmp_path):
    piece = Piece(1e3, 1e9, b"x", (1e30, 0.0), (0,), (0,), (0.0,), (0, 0))
    link = LinkProfile(1e6, 1e6, 0.01)
    plan = PlacementPlan("b" * 64, "infer", ("d", "e"), (link,), "latency", (piece,))
    (tmp_path / "plan.json").write_text(plan.to_json())
    path = tmp_path / "planned.toml"
    for name, said in (("plan.json", "device_ms"), ("a\\u0000b", "null byte"), ("no", "No such")):
        path.write_text(f'name = "planned"\nplan = "{name}"\nseconds = 6.0\n')
        scenario = cut_scenario.load(str(path))
        with pytest.raises(DelianError, match=said):
            cut_scenario.tables_of(scenario)


def test_a_scenario_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(DelianError, match="there is no scenario") as error:
        cut_scenario.load("no such thing")
    assert "subgraphs-mobile" in error.value.hint


def test_the_documentation_has_the_keys():
    said = (ROOT / "docs" / "placement.md").read_text()
    # One level further down there.
    assert cut_scenario.keys_markdown().replace("### ", "#### ").strip() in said


# ---------------------------------------------------------------- runs and reports


def test_the_same_seed_gives_the_same_report_and_another_one_another(small):
    def run(seed):
        return run_scenario(cut_scenario.load(str(small), [f"seed={seed}"]))

    first = run(1)
    assert run(1) == first
    assert run(2)["trace"] != first["trace"]


def test_a_report_says_what_happened(small):
    report = run_scenario(cut_scenario.load(str(small)))
    names = [arm["name"] for arm in report["arms"]]
    assert names == ["together", "device only", "all above"]
    together, alone, above = (arm["groups"]["all"] for arm in report["arms"])
    assert together["requests"] == alone["requests"] == above["requests"] > 80
    assert together["answered"] == together["requests"] and together["refused"] == 0
    assert alone["p50_ms"] == pytest.approx(300, rel=0.05)
    assert together["p50_ms"] < 0.6 * alone["p50_ms"]
    assert sum(cut["requests"] for cut in report["cuts"]) + sum(
        together["fallback"].values()
    ) == pytest.approx(together["requests"])
    wifi = report["devices"][0]
    assert wifi["link"] == "wifi" and wifi["switches"][0]["after"] == 1
    # While the edge was away, requests stayed here.
    during = [s for s in wifi["switches"] if 8 <= s["at"] < 9]
    assert [s["after"] for s in during] == [0]
    drawn = page(report)
    for words in ("The cut over time", "Wi-Fi", "together", report["trace"]):
        assert words in drawn
    assert drawn.count("<svg") > 4 and "NaN" not in drawn and "nan" not in drawn


def test_the_page_escapes_what_the_scenario_says(small):
    report = run_scenario(
        cut_scenario.load(str(small), ["seconds=3", "description='<script>alert(1)</script>'"])
    )
    report["cuts"][0]["name"] = "<b>"
    assert "<script>" not in page(report) and "<b></th>" not in page(report)


def test_a_quantile_is_one_of_the_values():
    assert quantile([], 0.5) is None
    assert [quantile([1, 2, 3, 4], q) for q in (0.0, 0.25, 0.5, 0.99, 1.0)] == [1, 1, 2, 4, 4]


@pytest.mark.parametrize("objective", ["latency", "energy"])
def test_a_plan_s_file_gives_the_cuts(tmp_path, objective):
    def piece(low, high, tiers, up, down):
        return Piece(low, high, b"x", tiers, up, down, (0.001, 0.0), (0, 0, 0))

    plan = PlacementPlan(
        bundle="b" * 64,
        program="infer",
        profiles=("d", "e", "c"),
        links=(LinkProfile(1e6, 1e6, 0.01, 0.0), LinkProfile(1e7, 1e7, 0.01, 0.0)),
        objective=objective,
        pieces=(
            piece(1e3, 1e5, (0.3, 0.0, 0.0), (0, 0), (0, 0)),
            piece(1e5, 1e9, (0.1, 0.02, 0.01), (30_000, 5_000), (40, 40)),
        ),
    )
    (tmp_path / "plan.json").write_text(plan.to_json())
    path = tmp_path / "planned.toml"
    path.write_text('name = "planned"\nplan = "plan.json"\nseconds = 6.0\n[edges]\nlanes = 4\n')
    report = run_scenario(cut_scenario.load(str(path)))
    assert [c["up_bytes"] for c in report["cuts"]] == [0, 30_000]
    assert report["cuts"][1]["cloud_up_bytes"] == 5_000
    assert report["whole_ms"] == pytest.approx(301)
    assert report["cuts"][1]["requests"] > 0, "three tiers worked together"


def test_parts_that_are_really_run_give_what_the_whole_gives_and_narrow_wires_cost_a_little():
    program = """
fn infer(%0 w: f32[6,8], %1 x: f32[4,6]) -> (result: f32[4,8]) {
  %2: f32[4,6] = tanh(%1)
  %3: f32[4,8] = dot(%2, %0) {contract_a=[1], contract_b=[0], batch_a=[], batch_b=[]}
  %4: f32[4,8] = tanh(%3)
  return %4
}
"""
    weights = np.random.default_rng(1).standard_normal((6, 8)).astype(np.float32)
    model = Model(bytes(32), bytes(32), "infer", parse_function(program), (weights,))
    cuts = {0: Cut((0, 1, 2)), 1: Cut((0, 0, 0)), 2: Cut((0, 1, 1), {2: "i8"})}
    told = []
    exact, alone, narrow = check_cuts(model, cuts, 1, told.append, backend="reference")
    assert exact["difference"] == alone["difference"] == 0.0
    assert 0 < narrow["difference"] < 0.05 and narrow["largest"] > 0.5
    assert len(told) == 3


def test_the_command_writes_a_report_and_prints_it(small, tmp_path):
    out = tmp_path / "out"
    runner = CliRunner()
    done = runner.invoke(app, ["partition", "simulate", str(small), "--out", str(out), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads((out / "report.json").read_text())
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    again = runner.invoke(app, ["partition", "simulate", str(small), "--out", str(out)])
    assert isinstance(again.exception, DelianError), "an earlier report is not written over"
