"""Rows that are too many for memory: a folder of `x.npy` and `y.npy`, read by ranges.

`StoredRows` is what training over windows needs of a data set: how many rows there are, and any
range of them. `StoredArrays` is the plainest kind:

    folder/x.npy        numbers [n, ...], a row an example
    folder/y.npy        labels or numbers to learn [n, ...]
    folder/query.npy    bool [n], may be absent: the data's own split

A range is read by `pread` into arrays of its own. The files are not mapped: pages of a map that
were touched count as the process's memory, and a file that is cut short ends a process that has
mapped it with SIGBUS. What the headers declare is compared with the files' sizes before anything
is allocated.
"""

from __future__ import annotations

import math
import os
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from .data_files import BROKEN, read_npy_header
from .rows import BYTES_MAX, NoDataError, Rows, RowType, check_size, number_of

X, Y, QUERY = "x.npy", "y.npy", "query.npy"
#: The most rows of a data set: what row numbers and shuffles are made for.
ROWS_MAX = 1 << 40
#: One read of a file: what a copy takes besides the array that it is read into.
_PIECE_BYTES = 1 << 20
_NAMES = {
    **{"f4": "f32", "f8": "f64", "i4": "i32", "i8": "i64"},
    **{"u1": "u8", "u4": "u32", "b1": "bool"},
}

Array = NDArray[Any]


class StoredRows(Protocol):
    """Rows that need not fit in memory, by random access.

    An attribute `paths`, a tuple of texts, names the files and folders that `read` opens later. A
    device's training process may read these and no others once it runs programs; what is open
    before that stays open. It starts no thread and no process then.
    """

    @property
    def rows(self) -> int:
        """How many rows there are."""

    def version(self) -> int | None:
        """Changes when the data does; cheap to ask. None: unknown, taken for changed."""

    def row_type(self) -> RowType:
        """Shape and dtype of a row of x, and whether numbers are learnt."""

    def read(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1. Any thread may call it.

        Raises:
            DelianError: they cannot be read, or have changed since the data set was opened.
        """


def is_stored(source: Any) -> TypeGuard[StoredRows]:
    """Whether a source gives ranges of rows, and not all of them at once."""
    return hasattr(source, "row_type") and hasattr(source, "rows")


def holds_arrays(folder: Path) -> bool:
    """Whether a folder is one for `StoredArrays`, though one of its two files may be missing."""
    return (folder / X).is_file() or (folder / Y).is_file()


class StoredArrays:
    """The rows of a folder of `x.npy` and `y.npy`; see the module.

    bytes_max: the most memory that one range may take. Raises NoDataError where a file is missing
    or there are no rows, DelianError for files that are damaged, cut short, or do not fit together.
    """

    def __init__(self, folder: Path, bytes_max: int = BYTES_MAX) -> None:
        self.folder, self._bytes_max = Path(folder), bytes_max
        self._x, self._y = StoredArray(self.folder / X), StoredArray(self.folder / Y)
        split = self.folder / QUERY
        self._query = StoredArray(split) if split.exists() else None
        self._files = [a for a in (self._x, self._y, self._query) if a is not None]
        for array in self._files[1:]:
            if array.rows != self._x.rows:
                raise DelianError(
                    f"{array.path} has {array.rows} rows, and {X} has {self._x.rows}",
                    "a row of each belongs to one example; write both again",
                )
        if self._query is not None and (self._query.dtype.kind != "b" or self._query.shape):
            raise DelianError(
                f"{split} is {self._query.dtype}[n{', ...' if self._query.shape else ''}]",
                "it has one truth value a row: whether the row only judges",
            )

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._x.rows

    def version(self) -> int | None:
        """A number that changes when a file does; None: one cannot be read."""
        try:
            return number_of(" ".join(_facts(array.path.stat()) for array in self._files))
        except OSError:
            return None

    def row_type(self) -> RowType:
        """Of a row of `x.npy`."""
        return _row_type(self._x.shape, self._x.dtype, self._y.dtype)

    def read(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1; see `StoredRows`."""
        if not 0 <= start < stop <= self.rows:
            raise DelianError(f"{self.folder}: there are no rows {start}..{stop - 1}")
        each = sum(array.row_bytes for array in self._files)
        check_size(f"{stop - start} rows of {self.folder}", each * (stop - start), self._bytes_max)
        query = None if self._query is None else self._query.read(start, stop)
        made = Rows(self._x.read(start, stop), self._y.read(start, stop), query)
        for array in self._files:
            array.check_unchanged()
        return made


class HeldRows:
    """Rows that are in memory, by ranges."""

    def __init__(self, rows: Rows, version: int | None = None) -> None:
        self._rows, self._version = rows, version

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._rows.x)

    def version(self) -> int | None:
        """As it was given."""
        return self._version

    def row_type(self) -> RowType:
        """Of a row of x."""
        return _row_type(self._rows.x.shape[1:], self._rows.x.dtype, self._rows.y.dtype)

    def read(self, start: int, stop: int) -> Rows:
        """Views of rows start..stop-1."""
        query = self._rows.query
        split = None if query is None else query[start:stop]
        return Rows(self._rows.x[start:stop], self._rows.y[start:stop], split)


def _row_type(shape: tuple[int, ...], x: np.dtype[Any], y: np.dtype[Any]) -> RowType:
    native = x.newbyteorder("=")
    return RowType(shape, _NAMES.get(native.str[1:], native.name), numbers=y.kind == "f")


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the rows lie in a file."""

    rows: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int


class StoredArray:
    """The rows of one .npy file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            raise NoDataError(f"there is no data file {path}", f"write {X} and {Y} with numpy.save")
        try:
            self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise DelianError(
                f"cannot read {path}: {error.strerror}", "check the file's permissions"
            ) from None
        weakref.finalize(self, os.close, self._fd)
        self._was = _facts(os.fstat(self._fd))
        layout = _layout(path, self._fd)
        self.rows, self.shape, self.dtype = layout.rows, layout.shape, layout.dtype
        self._offset = layout.offset
        self.row_bytes = math.prod(self.shape) * self.dtype.itemsize

    def read(self, start: int, stop: int) -> Array:
        """Rows start..stop-1, in this machine's byte order."""
        made = np.empty((stop - start, *self.shape), self.dtype)
        place, at = made.reshape(-1).view(np.uint8), self._offset + start * self.row_bytes
        done = 0
        while done < place.size:
            try:
                piece = os.pread(self._fd, min(_PIECE_BYTES, place.size - done), at + done)
            except OSError as error:
                raise DelianError(
                    f"{self.path} cannot be read at byte {at + done}: {error.strerror}",
                    "check the disk; the file may have to be restored",
                ) from None
            if not piece:
                self.check_unchanged()
                raise DelianError(
                    f"{self.path} ends at byte {at + done}, within row {start}..{stop - 1}",
                    "it was cut short: write it again",
                )
            place[done : done + len(piece)] = np.frombuffer(piece, np.uint8)
            done += len(piece)
        return made.astype(self.dtype.newbyteorder("="), copy=False)

    def check_unchanged(self) -> None:
        """Raises DelianError where the file is not what it was when it was opened."""
        try:
            same = _facts(os.fstat(self._fd)) == self._was == _facts(self.path.stat())
        except OSError:
            same = False
        if not same:
            raise DelianError(
                f"{self.path} changed while it was read",
                "training begins again with the new data; replace a file whole, by a rename",
            )


def _layout(path: Path, fd: int) -> _Layout:
    """Raises DelianError for a file that is no .npy file of rows, or not whole."""
    try:
        with open(fd, "rb", closefd=False) as stream:
            shape, fortran, dtype = read_npy_header(stream)
            offset = stream.tell()
    except BROKEN as error:
        raise DelianError(
            f"{path} is no .npy file: {error}", "write it with numpy.save, as an array of numbers"
        ) from None
    if dtype.hasobject or dtype.kind not in "fiub" or not shape or (fortran and len(shape) > 1):
        order = ", in Fortran's order" if fortran else ""
        raise DelianError(
            f"{path} is {dtype}{list(shape)}{order}",
            "an array of numbers with a row an example, in C's order (numpy.ascontiguousarray)",
        )
    rows, size = shape[0], os.fstat(fd).st_size
    if rows < 1 or math.prod(shape) < 1:
        raise NoDataError(f"{path} has no rows", "collect more before taking part")
    declared = offset + math.prod(shape) * dtype.itemsize
    if size != declared or rows > ROWS_MAX:
        raise DelianError(
            f"{path} declares {rows} rows in {declared} bytes, and has {size} bytes",
            "it is not whole, or its header is wrong: write it again",
        )
    return _Layout(rows, tuple(shape[1:]), dtype, offset)


def _facts(found: os.stat_result) -> str:
    return f"{found.st_mtime_ns} {found.st_size} {found.st_ino} {found.st_dev}"
