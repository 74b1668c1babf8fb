"""The commands of a README: blocks of shell, run as they stand."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path

import pytest
from delian.cli.main import app
from typer.testing import CliRunner

#: A block of shell; a name: it runs in a terminal of its own.
BLOCK = re.compile(r"^```sh(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run_here(line: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a line in this process, in the working folder; gives what it prints."""
    match shlex.split(line):
        case ["delian", *words]:
            done = CliRunner().invoke(app, words, catch_exceptions=False)
            assert done.exit_code == 0, f"{line}\n{done.output}"
            return done.stdout
        case ["python", "-m", "pytest", "-q"]:
            for file in sorted(Path().glob("test_*.py")):
                for name, test in runpy.run_path(str(file.absolute())).items():
                    if name.startswith("test_"):
                        test()
        case ["python", file]:
            runpy.run_path(str(Path(file).absolute()), run_name="__main__")
        case words:
            raise AssertionError(f"a README has no such line: {words}")
    return ""
