"""A device with an artifact compiles nothing; one that does not fit costs it no training."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest
from delian.core.compiler.backends.native.toolchain import artifact, toolchain
from delian.core.compiler.backends.native.toolchain.targets import find_target
from delian.core.learning.data.sources import DataSettings
from delian.core.learning.export.artifact_build import build_for
from delian.core.protocol.ports import Outcome
from delian.device.agent.owner_limits import WorkerSettings
from delian.device.agent.runner import WorkerRunner


@pytest.fixture
def built(small_bundle, tmp_path):
    if toolchain.find() is None:
        pytest.skip("no C compiler here")
    path = tmp_path / "small.dlo"
    path.write_bytes(build_for(small_bundle, find_target("native")).content)
    return path


def trained(blobs, npz_file, artifacts):
    """The outcome of a job in a training process."""
    settings = WorkerSettings(
        data=DataSettings(str(npz_file)), artifacts=tuple(map(str, artifacts))
    )

    async def once():
        runner = WorkerRunner(settings, blobs.path)
        try:
            return await runner.run(blobs.program())
        finally:
            await runner.close()

    outcome = asyncio.run(asyncio.wait_for(once(), 300))
    assert isinstance(outcome, Outcome)
    return outcome


def test_a_device_with_an_artifact_compiles_nothing(blobs, npz_file, built, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("DELIAN_CACHE", str(cache))
    here = trained(blobs, npz_file, [built])
    assert not cache.exists()
    compiled = trained(blobs, npz_file, [])
    assert list(cache.glob("workers/native/*.so"))
    np.testing.assert_array_equal(here.vector, compiled.vector)


def test_an_artifact_for_another_machine_is_left_out(blobs, npz_file, built, tmp_path, monkeypatch):
    monkeypatch.setenv("DELIAN_CACHE", str(tmp_path / "cache"))
    facts = dataclasses.replace(artifact.read(built), machine="vax")
    built.write_bytes(artifact.sealed(b"never opened", facts))
    assert trained(blobs, npz_file, [built]).finite


def test_settings_with_artifacts_go_to_the_training_process_whole():
    settings = WorkerSettings(artifacts=("a.dlo", "b.dlo"))
    assert WorkerSettings.from_json(settings.to_json()) == settings


def test_a_device_with_an_artifact_imports_little_and_takes_nothing_from_its_owners_code(
    blobs, built, tmp_path, monkeypatch
):
    (tmp_path / "owners_rows.py").write_text(
        "import pathlib, sys\n"
        "import numpy as np\n"
        "def read():\n"
        f"    pathlib.Path({str(tmp_path / 'seen')!r}).write_text('\\n'.join(sys.modules))\n"
        "    import bz2, lzma, _hashlib\n"
        "    return np.eye(8, 4, dtype=np.float32), np.arange(8) % 3\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert trained(blobs, "python:owners_rows:read", [built]).finite
    seen = set((tmp_path / "seen").read_text().split("\n"))
    assert "delian.core.compiler.backends.native.program" in seen
    heavy = {"_hashlib", "asyncio", "bz2", "decimal", "logging", "lzma", "subprocess", "tempfile"}
    ours = {
        "core.compiler.backends.native.emit",
        "core.learning.data.omniglot_drawings",
        "core.learning.algorithm_registry",
        "core.compiler.passes",
    }
    assert seen & (heavy | {f"delian.{name}" for name in ours}) == set()
