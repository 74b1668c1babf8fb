"""Packed files: what goes in comes out, and damage is found, named and never read as data."""

from __future__ import annotations

import json
import struct
import zipfile

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.formats.array_rows import ArrayRows
from delian.core.learning.data.packed import packed_layout, packed_writer
from delian.core.learning.data.packed.packed_check import check_packed, packed_facts
from delian.core.learning.data.packed.packed_layout import ABOUT, block_rows
from delian.core.learning.data.packed.packed_rows import PackedRows, is_packed
from delian.core.learning.data.packed.packed_writer import pack


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return ArrayRows(
        rng.normal(size=(1000, 3, 2)).astype(np.float32),
        rng.integers(0, 7, 1000).astype(np.int32),
        rng.random(1000) < 0.2,
    )


@pytest.fixture
def packed(rows, tmp_path, monkeypatch):
    """1000 rows in blocks of 100."""
    monkeypatch.setattr(packed_writer, "block_rows", lambda rows, row_bytes: 100)
    pack(rows, tmp_path / "rows.npz")
    return tmp_path / "rows.npz"


def damaged(path, at, name="damaged.npz"):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    other = path.with_name(name)
    other.write_bytes(content)
    return other


def place_of(path, member):
    """Where the bytes of a member begin."""
    with zipfile.ZipFile(path) as archive:
        info = archive.getinfo(member)
    return info.header_offset + 30 + len(member)


def test_rows_come_back_as_they_were(rows, packed):
    stored = PackedRows(packed)
    assert stored.rows == 1000
    assert stored.row_type() == rows.row_type()
    for start, stop in ((0, 1000), (99, 101), (250, 260), (990, 1000), (250, 260)):
        found, want = stored.read(start, stop), rows.read(start, stop)
        for name in ("x", "y", "query"):
            np.testing.assert_array_equal(getattr(found, name), getattr(want, name))


def test_any_rows_are_gathered(rows, packed):
    stored = PackedRows(packed)
    for numbers in ([5], [5, 6, 7], [99, 100, 500], [700, 3, 3, 701, 0], list(range(999, 0, -7))):
        found = stored.gather(np.array(numbers))
        for name in ("x", "y", "query"):
            np.testing.assert_array_equal(getattr(found, name), getattr(rows.all, name)[numbers])
    for numbers, said in (
        ([], "no rows were asked for"),
        ([3, 1000], "no rows"),
        ([-1], "no rows"),
    ):
        with pytest.raises(DelianError, match=said):
            stored.gather(np.array(numbers, np.int64))


def test_numpy_and_zip_read_the_file(rows, packed):
    with np.load(packed) as arrays:
        np.testing.assert_array_equal(arrays["x/00003"], rows.all.x[300:400])
    assert zipfile.ZipFile(packed).testzip() is None


def test_equal_rows_give_equal_files(rows, packed, tmp_path):
    pack(rows, tmp_path / "again.npz")
    assert (tmp_path / "again.npz").read_bytes() == packed.read_bytes()


def test_a_whole_file_has_no_faults(packed):
    found = check_packed(packed)
    assert (found.lost, found.faults, found.about.rows) == ((), (), 1000)
    assert packed_facts(packed)["columns"]["x"] == {"shape": [3, 2], "dtype": "<f4"}


def test_a_damaged_block_is_refused_and_the_others_are_read(rows, packed):
    bad = damaged(packed, place_of(packed, "x/00004.npy") + 500)
    stored = PackedRows(bad)
    np.testing.assert_array_equal(stored.read(0, 400).x, rows.all.x[:400])
    for _ in range(2):
        with pytest.raises(DelianError, match=r"rows 400\.\.499 of x are damaged"):
            stored.read(450, 451)
    assert check_packed(bad).lost == ((400, 500),)


def test_a_block_of_another_shape_is_refused(packed, tmp_path, rows):
    other = ArrayRows(rows.all.x[:, :2], rows.all.y, rows.all.query)
    pack(other, tmp_path / "other.npz")
    content = bytearray((tmp_path / "other.npz").read_bytes())
    with zipfile.ZipFile(packed) as archive:
        about = archive.read(ABOUT)
    with zipfile.ZipFile(tmp_path / "other.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name != ABOUT}
    with zipfile.ZipFile(tmp_path / "mixed.npz", "w") as archive:
        archive.writestr(ABOUT, about)
        for name, value in members.items():
            archive.writestr(name, value)
    assert content
    with pytest.raises(DelianError, match=r"24 bytes for each of rows 0\.\.99 of x, and has 1728"):
        PackedRows(tmp_path / "mixed.npz")
    assert check_packed(tmp_path / "mixed.npz").lost == ((0, 1000),)


@pytest.mark.parametrize("share", [0.999, 0.5, 0.25])
def test_a_torn_file_says_which_rows_are_lost(packed, share):
    torn = packed.with_name("torn.npz")
    torn.write_bytes(packed.read_bytes()[: int(packed.stat().st_size * share)])
    with pytest.raises(DelianError, match="no whole packed file"):
        PackedRows(torn)
    found = check_packed(torn)
    assert found.faults
    if share < 0.9:
        assert found.lost == ((int(share * 10) * 100, 1000),)


def test_a_missing_block_is_named(packed, tmp_path):
    with zipfile.ZipFile(packed) as archive, zipfile.ZipFile(tmp_path / "less.npz", "w") as less:
        for name in archive.namelist():
            if name != "y/00007.npy":
                less.writestr(name, archive.read(name))
    with pytest.raises(DelianError, match="10 blocks of y and has 9"):
        PackedRows(tmp_path / "less.npz")
    assert check_packed(tmp_path / "less.npz").lost == ((700, 800),)


def test_a_file_that_is_rewritten_while_it_is_read_is_refused(packed):
    stored = PackedRows(packed)
    stored.read(0, 10)
    packed.write_bytes(packed.read_bytes() + b" ")
    with pytest.raises(DelianError, match="changed while it was read"):
        stored.read(10, 20)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rows", 1 << 50),
        ("rows", -1),
        ("rows", "many"),
        ("block", 0),
        ("block", 1),
        ("format", "another"),
        ("columns", {"x": {"shape": [3], "dtype": "<f4"}}),
        (
            "columns",
            {"x": {"shape": [1 << 31, 8], "dtype": "<f4"}, "y": {"shape": [], "dtype": "O"}},
        ),
        ("columns", []),
        ("classes", 3),
    ],
)
def test_what_a_file_says_of_itself_is_limited(packed, tmp_path, key, value):
    with zipfile.ZipFile(packed) as archive:
        about = json.loads(archive.read(ABOUT))
    if (key, value) == ("block", 1):
        about["rows"] = packed_layout.BLOCKS_MAX + 1
    with zipfile.ZipFile(tmp_path / "odd.npz", "w") as archive:
        archive.writestr(ABOUT, json.dumps({**about, key: value}))
    with pytest.raises(DelianError, match="nothing sensible"):
        PackedRows(tmp_path / "odd.npz")


def test_a_directory_that_declares_much_is_not_allocated(packed, tmp_path):
    content = bytearray(packed.read_bytes())
    content[-10:-6] = struct.pack("<L", 0xFFFFFFF0)
    (tmp_path / "odd.npz").write_bytes(content)
    with pytest.raises(DelianError, match="directory would have"):
        PackedRows(tmp_path / "odd.npz")


def test_any_damaged_byte_is_an_error_or_harmless(packed, rows):
    """Never other rows: those that are read equal the ones that were packed."""
    size = packed.stat().st_size
    for at in range(0, size, max(1, size // 150)):
        bad = damaged(packed, at)
        try:
            found = PackedRows(bad).read(0, 1000)
        except DelianError:
            continue
        np.testing.assert_array_equal(found.x, rows.all.x)
        np.testing.assert_array_equal(found.y, rows.all.y)


def test_other_files_are_no_packed_files(tmp_path):
    np.savez(tmp_path / "plain.npz", x=np.zeros(3), y=np.zeros(3))
    (tmp_path / "empty.npz").write_bytes(b"")
    for name in ("plain.npz", "empty.npz", "none.npz"):
        assert not is_packed(tmp_path / name)
        with pytest.raises(DelianError):
            check_packed(tmp_path / name)


def test_a_source_that_changes_its_type_is_refused_and_leaves_no_file(tmp_path, monkeypatch):
    class Changing(ArrayRows):
        def read(self, start, stop):
            found = super().read(start, stop)
            return found if start == 0 else ArrayRows(found.x.astype(np.float64), found.y).all

    monkeypatch.setattr(packed_writer, "block_rows", lambda rows, row_bytes: 10)
    with pytest.raises(DelianError, match=r"rows 10\.\.19 have another `x`"):
        pack(Changing(np.zeros((20, 2), np.float32), np.zeros(20, np.int32)), tmp_path / "a.npz")
    assert not list(tmp_path.iterdir())


def test_blocks_are_about_a_mebibyte_and_not_too_many():
    assert block_rows(10, 100) == 10
    assert block_rows(1 << 20, 1 << 10) == 1 << 10
    assert block_rows(1 << 20, 100 << 20) == 1 << 6
    assert -(-(1 << 40) // block_rows(1 << 40, 1)) <= packed_layout.BLOCKS_MAX
