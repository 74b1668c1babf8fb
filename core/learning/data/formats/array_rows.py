"""Rows in memory as stored rows, and any rows of a stored source by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ..rows import NoDataError, Rows, RowType, number_of
from ..stored_rows import StoredRows

Array = NDArray[Any]
Numbers = NDArray[np.int64]

_NAMES = {
    **{"f4": "f32", "f8": "f64", "i4": "i32", "i8": "i64"},
    **{"u1": "u8", "u4": "u32", "b1": "bool"},
}


class GatheredRows(StoredRows, Protocol):
    """Stored rows that give any of their rows at about the price of consecutive ones."""

    def gather(self, numbers: Numbers) -> Rows:
        """The rows with these numbers, in this order."""


def gathers(stored: StoredRows) -> TypeGuard[GatheredRows]:
    """Whether it has `gather`."""
    return hasattr(stored, "gather")


class ArrayRows:
    """Arrays in memory, or mapped by their owner: x [n, ...] and y [n, ...].

    Raises DelianError where they have different lengths, NoDataError for no rows.
    """

    def __init__(self, x: Array, y: Array, query: Array | None = None) -> None:
        self.all = Rows(x, y, query)
        if not len(x):
            raise NoDataError("the arrays have no rows", "give at least one")
        if x.dtype.hasobject or y.dtype.hasobject:
            raise DelianError("the arrays hold Python objects", "give arrays of numbers")

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.all.x)

    def version(self) -> int | None:
        """Unknown."""
        return None

    def row_type(self) -> RowType:
        """Of a row of x."""
        return type_of(self.all.x, self.all.y)

    def read(self, start: int, stop: int) -> Rows:
        """Views of rows start..stop-1."""
        check_range("the arrays", start, stop, self.rows)
        query = None if self.all.query is None else self.all.query[start:stop]
        return Rows(self.all.x[start:stop], self.all.y[start:stop], query)

    def gather(self, numbers: Numbers) -> Rows:
        """Copies of these rows."""
        query = None if self.all.query is None else self.all.query[numbers]
        return Rows(self.all.x[numbers], self.all.y[numbers], query)


def dtype_name(dtype: np.dtype[Any]) -> str:
    """`f32`, `u8`, ...: an element type as bundles call it."""
    plain = dtype.newbyteorder("=")
    return _NAMES.get(plain.str[1:], plain.name)


def type_of(x: Array, y: Array) -> RowType:
    """The type of a row of these arrays."""
    return RowType(x.shape[1:], dtype_name(x.dtype), numbers=y.dtype.kind == "f")


def check_range(what: str, start: int, stop: int, rows: int) -> None:
    """Raises DelianError where there are no such rows."""
    if not 0 <= start < stop <= rows:
        raise DelianError(f"{what}: there are no rows {start}..{stop - 1}", f"it has {rows}")


def gather(stored: StoredRows, numbers: Numbers) -> Rows:
    """The rows with these numbers, in this order; consecutive ones are read as one range."""
    if gathers(stored):
        return stored.gather(numbers)
    if len(numbers) and _consecutive(numbers):
        return stored.read(int(numbers[0]), int(numbers[-1]) + 1)
    order = np.argsort(numbers, kind="stable")
    ascending = numbers[order]
    cuts = np.flatnonzero(np.diff(ascending) > 1) + 1
    x: Array | None = None
    for places in np.split(order, cuts):
        start = int(numbers[places[0]])
        found = stored.read(start, int(numbers[places[-1]]) + 1)
        if x is None:
            x = np.empty((len(numbers), *found.x.shape[1:]), found.x.dtype)
            y = np.empty((len(numbers), *found.y.shape[1:]), found.y.dtype)
            query = None if found.query is None else np.empty(len(numbers), found.query.dtype)
        within = numbers[places] - start
        x[places], y[places] = found.x[within], found.y[within]
        if query is not None and found.query is not None:
            query[places] = found.query[within]
    if x is None:
        raise DelianError("no rows were asked for", "give at least one number")
    return Rows(x, y, query)


def _consecutive(numbers: Numbers) -> bool:
    spread = int(numbers[-1]) - int(numbers[0])
    return spread == len(numbers) - 1 and bool((np.diff(numbers) == 1).all())


class Joined:
    """Several stored rows one after another, as shards of one data set.

    names: of the parts, for errors. Raises DelianError where their rows differ in type, or their
    classes in name or order.
    """

    def __init__(self, parts: list[StoredRows], where: str, names: Sequence[str] = ()) -> None:
        if not parts:
            raise NoDataError(f"{where} has no data files", "put some there")
        self.parts, self._where = parts, where
        self._names = tuple(names) or tuple(f"shard {k}" for k in range(len(parts)))
        self.classes: tuple[str, ...] = tuple(getattr(parts[0], "classes", ()))
        self._ends = np.cumsum([part.rows for part in parts])
        kind = parts[0].row_type()
        for k, part in enumerate(parts):
            if part.row_type() != kind:
                raise DelianError(
                    f"{where}: rows of {self._names[k]} are {_shown(part.row_type())}, and of"
                    f" {self._names[0]} {_shown(kind)}",
                    "all shards hold rows of one type",
                )
            if tuple(getattr(part, "classes", ())) != self.classes:
                raise DelianError(
                    f"{where}: {self._names[k]} and {self._names[0]} name their classes"
                    " differently, or in another order",
                    "pack them again with one list of --classes",
                )

    @property
    def rows(self) -> int:
        """How many rows there are in all."""
        return int(self._ends[-1])

    def version(self) -> int | None:
        """Changes when a part does."""
        found = [part.version() for part in self.parts]
        return None if None in found else number_of(" ".join(map(str, found)))

    @property
    def row_bytes(self) -> int:
        """Of a row of x and of y, where the parts say it; else 0."""
        return max(int(getattr(part, "row_bytes", 0)) for part in self.parts)

    def row_type(self) -> RowType:
        """That of all parts."""
        return self.parts[0].row_type()

    def sized(self, kind: RowType) -> Joined:
        """All parts in a bundle's row type, where they have a choice."""
        sizes = [getattr(part, "sized", None) for part in self.parts]
        parts = [
            part if sized is None else sized(kind)
            for part, sized in zip(self.parts, sizes, strict=True)
        ]
        return Joined(parts, self._where, self._names)

    def read(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1."""
        check_range(self._where, start, stop, self.rows)
        found = []
        first = int(np.searchsorted(self._ends, start, "right"))
        for k in range(first, len(self.parts)):
            begin = int(self._ends[k]) - self.parts[k].rows
            if begin >= stop:
                break
            found.append(
                self.parts[k].read(max(start, begin) - begin, min(stop, int(self._ends[k])) - begin)
            )
        return together(found)

    def gather(self, numbers: Numbers) -> Rows:
        """These rows, those of a part by its own `gather`."""
        part = np.searchsorted(self._ends, numbers, "right")
        if int(part.min()) == int(part.max()):
            k = int(part[0])
            return gather(self.parts[k], numbers - (int(self._ends[k]) - self.parts[k].rows))
        order = np.argsort(part, kind="stable")
        found = []
        for places in np.split(order, np.flatnonzero(np.diff(part[order])) + 1):
            k = int(part[places[0]])
            begin = int(self._ends[k]) - self.parts[k].rows
            found.append(gather(self.parts[k], numbers[places] - begin))
        whole, back = together(found), np.argsort(order, kind="stable")
        query = None if whole.query is None else whole.query[back]
        return Rows(whole.x[back], whole.y[back], query)


def _shown(kind: RowType) -> str:
    return f"{kind.dtype}{list(kind.shape)}{' with numbers to learn' if kind.numbers else ''}"


def together(found: list[Rows]) -> Rows:
    """Rows one after another."""
    if len(found) == 1:
        return found[0]
    splits = [part.query for part in found if part.query is not None]
    query = np.concatenate(splits) if len(splits) == len(found) else None
    x = np.concatenate([part.x for part in found])
    return Rows(x, np.concatenate([part.y for part in found]), query)
