"""Packing stored rows into one file, a block at a time."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

import numpy as np

from ....common.errors import DelianError
from ....common.files import sync_file, sync_folder
from ..rows import Rows
from ..stored_rows import StoredRows
from .packed_layout import ABOUT, About, Array, Column, block_rows, member


def pack(
    stored: StoredRows, out: Path, wrote: Callable[[int], None] | None = None, mark: int = 0
) -> About:
    """Writes rows as a packed file, which appears whole and durable or not at all.

    Equal rows give equal bytes.

    Args:
        stored: the rows.
        out: the file, `NAME.npz`; it is replaced.
        wrote: is called with the number of rows that are written, after each block.
        mark: of the data, where the file is a cache of it.

    Returns:
        What the file says of itself.

    Raises:
        DelianError: rows cannot be read, change their type within the data, or `out` cannot be
            written.
    """
    if out.suffix != ".npz":
        raise DelianError(f"{out} has another ending than .npz", f"name it {out.stem}.npz")
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            about = _write(stored, file, wrote, mark)
            file.flush()
            sync_file(file.fileno())
        draft.replace(out)
        sync_folder(out.parent)
    except OSError as error:
        raise DelianError(f"cannot write {out}: {error.strerror or error}", "free space") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return about


def _write(
    stored: StoredRows, file: IO[bytes], wrote: Callable[[int], None] | None, mark: int
) -> About:
    one = _columns(stored.read(0, 1))
    columns = {name: _of(array) for name, array in one.items()}
    row_bytes = sum(column.row_bytes for column in columns.values())
    block = block_rows(stored.rows, row_bytes)
    classes = tuple(getattr(stored, "classes", ()))
    about = About(stored.rows, block, columns, classes, mark)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_info(ABOUT), about.written())
        for k in range(about.blocks):
            start, stop = about.rows_of(k)
            found = _columns(stored.read(start, stop))
            for name, column in columns.items():
                given = found.get(name)
                if given is None or _of(given) != column or len(given) != stop - start:
                    raise DelianError(
                        f"rows {start}..{stop - 1} have another `{name}` than the first",
                        "all rows have one type",
                    )
                content = io.BytesIO()
                np.lib.format.write_array(content, given, (1, 0), allow_pickle=False)
                archive.writestr(_info(member(name, k)), content.getbuffer())
            if wrote is not None:
                wrote(stop)
    return about


def _columns(found: Rows) -> dict[str, Array]:
    """Arrays as they are stored: little-endian, in C's order."""
    given = {"x": found.x, "y": found.y}
    if found.query is not None:
        given["query"] = found.query.astype(bool)
    return {
        name: np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        for name, array in given.items()
    }


def _of(array: Array) -> Column:
    return Column(array.shape[1:], array.dtype.str)


def _info(name: str) -> zipfile.ZipInfo:
    """Without a time: equal rows give equal files."""
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o644 << 16
    return info
