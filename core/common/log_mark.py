r"""How far a log was acknowledged, in a small file next to it.

A log alone cannot distinguish damage to its newest records from a write that a crash has torn: both
end it early. The mark can. It is the count of what was acknowledged, written over in place after
each sync of the log and before the acknowledgement. So

- it is never ahead of the log: a log that ends before its mark has lost what was acknowledged, and
  is refused;
- it needs no sync of its own. A process that is killed leaves it exact. After a power failure it
  may be some seconds behind; then only the newest record of the log, where it is not whole, cannot
  be distinguished from damage, and the log says that it has left one out.

A mark that is damaged or missing is said and made again: the log decides.

    magic "DLNMRK1\n" | count u64 | CRC-32 of both
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct
from zlib import crc32

_MAGIC = b"DLNMRK1\n"
_BODY = Struct("<8sQ")
_CRC = Struct("<I")
MARK_BYTES = _BODY.size + _CRC.size


def pack(count: int) -> bytes:
    """The content of a mark."""
    body = _BODY.pack(_MAGIC, count)
    return body + _CRC.pack(crc32(body))


def unpack(content: bytes) -> int | None:
    """The count of a mark; None: it is damaged."""
    if len(content) != MARK_BYTES:
        return None
    magic, count = _BODY.unpack_from(content)
    whole = magic == _MAGIC and _CRC.unpack_from(content, _BODY.size)[0] == crc32(
        content[: _BODY.size]
    )
    return int(count) if whole else None


class MarkFile:
    """A mark in a real folder. Not for two threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = -1

    def read(self) -> int | None:
        """The count; None: there is no mark, or it is damaged. Raises OSError."""
        try:
            return unpack(self.path.read_bytes())
        except FileNotFoundError:
            return None

    def write(self, count: int) -> None:
        """Replaces the mark, without a sync. Raises OSError."""
        if self._fd < 0:
            flags = os.O_WRONLY | os.O_CREAT | getattr(os, "O_BINARY", 0)
            self._fd = os.open(self.path, flags, 0o600)
            os.ftruncate(self._fd, MARK_BYTES)
        os.lseek(self._fd, 0, os.SEEK_SET)
        os.write(self._fd, pack(count))

    def close(self) -> None:
        """May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
