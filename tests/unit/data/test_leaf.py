"""LEAF's FEMNIST: read writer by writer, and refused where files are torn or something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from delian.core.common.errors import DelianError
from delian.core.learning.data import femnist, leaf_femnist


def writer(labels: list[int], shade: float = 1.0) -> dict[str, Any]:
    return {"x": [[shade] * leaf_femnist.PIXELS for _ in labels], "y": labels}


def write(folder: Path, name: str, users: dict[str, Any]) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / name
    counts = [len(of.get("y", [])) if isinstance(of, dict) else 0 for of in users.values()]
    content = {"users": list(users), "num_samples": counts, "user_data": users}
    file.write_text(json.dumps(content))
    return file


def test_a_writer_s_images_of_all_files_are_one_device_s(tmp_path: Path) -> None:
    write(tmp_path / "train", "a.json", {"f1": writer([3, 61], 0.5), "f2": writer([0])})
    write(tmp_path / "test", "b.json", {"f1": writer([7], 0.0)})
    found = femnist(tmp_path)
    assert found.owner_names == ("f1", "f2") and found.owners is not None
    assert found.x.shape == (4, 28, 28) and found.x.dtype == np.uint8
    assert [found.y[found.owners == i].tolist() for i in range(2)] == [[3, 61, 7], [0]]
    assert found.x[:, 0, 0].tolist() == [128, 128, 255, 0]


def test_spaces_and_other_keys_in_any_order_are_json_too(tmp_path: Path) -> None:
    rows = json.dumps(writer([1]))
    text = f' {{ "user_data" :\n{{ "w" : {rows} }} , "hierarchies": [[], {{}}], "users" : ["w"]}} '
    (tmp_path / "a.json").write_text(text)
    assert femnist(tmp_path).owner_names == ("w",)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not whole JSON"),
        ("[1, 2]", "not whole JSON"),
        ('{"user_data": {"a": {"x": [], "y"', "not whole JSON"),
        ('{"user_data": {"a" {}}}', "not whole JSON"),
        ('{"user_data": {1: {}}}', "not whole JSON"),
        ('{"user_data": ' + "[" * 100_000, "not whole JSON"),
        ('{"users": ["a"]}', "no `user_data`"),
        ("{}", "no `user_data`"),
        ('{"user_data": {}}', "no images"),
        ('{"user_data": {"a": [1]}}', "has no x and y"),
        ('{"user_data": {"a": {"x": [[1, 2]], "y": [0]}}}', "not 784 numbers"),
        ('{"user_data": {"a": {"x": [["b"]], "y": [0]}}}', "not 784 numbers"),
        ('{"user_data": {"a": {"x": [[1], [1, 2]], "y": [0]}}}', "not 784 numbers"),
        ('{"user_data": {"a": {"x": [], "y": [0]}}}', "0 images and 1 labels"),
        (
            '{"user_data": {"a": {"x": [[NAN]], "y": [0]}}}'.replace("NAN", "NaN, " * 783 + "0"),
            "0 to 1",
        ),
    ],
)
def test_what_is_no_such_file_is_told(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DelianError, match=told):
        femnist(tmp_path)


@pytest.mark.parametrize("label", [62, -1, 0.5, 10**400])
def test_a_label_that_is_none_is_told_with_its_writer(tmp_path: Path, label: float) -> None:
    write(tmp_path, "a.json", {"f9": writer([label])})  # type: ignore[list-item]
    with pytest.raises(DelianError, match="f9"):
        femnist(tmp_path)


def test_a_folder_without_files_and_one_that_is_none_are_told(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(DelianError):
            femnist(folder)


def test_files_and_images_have_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "a.json", {"a": writer([1, 2])})
    with monkeypatch.context() as patch:
        patch.setattr(leaf_femnist, "FEDERATION_BYTES_MAX", 2 * leaf_femnist.PIXELS - 1)
        with pytest.raises(DelianError, match="GiB of images"):
            femnist(tmp_path)
    monkeypatch.setattr(leaf_femnist, "FILE_BYTES_MAX", 10)
    with pytest.raises(DelianError, match="larger than"):
        femnist(tmp_path)


def test_a_file_that_is_not_utf8_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b'{"user_data": {"\xff": 1}}')
    with pytest.raises(DelianError, match="not whole JSON"):
        femnist(tmp_path)
