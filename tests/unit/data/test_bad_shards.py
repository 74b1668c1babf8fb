"""Data that is torn, missing, of another schema, or says too much: an error that names it.

Every format goes through the same faults. Nothing is allocated for what a header declares.
"""

from __future__ import annotations

import io
import json
import os
import struct
import tarfile
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.formats import table_pieces
from delian.core.learning.data.formats.array_rows import ArrayRows
from delian.core.learning.data.formats.arrow_stream import stream_of
from delian.core.learning.data.formats.file_ranges import FileRanges
from delian.core.learning.data.formats.opened_rows import open_rows
from delian.core.learning.data.packed import packed_writer
from delian.core.learning.data.packed.packed_layout import ABOUT
from delian.core.learning.data.packed.packed_writer import pack
from delian.core.learning.data.rows import NoDataError

ROWS = 60
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
Y = (np.arange(ROWS) % 4).astype(np.int32)
TERABYTE = 1 << 40


def halves():
    return ((X[:30], Y[:30]), (X[30:], Y[30:]))


def packed(folder):
    for k, (x, y) in enumerate(halves()):
        pack(ArrayRows(x, y), folder / f"rows-{k:05}-of-00002.npz")


def parquet(folder):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for k, (x, y) in enumerate(halves()):
        table = pa.table({"v": list(x), "label": y})
        pq.write_table(table, folder / f"rows-{k:05}-of-00002.parquet", row_group_size=10)


def npy(array):
    stream = io.BytesIO()
    np.save(stream, np.asarray(array))
    return stream.getvalue()


def tar_of(path, members):
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def tars(folder):
    for k, (x, y) in enumerate(halves()):
        pairs = zip(x, y, strict=True)
        members = [
            (f"{row:04}.{ending}", npy(value))
            for row, pair in enumerate(pairs)
            for ending, value in zip(("x.npy", "y.npy"), pair, strict=True)
        ]
        tar_of(folder / f"rows-{k:05}-of-00002.tar", members)


def arrow(folder):
    """As `datasets` saves it, in batches of 10 rows."""
    pa = pytest.importorskip("pyarrow")
    names = [f"data-{k:05}-of-00002.arrow" for k in range(2)]
    for name, (x, y) in zip(names, halves(), strict=True):
        table = pa.table({"v": list(x), "label": y})
        with pa.ipc.new_stream(str(folder / name), table.schema) as writer:
            writer.write_table(table, 10)
    files = [{"filename": name} for name in names]
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))


def arrays(folder):
    np.save(folder / "x.npy", X)
    np.save(folder / "y.npy", Y)


FORMATS = [packed, parquet, tars, arrow, arrays]


def made(folder, make):
    """The folder, and its last file of data."""
    make(folder)
    return max(p for p in folder.iterdir() if p.suffix != ".json")


@pytest.mark.parametrize("make", FORMATS)
def test_shards_are_one_data_set(tmp_path, make):
    make(tmp_path)
    found = open_rows(tmp_path).read(0, ROWS)
    np.testing.assert_array_equal(found.x, X)
    np.testing.assert_array_equal(found.y, Y)


@pytest.mark.parametrize("make", FORMATS)
@pytest.mark.parametrize("left", [0.0, 0.5, 0.97, -1])
def test_a_torn_shard_is_named(tmp_path, make, left):
    last = made(tmp_path, make)
    size = last.stat().st_size
    os.truncate(last, size - 1 if left < 0 else int(size * left))
    try:
        found = open_rows(tmp_path).read(0, ROWS)
    except DelianError as error:
        assert last.name in error.message and error.hint
    else:  # the end of a tar is filled up with zeros
        assert make is tars and left not in (0.0, 0.5)
        np.testing.assert_array_equal(found.x, X)


@pytest.mark.parametrize("make", FORMATS)
def test_a_missing_shard_is_named_by_its_name_or_number(tmp_path, make):
    made(tmp_path, make).unlink()
    names = r"number 1|00001-of-00002|y\.npy|no images"
    with pytest.raises(NoDataError, match=names):
        open_rows(tmp_path)


@pytest.mark.parametrize("make", FORMATS)
def test_a_shard_that_goes_away_while_it_is_read_is_named(tmp_path, make):
    last = made(tmp_path, make)
    stored = open_rows(tmp_path)
    last.unlink()
    with pytest.raises(DelianError, match=last.name):
        stored.read(45, ROWS)


@pytest.mark.parametrize("make", FORMATS)
def test_a_shard_that_changes_while_it_is_read_is_named(tmp_path, make):
    last = made(tmp_path, make)
    stored = open_rows(tmp_path)
    stored.read(0, 45)
    os.utime(last, ns=(1, 1))
    with pytest.raises(DelianError, match=rf"{last.name} changed while it was read"):
        stored.read(45, ROWS)


@pytest.mark.parametrize("make", FORMATS)
def test_any_damaged_byte_is_rows_or_an_error(tmp_path, make):
    last = made(tmp_path, make)
    content = last.read_bytes()
    rng = np.random.default_rng(1)
    for at in rng.integers(0, len(content), 120).tolist():
        last.write_bytes(content[:at] + bytes([content[at] ^ (1 << at % 8)]) + content[at + 1 :])
        try:
            found = open_rows(tmp_path).read(0, ROWS)
        except DelianError:
            continue
        assert len(found.x) == len(found.y) == ROWS


# ---------------------------------------------------------------- shards that do not fit together


def test_columns_in_another_order_are_the_same_columns(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for k, order in enumerate((["a", "b", "label"], ["label", "b", "a"])):
        columns = {"a": [1.0, 2.0], "b": [3.0, 4.0], "label": [0, 1]}
        pq.write_table(pa.table(columns).select(order), tmp_path / f"{k}.parquet")
    np.testing.assert_array_equal(open_rows(tmp_path).read(0, 4).x, [[1, 3], [2, 4]] * 2)


OTHERS = {
    "a column less": {"a": [1.0], "label": [0]},
    "a column more": {"a": [1.0], "b": [1.0], "c": [1.0], "label": [0]},
    "another name": {"a": [1.0], "z": [1.0], "label": [0]},
    "another label": {"a": [1.0], "b": [1.0], "class": [0]},
    "a label of text": {"a": [1.0], "b": [1.0], "label": ["0"]},
    "a column of text": {"a": [1.0], "b": ["1"], "label": [0]},
    "a vector": {"a": [[1.0, 2.0]], "label": [0]},
    "images": {"a": [b"png"], "label": [0]},
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_shard_of_another_schema_is_refused(tmp_path, other):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"a": [1.0], "b": [1.0], "label": [0]}), tmp_path / "0.parquet")
    pq.write_table(pa.table(OTHERS[other]), tmp_path / "1.parquet")
    with pytest.raises(DelianError, match=r"1\.parquet") as caught:
        open_rows(tmp_path)
    assert "0.parquet features of numbers (a, b) and numbers `label`" in str(caught.value)


def test_vectors_of_another_length_are_refused_by_file(tmp_path):
    packed(tmp_path)
    pack(ArrayRows(X[:, :2], Y), tmp_path / "rows-00001-of-00002.npz")
    with pytest.raises(DelianError, match=r"rows of .*00001-of-00002\.npz are f32\[2\], and of"):
        open_rows(tmp_path)


def test_classes_in_another_order_are_refused(tmp_path):
    for k, classes in enumerate((("cat", "dog"), ("dog", "cat"))):
        rows = ArrayRows(X, Y % 2)
        rows.classes = classes
        pack(rows, tmp_path / f"{k}.npz")
    with pytest.raises(DelianError, match="name their classes differently"):
        open_rows(tmp_path)
    (tmp_path / "1.npz").unlink()
    assert open_rows(tmp_path).classes == ("cat", "dog")


def test_training_and_test_shards_in_one_folder_are_refused(tmp_path):
    for name in ("train-00000-of-00001.npz", "test-00000-of-00001.npz"):
        pack(ArrayRows(X, Y), tmp_path / name)
    with pytest.raises(DelianError, match=r"2 data sets: test \(of 1\), train \(of 1\)"):
        open_rows(tmp_path)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a-00001-of-00002", "a-00002-of-00002"], ""),
        (["a-00001-of-00003", "a-00003-of-00003"], r"lacks 1 of 3 shards `a`, such as number 2"),
        (["00000-of-00004", "00003-of-00004"], r"lacks 2 of 4 shards, such as number 1"),
        (["a-0-of-999999999"], r"lacks 999999998 of 999999999 shards `a`, such as number 1"),
    ],
)
def test_numbers_of_shards_begin_at_0_or_at_1(tmp_path, names, said):
    for name in names:
        pack(ArrayRows(X, Y), tmp_path / f"{name}.npz")
    if not said:
        assert open_rows(tmp_path).rows == 2 * ROWS
        return
    with pytest.raises(NoDataError, match=said):
        open_rows(tmp_path)


# ---------------------------------------------------------------- a terabyte that is declared


@pytest.fixture
def small_memory():
    """At most 8 MiB are asked for in the test."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def rewritten(path, change):
    """A packed file whose `rows.json` says something else, with a checksum that is right."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    about = json.loads(members[ABOUT])
    change(about)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(ABOUT, json.dumps(about))
        for name, content in members.items():
            if name != ABOUT:
                archive.writestr(name, content)


def test_a_packed_file_of_a_terabyte_of_rows(tmp_path, monkeypatch, small_memory):
    monkeypatch.setattr(packed_writer, "block_rows", lambda rows, row_bytes: 10)
    path = tmp_path / "rows.npz"

    def larger(about):
        about["rows"], about["block"] = 6 * (1 << 25), 1 << 25

    pack(ArrayRows(X, Y), path)
    rewritten(path, larger)
    with pytest.raises(DelianError, match=r"12 bytes for each of rows 0\.\.33554431 of x, and has"):
        open_rows(path)
    pack(ArrayRows(X, Y), path)
    rewritten(path, lambda about: about.update(rows=TERABYTE, block=1 << 27))
    with pytest.raises(DelianError, match="a block of x takes more than 536870912 bytes"):
        open_rows(path)


def test_a_label_of_a_packed_file_counts_for_the_limit(tmp_path):
    from delian.core.learning.data.rows import DataSettings
    from delian.core.learning.data.sources import open_source

    pack(ArrayRows(X, np.zeros((ROWS, 1000), np.int32)), tmp_path / "rows.npz")
    source = open_source(DataSettings(str(tmp_path / "rows.npz"), bytes_max=100_000))
    source.read(0, 20)
    with pytest.raises(DelianError, match=r"30 rows of .* takes 120360 bytes"):
        source.read(0, 30)


def test_a_tar_with_a_file_of_a_terabyte(tmp_path, small_memory):
    tars(tmp_path)
    path = tmp_path / "rows-00001-of-00002.tar"
    content = bytearray(path.read_bytes())
    content[124:136] = b"\x80" + TERABYTE.to_bytes(11, "big")
    content[148:156] = b" " * 8
    content[148:156] = b"%06o\0 " % sum(content[:512])
    path.write_bytes(content)
    with pytest.raises(DelianError, match=f"a file of {TERABYTE} bytes at byte 0"):
        open_rows(tmp_path)


def test_an_array_in_a_tar_that_declares_a_terabyte(tmp_path, small_memory):
    stream = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 38,)}
    np.lib.format.write_array_header_1_0(stream, header)
    tar_of(tmp_path / "a.tar", [("0.x.npy", stream.getvalue()), ("0.y.npy", npy(0))])
    with pytest.raises(DelianError, match=f"row 0 .* it declares {TERABYTE} bytes and has 0"):
        open_rows(tmp_path)


def test_a_parquet_group_that_unpacks_to_more_than_the_limit(tmp_path, monkeypatch):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pa.table({"a": np.zeros(100_000), "label": np.zeros(100_000, np.int32)})
    path = tmp_path / "a.parquet"
    pq.write_table(table, path)
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(table_pieces, "PIECE_BYTES_MAX", 1_000_000)
    with pytest.raises(DelianError, match="group 0 takes 1200000 bytes in memory; at most 1000000"):
        open_rows(path)


def test_vectors_of_a_parquet_group_that_unpack_to_more_than_the_limit(tmp_path, monkeypatch):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    rows = 10_000
    pq.write_table(pa.table({"v": [[0.0] * 50] * rows, "label": [0] * rows}), path)
    assert path.stat().st_size < 20_000
    assert open_rows(path).read(9_000, rows).x.shape == (1000, 50)
    monkeypatch.setattr(table_pieces, "PIECE_BYTES_MAX", 3_000_000)
    with pytest.raises(DelianError, match=r"group 0 takes \d+ bytes in memory; at most 3000000"):
        open_rows(path)


@pytest.mark.parametrize("declared", [1 << 20, (1 << 32) - 1])
def test_a_parquet_footer_that_declares_much(tmp_path, declared, small_memory):
    parquet(tmp_path)
    path = tmp_path / "rows-00001-of-00002.parquet"
    content = path.read_bytes()
    path.write_bytes(content[:-8] + struct.pack("<I", declared) + b"PAR1")
    with pytest.raises(DelianError, match=rf"00001-of-00002.* a footer of {declared} bytes"):
        open_rows(tmp_path)


def test_a_parquet_with_an_encrypted_footer(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "a.parquet").write_bytes(bytes(40) + struct.pack("<I", 10) + b"PARE")
    with pytest.raises(DelianError, match="encrypted footer"):
        open_rows(tmp_path / "a.parquet")


def test_a_batch_of_arrow_that_declares_a_terabyte(tmp_path, small_memory):
    arrow(tmp_path)
    path = tmp_path / "data-00001-of-00002.arrow"
    content = path.read_bytes()
    first = stream_of(FileRanges(path)).batches[0]
    begin = first.at
    metadata = struct.unpack("<i", content[begin + 4 : begin + 8])[0]
    for other in (0x7FFFFFF0, -1):
        path.write_bytes(content[: begin + 4] + struct.pack("<i", other) + content[begin + 8 :])
        with pytest.raises(DelianError, match=f"00001-of-00002.* with {other} bytes of metadata"):
            open_rows(tmp_path)
    body = struct.pack("<q", first.size - 8 - metadata)
    at = content.index(body, begin, begin + 8 + metadata)
    path.write_bytes(content[:at] + struct.pack("<q", TERABYTE) + content[at + 8 :])
    with pytest.raises(DelianError, match=f"a message of {TERABYTE} bytes at byte {begin} of"):
        open_rows(tmp_path)


def test_compressed_batches_of_arrow_are_refused(tmp_path):
    pa = pytest.importorskip("pyarrow")
    arrow(tmp_path)
    table = pa.table({"v": list(X), "label": Y})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    path = tmp_path / "data-00001-of-00002.arrow"
    with pa.ipc.new_stream(str(path), table.schema, options=options) as writer:
        writer.write_table(table)
    with pytest.raises(DelianError, match=r"00001-of-00002\.arrow is compressed"):
        open_rows(tmp_path)


# ---------------------------------------------------------------- images


def png(width, height):
    """A PNG whose header says this size."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))


@pytest.mark.parametrize(("width", "height"), [(10_000, 9_000), (1 << 20, 1 << 20)])
def test_an_image_that_declares_a_terabyte_of_pixels(tmp_path, width, height):
    pytest.importorskip("PIL.Image")
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "0.png").write_bytes(png(width, height))
    with pytest.raises(DelianError, match=r"0\.png (has|is no image)"):
        open_rows(tmp_path)
    stored = open_rows(tmp_path, shape=(8, 8, 3))
    with pytest.raises(DelianError, match=r"0\.png (has|is no image)"):
        stored.read(0, 1)


@pytest.mark.parametrize("kind", ["png", "jpg", "bmp", "gif", "webp", "tif"])
def test_damaged_images_are_named(tmp_path, kind):
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    path = tmp_path / "cat" / f"0.{kind}"
    path.parent.mkdir()
    image.fromarray(rng.integers(0, 256, (16, 16, 3)).astype(np.uint8)).save(path)
    content = path.read_bytes()
    for k in range(60):
        at = int(rng.integers(0, len(content)))
        cut = len(content) if k % 3 else at
        path.write_bytes((content[:at] + bytes([k]) + content[at + 1 :])[:cut])
        try:
            open_rows(tmp_path).read(0, 1)
            open_rows(tmp_path, shape=(16, 16, 3)).read(0, 1)
        except DelianError as error:
            assert f"0.{kind}" in error.message


def test_images_are_turned_and_scaled_as_those_of_whole_folders(tmp_path):
    """By EXIF, from 16 bits; also where the fast decoder would be used."""
    image = pytest.importorskip("PIL.Image")
    from delian.core.learning.data.images import ImageFolder
    from delian.core.learning.data.rows import DataSettings, RowType

    rng = np.random.default_rng(0)
    (tmp_path / "0").mkdir()
    for turn in range(1, 9):
        picture = image.fromarray(rng.integers(0, 256, (20, 30, 3)).astype(np.uint8))
        note = picture.getexif()
        note[0x0112] = turn
        picture.save(tmp_path / "0" / f"{turn}.jpg", exif=note)
    deep = rng.integers(0, 1 << 16, (20, 30)).astype(np.uint16)
    image.fromarray(deep).save(tmp_path / "0" / "9.png")
    for shape in ((20, 30, 3), (30, 20, 3), (30, 20), (8, 8, 1)):
        want = ImageFolder(tmp_path, DataSettings()).read(RowType(shape, "u8"))
        np.testing.assert_array_equal(open_rows(tmp_path, shape=shape).read(0, 9).x, want.x)
    (tmp_path / "0" / "0.jpg").write_bytes((tmp_path / "0" / "6.jpg").read_bytes())
    assert open_rows(tmp_path).row_type().shape == (30, 20, 3)
    image.fromarray(np.zeros((4, 4), np.float32)).save(tmp_path / "0" / "1.tif")
    with pytest.raises(DelianError, match=r"1\.tif has pixels of 32 bits"):
        open_rows(tmp_path, shape=(4, 4)).read(0, 11)
