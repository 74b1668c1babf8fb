"""Compiled programs on disk, by what they are made of.

A file is named by the hash of the programs, the compiler (version, flags, processor) and the source
of this emitter. It ends with the SHA-256 of the rest, because loading a damaged shared object can
kill the process: a file that does not match is built again.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from importlib import resources
from pathlib import Path

from ...errors import DelianError
from .toolchain import Toolchain, cache_folder

_DIGEST_BYTES = 32


@functools.cache
def emitter_version() -> str:
    """A hash of everything that decides what C is written."""
    root = resources.files(__package__.rsplit(".", 2)[0])  # delian.core
    digest = hashlib.sha256(root.joinpath("ir.py").read_bytes())
    for folder in (("backends", "native"), ("passes",), ("ops",)):
        files = root.joinpath(*folder)
        for file in sorted(files.iterdir(), key=lambda f: f.name):
            if file.name.endswith((".py", ".h")):
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def key_of(toolchain: Toolchain, programs: Iterable[tuple[str, str]]) -> str:
    """The key of a shared object with these entries: (name, content hash of the function)."""
    digest = hashlib.sha256()
    for part in (emitter_version(), toolchain.identity, *(x for pair in programs for x in pair)):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def shared_object(key: str, toolchain: Toolchain, source: Callable[[], str]) -> Path:
    """The shared object with this key, built from the C that `source` gives unless it is there.

    The C file is kept beside it, to be read. Raises DelianError when the compiler refuses it.
    """
    folder = cache_folder() / "native"
    path = folder / f"{key}.so"
    if not _is_sound(path):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _build(folder, path, toolchain, source())
        except OSError as error:
            raise DelianError(
                f"compiled programs cannot be kept in {folder}: {error}",
                "set DELIAN_CACHE to a folder that can be written",
            ) from error
    return path


def _is_sound(path: Path) -> bool:
    try:
        content = path.read_bytes()
    except OSError:
        return False
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    return hashlib.sha256(body).digest() == digest


def _build(folder: Path, path: Path, toolchain: Toolchain, text: str) -> None:
    """Builds in a folder of its own, then moves the file into place: others may build it too."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source, output = Path(scratch) / "program.c", Path(scratch) / "program.so"
        source.write_text(text, encoding="utf-8")
        toolchain.compile(source, output)
        body = output.read_bytes()
        with output.open("ab") as file:
            file.write(hashlib.sha256(body).digest())
            file.flush()
            os.fsync(file.fileno())
        source.replace(path.with_suffix(".c"))
        output.replace(path)
