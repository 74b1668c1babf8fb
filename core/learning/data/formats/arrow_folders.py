"""Folders that Hugging Face's `datasets` saves (`save_to_disk`), without that package.

Such a folder has `state.json`, which names its shards: streams of Arrow's IPC format. Each shard is
read through once for the places of its batches, mapped, so that only their headers are touched;
rows are read by ranges of the file. Needs pyarrow, the extra `tables`.
"""

from __future__ import annotations

import errno
import json
import struct
from pathlib import Path
from typing import Any

from ....common.errors import DelianError
from ....common.files import read_at_most
from ..rows import DataSettings, NoDataError
from ..stored_rows import StoredRows
from .array_rows import Joined
from .arrow_columns import ArrowRows, arrow, arrow_errors, chosen
from .file_ranges import FileRanges
from .table_pieces import TablePieces

STATE, INFO, SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_JSON_BYTES_MAX = 64 << 20
_SHARDS_MAX = 1 << 14
_BATCHES_MAX = 1 << 22
#: What begins a message of the format since version 0.15.
_CONTINUES = 0xFFFFFFFF


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
    files = state.get("_data_files")
    names = [f.get("filename") for f in files if isinstance(f, dict)] if files else []
    if not names or len(names) > _SHARDS_MAX:
        raise DelianError(f"{folder / STATE} names {len(names)} shards", "save the data set again")
    shards = []
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise DelianError(f"{folder / STATE} names the shard {str(name)[:80]!r}", "save again")
        shards.append(_shard(folder / name, settings))
    return Joined([shard for shard in shards if shard is not None], str(folder))


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


def _shard(path: Path, settings: DataSettings) -> StoredRows | None:
    """None: it has no rows."""
    pa, file = arrow(), FileRanges(path)
    with arrow_errors(str(path)):
        schema, places, counts = _batches(pa, path, file)
        columns = chosen(schema, settings, str(path))
    if not places:
        return None
    wanted = [*columns.features, columns.label]

    def load(k: int) -> Any:
        at, size = places[k]
        message = pa.ipc.read_message(pa.py_buffer(file.read(at, size)))
        batch = pa.ipc.read_record_batch(message, schema)
        # Offsets into buffers come from the file, and Arrow follows them.
        batch.validate(full=True)
        return pa.Table.from_batches([batch]).select(wanted)

    made = ArrowRows(columns, settings, str(path))
    sizes = [size for _, size in places]
    return TablePieces(str(path), counts, sizes, load, made, file.version)


def _batches(pa: Any, path: Path, file: FileRanges) -> tuple[Any, list[tuple[int, int]], list[int]]:
    """The schema, byte and length of each batch, and its rows."""
    places: list[tuple[int, int]] = []
    counts: list[int] = []
    with pa.memory_map(str(path)) as source:
        reader = pa.ipc.open_stream(source)
        schema = reader.schema
        if any(pa.types.is_dictionary(field.type) for field in schema):
            raise DelianError(f"{path} has columns of dictionaries", "cast them to plain columns")
        at = source.tell()
        while at < file.size:
            batch = _next(reader)
            if batch is None:
                return schema, places, counts
            end = source.tell()
            if batch.num_rows:
                places.append((at, end - at))
                counts.append(batch.num_rows)
            at = end
            if len(places) > _BATCHES_MAX:
                raise DelianError(f"{path} has more than {_BATCHES_MAX} batches", "save it again")
        _check_end(path, file)
    return schema, places, counts


def _next(reader: Any) -> Any | None:
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None


def _check_end(path: Path, file: FileRanges) -> None:
    """A stream ends with an empty message, where it was written to its end."""
    if bytes(file.read(max(0, file.size - 8), min(8, file.size))) != struct.pack(
        "<II", _CONTINUES, 0
    ):
        raise DelianError(f"{path} has no end mark", "it is cut short: save the data set again")
