"""Data files that are missing, cut short, malformed or hostile end as one clear message."""

from __future__ import annotations

import gzip
import io
import zipfile

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning import data
from delian.core.learning.data.data_files import read_gzip, read_npz, read_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

X = np.arange(24, dtype=np.uint8).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2])


def save(tmp_path, **arrays):
    path = tmp_path / "data.npz"
    np.savez(path, **arrays)
    return path


def refused(path, match):
    with pytest.raises(DelianError, match=match) as caught:
        data.npz(path)
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_x_and_y_are_read(tmp_path):
    got = data.npz(save(tmp_path, x=X, y=Y))
    assert np.array_equal(got.x, X) and np.array_equal(got.y, Y)
    assert got.owners is None


def test_image_and_label_are_other_names_for_them(tmp_path):
    got = data.npz(save(tmp_path, image=X, label=Y))
    assert np.array_equal(got.x, X)


@pytest.mark.parametrize(
    ("given", "dtype", "largest"),
    [
        (X.astype(np.float64), np.float32, 23),
        (X.astype(np.int64), np.float32, 23),
        (X.astype(np.int16) - 5, np.float32, 18),
        (X > 3, np.uint8, 255),
        (np.asfortranarray(X), np.uint8, 23),
        (X.astype(">f4"), np.float32, 23),
    ],
)
def test_examples_become_u8_or_f32(tmp_path, given, dtype, largest):
    got = data.npz(save(tmp_path, x=given, y=Y)).x
    assert got.dtype == dtype and got.max() == largest


def test_devices_may_be_numbers_or_names(tmp_path):
    got = data.npz(save(tmp_path, x=X, y=Y, device=np.array(list("bbaacc"))))
    assert got.owner_names == ("a", "b", "c") and got.owners.tolist() == [1, 1, 0, 0, 2, 2]
    got = data.npz(save(tmp_path, x=X, y=Y, device=np.array([7, 7, 7, 9, 9, 9])))
    assert got.owner_names == ("7", "9")


def test_a_device_that_device_names_names_and_nothing_is_on_is_an_error(tmp_path):
    path = save(
        tmp_path, x=X, y=Y, device=np.zeros(6, np.int64), device_names=np.array(["ann", "bob"])
    )
    with pytest.raises(DelianError, match="device `bob` has no samples"):
        data.federate(
            data.npz(path),
            deal=data.Deal(partition="natural"),
            devices=None,
            query_fraction=0.5,
            held_out_devices=0,
            seed=0,
        )


def test_a_missing_file(tmp_path):
    refused(tmp_path / "nowhere.npz", "there is no data file")


def test_a_folder(tmp_path):
    refused(tmp_path, "is a folder")


def test_no_zip_at_all(tmp_path):
    path = tmp_path / "data.npz"
    path.write_bytes(b"hello")
    refused(path, "is not a whole .npz file")


def test_missing_keys_are_named_beside_those_present(tmp_path):
    refused(save(tmp_path, x=X, z=Y), "has no array `y`; it has `x`, `z`")


def test_objects_are_never_unpickled(tmp_path):
    refused(save(tmp_path, x=np.array([{}], dtype=object), y=Y), "holds Python objects")


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"x": np.arange(6), "y": Y}, r"has shape \[6\]"),
        ({"x": X[:0], "y": Y[:0]}, "holds no examples"),
        ({"x": X.astype(np.int64) << 20, "y": Y}, r"dtype int64 and values 0..24117248"),
        ({"x": X.astype(complex), "y": Y}, "dtype complex128"),
        ({"x": X, "y": Y[:4]}, "one label for each of the 6"),
        ({"x": X, "y": np.eye(6)}, "one label for each of the 6"),
        ({"x": X, "y": Y + 0.5}, "dtype float64"),
        ({"x": X, "y": Y - 1}, r"labels -1..1"),
        ({"x": X, "y": Y, "device": np.zeros(6)}, "array `device`"),
        ({"x": X, "y": Y, "device": Y, "device_names": np.array(["a"])}, "names 1 devices"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, match):
    refused(save(tmp_path, **arrays), match)


def test_nan_is_refused_with_its_row_and_device(tmp_path):
    x = X.astype(np.float32)
    x[4, 1] = np.nan
    path = save(tmp_path, x=x, y=Y, device=np.array(["ann"] * 3 + ["bob"] * 3))
    refused(path, r"first at row 4 \(device `bob`\)")


def test_a_header_that_declares_too_much_is_refused_before_anything_is_allocated(tmp_path):
    path = tmp_path / "data.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 2**10)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue())
        archive.writestr("y.npy", b"")
    refused(path, "declares 4194304.0 GiB")


def test_a_header_that_declares_more_than_there_is(tmp_path):
    path = tmp_path / "data.npz"
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (1000, 1000)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", header.getvalue() + b"1234")
        archive.writestr("y.npy", b"")
    with pytest.raises(DelianError, match="declares 4000000 bytes and ends after 4"):
        read_npz(path, ["x"])


@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_a_damaged_npz_gives_arrays_or_a_message_and_nothing_else(tmp_path, data):
    whole = io.BytesIO()
    np.savez_compressed(whole, x=X, y=Y)
    content = bytearray(whole.getvalue())
    if data.draw(st.booleans()):
        content = content[: data.draw(st.integers(0, len(content)))]
    for _ in range(data.draw(st.integers(0, 4))):
        if content:
            place = data.draw(st.integers(0, len(content) - 1))
            content[place] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.npz"
    path.write_bytes(content)
    try:
        read_npz(path, ["x", "y"])
    except DelianError as error:
        assert str(path) in error.message


def test_a_gzip_file_cut_short_and_one_that_unpacks_to_too_much(tmp_path):
    path = tmp_path / "digits.csv.gz"
    packed = gzip.compress(b"0" * 5000)
    path.write_bytes(packed[:-12])
    with pytest.raises(DelianError, match="is not a whole gzip file"):
        read_gzip(path, 10_000)
    path.write_bytes(packed)
    with pytest.raises(DelianError, match="unpacks to more than 4999"):
        read_gzip(path, 4999)


def test_text_that_is_not_utf_8(tmp_path):
    path = tmp_path / "play.txt"
    path.write_bytes(b"First Lord:\n\xff\xfe")
    with pytest.raises(DelianError, match=r"is not UTF-8 text \(byte 12\)"):
        read_text(path, 1000)


def test_a_federation_keeps_the_split_of_its_data(tmp_path):
    judges = np.array([0, 1, 0, 1, 1, 0], bool)
    given = {"x": X, "y": Y, "device": np.array([0, 0, 1, 1, 2, 2])}
    deal = {"deal": data.Deal(partition="natural"), "devices": None}
    deal |= {"query_fraction": 0.5, "held_out_devices": 0, "seed": 0}
    made = data.federate(data.npz(save(tmp_path, **given, query=judges)), **deal)
    for number, device in enumerate(made.devices):
        rows = np.array([2 * number, 2 * number + 1])
        assert (device.support, device.query) == (1, 1)
        np.testing.assert_array_equal(device.x[0], X[rows[~judges[rows]][0]])
        np.testing.assert_array_equal(device.x[1], X[rows[judges[rows]][0]])
    with pytest.raises(DelianError, match="device `0` has 2 of 2 rows"):
        data.federate(data.npz(save(tmp_path, **given, query=judges | True)), **deal)
