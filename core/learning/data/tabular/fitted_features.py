"""What a fit over devices gives: the features of all rows, and how they were found."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..federated_data import check_memory
from ..rows import NoDataError
from .encoding import Encoding
from .table_rows import FEATURES_HINT, TableRows


@dataclass(frozen=True)
class Fitted:
    """How a table's columns become features."""

    encoding: Encoding
    preparation: Mapping[str, Any]
    """How it was found, as plain data: the columns and what they are."""
    notes: tuple[str, ...] = ()
    """What was left out or filled in, in words."""


Fit: TypeAlias = Callable[[TableRows, Sequence[NDArray[np.int64]]], Fitted]
"""Finds them by the rows of each device that trains, an array of row numbers each."""


def features_of(rows: TableRows, fitted: Fitted) -> NDArray[np.float32]:
    """All examples as features: f32[n, k], or of windows f32[n, steps, k].

    Raises DelianError as `Encoding.encode` does, and where no column became a feature.
    """
    if not fitted.encoding.encoders:
        why = f": {'; '.join(fitted.notes)}" if fitted.notes else ""
        raise NoDataError(f"{rows.source} has no column of features{why}", FEATURES_HINT)
    width = len(fitted.encoding.names)
    check_memory(1, len(next(iter(rows.columns.values()))), 4 * width)
    if rows.windows is not None:
        check_memory(1, len(rows), 4 * width * rows.windows.shape[1])
    x = fitted.encoding.encode(rows.columns, rows.source)
    return x if rows.windows is None else x[rows.windows]


def rows_trained_on(
    rows: TableRows, examples: Sequence[NDArray[np.int64]]
) -> list[NDArray[np.int64]]:
    """The table's rows that examples are made of, for each device."""
    if rows.windows is None:
        return list(examples)
    return [np.unique(rows.windows[each]) for each in examples]
