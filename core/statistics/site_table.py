"""A site's rows as a method reads them: columns by name, numbers or text, missing values known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..learning.data.tabular.columns import Column, as_texts, frame_columns
from ..learning.data.tabular.table_files import read_columns
from .few_rows import check_column
from .sums import StatisticsError

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Chosen = npt.NDArray[np.bool_]


class Table:
    """Columns of one length.

    columns: f64[rows] with NaN for what is missing, or text [rows] with "" for what is missing.
    rows: how many there are, where there may be no column. floor: the owner's: no number is about
    fewer rows.
    """

    def __init__(
        self, columns: Mapping[str, Column], rows: int | None = None, floor: int = 1
    ) -> None:
        lengths = {len(values) for values in columns.values()}
        if len(lengths) > 1:
            raise StatisticsError(f"columns of {sorted(lengths)} rows", "give all as many rows")
        self.columns = dict(columns)
        self.rows = lengths.pop() if lengths else rows or 0
        self.floor = floor
        self._checked: set[str] = set()

    @staticmethod
    def of(given: Any) -> Table:
        """A table of a file (CSV, TSV, Parquet), a data frame, a dict of arrays, or a table.

        Raises DelianError for what is none, or cannot be read.
        """
        if isinstance(given, Table):
            return given
        if isinstance(given, str | Path):
            return Table(read_columns(Path(given)))
        if isinstance(given, Mapping) or hasattr(given, "columns"):
            return Table(frame_columns(given))
        raise StatisticsError(
            f"a site's rows are given as {type(given).__name__}",
            "give the path of a CSV or Parquet file, a data frame, or a dict of arrays",
        )

    def numbers(self, name: str) -> Floats:
        """A column of numbers, f64[rows], NaN where missing.

        Raises StatisticsError, and TooFewRows for one that differs from one value in few rows.
        """
        values = self.values(name)
        if values.dtype.kind != "f":
            raise StatisticsError(
                f"column `{name}` is text at a site, and numbers are needed",
                "name a column of numbers, or give its categories",
            )
        if np.isinf(values).any():
            raise StatisticsError(f"column `{name}` has infinite values at a site")
        if name not in self._checked:
            check_column(values, self.floor, name)
            self._checked.add(name)
        return values

    def texts(self, name: str) -> npt.NDArray[Any]:
        """A column as text, [rows], "" where missing. Whole numbers are written without a point."""
        values = self.values(name)
        if values.dtype.kind != "f":
            return as_texts(values)
        known = ~np.isnan(values)
        written = np.full(len(values), "", dtype=np.dtypes.StrDType(32))
        # Each different number is written once.
        levels, places = np.unique(values[known], return_inverse=True)
        names = np.array([_written(float(v)) for v in levels], dtype=written.dtype)
        written[known] = names[places] if len(levels) else ""
        return written

    def codes(self, name: str, categories: Sequence[str]) -> Places:
        """A column as places in `categories`, i64[rows]; -1 where missing, -2 where none of them.

        Raises StatisticsError.
        """
        texts = self.texts(name)
        codes = np.where(texts == "", -1, -2).astype(np.int64)
        for place, category in enumerate(categories):
            codes[texts == category] = place
        return codes

    def chosen(self, rows: Chosen) -> Table:
        """The table of some rows. rows: bool[rows]."""
        kept = {name: values[rows] for name, values in self.columns.items()}
        return Table(kept, int(np.count_nonzero(rows)), self.floor)

    def values(self, name: str) -> Column:
        """A column as it is: numbers, or text. Raises StatisticsError where there is none."""
        values = self.columns.get(name)
        if values is None:
            raise StatisticsError(
                f"a site has no column `{name}`", "name a column that all sites have"
            )
        return values


def _written(value: float) -> str:
    return f"{int(value)}" if value == np.rint(value) and abs(value) < 1e15 else f"{value:.12g}"
