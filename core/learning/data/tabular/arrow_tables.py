"""Tables of Arrow: Parquet files, and the streams of `datasets.save_to_disk`. Needs pyarrow.

Batches are read one after the other, and their bytes are counted as they come: what a file
declares about itself is not relied on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ....common.errors import DelianError
from ..data_files import require_file
from ..formats.arrow_columns import arrow
from .columns import Column, column, typed
from .delimited import COLUMNS_MAX, TABLE_BYTES_MAX

PARQUET = (".parquet", ".pq")
#: Files of Arrow's IPC; Feather is one of them.
ARROW = (".arrow", ".feather", ".ipc")
#: Rows of a batch.
_BATCH = 1 << 14
#: Where `datasets` keeps what its columns are, in a schema.
_HUB = b"huggingface"


@dataclass(frozen=True)
class ArrowTable:
    """Columns of one or several files with the same schema."""

    columns: dict[str, Column]
    """Numbers and text."""
    images: dict[str, list[bytes]] = field(default_factory=dict)
    """By column of images, the content of each row's file; empty where there is none."""
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """By column of labels, the names that `datasets` gives its numbers."""
    left_out: tuple[str, ...] = ()
    """What columns are not read, and why, in words."""


def read_parquet(paths: Sequence[Path]) -> ArrowTable:
    """Parquet files, one after the other. Raises DelianError."""
    return _read(paths, _parquet_batches, "Parquet file")


def read_streams(paths: Sequence[Path]) -> ArrowTable:
    """Files of Arrow's IPC, as streams or with a footer. Raises DelianError."""
    return _read(paths, _stream_batches, "file of Arrow")


def _read(paths: Sequence[Path], batches_of: Any, what: str) -> ArrowTable:
    taken, found, schema = 0, [], None
    for path in paths:
        require_file(path, "give the file's path with --data FILE")
        pyarrow = arrow()
        try:
            own, batches = batches_of(path)
            if len(own) > COLUMNS_MAX:
                raise DelianError(f"{path} has {len(own)} columns; at most {COLUMNS_MAX}")
            schema = schema or own
            if own.remove_metadata() != schema.remove_metadata():
                raise DelianError(
                    f"{path} has other columns than {paths[0].name}: {_other(schema, own)}",
                    "the files of one folder are one table: write them with one schema",
                )
            for batch in batches:
                # Offsets of a damaged file may lead out of its buffers.
                batch.validate(full=True)
                taken += batch.nbytes
                if taken > TABLE_BYTES_MAX:
                    raise DelianError(
                        f"{path} is too large for a table: more than {TABLE_BYTES_MAX >> 20} MiB",
                        "cut it into smaller files",
                    )
                found.append(batch)
        except (OSError, ValueError, pyarrow.ArrowException) as error:
            reason = str(error).partition("\n")[0]
            raise DelianError(f"{path} is not a whole {what}: {reason}", "write it again") from None
    if schema is None:
        raise DelianError("no files of a table", "give at least one")
    try:
        table = pyarrow.Table.from_batches(found, schema)
        if not table.num_rows:
            raise DelianError(f"{paths[0]} has no rows", "append rows")
        return _columns(table, schema)
    except (ValueError, OverflowError, pyarrow.ArrowException) as error:
        # Names that are no text, and values that are out of their type's range.
        reason = str(error).partition("\n")[0]
        raise DelianError(f"{paths[0]} cannot be read: {reason}", "write it again") from None


def _other(wanted: Any, found: Any) -> str:
    """The first difference of two schemas, in words."""
    for each in wanted:
        at = found.get_field_index(each.name)
        if at < 0:
            return f"no column `{each.name}`"
        if found.field(at).type != each.type:
            return f"`{each.name}` is {found.field(at).type}, not {each.type}"
    more = [name for name in found.names if name not in wanted.names]
    return f"a column `{more[0]}`" if more else "their order differs"


def _parquet_batches(path: Path) -> tuple[Any, Iterator[Any]]:
    file = arrow("pyarrow.parquet").ParquetFile(path)
    sizes = [file.metadata.row_group(k).total_byte_size for k in range(file.num_row_groups)]
    if sum(sizes) > TABLE_BYTES_MAX:
        raise DelianError(f"{path} is too large for a table", "cut it into smaller files")
    return file.schema_arrow, file.iter_batches(batch_size=_BATCH)


def _stream_batches(path: Path) -> tuple[Any, Iterator[Any]]:
    ipc = arrow("pyarrow.ipc")
    # Not mapped: a file that is cut short while it is mapped ends the process. And not read in
    # parts: memory would be taken for lengths that a damaged file declares.
    if path.stat().st_size > TABLE_BYTES_MAX:
        raise DelianError(f"{path} is too large for a table", "cut it into smaller files")
    with path.open("rb") as file:
        content = file.read(TABLE_BYTES_MAX)
    try:
        reader = ipc.open_stream(content)
        return reader.schema, iter(reader)
    except (OSError, ValueError):
        whole = ipc.open_file(content)
        return whole.schema, (whole.get_batch(k) for k in range(whole.num_record_batches))


def _columns(table: Any, schema: Any) -> ArrowTable:
    types = arrow("pyarrow.types")
    features = _features(schema)
    columns: dict[str, Column] = {}
    images: dict[str, list[bytes]] = {}
    classes: dict[str, tuple[str, ...]] = {}
    left_out: list[str] = []
    if len(set(table.column_names)) != len(table.column_names):
        raise DelianError("a table of Arrow has two columns of one name", "give each its own")
    for name in table.column_names:
        values = table.column(name)
        kind = values.type
        if types.is_dictionary(kind):
            values = values.cast(kind.value_type)
            kind = values.type
        named = features.get(name)
        if isinstance(named, dict) and isinstance(named.get("names"), list):
            classes[name] = tuple(str(each) for each in named["names"])
        if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            images[name] = [(row or {}).get("bytes") or b"" for row in values.to_pylist()]
        elif types.is_nested(kind) or types.is_binary(kind) or types.is_large_binary(kind):
            left_out.append(f"column `{name}` holds {kind}, which is no value of a table")
        else:
            columns[name] = _plain(values, kind, types, name)
    return ArrowTable(columns, images, classes, tuple(left_out))


def _plain(values: Any, kind: Any, types: Any, name: str) -> Column:
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        found = values.cast("float64").to_numpy(zero_copy_only=False)
        return np.asarray(found, np.float64)
    if types.is_null(kind):
        return np.full(len(values), np.nan)
    if types.is_timestamp(kind) or types.is_date(kind):
        unit = "us" if types.is_timestamp(kind) else "D"
        return column(
            np.asarray(values.to_numpy(zero_copy_only=False), f"datetime64[{unit}]"), name
        )
    return typed(["" if v is None else str(v) for v in values.to_pylist()])


def _features(schema: Any) -> dict[str, Any]:
    """What `datasets` says of the columns; empty where it says nothing that can be read."""
    said = (schema.metadata or {}).get(_HUB, b"")
    try:
        found = json.loads(said)["info"]["features"] if said else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
