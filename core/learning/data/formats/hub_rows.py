"""A `datasets.Dataset` of Hugging Face as stored rows: by its Arrow tables, not item by item."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..rows import DataSettings, NoDataError, Rows, RowType, number_of
from .array_rows import Numbers, check_range
from .arrow_columns import ArrowRows, arrow_errors, chosen


def is_hub_dataset(source: Any) -> bool:
    """Whether it is one; `datasets` is not imported for it."""
    kind = getattr(sys.modules.get("datasets"), "Dataset", None)
    return isinstance(kind, type) and isinstance(source, kind)


class HubRows:
    """Its rows; columns as `arrow_columns` chooses them.

    A format or transform that was set on the data set is not applied. Raises NoDataError for no
    rows, DelianError where it has no columns for x and y.
    """

    def __init__(self, data: Any, settings: DataSettings) -> None:
        self._name, self._data = "the data set", data.with_format("arrow")
        if not len(data):
            raise NoDataError("the data set has no rows", "give at least one")
        with arrow_errors(self._name):
            schema = data.features.arrow_schema
        columns = chosen(schema, settings, self._name)
        self._wanted = [*columns.features, columns.label]
        self._made = ArrowRows(columns, settings, self._name)
        self.gather(np.zeros(1, np.int64))

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self._data)

    def version(self) -> int | None:
        """Of its fingerprint, which changes with the data and what was done to it."""
        mark = getattr(self._data, "_fingerprint", None)
        return number_of(mark) if isinstance(mark, str) else None

    def row_type(self) -> RowType:
        """Of a row of x."""
        assert self._made.kind is not None
        return self._made.kind

    def sized(self, kind: RowType) -> HubRows:
        """Images as rows of a bundle's type; numbers stay what they are."""
        self._made.sized(kind)
        return self

    def read(self, start: int, stop: int) -> Rows:
        """Rows start..stop-1."""
        check_range(self._name, start, stop, self.rows)
        with arrow_errors(f"rows {start}..{stop - 1} of {self._name}"):
            return self._made.rows(self._data[start:stop].select(self._wanted), start)

    def gather(self, numbers: Numbers) -> Rows:
        """The rows with these numbers."""
        with arrow_errors(f"rows of {self._name}"):
            table = self._data[numbers.tolist()].select(self._wanted)
            return self._made.rows(table, int(numbers[0]))
