"""The tests of `test_sources` that need a process, a socket or a clock."""

from __future__ import annotations

import multiprocessing
import threading

import delian as dl
from delian.core.learning.data.rows import DataSettings, RowType
from delian.core.learning.data.sources import open_source

ROW = RowType((4,))


def append_many(folder: str, value: int) -> None:
    buffer = dl.data.SensorBuffer(folder, (2,))
    threads = [
        threading.Thread(target=lambda: [buffer.append([value, value], 0) for _ in range(20)])
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_several_threads_and_processes_append_whole_rows(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=append_many, args=(str(tmp_path), i)) for i in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    rows = open_source(DataSettings(f"sensor:{tmp_path}")).read(ROW)
    assert sorted(rows.x[:, 0]) == [1.0] * 40 + [2.0] * 40
    assert (rows.x[:, 0] == rows.x[:, 1]).all()
