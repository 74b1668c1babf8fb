"""The tests of `test_delian_command` that need a process, a socket or a clock."""

from __future__ import annotations

import subprocess
import sys

import pytest
from delian.cli import main as command


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


@pytest.mark.parametrize("module", ["delian", "delian.cli"])
def test_the_module_runs_as_a_program(module):
    run = subprocess.run(
        [sys.executable, "-m", module, "scenario", "list"], capture_output=True, text=True
    )
    assert run.returncode == 0 and "digits" in run.stdout
