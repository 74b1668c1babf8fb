"""Ctrl-C in a real process, sent to all of its group as a terminal does: the compiler too."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

#: Runs the command; at the first event that the condition holds for, Ctrl-C comes a little later.
PROGRAM = """
import os, signal, sys, threading
from delian.cli.main import main
from delian.simulations import progress
from delian.simulations.result import Phase, UpdateFinished

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
        timeout=120,
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
