"""Rows of a table that are dealt out to devices before their columns become features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .columns import Column

FEATURES_HINT = (
    "it needs numbers, dates, categories that several rows have, or texts of several words"
)


@dataclass(frozen=True, slots=True)
class Series:
    """What makes windows of a time series."""

    time: str
    """The column of times; empty: rows are in order."""
    device: str
    """The column that says which series a row is of; empty: there is one."""
    steps: int
    """Rows of a window."""


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows whose columns are not features yet."""

    source: str
    columns: dict[str, Column]
    """The columns that may become features."""
    y: NDArray[Any]
    """Of each example labels, i32 [n], or numbers, f32 [n] or [n, k]."""
    owners: NDArray[np.int64] | None = None
    """By example, an index into `owner_names`."""
    owner_names: tuple[str, ...] = ()
    query: NDArray[np.bool_] | None = None
    """The data's own split, [n]: examples that only judge."""
    label_names: tuple[str, ...] = ()
    target_name: str = ""
    """The column that is learnt."""
    notes: tuple[str, ...] = ()
    """What was left out, in words."""
    windows: NDArray[np.int64] | None = None
    """Of a time series, the rows of each example, [n, steps]; None: a row is an example."""
    series: Series | None = None
    """Of a time series, how its windows are made."""
    device_name: str = ""
    """The column that says which device a row is on."""
    chosen: bool = False
    """Whether the columns were named: each must become features."""

    def __len__(self) -> int:
        return len(self.y)

    @property
    def is_regression(self) -> bool:
        """Whether numbers are learnt, and not labels."""
        return bool(self.y.dtype == np.float32)
