"""A device's own data: every kind of source, how rows fit a bundle, and what is said when not."""

from __future__ import annotations

import os
import sys

import delian as dl
import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.bundle import Leaf
from delian.core.learning.data.fit import MisfitError, examples, fit, row_hashes, row_type
from delian.core.learning.data.rows import DataSettings, Leaves, NoDataError, Rows, RowType
from delian.core.learning.data.sources import check_source, open_source, read_all, version_of


def samples(capacity: int, *row: int, dtype: str = "f32") -> tuple[Leaf, ...]:
    return (
        Leaf("data.x", dtype, (capacity, *row)),
        Leaf("data.y", "i32", (capacity,)),
        Leaf("data.support", "i64", ()),
        Leaf("data.query", "i64", ()),
    )


ROW = RowType((4,))


def some_rows(count: int, seed: int = 0) -> Rows:
    rng = np.random.default_rng(seed)
    return Rows(rng.normal(size=(count, 4)).astype(np.float32), np.arange(count) % 3)


# ---------------------------------------------------------------- sources


def test_the_face_of_the_package_hands_out_the_sources():
    assert dl.data.SensorBuffer is dl.data.SensorBuffer
    assert dl.data.open_source is open_source


def test_an_npz_file_gives_its_rows_and_changes_its_version_when_written_anew(tmp_path):
    path = tmp_path / "d.npz"
    np.savez(path, x=np.ones((3, 4), np.float32), y=np.array([0, 1, 2]))
    source = open_source(DataSettings(str(path)))
    first = source.version()
    rows = source.read(ROW)
    assert isinstance(rows, Rows) and rows.x.shape == (3, 4)
    assert source.version() == first
    np.savez(path, x=np.ones((4, 4), np.float32), y=np.array([0, 1, 2, 0]))
    assert source.version() != first


def test_data_may_bring_their_own_split(tmp_path):
    path, rows = tmp_path / "d.npz", some_rows(6)
    judges = np.array([0, 1, 0, 0, 1, 1], bool)
    np.savez(path, x=rows.x, y=rows.y, query=judges)
    given = open_source(DataSettings(str(path))).read(ROW)
    x, y, support, query = fit(given, samples(8, 4), classes=3)
    assert (int(support), int(query)) == (3, 3)
    np.testing.assert_array_equal(x[:3], rows.x[~judges])
    np.testing.assert_array_equal(x[3:6], rows.x[judges])
    np.testing.assert_array_equal(y[3:6], rows.y[judges])
    # Of more rows than there is room for some of each side are kept.
    x, y, support, query = fit(given, samples(4, 4), classes=3)
    assert (int(support), int(query)) == (2, 2)
    assert {tuple(r) for r in x[2:4]} <= {tuple(r) for r in rows.x[judges]}


@pytest.mark.parametrize(
    "split", [np.zeros(5, bool), np.ones((6, 1), bool), np.full(6, 2), np.full(6, -1)]
)
def test_a_split_that_is_none_is_refused(tmp_path, split):
    path, rows = tmp_path / "d.npz", some_rows(6)
    np.savez(path, x=rows.x, y=rows.y, query=split)
    with pytest.raises(DelianError, match="the split `query` is"):
        open_source(DataSettings(str(path))).read(ROW)


@pytest.mark.parametrize("side", [False, True])
def test_a_split_without_rows_on_one_side_is_no_data(side):
    rows = some_rows(6)
    with pytest.raises(NoDataError, match="own split"):
        fit(Rows(rows.x, rows.y, np.full(6, side)), samples(8, 4), classes=3)


def test_an_npz_file_with_the_very_arrays_of_a_bundle_is_taken_as_it_is(tmp_path):
    path = tmp_path / "d.npz"
    wanted = samples(5, 4)
    x = np.arange(20, dtype=np.float32).reshape(5, 4)
    np.savez(path, x=x, y=np.zeros(5, np.int32), support=np.array(3), query=np.array(2))
    given = open_source(DataSettings(str(path))).read(row_type(wanted))
    assert isinstance(given, Leaves)
    made = fit(given, wanted)
    np.testing.assert_array_equal(made[0], x)
    assert (int(made[2]), int(made[3])) == (3, 2)
    assert examples(made, wanted) == 3
    with pytest.raises(MisfitError, match=r"float32\[5, 4\].*f32\[6, 4\]"):
        fit(given, samples(6, 4))


def test_a_csv_file_is_read_with_or_without_names(tmp_path):
    named, plain = tmp_path / "a.csv", tmp_path / "b.csv"
    named.write_text("a,label,b\n1,0,2\n\n3,2,4.5\n")
    plain.write_text("1,2,0\n3,4.5,2\n")
    rows = open_source(DataSettings(str(named), label="label")).read(ROW)
    np.testing.assert_array_equal(rows.x, np.float32([[1, 2], [3, 4.5]]))
    np.testing.assert_array_equal(rows.y, [0, 2])
    again = open_source(DataSettings(str(plain))).read(ROW)
    np.testing.assert_array_equal(again.x, rows.x)
    one = open_source(DataSettings(str(named), label="label", columns=("b",))).read(ROW)
    np.testing.assert_array_equal(one.x, np.float32([[2], [4.5]]))


@pytest.mark.parametrize("text", ["a,b,label,held\n1,2,0,1\n3,4,2,0\n", "1,2,0,1\n3,4,2,0\n"])
def test_a_csv_file_may_have_a_column_that_says_which_rows_judge(tmp_path, text):
    path = tmp_path / "a.csv"
    path.write_text(text)
    rows = open_source(DataSettings(str(path), split="3")).read(ROW)
    np.testing.assert_array_equal(rows.x, np.float32([[1, 2], [3, 4]]))
    np.testing.assert_array_equal(rows.y, [0, 2])
    np.testing.assert_array_equal(rows.query, [1, 0])


@pytest.mark.parametrize(
    ("text", "more", "said"),
    [
        ("1,2,0,1\n3,4,2,yes\n", {}, "line 2: 'yes' in the column of data.split"),
        ("1,2,0,0.5\n", {}, "line 1: '0.5' in the column of data.split"),
        ("1,2,0,1\n", {"label": "3"}, "both data.label and data.split"),
        ("1,2\n", {}, "no column `3`"),
    ],
)
def test_a_csv_file_with_a_bad_split_is_refused(tmp_path, text, more, said):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DelianError, match=said):
        open_source(DataSettings(str(path), split="3", **more)).read(ROW)


def test_text_labels_are_numbered_by_the_owners_list_alone(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1,dog\n2,cat\n")
    rows = open_source(DataSettings(str(path), classes=("cat", "dog"))).read(ROW)
    np.testing.assert_array_equal(rows.y, [1, 0])
    with pytest.raises(DelianError, match=r"label 'cat' is no class\n.*data\.classes"):
        open_source(DataSettings(str(path))).read(ROW)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("1,2,0\n1,0\n", "line 2: 2 fields"),
        ("1,2,0\n1,x,0\n", "line 2: .*'x'"),
        ("1,2,0\n1,2,-1\n", "line 2: the label '-1'"),
        ("1,2,0.5\n", "label '0.5'"),
        ("7\n", "one column"),
        ("1," + "9" * 5000 + "\n", "field larger"),
    ],
)
def test_a_bad_csv_file_is_refused_by_line(tmp_path, text, said):
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DelianError, match=said):
        open_source(DataSettings(str(path))).read(ROW)


def test_what_is_missing_or_empty_is_no_data_and_not_a_fault(tmp_path):
    (tmp_path / "e.csv").write_text("")
    (tmp_path / "photos").mkdir()
    for name in ("e.csv", "none.csv", "none.npz", "nowhere"):
        with pytest.raises(NoDataError):
            open_source(DataSettings(str(tmp_path / name))).read(ROW)
    with pytest.raises(NoDataError, match="has no images"):
        open_source(DataSettings(str(tmp_path / "photos"))).read(RowType((8, 8)))
    with pytest.raises(NoDataError, match="no data source"):
        open_source(DataSettings())


def test_data_beyond_the_owners_limit_is_refused(tmp_path):
    path = tmp_path / "d.npz"
    np.savez_compressed(path, x=np.zeros((1000, 4), np.float32), y=np.zeros(1000, np.int32))
    with pytest.raises(DelianError, match="may take 8000"):
        open_source(DataSettings(str(path), bytes_max=8000)).read(ROW)
    table = tmp_path / "a.csv"
    table.write_text("1,2,0\n" * 100)
    with pytest.raises(DelianError, match="may take 300"):
        read_all(open_source(DataSettings(str(table), bytes_max=300)), ROW)


def test_images_are_made_as_the_bundle_takes_them(tmp_path):
    pillow = pytest.importorskip("PIL.Image", reason="Pillow, the extra `images`, is missing")
    for name, value in (("0", 255), ("1", 0)):
        (tmp_path / name).mkdir()
        pillow.new("RGB", (20, 10), (value, value, value)).save(tmp_path / name / "a.png")
    source = open_source(DataSettings(str(tmp_path)))
    rows = read_all(source, RowType((8, 8, 1), "u8"))
    assert rows.x.shape == (2, 8, 8, 1) and rows.x.dtype == np.uint8
    assert rows.x[0].min() == 255 and rows.x[1].max() == 0
    assert list(rows.y) == [0, 1]
    assert read_all(source, RowType((8, 8, 3), "f32")).x.max() == 1.0
    (tmp_path / "1" / "b.png").write_bytes(b"no image")
    with pytest.raises(DelianError, match=r"b\.png is no image"):
        read_all(open_source(DataSettings(str(tmp_path))), RowType((8, 8)))


def test_a_function_of_the_owner_gives_rows_or_a_source_and_its_faults_are_named(
    tmp_path, monkeypatch
):
    (tmp_path / "owners_data.py").write_text(
        "import numpy as np\n"
        "def pair():\n    return np.ones((2, 4)), np.array([0, 1])\n"
        "def wrong():\n    return 7\n"
        "def fails():\n    raise KeyError('pump')\n"
        "class Mine:\n"
        "    def version(self):\n        return 5\n"
        "    def read(self, row):\n        return pair()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert open_source(DataSettings("python:owners_data:pair")).read(ROW).x.shape == (2, 4)
    assert open_source(DataSettings("python:owners_data:Mine")).version() == 5
    for name, said in (
        ("python:owners_data:wrong", "gave int"),
        ("python:owners_data:fails", "KeyError: 'pump'"),
        ("python:owners_data:none", "has no function none"),
        ("python:not_there_at_all:f", "importing not_there_at_all failed"),
        ("python:owners_data", "names no function"),
        ("entry:nobody", "offers the data source nobody"),
    ):
        with pytest.raises(DelianError, match=said):
            open_source(DataSettings(name)).read(ROW)
    sys.modules.pop("owners_data", None)


def test_asking_for_a_version_never_runs_the_owners_code(tmp_path):
    assert version_of(DataSettings("python:module_that_would_fail:f")) is None
    assert version_of(DataSettings(str(tmp_path / "none.npz"))) is None


# ---------------------------------------------------------------- the sensor's buffer


def test_a_sensor_appends_and_the_oldest_rows_go_when_the_buffer_is_full(tmp_path):
    buffer = dl.data.SensorBuffer(tmp_path / "s", (4,), bytes_max=24 * 80)
    source = open_source(DataSettings(f"sensor:{tmp_path / 's'}"))
    with pytest.raises(NoDataError):
        source.read(ROW)
    for i in range(200):
        buffer.append([i, i, i, i], i % 3)
    rows = source.read(ROW)
    kept = rows.x[:, 0].astype(int)
    assert 60 <= len(kept) <= 80
    assert list(kept) == list(range(200 - len(kept), 200)), "the newest, in order"
    np.testing.assert_array_equal(rows.y, kept % 3)
    assert source.version() == 200
    assert sum(p.stat().st_size for p in (tmp_path / "s").glob("*.rows")) < 24 * 80 + 8 * 100


def test_a_buffer_persists_and_refuses_rows_of_another_kind(tmp_path):
    dl.data.SensorBuffer(tmp_path, (2,)).append([1, 2], 0)
    again = dl.data.SensorBuffer(tmp_path, (2,), durable=True)
    again.append([3, 4], 1)
    rows = open_source(DataSettings(f"sensor:{tmp_path}")).read(ROW)
    np.testing.assert_array_equal(rows.x, [[1, 2], [3, 4]])
    with pytest.raises(DelianError, match=r"holds rows of f32\[2\]"):
        dl.data.SensorBuffer(tmp_path, (3,))
    for x, y in (([1], 0), ([1, float("nan")], 0), ([1, 2], -1)):
        with pytest.raises(DelianError):
            again.append(x, y)


def test_a_torn_record_is_left_out_and_written_over(tmp_path):
    buffer = dl.data.SensorBuffer(tmp_path, (2,))
    buffer.append([1, 2], 0)
    buffer.append([3, 4], 1)
    (segment,) = tmp_path.glob("*.rows")
    os.truncate(segment, segment.stat().st_size - 3)
    source = open_source(DataSettings(f"sensor:{tmp_path}"))
    assert len(source.read(ROW).y) == 1
    buffer.append([5, 6], 2)
    np.testing.assert_array_equal(source.read(ROW).x, [[1, 2], [5, 6]])
    content = bytearray(segment.read_bytes())
    content[-10] ^= 1
    segment.write_bytes(content)
    assert len(source.read(ROW).y) == 1
    segment.write_bytes(b"something else")
    with pytest.raises(DelianError, match="no segment of a sensor buffer"):
        source.read(ROW)


# ---------------------------------------------------------------- rows as a bundle takes them


def test_rows_are_split_by_their_content_so_that_none_changes_sides_when_others_come():
    wanted = samples(64, 4)
    few, more = some_rows(20), some_rows(20)
    late = some_rows(20, seed=9)
    more = Rows(np.concatenate([late.x, few.x]), np.concatenate([late.y, few.y]))

    def sides(rows: Rows) -> dict[int, bool]:
        x, y, support, query = fit(rows, wanted)
        hashes = row_hashes(x, y)
        assert not x[int(support) + int(query) :].any()
        return {int(h): i < support for i, h in enumerate(hashes[: int(support) + int(query)])}

    before, after = sides(few), sides(more)
    assert len(before) == 20 and len(after) == 40
    assert all(after[h] == side for h, side in before.items())
    assert sides(few) == before, "the same after a restart"


@pytest.mark.parametrize("count", [2, 3, 5, 16, 17, 100])
def test_each_side_has_a_row_and_no_more_are_taken_than_fit(count):
    x, y, support, query = fit(some_rows(count), samples(16, 4))
    assert x.shape == (16, 4) and y.shape == (16,)
    assert support >= 1 and query >= 1
    assert support + query == min(count, 16)


def test_flat_rows_are_folded_and_axes_of_one_come_and_go():
    rows = Rows(np.arange(24, dtype=np.float32).reshape(2, 12), np.array([0, 1]))
    assert fit(rows, samples(4, 3, 4, 1))[0].shape == (4, 3, 4, 1)
    square = Rows(np.zeros((2, 3, 4), np.uint8), np.array([0, 1]))
    assert fit(square, samples(4, 3, 4, 1, dtype="u8"))[0].dtype == np.uint8
    with pytest.raises(MisfitError, match=r"\[3, 4\], and the bundle takes \[4, 3\]"):
        fit(square, samples(4, 4, 3, dtype="u8"))


def test_what_does_not_fit_is_said_with_both_sides():
    with pytest.raises(MisfitError, match=r"rows are \[4\], and the bundle takes \[5\]"):
        fit(some_rows(4), samples(8, 5))
    with pytest.raises(MisfitError, match="float32, and the bundle takes u8"):
        fit(some_rows(4), samples(8, 4, dtype="u8"))
    with pytest.raises(MisfitError, match=r"row 2 has a label.*has 2 labels"):
        fit(some_rows(4), samples(8, 4), classes=2)
    broken = some_rows(4)
    broken.x[3, 1] = np.inf
    with pytest.raises(MisfitError, match="row 3 holds a number that is not finite"):
        fit(broken, samples(8, 4))
    with pytest.raises(NoDataError, match="1 examples"):
        fit(some_rows(1), samples(8, 4))
    with pytest.raises(DelianError, match="as many labels"):
        Rows(np.zeros((2, 4)), np.zeros(3))


def numbers(capacity: int, *learnt: int) -> tuple[Leaf, ...]:
    made = samples(capacity, 4)
    return (made[0], Leaf("data.y", "f32", (capacity, *learnt)), *made[2:])


@pytest.mark.parametrize(
    "y", [np.linspace(-3, 2.5, 6), np.arange(6), np.linspace(0, 1, 6)[:, None]]
)
def test_a_device_learns_numbers_of_its_rows(y):
    rows = Rows(some_rows(6).x, y)
    x, found, support, query = fit(rows, numbers(8), classes=1)
    assert found.dtype == np.float32 and found.shape == (8,) and support + query == 6
    told = dict(zip(map(bytes, x[:6]), found, strict=False))
    for row, number in zip(rows.x, y.ravel(), strict=True):
        assert told[bytes(row)] == np.float32(number)


def test_numbers_that_do_not_fit_are_refused():
    x = some_rows(6).x
    for y, said in (
        (np.ones((6, 2)), r"float64\[6, 2\], and the bundle takes f32\[8\]"),
        (np.array([1, 2, 3, 4, 5, np.nan]), "row 5 holds a number that is not finite"),
        (np.array(list("abcdef")), "numbers to learn are <U1"),
    ):
        with pytest.raises(MisfitError, match=said):
            fit(Rows(x, y), numbers(8))
    assert fit(Rows(x, np.ones((6, 2))), numbers(8, 2))[1].shape == (8, 2)


def test_a_csv_file_holds_numbers_to_learn_where_the_run_learns_numbers(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("a,b,price\n1,2,-3.5\n4,5,6e3\n")
    row = row_type((Leaf("data.x", "f32", (5, 2)), *numbers(5)[1:]))
    assert row.numbers and not row_type(samples(5, 2)).numbers
    rows = open_source(DataSettings(str(path), label="price")).read(row)
    np.testing.assert_array_equal(rows.y, np.float32([-3.5, 6000]))
    path.write_text("a,b,price\n1,2,cheap\n")
    with pytest.raises(DelianError, match=r"line 2: could not convert.*cheap"):
        open_source(DataSettings(str(path))).read(row)


def test_labelled_images_become_a_table_of_episodes():
    wanted = (Leaf("data.images", "u8", (3, 2, 5, 5)), Leaf("data.characters", "i64", ()))
    assert row_type(wanted).shape == (5, 5)
    x = np.arange(5, dtype=np.uint8)[:, None, None] * np.ones((1, 5, 5), np.uint8)
    table, characters = fit(Rows(x, np.array([4, 7, 4, 7, 9])), wanted)
    assert int(characters) == 2, "label 9 has too few drawings"
    assert [int(table[c, d, 0, 0]) for c in range(2) for d in range(2)] == [0, 2, 1, 3]
    with pytest.raises(NoDataError, match="2 examples"):
        fit(Rows(x[:1], np.array([1])), wanted)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(DelianError, match="query_fraction"):
        DataSettings(query_fraction=1.0)
    with pytest.raises(DelianError, match="bytes_max"):
        DataSettings(bytes_max=0)


# ---------------------------------------------------------------- before anything is read


class TestCheck:
    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("nofile.csv", "there is no"),
            ("nofile.npz", "there is no"),
            ("rows.txt", "is no data source"),
            ("empty", "holds no images"),
            ("python:no_such_module:rows", "there is no module no_such_module"),
            ("python:os", "names no function"),
            ("entry:no-such-source", "no installed package offers"),
        ],
    )
    def test_a_source_that_cannot_give_rows_is_refused(self, tmp_path, source, says):
        (tmp_path / "empty").mkdir()
        named = source if ":" in source else str(tmp_path / source)
        with pytest.raises(DelianError, match=says):
            check_source(DataSettings(named))

    def test_an_archive_without_arrays_is_refused(self, tmp_path):
        np.savez(tmp_path / "none.npz")
        with pytest.raises(DelianError, match="has no arrays"):
            check_source(DataSettings(str(tmp_path / "none.npz")))

    def test_what_only_few_bundles_take_is_said(self, tmp_path):
        np.savez(tmp_path / "odd.npz", image=np.zeros(3), label=np.zeros(3))
        assert "no x and y, only image, label" in check_source(
            DataSettings(str(tmp_path / "odd.npz"))
        )
        assert "no data source is named" in check_source(DataSettings(""))
        assert "nothing is appended" in check_source(DataSettings(f"sensor:{tmp_path / 'later'}"))

    def test_a_good_one_passes_and_the_owner_s_code_does_not_run(self, tmp_path, monkeypatch):
        np.savez(tmp_path / "good.npz", x=np.zeros((2, 4)), y=np.zeros(2))
        (tmp_path / "rows.csv").write_text("1,2,3,4,0\n")
        (tmp_path / "loud_rows.py").write_text("raise SystemExit('it ran')\n")
        monkeypatch.syspath_prepend(tmp_path)
        names = [str(tmp_path / "good.npz"), str(tmp_path / "rows.csv"), "python:loud_rows:give"]
        assert [check_source(DataSettings(name)) for name in names] == ["", "", ""]
