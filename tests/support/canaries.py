"""Finds secrets where they must not be: each with its owner, looked for in every file, table and
line that a federation has left, as it is and as people and programs write such things down.

A canary's first eight bytes are compared at every offset at once, so that thousands of them can be
looked for in many megabytes; what agrees is compared as a whole.
"""

from __future__ import annotations

import base64
import sqlite3
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

WORD = 8


@dataclass(frozen=True)
class Canary:
    """what: for people. owner: whose it is. content: at least twelve bytes."""

    what: str
    owner: str
    content: bytes

    def forms(self) -> Iterator[bytes]:
        """As bytes, in hexadecimal and in base64, wherever it stands in what was encoded."""
        assert len(self.content) >= WORD + 4 and len(set(self.content)) > 4
        yield self.content
        yield self.content.hex().encode()
        yield self.content.hex().upper().encode()
        for before in range(3):
            coded = base64.b64encode(bytes(before) + self.content)
            # Without what depends on the neighbours of the first and the last byte.
            inner = coded[(before and 4) : -4]
            yield inner
            yield inner.replace(b"+", b"-").replace(b"/", b"_")


def of_numbers(what: str, owner: str, values: np.ndarray) -> Iterator[Canary]:
    """Numbers as an array has them, and as text: a dozen in a row, with what may stand between."""
    assert len(values) >= 5
    yield Canary(what, owner, values.tobytes())
    if values.dtype.kind == "f":
        yield Canary(what, owner, values.astype("<f8").tobytes())
    for between in (", ", ",", " ", "\n"):
        yield Canary(
            what + ", as text", owner, between.join(map(str, values[:12].tolist())).encode()
        )


@dataclass(frozen=True)
class Leak:
    what: str
    owner: str
    place: str


def leaks(
    canaries: Iterable[Canary],
    places: Iterable[tuple[str, bytes]],
    may_have: Callable[[str, str], bool] = lambda owner, place: False,
) -> list[Leak]:
    """What was found where, but in places that may have what is this owner's."""
    by_word: dict[int, list[tuple[Canary, bytes]]] = {}
    for canary in canaries:
        for form in canary.forms():
            if len(form) >= WORD:
                by_word.setdefault(_word(form), []).append((canary, form))
    wanted = np.array(sorted(by_word), np.uint64)
    found: dict[Leak, None] = {}
    for place, content in places:
        for at, word in _hits(content, wanted):
            for canary, form in by_word[word]:
                if content[at : at + len(form)] == form and not may_have(canary.owner, place):
                    found[Leak(canary.what, canary.owner, place)] = None
    return list(found)


def _word(content: bytes) -> int:
    return int.from_bytes(content[:WORD], "little")


def _hits(content: bytes, wanted: np.ndarray) -> Iterator[tuple[int, int]]:
    for offset in range(min(WORD, len(content))):
        count = (len(content) - offset) // WORD
        words = np.frombuffer(content, "<u8", count, offset) if count else np.zeros(0, np.uint64)
        near = np.searchsorted(wanted, words)
        near[near == len(wanted)] = 0
        for at in np.flatnonzero(wanted[near] == words) if len(wanted) else ():
            yield int(at) * WORD + offset, int(words[at])


def files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """All files of a folder, their names too; of databases every cell, as it is and inflated."""
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_socket():
            continue
        name = str(path.relative_to(folder))
        content = path.read_bytes()
        yield name, name.encode() + b"\n" + content
        if content.startswith(b"SQLite format 3"):
            yield from ((f"{name} {cell}", value) for cell, value in cells(path))


def cells(path: Path) -> Iterator[tuple[str, bytes]]:
    base = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    for (table,) in base.execute("select name from sqlite_master where type = 'table'").fetchall():
        for row in base.execute(f'select * from "{table}"'):
            for value in row:
                content = value if isinstance(value, bytes) else str(value).encode()
                yield table, content
                try:
                    yield table, zlib.decompress(content)
                except zlib.error:
                    continue
    base.close()
