"""What a device's `data.source` may name: each format, its version, the owner's limit."""

from __future__ import annotations

import io
import os
import tarfile

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.formats.array_rows import ArrayRows
from delian.core.learning.data.packed.packed_writer import pack
from delian.core.learning.data.rows import DataSettings, NoDataError, RowType
from delian.core.learning.data.sources import check_source, open_source, read_all, version_of
from delian.core.learning.data.stored_rows import is_stored

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = (np.arange(20) % 4).astype(np.int32)
ROW = RowType((3,))


def packed(folder):
    pack(ArrayRows(X, Y), folder / "rows.npz")
    return folder / "rows.npz"


def packed_folder(folder):
    for k in range(2):
        pack(ArrayRows(X[10 * k : 10 * k + 10], Y[10 * k : 10 * k + 10]), folder / f"{k}.npz")
    return folder


def parquet(folder):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"v": list(X), "label": Y}), folder / "rows.parquet")
    return folder / "rows.parquet"


def parquet_folder(folder):
    return parquet(folder).parent


def tar(folder):
    with tarfile.open(folder / "rows.tar", "w") as file:
        for k in range(20):
            for ending, value in (("x.npy", X[k]), ("y.npy", Y[k])):
                stream = io.BytesIO()
                np.save(stream, value)
                info = tarfile.TarInfo(f"{k:04}.{ending}")
                info.size = stream.tell()
                stream.seek(0)
                file.addfile(info, stream)
    return folder / "rows.tar"


def tar_folder(folder):
    return tar(folder).parent


def saved(folder):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    data = datasets.Dataset.from_dict({"v": list(X), "label": Y})
    data.cast_column("v", datasets.Sequence(datasets.Value("float32"))).save_to_disk(folder / "s")
    return folder / "s"


def large_csv(folder):
    lines = [",".join(map(str, [*x, y])) for x, y in zip(X.tolist(), Y.tolist(), strict=True)]
    (folder / "rows.csv").write_text("\n".join(["a,b,c,label", *lines]))
    return folder / "rows.csv"


@pytest.mark.parametrize(
    "make",
    [packed, packed_folder, parquet, parquet_folder, tar, tar_folder, saved, large_csv],
)
def test_a_device_reads_each_format(tmp_path, make):
    path = make(tmp_path)
    limit = 300 if make is large_csv else 10_000
    settings = DataSettings(str(path), bytes_max=limit)
    assert check_source(settings) == ""
    source = open_source(settings)
    assert is_stored(source)
    found = read_all(source, ROW)
    np.testing.assert_array_equal(found.x, X)
    np.testing.assert_array_equal(found.y, Y)
    assert source.version() == version_of(settings) is not None
    with pytest.raises(DelianError, match="may take 100"):
        read_all(open_source(DataSettings(str(path), bytes_max=100)), ROW)
    assert source.read(3, 5).x.shape == (2, 3)
    before = version_of(settings)
    changed = path if path.is_file() else next(p for p in path.iterdir() if p.is_file())
    os.utime(changed, ns=(1, 1))
    assert version_of(settings) != before


def test_numbers_of_a_large_csv_are_learnt_where_the_bundle_learns_numbers(tmp_path):
    settings = DataSettings(str(large_csv(tmp_path)), bytes_max=300)
    found = read_all(open_source(settings), RowType((3,), numbers=True))
    assert found.y.dtype == np.float32


def test_images_take_the_bundles_size(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("0", "1"):
        (tmp_path / name).mkdir()
        image.new("RGB", (20, 10), (9, 9, 9)).save(tmp_path / name / "a.png")
    found = read_all(open_source(DataSettings(str(tmp_path))), RowType((4, 6, 3), "u8"))
    assert found.x.shape == (2, 4, 6, 3)
    (tmp_path / "cat").mkdir()
    image.new("RGB", (20, 10)).save(tmp_path / "cat" / "a.png")
    with pytest.raises(DelianError, match="the label 'cat' is no class"):
        open_source(DataSettings(str(tmp_path)))


@pytest.mark.parametrize("name", ["none.parquet", "none.tar", "none.npz", "none"])
def test_data_that_is_not_there_is_no_data(tmp_path, name):
    with pytest.raises(NoDataError):
        check_source(DataSettings(str(tmp_path / name)))
    assert version_of(DataSettings(str(tmp_path / name))) is None


def test_a_function_of_the_owners_gives_stored_rows(tmp_path, monkeypatch):
    (tmp_path / "own_rows.py").write_text(
        "import delian as dl\n"
        "def plain():\n    return dl.data.open_rows([([1.0, 2.0, 3.0], k) for k in range(4)])\n"
        "def marked():\n    return plain()\n"
        "marked.source = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name, stored in (("plain", False), ("marked", True)):
        source = open_source(DataSettings(f"python:own_rows:{name}"))
        assert is_stored(source) == stored
        assert read_all(source, ROW).y.tolist() == [0, 1, 2, 3]
