"""A device whose rows are in files and do not fit a window, and its training process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
from delian.core.learning.data.rows import DataSettings
from delian.core.learning.data.stored_rows import StoredArrays
from delian.core.learning.runtime import Runtime
from delian.core.learning.windows.window_rows import WindowRows
from delian.core.learning.windows.window_training import train
from delian.device.agent.owner_limits import WorkerSettings
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
