"""Cells of a table: combinations of categories of columns, with the rows of a site in each.

A site leaves out its cells of fewer rows than the floor, and adds their rows to one number,
`suppressed`. Categories that a question does not list are found first (`categories.find`), and
travel in the steps.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import categories
from ..question import Step
from ..site_table import Chosen, Places, Table
from ..sums import StatisticsError, Totals

#: Cells of one question.
CELLS_MAX = 10_000

Levels = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Cells:
    """A site's rows by cell."""

    cell: Places
    """i64[rows]: the cell of each row; any for rows that are not `inside`."""
    inside: Chosen
    """bool[rows]: rows that are in a cell, which has enough of them."""
    rows: Places
    """i64[cells]: rows of each cell; 0 where they are fewer than the floor."""
    suppressed: int
    """Rows in cells of fewer rows than the floor."""
    other: int
    """Rows without a category, with one that is not listed, or that were not chosen."""


def ask_levels(
    columns: Sequence[str], listed: Mapping[str, Sequence[str]], floor: int
) -> Generator[Step, Totals, Levels]:
    """The categories of columns: those that are listed, or those found, numbers by size.

    Raises StatisticsError where a column has none, or all have too many together.
    """
    levels = []
    for column in columns:
        given = tuple(listed.get(column, ()))
        if not given:
            found = yield from categories.find(column, floor, CELLS_MAX)
            given = tuple(sorted(found.texts, key=natural))
        if not given:
            raise StatisticsError(f"column `{column}` has no category with enough rows")
        levels.append(given)
    if math.prod(map(len, levels)) > CELLS_MAX:
        raise StatisticsError(
            f"{math.prod(map(len, levels)):,} combinations of categories",
            f"at most {CELLS_MAX:,}: use fewer columns",
        )
    return tuple(levels)


def arrays_of(levels: Levels) -> dict[str, Places]:
    """What a step carries of the categories."""
    return {f"levels {i}": packed(texts) for i, texts in enumerate(levels)}


def levels_of(step: Step, columns: Sequence[str]) -> Levels:
    """The reverse of `arrays_of`, at a site. Raises StatisticsError."""
    found = [unpacked(step.arrays.get(f"levels {i}"), c) for i, c in enumerate(columns)]
    if math.prod(map(len, found)) > CELLS_MAX:
        raise StatisticsError(f"a step of more than {CELLS_MAX:,} combinations of categories")
    return tuple(map(tuple, found))


def cells_of(
    table: Table, columns: Sequence[str], levels: Levels, floor: int, chosen: Chosen | None = None
) -> Cells:
    """A site's rows by cell, in the order of `itertools.product`.

    Args:
        table: the rows.
        columns: whose categories make the cells.
        levels: the categories of each.
        floor: rows of a cell, at least.
        chosen: bool[rows]: rows that count; None: all.
    """
    size = math.prod(map(len, levels))
    cell = np.zeros(table.rows, np.int64)
    inside = np.ones(table.rows, np.bool_) if chosen is None else chosen.copy()
    for column, names in zip(columns, levels, strict=True):
        codes = table.codes(column, names)
        inside &= codes >= 0
        cell = cell * len(names) + np.maximum(codes, 0)
    rows = np.bincount(cell[inside], minlength=size)
    few = (rows > 0) & (rows < floor)
    suppressed = int(rows[few].sum())
    inside &= ~few[cell]
    other = table.rows - int(inside.sum()) - suppressed
    return Cells(cell, inside, np.where(few, 0, rows), suppressed, other)


def packed(texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """Categories as an array: their characters, and -1 behind each."""
    return np.array([v for text in texts for v in (*map(ord, text), -1)], np.int64)


def unpacked(array: Any, column: str) -> list[str]:
    """The reverse of `packed`. Raises StatisticsError."""
    plain = isinstance(array, np.ndarray) and array.dtype == np.int64 and array.ndim == 1
    if not plain or not array.size or array[-1] != -1 or array.max() > 0x10FFFF:
        raise StatisticsError(f"the step has no categories of `{column}`")
    texts = [""]
    for value in array.tolist():
        if value == -1:
            texts.append("")
        else:
            texts[-1] += chr(max(value, 0))
    return texts[:-1]


def natural(text: str) -> tuple[int, float, str]:
    """Sorts numbers by size, before texts."""
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)
