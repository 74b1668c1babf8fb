"""Training on more rows than memory is meant to hold: in windows, by a real training process."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from delian.core.learning import FedAvg, Scaffold
from delian.core.learning.data.rows import DataSettings
from delian.core.learning.data.stored_rows import StoredArrays
from delian.core.learning.nn import sgd
from delian.core.learning.runtime import Runtime
from delian.core.learning.windows.window_rows import WindowRows
from delian.core.learning.windows.window_training import train
from delian.core.protocol.ports import Outcome, ProgramStopped
from delian.core.wire.round_pb2 import BAD_BUNDLE
from delian.device.agent.owner_limits import WorkerSettings
from delian.device.agent.personal_model import PersonalStore
from delian.device.agent.runner import WorkerRunner
from delian.device.agent.window_checkpoints import WindowCheckpoints
from support.device_fixtures import CLASSES, Blobs, blobs_of, make_bundle, rows_of

ROWS = 300
KEY = np.array([1, 2], np.uint32)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    folder = tmp_path / "rows"
    folder.mkdir()
    x, y = rows_of(ROWS)
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return folder


@pytest.fixture
def windowed(blobs: Blobs) -> Blobs:
    """A bundle whose devices may train on windows of 24 rows, twice over all of them."""
    return blobs_of(blobs.folder, make_bundle(epochs=2, windows=True))


def settings(source: Path, **given) -> WorkerSettings:
    given = {"backend": "reference", "checkpoint_s": 0, **given}
    return WorkerSettings(data=DataSettings(str(source)), **given)


class Watched(WindowCheckpoints):
    """Does something once a number of checkpoints is stored; keeps their places."""

    def __init__(self, folder: Path, after: int = 0, then=lambda: None) -> None:
        super().__init__(folder, 0)
        self.places: list[tuple[int, int]] = []
        self._after, self._then = after, then

    def write(self, program, record) -> None:
        super().write(program, record)
        head = bytes(record).split(b'"epoch":', 1)[1].split(b"}", 1)[0]
        epoch, window = head.split(b',"window":')
        self.places.append((int(epoch), int(window)))
        if len(self.places) == self._after:
            self._then()


def run(*programs, runner: WorkerRunner) -> list:
    async def scene():
        try:
            return [await runner.run(program) for program in programs]
        finally:
            await runner.close()

    return asyncio.run(asyncio.wait_for(scene(), 300))


def here(blobs: Blobs, folder: Path):
    """The same training in this process."""
    manifest = blobs.made.manifest
    rows = WindowRows(
        StoredArrays(folder),
        manifest.data,
        classes=CLASSES,
        query_fraction=0.2,
        bytes_max=1 << 20,
    )
    return train(Runtime(blobs.made, "reference"), blobs.made.weights, rows, KEY)


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


def test_an_agent_that_was_killed_goes_on_where_it_was(windowed, stored, tmp_path):
    first = Watched(tmp_path / "windows", 4, lambda: runner.allow(allowed=False))
    runner = WorkerRunner(settings(stored), windowed.path, windows=first)

    async def stopped():
        loop = asyncio.get_running_loop()
        halt = asyncio.Event()
        first._then = lambda: loop.call_soon_threadsafe(halt.set)
        work = asyncio.ensure_future(runner.run(windowed.program()))
        await halt.wait()
        await runner.close()
        return await work

    assert isinstance(asyncio.run(asyncio.wait_for(stopped(), 300)), ProgramStopped)
    second = Watched(tmp_path / "windows")
    runner = WorkerRunner(settings(stored), windowed.path, windows=second)
    (outcome,) = run(windowed.program(), runner=runner)
    assert second.places[0] > first.places[3]
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
