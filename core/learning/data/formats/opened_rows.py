"""Which format a name or an object is of: the door to all stored rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ....common.errors import DelianError
from ..rows import DataSettings, NoDataError
from ..stored_rows import StoredArrays, StoredRows, holds_arrays, is_stored

TAR, PACKED = ".tar", ".npz"
PARQUET = (".parquet", ".pq")


def open_rows(
    source: Any,
    *,
    label: str = "",
    columns: tuple[str, ...] = (),
    classes: tuple[str, ...] = (),
    shape: tuple[int, ...] = (),
    dtype: str = "u8",
    numbers: bool = False,
) -> StoredRows:
    """Rows by random access, of a path or an object.

    Args:
        source: a path: .npz, packed (or a folder of such files) or plain, a folder with x.npy and
            y.npy, CSV, Parquet (or a folder of it), a WebDataset tar (or a folder of them), a
            folder that `datasets` saved, a folder of images by class. Or an object: stored rows, a
            pair of arrays (x, y), a PyTorch or Hugging Face data set, a sequence of pairs.
        label: the column of y.
        columns: those of x.
        classes: names of text labels and class folders, in the order of the classes.
        shape: of images [height, width, channels]; that of the first when empty.
        dtype: of images, `u8`, or `f32` for 0 to 1.
        numbers: whether y of a CSV file are numbers to learn, and no labels.

    Raises:
        NoDataError: there is no such data, or it has no rows.
        DelianError: it cannot be read, or is of no known format.
    """
    if isinstance(source, str | Path):
        settings = DataSettings(source=str(source), label=label, columns=columns, classes=classes)
        found = stored_path(Path(source), settings, shape, dtype, named=True, numbers=numbers)
        if found is None:
            raise _unknown(Path(source))
        return found
    if is_stored(source):
        return source
    from .array_rows import ArrayRows

    if isinstance(source, tuple) and len(source) == 2 and all(map(_is_array, source)):
        return ArrayRows(np.asarray(source[0]), np.asarray(source[1]))
    from .hub_rows import HubRows, is_hub_dataset
    from .map_datasets import DatasetRows

    if is_hub_dataset(source):
        return HubRows(source, DataSettings(label=label, columns=columns, classes=classes))
    return DatasetRows(source, label, columns)


def stored_path(
    path: Path,
    settings: DataSettings,
    shape: tuple[int, ...] = (),
    dtype: str = "u8",
    named: bool = False,
    numbers: bool = False,
) -> StoredRows | None:
    """The stored rows at a path; None: it is of none of these formats.

    named: whether class folders may be numbered by their order. numbers: as `open_rows`.
    """
    if path.suffix == ".csv":
        from .csv_blocks import CsvBlocks

        return CsvBlocks(path, settings, numbers)
    if path.suffix == PACKED:
        from ..packed.packed_rows import PackedRows, is_packed

        return PackedRows(path) if is_packed(path) else _npz(path)
    if path.suffix in PARQUET:
        from .parquet_rows import parquet_rows

        return parquet_rows(path, settings)
    if path.suffix == TAR:
        from .tar_rows import TarRows

        return TarRows(path, shape, dtype, settings.classes)
    return _folder(path, settings, shape, dtype, named) if path.is_dir() else None


def _folder(
    path: Path, settings: DataSettings, shape: tuple[int, ...], dtype: str, named: bool
) -> StoredRows:
    kind = folder_kind(path)
    if kind == "arrays":
        return StoredArrays(path)
    if kind == "dataset":
        from .arrow_folders import dataset_rows

        return dataset_rows(path, settings)
    if kind == "parquet":
        from .parquet_rows import parquet_rows

        return parquet_rows(path, settings)
    if kind in ("packed", "tars"):
        from .array_rows import Joined
        from .shard_files import shard_files

        shards = shard_files(path, (TAR if kind == "tars" else PACKED,))
        if kind == "packed":
            from ..packed.packed_rows import PackedRows

            parts: list[StoredRows] = [PackedRows(p) for p in shards]
        else:
            from .tar_rows import TarRows

            first = TarRows(shards[0], shape, dtype, settings.classes)
            size = first.row_type().shape
            parts = [first, *(TarRows(p, size, dtype, settings.classes) for p in shards[1:])]
        return Joined(parts, str(path), [str(p) for p in shards])
    from .image_rows import ImageRows

    return ImageRows(path, shape, dtype, settings.classes, named)


def folder_kind(path: Path) -> str:
    """`arrays`, `dataset`, `parquet`, `tars`, `packed`, or `images` for all else.

    Raises NoDataError or DelianError where the folder cannot be listed.
    """
    from ..packed.packed_rows import is_packed
    from .arrow_folders import holds_dataset
    from .shard_files import entries_of

    if holds_arrays(path):
        return "arrays"
    if holds_dataset(path):
        return "dataset"
    entries = entries_of(path)
    suffixes = {p.suffix for p in entries}
    if suffixes & set(PARQUET):
        return "parquet"
    if TAR in suffixes:
        return "tars"
    return "packed" if any(p.suffix == PACKED and is_packed(p) for p in entries) else "images"


def _npz(path: Path) -> StoredRows:
    from ..data_files import read_npz
    from .array_rows import ArrayRows

    arrays = read_npz(path, ["x", "y"])
    return ArrayRows(arrays["x"], arrays["y"])


def _is_array(value: Any) -> bool:
    return hasattr(value, "__array__") and getattr(value, "ndim", 0) > 0


def _unknown(path: Path) -> DelianError:
    if not path.exists():
        return NoDataError(f"there is no {path}", "check the path")
    from ....common.foreign_formats import refuse_file

    refuse_file(path, "data")
    return DelianError(
        f"{path} is of no known format",
        "give .npz, .csv, .parquet, .tar, or a folder of arrays, tars, Parquet or images",
    )
