"""WebDataset tars: the files of one key are an example (https://github.com/webdataset/webdataset).

    000017.jpg  000017.cls        x an image, y the text of a whole number, or a name of a class
    000018.x.npy  000018.y.npy    x and y arrays

The tar is read once for an index: byte and length of each example's x and y. After that any row is
one read. Read are ustar, GNU's long names and sizes, and pax headers' `path` and `size`; the
checksum of each header is compared. Files with other endings are left out.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ..data_files import BROKEN, read_npy_header
from ..images import IMAGE_BYTES_MAX, IMAGE_SUFFIXES
from ..rows import NoDataError, Rows, RowType, class_number
from .array_rows import Numbers, check_range, type_of
from .file_ranges import FileRanges
from .image_bytes import as_row_dtype, check_image_row, decode_into, ready, size_of

_BLOCK = 512
#: Files of one tar, and bytes of a header's extension and of a label.
MEMBERS_MAX = 1 << 26
_NAME_BYTES_MAX = 1 << 16
_LABEL_BYTES_MAX = 1 << 16
_ARRAYS = ("npy", "x.npy")
_LABELS = ("cls", "y.npy", "label", "txt", "json")


@dataclass(frozen=True, slots=True)
class Member:
    """One file of a tar."""

    name: str
    at: int
    size: int


class TarRows:
    """The examples of one tar. Arguments and errors as `ImageRows`.

    Raises DelianError also for a tar that is torn, by the byte and the last whole example.
    """

    def __init__(
        self,
        path: Path,
        shape: tuple[int, ...] = (),
        dtype: str = "u8",
        classes: Sequence[str] = (),
    ) -> None:
        self._file = FileRanges(path)
        self.path, self.classes = path, tuple(classes)
        with self._file.opened() as file:
            self._endings, self._places = _index(path, self._members(file))
        if not len(self._places):
            raise NoDataError(
                f"{path} has no examples",
                "an example is two files of one name: an image or .npy, and .cls, .y.npy or .json",
            )
        self._images = self._endings[0] not in _ARRAYS
        if self._images:
            ready()
        first = self._values(np.zeros(1, np.int64), shape or None)
        self.kind = RowType(first.x.shape[1:], dtype) if self._images else type_of(first.x, first.y)

    @property
    def rows(self) -> int:
        """How many examples there are."""
        return len(self._places)

    def version(self) -> int | None:
        """That of the file."""
        return self._file.version()

    def row_type(self) -> RowType:
        """Of a row of x."""
        return self.kind

    def sized(self, kind: RowType) -> TarRows:
        """The same images as rows of a bundle's type; arrays stay what they are."""
        if not self._images:
            return self
        check_image_row(kind.shape, str(self.path))
        made = object.__new__(TarRows)
        made.__dict__.update(self.__dict__, kind=RowType(kind.shape, kind.dtype))
        return made

    def read(self, start: int, stop: int) -> Rows:
        """Examples start..stop-1."""
        check_range(str(self.path), start, stop, self.rows)
        return self.gather(np.arange(start, stop))

    def gather(self, numbers: Numbers) -> Rows:
        """The examples with these numbers."""
        found = self._values(numbers, self.kind.shape)
        return Rows(as_row_dtype(found.x, self.kind), found.y) if self._images else found

    # ------------------------------------------------ one example

    def _values(self, numbers: Numbers, shape: tuple[int, ...] | None) -> Rows:
        """x as it is stored, images as u8; shape: of a row, None: that of the first."""
        x: NDArray[Any] | None = None
        labels = []
        with self._file.opened() as file:
            for k, row in enumerate(numbers.tolist()):
                at, size, label_at, label_size = self._places[row].tolist()
                content = self._file.read_from(file, at, size)
                if self._images:
                    if x is None:
                        shape = shape or size_of(content, lambda: self._where(0))
                        check_image_row(shape, str(self.path))
                        x = np.empty((len(numbers), *shape), np.uint8)
                    decode_into(content, x[k], partial(self._where, row))
                else:
                    value = array_of(content, self._where(row))
                    if x is None:
                        x = np.empty((len(numbers), *(shape or value.shape)), value.dtype)
                    if value.shape != x.shape[1:] or value.dtype != x.dtype:
                        raise DelianError(
                            f"{self._where(row)} is {value.dtype}{list(value.shape)}, and others "
                            f"are {x.dtype}{list(x.shape[1:])}",
                            "all rows have one type",
                        )
                    x[k] = value
                labels.append(self._label(self._file.read_from(file, label_at, label_size), row))
        assert x is not None
        try:
            return Rows(x, np.stack(labels))
        except ValueError:
            raise DelianError(
                f"{self.path}: labels differ in shape", "give all one shape"
            ) from None

    def _label(self, content: bytearray, row: int) -> NDArray[Any]:
        ending, where = self._endings[1], self._where(row)
        if ending == "y.npy":
            return array_of(content, where)
        if len(content) > _LABEL_BYTES_MAX:
            raise DelianError(f"{where}: a label of {len(content)} bytes", "a short text")
        try:
            text = content.decode()
            if ending == "json":
                found = json.loads(text)
                text = str(found["label"] if isinstance(found, dict) else found)
        except (ValueError, KeyError, RecursionError) as error:
            raise DelianError(f"{where}: no label: {error}", "a whole number, or a class") from None
        return np.array(class_number(text, self.classes, where), np.int32)

    def _where(self, row: int) -> str:
        return f"{self.path}, row {row} (byte {int(self._places[row][0])})"

    # ------------------------------------------------ the index

    def _members(self, file: FileIO) -> Iterator[Member]:
        """Regular files in order. Raises DelianError where the tar is torn or no tar."""
        at, long_name, pax, count = 0, "", {}, 0
        while at + _BLOCK <= self._file.size:
            header = self._file.read_from(file, at, _BLOCK)
            if not any(header):
                return
            size = self._checked(header, at)
            kind, begin = bytes(header[156:157]), at + _BLOCK
            if kind in (b"L", b"x", b"g", b"K"):
                if size > _NAME_BYTES_MAX or begin + size > self._file.size:
                    raise self._torn(at, f"a header of {size} bytes")
                body = self._file.read_from(file, begin, size)
                if kind == b"L":
                    long_name = _text(body)
                elif kind == b"x":
                    pax = _pax(body)
            else:
                size = int(pax["size"]) if pax.get("size", "").isdigit() else size
                if begin + size > self._file.size:
                    raise self._torn(at, f"a file of {size} bytes")
                prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
                short = _text(header[:100])
                name = pax.get("path") or long_name or (f"{prefix}/{short}" if prefix else short)
                long_name, pax, count = "", {}, count + 1
                if count > MEMBERS_MAX:
                    raise DelianError(f"{self.path} has more than {MEMBERS_MAX} files", "cut it")
                if kind in (b"0", b"\0", b"7"):
                    yield Member(name, begin, size)
            at = begin + -(-size // _BLOCK) * _BLOCK
        raise self._torn(at, "no end mark")

    def _checked(self, header: bytearray, at: int) -> int:
        """The size that a header says. Raises DelianError for no header."""
        try:
            said = int(_text(header[148:156]).strip() or "-1", 8)
        except ValueError:
            said = -1
        # The checksum is that of the header with blanks in its own place.
        if said != sum(header) - sum(header[148:156]) + 8 * 32:
            raise self._torn(at, "no header with its checksum")
        field = header[124:136]
        if field[0] & 0x80:  # GNU's way to write more than 8 GiB
            return int.from_bytes(field, "big") & ((1 << 95) - 1)
        try:
            return int(_text(field).strip() or "0", 8)
        except ValueError:
            raise self._torn(at, "no size") from None

    def _torn(self, at: int, what: str) -> DelianError:
        return DelianError(
            f"{self.path} is no whole tar: {what} at byte {at} of {self._file.size}",
            "write it again; `delian data pack` makes files whose damage is found by checksums",
        )


def array_of(content: bytearray | bytes, where: str) -> NDArray[Any]:
    """The array of a .npy file's bytes. Raises DelianError for anything but numbers."""
    stream = io.BytesIO(content)
    try:
        shape, fortran, dtype = read_npy_header(stream)
        if dtype.kind not in "fiub":
            raise ValueError(f"it is {dtype}, and no numbers")
        begin, size = stream.tell(), math.prod(shape) * dtype.itemsize
        if size != len(content) - begin:
            raise ValueError(f"it declares {size} bytes and has {len(content) - begin}")
        flat = np.frombuffer(content, dtype, offset=begin)
        return flat.reshape(shape, order="F" if fortran else "C").astype(
            dtype.newbyteorder("="), copy=False
        )
    except BROKEN as error:
        raise DelianError(f"{where}: no array: {error}", "write it with numpy.save") from None


def _index(path: Path, members: Iterator[Member]) -> tuple[tuple[str, str], NDArray[np.int64]]:
    """The endings of x and of y, and i64[n, 4]: byte and length of each."""
    endings: tuple[str, str] | None = None
    places: list[tuple[int, int, int, int]] = []
    for key, found in _examples(members):
        if endings is None:
            endings = _endings(found)
            if endings is None:
                continue
        x, y = found.get(endings[0]), found.get(endings[1])
        if x is None or y is None:
            if not any(_is_data(ending) for ending in found):
                continue
            raise DelianError(
                f"{path}: the example {key[:80]!r} (row {len(places)}) has no "
                f".{endings[0] if x is None else endings[1]}",
                "each example has the same files",
            )
        if x.size > IMAGE_BYTES_MAX or y.size > IMAGE_BYTES_MAX:
            raise DelianError(
                f"{path}: {max(x.size, y.size)} bytes in the example {key[:80]!r}",
                f"a file of an example has at most {IMAGE_BYTES_MAX}",
            )
        places.append((x.at, x.size, y.at, y.size))
    return endings or ("", ""), np.array(places, np.int64).reshape(-1, 4)


def _examples(members: Iterator[Member]) -> Iterator[tuple[str, dict[str, Member]]]:
    """Consecutive files of one key, by their endings."""
    key = ""
    found: dict[str, Member] = {}
    for member in members:
        folder, _, name = member.name.rpartition("/")
        stem, dot, ending = name.partition(".")
        if not stem or not dot:
            continue
        whole = f"{folder}/{stem}"
        if whole != key and found:
            yield key, found
            found = {}
        key = whole
        found[ending.lower()] = member
    if found:
        yield key, found


def _endings(found: dict[str, Member]) -> tuple[str, str] | None:
    x = next((e for e in found if _is_data(e)), None)
    y = next((e for e in _LABELS if e in found), None)
    return None if x is None or y is None else (x, y)


def _is_data(ending: str) -> bool:
    return ending in _ARRAYS or f".{ending}" in IMAGE_SUFFIXES


def _text(field: bytes | bytearray) -> str:
    return bytes(field).split(b"\0", 1)[0].decode("utf-8", "replace")


def _pax(body: bytearray) -> dict[str, str]:
    """Records "LENGTH KEY=VALUE", each with a line feed (POSIX.1-2001, pax)."""
    found, rest = {}, bytes(body)
    while rest:
        length, _, _ = rest.partition(b" ")
        if not length.isdigit() or not 0 < int(length) <= len(rest):
            break
        record, rest = rest[len(length) + 1 : int(length)], rest[int(length) :]
        key, _, value = record.partition(b"=")
        found[key.decode("utf-8", "replace")] = value.rstrip(b"\n").decode("utf-8", "replace")
    return found
