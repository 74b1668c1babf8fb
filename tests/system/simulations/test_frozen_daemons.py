"""A model with frozen parts on real daemons: masked rounds, the models of the virtual mode."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from delian.core.learning import frozen
from delian.core.node.net.mqtt.broker import mosquitto_path
from delian.simulations.processes.processes import Shape, fitted, simulate_processes
from delian.simulations.runs.simulate import simulate
from delian.simulations.scenario.scenario_file import load, override

ROUNDS = 2


def scenario():
    """FedPer: the head's first values travel as a part, and the head is trained on the devices."""
    return override(
        load("digits"),
        [
            'algorithm={name="fedper"}',
            f"rounds={ROUNDS}",
            f"evaluation.every={ROUNDS}",
            "round.timeout_ms=180000",
            "privacy.aggregation=secure",
        ],
    )


def stores(folder: Path) -> dict[str, dict[str, int]]:
    """Of each node its whole blobs: name -> when it was written, ns."""
    return {
        str(place.relative_to(folder)): {f.name: f.stat().st_mtime_ns for f in place.iterdir()}
        for place in folder.rglob("blobs/whole")
    }


def test_masked_rounds_with_frozen_parts_and_each_part_is_fetched_once(tmp_path):
    shape = Shape(devices=6, edges=2, by_mqtt=0, folder=tmp_path / "fleet")
    virtual = simulate(fitted(scenario(), shape))
    seen = []

    def look(children, record):
        seen.append(stores(tmp_path / "fleet"))

    result = simulate_processes(scenario(), shape, meddle=look)
    assert result.stopped_by is None and [r.reported for r in result.rounds] == [6] * ROUNDS
    np.testing.assert_array_equal(result.bundle.weights, virtual.bundle.weights)
    manifest, contents = result.bundle.manifest, result.bundle.frozen_contents()
    parts = [part.digest for part in manifest.frozen_parts]
    assert len(parts) == 1 and parts == [hashlib.sha256(c).hexdigest() for c in contents]
    assert not {leaf.name for leaf in manifest.frozen} & {leaf.name for leaf in manifest.state}
    have = [
        {place: blobs[parts[0]] for place, blobs in one.items() if parts[0] in blobs}
        for one in seen
    ]
    assert len(have[0]) == 1 + 2 + 6, "the coordinator, the edges and the devices"
    assert have[0] == have[-1], "in the second round nothing was written again"


def harm(kind: str, part: Path) -> None:
    """What a disk or a user does to a file."""
    if kind == "missing":
        part.unlink()
        return
    with part.open("r+b") as file:
        if kind == "truncated":
            file.truncate(part.stat().st_size // 2)
        else:
            first = file.read(1)
            file.seek(0)
            file.write(bytes([first[0] ^ 0x40]))


def personal_of(device: Path) -> dict[str, bytes]:
    """The files of a device's personal model."""
    places = (device / "personal").rglob("*")
    return {str(p.relative_to(device)): p.read_bytes() for p in places if p.is_file()}


def test_a_part_that_is_lost_on_a_devices_disk_is_said_and_fetched_again(tmp_path):
    """While the daemons run, between two rounds: of one device the part is missing, of one it is
    truncated, of one a bit is flipped. Each says so, keeps its personal model and goes on.
    """
    kinds = {"device-0": "missing", "device-1": "truncated", "device-2": "flipped"}
    folder = tmp_path / "fleet"
    shape = Shape(devices=3, edges=1, by_mqtt=0, folder=folder)
    asked = override(
        load("digits"),
        [
            'algorithm={name="fedavg", learning_rate=0.05}',
            'partial.frozen=["layers.0.*"]',
            "rounds=6",
            "evaluation.every=2",
            "evaluation.federated=true",
            "round.timeout_ms=180000",
            "round.reports_min=1",
            "privacy.aggregation=plain",
        ],
    )
    parts, before, kept = [], {}, []

    def meddle(children, record):
        if record.round == 3 and not before:
            whole = folder / "device-0" / "blobs" / "whole"
            edge = {p.name for p in (folder / "edge-1" / "blobs" / "whole").iterdir()}
            manifests = [p.name for p in whole.iterdir() if p.name in edge]
            parts.extend(n for n in manifests if (whole / n).stat().st_size == FROZEN_BYTES)
            for name, kind in kinds.items():
                before[name] = personal_of(folder / name)
                harm(kind, folder / name / "blobs" / "whole" / parts[0])
        elif record.round == 4 and record.applied:
            kept.append({name: personal_of(folder / name) for name in kinds})

    result = simulate_processes(asked, shape, meddle=meddle)
    assert result.stopped_by is None and sum(r.applied for r in result.rounds) == 6
    assert result.rounds[-1].reported == 3, "all are in the last round again"
    (part,) = {part.digest for part in result.bundle.manifest.frozen_parts}
    assert parts == [part]
    for name, kind in kinds.items():
        assert before[name], "it had a personal model by then"
        assert all(one[name] for one in kept), "and kept one"
        file = folder / name / "blobs" / "whole" / part
        assert hashlib.sha256(file.read_bytes()).hexdigest() == part, "it was fetched again"
        log = (folder / f"{name}.log").read_text()
        said = "is gone" if kind == "missing" else "is damaged, and set aside"
        assert f"blob {part[:16]} {said}" in log and "Traceback" not in log


#: The frozen first layer: 64 x 64 weights of the digits' net, and as many biases.
FROZEN_BYTES = 4 * (64 * 64 + 64)


#: Read by Python in each process that is started: parts of a kilobyte, or of one larger leaf.
SMALL_PARTS = """
from delian.core.learning import frozen
frozen.PART_BYTES = 1024
"""


@pytest.mark.skipif(mosquitto_path() is None, reason="mosquitto is not installed")
def test_several_parts_come_over_mqtt(tmp_path, monkeypatch):
    """Masked rounds of devices that have MQTT alone, and of one over gRPC: each part is fetched
    once by each node, and the model is that of the virtual mode.
    """
    (tmp_path / "sitecustomize.py").write_text(SMALL_PARTS)
    known = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), known))))
    monkeypatch.setattr(frozen, "PART_BYTES", 1024)
    folder = tmp_path / "fleet"
    shape = Shape(devices=4, edges=1, by_mqtt=3, folder=folder)
    asked = override(
        load("digits"),
        [
            'algorithm={name="fedavg", learning_rate=0.05}',
            'partial.frozen=["*", "!layers.1.bias"]',
            f"rounds={ROUNDS}",
            f"evaluation.every={ROUNDS}",
            "round.timeout_ms=180000",
            "privacy.aggregation=secure",
        ],
    )
    virtual = simulate(fitted(asked, shape))
    seen = []

    def look(children, record):
        seen.append(stores(folder))

    result = simulate_processes(asked, shape, meddle=look)
    assert result.stopped_by is None and [r.reported for r in result.rounds] == [4] * ROUNDS
    np.testing.assert_array_equal(result.bundle.weights, virtual.bundle.weights)
    parts = [part.digest for part in result.bundle.manifest.frozen_parts]
    assert len(parts) == 3
    for part in parts:
        have = [{place: b[part] for place, b in one.items() if part in b} for one in seen]
        assert len(have[0]) == 1 + 1 + 4 and have[0] == have[-1], "fetched once"
