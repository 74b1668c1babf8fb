"""The tests of `test_study` that need a process, a socket or a clock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from delian.core.common.errors import DelianError
from delian.simulations.runs import study
from delian.simulations.runs.study import Processes, Trial

SMALL = ("rounds=2", "fleet.devices=8", "data.held_out_devices=2", "round.devices=4")


TINY = (*SMALL, "round.min_reports=2", "model.hidden=[4]", "evaluation.every=2")


MODEL = """
import delian as dl
from widths_of_mine import HIDDEN

print("loaded")

def init(key, shape, classes):
    return dl.nn.Mlp.init(key, 64, HIDDEN, classes)
"""


class Counting(Processes):
    """Processes that say what they were asked for."""

    def run(self, trials):
        self.asked = [*trials]
        return super().run(trials)


def test_a_trial_is_run_anew_when_what_its_model_imports_has_changed(tmp_path, monkeypatch):
    folder = tmp_path / "lib"
    folder.mkdir()
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{folder}{os.pathsep}{path}")
    (folder / "widths_of_mine.py").write_text("HIDDEN = (4,)\n")
    (tmp_path / "mine.py").write_text(MODEL)
    own = tmp_path / "mine.toml"
    own.write_text(
        'name = "mine"\nrounds = 1\n[data]\nsource = "digits"\n[model]\nname = "python"\n'
        'file = "mine.py"\n[algorithm]\nname = "fedavg"\n[fleet]\ndevices = 12\n'
    )
    trial, executor = Trial(str(own)), Counting(1)
    results = []
    for text in ("HIDDEN = (4,)\n", "HIDDEN = (4,)\n", "HIDDEN = (5,)\n"):
        (folder / "widths_of_mine.py").write_text(text)
        results.append(study.run([trial], tmp_path / "kept", executor)[trial])
        assert executor.asked == ([] if len(results) == 2 else [trial])
    sizes = [r["summary"]["parameters"] for r in results]
    assert sizes == [64 * h + h + h * 10 + 10 for h in (4, 4, 5)]
    kept = json.loads((tmp_path / "kept" / f"{trial.name()}.json").read_text())
    assert sorted(kept["sources"]) == ["lib/widths_of_mine.py", "mine.py"]


def test_processes_give_what_is_computed_here_and_say_what_failed(tmp_path):
    trial = Trial("digits", "fedavg", TINY)
    ((same, found),) = Processes(1).run([trial])
    assert same == trial
    assert found == json.loads(json.dumps(study.work(trial)))
    assert found["curve"][-1]["round"] == 2 and found["curve"][-1]["bytes_up"] > 0
    with pytest.raises(DelianError, match=r"digits fleet\.devices=0.* failed.*devices"):
        list(Processes(2).run([Trial("digits", None, ("fleet.devices=0",))]))


LONG = f"""
from delian.simulations.runs.study import Processes, Trial
list(Processes(1).run([Trial("digits", settings={(*TINY, "rounds=1000000")!r})]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel of Linux")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_study_that_is_killed_leaves_no_trial_behind(number):
    def alive(pid: str) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    def until(condition) -> None:
        end = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.05)

    process = subprocess.Popen([sys.executable, "-c", LONG])
    try:
        tasks = Path(f"/proc/{process.pid}/task")
        found: list[str] = []

        def begun() -> bool:
            assert process.poll() is None
            found[:] = [c for t in tasks.iterdir() for c in (t / "children").read_text().split()]
            return bool(found)

        until(begun)
    finally:
        process.send_signal(number)
        process.wait()
    try:
        until(lambda: not any(map(alive, found)))
    finally:
        for pid in filter(alive, found):
            os.kill(int(pid), signal.SIGKILL)
