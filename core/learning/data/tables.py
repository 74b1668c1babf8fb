"""Tables as labelled rows: CSV and Parquet files, and data frames; types are found by content.

A column of numbers is a feature. A column of text with few values becomes one feature for each
value (one-hot). The target is the column that is named, else one called target, label, class or y,
else the last: text, booleans and whole numbers of few values are labels, other numbers are learnt
as numbers. What was left out or filled in is said in `Labelled.notes`.
"""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ...common.errors import DelianError
from ...common.install_hint import install
from .data_files import read_text
from .labelled_arrays import Labelled, check_finite, examples_of, numbers_of

Targets = Literal["labels", "numbers"]
Column = NDArray[Any]
"""f64[n] with NaN for what is missing, or text [n]."""

TABLE_BYTES_MAX = 1 << 30
COLUMNS_MAX = 1 << 14
FIELD_CHARS_MAX = 4096
#: Values of a text column that become features, and the most whole numbers that are labels.
LEVELS_MAX = 32
#: Rows a label has at least, where whole numbers count as labels.
ROWS_A_LABEL = 5
#: What a missing value is written as.
MISSING = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
TRUTHS = {"true": 1.0, "false": 0.0}
TARGET_NAMES = ("target", "label", "class", "y")
DEVICE_NAMES = ("device", "client")
ROW_NUMBERS = ("", "id", "index", "unnamed: 0", "row")
SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")


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


def read_columns(path: Path) -> dict[str, Column]:
    """The columns of a file, by name. Raises DelianError for one that cannot be read."""
    return _parquet(path) if path.suffix in (".parquet", ".pq") else _csv(path)


def frame_columns(frame: Any) -> dict[str, Column]:
    """The columns of a data frame (pandas, polars), or of a dict of arrays."""
    names = list(frame.keys() if isinstance(frame, Mapping) else frame.columns)
    return {str(name): column(np.asarray(frame[name]), str(name)) for name in names}


def column(values: NDArray[Any], name: str) -> Column:
    """An array as a column. Raises DelianError for one of several axes."""
    if values.ndim != 1:
        raise DelianError(f"column `{name}` has shape {list(values.shape)}", "give one axis, [n]")
    if values.dtype.kind in "fiub":
        return values.astype(np.float64)
    if values.dtype.kind in "Mm":
        return values.astype(str)
    return _typed([("" if v is None else str(v)) for v in values.tolist()])


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
    if (missing := _missing(values)).any():
        raise DelianError(
            f"y has {int(missing.sum())} values that are missing, the first at row"
            f" {int(missing.argmax())}",
            "leave out these rows",
        )
    found, names = targets_of(values, "y", None, "the data")
    return Labelled("the data", rows, found, label_names=names)


def _csv(path: Path) -> dict[str, Column]:
    return {name: _typed(fields) for name, fields in csv_fields(path).items()}


def csv_fields(path: Path, chars_max: int = FIELD_CHARS_MAX) -> dict[str, list[str]]:
    """The fields of a CSV file by column, as they are written.

    chars_max: characters of a field. Raises DelianError for a file that cannot be read.
    """
    text = read_text(path, TABLE_BYTES_MAX)
    first = text.partition("\n")[0]
    comma = "\t" if path.suffix == ".tsv" else max(",;\t", key=first.count)
    csv.field_size_limit(chars_max)
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=comma)
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise DelianError(f"{path} cannot be read: {error}", "write it as CSV (RFC 4180)") from None
    if not lines:
        raise DelianError(f"{path} is empty", "it needs a line for each row")
    width = len(lines[0])
    if width > COLUMNS_MAX:
        raise DelianError(f"{path} has {width} columns; at most {COLUMNS_MAX}", "choose some")
    for number, line in enumerate(lines, 1):
        if len(line) != width:
            raise DelianError(
                f"{path}, row {number}: {len(line)} fields, and the first row has {width}",
                "every row needs a field for each column",
            )
    has_names = not any(_is_number(field) for field in lines[0])
    names = [field.strip() for field in lines[0]] if has_names else [str(k) for k in range(width)]
    rows = lines[1:] if has_names else lines
    if not rows:
        raise DelianError(f"{path} holds names and no rows", "append rows")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise DelianError(f"{path} has two columns `{twice}`", "give each its own name")
    return {name: [row[k] for row in rows] for k, name in enumerate(names)}


def _parquet(path: Path) -> dict[str, Column]:
    from .data_files import require_file

    require_file(path, "give the file's path with --data FILE")
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError:
        raise DelianError(
            "reading Parquet needs pyarrow, which is not installed", install("tables")
        ) from None
    try:
        file = parquet.ParquetFile(path)
        sizes = [file.metadata.row_group(k).total_byte_size for k in range(file.num_row_groups)]
        if sum(sizes) > TABLE_BYTES_MAX or file.metadata.num_columns > COLUMNS_MAX:
            raise DelianError(f"{path} is too large for a table", "cut it into smaller files")
        return frame_columns(file.read().to_pydict())
    except (OSError, ValueError) as error:
        raise DelianError(
            f"{path} is not a whole Parquet file: {error}", "write it again"
        ) from None


def _typed(fields: Sequence[str]) -> Column:
    """Text as numbers where all of it is numbers, truth values or missing."""
    stripped = [field.strip() for field in fields]
    values = np.empty(len(stripped), np.float64)
    for k, field in enumerate(stripped):
        lowered = field.lower()
        if lowered in MISSING:
            values[k] = np.nan
        elif lowered in TRUTHS:
            values[k] = TRUTHS[lowered]
        else:
            try:
                values[k] = float(field)
            except ValueError:
                return np.array(["" if f.lower() in MISSING else f for f in stripped])
    return values


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def labelled(columns: Mapping[str, Column], source: str, choice: TableChoice) -> Labelled:
    """A table's rows as f32 features and what is learnt of them.

    Raises DelianError for a column that is not there, and a table without features or targets.
    """
    lengths = {len(values) for values in columns.values()}
    if not columns:
        raise DelianError(f"{source} has no columns", "give at least a feature and a target")
    if len(lengths) != 1:
        raise DelianError(
            f"{source} has columns of {sorted(lengths)} rows", "give all as many rows"
        )
    target = _chosen(columns, choice.target, TARGET_NAMES, source) or list(columns)[-1]
    device = _chosen(columns, choice.device, DEVICE_NAMES, source)
    notes: list[str] = []
    kept = ~_missing(columns[target])
    if not kept.all():
        notes.append(f"{int((~kept).sum())} rows without `{target}` are left out")
        columns = {name: values[kept] for name, values in columns.items()}
    if not kept.any():
        raise DelianError(f"column `{target}` of {source} is empty", "choose another target")
    wanted = choice.columns or tuple(name for name in columns if name not in (target, device))
    for name in wanted:
        _chosen(columns, name, (), source)
    chosen = {name: columns[name] for name in wanted}
    x, names = _features(chosen, source, bool(choice.columns), notes)
    y, labels = targets_of(columns[target], target, choice.targets, source)
    owners: NDArray[np.int64] | None = None
    owner_names: tuple[str, ...] = ()
    if device:
        found, index = np.unique(_as_text(columns[device]), return_inverse=True)
        owners, owner_names = index.astype(np.int64), tuple(str(name) for name in found)
    return Labelled(
        source,
        x,
        y,
        owners,
        owner_names,
        label_names=labels,
        feature_names=names,
        target_name=target,
        notes=tuple(notes),
    )


def _chosen(columns: Mapping[str, Column], name: str, usual: tuple[str, ...], source: str) -> str:
    """The column of this name, or the first with a usual one; empty: there is none."""
    if name in columns:
        return name
    if name:
        raise DelianError(
            f"{source} has no column `{name}`; it has {', '.join(list(columns)[:20])}",
            "name a column as its first line does, or by number from 0 where it has no names",
        )
    return next((own for own in columns if own.lower() in usual), "")


def _missing(values: Column) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.isnan(values) if values.dtype.kind == "f" else values == ""
    return found


_FEATURES_HINT = (
    "it needs numbers, or text of few values; of long texts compute numbers first, such as scikit-"
    "learn's TfidfVectorizer or embeddings, and give them as x of an .npz"
)


def _features(
    columns: Mapping[str, Column], source: str, chosen: bool, notes: list[str]
) -> tuple[NDArray[np.float32], tuple[str, ...]]:
    """f32[n, k] and the features' names."""
    made: list[NDArray[Any]] = []
    names: list[str] = []
    for name, values in columns.items():
        if values.dtype.kind == "f":
            if not chosen and name.lower() in ROW_NUMBERS and _are_row_numbers(values):
                notes.append(f"column `{name}` numbers the rows and is left out")
                continue
            made.append(_filled(values, name, notes))
            names.append(name)
            continue
        levels = np.unique(values)
        if len(levels) > LEVELS_MAX:
            if chosen:
                raise DelianError(
                    f"column `{name}` of {source} has {len(levels)} different texts",
                    f"a text column becomes a feature for each, at most {LEVELS_MAX}",
                )
            notes.append(f"column `{name}` has {len(levels)} different texts and is left out")
            continue
        for level in levels if len(levels) > 2 else levels[1:]:
            made.append((values == level).astype(np.float64))
            names.append(f"{name}={level or 'missing'}")
    if not made:
        why = f": {'; '.join(notes)}" if notes else ""
        raise DelianError(f"{source} has no column of features{why}", _FEATURES_HINT)
    with np.errstate(over="ignore"):  # which is said below
        x = np.stack(made, axis=1).astype(np.float32)
    if not np.isfinite(x).all():
        row, place = np.argwhere(~np.isfinite(x))[0]
        raise DelianError(
            f"{source}, row {row + 1}: `{names[place]}` is not finite in f32", "mend this row"
        )
    return x, tuple(names)


def encoded(columns: Mapping[str, Column], features: Sequence[str]) -> NDArray[np.float32]:
    """Columns as the features of a table that was read before: f32[n, k].

    Raises DelianError for a column that is missing, or of another kind.
    """
    made: list[NDArray[Any]] = []
    for feature in features:
        name, text, level = feature.partition("=")
        if feature in columns or not text:
            values = columns.get(feature)
            if values is None or values.dtype.kind != "f":
                raise DelianError(
                    f"the rows have no column of numbers `{feature}`", "the model was trained on it"
                )
            made.append(_filled(values, feature, []))
            continue
        if name not in columns:
            raise DelianError(f"the rows have no column `{name}`", "the model was trained on it")
        level = "" if level == "missing" else level
        made.append((_as_text(columns[name]) == level).astype(np.float64))
    return np.stack(made, axis=1).astype(np.float32)


def _are_row_numbers(values: Column) -> bool:
    return len(np.unique(values)) == len(values) and bool((np.rint(values) == values).all())


def _filled(values: Column, name: str, notes: list[str]) -> Column:
    """Numbers with the median in place of missing ones."""
    missing = np.isnan(values)
    if not missing.any():
        return values
    if missing.all():
        notes.append(f"column `{name}` is empty: its values are zero")
        return np.zeros_like(values)
    notes.append(f"{int(missing.sum())} missing values of `{name}` are filled with its median")
    return np.where(missing, np.median(values[~missing]), values)


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
        return values.astype(np.float32), ()
    if len(levels) < 2:
        raise DelianError(
            f"column `{name}` of {source} has one value, {levels[0]}", "choose another target"
        )
    return index.astype(np.int32), tuple(_as_text(levels).tolist())


def are_labels(values: NDArray[Any]) -> bool:
    """Whether numbers are labels: whole ones of few values, each of several rows."""
    if values.ndim != 1 or not (np.rint(values) == values).all():
        return False
    levels = len(np.unique(values))
    return levels <= LEVELS_MAX and levels * ROWS_A_LABEL <= len(values)


def _as_text(values: Column) -> NDArray[np.str_]:
    if values.dtype.kind != "f":
        return values.astype(np.str_)
    return np.array([f"{int(v)}" if v == np.rint(v) else f"{v:g}" for v in values])
