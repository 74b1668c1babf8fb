"""What a run has made is kept although the folder that was asked for does not take it."""

from __future__ import annotations

import errno
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from delian.cli import main as command
from delian.cli.simulation import simulate_commands
from delian.core.common import files
from delian.core.learning import bundle
from delian.simulations.runs import simulation_run

SMALL = ["rounds=1", "fleet.devices=4", "round.cohort=3", "data.held_out_devices=1"]


@pytest.mark.parametrize("file", ["model.bundle", "report.json", "report.html"])
def test_a_disk_that_is_full_at_the_end_costs_no_run(tmp_path, monkeypatch, capsys, file):
    asked, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    writing = "write_with" if file == "model.bundle" else "write_whole"
    module = bundle if file == "model.bundle" else files
    write = getattr(module, writing)

    def full(path: Path, *rest: object, **named: object) -> None:
        if path == asked / file:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(path, *rest, **named)

    monkeypatch.setattr(module, writing, full)
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    settings = [word for key in SMALL for word in ("--set", key)]
    arguments = ["simulate", "--backend", "reference", "--out", str(asked), *settings]
    monkeypatch.setattr(sys, "argv", ["delian", *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()
    out, err = capsys.readouterr()
    (refuge,) = other.iterdir()
    assert end.value.code == 2 and "No space left on device" in err and str(refuge) in err
    assert f"report  {refuge / 'report.html'}" in out
    assert bundle.load(refuge / "model.bundle").weights.size
    assert json.loads((refuge / "report.json").read_text())["summary"]["rounds"] == 1
    assert (refuge / "report.html").exists()


def test_a_report_that_came_meanwhile_is_not_written_over(tmp_path, monkeypatch, capsys):
    asked, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    begun = simulate_commands._run

    def meanwhile(*arguments):
        (asked / "report.json").write_text("another's")
        return begun(*arguments)

    monkeypatch.setattr(simulate_commands, "_run", meanwhile)
    settings = [word for key in SMALL for word in ("--set", key)]
    arguments = ["simulate", "--backend", "reference", "--out", str(asked), *settings]
    monkeypatch.setattr(sys, "argv", ["delian", *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()
    (refuge,) = other.iterdir()
    assert end.value.code == 2 and "holds an earlier report" in capsys.readouterr().err
    assert (asked / "report.json").read_text() == "another's"
    assert (refuge / "report.html").exists() and (refuge / "model.bundle").exists()


@pytest.mark.parametrize("ended", [False, True], ids=["goes on", "has ended"])
def test_what_there_is_of_another_run_in_the_folder_is_left_alone(tmp_path, monkeypatch, ended):
    asked, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    monkeypatch.setattr(simulation_run, "UNFINISHED_S", 0.0)
    begun = simulate_commands._run

    def meanwhile(*arguments):
        (asked / "unfinished").mkdir()
        (asked / "unfinished" / "report.json").write_text("another's")
        if ended:
            (asked / "report.json").write_text("another's")
        return begun(*arguments)

    monkeypatch.setattr(simulate_commands, "_run", meanwhile)
    settings = [word for key in SMALL for word in ("--set", key)]
    arguments = ["simulate", "--backend", "reference", "--out", str(asked), *settings]
    monkeypatch.setattr(sys, "argv", ["delian", *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == (2 if ended else 0)
    assert [path.name for path in (asked / "unfinished").iterdir()] == ["report.json"]
    assert (asked / "unfinished" / "report.json").read_text() == "another's"


def test_a_run_whose_folder_is_taken_leaves_nothing_unfinished_there(tmp_path, monkeypatch):
    asked, other = tmp_path / "run", tmp_path / "other"
    other.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(other))
    monkeypatch.setattr(simulation_run, "UNFINISHED_S", 0.0)
    seen = []

    def taken(report, result, folder, *, again, write=simulate_commands._keep):
        seen.extend(path.name for path in (asked / "unfinished").iterdir())
        (asked / "report.json").write_text("another's")
        return write(report, result, folder, again=again)

    monkeypatch.setattr(simulate_commands, "_keep", taken)
    settings = [word for key in SMALL for word in ("--set", key)]
    arguments = ["simulate", "--backend", "reference", "--out", str(asked), *settings]
    monkeypatch.setattr(sys, "argv", ["delian", *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 2 and "model.bundle" in seen
    assert [path.name for path in asked.iterdir()] == ["report.json"]


def test_runs_that_begin_at_once_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: simulate_commands._free_folder("run"), range(40)))
    assert len(set(folders)) == 40 and all(folder.is_dir() for folder in folders)
