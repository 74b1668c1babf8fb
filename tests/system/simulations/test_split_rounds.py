"""Rounds of a run whose devices train with their edges, by coordinator, edges and devices as
processes: the model of the virtual mode, and what is left when an edge is killed.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from delian.device.agent.status_file import read_status
from delian.simulations.processes.processes import Shape, fitted, simulate_processes
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario.scenario_file import load, override

#: First layer on the device, with what is so slow there that the rest is best above, also where a
#: busy machine makes the link seem slow.
SPLIT = (
    "split.enabled=true",
    'split.on_device=["layers.0.*"]',
    "split.device_gflops=0.0001",
    "split.edge_gflops=5.0",
    "network.device_edge.latency_ms=1.0",
)
ROUNDS = 2


def scenario(*changes):
    every = [f"rounds={ROUNDS}", f"evaluation.every={ROUNDS}", "round.timeout_ms=180000"]
    fedavg = 'algorithm={name="fedavg", learning_rate=0.05}'
    return override(load("digits"), [*every, fedavg, *SPLIT, *changes])


def trained_with_edges(folder):
    """The events of devices that trained with an edge."""
    found = []
    for log in sorted(folder.glob("device-*.log")):
        for line in log.read_text().splitlines():
            event = json.loads(line) if line.startswith("{") else {}
            if str(event.get("event", "")).startswith("trained with edge"):
                found.append(event)
    return found


@pytest.fixture(scope="module")
def virtual():
    return simulate(fitted(scenario(), Shape()))


def moved(result, way):
    """Bytes of all rounds."""
    return sum(record.bytes[way] for record in result.rounds)


def test_masked_rounds_give_the_model_of_the_virtual_mode(virtual, tmp_path):
    fleet = tmp_path / "fleet"
    result = simulate_processes(scenario(), Shape(by_mqtt=0, folder=fleet))
    assert [r.reported for r in result.rounds] == [6] * ROUNDS
    np.testing.assert_allclose(result.bundle.weights, virtual.bundle.weights, rtol=0, atol=2e-6)
    events = trained_with_edges(fleet)
    assert len(events) == 6 * ROUNDS
    assert all(e["up_mbit_s"] > 0 and e["latency_ms"] > 0 for e in events), "it was measured"
    # The virtual mode counts a turn's tensors, daemons also what frames add: some 5%. Without the
    # turns a fifth would be left. Devices count the same, to what comes after the last round.
    traffic = [read_status(fleet / f"device-{n}")["traffic"]["edge"] for n in range(6)]
    for way, own in (("device_edge_up", "sent_bytes"), ("device_edge_down", "received_bytes")):
        assert moved(result, way) == pytest.approx(moved(virtual, way), rel=0.1)
        assert sum(each[own] for each in traffic) == pytest.approx(moved(result, way), rel=0.05)


def test_an_edge_that_is_killed_costs_an_attempt_and_no_half_update(tmp_path):
    fleet = tmp_path / "fleet"

    def meddle(children, record):
        if record.round == 1 and record.applied:
            children.crash("edge-1")

    result = simulate_processes(scenario("rounds=3"), Shape(by_mqtt=0, folder=fleet), meddle=meddle)
    assert result.stopped_by is None and sum(r.applied for r in result.rounds) == 3
    assert np.isfinite(result.bundle.weights).all() and trained_with_edges(fleet)
