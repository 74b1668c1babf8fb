"""Folders that users have: texts and images by class, splits, and data sets of Hugging Face."""

import io
import json

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data.images import read_image
from delian.core.learning.data.tabular import text_folders
from delian.core.learning.data.tabular.brought_folders import (
    asked_images,
    asked_table,
    folder_kind,
    read_images,
    read_table,
)
from delian.simulations.scenario.own_data import read_own_images

README = """---
license: mit
configs:
- config_name: default
  data_files:
  - split: train
    path: "files/first*"
  - split: later
    path: files/second*
- config_name: other
  data_files:
  - split: train
    path: nothing*
---
# A data set
"""


def put(root, files):
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


def test_texts_by_class_are_a_table(tmp_path):
    put(tmp_path, {"b/1.txt": "two\nlines", "a/2.txt": "one ", "a/3.txt": "", "a/x.log": "no"})
    assert folder_kind(tmp_path) == "table"
    columns, notes = read_table(tmp_path)
    assert columns["text"].tolist() == ["one", "", "two\nlines"]
    assert columns["label"].tolist() == ["a", "a", "b"] and notes == ("1 text is empty",)


def test_folders_named_like_splits_are_no_classes(tmp_path):
    put(tmp_path, {f"{s}/{c}/1.txt": f"{s} {c}" for s in ("train", "test") for c in "ab"})
    columns, notes = read_table(tmp_path)
    assert columns["text"].tolist() == ["train a", "train b"]
    assert notes == ("the split `train` is read, and test left out (data.split)",)
    assert read_table(tmp_path, "test")[0]["label"].tolist() == ["a", "b"]
    with pytest.raises(DelianError, match="no split `dev`; it has test, train"):
        read_table(tmp_path, "dev")
    put(tmp_path, {"third/1.txt": "a class"})  # so test and train are classes as well
    with pytest.raises(DelianError, match="no split"):
        read_table(tmp_path, "nothing")


def test_a_text_that_is_none_is_named_and_texts_have_a_limit(tmp_path, monkeypatch):
    put(tmp_path, {"a/1.txt": "good", "a/2.txt": b"caf\xe9"})
    with pytest.raises(DelianError, match=r"a/2\.txt is not UTF-8 text"):
        read_table(tmp_path)
    (tmp_path / "a" / "2.txt").write_text("more")
    monkeypatch.setattr(text_folders, "FILES_MAX", 1)
    with pytest.raises(DelianError, match=r"more texts than a table may have \(up to .*2\.txt\)"):
        read_table(tmp_path)


def test_a_readme_says_which_files_are_which_split(tmp_path):
    put(
        tmp_path,
        {
            "README.md": README,
            "files/first-0.csv": "text,label\nx y,1\n",
            "files/first-1.csv": "text,label\nz,2\n",
            "files/second.csv": "text,label\nq,3\n",
        },
    )
    columns, notes = read_table(tmp_path)
    assert columns["text"].tolist() == ["x y", "z"] and columns["label"].tolist() == [1, 2]
    assert notes == ("the split `train` is read, and later left out (data.split)",)
    assert read_table(tmp_path, "later")[0]["text"].tolist() == ["q"]


def test_files_of_one_split_have_the_same_columns(tmp_path):
    put(tmp_path, {"train-0.jsonl": '{"a": 1}', "train-1.jsonl": '{"b": 1}'})
    with pytest.raises(DelianError, match=r"train-1\.jsonl has other columns than train-0"):
        read_table(tmp_path)
    put(tmp_path, {"train-1.jsonl": '{"a": "x"}'})
    with pytest.raises(DelianError, match="numbers in some files"):
        read_table(tmp_path)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"dataset_dict.json": "{}"}, "names no splits"),
        ({"dataset_dict.json": '{"splits": ["../up"]}'}, "names no splits"),
        ({"dataset_dict.json": '{"splits": ["train"]}'}, "no data file"),
        ({"dataset_dict.json": "["}, "is no JSON"),
        ({"state.json": "[]", "dataset_info.json": "{}"}, "names no files"),
        (
            {"state.json": '{"_data_files": [{"filename": "/etc/a"}]}', "dataset_info.json": "{}"},
            "names no files",
        ),
        (
            {
                "state.json": json.dumps(
                    {"_data_files": [{"filename": "a"}], "_indices_data_files": [{}]}
                ),
                "dataset_info.json": "{}",
            },
            "a selection of another data set",
        ),
    ],
)
def test_a_saved_data_set_that_was_changed_is_refused(tmp_path, files, said):
    with pytest.raises(DelianError) as caught:
        read_table(put(tmp_path, files))
    assert said in caught.value.message and caught.value.hint


def test_what_save_to_disk_writes_is_read(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    features = {"label": {"names": ["no", "yes"], "_type": "ClassLabel"}}
    schema = arrow.schema(
        [("text", arrow.string()), ("label", arrow.int64())],
        {"huggingface": json.dumps({"info": {"features": features}})},
    )
    table = arrow.table({"text": ["a b", "c", None], "label": [1, 0, 7]}, schema)
    state = json.dumps({"_data_files": [{"filename": "data.arrow"}]})
    put(tmp_path, {"train/state.json": state, "train/dataset_info.json": "{}"})
    put(tmp_path, {"dataset_dict.json": '{"splits": ["train"]}'})
    target = str(tmp_path / "train" / "data.arrow")
    with arrow.OSFile(target, "wb") as file, arrow.ipc.new_stream(file, schema) as stream:
        stream.write_table(table)
    columns, _ = read_table(tmp_path)
    assert columns["text"].tolist() == ["a b", "c", ""]
    assert columns["label"].tolist() == ["yes", "no", ""]
    content = (tmp_path / "train" / "data.arrow").read_bytes()
    (tmp_path / "train" / "data.arrow").write_bytes(content[: len(content) // 2])
    with pytest.raises(DelianError, match="not a whole file of Arrow"):
        read_table(tmp_path)


def png(pixels, **kept) -> bytes:
    image = pytest.importorskip("PIL.Image")
    out = io.BytesIO()
    image.fromarray(pixels).save(out, "PNG", **kept)
    return out.getvalue()


def test_images_in_rows_of_parquet_are_images(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images = [{"bytes": png(np.full((9, 12, 3), v, np.uint8)), "path": None} for v in (10, 200)]
    table = arrow.table({"picture": [*images, {"bytes": b"no", "path": None}], "label": [3, 5, 5]})
    parquet.write_table(table, tmp_path / "train-0.parquet")
    assert folder_kind(tmp_path) == "images"
    with pytest.raises(DelianError, match="row 3 of `picture` is no image"):
        read_own_images(tmp_path)
    rows = read_own_images(tmp_path, broken="skip")
    assert rows.x.shape == (2, 9, 9, 3) and rows.label_names == ("3", "5")
    assert rows.x[:, 0, 0, 0].tolist() == [10, 200]


def test_all_broken_images_are_named_at_once_or_left_out(tmp_path):
    pixels = np.full((10, 10), 7, np.uint8)
    put(tmp_path, {"a/1.png": png(pixels), "b/1.png": png(pixels), "b/2.png": b"\x89PNG"})
    put(tmp_path, {"a/cut.png": png(pixels)[:-20], "a/empty.png": b""})
    with pytest.raises(DelianError) as caught:
        read_own_images(tmp_path)
    assert caught.value.message.count("is no image") == 3
    rows = read_own_images(tmp_path, broken="skip")
    assert rows.y.tolist() == [0, 1] and rows.notes == (
        "3 of 5 files are no images and are left out",
    )


def test_images_without_folders_of_classes_are_told_where_to_go(tmp_path):
    put(tmp_path, {"1.png": png(np.zeros((9, 9), np.uint8))})
    assert folder_kind(tmp_path) == "images"
    with pytest.raises(DelianError, match="no folder for each class"):
        read_images(tmp_path)


def test_sixteen_bits_are_scaled_and_not_clipped(tmp_path):
    deep = np.array([[0, 256 * 100], [256 * 200 + 255, 65535]], np.uint16)
    put(tmp_path, {"deep.png": png(deep)})
    read = read_image(tmp_path / "deep.png", (2, 2))
    assert read.tolist() == [[0, 100], [200, 255]]


def test_pixels_of_unknown_range_are_refused(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.linspace(-3, 900, 9, dtype=np.float32).reshape(3, 3)).save(
        tmp_path / "deep.tif"
    )
    with pytest.raises(DelianError, match="32 bits, whose range is not known"):
        read_image(tmp_path / "deep.tif", (3, 3))


def test_images_are_turned_as_their_camera_says(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((8, 4), np.uint8)
    pixels[0] = 255
    exif = image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    put(tmp_path, {"turned.png": png(pixels, exif=exif)})
    assert read_image(tmp_path / "turned.png", (4, 8))[:, -1].tolist() == [255] * 4


def test_a_folder_of_nothing_known_has_no_kind(tmp_path):
    put(tmp_path, {"notes.log": "x"})
    assert folder_kind(tmp_path) is None
    (tmp_path / "empty").mkdir()
    assert folder_kind(tmp_path) == "images"


def test_all_texts_that_are_none_are_named_at_once(tmp_path):
    put(tmp_path, {"a/1.txt": "good", "a/2.txt": b"caf\xe9", "b/3.txt": b"\xff\xfex\0"})
    with pytest.raises(DelianError) as caught:
        read_table(tmp_path)
    assert "2 of 3 files are no texts" in caught.value.message
    assert "a/2.txt" in caught.value.message and "b/3.txt" in caught.value.message


def test_a_model_is_asked_about_texts_and_images_without_classes(tmp_path):
    put(tmp_path, {"texts/2.txt": "two", "texts/1.txt": " one\n", "texts/x.log": "no"})
    assert asked_table(tmp_path / "texts")["text"].tolist() == ["one", "two"]
    put(tmp_path, {"images/2.png": b"", "images/1.JPG": b"", "images/readme": b""})
    asked = [entry.content.name for entry in asked_images(tmp_path / "images")]
    assert asked == ["1.JPG", "2.png"]
    assert [e.content.name for e in asked_images(tmp_path / "images" / "2.png")] == ["2.png"]
    put(tmp_path, {"classes/a/1.png": b"", "classes/b/2.png": b""})
    assert [entry.label for entry in asked_images(tmp_path / "classes")] == ["a", "b"]
    with pytest.raises(DelianError, match="a folder without a table"):
        asked_table(tmp_path / "classes")
