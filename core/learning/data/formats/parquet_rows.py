"""Parquet files as stored rows, one file or a folder of shards. Needs pyarrow, extra `tables`."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from ....common.errors import DelianError
from ..rows import DataSettings, NoDataError
from ..stored_rows import StoredRows
from . import table_pieces
from .array_rows import Joined
from .arrow_columns import ArrowRows, Chosen, agreed, arrow, arrow_errors, chosen
from .file_ranges import FileRanges
from .opened_rows import PARQUET
from .shard_files import shard_files

#: The largest list of columns and groups at a file's end.
FOOTER_BYTES_MAX = 256 << 20
#: The marks at both ends, and the footer's length.
_ENDS_BYTES = 12
#: Rows that are decoded before their bytes are counted.
_BATCH_ROWS = 4096


def parquet_rows(path: Path, settings: DataSettings) -> StoredRows:
    """The rows of a Parquet file, or of all in a folder, by name.

    Raises:
        NoDataError: there is no such file, or it has no rows.
        DelianError: pyarrow is missing, or a file is torn, or of a schema without x and y, or of
            another one than the first.
    """
    folder = path.is_dir()
    files = shard_files(path, PARQUET) if folder else [path]
    opened = [_Footer(file, settings) for file in files]
    columns = opened[0].columns if opened else None
    for found in opened[1:]:
        assert columns is not None
        agreed(columns, found.columns, str(found.file.path), str(files[0]))
    parts = [found.rows(columns or found.columns, settings) for found in opened if found.groups]
    if not parts:
        raise NoDataError(f"{path} has no rows", "collect more before taking part")
    names = [str(found.file.path) for found in opened if found.groups]
    return Joined(parts, str(path), names) if folder else parts[0]


class _Footer:
    """What the end of a file says: its columns, and the rows and bytes of its groups."""

    def __init__(self, path: Path, settings: DataSettings) -> None:
        parquet = arrow("pyarrow.parquet")
        self.file = FileRanges(path)
        _check_end(self.file)
        with arrow_errors(str(path)), self.file.opened() as stream:
            opened = parquet.ParquetFile(stream)
            self.columns = chosen(opened.schema_arrow, settings, str(path))
            self.wanted = [*self.columns.features, self.columns.label]
            about = opened.metadata
            # Of a group's columns pyarrow does not catch what their damaged metadata throw.
            found = [about.row_group(k) for k in range(about.num_row_groups)]
            counts = [int(group.num_rows) for group in found]
            self.groups = [k for k, count in enumerate(counts) if count]
            self.counts = [counts[k] for k in self.groups]
            width = sum(_width(opened.schema_arrow.field(name).type) for name in self.wanted)
            # A group's encoding may be far smaller than what it takes in memory.
            whole = set(opened.schema_arrow.names) == set(self.wanted)
            self.sizes = [
                max(counts[k] * width, int(found[k].total_byte_size) if whole else 0)
                for k in self.groups
            ]
        if min(counts, default=0) < 0:
            raise DelianError(f"{path} declares a negative number of rows", "write it again")

    def rows(self, columns: Chosen, settings: DataSettings) -> StoredRows:
        """The rows of the file. columns: in the order of the first shard."""
        where = str(self.file.path)
        made = ArrowRows(columns, settings, where)
        return table_pieces.TablePieces(
            where, self.counts, self.sizes, self._table, made, self.file.version
        )

    def _table(self, k: int) -> Any:
        """A group's table, piece by piece: what lists and texts take is known once it is there."""
        arrow_, parquet = arrow(), arrow("pyarrow.parquet")
        pieces: list[Any] = []
        taken = 0
        with self.file.opened() as stream:
            opened = parquet.ParquetFile(stream)
            for piece in opened.iter_batches(
                _BATCH_ROWS, row_groups=[self.groups[k]], columns=self.wanted, use_threads=False
            ):
                taken += piece.nbytes
                if taken > table_pieces.PIECE_BYTES_MAX:
                    raise table_pieces.too_large(str(self.file.path), k, taken)
                pieces.append(piece)
        return arrow_.Table.from_batches(pieces)


def _width(kind: Any) -> int:
    """The bytes that a value of a column takes at least."""
    try:
        return -(-int(kind.bit_width) // 8)
    except ValueError:  # of a varying one
        return 1


def _check_end(file: FileRanges) -> None:
    """Raises DelianError where a file has no whole footer: pyarrow would read what it declares."""
    path, size = file.path, file.size
    if size < _ENDS_BYTES:
        raise DelianError(f"{path} has {size} bytes, and is no Parquet", "write it again")
    footer, mark = struct.unpack("<I4s", file.read(size - 8, 8))
    if mark == b"PARE":
        raise DelianError(f"{path} has an encrypted footer", "write it without encryption")
    if mark != b"PAR1":
        raise DelianError(
            f"{path} is no whole Parquet file: no end mark at byte {size - 4} of {size}",
            "it is cut short, or no Parquet at all: write it again",
        )
    if footer > min(FOOTER_BYTES_MAX, size - _ENDS_BYTES):
        raise DelianError(
            f"{path} declares a footer of {footer} bytes, and has {size} bytes",
            "it is damaged, or has far too many groups and columns: write it again",
        )
