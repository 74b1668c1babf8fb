"""`delian compare` and `delian sweep` as a user gives them."""

from __future__ import annotations

import json

import pytest
from delian.cli.main import app
from delian.cli.simulation.study_commands import _base, _file_name
from delian.core.common.errors import DelianError
from typer.testing import CliRunner

SMALL = [
    *("--set", "rounds=2", "--set", "fleet.devices=8", "--set", "data.held_out_devices=2"),
    *("--set", "round.cohort=4", "--set", "round.reports_min=2", "--set", "model.hidden=[4]"),
]


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)


def test_a_comparison_has_a_table_a_page_and_goes_on_from_what_is_there(tmp_path):
    command = ["compare", "digits:fedavg", "digits:ditto", "--out", tmp_path, *SMALL]
    done = run(*command, "--seeds", 1)
    assert done.exit_code == 0
    assert "digits fedavg" in done.stdout and "digits ditto" in done.stdout
    assert (tmp_path / "comparison.html").read_text().startswith("<!doctype html>")
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "trials").iterdir()}
    assert len(kept) == 2
    more = run(*command, "--seeds", 2, "--json")
    said = json.loads(more.stdout)
    assert [row["seeds"] for row in said["scenarios"]] == [[1, 2], [1, 2]]
    assert all(file.stat().st_mtime_ns == at for file, at in kept.items())


def test_in_the_common_folder_no_study_is_written_over_by_another(tmp_path):
    asked = [_base(f"digits:{name}", SMALL[1::2], None) for name in ("fedavg", "ditto")]
    names = [_file_name("comparison", None, some) for some in (asked[:1], asked[1:], asked)]
    assert len(set(names)) == 3 and names[2] == _file_name("comparison", None, asked)
    assert _file_name("comparison", tmp_path, asked) == "comparison"


def test_a_sweep_ranks_every_combination(tmp_path):
    done = run(
        "sweep", "digits", "algorithm.epochs=1,3", "--out", tmp_path, *SMALL, "--seeds", 1, "--json"
    )
    said = json.loads(done.stdout)
    (rung,) = said["rungs"]
    assert {tuple(r["settings"]) for r in rung["ranking"]} == {
        ("algorithm.epochs=1",),
        ("algorithm.epochs=3",),
    }
    means = [r["mean"] for r in rung["ranking"]]
    assert means == sorted(means, reverse=True)
    assert json.loads((tmp_path / "sweep.json").read_text()) == said


def test_a_study_judges_methods_and_goes_on_from_what_is_kept(tmp_path):
    few = ("--seeds", 1, "--out", tmp_path, "--workers", 2)
    small = ("rounds=2", "fleet.devices=8", "round.cohort=4", "partial.alpha=2")
    command = ("study", "edge-tuning", *few, *(word for key in small for word in ("--set", key)))
    found = json.loads(run(*command, "--json").stdout)
    assert found == json.loads((tmp_path / "edge-tuning.json").read_text())
    assert all(row["curve"] and row["robustness"] for row in found["methods"])
    assert (tmp_path / "edge-tuning.html").exists()
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "trials").iterdir()}
    said = run(*command).stdout
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "trials").iterdir()} == kept
    for words in ("within", "until", "disturbed by", "FlexLoRA", "small batteries"):
        assert words in said


def test_short_forms_are_the_settings_that_they_stand_for(tmp_path):
    run("compare", "digits:fedavg", "--seeds", 1, "--out", tmp_path, *SMALL)
    kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "trials").iterdir()}
    short = ["--rounds", 2, "--devices", 8]
    run("compare", "digits:fedavg", "--seeds", 1, "--out", tmp_path, *short, *SMALL[4:])
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "trials").iterdir()} == kept
    run("compare", "digits:fedavg", "--seeds", 1, "--out", tmp_path, "--rounds", 1, *SMALL[2:])
    assert len(list((tmp_path / "trials").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare", "digits", "digits"], "twice"),
        (["compare", "nothing-like-it"], "nothing-like-it"),
        (["compare", "digits:fedavgg"], "fedavg"),
        (["study", "nothing-like-it"], "nothing-like-it"),
        (["study", "edge-tuning", "--set", "no.such=1"], "no.such"),
        (["sweep", "digits", "rounds"], "no key with values"),
        (["sweep", "digits", "no.such=1,2"], "no.such"),
        (["sweep", "digits", "rounds=1,2", "--by", "beauty"], "beauty"),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_runs(tmp_path, arguments, says):
    with pytest.raises(DelianError, match=says):
        run(*arguments, "--out", tmp_path / "none")
    assert not (tmp_path / "none" / "trials").exists()


@pytest.mark.parametrize(
    "command", [["compare", "digits"], ["sweep", "digits", "algorithm.epochs=1"]]
)
def test_a_folder_that_cannot_be_made_is_told_before_anything_runs(tmp_path, command):
    (tmp_path / "file").write_text("")
    with pytest.raises(DelianError, match="cannot make the folder"):
        run(*command, "--out", tmp_path / "file" / "x")
