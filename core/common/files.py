"""Files that appear whole or not at all, and what it takes for them to outlast a crash.

A file is written in its folder under a temporary name of its writer and then moved to its place:
readers, and writers at the same time, see the one before or the one after. Durable means that it is
on the disk on return, and so is its name: fsync of the file before the rename, of the folder after
it (Pillai et al., "All File Systems Are Not Created Equal", OSDI 2014).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

_CHUNK_BYTES = 1 << 20


def write_whole(
    path: Path, content: bytes | str, mode: int | None = None, durable: bool = False
) -> None:
    """Puts a file in place.

    mode: its permissions, where they are not this process's usual ones. What is there and is no
    file, as /dev/null or a pipe, stays and is written to.

    Raises OSError; then what was there before still is.
    """
    write_parts(path, (content.encode() if isinstance(content, str) else content,), mode, durable)


def write_parts(
    path: Path, parts: Iterable[bytes | memoryview], mode: int | None = None, durable: bool = False
) -> None:
    """As `write_whole`, of a content in parts: one of them at a time need be in memory."""
    write_with(path, lambda file: file.writelines(parts), mode, durable)


def write_with(
    path: Path, fill: Callable[[IO[bytes]], None], mode: int | None = None, durable: bool = False
) -> None:
    """As `write_whole`, of what `fill` writes into the file that it is given."""
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if _takes_bytes(path):
        with path.open("wb") as file:
            fill(file)
        return
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    flags |= getattr(os, "O_BINARY", 0)
    try:
        with os.fdopen(os.open(draft, flags, 0o666 if mode is None else mode), "wb") as file:
            if mode is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), mode)
            fill(file)
            if durable:
                file.flush()
                sync_file(file.fileno())
        draft.replace(path)
    except BaseException:  # Also of what makes the content.
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(path.parent)


def make_private(folder: Path) -> None:
    """Makes a folder and its missing parents, mode 0700. Raises OSError."""
    if not folder.is_dir():
        if folder.parent != folder:
            make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)


def read_at_most(path: Path, limit: int) -> bytes:
    """A file's bytes. Raises OSError, with EFBIG beyond `limit`."""
    parts, size = [], 0
    with path.open("rb") as file:
        wanted = os.fstat(file.fileno()).st_size + 1
        while size <= limit and wanted <= limit + 1 and (part := file.read(wanted)):
            parts.append(part)
            size += len(part)
            wanted = min(_CHUNK_BYTES, limit + 1 - size)
    if size > limit or wanted > limit + 1:
        raise OSError(errno.EFBIG, f"it has more than {limit} bytes", str(path))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _takes_bytes(path: Path) -> bool:
    """Whether there is a device or a pipe, which a file must not take the place of."""
    try:
        kind = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind))


def sync_file(fd: int) -> None:
    """What was written to the file is on the disk. Raises OSError."""
    if sys.platform == "darwin":
        import fcntl

        # There fsync leaves the drive's own cache out (fsync(2)).
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
    else:
        os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """The folder's list of files is on the disk. Raises OSError."""
    if sys.platform == "win32":
        return  # folders cannot be opened there; NTFS journals its names
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
