"""Training on more rows than memory is meant to hold: in windows, by a real training process."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from delian.core.learning import FedAvg, Scaffold
from delian.core.learning.nn import sgd
from delian.core.protocol.ports import Outcome, ProgramStopped
from delian.core.wire.round_pb2 import BAD_BUNDLE
from delian.device.agent.personal_model import PersonalStore
from delian.device.agent.runner import WorkerRunner
from delian.device.agent.window_checkpoints import WindowCheckpoints
from support.device_fixtures import CLASSES, blobs_of, make_bundle
from support.windowed_device import ROWS, Watched, here, run, settings


def test_rows_that_do_not_fit_a_window_are_all_trained_on(windowed, stored):
    (outcome,) = run(windowed.program(), runner=WorkerRunner(settings(stored), windowed.path))
    mine = here(windowed, stored)
    assert isinstance(outcome, Outcome) and outcome.finite
    np.testing.assert_array_equal(outcome.vector, mine.update.vector)
    assert outcome.examples == mine.rows
    assert 0.7 * ROWS < mine.rows < 0.9 * ROWS


def test_native_code_trains_in_windows_too(windowed, stored):
    runner = WorkerRunner(settings(stored, backend="native"), windowed.path)
    (outcome,) = run(windowed.program(), runner=runner)
    assert isinstance(outcome, Outcome) and outcome.finite
    assert outcome.loss == pytest.approx(here(windowed, stored).update.loss, rel=1e-4)


def test_a_file_with_more_rows_than_a_window_is_trained_on_in_windows_as_well(
    windowed, stored, tmp_path
):
    path = tmp_path / "data.npz"
    np.savez(path, x=np.load(stored / "x.npy"), y=np.load(stored / "y.npy"))
    (outcome,) = run(windowed.program(), runner=WorkerRunner(settings(path), windowed.path))
    np.testing.assert_array_equal(outcome.vector, here(windowed, stored).update.vector)


def test_a_process_that_was_killed_is_followed_by_one_that_goes_on(windowed, stored, tmp_path):
    def kill() -> None:
        os.kill(runner.pid, signal.SIGKILL)

    store = Watched(tmp_path / "windows", 5, kill)
    runner = WorkerRunner(settings(stored), windowed.path, windows=store)
    (outcome,) = run(windowed.program(), runner=runner)
    assert runner.starts == 2
    np.testing.assert_array_equal(outcome.vector, here(windowed, stored).update.vector)
    # No window of those before the last checkpoint was trained on again.
    assert store.places == sorted({*store.places})
    assert store.places[-1] == (2, 0)
    assert not [*(tmp_path / "windows").iterdir()]


#: An agent that is killed, once it has stored a few checkpoints.
AGENT = """
import os, signal, sys
from pathlib import Path
from delian.device.agent.runner import WorkerRunner
from support.device_fixtures import Blobs, make_bundle
from support.windowed_device import Watched, run, settings

blobs, rows, checkpoints, bundle, weights = sys.argv[1:]
given = Blobs(
    Path(blobs), bytes.fromhex(bundle), bytes.fromhex(weights), make_bundle(epochs=2, windows=True)
)
store = Watched(Path(checkpoints), 4, lambda: os.kill(os.getpid(), signal.SIGKILL))
run(given.program(), runner=WorkerRunner(settings(Path(rows)), given.path, windows=store))
"""


def test_an_agent_that_was_killed_goes_on_where_it_was(windowed, stored, tmp_path):
    places = [windowed.folder, stored, tmp_path / "windows"]
    names = [windowed.bundle.hex(), windowed.weights.hex()]
    tests = str(Path(__file__).parents[2])
    path = os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])
    agent = subprocess.run(
        [sys.executable, "-c", AGENT, *map(str, places), *names],
        env={**os.environ, "PYTHONPATH": path},
        timeout=300,
    )
    assert agent.returncode == -signal.SIGKILL
    second = Watched(tmp_path / "windows")
    runner = WorkerRunner(settings(stored), windowed.path, windows=second)
    (outcome,) = run(windowed.program(), runner=runner)
    # It went on behind the fourth window.
    assert second.places[0] == (0, 5)
    np.testing.assert_array_equal(outcome.vector, here(windowed, stored).update.vector)


def test_after_new_data_a_training_begins_again(windowed, stored, tmp_path):
    def change() -> None:
        np.save(stored / "y.npy", (np.load(stored / "y.npy") + 1) % CLASSES)

    store = Watched(tmp_path / "windows", 3, change)
    runner = WorkerRunner(settings(stored), windowed.path, windows=store)
    (outcome,) = run(windowed.program(), runner=runner)
    assert runner.starts == 2
    assert store.places.count((0, 1)) == 2
    np.testing.assert_array_equal(outcome.vector, here(windowed, stored).update.vector)


def test_a_damaged_checkpoint_costs_the_progress_and_no_more(windowed, stored, tmp_path):
    class Damaged(WindowCheckpoints):
        def read(self, program) -> bytes:
            return b"dlwind1\0 and not much more" * 4

    store = Damaged(tmp_path / "windows", 0)
    runner = WorkerRunner(settings(stored), windowed.path, windows=store)
    (outcome,) = run(windowed.program(), runner=runner)
    np.testing.assert_array_equal(outcome.vector, here(windowed, stored).update.vector)


def test_client_states_go_on_with_windows(blobs, stored, tmp_path):
    made = make_bundle(Scaffold(local=sgd(0.1), epochs=2), windows=True)
    own = blobs_of(blobs.folder, made)
    later = dataclasses.replace(own, weights=own.keep((made.weights + 0.1).tobytes()))
    kept = {"kept": tmp_path / "kept", "windows": Watched(tmp_path / "windows")}
    runner = WorkerRunner(settings(stored), own.path, **kept)
    first, second = run(own.program(ticket=1), later.program(ticket=2), runner=runner)
    assert first.finite and second.finite
    alone = WorkerRunner(settings(stored), own.path, kept=tmp_path / "other")
    (fresh,) = run(later.program(), runner=alone)
    assert (fresh.vector != second.vector).any()


def test_all_rows_that_judge_are_judged_by(windowed, stored, tmp_path):
    store = PersonalStore(tmp_path / "personal")
    store.prepare()
    runner = WorkerRunner(settings(stored), windowed.path, store)
    (outcome,) = run(windowed.program("evaluate"), runner=runner)
    assert isinstance(outcome, Outcome) and outcome.finite
    assert outcome.examples == ROWS - here(windowed, stored).rows
    assert store.current() is not None


def test_rows_that_are_not_finite_are_refused_by_name(windowed, stored, caplog):
    x = np.load(stored / "x.npy")
    x[217, 2] = np.nan
    np.save(stored / "x.npy", x)
    (outcome,) = run(windowed.program(), runner=WorkerRunner(settings(stored), windowed.path))
    assert outcome == ProgramStopped(BAD_BUNDLE)
    assert "holds a number that is not finite" in caplog.text


def test_windows_larger_than_the_owner_gives_are_refused_before_they_are_made(
    windowed, stored, caplog
):
    given = settings(stored)
    given = dataclasses.replace(given, data=dataclasses.replace(given.data, bytes_max=900))
    (outcome,) = run(windowed.program(), runner=WorkerRunner(given, windowed.path))
    assert outcome == ProgramStopped(BAD_BUNDLE)
    assert "2 windows of rows takes 960 bytes" in caplog.text


def test_an_update_that_is_not_finite_ends_the_passes(blobs, stored, tmp_path):
    wild = make_bundle(FedAvg(local=sgd(1e30), epochs=2), windows=True)
    own = blobs_of(blobs.folder, wild)
    store = Watched(tmp_path / "windows")
    runner = WorkerRunner(settings(stored), own.path, windows=store)
    (outcome,) = run(own.program(), runner=runner)
    assert isinstance(outcome, Outcome) and not outcome.finite
    assert len(store.places) < 13
