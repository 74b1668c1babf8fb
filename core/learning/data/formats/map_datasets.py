"""Data sets of other packages, and Python sequences: anything with a length and `[row]`.

A PyTorch map-style `Dataset`, a `datasets.Dataset` of Hugging Face and a list of pairs are read by
their own `__getitem__`; `__getitems__`, which gives several rows at once, is used where it exists.
An item is a pair (x, y), or a dict with a label by one of the usual names. Nothing is imported:
values become arrays by `numpy.asarray`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ..rows import NoDataError, Rows, RowType
from .array_rows import Numbers, check_range, type_of
from .arrow_columns import LABELS

Array = NDArray[Any]


class DatasetRows:
    """The rows of a data set with `__len__` and `__getitem__`.

    Args:
        data: the data set; its items must not change between reads.
        label: the key of y, where items are dicts; found by name when empty.
        columns: the key of x; the only other one when empty.
        name: for errors.

    Raises:
        NoDataError: it is empty.
        DelianError: it has no length, or its first item is no row.
    """

    def __init__(
        self, data: Any, label: str = "", columns: Sequence[str] = (), name: str = ""
    ) -> None:
        self._data, self._name = data, name or type(data).__name__
        self._label, self._columns = label, tuple(columns)
        try:
            self._rows = len(data)
        except TypeError:
            raise DelianError(
                f"{self._name} has no length: it gives rows in its own order alone",
                "give a map-style data set, with len() and [row]",
            ) from None
        if self._rows < 1:
            raise NoDataError(f"{self._name} has no rows", "give at least one")
        first = self.gather(np.zeros(1, np.int64))
        self.kind = type_of(first.x, first.y)

    @property
    def rows(self) -> int:
        """How many items there are."""
        return self._rows

    def version(self) -> int | None:
        """That of the data set's fingerprint, where it has one (Hugging Face)."""
        from ..rows import number_of

        mark = getattr(self._data, "_fingerprint", None)
        return number_of(mark) if isinstance(mark, str) else None

    def row_type(self) -> RowType:
        """Of the first row."""
        return self.kind

    def read(self, start: int, stop: int) -> Rows:
        """Items start..stop-1."""
        check_range(self._name, start, stop, self._rows)
        return self.gather(np.arange(start, stop))

    def gather(self, numbers: Numbers) -> Rows:
        """The items with these numbers."""
        wanted = numbers.tolist()
        several = getattr(self._data, "__getitems__", None)
        try:
            items = several(wanted) if several is not None else [self._data[k] for k in wanted]
        except DelianError:
            raise
        except Exception as error:
            raise DelianError(
                f"{self._name} raised {type(error).__name__} for row {wanted[0]}"
                f"{' or one after it' if len(wanted) > 1 else ''}: {error}",
                "try it with plain Python first",
            ) from error
        if len(items) != len(wanted):
            raise DelianError(
                f"{self._name} gave {len(items)} items of {len(wanted)}", "a row each"
            )
        pairs = [self._pair(item, row) for item, row in zip(items, wanted, strict=True)]
        return Rows(self._stacked(pairs, 0, wanted), self._stacked(pairs, 1, wanted))

    def _pair(self, item: Any, row: int) -> tuple[Any, Any]:
        if isinstance(item, Mapping):
            keys = [str(key) for key in item]
            label = self._label or next((k for k in keys if k.lower() in LABELS), "")
            others = self._columns or tuple(k for k in keys if k != label)
            if label in item and len(others) == 1 and others[0] in item:
                return item[others[0]], item[label]
            if label in item and others and all(k in item for k in others):
                return [item[k] for k in others], item[label]
        elif isinstance(item, tuple | list) and len(item) == 2:
            return item[0], item[1]
        raise DelianError(
            f"row {row} of {self._name} is {type(item).__name__}",
            "an item is a pair (x, y), or a dict with a label; name its keys with label= and"
            " columns=",
        )

    def _stacked(self, pairs: list[tuple[Any, Any]], place: int, rows: list[int]) -> Array:
        values = [np.asarray(pair[place]) for pair in pairs]
        for value, row in zip(values, rows, strict=True):
            if value.dtype.kind not in "fiub" or value.shape != values[0].shape:
                raise DelianError(
                    f"row {row} of {self._name} has {'xy'[place]} {value.dtype}"
                    f"{list(value.shape)}, and row {rows[0]} {values[0].dtype}"
                    f"{list(values[0].shape)}",
                    "all rows are numbers of one shape: convert them in its __getitem__",
                )
        made = np.stack(values)
        if place == 1 and made.dtype.kind in "iu":
            return made.astype(np.int32)
        return made
