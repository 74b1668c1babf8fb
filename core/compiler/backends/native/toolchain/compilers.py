"""A C compiler's version and target, stored with the programs that it has compiled.

Where those are there already, to ask the compiler would be the only process that a start takes. So
its answer is kept together with what identifies its file: place, device, inode, size, and both
times. An update, or a symlink that leads elsewhere, changes one of them, and it is asked again.

A file that starts another compiler says nothing of that one: scripts, ccache and its like, and
what macOS has in the place of compilers are asked each time. So is a compiler that is given more
than options.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .....common.files import make_private, read_at_most, write_whole

#: What the files of GCC and clang are called, once symlinks are followed.
_COMPILER = re.compile(r"([\w.]+-)*(gcc|clang)(-[\d.]+)?")
_ELF = b"\x7fELF"
#: A longer answer is not kept.
_BYTES_MAX = 16 << 10


def said_by(
    command: Sequence[str], file: str, folder: Path, ask: Callable[[], str | None]
) -> str | None:
    """What `ask` gives, or gave when the compiler was the same one.

    file: the first word of the command, as it was found. folder: where answers lie. A folder that
    cannot be written is none.
    """
    before = _stamp(command, file)
    if before is None:
        return ask()
    # Bytes of a path that are no UTF-8 are surrogates here.
    asked = "\0".join((file, *command)).encode(errors="surrogatepass")
    path = folder / f"{hashlib.sha256(asked).hexdigest()}.json"
    if (said := _kept(path, before)) is not None:
        return said
    said = ask()
    # Its file was looked at before: an answer of one that has changed since is never found.
    content = json.dumps({"file": before, "said": said})
    if said and len(content) <= _BYTES_MAX:
        with contextlib.suppress(OSError):
            make_private(folder)
            write_whole(path, content)
    return said


def _stamp(command: Sequence[str], file: str) -> list[Any] | None:
    """What identifies the compiler's file; None where the file does not identify the compiler."""
    only_options = all(word.startswith("-") for word in command[1:])
    if not sys.platform.startswith("linux") or not only_options:
        return None
    try:
        path = Path(file).resolve(strict=True)
        if _COMPILER.fullmatch(path.name) is None:
            return None
        with path.open("rb") as opened:
            if opened.read(len(_ELF)) != _ELF:
                return None
        found = path.stat()
    except (OSError, RuntimeError):  # RuntimeError: symlinks in a circle
        return None
    times = found.st_mtime_ns, found.st_ctime_ns
    return [str(path), found.st_dev, found.st_ino, found.st_size, *times]


def _kept(path: Path, stamp: list[Any]) -> str | None:
    """The answer that is kept for this file."""
    try:
        found = json.loads(read_at_most(path, _BYTES_MAX))
        said = found["said"] if found["file"] == stamp else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):  # none, or a damaged one
        return None
    return said if isinstance(said, str) and said else None
