"""Rows in files that are torn, missing, or change while a device trains on them."""

from __future__ import annotations

import io
import os
import tarfile

import numpy as np
import pytest
from delian.core.learning.data.packed.packed_writer import pack
from delian.core.learning.data.stored_rows import StoredArrays
from delian.core.protocol.ports import Outcome, ProgramStopped
from delian.core.wire.round_pb2 import BAD_BUNDLE, NO_DATA
from delian.device.agent.runner import WorkerRunner
from support.device_fixtures import CLASSES, FEATURES
from support.windowed_device import ROWS, Watched, here, run, settings


def torn(folder) -> None:
    os.truncate(folder / "x.npy", 1000)


def gone(folder) -> None:
    (folder / "y.npy").unlink()


def shorter(folder) -> None:
    np.save(folder / "y.npy", np.load(folder / "y.npy")[:-1])


def declared(folder, rows: int, size: int = 4096) -> None:
    """A file with the header of so many rows, and of so many bytes."""
    with (folder / "x.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, FEATURES)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(size or file.tell() + rows * FEATURES * 4)


def a_terabyte(folder) -> None:
    declared(folder, 1 << 36)


DAMAGE = {
    "torn": (torn, BAD_BUNDLE, "x.npy declares 300 rows in 4928 bytes, and has 1000 bytes"),
    "missing": (gone, NO_DATA, "there is no data file"),
    "of two lengths": (shorter, BAD_BUNDLE, "y.npy has 299 rows, and x.npy has 300"),
    "a terabyte": (a_terabyte, BAD_BUNDLE, "declares 68719476736 rows in 1099511627904 bytes"),
}


@pytest.mark.parametrize("kind", list(DAMAGE))
def test_rows_that_are_damaged_end_the_task_and_not_the_device(windowed, stored, caplog, kind):
    damage, reason, why = DAMAGE[kind]
    whole = {name: (stored / name).read_bytes() for name in ("x.npy", "y.npy")}
    damage(stored)
    runner = WorkerRunner(settings(stored), windowed.path)
    repaired = Repairing(runner, lambda: [(stored / n).write_bytes(whole[n]) for n in whole])
    first, second = run(windowed.program(ticket=1), windowed.program(ticket=2), runner=repaired)
    assert first == ProgramStopped(reason)
    assert why in caplog.text
    np.testing.assert_array_equal(second.vector, here(windowed, stored).update.vector)


class Repairing:
    """A runner whose data's owner does something between the first task and the next."""

    def __init__(self, runner: WorkerRunner, then) -> None:
        self._runner, self._then, self.close = runner, then, runner.close

    async def run(self, program):
        outcome = await self._runner.run(program)
        self._then()
        return outcome


@pytest.mark.parametrize("kind", ["torn", "missing", "of two lengths"])
def test_rows_that_are_damaged_while_they_are_read_end_the_task(
    windowed, stored, caplog, tmp_path, kind
):
    damage, reason, why = DAMAGE[kind]
    store = Watched(tmp_path / "windows", 3, lambda: damage(stored))
    runner = WorkerRunner(settings(stored), windowed.path, windows=store)
    (outcome,) = run(windowed.program(), runner=runner)
    assert outcome == ProgramStopped(reason)
    assert why in caplog.text
    assert len(store.places) < 10


def test_rows_that_never_stay_as_they_are_end_the_task(windowed, stored, caplog, tmp_path):
    class Changing(Watched):
        def write(self, program, record) -> None:
            super().write(program, record)
            os.utime(stored / "x.npy", ns=(0, len(self.places)))

    store = Changing(tmp_path / "windows")
    runner = WorkerRunner(settings(stored), windowed.path, windows=store)
    (outcome,) = run(windowed.program(), runner=runner)
    assert outcome == ProgramStopped(BAD_BUNDLE)
    assert "x.npy changed while it was read" in caplog.text
    assert runner.starts == 3


def test_a_terabyte_that_is_there_is_refused_where_its_windows_are_too_small(
    windowed, stored, caplog
):
    rows = 1 << 36
    declared(stored, rows, size=0)
    with (stored / "y.npy").open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (rows,)}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + rows)
    assert StoredArrays(stored).rows == rows
    (outcome,) = run(windowed.program(), runner=WorkerRunner(settings(stored), windowed.path))
    assert outcome == ProgramStopped(BAD_BUNDLE)
    assert "68719476736 rows make 68719476736 blocks of 1" in caplog.text


def test_labels_that_the_model_does_not_know_are_refused_by_their_rows(windowed, stored, caplog):
    y = np.load(stored / "y.npy")
    y[217] = CLASSES
    np.save(stored / "y.npy", y)
    (outcome,) = run(windowed.program(), runner=WorkerRunner(settings(stored), windowed.path))
    assert outcome == ProgramStopped(BAD_BUNDLE)
    assert "has a label that the model does not know; it has 3 labels" in caplog.text


def test_a_window_of_rows_is_trained_on_where_others_have_been_refused(windowed, stored):
    """Whatever the first task's rows were, the next one's are read again."""
    x = np.load(stored / "x.npy")
    np.save(stored / "x.npy", np.full_like(x, np.inf))
    runner = WorkerRunner(settings(stored), windowed.path)
    repaired = Repairing(runner, lambda: np.save(stored / "x.npy", x))
    first, second = run(windowed.program(ticket=1), windowed.program(ticket=2), runner=repaired)
    assert first == ProgramStopped(BAD_BUNDLE) and isinstance(second, Outcome)
    assert second.examples == here(windowed, stored).rows < ROWS


def packed_with_a_wrong_bit(folder):
    path = folder / "rows.npz"
    pack(StoredArrays(folder), path)
    content = bytearray(path.read_bytes())
    content[content.index(np.load(folder / "x.npy").tobytes()[:64])] ^= 1
    path.write_bytes(content)
    return path


def packed_and_cut(folder):
    path = folder / "rows.npz"
    pack(StoredArrays(folder), path)
    os.truncate(path, path.stat().st_size - 100)
    return path


def shards_of_which_one_is_torn(folder):
    x, y = np.load(folder / "x.npy"), np.load(folder / "y.npy")
    shards = folder / "shards"
    shards.mkdir()
    for shard, places in enumerate(np.array_split(np.arange(ROWS), 3)):
        with tarfile.open(shards / f"{shard}.tar", "w") as file:
            for k in places:
                for ending, value in (("x.npy", x[k]), ("y.npy", y[k])):
                    stream = io.BytesIO()
                    np.save(stream, value)
                    info = tarfile.TarInfo(f"{k:04}.{ending}")
                    info.size = stream.tell()
                    stream.seek(0)
                    file.addfile(info, stream)
    os.truncate(shards / "1.tar", 50_000)
    return shards


OTHER_FORMATS = {
    "a wrong bit": (packed_with_a_wrong_bit, "checksum"),
    "a packed file that was cut": (packed_and_cut, "rows.npz"),
    "a torn shard": (shards_of_which_one_is_torn, "1.tar"),
}


@pytest.mark.parametrize("kind", list(OTHER_FORMATS))
def test_shards_and_packed_files_that_are_damaged_end_the_task(windowed, stored, caplog, kind):
    damaged, why = OTHER_FORMATS[kind]
    path = damaged(stored)
    (outcome,) = run(windowed.program(), runner=WorkerRunner(settings(path), windowed.path))
    assert outcome == ProgramStopped(BAD_BUNDLE)
    assert why in caplog.text
