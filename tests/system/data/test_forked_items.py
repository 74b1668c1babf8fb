"""Pipelines whose items are made by forked processes."""

from __future__ import annotations

import os
import sys

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(sys.platform == "win32", reason="no forks"),
]


def source():
    numbers = np.arange(103, dtype=np.int32)
    return np.repeat(numbers[:, None], 3, 1).astype(np.uint8), numbers


def bits(items):
    return [tuple(column.tobytes() for column in item) for item in items]


@pytest.mark.parametrize("window", [None, 32])
def test_processes_change_nothing(window):
    pipeline = dl.data.Pipeline(source()).shuffle(window=window, block=4).batch(10)
    assert bits(pipeline.prefetch(5, processes=2).run(7, 2)) == bits(pipeline.run(7, 2))


def test_errors_of_processes_reach_the_reader():
    def broken(x, y):
        if y == 37:
            raise KeyError("lost")
        return x, y

    def dying(x, y):
        if y == 37 and os.getpid() != parent:
            os._exit(3)
        return x, y

    parent = os.getpid()
    with pytest.raises(DelianError, match="broken raised KeyError for row 37"):
        list(dl.data.Pipeline(source()).map(broken).batch(10).prefetch(3, processes=2))
    with pytest.raises(DelianError, match=r"item 3 ended \(exit code 3\)"):
        list(dl.data.Pipeline(source()).map(dying).batch(10).prefetch(3, processes=2))


def test_items_that_outgrow_the_first_one_come_from_processes_too():
    def grown(x, y):
        return np.zeros(1 + int(y[0]) * 1000), y

    pipeline = dl.data.Pipeline(source()).batch(10).map(grown)
    assert bits(pipeline.prefetch(3, processes=2)) == bits(pipeline)
