"""The `delian` command: what it prints, where it writes, and how it fails. A fake run stands in for
training.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import signal
import sys
import types
from pathlib import Path

import pytest
import typer
from delian.cli import main as command
from delian.core.common.errors import DelianError
from delian.simulations.runs.result import RoundFinished, Started


@pytest.fixture
def runs(monkeypatch, make_result, tmp_path):
    """Replaces the simulation; gives the list of calls that it got. The working folder is empty."""
    calls = []

    def simulate(
        scenario, *, data_path, threads, backend, on_event, stop, resume, forget, baselines
    ):
        given = {"data": data_path, "threads": threads, "backend": backend}
        calls.append({"scenario": scenario, "baselines": baselines, **given})
        whole = make_result(scenario)
        on_event(Started(scenario, 100, 0))
        done = 0
        for record in whole.rounds:
            if stop():
                break
            if fake.interrupt_in_round == record.round:
                os.kill(os.getpid(), signal.SIGINT)
            on_event(RoundFinished(record))
            done += 1
        if fake.error is not None:
            raise fake.error
        return dataclasses.replace(make_result(scenario, rounds=done), **fake.changes)

    fake = types.ModuleType("delian.simulations.runs.simulate")
    fake.simulate, fake.interrupt_in_round, fake.error = simulate, 0, None
    fake.calls, fake.changes = calls, {}
    monkeypatch.setitem(sys.modules, "delian.simulations.runs.simulate", fake)
    monkeypatch.chdir(tmp_path)
    return fake


def delian(*arguments, monkeypatch):
    """Runs the command; gives its exit code."""
    monkeypatch.setattr(sys, "argv", ["delian", *arguments])
    try:
        command.main()
    except SystemExit as end:
        return end.code or 0
    return 0


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs `delian simulate -s synthetic-mlp ...`; gives (exit code, stdout, stderr)."""

    def call(*arguments):
        code = delian("simulate", "-s", "synthetic-mlp", *arguments, monkeypatch=monkeypatch)
        return (code, *capsys.readouterr())

    return call


def test_a_run_ends_with_a_summary_and_the_report_s_path(runs, run, tmp_path):
    code, out, err = run()
    assert code == 0
    assert "synthetic-mlp, fedavg: 10 rounds in 12 s, 640 updates a second" in out
    assert "all devices" in out and "worst tenth" in out
    assert out.rstrip().endswith("delian-runs/synthetic-mlp-fedavg-1/report.html")
    assert "round 10/10" in err
    folder = tmp_path / "delian-runs" / "synthetic-mlp-fedavg-1"
    assert {p.name for p in folder.iterdir()} == {"report.html", "report.json"}


def test_a_scenario_needs_no_option_s_name(runs, monkeypatch):
    assert delian("simulate", "synthetic-cnn", "--seed", "4", monkeypatch=monkeypatch) == 0
    assert delian("simulate", monkeypatch=monkeypatch) == 0
    assert [c["scenario"].name for c in runs.calls] == ["synthetic-cnn", "digits"]


def test_json_is_all_that_stdout_has(runs, run, tmp_path):
    code, out, err = run("--json")
    assert code == 0
    report = json.loads(out)
    assert report["summary"]["rounds"] == 10 and "round 1/10" in err
    written = (tmp_path / "delian-runs/synthetic-mlp-fedavg-1/report.json").read_text()
    assert written == out


def test_a_second_run_gets_a_folder_of_its_own(runs, run, tmp_path):
    assert run()[0] == run()[0] == 0
    names = {p.name for p in (tmp_path / "delian-runs").iterdir()}
    assert names == {"synthetic-mlp-fedavg-1", "synthetic-mlp-fedavg-1-2"}


def test_options_reach_the_run(runs, run, tmp_path):
    options = ["--set", "rounds=2", "--seed", "7", "--threads", "3", "--backend", "reference"]
    code, _, _ = run(*options, "--algorithm", "fomaml", "--out", "here")
    assert code == 0 and (tmp_path / "here" / "report.html").exists()
    (call,) = runs.calls
    scenario = call["scenario"]
    assert (scenario.rounds, scenario.seed, scenario.algorithm.name) == (2, 7, "fomaml")
    assert (call["threads"], call["backend"]) == (3, "reference") and not call["baselines"]


def test_a_report_has_the_command_that_gives_the_run_again(runs, run, tmp_path):
    options = ["--rounds", "2", "--seed", "7", "--set", "fleet.dropout=0.1", "--baselines"]
    code, _, _ = run(*options, "--threads", "3", "--out", "here")
    assert code == 0 and runs.calls[0]["baselines"]
    command = json.loads((tmp_path / "here" / "report.json").read_text())["host"]["command"]
    words = shlex.split(command)
    assert words[:3] == ["delian", "simulate", "synthetic-mlp"] and "--out" not in words
    code, _, _ = run(*words[3:], "--out", "again")
    assert code == 0
    first, second = (call | {"threads": None} for call in runs.calls)
    assert first == second and first["scenario"].fleet.dropout == 0.1
    assert (
        json.loads((tmp_path / "again" / "report.json").read_text())["host"]["command"] == command
    )


def test_baselines_are_for_the_virtual_mode(run):
    code, _, err = run("--mode", "processes", "--baselines")
    assert code == 2 and "--baselines is for the virtual mode" in err


@pytest.mark.parametrize("option", ["--tensorboard", "--mlflow"])
def test_a_tracker_that_is_not_installed_is_said_before_anything_runs(
    runs, run, option, monkeypatch, tmp_path
):
    for package in ("tensorboard.summary", "mlflow"):
        monkeypatch.setitem(sys.modules, package, None)
    code, _, err = run(option, "tracked")
    assert code == 2 and f"{option} needs the package" in err and f"[{option[2:]}]" in err
    assert not runs.calls and not list(tmp_path.iterdir())


def test_compare_runs_both_and_makes_one_report(runs, run):
    code, out, _ = run("--compare", "fomaml", "--json")
    assert code == 0
    assert [c["scenario"].algorithm.name for c in runs.calls] == ["fedavg", "fomaml"]
    report = json.loads(out)
    assert report["compare"]["summary"]["algorithm"] == "fomaml"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "roundz=3"], "did you mean `rounds`?"),
        (["--set", "rounds=0"], "`rounds` cannot be 0"),
        (["--algorithm", "fedavgg"], "did you mean `fedavg`?"),
        (["--compare", "fedavg"], "that is the algorithm itself"),
        (["--data", "nowhere.npz"], "there is no data file nowhere.npz"),
        (["-s", "nowhere.toml"], "there is no scenario file nowhere.toml"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
        (["--threads", "0"], "Invalid value for '--threads'"),
        (["--backend", "gpu"], "Invalid value for '--backend'"),
        (["--nonsense"], "No such option"),
        (["digits"], "two scenarios: digits and synthetic-mlp"),
        (["--set", "chain=clip(1) | quantize(16) | mean"], "did you mean `quantise`?"),
    ],
)
def test_bad_input_is_told_without_a_traceback_and_exits_with_2(
    runs, run, tmp_path, arguments, message
):
    code, out, err = run(*arguments)
    assert code == 2 and not out
    assert message in err and "Traceback" not in err
    assert not list(tmp_path.iterdir()), "nothing is left behind"


def test_a_folder_with_a_report_is_refused_before_anything_runs(runs, run):
    assert run("--out", "here")[0] == 0
    code, _, err = run("--out", "here")
    assert code == 2 and len(runs.calls) == 1
    assert "error: here holds an earlier report\n  hint: choose another folder" in err


def test_an_error_in_the_run_is_told_and_leaves_no_empty_folder(runs, run, tmp_path):
    runs.error = DelianError("device `anna` has no samples", "leave it out")
    code, _, err = run()
    assert code == 2 and "error: device `anna` has no samples\n  hint: leave it out" in err
    assert not list(tmp_path.iterdir())


def test_a_run_that_gave_up_writes_its_report_says_why_and_exits_with_1(runs, run, tmp_path):
    why = "too few devices reported"
    runs.changes = {"stopped_by": "failure", "why": why, "hint": "lower the learning rate"}
    assert run()[2].endswith("  hint: lower the learning rate\n")
    runs.calls.clear()
    runs.changes = {"stopped_by": "failure", "why": why}
    code, out, err = run("--compare", "fomaml", "--out", "here")
    assert code == 1 and len(runs.calls) == 1 and "gave up before round 10" in out
    assert "error: the run gave up after 10 of 10 rounds: too few devices reported\n  hint:" in err
    summary = json.loads((tmp_path / "here" / "report.json").read_text())["summary"]
    assert summary["stopped_by"] == "failure" and summary["why"] == "too few devices reported"


def test_ctrl_c_ends_the_round_writes_the_report_so_far_and_exits_with_130(runs, run, tmp_path):
    runs.interrupt_in_round = 4
    before = signal.getsignal(signal.SIGINT)
    code, out, _ = run("--compare", "fomaml")
    assert code == 130 and len(runs.calls) == 1
    assert "4 rounds" in out and "stopped before round 10" in out
    report = json.loads((tmp_path / "delian-runs/synthetic-mlp-fedavg-1/report.json").read_text())
    assert report["summary"]["interrupted"] and len(report["rounds"]) == 4
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_ends_the_program_at_once(runs, run, tmp_path):
    def impatient(scenario, **options):
        os.kill(os.getpid(), signal.SIGINT)
        assert options["stop"]()
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("still running")

    runs.simulate = impatient
    code, out, err = run()
    assert code == 130 and not out and "Traceback" not in err
    assert not list(tmp_path.iterdir())


def told(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_events_are_lines_of_json_that_grow_with_the_run(runs, run, tmp_path, make_result):
    file, seen = tmp_path / "events.jsonl", []
    whole = runs.simulate

    def watched(scenario, *, on_event, **options):
        def both(event):
            on_event(event)
            seen.append(told(file)[-1])

        return whole(scenario, on_event=both, **options)

    runs.simulate = watched
    assert run("--events", str(file), "--out", "a")[0] == 0
    lines = told(file)
    assert [line["event"] for line in lines] == ["started", *["round"] * 10, "ended"]
    assert seen == lines[:-1]  # each is there before the run goes on
    report = json.loads((tmp_path / "a/report.json").read_text())
    for line, record in zip(lines[1:-1], report["rounds"], strict=True):
        assert {k: line[k] for k in record} == record and line["time_ms"] > 0
    assert lines[0]["scenario"] == report["scenario"] and lines[0]["devices"] == 100
    assert lines[-1]["summary"] == report["summary"]
    assert lines[-1]["trace_hash"] == report["trace_hash"]
    assert run("--events", str(file), "--out", "b", "--compare", "fomaml")[0] == 0
    assert told(file)[: len(lines)] == lines
    ends = [(e["event"], e["algorithm"]) for e in told(file)[len(lines) :] if e["event"] != "round"]
    both = [(kind, name) for name in ("fedavg", "fomaml") for kind in ("started", "ended")]
    assert ends == both


def test_a_file_of_events_that_cannot_be_written_costs_no_run(runs, run, tmp_path):
    code, _, err = run("--events", str(tmp_path))
    assert code == 2 and "cannot write" in err and "--events FILE" in err
    assert not runs.calls and not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full disk")
def test_a_disk_that_takes_no_more_events_costs_no_run(runs, run):
    code, out, err = run("--events", "/dev/full")
    assert code == 0 and "report" in out
    assert err.count("/dev/full: no further events are written: No space left") == 1


def test_help_names_the_commands_and_version_the_version(monkeypatch, capsys):
    assert delian("--help", monkeypatch=monkeypatch) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("simulate", "scenario", "doctor"))
    assert delian("--version", monkeypatch=monkeypatch) == 0
    assert capsys.readouterr().out.startswith("delian 0.")


def commands(group, name="delian"):
    yield name, group
    for part, inner in getattr(group, "commands", {}).items():
        yield from commands(inner, f"{name} {part}")


def test_no_help_text_has_words_in_square_brackets():
    """Typer takes them for markup and prints nothing."""
    found = dict(commands(typer.main.get_command(command.app)))
    assert {"delian simulate", "delian ca list", "delian authority accept"} <= set(found)
    hidden = {
        f"{name}: {text}"
        for name, one in found.items()
        for text in (one.help, *(getattr(p, "help", None) for p in one.params))
        if re.search(r"(?<!\\)\[[a-z]", text or "")
    }
    assert not hidden


def test_scenarios_can_be_listed_shown_and_explained(monkeypatch, capsys):
    assert delian("scenario", "list", monkeypatch=monkeypatch) == 0
    assert "digits" in capsys.readouterr().out
    assert delian("scenario", "show", "digits", monkeypatch=monkeypatch) == 0
    assert '[data]\nsource = "digits"' in capsys.readouterr().out
    assert delian("scenario", "keys", monkeypatch=monkeypatch) == 0
    assert "over_selection" in capsys.readouterr().out
    assert delian("scenario", "show", "nope", monkeypatch=monkeypatch) == 2
    assert "there is no scenario file nope" in capsys.readouterr().err


def test_a_shown_scenario_is_a_start_for_one_s_own(monkeypatch, capsys, tmp_path):
    from delian.simulations.scenario.scenario_file import load

    delian("scenario", "show", "digits", monkeypatch=monkeypatch)
    path = tmp_path / "own.toml"
    path.write_text(capsys.readouterr().out)
    assert load(path).to_json() == load("digits").to_json()


def test_doctor_says_what_it_finds(monkeypatch, capsys):
    assert delian("doctor", monkeypatch=monkeypatch) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in ("python", "numpy", "compiler", "cache", "scikit-learn"))


def test_only_what_the_command_line_names_is_built():
    groups = {group.name for group in command.app.registered_groups}
    commands = {each.name for each in command.app.registered_commands}
    for name in groups | commands:
        part = command._named([name, "--help"])
        named = [each.name for each in (*part.registered_groups, *part.registered_commands)]
        assert named == [name] and part.info == command.app.info
    for words in ([], ["--help"], ["--version"], ["nonsense"]):
        assert command._named(words) is command.app
