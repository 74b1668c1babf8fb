"""Tables of Apache Arrow as rows: which columns are x and y, and their values as arrays.

x is one column of vectors (lists of numbers of one length), of images (bytes, or Hugging Face's
{bytes, path}), or several columns of numbers next to each other, as f32. y is the column that is
named, else one called label, labels, target, class or y, else the last. Text labels are numbered by
`data.classes`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError
from ....common.install_hint import install
from ..rows import DataSettings, Rows, RowType, class_number
from .array_rows import type_of
from .image_bytes import as_row_dtype, check_image_row, decode_into, ready, size_of

LABELS = ("label", "labels", "target", "class", "y")
COLUMNS_MAX = 1 << 14

Array = NDArray[Any]


def arrow(module: str = "pyarrow") -> Any:
    """A module of pyarrow. Raises DelianError naming the extra where it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DelianError(
            "reading Parquet and Arrow needs pyarrow, which is not installed", install("tables")
        ) from None


@contextmanager
def arrow_errors(where: str) -> Iterator[None]:
    """What pyarrow raises about damaged files, as DelianErrors."""
    own = arrow().ArrowException
    try:
        yield
    except (own, OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise DelianError(f"{where} cannot be read: {error}", "write it again") from None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The columns that make up a row."""

    features: tuple[str, ...]
    label: str
    images: bool
    """Whether the one feature holds encoded images."""
    texts: bool
    """Whether the label is text."""

    def described(self) -> str:
        """In words, for errors."""
        kind = "of images" if self.images else "of numbers"
        shown = ", ".join(self.features[:12]) + (", ..." if len(self.features) > 12 else "")
        return f"features {kind} ({shown}) and {'text' if self.texts else 'numbers'} `{self.label}`"


def chosen(schema: Any, settings: DataSettings, where: str) -> Chosen:
    """Which columns are what. Raises DelianError where none fits."""
    names = list(schema.names)
    if len(names) > COLUMNS_MAX or len(set(names)) != len(names):
        raise DelianError(f"{where} has {len(names)} columns, or two of one name", "choose some")
    for name in (*settings.columns, *([settings.label] if settings.label else [])):
        if name not in names:
            raise DelianError(
                f"{where} has no column `{name}`; it has {', '.join(names[:20])}",
                "name columns with data.columns and data.label",
            )
    label = settings.label or next((n for n in names if n.lower() in LABELS), names[-1])
    types = arrow("pyarrow.types")
    wanted = settings.columns or tuple(
        n for n in names if n != label and _is_feature(types, schema.field(n).type)
    )
    if not wanted or label in wanted:
        raise DelianError(
            f"{where} has no column of features next to `{label}`",
            "it needs numbers, lists of numbers or images; name them with data.columns",
        )
    wide = [n for n in wanted if not _is_number(types, schema.field(n).type)]
    if wide and len(wanted) > 1:
        raise DelianError(
            f"{where} has {len(wanted)} columns of features, and `{wide[0]}` is one of vectors or"
            " images",
            "name the one to learn from with data.columns",
        )
    images = bool(wide) and _is_image(types, schema.field(wide[0]).type)
    return Chosen(wanted, label, images, _is_text(types, _plain(types, schema.field(label).type)))


def agreed(first: Chosen, found: Chosen, where: str, first_where: str) -> Chosen:
    """The columns of all shards, in the order of the first one.

    Raises DelianError where a shard has others: its features would change their meaning.
    """
    if set(found.features) != set(first.features) or (found.label, found.images, found.texts) != (
        first.label,
        first.images,
        first.texts,
    ):
        raise DelianError(
            f"{where} has {found.described()}, and {first_where} {first.described()}",
            "all shards have one schema; name the columns with data.columns and data.label",
        )
    return first


class ArrowRows:
    """Turns tables of one schema into rows. `kind` is set by the first rows that are made."""

    def __init__(self, columns: Chosen, settings: DataSettings, where: str) -> None:
        self.columns, self._settings, self._where = columns, settings, where
        self.kind: RowType | None = None
        if columns.images:
            ready()

    def rows(self, table: Any, first: int) -> Rows:
        """Rows of a table, whose first is row `first` of the data. Raises DelianError."""
        x = self._features(table, first)
        y = self._labels(table.column(self.columns.label), first)
        if self.kind is None:
            self.kind = type_of(x, y)
        if x.shape[1:] != self.kind.shape:
            raise DelianError(
                f"{self._where}: rows from {first} are {list(x.shape[1:])}, and the first is"
                f" {list(self.kind.shape)}",
                "all rows have one shape",
            )
        return Rows(as_row_dtype(x, self.kind), y) if self.columns.images else Rows(x, y)

    def sized(self, kind: RowType) -> None:
        """Images become rows of this type from here on; numbers stay what they are."""
        if self.columns.images:
            check_image_row(kind.shape, self._where)
            self.kind = RowType(kind.shape, kind.dtype)

    def _features(self, table: Any, first: int) -> Array:
        columns = [table.column(name) for name in self.columns.features]
        if self.columns.images:
            return self._images(columns[0], first)
        if len(columns) == 1 and (vectors := self._vectors(columns[0], first)) is not None:
            return vectors
        made = [
            self._numbers(column, name, first)
            for column, name in zip(columns, self.columns.features, strict=True)
        ]
        return np.stack(made, axis=1).astype(np.float32)

    def _numbers(self, column: Any, name: str, first: int) -> Array:
        if column.null_count:
            row = first + int(np.flatnonzero(column.is_null().to_numpy())[0])
            raise DelianError(
                f"{self._where}: row {row} has no `{name}`", "fill it, or leave the row out"
            )
        values = column.to_numpy()
        if values.dtype.kind not in "fiub":
            raise DelianError(f"{self._where}: `{name}` holds no numbers", "choose columns")
        return np.asarray(values)

    def _vectors(self, column: Any, first: int) -> Array | None:
        """Lists of numbers, [n, k] or with more axes; None: plain numbers."""
        types, shape, rows = arrow("pyarrow.types"), [], len(column)
        values = column.combine_chunks()
        if hasattr(values, "num_chunks"):
            values = values.chunk(0)
        while _is_list(types, values.type):
            if values.null_count:
                raise DelianError(f"{self._where}: a row after {first} has no vector", "leave it")
            inner = values.flatten()
            lengths = np.asarray(values.value_lengths())
            if len(lengths) and (lengths != lengths[0]).any():
                row = first + int((lengths != lengths[0]).argmax()) // max(1, len(values) // rows)
                raise DelianError(
                    f"{self._where}: the vector of row {row} has another length",
                    "all vectors of a column have one length",
                )
            shape.append(int(lengths[0]) if len(lengths) else 0)
            values = inner
        if not shape:
            return None
        flat = self._numbers(values, self.columns.features[0], first)
        return flat.reshape(rows, *shape)

    def _images(self, column: Any, first: int) -> Array:
        kind, made = self.kind, None
        for k, value in enumerate(column.to_pylist()):
            content = value.get("bytes") if isinstance(value, dict) else value

            def where(k: int = k) -> str:
                return f"{self._where}: the image of row {first + k}"

            if not isinstance(content, bytes):
                raise DelianError(f"{where()} is not in the file", "save images with their bytes")
            if made is None:
                shape = kind.shape if kind is not None else size_of(content, where)
                made = np.empty((len(column), *shape), np.uint8)
            decode_into(content, made[k], where)
        assert made is not None
        return made

    def _labels(self, column: Any, first: int) -> Array:
        types, name = arrow("pyarrow.types"), self.columns.label
        if types.is_dictionary(column.type):
            column = column.cast(_plain(types, column.type))
        if _is_text(types, column.type):
            given = column.to_pylist()
            return np.array(
                [
                    class_number(
                        "" if text is None else text,
                        self._settings.classes,
                        f"{self._where}, row {first + k}",
                    )
                    for k, text in enumerate(given)
                ],
                np.int32,
            )
        vectors = self._vectors(column, first)
        found = self._numbers(column, name, first) if vectors is None else vectors
        if found.dtype.kind == "f":
            return found.astype(np.float32)
        if found.size and (int(found.min()) < -(2**31) or int(found.max()) >= 2**31):
            raise DelianError(f"{self._where}: a label of `{name}` is no class", "whole numbers")
        return found.astype(np.int32)


def first_of(make: Callable[[], Rows]) -> RowType:
    """The type of the first rows."""
    found = make()
    return type_of(found.x, found.y)


def _is_number(types: Any, kind: Any) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _plain(types: Any, kind: Any) -> Any:
    """Of a dictionary, the type of its values."""
    return kind.value_type if types.is_dictionary(kind) else kind


def _is_text(types: Any, kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_image(types: Any, kind: Any) -> bool:
    if types.is_struct(kind):
        return any(kind.field(k).name == "bytes" for k in range(kind.num_fields))
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_feature(types: Any, kind: Any) -> bool:
    while _is_list(types, kind):
        kind = kind.value_type
    return _is_number(types, kind) or _is_image(types, kind)


def sliced(tables: Sequence[Any]) -> Any:
    """Tables one after another."""
    return tables[0] if len(tables) == 1 else arrow().concat_tables(tables)
