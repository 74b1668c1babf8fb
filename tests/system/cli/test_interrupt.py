"""Ctrl-C in a real process, sent to all of its group as a terminal does: the compiler too. And what
a process leaves that is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from delian.core.learning import bundle

#: Runs the command; at the first event that the condition holds for, Ctrl-C comes a little later.
PROGRAM = """
import os, signal, sys, threading
from delian.cli.main import main
from delian.simulations.runs import progress
from delian.simulations.runs.result import Phase, UpdateFinished

def now(event):
    return {condition}

class Progress(progress.Progress):
    waiting = True

    def __call__(self, event):
        super().__call__(event)
        if Progress.waiting and now(event):
            Progress.waiting = False
            threading.Timer({delay}, os.killpg, (0, signal.SIGINT)).start()

progress.Progress = Progress
sys.argv = ["delian", "simulate", "--out", "run", "--compare", "fedavg"]
sys.argv += ["--set", "rounds=20000", "--set", "evaluation.every=2"]
main()
"""
COMPILING = "isinstance(event, Phase) and event.doing.startswith('compiling')"
TRAINING = "isinstance(event, UpdateFinished) and event.round == 3"
JUDGING = "isinstance(event, UpdateFinished) and event.evaluating and event.round == 4"


@pytest.mark.skipif(os.name != "posix", reason="needs process groups")
@pytest.mark.parametrize(
    ("condition", "delay", "rounds", "judged"),
    [(COMPILING, 0.3, 0, 0), (TRAINING, 0, 2, 60), (JUDGING, 0, 3, 60)],
    ids=["compiling", "training", "evaluating"],
)
def test_ctrl_c_keeps_the_report_so_far(tmp_path, condition, delay, rounds, judged):
    environment = dict(os.environ)
    if condition == COMPILING:
        environment["DELIAN_CACHE"] = str(tmp_path / "cache")  # so that there is much to compile
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(condition=condition, delay=delay)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=400,
    )
    assert run.returncode == 130, run.stderr
    assert "Traceback" not in run.stderr and "error" not in run.stderr
    assert "stopped before round 20000" in run.stdout
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    summary = report["summary"]
    assert summary["stopped_by"] == "interrupt" and "compare" not in report
    assert summary["evaluated"] == judged
    assert len(report["rounds"]) >= rounds
    assert (len(report["rounds"]) == 0) == (rounds == 0)
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000


#: Runs the command, which keeps what there is after every round; in a round it kills itself.
KEEPING = """
import os, signal, sys
from delian.cli.main import main
from delian.simulations.runs import progress, simulation_run
from delian.simulations.runs.result import UpdateFinished

class Progress(progress.Progress):
    def __call__(self, event):
        super().__call__(event)
        if isinstance(event, UpdateFinished) and event.round == {killed_in}:
            os.kill(os.getpid(), signal.SIGKILL)

simulation_run.UNFINISHED_S, simulation_run.UNFINISHED_SHARE = 0.0, float("inf")
progress.Progress = Progress
main()
"""


def keeping(folder, rounds, *, killed_in=0, compare=()):
    return subprocess.run(
        [
            *(sys.executable, "-c", KEEPING.format(killed_in=killed_in), "simulate"),
            *("--out", "run", "--set", f"rounds={rounds}", "--set", "evaluation.every=2", *compare),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_run_that_is_killed_leaves_what_there_was_of_it(tmp_path):
    killed = keeping(tmp_path, 9, killed_in=5)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    left = tmp_path / "run" / "unfinished"
    report = json.loads((left / "report.json").read_text())
    assert report["summary"]["stopped_by"] == "unfinished"
    assert len(report["rounds"]) == 4 and report["summary"]["evaluated"] == 60
    assert "Not finished: this is how it stood after 4 of 9 rounds." in (
        left / "report.html"
    ).read_text(encoding="utf-8")
    assert bundle.load(left / "model.bundle").weights is not None
    again = keeping(tmp_path, 2)
    assert again.returncode == 2 and "a run that has not finished" in again.stderr
    assert json.loads((left / "report.json").read_text()) == report


def test_a_run_that_comes_to_its_end_leaves_its_report_alone(tmp_path):
    ended = keeping(tmp_path, 2, compare=("--compare", "fedavg"))
    assert ended.returncode == 0, ended.stderr
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {"report.html", "report.json", "model.bundle"}
    assert "compare" in json.loads((tmp_path / "run" / "report.json").read_text())
