"""A packed file as stored rows. A block is compared with its checksum when it is first read."""

from __future__ import annotations

import io
import threading
import zlib
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ..data_files import BROKEN, read_npy_header
from ..formats.array_rows import Numbers, check_range, dtype_name
from ..formats.file_ranges import FileRanges
from ..rows import Rows, RowType, check_size
from .packed_layout import (
    ABOUT,
    ABOUT_BYTES_MAX,
    HEADER_BYTES_MAX,
    LOCAL,
    LOCAL_BYTES,
    About,
    about_of,
    block_of,
)
from .zip_directory import Place, content_start, directory, local_member

Array = NDArray[Any]


def is_packed(path: Path) -> bool:
    """Whether a file begins as a packed one does."""
    try:
        with path.open("rb") as file:
            start = file.read(LOCAL_BYTES + len(ABOUT))
    except OSError:
        return False
    return start.startswith(LOCAL) and start[LOCAL_BYTES:] == ABOUT.encode()


def read_about(file: FileRanges) -> About:
    """What a packed file says of itself, from its beginning. Raises DelianError."""
    with file.opened() as stream:
        found = local_member(file, stream, 0)
        if found is None or found[0].name != ABOUT or found[0].size > ABOUT_BYTES_MAX:
            raise DelianError(f"{file.path} is no packed file", "make one with `delian data pack`")
        content = bytes(file.read_from(stream, found[1], found[0].size))
    if zlib.crc32(content) != found[0].crc:
        raise DelianError(f"{file.path}: {ABOUT} is damaged", "pack the data again")
    return about_of(content, file.path)


def packed_columns(path: Path) -> tuple[str, ...]:
    """The names of a packed file's columns. Raises DelianError where it is damaged."""
    return tuple(read_about(FileRanges(path)).columns)


def packed_arrays(path: Path, bytes_max: int) -> dict[str, Array]:
    """All rows of a packed file: `x`, `y` and perhaps `query`.

    Raises DelianError for a file that is damaged, or takes more than `bytes_max`.
    """
    stored = PackedRows(path)
    about = stored.about
    check_size(str(path), stored.row_bytes * about.rows, bytes_max)
    found = stored.read(0, about.rows)
    whole = {"x": found.x, "y": found.y}
    return whole if found.query is None else {**whole, "query": found.query}


class PackedRows:
    """The rows of a packed file.

    Raises NoDataError where it is missing, DelianError for one that is torn or none.
    """

    def __init__(self, path: Path) -> None:
        self._file = FileRanges(path)
        self.path = path
        self.about = read_about(self._file)
        self._places = _places(self._file, self.about)
        # Of each block: where its rows begin, and -1 until it was compared with its checksum.
        self._starts = {
            name: np.full(self.about.blocks, -1, np.int64) for name in self.about.columns
        }
        self._lock = threading.Lock()

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self.about.rows

    @property
    def row_bytes(self) -> int:
        """What a row takes, of all columns."""
        return sum(column.row_bytes for column in self.about.columns.values())

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, where the source had some."""
        return self.about.classes

    def version(self) -> int | None:
        """That of the file."""
        return self._file.version()

    def row_type(self) -> RowType:
        """Of a row of x."""
        x, y = self.about.columns["x"], self.about.columns["y"]
        return RowType(
            x.shape, dtype_name(np.dtype(x.dtype)), numbers=np.dtype(y.dtype).kind == "f"
        )

    def read(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1. Raises DelianError naming the rows of a damaged block."""
        check_range(str(self.path), start, stop, self.rows)
        return self._runs([start], [stop])

    def gather(self, numbers: Numbers) -> Rows:
        """The rows with these numbers; those next to each other are one read."""
        if not len(numbers):
            raise DelianError("no rows were asked for", "give at least one number")
        check_range(str(self.path), int(numbers.min()), int(numbers.max()) + 1, self.rows)
        order = None if (np.diff(numbers) > 0).all() else np.argsort(numbers, kind="stable")
        ascending = numbers if order is None else numbers[order]
        cuts = np.flatnonzero(np.diff(ascending) != 1)
        starts = ascending[np.concatenate([[0], cuts + 1])]
        stops = ascending[np.concatenate([cuts, [len(ascending) - 1]])] + 1
        found = self._runs(starts.tolist(), stops.tolist())
        if order is None:
            return found
        back = np.argsort(order, kind="stable")
        query = None if found.query is None else found.query[back]
        return Rows(found.x[back], found.y[back], query)

    def _runs(self, starts: list[int], stops: list[int]) -> Rows:
        """Ranges of rows, one after another."""
        count = sum(stops) - sum(starts)
        made: dict[str, Array] = {}
        with self._file.opened() as stream:
            for name, column in self.about.columns.items():
                rows = np.empty((count, *column.shape), column.dtype)
                at = 0
                for start, stop in zip(starts, stops, strict=True):
                    self._fill(stream, name, start, stop, rows[at : at + stop - start])
                    at += stop - start
                made[name] = rows.astype(rows.dtype.newbyteorder("="), copy=False)
        return Rows(made["x"], made["y"], made.get("query"))

    def _fill(self, stream: FileIO, name: str, start: int, stop: int, out: Array) -> None:
        column, block = self.about.columns[name], self.about.block
        for k in range(start // block, (stop - 1) // block + 1):
            begin, end = self.about.rows_of(k)
            first, last = max(start, begin), min(stop, end)
            place = out[first - start : last - start]
            at = int(self._starts[name][k])
            if at < 0:
                place[...] = self._checked(stream, name, k)[first - begin : last - begin]
            else:
                at += (first - begin) * column.row_bytes
                self._file.read_into(stream, at, place)

    def _checked(self, stream: FileIO, name: str, k: int) -> Array:
        """A whole block, which equals its checksum."""
        place, column = self._places[name][k], self.about.columns[name]
        begin, end = self.about.rows_of(k)
        at = content_start(self._file, stream, place)
        content = self._file.read_from(stream, at, place.size)
        if zlib.crc32(content) != place.crc:
            raise self._damaged(name, begin, end, "its checksum does not match")
        header = io.BytesIO(memoryview(content)[:HEADER_BYTES_MAX])
        try:
            shape, fortran, dtype = read_npy_header(header)
        except BROKEN as error:
            raise self._damaged(name, begin, end, str(error)) from None
        rows_at = header.tell()
        if (shape, dtype) != ((end - begin, *column.shape), np.dtype(column.dtype)) or (
            fortran and len(shape) > 1
        ):
            raise self._damaged(name, begin, end, f"it is {dtype}{list(shape)}")
        if place.size - rows_at != (end - begin) * column.row_bytes:
            raise self._damaged(name, begin, end, f"it has {place.size} bytes")
        with self._lock:
            self._starts[name][k] = at + rows_at
        return np.frombuffer(content, dtype, offset=rows_at).reshape(shape)

    def _damaged(self, name: str, begin: int, end: int, why: str) -> DelianError:
        return DelianError(
            f"{self.path}: rows {begin}..{end - 1} of {name} are damaged: {why}",
            f"`delian data check {self.path}` lists all that are; pack the data again",
        )


def _places(file: FileRanges, about: About) -> dict[str, list[Place]]:
    """The members of each column, a block each. Raises DelianError where one is missing."""
    found: dict[str, dict[int, Place]] = {name: {} for name in about.columns}
    for place in directory(file):
        block = block_of(place.name)
        if block is not None and block[0] in found:
            found[block[0]][block[1]] = place
    for name, places in found.items():
        missing = next((k for k in range(about.blocks) if k not in places), None)
        if missing is not None or len(places) != about.blocks:
            raise DelianError(
                f"{file.path} declares {about.blocks} blocks of {name} and has {len(places)}",
                f"`delian data check {file.path}` says which rows are lost",
            )
    made = {name: [places[k] for k in range(about.blocks)] for name, places in found.items()}
    for name, ordered in made.items():
        _check_sizes(file, about, name, ordered)
    return made


def _check_sizes(file: FileRanges, about: About, name: str, places: list[Place]) -> None:
    """Raises DelianError where a block is not as large as its rows: nothing is allocated for it."""
    for k, place in enumerate(places):
        if not about.fits(name, k, place.size) or place.at + place.size > file.size:
            begin, end = about.rows_of(k)
            raise DelianError(
                f"{file.path} declares {about.columns[name].row_bytes} bytes for each of rows"
                f" {begin}..{end - 1} of {name}, and has {place.size} bytes for them at byte"
                f" {place.at} of {file.size}",
                f"`delian data check {file.path}` says which rows are lost",
            )
