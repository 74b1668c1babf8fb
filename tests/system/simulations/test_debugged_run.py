"""`DELIAN_DEBUG=1 delian simulate`: models and algorithms as plain Python."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from delian.core.compiler import debugging
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario import scenario_file

SMALL = (
    *("rounds=2", "fleet.devices=8", "data.held_out_devices=2", "round.cohort=4"),
    *("round.reports_min=2", "model.hidden=[4]", "evaluation.every=2"),
)


@pytest.fixture
def debug(monkeypatch):
    def switch(on=True):
        monkeypatch.setattr(debugging, "on", on)

    return switch


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [
        ("scaffold", ()),  # memory of the server and of devices
        ("maml", ()),  # a derivative through a derivative
        pytest.param("apfl", ("evaluation.steps=[1, 3]",), marks=pytest.mark.slow),
        ("fedavg", ("round.mode=buffered",)),
        ("fedavg", ("privacy.top_k=0.1", "privacy.aggregation=plain")),
    ],
)
def test_a_run_that_is_debugged_is_the_same_run(algorithm, settings, debug):
    scenario = scenario_file.load("digits")
    scenario = scenario_file.with_algorithm(scenario, algorithm)
    scenario = scenario_file.override(scenario, [*SMALL, *settings])
    programs = simulate(scenario, backend="reference")
    debug()
    plain = simulate(scenario, threads=7)
    assert plain.host["backend"] == "plain Python" and plain.host["threads"] == 1
    assert len(plain.rounds) == len(programs.rounds) == 2
    for a, b in zip(plain.rounds, programs.rounds, strict=True):
        assert (a.reported, a.bytes) == (b.reported, b.bytes)
        assert a.training_loss == pytest.approx(b.training_loss, rel=1e-4)
    last = plain.rounds[-1], programs.rounds[-1]
    for name in ("global_loss", "personalised_loss"):
        a, b = (getattr(each, name) for each in last)
        assert a == pytest.approx(b, rel=1e-3)
    for one, other in zip(plain.devices, programs.devices, strict=True):
        assert one.steps_query == pytest.approx(other.steps_query, abs=0.2)


MODEL = """
import threading
import delian as dl
import numpy as np

@dl.module
class Net:
    dense: dl.nn.Dense

    def __call__(self, x, weight):
        y = self.dense(x.reshape(x.shape[0], -1))
        print(threading.current_thread() is threading.main_thread(), y.shape, float(np.max(y)))
        assert y.ndim == 2 and np.all(np.isfinite(y))
        return y DIVIDED

def init(key, shape, classes):
    return Net(dl.nn.Dense.init(key, 64, classes))
"""


def own(tmp_path, divided):
    (tmp_path / "own.py").write_text(MODEL.replace("DIVIDED", divided))
    (tmp_path / "own.toml").write_text(
        'name = "own"\nrounds = 1\n[data]\nsource = "digits"\n[model]\nname = "python"\n'
        'file = "own.py"\n[algorithm]\nname = "fedavg"\n[fleet]\ndevices = 12\n'
    )
    return scenario_file.load(str(tmp_path / "own.toml"))


def test_a_user_s_model_prints_and_asserts_on_the_main_thread(tmp_path, debug, capsys):
    debug()
    result = simulate(own(tmp_path, ""))
    assert result.rounds[0].global_accuracy is not None
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 20 and all(line.startswith("True (") for line in lines)


def test_a_user_s_model_that_makes_a_nan_is_told_its_line(tmp_path, debug, monkeypatch):
    debug()
    monkeypatch.setattr(debugging, "_said", {})
    scenario = own(tmp_path, "* np.sum(x) / np.sum(x - x)")
    line = MODEL.splitlines().index("        return y DIVIDED") + 1
    with (
        pytest.warns(RuntimeWarning, match=r"of finite numbers, by `div`") as caught,
        pytest.raises(AssertionError),  # the next step's, of weights that are NaN
    ):
        simulate(scenario)
    assert {(w.filename, w.lineno) for w in caught} == {(str(tmp_path / "own.py"), line)}


def delian(folder, *words, typed=""):
    command = [sys.executable, "-m", "delian.cli", "simulate", "own.toml", "--out", "out", *words]
    env = {**os.environ, "DELIAN_DEBUG": "1"}
    return subprocess.run(
        command, cwd=folder, env=env, input=typed, capture_output=True, text=True, check=False
    )


def test_the_command_stops_at_a_breakpoint_and_is_left_there(tmp_path):
    own(tmp_path, "")
    file = tmp_path / "own.py"
    file.write_text(
        file.read_text().replace("        assert y", "        breakpoint()\n        assert y")
    )
    done = delian(tmp_path, typed="p y.shape[1]\nq\n")
    assert "(Pdb) 10\n" in done.stdout
    assert done.returncode == 130 and "Traceback" not in done.stderr
    assert "plain Python, one device at a time" in done.stderr
    assert not (tmp_path / "out").exists()


def test_daemons_have_no_python_to_debug(tmp_path):
    own(tmp_path, "")
    done = delian(tmp_path, "--mode", "processes")
    assert done.returncode == 2 and "--mode virtual" in done.stderr
