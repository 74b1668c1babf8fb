"""Arrays at the beginning of a cache line, and what differs in them."""

from __future__ import annotations

import numpy as np
import pytest
from delian.core.common.aligned_arrays import ALIGNMENT, aligned, distinct


@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 5), (64, 33)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8, np.bool_])
def test_an_array_is_copied_to_the_beginning_of_a_line_only_where_it_is_not_there(shape, dtype):
    size = int(np.prod(shape, dtype=int))
    for skip in range(0, 80, 8):
        room = np.zeros(size * 8 + 160, np.uint8)
        start = -room.ctypes.data % ALIGNMENT + skip
        array = room[start : start + size * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
        array[...] = np.arange(size).reshape(shape) % 2
        found = aligned(array)
        assert found.ctypes.data % ALIGNMENT == 0 or not size
        assert found.shape == shape and found.dtype == dtype and (found == array).all()
        assert (found is array) == (array.ctypes.data % ALIGNMENT == 0)


def test_a_turned_matrix_is_laid_row_by_row():
    turned = np.arange(600.0).reshape(20, 30).T
    found = aligned(turned)
    assert found.flags.c_contiguous and (found == turned).all()


@pytest.mark.parametrize("dtype", [np.uint32, np.int64, np.float32])
@pytest.mark.parametrize("numbers", [[], [7], [3, 1, 3, 2, 2, 0], [[5, 5], [4, 5]]])
def test_distinct_numbers_are_those_of_numpy(numbers, dtype):
    array = np.array(numbers, dtype)
    found = distinct(array)
    assert found.dtype == dtype
    assert found.tolist() == np.unique(array).tolist()
