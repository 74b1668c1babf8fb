"""A model with frozen parts on real daemons: masked rounds, the models of the virtual mode."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
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
