"""A program that has taken over a device's training process: what the system still lets it do."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from delian.core.learning.data.sources import DataSettings
from delian.core.node.sandbox import walls
from delian.core.node.storage.blobs import FolderBlobs
from delian.core.protocol.ports import Outcome
from delian.device.agent.owner_limits import WorkerSettings
from delian.device.agent.runner import WorkerRunner
from support import hostile_worker as _hostile

HOSTILE = Path(_hostile.__file__)
REFUSED = {errno.EPERM, errno.EACCES}


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 300))


@pytest.fixture(scope="module")
def attempt(small_bundle, tmp_path_factory):
    """What is said to each attempt of a training program, with walls or without."""
    root = tmp_path_factory.mktemp("device")
    for name in ("identity", "cache/workers", "scratch", "blobs"):
        (root / name).mkdir(parents=True)
    (root / "identity" / "key.pem").write_text("a secret")
    (root / "scratch" / "old").write_text("")
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    np.savez(root / "rows.npz", x=rows, y=np.arange(20, dtype=np.int32) % 3)

    async def scene(with_walls: bool) -> dict[str, int]:
        blobs = FolderBlobs(root / "blobs", 1 << 30)
        refs = [
            await blobs.put(content)
            for content in (small_bundle.bare().to_bytes(), small_bundle.weights.tobytes())
        ]
        names = tuple(ref.digest for ref in refs)
        plan = root / "plan.json"
        places = {name: str(root / name) for name in ("identity", "cache", "scratch")}
        blob = str(blobs.path(names[1]))
        plan.write_text(json.dumps({**places, "blob": blob, "walls": with_walls, "instead": "try"}))
        command = (sys.executable, "-P", str(HOSTILE), str(plan), "delian.device.agent.worker")
        settings = WorkerSettings(data=DataSettings(str(root / "rows.npz")), backend="reference")
        runner = WorkerRunner(settings, blobs.path, command=command)
        ring = _program_of(small_bundle)
        outcome = await runner.run(dataclasses.replace(ring, blobs=names))
        await runner.close()
        await blobs.close()
        assert isinstance(outcome, Outcome)
        return dict(zip(_hostile.NAMES, map(int, outcome.vector), strict=True))

    return {with_walls: run(scene(with_walls)) for with_walls in (True, False)}


def _program_of(bundle):
    from delian.core.protocol.ports import RunProgram
    from delian.core.wire.round_pb2 import RingPlan

    manifest = bundle.manifest
    ring = RingPlan(
        clip=manifest.clip,
        clients_max=manifest.clients_max,
        bits=32,
        dimension=manifest.dimension,
    )
    return RunProgram(1, "client_update", (), (np.array([1, 2], np.uint32), ring))


@pytest.mark.parametrize("name", _hostile.NAMES)
def test_a_training_program_cannot(attempt, name):
    if absent := walls.lacking():
        pytest.skip(f"this kernel has no {' and no '.join(absent)}")
    assert attempt[True][name] in REFUSED


def test_without_walls_it_could(attempt):
    possible = {name for name, said in attempt[False].items() if said == 0}
    assert possible >= _hostile.COMMON
