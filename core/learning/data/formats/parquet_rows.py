"""Parquet files as stored rows, one file or a folder of shards. Needs pyarrow, extra `tables`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ....common.errors import DelianError
from ..rows import DataSettings, NoDataError
from ..stored_rows import StoredRows
from .array_rows import Joined
from .arrow_columns import ArrowRows, arrow, arrow_errors, chosen
from .file_ranges import FileRanges
from .opened_rows import PARQUET
from .table_pieces import TablePieces

#: Shards of one data set.
SHARDS_MAX = 1 << 14


def parquet_rows(path: Path, settings: DataSettings) -> StoredRows:
    """The rows of a Parquet file, or of all in a folder, by name.

    Raises:
        NoDataError: there is no such file, or it has no rows.
        DelianError: pyarrow is missing, or the file is torn or of a schema without x and y.
    """
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in PARQUET)
        if len(files) > SHARDS_MAX:
            raise DelianError(f"{path} has {len(files)} shards; at most {SHARDS_MAX}", "join some")
        return Joined([_one(file, settings) for file in files], str(path))
    return _one(path, settings)


def _one(path: Path, settings: DataSettings) -> StoredRows:
    parquet = arrow("pyarrow.parquet")
    file = FileRanges(path)
    with arrow_errors(str(path)), file.opened() as stream:
        opened = parquet.ParquetFile(stream)
        about = opened.metadata
        groups = [about.row_group(k) for k in range(about.num_row_groups)]
        counts = [int(group.num_rows) for group in groups]
        sizes = [int(group.total_byte_size) for group in groups]
        columns = chosen(opened.schema_arrow, settings, str(path))
    if min(counts, default=0) < 0 or min(sizes, default=0) < 0:
        raise DelianError(f"{path} declares a negative number of rows", "write it again")
    kept = [k for k, count in enumerate(counts) if count > 0]
    if not kept:
        raise NoDataError(f"{path} has no rows", "collect more before taking part")
    wanted = [*columns.features, columns.label]

    def load(k: int) -> Any:
        with file.opened() as stream:
            found = parquet.ParquetFile(stream)
            return found.read_row_group(kept[k], columns=wanted, use_threads=False)

    made = ArrowRows(columns, settings, str(path))
    return TablePieces(
        str(path), [counts[k] for k in kept], [sizes[k] for k in kept], load, made, file.version
    )
