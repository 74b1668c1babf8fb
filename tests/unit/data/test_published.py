"""Published data sets in their files' own formats, made here byte by byte."""

from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data import cifar10, har, idx


def write_idx(path, array, *, packed=False):
    content = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content += array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if packed else content)


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (12, 4, 5)), np.arange(12) % 10


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_train_and_test_together(tmp_path, images, packed):
    x, y = images
    end = ".gz" if packed else ""
    for part, rows in (("train", slice(0, 9)), ("t10k", slice(9, 12))):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte{end}", x[rows], packed=packed)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte{end}", y[rows], packed=packed)
    data = idx(tmp_path)
    assert data.x.dtype == np.uint8 and data.y.dtype == np.int32
    order = np.lexsort(data.x.reshape(12, -1).T)
    again = np.lexsort(x.reshape(12, -1).T)
    np.testing.assert_array_equal(data.x[order], x[again])
    np.testing.assert_array_equal(data.y[order], y[again])


def test_emnist_is_turned_and_its_letters_count_from_nought(tmp_path, images):
    x, y = images
    write_idx(tmp_path / "emnist-letters-train-images-idx3-ubyte", x)
    write_idx(tmp_path / "emnist-letters-train-labels-idx1-ubyte", y + 1)
    data = idx(tmp_path)
    np.testing.assert_array_equal(data.x, x.transpose(0, 2, 1))
    np.testing.assert_array_equal(data.y, y)


def test_several_sets_in_a_folder_are_not_mixed(tmp_path, images):
    x, y = images
    for name, shift in (("emnist-digits", 0), ("emnist-mnist", 7)):
        write_idx(tmp_path / f"{name}-train-images-idx3-ubyte", (x + shift) % 256)
        write_idx(tmp_path / f"{name}-train-labels-idx1-ubyte", y)
    with pytest.raises(DelianError, match="emnist-digits, emnist-mnist") as caught:
        idx(tmp_path)
    assert "data.files=emnist-digits" in caught.value.hint
    found = idx(tmp_path, "emnist-mnist")
    np.testing.assert_array_equal(found.x, ((x + 7) % 256).transpose(0, 2, 1))
    with pytest.raises(DelianError, match="no IDX images"):
        idx(tmp_path, "emnist-letters")


def test_a_file_that_is_there_packed_too_is_read_once(tmp_path, images):
    x, y = images
    for end, packed in (("", False), (".gz", True)):
        write_idx(tmp_path / f"train-images-idx3-ubyte{end}", x, packed=packed)
        write_idx(tmp_path / f"train-labels-idx1-ubyte{end}", y, packed=packed)
    assert len(idx(tmp_path).x) == len(x)


def test_idx_files_that_are_not_whole(tmp_path, images):
    x, y = images
    file, labels = tmp_path / "a-images-idx3-ubyte", tmp_path / "a-labels-idx1-ubyte"
    with pytest.raises(DelianError, match="no IDX images"):
        idx(tmp_path)
    write_idx(file, x)
    with pytest.raises(DelianError, match="no a-labels-idx1-ubyte next to it"):
        idx(tmp_path)
    write_idx(labels, y[:-1])
    with pytest.raises(DelianError, match=r"12 images and .* 11 labels"):
        idx(tmp_path)
    write_idx(labels, y)
    whole = file.read_bytes()
    for content, says in (
        (whole[:-1], "declares"),
        (whole + b"\0", "declares"),
        (b"", "no IDX"),
        (b"\0\0\x0d" + whole[3:], "no IDX"),
        (whole[:4] + struct.pack(">3I", 2**31, 2**31, 2**31) + whole[16:], "declares"),
    ):
        file.write_bytes(content)
        with pytest.raises(DelianError, match=says):
            idx(tmp_path)
    file.unlink()
    file.with_suffix(".gz").write_bytes(b"no gzip")
    with pytest.raises(DelianError, match="cannot be read"):
        idx(tmp_path)


def test_cifar_s_planes_become_pixels(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (5, 32, 32, 3)).astype(np.uint8)
    y = np.array([3, 1, 9, 0, 4], np.uint8)
    records = np.concatenate([y[:, None], x.transpose(0, 3, 1, 2).reshape(5, -1)], axis=1)
    (tmp_path / "data_batch_1.bin").write_bytes(records[:3].tobytes())
    (tmp_path / "test_batch.bin").write_bytes(records[3:].tobytes())
    data = cifar10(tmp_path)
    np.testing.assert_array_equal(data.x, x)
    np.testing.assert_array_equal(data.y, y)
    (tmp_path / "test_batch.bin").write_bytes(b"\0" * 100)
    with pytest.raises(DelianError, match="no records"):
        cifar10(tmp_path)


def write_har(folder, subjects, rows=3):
    for part, who in subjects.items():
        place = folder / part
        place.mkdir(parents=True)
        rng = np.random.default_rng(len(part))
        count = rows * len(who)
        np.savetxt(place / f"X_{part}.txt", rng.uniform(-1, 1, (count, 561)), "%.7e")
        np.savetxt(place / f"y_{part}.txt", np.arange(count) % 6 + 1, "%d")
        np.savetxt(place / f"subject_{part}.txt", np.repeat(who, rows), "%d")


def test_har_s_subjects_are_devices(tmp_path):
    write_har(tmp_path, {"train": [1, 3], "test": [2]})
    data = har(tmp_path)
    assert data.x.shape == (9, 561) and data.x.dtype == np.float32
    assert data.owner_names == ("subject 1", "subject 2", "subject 3")
    assert data.owners.tolist() == [0, 0, 0, 2, 2, 2, 1, 1, 1]
    assert data.y.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2]


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("y_train.txt", "1\n2\n", "rows"),
        ("y_train.txt", "7\n" * 3, "activities"),
        ("subject_train.txt", "one\n" * 3, "subject_train"),
        ("X_train.txt", "1 2 3\n" * 3, "561"),
    ],
)
def test_har_files_that_do_not_fit(tmp_path, file, content, says):
    write_har(tmp_path, {"train": [1]})
    (tmp_path / "train" / file).write_text(content)
    with pytest.raises(DelianError, match=says):
        har(tmp_path)


@pytest.mark.parametrize("read", [idx, cifar10, har])
def test_a_folder_that_is_none(tmp_path, read):
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(DelianError):
            read(place)
