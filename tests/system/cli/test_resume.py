"""`delian simulate --resume`: a run that was killed (SIGKILL, in a process of its own) or stopped
(Ctrl-C) goes on, and its folder is in the end as if nothing had happened.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from delian.cli import main as command
from delian.core.node.storage.disk import FolderLock

#: Runs the command, which keeps the run after every round; sends itself a signal with the first
#: update of a round, of the first or the second run.
PROGRAM = """
import os, signal, sys
from delian.cli.main import main
from delian.simulations.resume import kept_run
from delian.simulations.runs import progress
from delian.simulations.runs.result import Started, UpdateFinished

class Progress(progress.Progress):
    runs, waiting = 0, True

    def __call__(self, event):
        super().__call__(event)
        Progress.runs += isinstance(event, Started)
        if isinstance(event, UpdateFinished) and Progress.waiting:
            if (Progress.runs, event.round) == {where}:
                Progress.waiting = False
                os.kill(os.getpid(), signal.{name})

kept_run.KEEP_S, kept_run.KEEP_SHARE = 0.0, float("inf")
progress.Progress = Progress
main()
"""
SMALL = ["fleet.devices=12", "round.cohort=4", "data.held_out_devices=3", "rounds=5"]
SET = [word for key in SMALL for word in ("--set", key)]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")


def start(folder: Path, *arguments: str, where=(0, 0), name="SIGKILL", before="", **env: str):
    """Runs the command, after `before`."""
    program = before + PROGRAM.format(where=where, name=name)
    return subprocess.run(
        [sys.executable, "-c", program, "simulate", *arguments],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def left(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The report without what may differ, and the model."""
    report = json.loads((folder / "report.json").read_text())
    for part in (report, report.get("compare", {})):
        part.pop("host", None)
    return report, (folder / "model.bundle").read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> tuple[dict[str, Any], bytes]:
    """What is left of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    done = start(folder, "--out", "whole", *SET)
    assert done.returncode == 0, done.stderr
    return left(folder / "whole")


def test_killed_in_both_runs_of_a_comparison(tmp_path):
    asked = ["--compare", "scaffold", *SET]
    whole = start(tmp_path, "--out", "whole", *asked)
    assert whole.returncode == 0, whole.stderr
    first = start(tmp_path, "--out", "run", *asked, where=(1, 3))
    assert first.returncode == -signal.SIGKILL, first.stderr
    second = start(tmp_path, "--resume", "run", where=(2, 4))
    assert second.returncode == -signal.SIGKILL and "replayed to round 2" in second.stderr
    in_use = tmp_path / "run" / "resume"
    assert {path.name for path in in_use.iterdir()} == {"asked", "first", "second", "lock"}
    last = start(tmp_path, "--resume", "run", "--json")
    assert last.returncode == 0, last.stderr
    assert "replayed to round 5" in last.stderr and "replayed to round 3" in last.stderr
    assert json.loads(last.stdout)["trace_hash"] == left(tmp_path / "whole")[0]["trace_hash"]
    assert left(tmp_path / "run") == left(tmp_path / "whole")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"report.html", "report.json", "model.bundle"}


def test_stopped_by_ctrl_c(tmp_path, whole):
    stopped = start(tmp_path, "--out", "run", *SET, where=(1, 4), name="SIGINT")
    assert stopped.returncode == 130, stopped.stderr
    assert "to go on after round 3: delian simulate --resume run" in stopped.stderr
    assert left(tmp_path / "run")[0]["summary"]["stopped_by"] == "interrupt"
    again = start(tmp_path, "--out", "run", *SET)
    assert again.returncode == 2 and "delian simulate --resume run" in again.stderr
    resumed = start(tmp_path, "--resume", "run")
    assert resumed.returncode == 0, resumed.stderr
    assert "replayed to round 3" in resumed.stderr
    assert left(tmp_path / "run") == whole
    once_more = start(tmp_path, "--resume", "run")
    assert once_more.returncode == 2 and "no run that can be resumed" in once_more.stderr


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    shutil.copy(
        Path(__file__).parents[3] / "simulations/scenario/scenarios/digits.toml",
        folder / "own.toml",
    )
    assert start(folder, "own.toml", "--out", "run", *SET, where=(1, 3)).returncode < 0
    return folder


@pytest.fixture
def fails(tmp_path, monkeypatch, capsys, killed):
    """Resumes a copy of the killed run, changed by a function; gives what is said of it."""

    def resumed(change, *arguments: str) -> str:
        shutil.copytree(killed, tmp_path, dirs_exist_ok=True)
        change(tmp_path)
        before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", ["delian", "simulate", "--resume", "run", *arguments])
        with pytest.raises(SystemExit) as end:
            command.main()
        assert end.value.code == 2
        for path, content in before.items():
            assert path.name == "lock" or path.read_bytes() == content, "nothing is lost"
        return capsys.readouterr().err

    return resumed


def test_beside_it_no_option_may_change_the_run(fails):
    assert "and --seed would change it" in fails(lambda folder: None, "--seed", "0")
    assert "and --set would change it" in fails(lambda folder: None, *SET)


def edit(name: str, old: str, new: str):
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (edit("run/resume/asked", '"seed"', '"sewed"'), "asked is damaged"),
        (edit("run/resume/asked", "null", "3"), "asked is damaged"),
        (lambda folder: (folder / "run/resume/asked").unlink(), "no run that can be resumed"),
        (
            lambda folder: (folder / "run/report.json").write_text("{}"),
            "not the report of a run that was stopped",
        ),
    ],
)
def test_what_is_there_is_looked_at(fails, change, said):
    assert said in fails(change)


def test_a_folder_that_is_not_there(fails):
    def away(folder: Path) -> None:
        (folder / "run").rename(folder / "elsewhere")

    assert "there is no folder" in fails(away)


def test_a_scenario_that_was_changed_meanwhile(fails, killed):
    change = edit("own.toml", "seed = 1", "seed = 2")
    change(killed)
    try:
        said = fails(lambda folder: None)
    finally:
        edit("own.toml", "seed = 2", "seed = 1")(killed)
    assert "scenario.seed was 1 and is 2" in said


def test_a_run_that_goes_on(fails):
    locks = []
    try:
        said = fails(lambda folder: locks.append(FolderLock(folder / "run" / "resume")))
    finally:
        locks.pop().close()
    assert "run/resume is in use by process" in said


def test_a_comparison_that_is_stopped_in_its_second_run(tmp_path):
    asked = ["--compare", "fedavg", *SET]
    stopped = start(tmp_path, "--out", "run", *asked, where=(2, 4), name="SIGINT")
    assert stopped.returncode == 130 and "to go on after round 3" in stopped.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    resumed = start(elsewhere, "--resume", "../run")
    assert resumed.returncode == 0, resumed.stderr
    assert "replayed to round 3" in resumed.stderr and not list(elsewhere.iterdir())
    whole = start(tmp_path, "--out", "whole", *asked)
    assert whole.returncode == 0 and left(tmp_path / "run") == left(tmp_path / "whole")


def test_a_report_that_nothing_takes_is_made_when_there_is_room(tmp_path, whole):
    """Neither the run's folder nor the system's temporary files take it."""
    refusing = """
from delian.cli.simulation import simulate_commands as simulate
from delian.core.common.errors import DelianError

def refused(*given):
    raise DelianError("cannot write the report: No space left on device", "make room")

simulate.write = refused
"""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    asked = ("--out", "run", *SET)
    ended = start(tmp_path, *asked, before=refusing, TMPDIR=str(temporary))
    assert ended.returncode == 2 and "No space left" in ended.stderr
    assert "to go on: delian simulate --resume run" in ended.stderr
    assert not list(temporary.iterdir())
    resumed = start(tmp_path, "--resume", "run")
    assert resumed.returncode == 0 and "replayed to round 5" in resumed.stderr
    assert left(tmp_path / "run") == whole
    assert not (tmp_path / "run" / "resume").exists()


def test_one_that_is_stopped_on_a_full_disk_says_how_to_go_on(tmp_path):
    refusing = """
from delian.cli.simulation import simulate_commands as simulate
from delian.core.common.errors import DelianError
write = simulate.write

def refused(report, result, folder):
    if folder.name == "run":
        raise DelianError("cannot write the report: No space left on device", "make room")
    return write(report, result, folder)

simulate.write = refused
"""
    asked, by = ("--out", "run", *SET), {"where": (1, 4), "name": "SIGINT"}
    stopped = start(tmp_path, *asked, **by, before=refusing, TMPDIR=str(tmp_path))
    assert stopped.returncode == 2 and "what it was for is in" in stopped.stderr
    assert "to go on after round 3: delian simulate --resume run" in stopped.stderr


def test_killed_while_it_is_kept_for_the_first_time(tmp_path):
    assert start(tmp_path, "--out", "run", *SET, where=(1, 1)).returncode == -signal.SIGKILL
    place = tmp_path / "run" / "resume" / "first"
    place.mkdir()
    (place / "log").write_bytes(b"U" * 100)
    resumed = start(tmp_path, "--resume", "run")
    assert resumed.returncode == 0 and "it starts again" in resumed.stderr


def test_one_that_was_killed_before_anything_was_kept_begins_anew(tmp_path, whole):
    assert start(tmp_path, "--out", "run", *SET, where=(1, 1)).returncode == -signal.SIGKILL
    resumed = start(tmp_path, "--resume", "run")
    assert resumed.returncode == 0 and "it starts again" in resumed.stderr
    assert left(tmp_path / "run") == whole
