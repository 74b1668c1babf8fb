"""Rows and batches as tuples of arrays, and the user's functions that are called with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError

Array = NDArray[Any]
Numbers = NDArray[np.int64]
Columns = tuple[Array, ...]
#: What an order depends on, such as (seed, device, round).
Key = tuple[int, ...]

NAMES = {"x": 0, "y": 1}


@dataclass(frozen=True, slots=True)
class Applied:
    """A function and the columns that it is called with."""

    function: Callable[..., Any]
    on: int | None
    """The one column that it takes and gives; None: all of them."""
    random: bool
    """Whether it is also given a random generator."""

    @property
    def name(self) -> str:
        """As errors call it."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    def __call__(self, given: Columns, what: str, *more: Any) -> tuple[Any, ...]:
        """The columns with what the function gave. Raises DelianError where it fails."""
        try:
            if self.on is None:
                made = self.function(*given, *more)
                return tuple(made) if isinstance(made, tuple | list) else (made,)
            changed = self.function(given[self.on], *more)
            return (*given[: self.on], changed, *given[self.on + 1 :])
        except (DelianError, MemoryError):
            raise
        except Exception as error:
            raise DelianError(
                f"{self.name} raised {type(error).__name__} for {what}: {error}",
                "a function of map takes a row's values, or a batch's after batch()",
            ) from error


def column_of(on: str | int | None) -> int | None:
    """The place of a column. Raises DelianError for a name that is none."""
    if on is None or (isinstance(on, int) and on >= 0):
        return on
    if on not in NAMES:
        raise DelianError(f"there is no column {on!r}", 'on="x", on="y", or a place from 0')
    return NAMES[on]


def count_of(columns: Columns) -> int:
    """How many rows there are."""
    return len(columns[0])


def selected(columns: Columns, places: Any) -> Columns:
    """Copies of these rows."""
    return tuple(column[places] for column in columns)


def joined(parts: Sequence[Columns]) -> Columns:
    """Rows one after another."""
    if len(parts) == 1:
        return parts[0]
    return tuple(np.concatenate(columns) for columns in zip(*parts, strict=True))


def stacked(rows: Sequence[tuple[Any, ...]], numbers: Numbers, what: str) -> Columns:
    """Rows, values each, as columns. Raises DelianError where they differ in shape."""
    first = [np.asarray(value) for value in rows[0]]
    made = []
    for place, value in enumerate(first):
        if value.dtype.hasobject:
            raise DelianError(f"{what} gave no array or number for row {numbers[0]}", "give arrays")
        column = np.empty((len(rows), *value.shape), value.dtype)
        for k, row in enumerate(rows):
            given = np.asarray(row[place]) if place < len(row) else None
            if given is None or given.shape != value.shape or given.dtype != value.dtype:
                shown = "nothing" if given is None else f"{given.dtype}{list(given.shape)}"
                raise DelianError(
                    f"{what} gave {shown} for row {numbers[k]}, and {value.dtype}"
                    f"{list(value.shape)} for row {numbers[0]}",
                    "all rows have one shape and dtype",
                )
            column[k] = given
        made.append(column)
    return tuple(made)
