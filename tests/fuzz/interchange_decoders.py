"""The decoders of files of other frameworks."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from delian.core.compiler.ir import DType
from delian.core.learning.interchange.safetensors_file import read_safetensors, write_safetensors


@cache
def _folder() -> Path:
    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    return Path(made.name)


def _read_safetensors(data: bytes) -> object:
    path = _folder() / "read.safetensors"
    path.write_bytes(data)
    arrays, metadata = read_safetensors(path)
    # What is read is a file again, and the same one.
    write_safetensors(path, arrays, metadata)
    again, texts = read_safetensors(path)
    assert texts == metadata and again.keys() == arrays.keys()
    assert all(again[n].tobytes() == a.tobytes() for n, a in arrays.items())
    return arrays


def _safetensors() -> list[bytes]:
    path, found = _folder() / "seed.safetensors", []
    every = {d.value: np.ones((2, 3), d.numpy) for d in DType.here()}
    for arrays, metadata in ((every, {"format": "np"}), ({"x": np.zeros((0, 2))}, {}), ({}, {})):
        write_safetensors(path, arrays, metadata)
        found.append(path.read_bytes())
    return found


DECODERS: dict[str, tuple[Callable[[bytes], object], Callable[[], list[bytes]]]] = {
    "safetensors": (_read_safetensors, _safetensors),
}
