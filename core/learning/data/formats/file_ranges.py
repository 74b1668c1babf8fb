"""Ranges of bytes of a file that may be cut short, replaced or rewritten while it is read.

A file is opened for each read: no descriptor is held, so that any number of shards may be open, and
any thread or forked process may read. What it was when it was first seen is compared before and
after. Files are not mapped: one that is cut short would end a process that has mapped it (SIGBUS).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ..rows import NoDataError, number_of

#: One read asks for no more: a header that declares much cannot make one call allocate it.
RANGE_BYTES_MAX = 1 << 30


class FileRanges:
    """One file, by ranges. Raises NoDataError where it is missing, DelianError for no file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            found = path.stat()
        except FileNotFoundError:
            raise NoDataError(f"there is no data file {path}", "check the path") from None
        except OSError as error:
            raise unreadable(path, error) from None
        if not stat.S_ISREG(found.st_mode):
            raise DelianError(f"{path} is no file", "give a data file")
        self.size = found.st_size
        self._was = facts(found)

    def version(self) -> int | None:
        """Changes when the file does; None: it is gone."""
        try:
            return number_of(facts(self.path.stat()))
        except OSError:
            return None

    @contextmanager
    def opened(self) -> Iterator[FileIO]:
        """The open file, unbuffered. Raises DelianError where it is not what it was."""
        try:
            with FileIO(self.path, "rb") as file:
                self._check(os.fstat(file.fileno()))
                yield file
                self._check(os.fstat(file.fileno()))
        except OSError as error:
            raise unreadable(self.path, error) from None

    def read(self, at: int, size: int) -> bytearray:
        """`size` bytes from byte `at`."""
        with self.opened() as file:
            return self.read_from(file, at, size)

    def read_from(self, file: FileIO, at: int, size: int) -> bytearray:
        """As `read`, of a file that is open."""
        if not 0 <= size <= RANGE_BYTES_MAX or at < 0 or at + size > self.size:
            raise DelianError(
                f"{self.path} has {self.size} bytes, and bytes {at}..{at + size - 1} were wanted",
                "it is not whole, or its index is wrong: write it again",
            )
        made = bytearray(size)
        self._fill(file, at, memoryview(made))
        return made

    def read_into(self, file: FileIO, at: int, out: NDArray[Any]) -> None:
        """Fills an array, in C's order, with the bytes from byte `at`."""
        self._fill(file, at, out.reshape(-1).view(np.uint8).data)

    def _fill(self, file: FileIO, at: int, place: memoryview) -> None:
        done = 0
        file.seek(at)
        while done < len(place):
            count = file.readinto(place[done:])
            if not count:
                self._check(os.fstat(file.fileno()))
                raise DelianError(
                    f"{self.path} ends at byte {at + done}", "it was cut short: write it again"
                )
            done += count

    def _check(self, found: os.stat_result) -> None:
        if facts(found) != self._was:
            raise DelianError(
                f"{self.path} changed while it was read",
                "start again with the new data; replace a file whole, by a rename",
            )


def facts(found: os.stat_result) -> str:
    """What differs where a file was changed or replaced."""
    return f"{found.st_mtime_ns} {found.st_size} {found.st_ino} {found.st_dev}"


def unreadable(path: Path, error: OSError) -> DelianError:
    """What to raise where the system refuses to read a file."""
    return DelianError(f"cannot read {path}: {error.strerror or error}", "check the file and disk")


def versions_of(files: list[FileRanges]) -> int | None:
    """One version of several files; None: one is gone."""
    found = [file.version() for file in files]
    return None if None in found else number_of(" ".join(map(str, found)))
