"""Where a device's own data comes from: `delian.data`.

A source is anything with `version()` and `read(row)`. It gives rows, `x` [n, ...] and `y` [n], and
says by a number when they have changed; how rows become the arrays that a bundle's programs take is
`fit`'s business, not the source's. One with `rows` and `read(start, stop)` gives ranges of rows
instead (`StoredRows`). These are built in, named by one string:

    readings.csv            numeric columns and a label column
    digits.npz              arrays `x` and `y`, or the very arrays that a bundle takes
    photos/                 images, a folder for each class (needs the extra `images`)
    packed.npz              what `delian data pack` writes (`packed`), one file or a folder of them
    rows.parquet            Parquet, one file or a folder of them (needs the extra `tables`)
    shards.tar              WebDataset, one tar or a folder of them
    saved/                  what `datasets` saved with save_to_disk (needs the extra `tables`)
    rows/                   x.npy and y.npy, which need not fit in memory (`stored_rows`)
    sensor:FOLDER           what a program appends through `SensorBuffer`
    python:MODULE:FUNCTION  a function of the owner's, called without arguments
    entry:NAME              the same, as an installed package offers it ("delian.data")

The last two run Python code. They come from the device owner's configuration and from nowhere else:
no server can name one. Everything here runs in the training process, within its limits.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...common.errors import DelianError
from .data_files import npz_keys, read_npz
from .formats.device_rows import DeviceRows, path_version, sized_for, stored_kind
from .rows import (
    BYTES_MAX,
    DataSettings,
    Leaves,
    NoDataError,
    Rows,
    RowType,
    Source,
    check_size,
    file_version,
    require,
)
from .sensor import SensorBuffer, count_appended, read_segments
from .stored_rows import StoredArrays, StoredRows, holds_arrays, is_stored

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "DataSettings",
    "Leaves",
    "NoDataError",
    "RowType",
    "Rows",
    "SensorBuffer",
    "Source",
    "check_source",
    "open_source",
    "version_of",
]

ENTRY_POINTS = "delian.data"


def open_source(settings: DataSettings) -> Source | StoredRows:
    """The source that the settings name. Raises DelianError when no kind of source has the name."""
    name = settings.source
    if not name:
        raise NoDataError("this device has no data source", "name one with --data, or data.source")
    kind, colon, rest = name.partition(":")
    if colon and kind == "sensor":
        return SensorSource(Path(rest), settings.bytes_max)
    if colon and kind == "python":
        return _from_function(_named(rest), name, settings)
    if colon and kind == "entry":
        return _from_function(_installed(rest), name, settings)
    path = Path(name)
    if stored_kind(path, settings.bytes_max):
        return DeviceRows(settings)
    if path.suffix == ".csv":
        from .csv_rows import CsvSource

        return CsvSource(path, settings)
    if path.suffix == ".npz":
        return NpzSource(path, settings.bytes_max)
    if holds_arrays(path):
        return StoredArrays(path, settings.bytes_max)
    from ...common.foreign_formats import refuse_file

    refuse_file(name, "data")
    raise NoDataError(
        f"{name} is no data source: no such folder, and no file of a known format",
        "give .npz, .csv, .parquet or .tar, a folder of images, of shards or of x.npy and y.npy,"
        " sensor:FOLDER or python:MODULE:FUNCTION",
    )


def read_all(source: Source | StoredRows, row: RowType) -> Rows | Leaves:
    """All of a source's data, within the limit that it was opened with; row: as the bundle says.

    Raises DelianError where it cannot be read.
    """
    if not is_stored(source):
        return cast(Source, source).read(row)
    return sized_for(source, row).read(0, source.rows)


def check_source(settings: DataSettings) -> str:
    """Whether there is a source, as far as that can be seen without reading its rows.

    What a bundle takes is not known here, so no shape is looked at; and no code of the owner's
    runs.

    Returns:
        What is odd about it, in words; empty: nothing.

    Raises:
        DelianError: there is no such file, folder, module or package, or it can hold no rows.
    """
    name = settings.source
    if not name:
        return "no data source is named, so it cannot train: --data, or device.data.source"
    kind, colon, rest = name.partition(":")
    if colon and kind == "python":
        _check_module(rest)
        return ""
    if colon and kind == "entry":
        _entry(rest)
        return ""
    if kind := stored_kind(Path(name), settings.bytes_max):
        _check_stored(Path(name), kind, settings)
        return ""
    source = open_source(settings)
    if is_stored(source):
        return ""
    if isinstance(source, SensorSource):
        return "" if source.folder.exists() else f"nothing is appended to {source.folder} yet"
    if isinstance(source, NpzSource):
        require(source.path)
        present = npz_keys(source.path)
        if not present:
            raise NoDataError(f"{name} has no arrays", "write x and y with numpy.savez")
        if {"x", "y"} <= set(present):
            return ""
        return f"{name} has no x and y, only {', '.join(present)}: few bundles take these"
    require(Path(name))
    return ""


def _check_stored(path: Path, kind: str, settings: DataSettings) -> None:
    """As much as is seen without the packages that read such data: they take memory."""
    if not path.is_dir():
        require(path)
    elif kind == "images":
        from .images import ImageFolder

        if next(iter(ImageFolder(path, settings).files()), None) is None:
            raise NoDataError(f"{path} holds no images", "make a folder for each class in it")


def _check_module(rest: str) -> None:
    """Raises DelianError where `python:` names no function, or its package is not installed."""
    module, colon, function = rest.partition(":")
    if not colon or not module or not function:
        raise DelianError(f"python:{rest} names no function", "write python:MODULE:FUNCTION")
    package = module.partition(".")[0]
    # As the training process sees it, which starts with the environment of now.
    path = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    found = importlib.util.find_spec(package) or PathFinder.find_spec(package, path)
    if found is None:
        raise DelianError(
            f"there is no module {package}",
            "it is looked for in PYTHONPATH and the installed packages; try it with plain Python",
        )


def version_of(settings: DataSettings) -> int | None:
    """The data's version where it can be had without running the owner's code; else None."""
    name = settings.source
    if not name or name.startswith(("python:", "entry:")):
        return None
    path = Path(name)
    if stored_kind(path, settings.bytes_max):
        return path_version(path)
    try:
        return open_source(settings).version()
    except DelianError:
        return None


class NpzSource:
    """An .npz file with `x`, `y` and perhaps `query`, or with all arrays that the bundle takes."""

    def __init__(self, path: Path, bytes_max: int = BYTES_MAX) -> None:
        self.path, self.bytes_max = path, bytes_max

    def version(self) -> int | None:
        return file_version(self.path)

    def read(self, row: RowType) -> Rows | Leaves:
        require(self.path)
        check_size(str(self.path), self.path.stat().st_size, self.bytes_max)
        present = npz_keys(self.path)
        whole = set(row.names) <= set(present)
        wanted = row.names if whole else ("x", "y", *(["query"] if "query" in present else []))
        arrays = read_npz(self.path, list(wanted))
        check_size(str(self.path), sum(a.nbytes for a in arrays.values()), self.bytes_max)
        return Leaves(arrays) if whole else Rows(**arrays)


# ---------------------------------------------------------------- live data, the owner's code


class SensorSource:
    """What programs on this device append through a `SensorBuffer` of the same folder."""

    def __init__(self, folder: Path, bytes_max: int = BYTES_MAX) -> None:
        self.folder, self.bytes_max = folder, bytes_max

    def version(self) -> int | None:
        return count_appended(self.folder)

    def read(self, row: RowType) -> Rows:
        x, y = read_segments(self.folder, self.bytes_max)
        if len(y) == 0:
            raise NoDataError(f"nothing has been appended to {self.folder} yet", "start the sensor")
        return Rows(x, y)


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """What a function of the owner's gives: Rows, Leaves, a pair (x, y) or a dict of arrays."""

    name: str
    function: Callable[[], Any]
    bytes_max: int

    def version(self) -> int | None:
        return None

    def read(self, row: RowType) -> Rows | Leaves:
        given = _call(self.function, self.name)
        if is_stored(given):
            given = read_all(given, row)
        if isinstance(given, tuple) and len(given) == 2:
            given = Rows(np.asarray(given[0]), np.asarray(given[1]))
        elif isinstance(given, Mapping):
            given = Leaves({str(k): np.asarray(v) for k, v in given.items()})
        if not isinstance(given, Rows | Leaves):
            raise DelianError(
                f"{self.name} gave {type(given).__name__}",
                "it gives (x, y), a dict of arrays, or a source with version() and read(row)",
            )
        arrays = given.arrays.values() if isinstance(given, Leaves) else (given.x, given.y)
        check_size(self.name, sum(a.nbytes for a in arrays), self.bytes_max)
        return given


def _call(function: Callable[[], Any], name: str) -> Any:
    try:
        return function()
    except (DelianError, MemoryError):
        raise
    except Exception as error:
        raise DelianError(
            f"{name} raised {type(error).__name__}: {error}", "try it with plain Python first"
        ) from error


def _from_function(
    function: Callable[[], Any], name: str, settings: DataSettings
) -> Source | StoredRows:
    """The function itself as a source, or the source that it makes when it says so by its mark.

    A function with an attribute `source` that is true makes a Source; any other gives data.
    """
    if getattr(function, "source", False) or isinstance(function, type):
        made = _call(function, name)
        if not (hasattr(made, "version") and hasattr(made, "read")):
            raise DelianError(f"{name} made {type(made).__name__}", "a source has version and read")
        return made  # type: ignore[no-any-return]
    return FunctionSource(name, function, settings.bytes_max)


def _named(text: str) -> Callable[[], Any]:
    module_name, colon, function_name = text.partition(":")
    if not colon or not module_name or not function_name:
        raise DelianError(f"python:{text} names no function", "write python:MODULE:FUNCTION")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise DelianError(
            f"importing {module_name} failed: {type(error).__name__}: {error}",
            "it is looked for in PYTHONPATH and the installed packages; try it with plain Python",
        ) from error
    found = getattr(module, function_name, None)
    if not callable(found):
        raise DelianError(f"{module_name} has no function {function_name}")
    return found  # type: ignore[no-any-return]


def _installed(name: str) -> Callable[[], Any]:
    entry = _entry(name)
    try:
        return entry.load()  # type: ignore[no-any-return]
    except Exception as error:
        raise DelianError(
            f"loading the data source {name} failed: {error}", f"it is {entry.value}"
        ) from error


def _entry(name: str) -> EntryPoint:
    """What an installed package offers by this name. Raises DelianError."""
    from importlib import metadata

    offers = metadata.entry_points(group=ENTRY_POINTS)
    for entry in offers:
        if entry.name == name:
            return entry
    known = ", ".join(sorted(e.name for e in offers)) or "none"
    raise DelianError(
        f"no installed package offers the data source {name}; there is {known}",
        f"a package offers one as an entry point of the group {ENTRY_POINTS!r}",
    )
