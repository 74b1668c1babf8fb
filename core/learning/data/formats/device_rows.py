"""Stored rows as a device's data source: within the owner's limit, and in the bundle's row type.

What kind of data a path has, and its version, is found without a package that reads it: the agent,
which asks for these, has no memory to spare for them.
"""

from __future__ import annotations

import os
from pathlib import Path

from ....common.errors import DelianError
from ..rows import DataSettings, NoDataError, Rows, RowType, check_size, file_version, number_of
from ..stored_rows import StoredRows, is_stored
from .opened_rows import PARQUET, TAR, folder_kind, stored_path

_ITEM_BYTES = {"u8": 1, "bool": 1, "f64": 8, "i64": 8}
#: Entries of a folder that its version is made of.
_ENTRIES_MAX = 1 << 20


def stored_kind(path: Path, bytes_max: int) -> str:
    """Which format of stored rows a path is of; empty: none, or a file that is read as a whole."""
    if path.suffix == ".csv":
        # A smaller one is parsed once, and kept.
        return "csv" if path.is_file() and path.stat().st_size > bytes_max else ""
    if path.suffix == ".npz":
        from ..packed.packed_rows import is_packed

        return "packed" if is_packed(path) else ""
    if path.suffix in PARQUET:
        return "parquet"
    if path.suffix == TAR:
        return "tar"
    if not path.is_dir():
        return ""
    kind = folder_kind(path)
    return "" if kind == "arrays" else kind


def path_version(path: Path) -> int | None:
    """Changes when a file or one of a folder's entries does; None: it cannot be read."""
    if not path.is_dir():
        return file_version(path)
    try:
        with os.scandir(path) as entries:
            found = sorted(
                (e.name, s.st_mtime_ns, s.st_size, s.st_ino)
                for e, _ in zip(entries, range(_ENTRIES_MAX), strict=False)
                for s in (e.stat(),)
            )
    except OSError:
        return None
    return number_of(" ".join(map(str, found)))


class DeviceRows:
    """Stored rows of a path, within a limit: what `open_source` gives.

    bytes_max: of one range. Raises NoDataError or DelianError as the format does.
    """

    def __init__(self, settings: DataSettings, stored: StoredRows | None = None) -> None:
        self.path, self._settings = Path(settings.source), settings
        found = stored or stored_path(self.path, settings)
        if found is None:
            raise NoDataError(f"{self.path} is no data source", "docs/devices.md lists them")
        self._stored = found

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._stored.rows

    def version(self) -> int | None:
        """Of the path, as `path_version`."""
        return path_version(self.path)

    def row_type(self) -> RowType:
        """Of a row of x."""
        return self._stored.row_type()

    def sized(self, kind: RowType) -> DeviceRows:
        """In a bundle's row type, where the format has a choice: sizes of images, numbers."""
        return DeviceRows(self._settings, sized_for(self._stored, kind))

    def read(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1. Raises DelianError also where they take more than the limit."""
        kind = self.row_type()
        each = _ITEM_BYTES.get(kind.dtype, 4)
        for side in kind.shape:
            each *= side
        # y may be larger than x.
        each = max(each, int(getattr(self._stored, "row_bytes", 0)))
        what = f"{stop - start} rows of {self.path}"
        check_size(what, each * (stop - start), self._settings.bytes_max)
        return self._stored.read(start, stop)


def sized_for(source: StoredRows, kind: RowType) -> StoredRows:
    """A source's rows in a bundle's row type, where it has a choice; else as they are."""
    sized = getattr(source, "sized", None)
    if sized is None:
        return source
    found = sized(kind)
    if not is_stored(found):
        raise DelianError(f"{type(source).__name__}.sized gave no stored rows", "see StoredRows")
    return found
