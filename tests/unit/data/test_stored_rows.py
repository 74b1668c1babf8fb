"""Rows that are read from files by ranges, and the order in which windows of them are read."""

from __future__ import annotations

import itertools
import os
import tracemalloc

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.compiler import random
from delian.core.learning.data.rows import DataSettings, NoDataError
from delian.core.learning.data.sources import check_source, open_source
from delian.core.learning.data.stored_order import Windows
from delian.core.learning.data.stored_rows import StoredArrays, is_stored


def stored(folder, rows=10, x=None, y=None):
    folder.mkdir(exist_ok=True)
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3) if x is None else x
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", np.arange(rows) % 4 if y is None else y)
    return folder


# ---------------------------------------------------------------- rows


def test_a_folder_of_x_and_y_is_a_source_of_ranges(tmp_path):
    source = open_source(DataSettings(str(stored(tmp_path))))
    assert is_stored(source) and source.rows == 10
    assert (source.row_type().shape, source.row_type().dtype) == ((3,), "f32")
    part = source.read(4, 7)
    np.testing.assert_array_equal(part.x[:, 0], [12, 15, 18])
    np.testing.assert_array_equal(part.y, [0, 1, 2])
    assert part.query is None
    assert check_source(DataSettings(str(tmp_path))) == ""


def test_a_split_of_the_datas_own_comes_with_its_rows(tmp_path):
    np.save(stored(tmp_path) / "query.npy", np.arange(10) % 5 == 0)
    np.testing.assert_array_equal(StoredArrays(tmp_path).read(4, 7).query, [False, True, False])


def test_rows_of_another_machines_byte_order_are_read_as_this_ones(tmp_path):
    source = StoredArrays(stored(tmp_path, x=np.arange(10, dtype=">i4").reshape(10, 1)))
    assert source.row_type().dtype == "i32"
    np.testing.assert_array_equal(source.read(8, 10).x, np.array([[8], [9]], np.int32))


def test_the_version_is_that_of_the_files(tmp_path):
    source = StoredArrays(stored(tmp_path))
    before = source.version()
    assert before == StoredArrays(tmp_path).version()
    stored(tmp_path, rows=11)
    assert source.version() != before
    assert source.version() == StoredArrays(tmp_path).version()
    (tmp_path / "y.npy").unlink()
    assert source.version() is None


def test_data_that_change_while_they_are_read_are_refused(tmp_path):
    source = StoredArrays(stored(tmp_path))
    source.read(0, 2)
    os.utime(tmp_path / "y.npy", ns=(1, 1))
    with pytest.raises(DelianError, match=r"y.npy changed while it was read"):
        source.read(0, 2)


def test_a_file_that_is_cut_short_while_it_is_open_is_refused(tmp_path):
    source = StoredArrays(stored(tmp_path))
    os.truncate(tmp_path / "x.npy", 200)
    with pytest.raises(DelianError, match="changed while it was read"):
        source.read(5, 9)


def test_a_file_that_is_cut_short_is_refused_when_it_is_opened(tmp_path):
    size = (stored(tmp_path) / "x.npy").stat().st_size
    os.truncate(tmp_path / "x.npy", size - 1)
    with pytest.raises(DelianError, match=f"declares 10 rows in {size} bytes, and has {size - 1}"):
        StoredArrays(tmp_path)


def test_a_header_that_declares_a_terabyte_costs_no_memory(tmp_path):
    stored(tmp_path)
    with (tmp_path / "x.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 28, 1024)}
        np.lib.format.write_array_header_1_0(file, header)
        file.write(b"\0" * 4096)
    tracemalloc.start()
    try:
        with pytest.raises(DelianError, match="declares 268435456 rows in 1099511627904 bytes"):
            StoredArrays(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_range_larger_than_the_limit_is_refused_before_it_is_read(tmp_path):
    stored(tmp_path, y=np.zeros(10, np.int32))
    source = StoredArrays(tmp_path, bytes_max=64)
    assert len(source.read(0, 4).x) == 4
    with pytest.raises(DelianError, match=r"5 rows of .* takes 80 bytes"):
        source.read(0, 5)


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.array(3.0), "an array of numbers"),
        (np.array(["a"] * 10), "an array of numbers"),
        (np.asfortranarray(np.ones((10, 3))), "in Fortran's order"),
        (np.ones((0, 3)), "has no rows"),
        (np.ones((9, 3)), "y.npy has 10 rows, and x.npy has 9"),
    ],
)
def test_arrays_that_are_no_rows_are_refused(tmp_path, x, said):
    stored(tmp_path, x=x)
    with pytest.raises(DelianError) as caught:
        StoredArrays(tmp_path)
    assert said in str(caught.value)


def test_what_is_no_npy_file_is_refused_by_name(tmp_path):
    (stored(tmp_path) / "y.npy").write_bytes(b"PK\x03\x04 not an array")
    with pytest.raises(DelianError, match=r"y.npy is no .npy file"):
        StoredArrays(tmp_path)
    (tmp_path / "y.npy").unlink()
    with pytest.raises(NoDataError, match="there is no data file"):
        StoredArrays(tmp_path)


# ---------------------------------------------------------------- their order


def rows_of(windows, key, epoch, window):
    parts = windows.ranges(key, epoch, window)
    return np.concatenate([np.arange(*part) for part in parts])


@pytest.mark.parametrize(
    ("rows", "capacity", "block"),
    [(1000, 64, 4), (1003, 64, 7), (65, 64, 1), (64, 64, 8), (5, 3, 3), (10_007, 512, 32)],
)
def test_an_epoch_has_every_row_once_in_windows_of_nearly_one_size(rows, capacity, block):
    windows, key = Windows(rows, capacity, block), random.key(7)
    each = [rows_of(windows, key, 2, k) for k in range(windows.count)]
    np.testing.assert_array_equal(np.sort(np.concatenate(each)), np.arange(rows))
    sizes = [len(part) for part in each]
    assert max(sizes) <= capacity
    assert max(sizes) - min(sizes) < 2 * block


def test_a_window_is_a_function_of_its_place_alone():
    windows, key = Windows(1003, 64, 7), random.key(7)
    late = windows.ranges(key, 3, 9)
    for epoch in range(3):
        windows.ranges(key, epoch, 0)
    assert Windows(1003, 64, 7).ranges(random.key(7), 3, 9) == late
    assert windows.ranges(key, 4, 9) != late
    assert windows.ranges(random.key(8), 3, 9) != late
    # These numbers are for all time: a device that stopped goes on from a place of them.
    assert Windows(40, 12, 3).ranges(random.key(1), 0, 1) == [(12, 15), (18, 21), (27, 33)]


@pytest.mark.parametrize(("rows", "capacity", "block"), [(1003, 64, 7), (64, 64, 8)])
def test_all_windows_at_once_are_those_one_by_one(rows, capacity, block):
    windows, key = Windows(rows, capacity, block), random.key(7)
    each = [windows.ranges(key, 2, k) for k in range(windows.count)]
    assert windows.all_ranges(key, 2) == each


def test_ranges_are_ascending_and_apart():
    windows = Windows(10_007, 512, 32)
    for window in range(windows.count):
        ranges = windows.ranges(random.key(1), 0, window)
        assert all(a[1] < b[0] for a, b in itertools.pairwise(ranges))


def test_data_that_fit_one_window_are_read_in_their_own_order():
    assert Windows(64, 64, 8).ranges(random.key(1), 5, 0) == [(0, 64)]


def test_blocks_are_of_a_size_that_disks_like_and_a_window_has_several():
    assert Windows.of(10**6, 8192, 784).block == 334
    assert Windows.of(10**6, 64, 784).block == 4
    assert Windows.of(10**6, 8, 150_528).block == 1


def test_the_inner_order_has_every_row_once_and_differs_by_place():
    windows, key = Windows(1000, 64, 4), random.key(7)
    order = windows.inner(key, 0, 3, 64)
    np.testing.assert_array_equal(np.sort(order), np.arange(64))
    assert (order != windows.inner(key, 0, 4, 64)).any()


def test_windows_that_cannot_be_are_refused():
    with pytest.raises(DelianError, match="by blocks of 9"):
        Windows(10, 8, 9)
    with pytest.raises(DelianError, match="blocks of 1"):
        Windows(1 << 35, 8, 1)
    with pytest.raises(DelianError, match="window 3 of 3"):
        Windows(24, 8, 2).ranges(random.key(1), 0, 3)
