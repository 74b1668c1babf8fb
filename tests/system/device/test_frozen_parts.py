"""Frozen leaves in the training process: mapped from the files of their parts, or a clear error."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import subprocess
import sys

import numpy as np
import pytest
from delian.core.learning.data.sources import DataSettings, open_source
from delian.core.learning.leaf_roles import Roles
from delian.core.learning.runtime import Runtime
from delian.core.protocol.ports import Outcome, ProgramStopped
from delian.core.wire.round_pb2 import BAD_BUNDLE, PROGRAM_FAILED
from delian.device.agent import window_jobs
from delian.device.agent.owner_limits import WorkerSettings
from delian.device.agent.personal_model import PersonalStore
from delian.device.agent.runner import WorkerRunner
from delian.device.serving.inference import PersonalModel
from support.device_fixtures import CLASSES, blobs_of, make_bundle, rows_of

#: Of a net of two layers the first.
BODY = Roles(frozen=("layers.0.*",))


@pytest.fixture(scope="module")
def made():
    return make_bundle(roles=BODY)


@pytest.fixture
def partial(tmp_path, made):
    """The small net with a frozen first layer, as files."""
    folder = tmp_path / "blobs"
    folder.mkdir()
    return blobs_of(folder, made)


def settings(data) -> WorkerSettings:
    return WorkerSettings(data=DataSettings(source=str(data)), backend="reference")


def run_all(runner, programs):
    async def scene():
        try:
            return [await runner.run(program) for program in programs]
        finally:
            await runner.close()

    return asyncio.run(scene())


def test_a_device_trains_as_one_process_with_all_leaves_does(partial, npz_file):
    manifest = partial.made.manifest
    assert [leaf.name for leaf in manifest.frozen] == ["layers.0.weight", "layers.0.bias"]
    assert len(partial.frozen) == 1 and len(partial.made.weights) == manifest.dimension < 16 * 4
    runner = WorkerRunner(settings(npz_file), partial.path)
    programs = [partial.program(ticket=1), partial.program(ticket=2)]
    first, again = run_all(runner, programs)
    assert runner.starts == 1, "one process keeps what it has mapped for the next round"
    runtime = Runtime(partial.made, "reference")
    own = settings(npz_file).data
    data = window_jobs.arranged(open_source(own), runtime, CLASSES, own)
    wanted = runtime.client_update(partial.made.weights, data, programs[0].arguments[0])
    np.testing.assert_array_equal(first.vector, wanted.vector)
    np.testing.assert_array_equal(again.vector, wanted.vector)


@pytest.mark.parametrize("harm", ["missing", "torn", "empty"])
def test_a_part_that_is_missing_or_torn_is_said_and_nothing_is_trained(
    partial, npz_file, tmp_path, caplog, harm
):
    """The next task finds it whole: the same runner then trains."""
    store = PersonalStore(tmp_path / "personal")
    runner = WorkerRunner(settings(npz_file), partial.path, store)
    file = partial.path(partial.frozen[0])
    whole = file.read_bytes()

    async def scene():
        try:
            yield await runner.run(partial.program("evaluate", ticket=1))
            model = store.current().model.read_bytes()
            await runner.cancel(1)
            await runner._kill()  # as when the device starts again
            if harm == "missing":
                file.unlink()
            else:
                os.truncate(file, 0 if harm == "empty" else len(whole) - 1)
            yield await runner.run(partial.program(ticket=2))
            assert store.current().model.read_bytes() == model, "the device keeps its old model"
            file.unlink(missing_ok=True)
            file.write_bytes(whole)
            yield await runner.run(partial.program(ticket=3))
        finally:
            await runner.close()

    async def main():
        return [outcome async for outcome in scene()]

    with caplog.at_level(logging.WARNING):
        before, stopped, after = asyncio.run(main())
    assert isinstance(before, Outcome) and isinstance(after, Outcome)
    assert stopped == ProgramStopped(PROGRAM_FAILED)
    assert "frozen" in caplog.text and ("part" in caplog.text)


@pytest.mark.parametrize("harm", ["flipped", "torn"])
def test_a_part_that_was_fetched_again_takes_the_place_of_the_mapped_one(partial, npz_file, harm):
    """A process keeps its mapping from job to job: of a file that was damaged in its place, it
    would go on with the damage, whatever the store has fetched since.
    """
    runner = WorkerRunner(settings(npz_file), partial.path)
    file = partial.path(partial.frozen[0])
    whole = file.read_bytes()

    async def scene():
        try:
            first = await runner.run(partial.program(ticket=1))
            with file.open("r+b") as damaged:
                if harm == "torn":
                    damaged.truncate(len(whole) // 2)
                else:
                    damaged.seek(3)
                    damaged.write(bytes([whole[3] ^ 0x40]))
            file.replace(file.with_suffix(".damaged"))  # as the store does, and fetches it again
            file.write_bytes(whole)
            return first, await runner.run(partial.program(ticket=2))
        finally:
            await runner.close()

    first, again = asyncio.run(scene())
    np.testing.assert_array_equal(first.vector, again.vector)
    assert runner.starts == 2


def test_a_task_with_other_parts_than_the_bundles_is_refused(partial, npz_file):
    other = partial.keep(b"another model's leaves")
    for frozen in ((), (other,), (*partial.frozen, other)):
        task = dataclasses.replace(partial, frozen=frozen).program()
        runner = WorkerRunner(settings(npz_file), partial.path)
        assert run_all(runner, [task]) == [ProgramStopped(BAD_BUNDLE)], frozen


def test_the_personal_model_is_served_with_its_frozen_leaves(partial, npz_file, tmp_path):
    store = PersonalStore(tmp_path / "personal")
    runner = WorkerRunner(settings(npz_file), partial.path, store)
    assert isinstance(run_all(runner, [partial.program("evaluate")])[0], Outcome)
    for digest in partial.frozen:
        partial.path(digest).unlink()  # the store needs the room for another run
    model = PersonalModel(store.folder, "reference")
    x, y = rows_of(12, 1)
    assert np.mean(model.predict(x).argmax(1) == y) > 0.5, "of three classes"
    runtime = Runtime(partial.made, "reference")
    own = np.fromfile(store.current().model, "<f4")
    np.testing.assert_array_equal(model.predict(x[:2]), runtime.infer(own, x[:2]))


#: What a process of these limits can do: map the file, then take so many MiB.
LIMITED = """
import mmap, sys
from delian.core.node.sandbox.process_limits import Limits, WorkerLimits
mapped = (int(sys.argv[2]), 1)
given = WorkerLimits(memory_mib=32, compile_memory_mib=32)
limits = Limits(given, mapped)
limits.of_job()
limits.running()
with open(sys.argv[1], "rb") as file:
    whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
assert whole[-1] == 0
bytearray(int(sys.argv[3]) << 20)
"""


@pytest.mark.parametrize(
    ("counted", "mib", "works"), [(256 << 20, 16, True), (256 << 20, 64, False), (0, 0, False)]
)
def test_mapped_parts_are_no_memory_of_the_owners(tmp_path, counted, mib, works):
    """Parts of 256 MiB, where a training may take 32."""
    file = tmp_path / "part"
    file.touch()
    os.truncate(file, 256 << 20)
    command = [sys.executable, "-c", LIMITED, str(file), str(counted), str(mib)]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (made.returncode == 0) is works, made.stderr
    if not works:
        assert "MemoryError" in made.stderr or "Cannot allocate memory" in made.stderr
