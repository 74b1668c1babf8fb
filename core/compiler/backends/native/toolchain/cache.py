"""Compiled programs on disk, by what they are made of.

A file is named by the hash of the programs, the compiler (version, file, flags, processor), its
tuning, and the sources of this emitter. It is an `artifact`: it ends with the SHA-256 of the rest,
and one that does not match is built again.

- Two processes that want one program: the second waits for the first, at a lock that the system
  frees when its holder dies. What is built appears under its name whole, or not at all.
- What lies here is loaded as code. So folders are made for their owner alone (0700), and a folder
  or an object that another user owns, or that its group or others can write, is not used: as sshd's
  StrictModes. Worker processes have a folder of their own (`toolchain.own_folder`).
- Where the folder cannot be used, or its disk is full, programs are built in a folder that goes
  with the process, and a line on stderr says so once.
- Above $DELIAN_CACHE_BYTES_MAX bytes the programs that were not used for longest are removed. Not
  each build looks at the whole folder, so they may take about 1/64 more: see `_is_due`.
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

from .....common.errors import DelianError
from .....common.files import make_private
from . import artifact
from .artifact import ArtifactError, Assembled, Facts
from .toolchain import ANSWERS, NoSpaceError, Toolchain, cache_folder, own_folder

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
#: The folder is looked through each time that about this part of its limit has been built.
_SCANNED_PART = 64
#: The part of worker processes ($DELIAN_CACHE_PART).
WORKERS = "workers"
#: Write permission for the group and for others.
_OTHERS_WRITE = 0o022

#: Gives the C of some programs, and what is kept with the object that it becomes.
Source = Callable[[], Assembled]


@functools.cache
def emitter_version() -> str:
    """A hash of everything that decides what C is written."""
    root = Path(__file__).parents[3]  # delian.core.compiler
    digest = hashlib.sha256(root.joinpath("ir.py").read_bytes())
    digest.update(root.joinpath("transforms", "custom.py").read_bytes())
    digest.update(root.parent.joinpath("common", "aligned_arrays.py").read_bytes())
    for folder in ("backends/native", "passes", "primitives"):
        for file in sorted(root.joinpath(folder).rglob("*.*"), key=Path.as_posix):
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
    """Where this process keeps compiled programs."""
    return own_folder() / "native"


class UnsafeError(DelianError):
    """Others than this user can change what lies there."""


def check_owner(path: Path) -> None:
    """Raises UnsafeError where other users can write a path, OSError where it is missing."""
    found = path.stat()
    if not hasattr(os, "geteuid"):
        return  # Windows: rights are lists, and a user's folders are his alone
    if found.st_uid not in (0, os.geteuid()):
        raise UnsafeError(
            f"{path} belongs to user {found.st_uid}, and what lies there is loaded as code",
            "set DELIAN_CACHE to a folder that is this user's alone",
        )
    if found.st_mode & _OTHERS_WRITE:
        raise UnsafeError(
            f"{path} can be written by its group or by others, and is loaded as code",
            f"delete it, or if only this user has written there: chmod -R go-w {path}",
        )


def _open_folder() -> Path:
    """The folder, made where it is not there, and safe. Raises UnsafeError and OSError."""
    make_private(folder())
    for place in dict.fromkeys((cache_folder(), own_folder(), folder())):
        check_owner(place)
    return folder()


def stored_object(key: str) -> Path | None:
    """The object with this key where it is in the cache, whole and safe."""
    path = folder() / f"{key}.so"
    try:
        return path if _sound(path) is not None and _open_folder() else None
    except (OSError, UnsafeError):
        return None


def shared_object(key: str, toolchain: Toolchain, source: Source) -> tuple[Path, Facts]:
    """The object with this key and its facts, built from the C of `source` unless it is there.

    The C file is kept next to it. Raises DelianError when the compiler refuses it, or nothing can
    be written anywhere.
    """
    path = folder() / f"{key}.so"
    try:
        _open_folder()
        if (facts := _sound(path)) is not None:
            return path, facts
        with _lock(path.parent, key):
            if (facts := _sound(path)) is None:
                facts = _build(path, toolchain, source)
                if _is_due(path):
                    evict(keep=path)
        return path, facts
    except (OSError, NoSpaceError, UnsafeError) as error:
        return _elsewhere(path, toolchain, source, error)


def _sound(path: Path) -> Facts | None:
    """The facts of a program that is there, whole and safe; it counts as used."""
    try:
        check_owner(path)
        facts = artifact.read(path)
    except (OSError, UnsafeError, ArtifactError):
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
        place = temporary() / path.name
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
def temporary() -> Path:
    """A folder that goes with this process, for this user alone."""
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
        f"delian: compiled programs cannot be kept in {where} ({why}): they are built again for"
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

    made = source()
    with TemporaryDirectory(dir=path.parent, prefix=_SCRATCH) as scratch:
        c, output = Path(scratch) / "program.c", Path(scratch) / "program.so"
        c.write_text(made.text, encoding="utf-8")
        toolchain.compile(c, output)
        whole = Path(scratch) / "program.dlo"
        # For this user alone, whatever the umask and the linker say.
        opened = os.open(whole, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(opened, "wb") as file:
            file.write(artifact.sealed(output.read_bytes(), made.facts, made.constants))
            file.flush()
            os.fsync(file.fileno())
        c.replace(path.with_suffix(".c"))
        whole.replace(path)
    return made.facts


# ---------------------------------------------------------------- its size


@dataclass(frozen=True, slots=True)
class Kept:
    """A program in the cache."""

    key: str
    bytes: int
    """Size of the object and its C."""
    used_s: float
    """Unix time of its last use."""
    path: Path


def kept(*, workers: bool = False) -> list[Kept]:
    """What is in the cache, the last used first. workers: theirs too."""
    found = []
    for path in (p for place in _folders(workers) for p in place.glob("*.so")):
        with contextlib.suppress(OSError):  # another process may remove it
            stat, size = path.stat(), 0
            with contextlib.suppress(OSError):
                size = path.with_suffix(".c").stat().st_size
            found.append(Kept(path.stem, stat.st_size + size, stat.st_mtime, path))
    return sorted(found, key=lambda k: -k.used_s)


def _folders(workers: bool) -> list[Path]:
    return [folder(), *([cache_folder() / WORKERS / "native"] if workers else ())]


def bytes_max() -> int:
    """What the cache may take. Raises DelianError."""
    said = os.environ.get("DELIAN_CACHE_BYTES_MAX", "")
    if not said:
        return CACHE_BYTES_MAX
    if not said.isascii() or not said.isdigit():
        raise DelianError(f"DELIAN_CACHE_BYTES_MAX is {said!r}", "a number of bytes")
    return int(said)


def _is_due(path: Path) -> bool:
    """Whether the build of a program is one that looks for programs to remove.

    It is so with the probability of its bytes over 1/64 of the limit, drawn by its key: builds cost
    the same however many programs are kept, and no process has to know what others have built. The
    limit is exceeded by 1/64 of it on average, and by 1/4 once in exp(16) times.
    """
    size = path.stat().st_size + path.with_suffix(".c").stat().st_size
    return size * _SCANNED_PART << 32 > int(path.stem[:8], 16) * bytes_max()


def evict(limit: int | None = None, keep: Path | None = None) -> list[Kept]:
    """Removes least recently used programs beyond `limit` bytes, but `keep`, and gives them.

    It also removes what killed compilers left.
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
    """Removes all programs and what compilers left; gives the programs that are gone."""
    removed = [program for program in kept(workers=True) if _is_removed(program.path)]
    for place in _folders(workers=True):
        for path in [*place.glob("*.c"), *place.glob("lock-*")]:
            with contextlib.suppress(OSError):
                path.unlink()
    _remove_abandoned(_COMPILING_S)
    others = ("zig", "tuned", ANSWERS)
    for other in (*others, *(f"{WORKERS}/{name}" for name in others)):
        shutil.rmtree(cache_folder() / other, ignore_errors=True)
    return removed


def _is_removed(path: Path) -> bool:
    """Removes a program with its C; whether it is gone."""
    for file in (path, path.with_suffix(".c")):
        with contextlib.suppress(OSError):
            file.unlink()
    return not path.exists()


def _remove_abandoned(older_s: float) -> None:
    for scratch in (s for p in _folders(workers=True) for s in p.glob(f"{_SCRATCH}*")):
        with contextlib.suppress(OSError):
            if time.time() - scratch.stat().st_mtime > older_s:
                shutil.rmtree(scratch, ignore_errors=True)
