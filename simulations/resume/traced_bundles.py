"""Traced bundles on disk, by what they are traced from.

To trace an algorithm over a model takes longer than all the rest of a short run. What comes out is
a function of the package's own sources, the scenario's model, algorithm and chain, and a few facts
of its data; a run that has them all in common with an earlier one reads that one's bundle, whatever
its fleet, links and evaluations. The file's programs are verified when they are read, as those of
any bundle.

Nothing is kept of a model or an algorithm in a file of the user's: it may import whatever it likes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...core.common.errors import DelianError
from ...core.common.files import make_private, write_whole
from ...core.compiler import tree
from ...core.compiler.backends.native.toolchain.toolchain import cache_folder
from ...core.learning.bundle import Bundle, load

#: Bundles that are kept; of more, those that were not used for longest go.
KEPT_MAX = 64
#: A larger bundle is not kept: its weights would be most of it.
BYTES_MAX = 64 * 2**20
#: Parts of the package that decide what a trace is.
_SOURCES = ("core", "simulations")


def bundle_of(data: Any, facts: Any, trace: Callable[[], Bundle]) -> Bundle:
    """The bundle that `trace` makes, or what it made when all of this was the same.

    data: one device's arrays, of which types count. facts: all else that goes into the trace, as
    plain data.
    """
    path = folder() / f"{_key(data, facts)}.bundle"
    with contextlib.suppress(DelianError):  # none there, or not one that this version reads
        bundle = load(path, own=True)  # its name has the hash of the sources that wrote it
        _touch(path)
        return bundle
    bundle = trace()
    _keep(path, bundle)
    return bundle


def folder() -> Path:
    """Where bundles are stored, next to compiled programs."""
    return cache_folder() / "traced"


def _key(data: Any, facts: Any) -> str:
    leaves, structure = tree.flatten(data)
    types = [(str(leaf.dtype), leaf.shape) for leaf in map(np.asarray, leaves)]
    versions = [platform.python_version(), np.__version__]
    said = json.dumps([facts, types, repr(structure), versions], sort_keys=True)
    return hashlib.sha256(f"{_sources()} {said}".encode()).hexdigest()


@functools.cache
def _sources() -> str:
    """A hash of names, sizes and times of change of the package's sources."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for name in _SOURCES:
        for path, size, changed in sorted(_files(root / name)):
            digest.update(f"{path} {size} {changed}\n".encode())
    return digest.hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name != "__pycache__":
                yield from _files(Path(entry.path))
            elif entry.name.endswith(".py"):
                stat = entry.stat()
                yield entry.path, stat.st_size, stat.st_mtime_ns


def _keep(path: Path, bundle: Bundle) -> None:
    """A cache that cannot be written is none: nothing is said of it."""
    content = bundle.to_bytes()
    if len(content) > BYTES_MAX:
        return
    with contextlib.suppress(OSError):
        make_private(path.parent)
        write_whole(path, content)
        kept = sorted(path.parent.glob("*.bundle"), key=lambda p: p.stat().st_mtime_ns)
        for old in kept[:-KEPT_MAX]:
            old.unlink(missing_ok=True)


def _touch(path: Path) -> None:
    with contextlib.suppress(OSError):  # a folder that is only read has no order of use
        os.utime(path)
