"""What a device keeps of an algorithm: its training process puts it down before it answers, and the
same weights twice leave what once would.
"""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np
import pytest
from delian.core.learning import Ditto
from delian.core.learning.data.sources import DataSettings
from delian.core.learning.nn import sgd
from delian.core.protocol.ports import Outcome, ProgramStopped
from delian.core.wire.round_pb2 import BAD_BUNDLE
from delian.device.agent import client_state_file
from delian.device.agent.owner_limits import WorkerSettings
from delian.device.agent.personal_model import PersonalStore
from delian.device.agent.runner import WorkerRunner


@pytest.fixture
def ditto(blobs, make_small_bundle):
    """The small bundle under an algorithm with a client state."""
    made = make_small_bundle(Ditto(local=sgd(0.1), attraction=0.1, personal_steps=1))
    bundle = blobs.keep(made.bare().to_bytes())
    return dataclasses.replace(blobs, bundle=bundle, made=made)


def settings(data) -> WorkerSettings:
    return WorkerSettings(data=DataSettings(source=str(data)), backend="reference")


def run_all(runner, programs):
    async def scene():
        try:
            return [await runner.run(program) for program in programs]
        finally:
            await runner.close()

    return asyncio.run(scene())


def test_a_state_is_kept_from_round_to_round_and_attempts_count_once(ditto, npz_file, tmp_path):
    size = sum(leaf.size for leaf in ditto.made.manifest.client_state)
    folder = tmp_path / "kept"
    file = folder / f"{ditto.bundle.hex()}.kept"
    runner = WorkerRunner(settings(npz_file), ditto.path, kept=folder)

    later = dataclasses.replace(ditto, weights=ditto.keep((ditto.made.weights + 0.1).tobytes()))
    first, again = run_all(runner, [ditto.program(ticket=1), ditto.program(ticket=2)])
    once = client_state_file.Kept.parse(file.read_bytes(), size)
    np.testing.assert_array_equal(first.vector, again.vector)
    np.testing.assert_array_equal(once.before, ditto.made.weights)  # Ditto begins at the shared one
    assert once.on == ditto.weights and np.any(once.after != once.before)

    runner = WorkerRunner(settings(npz_file), later.path, kept=folder)
    assert isinstance(run_all(runner, [later.program(ticket=3)])[0], Outcome)
    twice = client_state_file.Kept.parse(file.read_bytes(), size)
    assert twice.on == later.weights
    np.testing.assert_array_equal(twice.before, once.after)


def test_the_personal_model_is_made_of_the_state(ditto, npz_file, tmp_path):
    """Ditto's own model moves on from what was kept; without it, from the shared model."""
    models = []
    for trained in (False, True):
        store = PersonalStore(tmp_path / f"personal-{trained}")
        runner = WorkerRunner(settings(npz_file), ditto.path, store, kept=tmp_path / f"{trained}")
        programs = [ditto.program("evaluate", 2)]
        run_all(runner, [ditto.program(ticket=1), *programs] if trained else programs)
        models.append(np.fromfile(store.current().model, "<f4"))
    assert np.any(models[0] != models[1])


def test_a_damaged_state_is_begun_anew(ditto, npz_file, tmp_path):
    folder = tmp_path / "kept"
    file = folder / f"{ditto.bundle.hex()}.kept"
    folder.mkdir()
    file.write_bytes(b"no record")
    runner = WorkerRunner(settings(npz_file), ditto.path, kept=folder)
    assert isinstance(run_all(runner, [ditto.program()])[0], Outcome)
    size = sum(leaf.size for leaf in ditto.made.manifest.client_state)
    assert client_state_file.Kept.parse(file.read_bytes(), size).on == ditto.weights


def test_no_more_than_a_few_states_are_kept(ditto, npz_file, tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    for number in range(12):
        (folder / f"{number}.kept").write_bytes(b"old")
    runner = WorkerRunner(settings(npz_file), ditto.path, kept=folder)
    run_all(runner, [ditto.program()])
    left = {file.name for file in folder.iterdir()}
    assert len(left) == 8 and f"{ditto.bundle.hex()}.kept" in left


def test_a_device_without_a_place_for_it_says_so(ditto, npz_file):
    runner = WorkerRunner(settings(npz_file), ditto.path)
    assert run_all(runner, [ditto.program()]) == [ProgramStopped(BAD_BUNDLE)]
