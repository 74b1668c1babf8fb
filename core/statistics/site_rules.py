"""What a site's owner allows questions: tables, columns, methods, a floor, a number a day.

And what no two questions may do together: two sets of rows that differ by fewer rows than the floor
would say what these few rows are. The site keeps the rows of each question that it has answered.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..common.errors import DelianError
from .request import Request
from .sql.rows_data import Offered, Refused, SiteRows, Wanted, wanted
from .sums import StatisticsError

#: Bytes of the memory of answered questions; a full one refuses questions about other rows.
HISTORY_BYTES_MAX = 1 << 26
_NAME_BYTES = 64
_HEAD = _NAME_BYTES + 8
_ROWS_MAX = 1 << 31
Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class OwnerRules:
    """The owner's word. Without tables no question is answered."""

    tables: Mapping[str, Offered] = field(default_factory=dict)
    """The tables that questions may read, by name."""
    methods: tuple[str, ...] = ()
    """Methods that may be asked. Empty: all."""
    floor: int = 5
    """Fewer rows are neither answered about, nor may two questions differ by so few."""
    per_day: int = 100
    """Questions in 24 hours, each with all its steps."""
    noise_min: float = 0.0
    """The least noise of a question, in lengths of what one row can change; zero: it needs none.
    Groups of a question with so much may be of any size.
    """
    fine: bool = False
    """Whether a method may be asked whose sums are about fewer rows than the floor: boosted trees,
    random forests, survival at exact times.
    """

    def __post_init__(self) -> None:
        if self.floor < 1 or self.per_day < 1 or not 0.0 <= self.noise_min <= 1e4:
            raise DelianError(
                f"questions: floor {self.floor}, per_day {self.per_day}, noise_min"
                f" {self.noise_min:g}",
                "floor and per_day from 1, noise_min from 0 to 10,000",
            )
        for name in self.tables:
            if not name or len(name.encode()) > _NAME_BYTES or '"' in name:
                raise DelianError(f"a table called {name[:40]!r}", "1 to 64 bytes, no quotes")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> OwnerRules:
        tables = {
            name: Offered(t["path"], tuple(t["columns"]), t["relation"])
            for name, t in said["tables"].items()
        }
        return cls(**{**said, "tables": tables, "methods": tuple(said["methods"])})

    def check(self, request: Request) -> Wanted:
        """What a question reads here. Raises Refused, and StatisticsError for one that has none."""
        method = request.question.method
        if self.methods and method not in self.methods:
            raise Refused("method", f"the method `{method}` may not be asked")
        if request.noise < self.noise_min:
            raise Refused(
                "noise", f"noise of {request.noise:g}, and the owner asks for {self.noise_min:g}"
            )
        least = request.question.cell_floor()
        if least is not None and least < self.floor_of(request) and not self.fine:
            raise Refused(
                "floor", f"sums about {least} rows, and the owner's floor is {self.floor}"
            )
        found = wanted(request.rows, request.question.columns(), self.tables)
        if request.noise and len(found.origin.tables) > 1:
            raise StatisticsError(
                "noise hides a row, and in a join one row may count many times",
                "ask about one table, or without noise",
            )
        return found

    def floor_of(self, request: Request) -> int:
        """The fewest rows that a number may be about.

        Noise that is enough for the owner takes the place of the floor: a floor would make it
        larger, since one row may bring a group to it.
        """
        noised = self.noise_min > 0 and request.noise >= self.noise_min
        return 1 if noised else self.floor

    def check_rows(self, request: Request, found: Wanted, rows: SiteRows, history: bytes) -> bytes:
        """Whether these rows may be asked about; gives what is to be added to the history.

        Raises Refused.
        """
        places = np.unique(rows.places)
        if 0 < len(places) < self.floor:
            raise Refused("floor", "fewer rows than the owner's floor")
        table = found.origin.tables[found.origin.first]
        now = np.zeros(rows.total, np.bool_)
        now[places] = True
        bits = np.packbits(now)
        for name, total, before in _entries(history):
            if name != table:
                continue
            differing = _differing(bits, before)
            if not differing and total == rows.total:
                return b""  # these very rows were asked about before
            if 0 < differing < self.floor:
                raise Refused(
                    "difference", "the rows differ from another question's by fewer than the floor"
                )
        entry = _entry(table, rows.total, bits)
        if len(history) + len(entry) > HISTORY_BYTES_MAX:
            raise Refused("history", "the memory of answered questions is full")
        return entry


def _entry(table: str, total: int, bits: Bits) -> bytes:
    packed = zlib.compress(bits.tobytes(), 1)
    name = table.encode().ljust(_NAME_BYTES, b"\0")
    return name + total.to_bytes(4, "little") + len(packed).to_bytes(4, "little") + packed


def _entries(history: bytes) -> Iterator[tuple[str, int, Bits]]:
    """Tables, their rows, and the rows that were asked about. Raises DelianError if damaged."""
    place = 0
    try:
        while place < len(history):
            head = history[place : place + _HEAD]
            total = int.from_bytes(head[_NAME_BYTES : _NAME_BYTES + 4], "little")
            size = int.from_bytes(head[_NAME_BYTES + 4 :], "little")
            packed = history[place + _HEAD : place + _HEAD + size]
            wide = (total + 7) // 8
            unpacker = zlib.decompressobj()
            bits = unpacker.decompress(packed, wide + 1)
            if len(head) < _HEAD or len(packed) < size or len(bits) != wide or total > _ROWS_MAX:
                raise ValueError("cut short")
            name = head[:_NAME_BYTES].rstrip(b"\0").decode()
            yield name, total, np.frombuffer(bits, np.uint8)
            place += _HEAD + size
    except (ValueError, zlib.error):
        raise DelianError(
            "the memory of answered questions is damaged", "restore it; without it differ no more"
        ) from None


def _differing(one: Bits, other: Bits) -> int:
    """Rows that are in one set and not in the other."""
    size = max(len(one), len(other))
    wide = [np.pad(each, (0, size - len(each))) for each in (one, other)]
    return int(np.bitwise_count(wide[0] ^ wide[1]).sum())
