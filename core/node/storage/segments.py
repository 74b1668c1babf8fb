"""A journal's logic and bytes, over a `Disk` that may lose, tear and reorder what is not synced.

The folder holds segments, `log-FIRST`, each a head and then records, a snapshot, `snapshot-LAST`
(numbers: of entries, from 1), and the `mark` of the last acknowledged entry. One `append` is one
record under one checksum, so it is there as a whole or not at all.

    segment   = head record*
    head      = magic, salt, number of the first entry, CRC
    record    = mark, size of table and entries, number of the first entry, count, CRC of these,
                CRC of all before; table of lengths (u32 each); entries

What is on the disk after a crash:

- A segment's head is synced before its first record is written, and a record before the next one.
  So only the last record can be torn, and only in the last segment; it was never acknowledged and
  is left out. Nothing is ever written behind it: after a recovery entries go to a new segment,
  whose first number says where the old one ended.
- Whatever else does not fit is damage, and an error that names file and offset; no file is touched.
  A bad record is damage when another one follows, in its segment or by the next segment's number,
  or when the mark says that its entries were acknowledged (`mark`). The salt is in every checksum,
  so that no entry can hold bytes that pass for a record.
- A snapshot is written under another name, synced and renamed; only then what it replaces is
  removed. A damaged one is passed over while all of its entries are still there.
- Recovered entries are synced before they are given out: a process that was killed may have left
  them in the system's memory only.
- After a failed write or sync nothing more is taken: what is on the disk is then unknown (Rebello
  et al. 2020, "Can applications recover from fsync failures?").
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from struct import Struct
from zlib import crc32

from ...common import log_mark as mark
from ...common.errors import DelianError
from .disk import Disk, is_full

#: Largest entry: protobuf writes nothing larger.
ENTRY_BYTES_MAX = 2**31 - 1
#: Entries in one append.
ENTRIES_MAX = 2**20
#: A segment that has reached this size is followed by another.
SEGMENT_BYTES_MAX = 64 * 2**20

_MAGIC = b"DLNLOG1\n"
_SALT_BYTES = 16
_HEAD = Struct(f"<8s{_SALT_BYTES}sQ")
_RECORD = Struct("<4sQQII")
_CRC = Struct("<I")
_SNAPSHOT_MAGIC = b"DLNSNP1\n"
_SNAPSHOT = Struct("<8sQQI")
_SEGMENT_NAME = "log-"
_SNAPSHOT_NAME = "snapshot-"
_NEW = "snapshot.new"
_MARK = "mark"
_INTERRUPTED = "it was interrupted while it wrote"


class JournalError(DelianError):
    """The journal is damaged, cannot be written, or was closed.

    After a failed `append` or `checkpoint` it takes nothing more: whether the bytes are on the disk
    is not known until it is opened again.
    """


@dataclass(frozen=True, slots=True)
class _Record:
    first: int
    count: int
    crc: int
    start: int  # of the table
    end: int


class Segments:
    """The journal in a folder. Not for two threads at once.

    salt: gives random bytes, which a sender of entries cannot guess.
    """

    def __init__(
        self,
        disk: Disk,
        salt: Callable[[int], bytes] = os.urandom,
        segment_bytes_max: int = SEGMENT_BYTES_MAX,
    ) -> None:
        self._disk = disk
        self._salt_of = salt
        self._segment_bytes_max = segment_bytes_max
        self._next = 0  # number of the next entry; 0: not loaded
        self._name = ""  # of the open segment; "": the next entry begins one
        self._salt = b""
        self._size = 0
        self._broken = "it was not loaded"
        #: What `load` has found that is no damage, and that an operator should read.
        self.remarks: list[str] = []

    # ------------------------------------------------ writing

    def append(self, entries: Sequence[bytes]) -> None:
        """Adds entries, durably, all or none. Raises JournalError."""
        self._check()
        if not entries:
            return
        largest = max(len(entry) for entry in entries)
        if largest > ENTRY_BYTES_MAX or len(entries) > ENTRIES_MAX:
            raise JournalError(
                f"{len(entries)} entries of up to {largest} bytes are too much for one append"
            )
        self._broken = _INTERRUPTED
        try:
            if not self._name or self._size >= self._segment_bytes_max:
                self._begin_segment()
            record = _record(self._salt, self._next, entries)
            self._disk.append(self._name, record)
            self._disk.sync(self._name)
            self._disk.put(_MARK, mark.pack(self._next + len(entries) - 1))
        except OSError as fault:
            raise self._break("written", fault) from fault
        self._size += sum(len(part) for part in record)
        self._next += len(entries)
        self._broken = ""

    def checkpoint(self, snapshot: bytes) -> None:
        """Lets `snapshot` stand for all entries so far. Raises JournalError."""
        self._check()
        last = self._next - 1
        name = f"{_SNAPSHOT_NAME}{last:020d}"
        head = _SNAPSHOT.pack(_SNAPSHOT_MAGIC, last, len(snapshot), crc32(snapshot))
        self._broken = _INTERRUPTED
        try:
            self._disk.append(_NEW, (head, _CRC.pack(crc32(head)), snapshot))
            self._disk.sync(_NEW)
            self._disk.rename(_NEW, name)
            self._disk.sync_names()
            self._name = ""
            for old in self._disk.list():
                number = _number(old)
                if number is not None and number <= last and old != name:
                    self._disk.remove(old)
        except OSError as fault:
            raise self._break("checkpointed", fault) from fault
        self._broken = ""

    def _begin_segment(self) -> None:
        name, salt = f"{_SEGMENT_NAME}{self._next:020d}", self._salt_of(_SALT_BYTES)
        head = _HEAD.pack(_MAGIC, salt, self._next)
        self._disk.append(name, (head, _CRC.pack(crc32(head))))
        self._disk.sync(name)
        self._disk.sync_names()
        self._name, self._salt, self._size = name, salt, _HEAD.size + _CRC.size

    def _check(self) -> None:
        if self._broken:
            raise JournalError(f"the journal takes nothing: {self._broken}")

    def _break(self, what: str, fault: OSError) -> JournalError:
        self._broken = f"it could not be {what} before ({fault})"
        hint = "make room on the disk" if is_full(fault) else "look after the disk"
        return JournalError(
            f"the journal could not be {what}: {fault}", f"{hint}, then start the node again"
        )

    # ------------------------------------------------ recovery

    def load(self) -> tuple[bytes | None, list[bytes]]:
        """The newest whole snapshot, and the entries after it. Raises JournalError."""
        try:
            return self._load()
        except OSError as fault:
            raise self._break("read", fault) from fault

    def _load(self) -> tuple[bytes | None, list[bytes]]:
        self.remarks = []
        names = self._disk.list()
        acknowledged = self._read_mark(names)
        snapshot, last, damaged = self._newest_snapshot(names)
        segments = [n for n in names if n.startswith(_SEGMENT_NAME) and (_number(n) or 0) > last]
        entries: list[bytes] = []
        following = last + 1
        torn: tuple[str, int] | None = None
        for name in segments:
            if _number(name) != following:
                at = torn or (name, 0)
                raise _damaged(*at, f"{name} does not begin with entry {following}")
            is_last = name == segments[-1]
            found, torn_at = self._read_segment(name, following, is_last)
            torn = (name, torn_at)
            entries += found
            following += len(found)
        new = snapshot is None and not entries
        if damaged and (new or (_number(damaged) or 0) >= following):
            raise _damaged(damaged, 0, "a snapshot whose entries are no longer there")
        if acknowledged >= following:
            what = f"it ends with entry {following - 1}, and {acknowledged} were acknowledged"
            raise _damaged(*(torn or (_MARK, 0)), what)
        self._settle(names, segments, following)
        self._disk.put(_MARK, mark.pack(following - 1))
        self._next, self._broken = following, ""
        return snapshot, entries

    def _read_mark(self, names: list[str]) -> int:
        """How many entries were acknowledged at least."""
        if _MARK not in names:
            return 0  # a new node, or one of before there were marks
        count = mark.unpack(self._disk.read(_MARK))
        if count is None:
            self.remarks.append(f"{_MARK} is damaged; it is made again from the journal")
        return count or 0

    def _newest_snapshot(self, names: list[str]) -> tuple[bytes | None, int, str]:
        """The snapshot, its last entry (0: none) and the name of the newest damaged one."""
        damaged = ""
        for name in sorted((n for n in names if n.startswith(_SNAPSHOT_NAME)), reverse=True):
            snapshot = _read_snapshot(self._disk.read(name), _number(name))
            if snapshot is not None:
                return snapshot, _number(name) or 0, damaged
            damaged = damaged or name
        return None, 0, damaged

    def _read_segment(self, name: str, first: int, is_last: bool) -> tuple[list[bytes], int]:
        """Its entries, and where they end."""
        data = self._disk.read(name)
        start = _HEAD.size + _CRC.size
        salt = _read_head(data, first)
        if salt is None:
            if is_last and len(data) <= start:
                return [], 0  # its head was torn, so it has no records
            raise _damaged(name, 0, "the head is not whole")
        entries: list[bytes] = []
        while start < len(data):
            record = _read_record(data, start, salt)
            if record is not None and record.first != first:
                raise _damaged(name, start, f"entry {record.first} stands where {first} belongs")
            if record is None or not _read_entries(data, record, entries):
                after = _find_record(data, start + 1, salt)
                if after is not None:
                    raise _damaged(name, start, f"a record is not whole, yet one is at {after}")
                if is_last:
                    self.remarks.append(f"{name} has half a record at byte {start}; it is left out")
                break  # torn, unless the mark or the next segment's number says otherwise
            first += record.count
            start = record.end
        return entries, start

    def _settle(self, names: list[str], segments: list[str], following: int) -> None:
        """Makes durable what was read, and removes what a crash has left over."""
        for name in segments:
            if _number(name) == following:
                # It holds no entry, and the next one to begin will have its name.
                self._disk.remove(name)
            elif name == segments[-1] or _number(segments[-1]) == following:
                self._disk.sync(name)
        if _NEW in names:
            self._disk.remove(_NEW)
        self._disk.sync_names()


def _damaged(name: str, offset: int, what: str) -> JournalError:
    return JournalError(
        f"the journal is damaged in {name} at byte {offset}: {what}",
        "nothing was changed; restore the folder from a backup, or enrol the node again",
    )


def _number(name: str) -> int | None:
    """The number in the name of a segment or snapshot; None for other files."""
    for prefix in (_SEGMENT_NAME, _SNAPSHOT_NAME):
        digits = name.removeprefix(prefix)
        if digits != name and digits.isascii() and digits.isdigit():
            return int(digits)
    return None


# ---------------------------------------------------------------- bytes


def _record(salt: bytes, first: int, entries: Sequence[bytes]) -> tuple[bytes, ...]:
    """A record as buffers to be written one after the other."""
    table = struct.pack(f"<{len(entries)}I", *map(len, entries))
    crc = crc32(table)
    for entry in entries:
        crc = crc32(entry, crc)
    size = len(table) + sum(map(len, entries))
    head = _RECORD.pack(salt[:4], size, first, len(entries), crc)
    return (head, _CRC.pack(crc32(head, crc32(salt))), table, *entries)


def _read_head(data: bytes, first: int) -> bytes | None:
    """A segment's salt, when its head is whole."""
    if len(data) < _HEAD.size + _CRC.size:
        return None
    magic, salt, number = _HEAD.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _HEAD.size)
    fits = magic == _MAGIC and number == first and crc == crc32(data[: _HEAD.size])
    return salt if fits else None


def _read_record(data: bytes, at: int, salt: bytes) -> _Record | None:
    """The head of a record, when there is a whole one at `at`."""
    start = at + _RECORD.size + _CRC.size
    if start > len(data):
        return None
    mark, size, first, count, crc = _RECORD.unpack_from(data, at)
    (head_crc,) = _CRC.unpack_from(data, at + _RECORD.size)
    if mark != salt[:4] or head_crc != crc32(data[at : at + _RECORD.size], crc32(salt)):
        return None
    return _Record(first, count, crc, start, start + size)


def _read_entries(data: bytes, record: _Record, entries: list[bytes]) -> bool:
    """Adds a record's entries; False, and none, when they are not whole."""
    if record.end > len(data):
        return False
    view = memoryview(data)[record.start : record.end]
    if crc32(view) != record.crc:
        return False
    at = 4 * record.count
    for length in struct.unpack_from(f"<{record.count}I", view):
        entries.append(bytes(view[at : at + length]))
        at += length
    return True


def _find_record(data: bytes, at: int, salt: bytes) -> int | None:
    """Where the next head of a record is, from `at` on."""
    while (at := data.find(salt[:4], at)) >= 0:
        if _read_record(data, at, salt) is not None:
            return at
        at += 1
    return None


def _read_snapshot(data: bytes, number: int | None) -> bytes | None:
    """What `checkpoint` wrote; None when it is not whole."""
    start = _SNAPSHOT.size + _CRC.size
    if len(data) < start:
        return None
    magic, last, size, crc = _SNAPSHOT.unpack_from(data)
    (head_crc,) = _CRC.unpack_from(data, _SNAPSHOT.size)
    if magic != _SNAPSHOT_MAGIC or last != number or head_crc != crc32(data[: _SNAPSHOT.size]):
        return None
    snapshot = data[start:]
    return snapshot if len(snapshot) == size and crc32(snapshot) == crc else None
