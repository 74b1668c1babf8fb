"""LEAF's FEMNIST (Caldas et al., "LEAF: A Benchmark for Federated Settings", arXiv:1812.01097).

62 characters by their writers, from JSON files as its scripts make them.

A file is `{"users": [...], "num_samples": [...], "user_data": {USER: {"x": [...], "y": [...]}}}`,
where a row of x is 784 numbers from 0 to 1, white 1, and y a label from 0 to 61. A folder has some
of them, and those of its `train` and `test` are read together: a federation splits by device.

Such files have hundreds of megabytes, and Python's lists eight times as many, so one writer is
decoded at a time, and kept as bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from .federated_data import FEDERATION_BYTES_MAX
from .labelled_arrays import Labelled

SIDE = 28
PIXELS = SIDE * SIDE
CLASSES = 62
FILE_BYTES_MAX = 1 << 30
FILES_MAX = 1_000
WRITERS_MAX = 1_000_000
#: Numbers are rounded to bytes, and what is this far out of 0 to 1 is no image.
SLACK = 1e-3
_HINT = "give the folder of LEAF's JSON files: leaf/data/femnist/data/all_data, or train and test"


def femnist(folder: Path) -> Labelled:
    """x: u8 [n, 28, 28]; y: i32 [n], 0..61; a writer is a device. Raises DelianError."""
    if not folder.is_dir():
        raise DelianError(f"there is no folder {folder}", _HINT)
    places = [folder, folder / "train", folder / "test"]
    files = [f for p in places if p.is_dir() for f in sorted(p.iterdir()) if f.suffix == ".json"]
    if not files or len(files) > FILES_MAX:
        raise DelianError(f"{folder} has {len(files)} JSON files", _HINT)
    writers: dict[str, int] = {}
    images: list[NDArray[np.uint8]] = []
    labels: list[NDArray[np.int32]] = []
    owners: list[NDArray[np.int64]] = []
    room = FEDERATION_BYTES_MAX
    for file in files:
        for name, data in _users(file):
            x, y = _rows(file, name, data)
            room -= x.nbytes
            if room < 0 or len(writers) >= WRITERS_MAX:
                raise DelianError(
                    f"{folder} holds more than {FEDERATION_BYTES_MAX >> 30} GiB of images",
                    "leave some files out",
                )
            number = writers.setdefault(name, len(writers))
            images.append(x)
            labels.append(y)
            owners.append(np.full(len(y), number, np.int64))
    if not sum(map(len, labels)):
        raise DelianError(f"{folder} holds no images", _HINT)
    return Labelled(
        "LEAF FEMNIST",
        np.concatenate(images),
        np.concatenate(labels),
        np.concatenate(owners),
        tuple(writers),
    )


def _users(file: Path) -> Iterator[tuple[str, Any]]:
    """(name, data) of each writer of a file, decoded one by one."""
    try:
        if file.stat().st_size > FILE_BYTES_MAX:
            raise DelianError(f"{file} is larger than {FILE_BYTES_MAX >> 20} MiB", _HINT)
        cursor = _Cursor(file.read_text(encoding="utf-8"))
        found = False
        for key in cursor.members():
            if key != "user_data":
                cursor.value()
                continue
            found = True
            for name in cursor.members():
                yield name, cursor.value()
    except (ValueError, RecursionError, OSError) as error:
        fault = str(error) or type(error).__name__
        raise DelianError(f"{file} is not whole JSON: {fault}", "make it again") from None
    if not found:
        raise DelianError(f"{file} has no `user_data`", _HINT)


class _Cursor:
    """A place in a JSON text.

    Objects are gone through member by member, so that only one member's value is in memory at a
    time. Raises ValueError where the text is not JSON.
    """

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._decode = json.JSONDecoder().raw_decode

    def value(self) -> Any:
        """The value here, and on behind it."""
        self._skip()
        found, self._at = self._decode(self._text, self._at)
        return found

    def members(self) -> Iterator[str]:
        """The keys of the object here; the caller takes the value of each before the next."""
        self._expect("{")
        if self._next() == "}":
            self._at += 1
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise ValueError(f"a key is needed before character {self._at}")
            self._expect(":")
            yield key
            if self._next() == "}":
                self._at += 1
                return
            self._expect(",")

    def _skip(self) -> None:
        while self._text[self._at : self._at + 1] in _SPACES:
            self._at += 1

    def _next(self) -> str:
        self._skip()
        return self._text[self._at : self._at + 1]

    def _expect(self, mark: str) -> None:
        if self._next() != mark:
            raise ValueError(f"`{mark}` is needed at character {self._at}")
        self._at += 1


_SPACES = frozenset(" \t\r\n")


def _rows(file: Path, name: str, data: Any) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """A writer's images and labels, checked."""
    whose = f"writer {name!r} of {file}"
    if not isinstance(data, dict) or not {"x", "y"} <= data.keys():
        raise DelianError(f"{whose} has no x and y", _HINT)
    try:
        x = np.array(data["x"], np.float32).reshape(-1, PIXELS)
        y = np.array(data["y"], np.float64).reshape(-1)
    except (ValueError, TypeError, OverflowError):
        raise DelianError(f"{whose} has rows that are not {PIXELS} numbers", _HINT) from None
    if len(x) != len(y):
        raise DelianError(f"{whose} has {len(x)} images and {len(y)} labels", "make the file again")
    if not np.all((x >= -SLACK) & (x <= 1.0 + SLACK)):
        raise DelianError(
            f"{whose} has values that are not from 0 to 1", "this is another data set"
        )
    if not np.all((y >= 0) & (y < CLASSES) & (y == np.floor(y))):
        raise DelianError(f"{whose} has labels that are not 0 to {CLASSES - 1}", _HINT)
    pixels = np.rint(np.clip(x, 0.0, 1.0) * 255).astype(np.uint8)
    return pixels.reshape(-1, SIDE, SIDE), y.astype(np.int32)
