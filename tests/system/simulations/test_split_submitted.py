"""`delian run submit --set split.enabled=true` to daemons: coordinator, edge and devices."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from delian.core.learning.bundle import load as load_bundle
from delian.simulations.processes.fleet_files import FleetFiles, Layout
from delian.simulations.processes.launcher import Children
from delian.simulations.runs.simulate import simulate
from delian.simulations.runs.stage import Stage
from delian.simulations.runs.windowed_data import device_file
from delian.simulations.scenario.scenario_file import load, override

DEVICES, ROUNDS = 4, 2
#: As in test_split_rounds.py, for a fleet of four.
SETTINGS = (
    f"rounds={ROUNDS}",
    'algorithm={name="fedavg", learning_rate=0.05}',
    "round.timeout_ms=180000",
    f"round.cohort={DEVICES}",
    f"fleet.devices={DEVICES}",
    "fleet.edges=1",
    "fleet.dropout=0.0",
    "data.held_out_devices=0",
    "split.enabled=true",
    'split.on_device=["layers.0.*"]',
    "split.device_gflops=0.001",
    "split.edge_gflops=5.0",
    "network.device_edge.latency_ms=1.0",
)


def scenario():
    return override(load("digits"), SETTINGS)


@pytest.fixture
def delian(tmp_path):
    """A fleet whose devices train with their edge, and the operator's command line."""
    files = FleetFiles(Layout(tmp_path, 1, DEVICES, frozenset(), split=True))
    files.make_identities()
    files.write_cloud()
    files.write_edge(1)
    with closing(Stage(scenario(), None, None, "reference", lambda event: None)) as stage:
        names = [leaf.name.rpartition(".")[2] for leaf in stage.bundle.manifest.data]
        for number, device in enumerate(stage.data.training):
            given = device_file(stage.whole[device], names, stage.room)
            files.write_device(number, given, "native")

    def run(*words):
        at = ["--coordinator", files.address("cloud")]
        at += ["--identity", str(tmp_path / "operator" / "identity")]
        command = [sys.executable, "-m", "delian", *words, *at]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with Children(tmp_path) as children:
        for name, kind in [("cloud", "cloud"), ("edge-1", "edge")]:
            children.add(name, [kind, "run", "--config", str(files.config(name))])
            children.wait_ready([name])
        devices = [f"device-{number}" for number in range(DEVICES)]
        for name in devices:
            children.add(name, ["device", "run", "--config", str(files.config(name))])
        children.wait_ready(devices)
        yield run


def test_a_submitted_run_trains_with_the_edge_as_the_virtual_mode_does(delian, tmp_path):
    sets = [word for setting in SETTINGS for word in ("--set", setting)]
    said = delian("run", "submit", "digits", *sets, "--watch", "--json")
    events = [json.loads(line) for line in said.splitlines()]
    rounds = [event["facts"] for event in events if event["kind"] == "round"]
    assert [facts["reported"] for facts in rounds] == [DEVICES] * ROUNDS
    assert [event["facts"]["phase"] for event in events if event["kind"] == "phase"][-1] == "done"
    logs = [path.read_text() for path in sorted(tmp_path.glob("device-*.log"))]
    assert [log.count('"trained with edge') for log in logs] == [ROUNDS] * DEVICES

    delian("model", "export", f"1/{ROUNDS}", str(tmp_path / "model.bundle"))
    trained = load_bundle(tmp_path / "model.bundle").weights
    virtual = simulate(scenario()).bundle.weights
    np.testing.assert_allclose(trained, virtual, rtol=0, atol=2e-6)
