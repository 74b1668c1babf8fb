"""A folder of images, a folder for each class, by random access."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ..images import IMAGE_BYTES_MAX, IMAGE_SUFFIXES
from ..rows import NoDataError, Rows, RowType, class_number, number_of
from .array_rows import Numbers, check_range
from .file_ranges import unreadable
from .image_bytes import as_row_dtype, check_image_row, decode_into, ready, size_of

#: Images of one folder; their names take memory.
STORED_IMAGES_MAX = 1 << 24
_PIECE_BYTES = 120_000
#: Without waiting: a pipe with the name of an image would stop its reader for good.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class ImageRows:
    """Images by their paths' order; x is [height, width, channels], y i32 the class.

    Args:
        folder: has a folder for each class.
        shape: of a row; empty: that of the first image.
        dtype: `u8`, or `f32` for 0 to 1.
        classes: names of the class folders in the model's order. Empty: the folders' names are
            numbers, or (where `named`) they are numbered in sorted order.
        named: whether folders may be numbered by their order.

    Raises:
        NoDataError: there is no such folder, or it has no images.
        DelianError: Pillow is missing, or a folder's name is no class.
    """

    def __init__(
        self,
        folder: Path,
        shape: tuple[int, ...] = (),
        dtype: str = "u8",
        classes: Sequence[str] = (),
        named: bool = True,
    ) -> None:
        ready()
        self.folder, self._root = folder, os.fsencode(folder) + b"/"
        names, labels = _listed(folder)
        if not names:
            raise NoDataError(f"{folder} has no images", "put them into a folder for each class")
        found = sorted(set(labels))
        if named and not classes and not all(name.isdigit() for name in found):
            classes = found
        self.classes = tuple(classes)
        numbers = {
            name: class_number(name, self.classes, f"the folder {folder / name}") for name in found
        }
        self._y = np.array([numbers[name] for name in labels], np.int32)
        # One text and the ends of the names in it: a million paths would take ten times the memory.
        encoded = [os.fsencode(name) for name in names]
        self._names = b"".join(encoded)
        self._ends = np.cumsum([len(name) for name in encoded])
        if not shape:
            shape = size_of(self._content(0), lambda: self.where(0))
        check_image_row(shape, str(folder))
        self.kind = RowType(shape, dtype)

    @property
    def rows(self) -> int:
        """How many images there are."""
        return len(self._y)

    def version(self) -> int | None:
        """By the folders' times: a file that comes or goes changes its folder's."""
        try:
            folders = sorted(p for p in self.folder.iterdir() if p.is_dir())
            return number_of(" ".join(f"{p.name} {p.stat().st_mtime_ns}" for p in folders))
        except OSError:
            return None

    def row_type(self) -> RowType:
        """Of a row of x."""
        return self.kind

    def sized(self, kind: RowType) -> ImageRows:
        """The same images as rows of a bundle's type. Raises DelianError for no type of images."""
        check_image_row(kind.shape, str(self.folder))
        made = object.__new__(ImageRows)
        made.__dict__.update(self.__dict__, kind=RowType(kind.shape, kind.dtype))
        return made

    def where(self, row: int) -> str:
        """The path of an image."""
        return str(self._path(row))

    def read(self, start: int, stop: int) -> Rows:
        """Images start..stop-1."""
        check_range(str(self.folder), start, stop, self.rows)
        return self.gather(np.arange(start, stop))

    def gather(self, numbers: Numbers) -> Rows:
        """The images with these numbers."""
        pixels = np.empty((len(numbers), *self.kind.shape), np.uint8)
        for k, row in enumerate(numbers.tolist()):
            self._decode(row, pixels[k])
        return Rows(as_row_dtype(pixels, self.kind), self._y[numbers])

    def _decode(self, row: int, out: NDArray[np.uint8]) -> None:
        decode_into(self._content(row), out, lambda: self.where(row))

    def _path(self, row: int) -> Path:
        return Path(os.fsdecode(self._place(row)))

    def _place(self, row: int) -> bytes:
        begin = int(self._ends[row - 1]) if row else 0
        return self._root + self._names[begin : int(self._ends[row])]

    def _content(self, row: int) -> bytes:
        # Four system calls and no objects between them: threads that decode wait for this part.
        try:
            file = os.open(self._place(row), _FLAGS)
            try:
                content = os.read(file, _PIECE_BYTES)
                if len(content) == _PIECE_BYTES:
                    content = self._rest(file, content, row)
            finally:
                os.close(file)
        except FileNotFoundError:
            raise DelianError(
                f"{self._path(row)} has gone since the folder was listed (row {row})", "start again"
            ) from None
        except OSError as error:
            raise unreadable(self._path(row), error) from None
        return content

    def _rest(self, file: int, start: bytes, row: int) -> bytes:
        """A file that one piece does not hold."""
        parts, size = [start], len(start)
        while part := os.read(file, _PIECE_BYTES):
            parts.append(part)
            size += len(part)
            if size > IMAGE_BYTES_MAX:
                raise DelianError(
                    f"{self._path(row)} is larger than {IMAGE_BYTES_MAX} bytes", "remove it"
                )
        return b"".join(parts)


def _listed(folder: Path) -> tuple[list[str], list[str]]:
    """Paths within the folder, sorted by class and name, and the class of each."""
    names: list[str] = []
    labels: list[str] = []
    try:
        for each in sorted(p.name for p in os.scandir(folder) if p.is_dir()):
            with os.scandir(folder / each) as entries:
                own = sorted(e.name for e in entries if _is_image(e.name))
            names.extend(f"{each}/{name}" for name in own)
            labels.extend([each] * len(own))
            if len(names) > STORED_IMAGES_MAX:
                raise DelianError(
                    f"{folder} has more than {STORED_IMAGES_MAX} images", "pack it first"
                )
    except FileNotFoundError:
        raise NoDataError(f"there is no folder {folder}", "check the path") from None
    except OSError as error:
        raise unreadable(folder, error) from None
    return names, labels


def _is_image(name: str) -> bool:
    return PurePath(name).suffix.lower() in IMAGE_SUFFIXES
