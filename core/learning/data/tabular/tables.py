"""Tables as labelled rows: which column is learnt, which says where a row is, which are features.

The target is the column that is named, else one called target, label, class or y, else the last:
text, booleans and whole numbers of few values are labels, other numbers are learnt as numbers. How
the other columns become features is found later, by sums over the devices that train
(`encoding.Encoding`). What was left out is said in `TableRows.notes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ....common.nouns import counted
from ..labelled_arrays import Labelled, check_finite, examples_of, numbers_of
from .columns import Column, as_texts, column, missing
from .encoding import row_numbers
from .table_rows import FEATURES_HINT, TableRows

Targets = Literal["labels", "numbers"]

#: The most whole numbers that are labels, and rows that each has at least.
LEVELS_MAX = 32
ROWS_A_LABEL = 5
TARGET_NAMES = ("target", "label", "class", "y")
DEVICE_NAMES = ("device", "client")
ROW_NUMBERS = ("", "id", "index", "unnamed: 0", "row")


@dataclass(frozen=True, slots=True)
class TableChoice:
    """Which columns are what; empty: found by name and content."""

    target: str = ""
    """The column that is learnt."""
    device: str = ""
    """The column that says which device a row is on."""
    columns: tuple[str, ...] = ()
    """The features; all others when empty."""
    targets: Targets | None = None
    """Whether labels or numbers are learnt."""


def labelled_pair(x: NDArray[Any], y: NDArray[Any]) -> Labelled:
    """Rows x [n, ...] and what is learnt of them, y [n] or [n, k], as a caller has them.

    Labels and numbers of y [n] follow the rule of a table's target; y [n, k] are numbers. Raises
    DelianError for arrays that do not fit.
    """
    where = Path("the data")
    rows = examples_of(where, "x", x)
    if rows.dtype == np.float32:
        check_finite(where, "x", rows)
    if y.ndim != 1 or len(y) != len(rows):
        targets = numbers_of(where, "y", y, len(rows))
        check_finite(where, "y", targets)
        return Labelled("the data", rows, targets)
    values = column(y, "y")
    if (absent := missing(values)).any():
        raise DelianError(
            f"y has {int(absent.sum())} values that are missing, the first at row"
            f" {int(absent.argmax())}",
            "leave out these rows",
        )
    found, names = targets_of(values, "y", None, "the data")
    return Labelled("the data", rows, found, label_names=names)


def table_of(columns: Mapping[str, Column], source: str, choice: TableChoice) -> TableRows:
    """A table's rows, with what is learnt of them.

    Raises DelianError for a column that is not there, and a table without features or targets.
    """
    columns = dict(columns)
    check_lengths(columns, source)
    target = chosen(columns, choice.target, TARGET_NAMES, source) or last_with_values(columns)
    device = chosen(columns, choice.device, DEVICE_NAMES, source)
    if device == target:
        device = ""
    notes: list[str] = []
    columns = with_target(columns, target, source, notes)
    wanted = choice.columns or tuple(name for name in columns if name not in (target, device))
    for name in wanted:
        chosen(columns, name, (), source)
    features = {name: columns[name] for name in wanted}
    if not choice.columns:
        for name in row_numbers(features, ROW_NUMBERS):
            notes.append(f"column `{name}` has another whole number in each row and is left out")
            del features[name]
    if not features:
        why = f": {'; '.join(notes)}" if notes else ""
        raise DelianError(f"{source} has no column of features{why}", FEATURES_HINT)
    check_numbers(features, source)
    y, labels = targets_of(columns[target], target, choice.targets, source)
    owners, owner_names = owners_of(columns, device, source)
    return TableRows(
        source,
        features,
        y,
        owners,
        owner_names,
        label_names=labels,
        target_name=target,
        notes=tuple(notes),
        device_name=device,
        chosen=bool(choice.columns),
    )


def check_numbers(columns: Mapping[str, Column], source: str) -> None:
    """Raises DelianError for numbers that are infinite, or are not finite in f32."""
    for name, values in columns.items():
        if values.dtype.kind != "f":
            continue
        broken = np.abs(values) > np.finfo(np.float32).max
        if broken.any():
            raise DelianError(
                f"{source}, row {int(broken.argmax()) + 1}: `{name}` is not finite in f32",
                "mend this row",
            )


def last_with_values(columns: Mapping[str, Column]) -> str:
    """The last column that has a value; the last of all where none has."""
    known = [name for name, values in columns.items() if name and not missing(values).all()]
    return known[-1] if known else list(columns)[-1]


def check_lengths(columns: Mapping[str, Column], source: str) -> None:
    """Raises DelianError for no columns, and for columns of different lengths."""
    lengths = {len(values) for values in columns.values()}
    if not columns:
        raise DelianError(f"{source} has no columns", "give at least a feature and a target")
    if len(lengths) != 1:
        raise DelianError(
            f"{source} has columns of {sorted(lengths)} rows", "give all as many rows"
        )


def with_target(
    columns: Mapping[str, Column], target: str, source: str, notes: list[str]
) -> dict[str, Column]:
    """The rows that have a target. Raises DelianError where none has."""
    kept = ~missing(columns[target])
    if not kept.any():
        raise DelianError(f"column `{target}` of {source} is empty", "choose another target")
    if kept.all():
        return dict(columns)
    notes.append(left_out(int((~kept).sum()), "row", target))
    return {name: values[kept] for name, values in columns.items()}


def left_out(number: int, noun: str, target: str) -> str:
    """A note on rows that have nothing to learn."""
    return counted(
        number, f"{noun} without `{target}` is left out", f"{noun}s without `{target}` are left out"
    )


def owners_of(
    columns: Mapping[str, Column], device: str, source: str
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    """By row, its device, and the devices' names; None without a column of devices.

    Raises DelianError for rows without one.
    """
    if not device:
        return None, ()
    if (absent := missing(columns[device])).any():
        raise DelianError(
            f"{source}: {counted(int(absent.sum()), 'row has', 'rows have')} no `{device}`, the"
            f" first is row {int(absent.argmax()) + 1}",
            "a row without a device is on none: fill it in, or leave the rows out",
        )
    found, index = np.unique(as_texts(columns[device]), return_inverse=True)
    return index.astype(np.int64), tuple(str(name) for name in found)


def chosen(columns: Mapping[str, Column], name: str, usual: tuple[str, ...], source: str) -> str:
    """The column of this name, or the first with a usual one; empty: there is none.

    Raises DelianError for a name that no column has.
    """
    if name in columns:
        return name
    if name:
        raise DelianError(
            f"{source} has no column `{name}`; it has {', '.join(list(columns)[:20])}",
            "name a column as its first line does, or by number from 0 where it has no names",
        )
    return next((own for own in columns if own.lower() in usual), "")


def targets_of(
    values: Column, name: str, targets: Targets | None, source: str
) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Labels i32[n] with their names, or numbers f32[n] and none.

    Raises DelianError for text that is to be learnt as numbers, and for one value alone.
    """
    number = values.dtype.kind == "f"
    if targets == "numbers" and not number:
        raise DelianError(
            f"column `{name}` of {source} is text, and numbers are to be learnt",
            "choose another target, or learn labels",
        )
    levels, index = np.unique(values, return_inverse=True)
    if targets is None:
        targets = "labels" if not number or are_labels(values) else "numbers"
    if targets == "numbers":
        with np.errstate(over="ignore"):
            made = values.astype(np.float32)
        if not np.isfinite(made).all():
            row = int((~np.isfinite(made)).argmax())
            raise DelianError(
                f"{source}, row {row + 1}: `{name}` is not finite in f32", "mend this row"
            )
        return made, ()
    if len(levels) < 2:
        raise DelianError(
            f"column `{name}` of {source} has one value, {levels[0]}", "choose another target"
        )
    _check_labels(len(levels), len(values), name, source)
    return index.astype(np.int32), tuple(str(each) for each in as_texts(levels))


#: Labels of text: more than so many, of fewer rows each than two, are no classes.
_CLASSES = 100


def _check_labels(levels: int, rows: int, name: str, source: str) -> None:
    """Raises DelianError for texts that are no classes: most have a row alone."""
    if levels > _CLASSES and levels * 2 > rows:
        raise DelianError(
            f"column `{name}` of {source} has {levels} different values in {rows} rows: no classes",
            "choose another target, such as --target COLUMN; `delian data show` lists the columns",
        )


def are_labels(values: NDArray[Any]) -> bool:
    """Whether numbers are labels: whole ones of few values, each of several rows."""
    if values.ndim != 1 or not (np.rint(values) == values).all():
        return False
    levels = len(np.unique(values))
    return levels <= LEVELS_MAX and levels * ROWS_A_LABEL <= len(values)
