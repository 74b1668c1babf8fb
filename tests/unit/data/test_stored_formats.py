"""Rows of each format by ranges: equal to what was written, or a clear error."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.csv_rows import CsvSource
from delian.core.learning.data.formats import csv_blocks
from delian.core.learning.data.formats.array_rows import ArrayRows, Joined, gather
from delian.core.learning.data.formats.file_ranges import FileRanges
from delian.core.learning.data.formats.opened_rows import open_rows
from delian.core.learning.data.rows import DataSettings, NoDataError, RowType

RANGES = ((0, 1), (3, 9), (0, 700), (255, 258), (511, 700))


@pytest.fixture
def arrays():
    rng = np.random.default_rng(1)
    return rng.normal(size=(700, 4)).astype(np.float32), rng.integers(0, 5, 700).astype(np.int32)


def equal(stored, x, y):
    assert stored.rows == len(x)
    for start, stop in RANGES:
        found = stored.read(start, stop)
        np.testing.assert_array_equal(found.x, x[start:stop])
        np.testing.assert_array_equal(found.y, y[start:stop])
        assert found.x.dtype == x.dtype
    picked = np.array([5, 699, 0, 256, 257, 5])
    np.testing.assert_array_equal(gather(stored, picked).x, x[picked])
    for start, stop in ((0, 701), (-1, 3), (5, 5)):
        with pytest.raises(DelianError, match="no rows"):
            stored.read(start, stop)


# ---------------------------------------------------------------- arrays, shards, ranges


def test_arrays_and_shards(arrays, tmp_path):
    x, y = arrays
    equal(open_rows((x, y)), x, y)
    equal(Joined([ArrayRows(x[:300], y[:300]), ArrayRows(x[300:], y[300:])], "shards"), x, y)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    equal(open_rows(tmp_path), x, y)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    equal(open_rows(tmp_path / "a.npz"), x, y)


def test_shards_of_other_rows_are_refused(arrays):
    x, y = arrays
    with pytest.raises(DelianError, match="rows of shard 1 are f32"):
        Joined([ArrayRows(x, y), ArrayRows(x[:, :2], y)], "shards")


def test_a_file_that_shrinks_or_changes_is_refused(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    file = FileRanges(path)
    version = file.version()
    assert file.read(990, 10) == bytes(10)
    with pytest.raises(DelianError, match="has 1000 bytes, and bytes 990"):
        file.read(990, 11)
    path.write_bytes(bytes(999))
    assert file.version() != version
    with pytest.raises(DelianError, match="changed while it was read"):
        file.read(0, 10)
    path.unlink()
    assert file.version() is None
    with pytest.raises(DelianError, match="cannot read"):
        file.read(0, 10)


@pytest.mark.parametrize("name", ["none.csv", "none.parquet", "none.tar", "none.npz", "none"])
def test_missing_data_is_named(tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    with pytest.raises(DelianError, match="none"):
        open_rows(tmp_path / name)


# ---------------------------------------------------------------- CSV


def written(path, x, y, end="\n", head="a,b,c,d,label\n"):
    lines = [
        ",".join([*(repr(float(v)) for v in row), str(label)])
        for row, label in zip(x, y, strict=True)
    ]
    path.write_text(head + end.join(lines) + end, newline="")
    return path


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("chunk", [1 << 22, 1000])
def test_csv_by_ranges_is_csv_as_a_whole(arrays, tmp_path, end, chunk, monkeypatch):
    monkeypatch.setattr(csv_blocks, "_CHUNK_BYTES", chunk)
    path = written(tmp_path / "a.csv", *arrays, end)
    equal(open_rows(path), *arrays)
    whole = CsvSource(path, DataSettings()).read(RowType((4,)))
    np.testing.assert_array_equal(open_rows(path).read(0, 700).x, whole.x)


def test_csv_with_quotes_blank_lines_and_no_last_line_end(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('name,v,label\n"1",2,0\n\n\n"3",4,1\n\n5,"6",0')
    stored = open_rows(path)
    assert stored.rows == 3
    np.testing.assert_array_equal(stored.read(0, 3).x, [[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(stored.read(1, 3).y, [1, 0])


def test_csv_with_text_labels(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("v,kind\n" + "".join(f"{k},{'cat' if k % 2 else 'dog'}\n" for k in range(600)))
    stored = open_rows(path, classes=("dog", "cat"))
    np.testing.assert_array_equal(stored.read(300, 304).y, [0, 1, 0, 1])
    with pytest.raises(DelianError, match=r"line 2: the label 'dog' is no class"):
        open_rows(path)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("1,2\n", "line 301: 2 fields, and the first line has 5"),
        ("1,2,3,4,5,6\n", "line 301: 6 fields"),
        ("1,2,x,4,0\n", "line 301: could not convert"),
        ("1,2,3,4,-1\n", "line 301: the label '-1' is no class"),
        ("1,2,3,4,0.5\n", "line 301: the label"),
        ("1,2,3,4,\n", "line 301: the label"),
        ("1,2,3\r4,5,0\n", "carriage return"),
    ],
)
def test_csv_that_is_wrong_is_named_by_line(tmp_path, line, match):
    path = tmp_path / "a.csv"
    path.write_bytes(("a,b,c,d,e\n" + "1,2,3,4,0\n" * 299 + line + "1,2,3,4,0\n" * 9).encode())
    stored = open_rows(path)
    with pytest.raises(DelianError, match=match):
        stored.read(290, 305)


def test_csv_that_is_cut_within_quotes_or_has_no_lines(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('v,label\n1,0\n2,"0')
    with pytest.raises(DelianError, match="ends within quotes"):
        open_rows(path)
    path.write_text("v,label\n")
    with pytest.raises(NoDataError):
        open_rows(path)


def test_csv_without_lines_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_blocks, "LINE_BYTES_MAX", 1000)
    monkeypatch.setattr(csv_blocks, "_CHUNK_BYTES", 512)
    path = tmp_path / "a.csv"
    path.write_text("v,label\n1,0\n" + "1" * 5000)
    with pytest.raises(DelianError, match="more than 1000 bytes"):
        open_rows(path)


# ---------------------------------------------------------------- images and tars


@pytest.fixture
def photos(tmp_path):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(2)
    for k in range(9):
        folder = tmp_path / "photos" / ("cat", "dog", "eel")[k % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (20, 24, 3)).astype(np.uint8)
        image.fromarray(pixels).save(folder / f"{k}.{'png' if k % 2 else 'jpg'}")
    return tmp_path / "photos"


def test_folders_of_images_are_those_of_the_whole_source(photos):
    from delian.core.learning.data.images import ImageFolder

    for shape in ((20, 24, 3), (8, 8, 3), (8, 8, 1), (20, 24)):
        stored = open_rows(photos, shape=shape)
        assert (stored.rows, stored.classes) == (9, ("cat", "dog", "eel"))
        settings = DataSettings(classes=("cat", "dog", "eel"))
        want = ImageFolder(photos, settings).read(RowType(shape, "u8"))
        np.testing.assert_array_equal(stored.read(0, 9).x, want.x)
        np.testing.assert_array_equal(stored.read(2, 7).y, want.y[2:7])
    assert open_rows(photos, dtype="f32").read(0, 2).x.max() <= 1.0


def test_images_that_are_none_are_named(photos):
    (photos / "cat" / "0.jpg").write_bytes(b"\xff\xd8\xff no image")
    stored = open_rows(photos, shape=(8, 8, 3))
    with pytest.raises(DelianError, match=r"0\.jpg is no image"):
        stored.read(0, 3)
    (photos / "dog" / "1.png").unlink()
    with pytest.raises(DelianError, match=r"1\.png has gone since"):
        stored.read(3, 6)
    with pytest.raises(DelianError, match="holds images"):
        open_rows(photos, shape=(8, 8, 4))
    with pytest.raises(NoDataError, match="no images"):
        open_rows(photos / "cat")


def tar_of(path, members, format=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=format) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def npy(array):
    stream = io.BytesIO()
    np.save(stream, np.asarray(array))
    return stream.getvalue()


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
def test_tars_of_arrays(arrays, tmp_path, format):
    x, y = arrays
    folder = "l" * (90 if format == tarfile.USTAR_FORMAT else 150)
    members = [("readme.md", b"not a row")]
    for k in range(700):
        members.append((f"{folder}/{k:06}.x.npy", npy(x[k])))
        members.append((f"{folder}/{k:06}.y.npy", npy(y[k])))
    path = tar_of(tmp_path / "a.tar", members, format)
    equal(open_rows(path), x, y)
    version = open_rows(path).version()
    tar_of(tmp_path / "b.tar", members, format)
    assert open_rows(tmp_path).rows == 1400
    assert open_rows(tmp_path).version() != version


def test_tars_of_images_and_labels_of_each_kind(photos, tmp_path):
    png = (photos / "dog" / "1.png").read_bytes()
    for ending, label in (("cls", b"2"), ("json", b'{"label": 2}'), ("txt", b"eel")):
        members = [(f"{k}.{e}", c) for k in range(3) for e, c in (("png", png), (ending, label))]
        path = tar_of(tmp_path / f"{ending}.tar", members)
        stored = open_rows(path, classes=("cat", "dog", "eel") if ending == "txt" else ())
        found = stored.read(0, 3)
        assert found.x.shape == (3, 20, 24, 3)
        np.testing.assert_array_equal(found.y, [2, 2, 2])


def test_torn_and_wrong_tars_are_named_by_byte_or_row(tmp_path):
    members = [(f"{k}.{e}", npy(k)) for k in range(5) for e in ("x.npy", "y.npy")]
    path = tar_of(tmp_path / "a.tar", members)
    content = path.read_bytes()
    for size, match in ((5200, "no end mark at byte 5120 of 5200"), (5120, "no end mark")):
        path.write_bytes(content[:size])
        with pytest.raises(DelianError, match=f"no whole tar: {match}"):
            open_rows(path)
    path.write_bytes(content[:5700])
    with pytest.raises(DelianError, match=r"no whole tar: a file of \d+ bytes at byte 5120"):
        open_rows(path)
    path.write_bytes(content[:1030] + b"?" + content[1031:])
    with pytest.raises(DelianError, match="no header with its checksum at byte 1024"):
        open_rows(path)
    path.write_bytes(b"")
    with pytest.raises(DelianError):
        open_rows(path)
    tar_of(path, members[:-1])
    with pytest.raises(DelianError, match=r"'/4' \(row 4\) has no \.y\.npy"):
        open_rows(path)
    tar_of(path, [*members[:-2], ("4.x.npy", npy([1.0, 2.0])), ("4.y.npy", npy(0))])
    with pytest.raises(DelianError, match=r"row 4 \(byte \d+\) is float64\[2\]"):
        open_rows(path).read(0, 5)
    tar_of(path, [*members[:-2], ("4.x.npy", b"\x93NUMPY junk"), ("4.y.npy", npy(0))])
    with pytest.raises(DelianError, match=r"row 4 .*: no array"):
        open_rows(path).read(0, 5)


# ---------------------------------------------------------------- Arrow


def test_parquet_by_groups(arrays, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    x, y = arrays
    table = pa.table({"v": list(x), "label": y})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=200)
    equal(open_rows(tmp_path / "a.parquet"), x, y)
    columns = {f"c{k}": x[:, k] for k in range(4)}
    pq.write_table(pa.table({**columns, "label": y}), tmp_path / "a.parquet", row_group_size=64)
    equal(open_rows(tmp_path / "a.parquet"), x, y)
    equal(open_rows(tmp_path), x, y)
    fixed = pa.FixedSizeListArray.from_arrays(x.reshape(-1), 4)
    pq.write_table(pa.table({"label": y, "v": fixed}), tmp_path / "a.parquet")
    equal(open_rows(tmp_path / "a.parquet"), x, y)
    names = pa.array([("a", "b", "c", "d", "e")[k] for k in y])
    pq.write_table(pa.table({"v": fixed, "label": names}), tmp_path / "a.parquet")
    equal(open_rows(tmp_path / "a.parquet", classes=("a", "b", "c", "d", "e")), x, y)


def test_parquet_of_a_wrong_schema_or_torn(arrays, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "label": [0, 1]}), path)
    with pytest.raises(DelianError, match="no column of features"):
        open_rows(path)
    with pytest.raises(DelianError, match="no column `other`"):
        open_rows(path, label="other")
    pq.write_table(pa.table({"v": [1.0, None], "label": [0, 1]}), path)
    with pytest.raises(DelianError, match="row 1 has no `v`"):
        open_rows(path).read(0, 2)
    pq.write_table(pa.table({"v": [[1.0, 2.0], [1.0]], "label": [0, 1]}), path)
    with pytest.raises(DelianError, match="row 1 has another length"):
        open_rows(path).read(0, 2)
    pq.write_table(pa.table({"v": [1.0, 2.0], "label": [0, 1]}), path)
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    with pytest.raises(DelianError, match=r"no end mark at byte \d+ of \d+"):
        open_rows(path)
    pq.write_table(
        pa.table({"v": pa.array([], pa.float32()), "label": pa.array([], pa.int32())}), path
    )
    with pytest.raises(NoDataError, match="no rows"):
        open_rows(path)


def test_damaged_parquet_is_an_error(arrays, tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    x, y = arrays
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"v": list(x), "label": y}), path, write_page_checksum=True)
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for at in rng.integers(4, len(content), 40).tolist():
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x55]) + content[at + 1 :])
        try:
            open_rows(path).read(0, 700)
        except DelianError:
            continue


def test_folders_that_datasets_saved(arrays, tmp_path):
    datasets = pytest.importorskip("datasets")
    x, y = arrays
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_dict({"v": list(x), "label": y})
    data = data.cast_column("v", datasets.Sequence(datasets.Value("float32")))
    data.save_to_disk(tmp_path / "hf", num_shards=3)
    equal(open_rows(tmp_path / "hf"), x, y)
    equal(open_rows(data), x, y)
    equal(open_rows(data.shuffle(seed=1).select(range(700)).sort("label")), *sorted_by(x, y, data))
    shard = next((tmp_path / "hf").glob("*00001-of*.arrow"))
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(DelianError, match="00001"):
        open_rows(tmp_path / "hf")
    shard.unlink()
    with pytest.raises(NoDataError, match="00001"):
        open_rows(tmp_path / "hf")


def sorted_by(x, y, data):
    order = np.array(data.add_column("n", range(len(x))).shuffle(seed=1).sort("label")["n"])
    return x[order], y[order]


def test_images_of_datasets(photos):
    datasets = pytest.importorskip("datasets")
    files = sorted(str(p) for p in photos.rglob("*.*"))
    data = datasets.Dataset.from_dict({"image": files, "label": list(range(9))})
    data = data.cast_column("image", datasets.Image(decode=False))
    with pytest.raises(DelianError, match="not in the file"):
        open_rows(data)
    data = data.map(lambda row: {"image": {"bytes": Path(row["image"]["path"]).read_bytes()}})
    found = open_rows(data).read(2, 5)
    want = open_rows(photos, shape=(20, 24, 3)).read(2, 5)
    np.testing.assert_array_equal(found.x, want.x)
    np.testing.assert_array_equal(found.y, [2, 3, 4])


def test_tars_that_webdataset_wrote(arrays, tmp_path):
    webdataset = pytest.importorskip("webdataset")
    x, y = arrays
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for k in range(700):
            writer.write({"__key__": f"{k:06}", "x.npy": x[k], "cls": int(y[k])})
    equal(open_rows(tmp_path / "a.tar"), x, y)


@pytest.mark.parametrize(
    "state",
    [
        "[]",
        "{}",
        '{"_data_files": [{"filename": "../other.arrow"}]}',
        '{"_data_files": [{"filename": 3}]}',
        '{"_data_files": [{"filename": "a"}], "_indices_data_files": ["i"]}',
        "{" * 10_000,
    ],
)
def test_folders_whose_state_makes_no_sense_are_refused(tmp_path, state):
    (tmp_path / "state.json").write_text(state)
    with pytest.raises(DelianError):
        open_rows(tmp_path)


def test_a_folder_of_splits_names_them(tmp_path):
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    with pytest.raises(DelianError, match="train, test"):
        open_rows(tmp_path)


# ---------------------------------------------------------------- objects


class Pairs:
    """A map-style data set, as PyTorch's are."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, k):
        return self.x[k], self.y[k]


def test_map_style_data_sets_and_sequences(arrays):
    x, y = arrays
    equal(open_rows(Pairs(x, y)), x, y)
    equal(open_rows(list(zip(x, y, strict=True))), x, y)
    equal(open_rows([{"image": a, "label": b} for a, b in zip(x, y, strict=True)]), x, y)


def test_torch_data_sets(arrays):
    torch = pytest.importorskip("torch")
    x, y = arrays
    data = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    equal(open_rows(data), x, y)
    equal(open_rows(torch.utils.data.Subset(data, range(700))), x, y)


def test_data_sets_that_cannot_be_read_by_row(arrays):
    x, y = arrays
    with pytest.raises(DelianError, match="has no length"):
        open_rows(iter([(1, 2)]))
    with pytest.raises(NoDataError, match="has no rows"):
        open_rows([])
    with pytest.raises(DelianError, match="row 0 of list is int"):
        open_rows([1, 2])
    with pytest.raises(DelianError, match=r"row 1 of list has x float64\[2\]"):
        open_rows([([1.0], 0), ([1.0, 2.0], 0)]).read(0, 2)
    with pytest.raises(DelianError, match="Pairs raised IndexError for row 0"):
        open_rows(Pairs(x, y[:0]))
    with pytest.raises(DelianError, match="has x <U1"):
        open_rows([("a", 0)])
