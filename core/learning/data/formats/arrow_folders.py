"""Folders that Hugging Face's `datasets` saves (`save_to_disk`), without that package.

Such a folder has `state.json`, which names its shards: streams of Arrow's IPC format. Each shard is
read through once for the places of its batches, of which only the headers are read; rows are read
by ranges of the file. Needs pyarrow, the extra `tables`.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

from ....common.errors import DelianError
from ....common.files import read_at_most
from ..rows import DataSettings, NoDataError
from ..stored_rows import StoredRows
from .array_rows import Joined
from .arrow_columns import ArrowRows, Chosen, agreed, arrow, arrow_errors, chosen
from .arrow_stream import Stream, stream_of
from .file_ranges import FileRanges
from .shard_files import SHARDS_MAX
from .table_pieces import TablePieces

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_JSON_BYTES_MAX = 64 << 20


def holds_dataset(folder: Path) -> bool:
    """Whether `datasets` saved this folder."""
    return (folder / STATE).is_file() or (folder / SPLITS).is_file()


def dataset_rows(folder: Path, settings: DataSettings) -> StoredRows:
    """The rows of a saved data set.

    Class labels have the numbers that the data set gives them. Raises NoDataError where a shard is
    missing, DelianError for a folder of several splits, one that is torn, or without x and y.
    """
    if (folder / SPLITS).is_file():
        splits = _object(folder / SPLITS).get("splits", [])
        raise DelianError(
            f"{folder} holds several splits: {', '.join(map(str, splits))[:200]}",
            f"name one of its folders, such as {folder / 'train'}",
        )
    state = _object(folder / STATE)
    if state.get("_indices_data_files"):
        raise DelianError(
            f"{folder} was saved with an order of its own",
            "dataset.flatten_indices().save_to_disk(...)",
        )
    listed = state.get("_data_files")
    names = [f.get("filename") for f in listed if isinstance(f, dict)] if listed else []
    if not names or len(names) > SHARDS_MAX:
        raise DelianError(f"{folder / STATE} names {len(names)} shards", "save the data set again")
    files = []
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise DelianError(f"{folder / STATE} names the shard {str(name)[:80]!r}", "save again")
        files.append(folder / name)
    return Joined(_shards(files, settings), str(folder))


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_at_most(path, _JSON_BYTES_MAX))
    except FileNotFoundError:
        raise NoDataError(f"there is no {path}", "save the data set again") from None
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            raise DelianError(f"{path} is larger than {_JSON_BYTES_MAX} bytes", "save") from None
        raise DelianError(f"{path} cannot be read: {error}", "save the data set again") from None
    if not isinstance(found, dict):
        raise DelianError(f"{path} holds no object", "save the data set again")
    return found


def _shards(files: list[Path], settings: DataSettings) -> list[StoredRows]:
    """Those that have rows, with the columns of the first."""
    first: Chosen | None = None
    made: list[StoredRows] = []
    for path in files:
        pa, file = arrow(), FileRanges(path)
        stream = stream_of(file)
        with arrow_errors(str(path)):
            content = file.read(stream.schema.at, stream.schema.size)
            schema = pa.ipc.read_schema(pa.py_buffer(content))
            found = chosen(schema, settings, str(path))
        first = agreed(first or found, found, str(path), str(files[0]))
        if stream.batches:
            made.append(_pieces(file, schema, stream, first, settings))
    return made


def _pieces(
    file: FileRanges, schema: Any, stream: Stream, columns: Chosen, settings: DataSettings
) -> StoredRows:
    pa, path, wanted = arrow(), str(file.path), [*columns.features, columns.label]

    def load(k: int) -> Any:
        batch = stream.batches[k]
        message = pa.ipc.read_message(pa.py_buffer(file.read(batch.at, batch.size)))
        found = pa.ipc.read_record_batch(message, schema)
        # Offsets into buffers come from the file, and Arrow follows them.
        found.validate(full=True)
        return pa.Table.from_batches([found]).select(wanted)

    rows = [batch.rows for batch in stream.batches]
    sizes = [batch.size for batch in stream.batches]
    made = ArrowRows(columns, settings, path)
    return TablePieces(path, rows, sizes, load, made, file.version)
