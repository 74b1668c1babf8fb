"""Memory that a script and its host share."""

import os

import numpy as np
import pytest
from delian.core.node.scripts.shared_weights import SharedWeights, shared_weights

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux has it")


@pytest.fixture
def memory():
    made = shared_weights(1000)
    yield made
    made.close()


def test_what_one_side_writes_the_other_one_reads_at_the_same_place(memory):
    other = SharedWeights(memory.descriptor, 500, places=2)
    memory.given[0][:] = np.arange(1000)
    np.testing.assert_array_equal(other.given[0], np.arange(500))
    np.testing.assert_array_equal(other.given[1], np.arange(500, 1000))
    other.answers[1][7] = -1
    assert memory.answers[0][507] == -1


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_no_side_changes_its_length(memory, size):
    with pytest.raises(PermissionError):
        os.ftruncate(memory.descriptor, size)
    assert memory.given[0].sum() == 0


def test_it_is_closed_twice_and_arrays_of_it_stay(memory):
    memory.given[0][:] = 2
    memory.close()
    memory.close()
    assert memory.given[0].sum() == 2000


def test_a_system_without_it_has_none(monkeypatch):
    assert shared_weights(0) is None
    monkeypatch.delattr("os.memfd_create")
    assert shared_weights(10) is None
