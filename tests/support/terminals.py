"""Terminals of a user: shells in one folder, with `delian` and `python` of this interpreter."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

BLOCK_S = 400.0


def environment(folder: Path) -> dict[str, str]:
    """That of a terminal; state and tools are in the folder."""
    tools = folder / "bin"
    tools.mkdir(parents=True)
    for name, arguments in (("python", ""), ("delian", " -m delian")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        (tools / name).chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PATH": path}


class Terminals:
    """Terminals of one folder.

    serving: of terminals by name, how many lines they print when they serve.
    """

    def __init__(self, folder: Path, serving: Mapping[str, int]) -> None:
        self._folder, self._serving = folder, serving
        self._running: list[subprocess.Popen[str]] = []
        self._ports: TextIO | None = None
        self._options: dict[str, Any] = {
            "cwd": folder,
            "env": environment(folder),
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
        self._hold_ports()
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
        while self._running:
            process = self._running.pop()
            os.killpg(process.pid, signal.SIGTERM)
            assert process.stdout is not None
            process.stdout.close()
            process.wait(60)
        if self._ports is not None:
            self._ports.close()
            self._ports = None

    def _hold_ports(self) -> None:
        """Daemons listen on the default ports: those of one test at a time."""
        if self._ports is None:
            self._ports = (Path(tempfile.gettempdir()) / "delian-default-ports.lock").open("w")
            fcntl.flock(self._ports, fcntl.LOCK_EX)
