"""What a data source is, what it gives, and what an owner says about a device's data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from .data_files import require_file

#: What a device's data may take in memory unless its owner says otherwise.
BYTES_MAX = 1 << 30

Array = NDArray[Any]


class NoDataError(DelianError):
    """There is no data to train on: the source is not there, or is empty."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Examples, one a row."""

    x: Array
    """Numbers [n, ...]."""
    y: Array
    """Whole numbers [n], or [n, T] (sequences); where numbers are learnt, any [n] or [n, k]."""
    query: Array | None = None
    """The data's own split, bool [n]: rows that only judge. None: it is made by content."""

    def __post_init__(self) -> None:
        if self.x.ndim < 1 or self.y.ndim < 1 or len(self.x) != len(self.y):
            raise DelianError(
                f"data of {list(self.x.shape)} examples and {list(self.y.shape)} labels",
                "a source gives as many labels as examples, one a row",
            )
        if (split := self.query) is None:
            return
        if (
            split.shape != (len(self.x),)
            or split.dtype.kind not in "biu"
            or np.any((split != 0) & (split != 1))
        ):
            raise DelianError(
                f"the split `query` is {split.dtype}{list(split.shape)}, of {len(self.x)} examples",
                "it has one truth value a row: whether the row only judges",
            )


@dataclass(frozen=True, slots=True)
class Leaves:
    """The arrays that a bundle's programs take, by name (`x`, `y`, `support`, `query`)."""

    arrays: Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class RowType:
    """The bundle's shape of a row of `x`; a source with a choice (image sizes) takes it."""

    shape: tuple[int, ...]
    dtype: str = "f32"
    names: tuple[str, ...] = ("x", "y", "support", "query")
    """Names of all arrays that the bundle takes."""
    numbers: bool = False
    """These are learnt from a row, and no label."""


class Source(Protocol):
    """Data on this device. `read` raises NoDataError for none, DelianError for unreadable data."""

    def version(self) -> int | None:
        """Changes when the data does; cheap to ask. None: unknown, taken for changed."""

    def read(self, row: RowType) -> Rows | Leaves:
        """All of it, at most the `bytes_max` that the source was opened with."""


@dataclass(frozen=True, slots=True)
class DataSettings:
    """What an owner says of the device's data."""

    source: str = ""
    """As in the module's docstring."""
    label: str = ""
    """A CSV's label column, by name or number; the last one when empty."""
    columns: tuple[str, ...] = ()
    """Its feature columns; all others when empty."""
    split: str = ""
    """A CSV's column of the split: 1 for rows that evaluate, 0 for others; empty: no column."""
    classes: tuple[str, ...] = ()
    """What text labels and class folders are called, in the order of the model's classes."""
    query_fraction: float = 0.2
    """The share of rows that are never trained on and evaluate the models."""
    bytes_max: int = BYTES_MAX
    """Bytes of memory that the data may take."""

    def __post_init__(self) -> None:
        if not 0.0 < self.query_fraction < 1.0:
            raise DelianError(
                f"data.query_fraction is {self.query_fraction:g}", "it lies between 0 and 1"
            )
        if self.bytes_max < 1:
            raise DelianError(f"data.bytes_max is {self.bytes_max}", "give at least some bytes")


# ---------------------------------------------------------------- what sources share


def file_version(path: Path) -> int | None:
    """A number that changes when the file does; None: it cannot be read."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return number_of(f"{facts.st_mtime_ns} {facts.st_size} {facts.st_ino}")


def number_of(text: str) -> int:
    """A number below 2^63 that differs where the text does."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def check_size(what: str, found: int, bytes_max: int) -> None:
    """Raises DelianError where data takes more than `bytes_max`."""
    if found > bytes_max:
        raise DelianError(
            f"{what} takes {found} bytes, and the data of this device may take {bytes_max}",
            "make it smaller, or raise data.bytes_max",
        )


def require(path: Path) -> None:
    """Raises NoDataError where the path is missing."""
    try:
        require_file(path, "put it there, or name another with --data")
    except DelianError as error:
        raise NoDataError(error.message, error.hint) from None


def class_number(text: str, classes: tuple[str, ...], where: str) -> int:
    """A label as a number: its place in `classes`, or the whole number that it is."""
    text = text.strip()
    if text in classes:
        return classes.index(text)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if classes or value < 0 or value != int(value) or value >= 2**31:
        known = f"it is none of data.classes ({', '.join(classes[:20])})" if classes else ""
        raise DelianError(
            f"{where}: the label {text[:40]!r} is no class{': ' + known if known else ''}",
            "labels are whole numbers from 0; name text labels in data.classes, in the model's "
            "order (the order must be the same on every device)",
        )
    return int(value)
