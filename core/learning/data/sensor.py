"""A live buffer of a sensor's rows on disk: appended by one process, read by another, capped.

    buffer = delian.data.SensorBuffer("readings", shape=(3,), bytes_max=8 << 20)
    buffer.append([0.1, 0.2, 0.3], 1)            # from any thread or process of this machine

A folder of segments, named by the number of rows that were appended before them. A row is a record
of fixed length, the numbers of x, the label and a CRC, written by one call under a lock on the
folder; so readers need no lock: a record that is cut short, or torn by a power cut, does not match
its CRC and is left out. When the segments outgrow the cap the oldest one goes whole. Kept on a
memory file system (/dev/shm) the buffer is gone with the power; anywhere else it persists.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import struct
import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ...common.errors import DelianError

#: A buffer is dropped in this many pieces, so that the cap is kept to within an eighth.
SEGMENTS = 8
MAGIC = b"delian sensor 1\n"
HEADER_BYTES_MAX = 1024
ROW_BYTES_MAX = 1 << 24
SUFFIX = ".rows"
DTYPES: dict[str, np.dtype[Any]] = {
    "u8": np.dtype("u1"),
    "f32": np.dtype("<f4"),
    "i32": np.dtype("<i4"),
}
_CRC = struct.Struct("<I")
_LABEL = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a row lies in a segment."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def x_bytes(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize

    @property
    def record(self) -> int:
        return self.x_bytes + _LABEL.size + _CRC.size

    def header(self) -> bytes:
        said = json.dumps({"shape": self.shape, "dtype": self.dtype}).encode()
        return MAGIC + struct.pack("<H", len(said)) + said


class SensorBuffer:
    """Appends rows; see the module. Safe to use from several threads and processes at once.

    Args:
        folder: is made where it is missing.
        shape: of one row of x.
        dtype: "f32", "u8" or "i32".
        bytes_max: what the rows may take on disk.
        durable: a row is on the disk when `append` returns; otherwise a power cut may take the last
            seconds.

    Raises DelianError when the folder holds rows of another shape.
    """

    def __init__(
        self,
        folder: Path | str,
        shape: tuple[int, ...],
        dtype: str = "f32",
        *,
        bytes_max: int = 64 << 20,
        durable: bool = False,
    ) -> None:
        if dtype not in DTYPES:
            raise DelianError(f"a sensor's rows of {dtype}", f"one of {', '.join(DTYPES)}")
        self.folder, self.durable = Path(folder), durable
        self._layout = _Layout(tuple(int(n) for n in shape), dtype)
        record = self._layout.record
        if record > ROW_BYTES_MAX or record * SEGMENTS > bytes_max:
            raise DelianError(
                f"rows of {record} bytes in a buffer of {bytes_max}",
                f"a row has at most {ROW_BYTES_MAX} bytes, and {SEGMENTS} rows must fit",
            )
        self._segment_bytes = bytes_max // SEGMENTS
        self._mine = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            for path, _ in _segments(self.folder)[-1:]:
                _check_layout(path, self._layout)

    def append(self, x: ArrayLike, y: int) -> None:
        """One row. Raises DelianError when x has another shape, or numbers that are not finite."""
        self.extend(np.asarray(x)[None], np.asarray([y]))

    def extend(self, x: ArrayLike, y: ArrayLike) -> None:
        """Several rows, the oldest first."""
        rows, labels = self._checked(np.asarray(x), np.asarray(y))
        step = max(1, self._segment_bytes // self._layout.record)
        with self._locked():
            for start in range(0, len(rows), step):
                self._write(rows[start : start + step], labels[start : start + step])

    def _checked(self, x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        if x.shape[1:] != self._layout.shape or y.shape != x.shape[:1]:
            raise DelianError(
                f"rows of {list(x.shape[1:])} with labels {list(y.shape)}",
                f"this buffer takes rows of {list(self._layout.shape)}, a label each",
            )
        rows = np.ascontiguousarray(x, DTYPES[self._layout.dtype])
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise DelianError("a row holds a number that is not finite", "leave the row out")
        if y.dtype.kind not in "iu" or (y < 0).any() or (y >= 2**31).any():
            raise DelianError("a label is no whole number from 0", "number the classes from 0")
        return rows, y.astype("<i4")

    def _write(self, rows: NDArray[Any], labels: NDArray[Any]) -> None:
        made = _segments(self.folder)
        layout, content = self._layout, bytearray()
        for row, label in zip(rows, labels, strict=True):
            body = row.tobytes() + label.tobytes()
            content += body + _CRC.pack(zlib.crc32(body))
        head = len(layout.header())
        fits = made and made[-1][0].stat().st_size + len(content) <= self._segment_bytes + head
        if fits:
            path = made[-1][0]
            _cut(path, head, layout.record)
        else:
            first = made[-1][1] + _rows_in(made[-1][0], layout) if made else 0
            path = self.folder / f"{first:020d}{SUFFIX}"
            content = bytearray(layout.header()) + content
            # One segment is being filled, so one fewer may stay.
            for old, _ in made[: max(0, len(made) - (SEGMENTS - 1))]:
                old.unlink(missing_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            if os.write(handle, content) < len(content):
                raise DelianError(f"{path} is not whole: the disk is full", "make room")
            if self.durable:
                os.fsync(handle)
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with self._mine:
            handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX)
                yield
            finally:
                os.close(handle)


def read_segments(folder: Path, bytes_max: int) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """The rows that are there.

    X [n, ...] and y i32[n], the oldest first; the newest `bytes_max` of them. Raises DelianError
    for segments that are not a buffer's.
    """
    xs: list[NDArray[Any]] = []
    ys: list[NDArray[np.int32]] = []
    taken = 0
    layout: _Layout | None = None
    for path, _ in reversed(_segments(folder)):
        try:
            content = path.read_bytes()
        except FileNotFoundError:  # evicted meanwhile
            continue
        found = _read_layout(content, path)
        layout = layout or found
        taken += len(content)
        if found != layout or taken > bytes_max:
            break
        x, y = _read_rows(content, found)
        xs.append(x)
        ys.append(y)
    if not ys:
        return np.empty((0,), np.float32), np.empty((0,), np.int32)
    return np.concatenate(xs[::-1]), np.concatenate(ys[::-1])


def count_appended(folder: Path) -> int | None:
    """Rows that were ever appended; None where there is no buffer."""
    made = _segments(folder)
    if not made:
        return None
    path, first = made[-1]
    try:
        with path.open("rb") as stream:
            layout = _read_layout(stream.read(HEADER_BYTES_MAX), path)
        return first + _rows_in(path, layout)
    except OSError:
        return None


def _segments(folder: Path) -> list[tuple[Path, int]]:
    """(file, rows appended before it), the oldest first."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if p.suffix == SUFFIX and p.stem.isdigit()]
    return sorted(((p, int(p.stem)) for p in found), key=lambda pair: pair[1])


def _rows_in(path: Path, layout: _Layout) -> int:
    return max(0, path.stat().st_size - len(layout.header())) // layout.record


def _cut(path: Path, head: int, record: int) -> None:
    """Takes away a record that was cut short, so that the next begins where one should."""
    size = path.stat().st_size
    over = (size - head) % record
    if over:
        os.truncate(path, size - over)


def _check_layout(path: Path, layout: _Layout) -> None:
    with path.open("rb") as stream:
        found = _read_layout(stream.read(HEADER_BYTES_MAX), path)
    if found != layout:
        raise DelianError(
            f"{path.parent} holds rows of {found.dtype}{list(found.shape)}, not "
            f"{layout.dtype}{list(layout.shape)}",
            "give the buffer another folder, or remove the old one",
        )


def _read_layout(content: bytes, path: Path) -> _Layout:
    try:
        if not content.startswith(MAGIC):
            raise ValueError("another kind of file")
        (length,) = struct.unpack_from("<H", content, len(MAGIC))
        said = json.loads(content[len(MAGIC) + 2 : len(MAGIC) + 2 + min(length, HEADER_BYTES_MAX)])
        layout = _Layout(tuple(int(n) for n in said["shape"]), str(said["dtype"]))
        if layout.dtype not in DTYPES or min(layout.shape, default=1) < 1:
            raise ValueError("an unknown layout")
        if layout.record > ROW_BYTES_MAX:
            raise ValueError("rows too large")
    except (ValueError, KeyError, TypeError, struct.error) as error:
        raise DelianError(
            f"{path} is no segment of a sensor buffer: {error}", "remove the file"
        ) from None
    return layout


def _read_rows(content: bytes, layout: _Layout) -> tuple[NDArray[Any], NDArray[np.int32]]:
    head, record = len(layout.header()), layout.record
    count = (len(content) - head) // record
    table = np.frombuffer(content, np.uint8, count * record, head).reshape(count, record)
    body = record - _CRC.size
    said = table[:, body:].copy().view("<u4")[:, 0]
    sound = [zlib.crc32(row[:body].tobytes()) == crc for row, crc in zip(table, said, strict=True)]
    table = table[np.array(sound, np.bool_)]
    x = table[:, : layout.x_bytes].copy().view(DTYPES[layout.dtype])
    y = table[:, layout.x_bytes : body].copy().view("<i4")[:, 0]
    return x.reshape(len(table), *layout.shape), y.astype(np.int32)
