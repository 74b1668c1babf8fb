"""Which rows of a packed file are whole, also where its end is missing."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from ..formats.file_ranges import FileRanges
from .packed_layout import FORMAT, About, block_of
from .packed_rows import read_about
from .zip_directory import Place, TornError, directory, local_member

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PackedCheck:
    """What a check found."""

    about: About
    lost: tuple[tuple[int, int], ...]
    """Ranges [start, stop) of rows that are damaged or missing, ascending."""
    faults: tuple[str, ...]
    """What is wrong, in words; the first ones of many."""

    @property
    def lost_rows(self) -> int:
        """How many rows are lost."""
        return sum(stop - start for start, stop in self.lost)


FAULTS_MAX = 20


def check_packed(path: Path) -> PackedCheck:
    """Reads a packed file to its end and compares every block with its checksum.

    Raises:
        NoDataError: there is no such file.
        DelianError: it is no packed file, or its first member is damaged: no row can be read.
    """
    file = FileRanges(path)
    about = read_about(file)
    faults: list[str] = []
    try:
        places = {place.at: place for place in directory(file)}
    except TornError as error:
        faults.append(error.message)
        places = {}
    good: dict[str, set[int]] = {name: set() for name in about.columns}
    with file.opened() as stream:
        found = places.values() if places else _scanned(file, stream)
        for place in found:
            block = block_of(place.name)
            if block is None or block[0] not in good:
                continue
            why = _fault(file, stream, place)
            if not why and block[1] < about.blocks and not about.fits(*block, place.size):
                why = f"its {place.size} bytes do not fit its rows"
            if why:
                faults.append(f"{place.name}: {why}")
            elif block[1] < about.blocks:
                good[block[0]].add(block[1])
    whole = set.intersection(*good.values())
    lost = [about.rows_of(k) for k in range(about.blocks) if k not in whole]
    missing = sum(about.blocks - len(blocks) for blocks in good.values())
    if missing > len(faults):
        faults.append(f"{missing} blocks are damaged or missing")
    return PackedCheck(about, tuple(_joined(lost)), tuple(faults[:FAULTS_MAX]))


def _scanned(file: FileRanges, stream: FileIO) -> list[Place]:
    """Members by their local headers, from the beginning up to the tear."""
    found, at = [], 0
    while (member := local_member(file, stream, at)) is not None:
        place, begin = member
        found.append(place)
        at = begin + place.size
    return found


def _fault(file: FileRanges, stream: FileIO, place: Place) -> str:
    """What is wrong with a member; empty: nothing."""
    member = local_member(file, stream, place.at)
    if member is None or member[0].name != place.name:
        return f"no header at byte {place.at}"
    begin = member[1]
    if begin + place.size > file.size:
        return f"it is cut short after {max(0, file.size - begin)} of {place.size} bytes"
    crc, done = 0, 0
    while done < place.size:
        size = min(_PIECE_BYTES, place.size - done)
        crc = zlib.crc32(file.read_from(stream, begin + done, size), crc)
        done += size
    return "" if crc == place.crc else "its checksum does not match"


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    made: list[tuple[int, int]] = []
    for start, stop in ranges:
        if made and made[-1][1] == start:
            made[-1] = (made[-1][0], stop)
        else:
            made.append((start, stop))
    return made


def check_lines(found: PackedCheck) -> list[str]:
    """What a check found, in lines of text."""
    about = found.about
    lines = [f"{about.rows} rows in {about.blocks} blocks, {found.lost_rows} lost"]
    lines += [f"lost: rows {start}..{stop - 1}" for start, stop in found.lost[:FAULTS_MAX]]
    if len(found.lost) > FAULTS_MAX:
        lines.append(f"and {len(found.lost) - FAULTS_MAX} more ranges")
    return lines + [f"fault: {fault}" for fault in found.faults]


def facts_lines(known: dict[str, Any]) -> list[str]:
    """Those facts in lines of text."""
    lines = [
        f"{'rows':<12} {known['rows']}, in {known['blocks']} blocks of {known['rows_of_a_block']}",
        f"{'bytes':<12} {known['bytes']}",
    ]
    for name, column in known["columns"].items():
        lines.append(f"{name:<12} {column['dtype']} {column['shape']} a row")
    if known["classes"]:
        lines.append(f"{'classes':<12} {', '.join(known['classes'])}")
    return lines


def packed_facts(path: Path) -> dict[str, Any]:
    """What a packed file holds, for `delian data show`. Raises DelianError."""
    file = FileRanges(path)
    about = read_about(file)
    return {
        "format": FORMAT,
        "rows": about.rows,
        "blocks": about.blocks,
        "rows_of_a_block": about.block,
        "bytes": file.size,
        "columns": {
            name: {"shape": list(column.shape), "dtype": column.dtype}
            for name, column in about.columns.items()
        },
        "classes": list(about.classes),
    }
