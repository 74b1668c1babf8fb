"""The commands of a README: blocks of shell, run as they stand."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from delian.cli.main import app
from typer.testing import CliRunner

#: A block of shell; a name: it runs in a terminal of its own.
BLOCK = re.compile(r"^```sh(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCK_S = 400.0


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


class Terminals:
    """Terminals of one folder, with `delian` and `python` of this interpreter.

    serving: of terminals by name, how many lines they print when they serve.
    """

    def __init__(self, folder: Path, serving: Mapping[str, int]) -> None:
        self._folder, self._serving = folder, serving
        self._running: list[subprocess.Popen[str]] = []
        tools = folder / "bin"
        tools.mkdir()
        for name, arguments in (("python", ""), ("delian", " -m delian")):
            (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
            (tools / name).chmod(0o755)
        path = f"{tools}{os.pathsep}{os.environ['PATH']}"
        state = str(folder / "state")
        self._options: dict[str, Any] = {
            "cwd": folder,
            "env": {**os.environ, "XDG_STATE_HOME": state, "PATH": path},
            "text": True,
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
        }

    def run(self, name: str, commands: str) -> str:
        """Runs a block to its end, or one with a name until it serves; gives what it prints."""
        asked = ["bash", "-ec", commands]
        if not name:
            done = subprocess.run(
                asked, **self._options, stderr=subprocess.STDOUT, timeout=BLOCK_S, check=False
            )
            assert done.returncode == 0, f"{commands}\n{done.stdout}"
            return str(done.stdout)
        with (self._folder / f"{name}.log").open("w") as log:
            process = subprocess.Popen(asked, **self._options, stderr=log, start_new_session=True)
        self._running.append(process)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(self._serving[name])]
        logs = [each.read_text()[-2000:] for each in sorted(self._folder.glob("*.log"))]
        assert all(line.startswith("{") for line in lines), (lines, *logs)
        return "".join(lines)

    def close(self) -> None:
        """Ends what is running, as Ctrl-C in each terminal does."""
        for process in reversed(self._running):
            os.killpg(process.pid, signal.SIGTERM)
            assert process.stdout is not None
            process.stdout.close()
            process.wait(60)
