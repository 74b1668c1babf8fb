"""Compiled programs on disk, by what they are made of.

A file is named by the hash of the programs, the compiler (version, file, flags, processor), its
tuning, and the sources of this emitter. It is an `artifact`: it ends with the SHA-256 of the rest,
and one that does not match is built again.

- Two processes that want one program: the second waits for the first, at a lock that the system
  frees when its holder dies. What is built appears under its name whole, or not at all.
- Where the folder cannot be written, or its disk is full, programs are built in a folder that goes
  with the process, and a line on stderr says so once.
- Above $DELIAN_CACHE_BYTES_MAX bytes the programs that were not used for longest are removed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import DelianError
from . import artifact
from .artifact import ArtifactError, Facts
from .toolchain import ANSWERS, NoSpaceError, Toolchain, cache_folder

#: What compiled programs may take together, unless $DELIAN_CACHE_BYTES_MAX says otherwise.
CACHE_BYTES_MAX = 512 << 20
#: A file that is younger is not removed: its process may not have opened it yet.
_YOUNG_S = 60.0
#: What a compiler left behind that was killed is removed when it is older.
_ABANDONED_S = 3600.0
#: No compiler takes longer, however busy the machine.
_COMPILING_S = 600.0
#: Locks: programs share them by the first digit of their keys.
_LOCKS = 16
_SCRATCH = "building-"

#: Gives the C of some programs, and the facts of the object that it becomes.
Source = Callable[[], tuple[str, Facts]]


@functools.cache
def emitter_version() -> str:
    """A hash of everything that decides what C is written."""
    root = Path(__file__).parents[2]  # delian.core
    digest = hashlib.sha256(root.joinpath("ir.py").read_bytes())
    digest.update(root.joinpath("transforms", "custom.py").read_bytes())
    for folder in (("backends", "native"), ("passes",), ("ops",)):
        files = root.joinpath(*folder)
        for file in sorted(files.iterdir(), key=lambda f: f.name):
            if file.name.endswith((".py", ".h", ".c")):
                digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def key_of(toolchain: Toolchain, programs: Iterable[tuple[str, str]]) -> str:
    """The key of a shared object with these entries: (name, content hash of the function)."""
    digest = hashlib.sha256()
    for part in (emitter_version(), toolchain.identity, *(x for pair in programs for x in pair)):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def folder() -> Path:
    """Where compiled programs lie."""
    return cache_folder() / "native"


def shared_object(key: str, toolchain: Toolchain, source: Source) -> tuple[Path, Facts]:
    """The object with this key, built from the C that `source` gives unless it is there, and its
    facts. The C file is kept beside it, to be read.

    Raises DelianError when the compiler refuses it, or nothing can be written anywhere.
    """
    path = folder() / f"{key}.so"
    if (facts := _sound(path)) is not None:
        return path, facts
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _lock(path.parent, key):
            if (facts := _sound(path)) is None:
                facts = _build(path, toolchain, source)
                evict(keep=path)
        return path, facts
    except (OSError, NoSpaceError) as error:
        return _elsewhere(path, toolchain, source, error)


def _sound(path: Path) -> Facts | None:
    """The facts of a program that is there and whole; it counts as used."""
    try:
        facts = artifact.read(path)
    except ArtifactError:
        return None
    with contextlib.suppress(OSError):  # a folder that is only read has no order of use
        os.utime(path)
    return facts


def _elsewhere(
    path: Path, toolchain: Toolchain, source: Source, error: Exception
) -> tuple[Path, Facts]:
    """Builds in a folder that goes with the process."""
    why = getattr(error, "message", None) or error
    try:
        place = _temporary() / path.name
        if (facts := _sound(place)) is not None:
            return place, facts
        facts = _build(place, toolchain, source)
    except (OSError, NoSpaceError) as second:
        from tempfile import gettempdir

        raise DelianError(
            f"compiled programs cannot be kept in {path.parent}: {why}; nor in"
            f" {gettempdir()}: {getattr(second, 'message', None) or second}",
            "set DELIAN_CACHE to a folder that can be written and has room",
        ) from error
    _say_once(str(path.parent), str(why))
    return place, facts


@functools.cache
def _temporary() -> Path:
    from tempfile import mkdtemp

    made = Path(mkdtemp(prefix="delian-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not where a child of this process ends
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made


@functools.cache
def _say_once(where: str, why: str) -> None:
    print(
        f"delian: compiled programs cannot be kept in {where} ({why}): they are built anew for"
        " each process; set DELIAN_CACHE to a folder that can be written",
        file=sys.stderr,
    )


@contextlib.contextmanager
def _lock(place: Path, key: str) -> Iterator[None]:
    """One process at a time; where the system has no such locks, any number."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (place / f"lock-{int(key[:2], 16) % _LOCKS:02}").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(path: Path, toolchain: Toolchain, source: Source) -> Facts:
    """Builds in a folder of its own, then moves the file into place."""
    from tempfile import TemporaryDirectory  # with `random`: what is in the cache needs neither

    text, facts = source()
    with TemporaryDirectory(dir=path.parent, prefix=_SCRATCH) as scratch:
        c, output = Path(scratch) / "program.c", Path(scratch) / "program.so"
        c.write_text(text, encoding="utf-8")
        toolchain.compile(c, output)
        with output.open("rb+") as file:
            content = artifact.sealed(file.read(), facts)
            file.seek(0)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        c.replace(path.with_suffix(".c"))
        output.replace(path)
    return facts


# ---------------------------------------------------------------- its size


@dataclass(frozen=True, slots=True)
class Kept:
    """A program in the cache. bytes: with its C. used_s: Unix time of its last use."""

    key: str
    bytes: int
    used_s: float
    path: Path


def kept() -> list[Kept]:
    """What is in the cache, the last used first."""
    found = []
    for path in folder().glob("*.so"):
        with contextlib.suppress(OSError):  # another process may remove it
            stat, size = path.stat(), 0
            with contextlib.suppress(OSError):
                size = path.with_suffix(".c").stat().st_size
            found.append(Kept(path.stem, stat.st_size + size, stat.st_mtime, path))
    return sorted(found, key=lambda k: -k.used_s)


def bytes_max() -> int:
    """What the cache may take. Raises DelianError."""
    said = os.environ.get("DELIAN_CACHE_BYTES_MAX", "")
    if not said:
        return CACHE_BYTES_MAX
    if not said.isascii() or not said.isdigit():
        raise DelianError(f"DELIAN_CACHE_BYTES_MAX is {said!r}", "a number of bytes")
    return int(said)


def evict(limit: int | None = None, keep: Path | None = None) -> list[Kept]:
    """Removes the programs that were not used for longest until `limit` bytes are left, and what
    killed compilers left; gives what was removed. keep: a program that stays.
    """
    limit = bytes_max() if limit is None else limit
    now, removed = time.time(), []
    _remove_abandoned(_ABANDONED_S)
    programs = kept()
    total = sum(k.bytes for k in programs)
    for program in reversed(programs):
        if total <= limit:
            break
        young = now - program.used_s <= _YOUNG_S
        if program.path != keep and not young and _is_removed(program.path):
            removed.append(program)
            total -= program.bytes
    return removed


def clear() -> list[Kept]:
    """Removes every program, tunings, the libraries that zig built, and what compilers said; gives
    the programs that are gone.
    """
    removed = [program for program in kept() if _is_removed(program.path)]
    for path in [*folder().glob("*.c"), *folder().glob("lock-*")]:
        with contextlib.suppress(OSError):
            path.unlink()
    _remove_abandoned(_COMPILING_S)
    for other in ("zig", "tuned", ANSWERS):
        shutil.rmtree(cache_folder() / other, ignore_errors=True)
    return removed


def _is_removed(path: Path) -> bool:
    """Removes a program with its C; whether it is gone."""
    for file in (path, path.with_suffix(".c")):
        with contextlib.suppress(OSError):
            file.unlink()
    return not path.exists()


def _remove_abandoned(older_s: float) -> None:
    for scratch in folder().glob(f"{_SCRATCH}*"):
        with contextlib.suppress(OSError):
            if time.time() - scratch.stat().st_mtime > older_s:
                shutil.rmtree(scratch, ignore_errors=True)
