"""How a packed file is laid out: members, their names, and what `rows.json` says.

    rows.json           rows, rows of a block, type of x and y, names of the classes; comes first
    x/00000.npy         rows 0..B-1 of x
    y/00000.npy         and of y
    query/00000.npy     the data's own split, where it has one
    x/00001.npy ...

All members are stored without compression (PKWARE APPNOTE 6.3, method 0), with sizes in the local
headers, and zip64 where the file is large.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....common.errors import DelianError

Array = NDArray[Any]

ABOUT = "rows.json"
FORMAT = "delian rows 1"
#: The first member's local header: 30 bytes, then its name.
LOCAL_BYTES = 30
LOCAL = b"PK\x03\x04"
ABOUT_BYTES_MAX = 1 << 20
#: A block is about so many bytes: what is read, and compared with its checksum, at once.
BLOCK_BYTES = 1 << 20
#: There are no more blocks; those of a larger data set are larger.
BLOCKS_MAX = 1 << 14
#: The largest member that is read.
MEMBER_BYTES_MAX = 1 << 30
#: Before the rows of a block; what NumPy writes takes 128 bytes.
HEADER_BYTES_MAX = 1 << 12
ROWS_MAX = 1 << 40


@dataclass(frozen=True, slots=True)
class Column:
    """One array of the rows."""

    shape: tuple[int, ...]
    """Of a row."""
    dtype: str
    """As NumPy spells it, little-endian: `<f4`, `|u1`."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class About:
    """What `rows.json` says."""

    rows: int
    block: int
    """Rows of each block but the last."""
    columns: dict[str, Column]
    """`x`, `y` and perhaps `query`."""
    classes: tuple[str, ...] = ()
    mark: int = 0
    """Of the data and what was done to it, where the file is a cache; 0: it is none."""

    @property
    def blocks(self) -> int:
        """How many blocks each column has."""
        return -(-self.rows // self.block)

    def rows_of(self, block: int) -> tuple[int, int]:
        """The rows of a block: [start, stop)."""
        return block * self.block, min(self.rows, (block + 1) * self.block)

    def fits(self, column: str, block: int, size: int) -> bool:
        """Whether a member of this size can hold the rows of a block."""
        start, stop = self.rows_of(block)
        return 0 < size - (stop - start) * self.columns[column].row_bytes <= HEADER_BYTES_MAX

    def written(self) -> bytes:
        """The text of `rows.json`."""
        return json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True).encode()


def block_rows(rows: int, row_bytes: int) -> int:
    """How many rows a block has, for rows of this size."""
    wanted = max(BLOCK_BYTES, -(-rows * row_bytes // BLOCKS_MAX))
    return max(1, min(rows, wanted // max(1, row_bytes)), -(-rows // BLOCKS_MAX))


def member(column: str, block: int) -> str:
    """The name of a block."""
    return f"{column}/{block:05}.npy"


def block_of(name: str) -> tuple[str, int] | None:
    """Column and number of a block, of a member's name; None: it is no block."""
    column, slash, rest = name.partition("/")
    number, dot, _ = rest.partition(".npy")
    return (column, int(number)) if slash and dot and number.isdigit() else None


def about_of(content: bytes, path: Path) -> About:
    """What `rows.json` says. Raises DelianError where it makes no sense."""
    try:
        said = json.loads(content)
        if said["format"] != FORMAT:
            raise ValueError(f"its format is {str(said['format'])[:40]!r}, not {FORMAT!r}")
        columns = {str(name): _column(given) for name, given in said["columns"].items()}
        found = About(
            _whole(said["rows"], ROWS_MAX),
            _whole(said["block"], ROWS_MAX),
            columns,
            tuple(str(name) for name in said["classes"]),
            int(said["mark"]),
        )
        if not {"x", "y"} <= set(columns) <= {"x", "y", "query"}:
            raise ValueError(f"it has the columns {', '.join(columns)[:80]}")
        if found.blocks > BLOCKS_MAX:
            raise ValueError(f"it has {found.blocks} blocks")
        for name, column in columns.items():
            if column.row_bytes * min(found.block, found.rows) > MEMBER_BYTES_MAX // 2:
                raise ValueError(f"a block of {name} takes more than {MEMBER_BYTES_MAX // 2} bytes")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DelianError(
            f"{path} says nothing sensible of its rows: {error}", "pack the data again"
        ) from None
    return found


def _column(given: Any) -> Column:
    shape, dtype = tuple(_whole(n, 1 << 32) for n in given["shape"]), np.dtype(str(given["dtype"]))
    if dtype.kind not in "fiub" or len(shape) > 16:
        raise ValueError(f"a column of {dtype}{list(shape)}")
    return Column(shape, dtype.str)


def _whole(value: Any, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= most:
        raise ValueError(f"{str(value)[:40]} is no number from 1 to {most}")
    return value
