"""Where the members of an uncompressed zip are, within limits (PKWARE APPNOTE 6.3.10, 4.3 and 4.4).

`zipfile` reads a directory of any size that the file declares, and keeps an object for each member.
Here sizes are limited first, and what is kept is a number or two.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO

from ....common.errors import DelianError
from ..formats.file_ranges import FileRanges
from .packed_layout import LOCAL, LOCAL_BYTES, MEMBER_BYTES_MAX

_DIRECTORY_BYTES_MAX = 64 << 20
_END = struct.Struct("<4s4H2LH")
_END64_PLACE = struct.Struct("<4sLQL")
_END64 = struct.Struct("<4sQ2H2L4Q")
_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_FULL = 0xFFFFFFFF
_ZIP64 = 1


@dataclass(frozen=True, slots=True)
class Place:
    """One member."""

    name: str
    at: int
    """Of its local header."""
    size: int
    crc: int


class TornError(DelianError):
    """The directory at the end of the file is missing or wrong."""


def directory(file: FileRanges) -> Iterator[Place]:
    """All members, as the directory lists them. Raises TornError."""
    with file.opened() as stream:
        at, size = _directory_place(file, stream)
        content = bytes(file.read_from(stream, at, size))
    done = 0
    while done < len(content):
        entry = content[done : done + _ENTRY.size]
        if len(entry) < _ENTRY.size or not entry.startswith(b"PK\x01\x02"):
            raise _torn(file, f"no entry of its directory at byte {at + done}")
        fields = _ENTRY.unpack(entry)
        method, crc, packed, plain = fields[4], fields[7], fields[8], fields[9]
        names, extras, comments, place = fields[10], fields[11], fields[12], fields[16]
        begin = done + _ENTRY.size
        name = content[begin : begin + names].decode("utf-8", "replace")
        extra = content[begin + names : begin + names + extras]
        plain, packed, place = _large(extra, plain, packed, place)
        if method != 0 or plain != packed or plain > MEMBER_BYTES_MAX or place > file.size:
            raise _torn(file, f"the member {name[:40]!r} is compressed or too large")
        yield Place(name, place, plain, crc)
        done = begin + names + extras + comments


def content_start(file: FileRanges, stream: FileIO, place: Place) -> int:
    """Where the bytes of a member begin. Raises DelianError where its header is damaged."""
    found = local_member(file, stream, place.at)
    if found is None or found[0].name != place.name or found[0].size != place.size:
        raise DelianError(
            f"{file.path}: the header of {place.name} at byte {place.at} is damaged",
            "`delian data check` says which rows are lost",
        )
    return found[1]


def local_member(file: FileRanges, stream: FileIO, at: int) -> tuple[Place, int] | None:
    """The member whose local header is at a byte, and where its content begins, if there is one."""
    if at + LOCAL_BYTES > file.size:
        return None
    fields = _LOCAL.unpack(file.read_from(stream, at, LOCAL_BYTES))
    crc, packed, plain, names, extras = fields[6:]
    begin = at + LOCAL_BYTES + names + extras
    if fields[0] != LOCAL or fields[3] != 0 or begin > file.size:
        return None
    rest = bytes(file.read_from(stream, at + LOCAL_BYTES, names + extras))
    plain, packed, _ = _large(rest[names:], plain, packed, 0)
    if plain != packed or plain > MEMBER_BYTES_MAX:
        return None
    return Place(rest[:names].decode("utf-8", "replace"), at, plain, crc), begin


def _directory_place(file: FileRanges, stream: FileIO) -> tuple[int, int]:
    """Byte and length of the directory."""
    if file.size < _END.size:
        raise _torn(file, "it has no end")
    end = _END.unpack(file.read_from(stream, file.size - _END.size, _END.size))
    if end[0] != b"PK\x05\x06" or end[7] != 0:
        raise _torn(file, "its directory is missing")
    size, at = int(end[5]), int(end[6])
    if _FULL in (size, at) or end[4] == 0xFFFF:
        place = file.size - _END.size - _END64_PLACE.size
        if place < _END64.size:
            raise _torn(file, "its directory is missing")
        found = _END64_PLACE.unpack(file.read_from(stream, place, _END64_PLACE.size))
        if found[0] != b"PK\x06\x07" or found[2] + _END64.size > file.size:
            raise _torn(file, "its directory is missing")
        end64 = _END64.unpack(file.read_from(stream, found[2], _END64.size))
        if end64[0] != b"PK\x06\x06":
            raise _torn(file, "its directory is missing")
        size, at = int(end64[8]), int(end64[9])
    if size > _DIRECTORY_BYTES_MAX or at + size > file.size:
        raise _torn(file, f"its directory would have {size} bytes")
    return at, size


def _large(extra: bytes, plain: int, packed: int, at: int) -> tuple[int, int, int]:
    """Sizes and place, from the zip64 field where they do not fit 32 bits."""
    if _FULL not in (plain, packed, at):
        return plain, packed, at
    done = 0
    while done + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, done)
        if kind == _ZIP64:
            field = extra[done + 4 : done + 4 + size]
            numbers = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
            return (
                next(numbers, plain) if plain == _FULL else plain,
                next(numbers, packed) if packed == _FULL else packed,
                next(numbers, at) if at == _FULL else at,
            )
        done += 4 + size
    return plain, packed, at


def _torn(file: FileRanges, why: str) -> TornError:
    return TornError(
        f"{file.path} is no whole packed file: {why}",
        f"`delian data check {file.path}` says which rows are whole; then pack the data again",
    )
