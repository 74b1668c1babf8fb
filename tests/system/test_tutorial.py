"""docs/tutorials: the commands of the pages on fleets as they stand, by processes on loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from delian.core.node.net.mqtt.broker import mosquitto_path

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "tutorials"
BLOCK = re.compile(r"^```sh(?: (\w+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Lines that the processes of a terminal print when they serve.
SERVING = {"coordinator": 1, "devices": 4, "broker": 1}
BLOCK_S = 400.0


def environment(folder: Path) -> dict[str, str]:
    """A terminal's, with `delian` and `python` of this interpreter."""
    tools = folder / "bin"
    tools.mkdir()
    for name, arguments in (("python", ""), ("delian", " -m delian")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        (tools / name).chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "PATH": path}


@pytest.fixture
def terminal(tmp_path):
    """Runs the commands of a block; a name: in the background, until they serve."""
    env, running = environment(tmp_path), []

    def run(name: str, commands: str) -> str:
        if not name:
            done = subprocess.run(
                ["bash", "-ec", commands],
                **{"cwd": tmp_path, "env": env, "text": True, "timeout": BLOCK_S},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            assert done.returncode == 0, f"{commands}\n{done.stdout}"
            return done.stdout
        with (tmp_path / f"{name}.log").open("w") as log:
            process = subprocess.Popen(
                ["bash", "-ec", commands],
                **{"cwd": tmp_path, "env": env, "text": True},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        running.append(process)
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(SERVING[name])]
        assert all(line.startswith("{") for line in lines), (lines, *logs(tmp_path))
        return "".join(lines)

    def stop() -> None:
        while running:
            process = running.pop()
            os.killpg(process.pid, signal.SIGTERM)
            process.stdout.close()
            process.wait(60)

    run.stop = stop
    yield run
    stop()


def logs(folder: Path) -> list[str]:
    return [path.read_text()[-2000:] for path in sorted(folder.glob("*.log"))]


def comes(terminal, command: str, text: str) -> bool:
    """Whether a command shows a text in the end; each try takes a process its time."""
    return any(text in terminal("", command) for _ in range(200))


def test_a_fleet_of_four_trains_evaluates_and_predicts_by_the_page_s_commands(terminal):
    (_, install), *blocks = BLOCK.findall((FOLDER / "fleet.md").read_text())
    assert "pip install" in install, "what runs here is installed"
    said = [terminal(name, commands) for name, commands in blocks]
    fleet, trained = next(text for text in said if "judged by" in text), said[-1]
    assert re.search(r"run 1 is waiting: needs 15 devices \(at least 3\), \d ready", fleet)
    rounds = re.findall(r"round (\d+)/30 attempt 1: (\d) of \d devices reported", fleet)
    assert [int(number) for number, _ in rounds] == list(range(1, 31)), fleet
    assert all(int(reported) >= 3 for _, reported in rounds)
    assert rounds[-1][1] == "4" and "model 30 judged by 4 devices: global_accuracy=0.9" in fleet
    assert fleet.rstrip().endswith("done")
    *predicted, true = trained.split("\n")[:6]
    assert len(predicted) == 5 and all(label.isdigit() for label in predicted)
    assert sum(a == b for a, b in zip(predicted, true.split(), strict=True)) >= 4

    # What the page offers to try afterwards.
    terminal("", "delian device consent no --state device-3")
    assert comes(terminal, "delian fleet show device-3", "unconsented")
    terminal("", "delian fleet revoke device-4")
    assert comes(terminal, "delian device status --state device-4", "was revoked")
    again = terminal("", "delian run submit digits")
    assert "1 without consent" in again and "consent yes" in again

    # The page that goes on here, without the device that was revoked.
    if mosquitto_path() is not None:
        terminal("", "delian run cancel 2 && delian device consent yes --state device-3")
        terminal.stop()
        blocks = BLOCK.findall((FOLDER / "fleet_mqtt.md").read_text())
        trained = [terminal(name, commands) for name, commands in blocks][-1]
        assert "round 5/5 attempt 1: 3 of 3 devices reported" in trained, trained
        assert "model 5 judged by 3 devices: global_accuracy=0." in trained
