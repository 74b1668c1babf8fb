"""The values of a column of text, found without looking at rows: a trie of UTF-8 bytes.

Each step asks, for every prefix that is left, how many values go on with which byte, or end there.
A prefix with fewer rows than the floor, in all sites together, is not followed: its rows are in
`rare`. So no text is found that fewer rows have. A site leaves out counts below its owner's floor,
whatever it is asked. (The trie of Zhu, Kairouz, McMahan, Sun and Li,
"Federated Heavy Hitters Discovery with Differential Privacy", AISTATS 2020, with exact sums of
counts for its votes.)
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .question import Kept, Step
from .site_table import Table
from .sums import StatisticsError, Totals, counts

#: Prefixes in a step, and bytes of a text; longer ones are found by their beginning.
PREFIXES_MAX = 1024
BYTES_MAX = 64
#: What follows a prefix: a byte, or its end.
_NEXT = 257
_END = 256
STEP = "prefixes"


@dataclass(frozen=True)
class Found:
    """The values of a column."""

    texts: tuple[str, ...]
    """The most frequent first."""
    counts: tuple[int, ...]
    """Rows of each."""
    rare: int
    """Rows of values that fewer rows have than the floor."""
    missing: int
    """Rows without a value."""


def find(column: str, floor: int, at_most: int) -> Generator[Step, Totals, Found]:
    """Asks for a column's values.

    Args:
        column: the column; its place in the steps' name is for `measure`.
        floor: rows that a value has at least.
        at_most: values; more are a StatisticsError.

    Raises:
        StatisticsError: there are more values than that, or more than a step has room for.
    """
    open_: dict[bytes, int] = {b"": 0}  # prefixes, with the rows of each
    done: dict[bytes, int] = {}
    rare, missing = 0, 0
    while open_:
        packed = np.frombuffer(b"".join(p.ljust(BYTES_MAX, b"\0") for p in open_), np.uint8)
        arrays = {
            "prefixes": packed.astype(np.int64).reshape(len(open_), BYTES_MAX),
            "lengths": np.array([len(p) for p in open_], np.int64),
        }
        sums = (counts("next", len(open_), _NEXT), counts("known"), counts("missing"))
        totals = yield Step(f"{STEP} {column}", sums, arrays)
        if b"" in open_:
            open_[b""], missing = int(totals.number("known")), int(totals.number("missing"))
        following: dict[bytes, int] = {}
        for (prefix, here), row in zip(open_.items(), totals["next"], strict=True):
            rare += here
            for byte in np.flatnonzero(row).tolist():
                rows = int(row[byte])
                if rows < floor:
                    continue
                rare -= rows
                if byte == _END or len(prefix) + 1 >= BYTES_MAX:
                    whole = prefix if byte == _END else prefix + bytes([byte])
                    done[whole] = done.get(whole, 0) + rows
                else:
                    following[prefix + bytes([byte])] = rows
        if len(done) + len(following) > min(at_most, PREFIXES_MAX):
            raise StatisticsError(
                f"column `{column}` has more than {min(at_most, PREFIXES_MAX)} values",
                "name the categories, group numbers into bands, or raise the floor",
            )
        open_ = following
    ordered = sorted(done.items(), key=lambda item: (-item[1], item[0]))
    texts = tuple(text.decode("utf-8", "replace") for text, _ in ordered)
    return Found(texts, tuple(rows for _, rows in ordered), rare, missing)


def is_step(step: Step) -> bool:
    """Whether a step is one of `find`."""
    return step.name.startswith(f"{STEP} ")


def sensitivities(floor: int) -> dict[str, float]:
    """What one row changes in a step's sums: it may bring a count to the site's floor."""
    return {"next": float(floor), "known": 1.0, "missing": 1.0}


def measure(table: Table, step: Step, columns: tuple[str, ...], kept: Kept) -> Mapping[str, Any]:
    """A site's part of a step of `find`.

    columns: those that may be asked about. Raises StatisticsError.
    """
    column = step.name[len(STEP) + 1 :]
    if column not in columns:
        raise StatisticsError("the step is about a column that the question does not name")
    prefixes = step.integers("prefixes", -1, BYTES_MAX)
    lengths = step.integers("lengths", len(prefixes))
    plain = prefixes.size and prefixes.min() >= 0 and prefixes.max() < 256
    if not plain or len(prefixes) > PREFIXES_MAX or not (lengths >= 0).all():
        raise StatisticsError("the step has no prefixes")
    if (lengths >= BYTES_MAX).any():
        raise StatisticsError("the step has a prefix that is too long")
    # A row is in one prefix at most: its noise is for one.
    one = len(np.unique(prefixes, axis=0)) == len(prefixes) and len(np.unique(lengths)) == 1
    past = np.arange(BYTES_MAX) >= lengths[:, None]
    if not one or prefixes[past].any():
        raise StatisticsError("the step's prefixes overlap")
    known = kept.setdefault("values", {})
    if column not in known:
        known[column] = _values(table, column)
    values, rows, missing = known[column]
    out = np.zeros((len(prefixes), _NEXT), np.int64)
    for place, (row, length) in enumerate(zip(prefixes, lengths.tolist(), strict=True)):
        prefix = row[:length].astype(np.uint8).tobytes()
        for value, count in zip(values, rows, strict=True):
            if value.startswith(prefix):
                out[place, value[length] if len(value) > length else _END] += count
    out[out < table.floor] = 0
    return {"next": out, "known": np.array(int(rows.sum())), "missing": np.array(missing)}


def _values(table: Table, column: str) -> tuple[list[bytes], npt.NDArray[np.int64], int]:
    """The site's different values, each with its rows, and the rows without one."""
    texts = table.texts(column)
    found, rows = np.unique(texts[texts != ""], return_counts=True)
    cut: dict[bytes, int] = {}
    for text, count in zip(found.tolist(), rows.tolist(), strict=True):
        value = str(text).encode()[:BYTES_MAX]
        cut[value] = cut.get(value, 0) + count
    return list(cut), np.array([*cut.values()], np.int64), int((texts == "").sum())
