"""The walls around a worker process: what the operating system lets it do besides its limits.

    run       reads what it is given and the interpreter's own files, and nothing else; writes no
              file, starts no process and no thread, opens no socket
    compile   runs what the system has installed, and writes the folders that it is given; opens no
              socket, and changes no permissions

Landlock guards files, seccomp guards system calls. A kernel may lack either: then the process does
without and says so, or refuses to run where its owner demands both (`sandbox = "require"`).
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from ...common.errors import DelianError
from . import landlock, seccomp

#: "require": without walls nothing runs. "prefer": as many as the kernel has.
Sandbox = Literal["prefer", "require"]
#: What the interpreter, the C library and NumPy read while they run.
_SYSTEM = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/nix/store", "/gnu/store"),
    *("/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo", "/sys/devices/system/cpu"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/sys/vm/overcommit_memory"),
)
#: What a compiler is made of, wherever distributions put it.
_INSTALLED = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
#: Of Delian's own package: what workers import.
_PARTS = ("__init__.py", "__pycache__", "core", "device", "cloud")


def lacking() -> tuple[str, ...]:
    """The walls that this kernel lacks, by name."""
    found = []
    if not landlock.abi():
        found.append("landlock")
    if not seccomp.is_here():
        found.append("seccomp")
    return tuple(found)


def tell_lacking() -> None:
    """Logs once for each daemon what this kernel lacks."""
    if absent := lacking():
        import logging  # not in workers

        log = logging.getLogger("delian.sandbox")
        log.warning(
            "programs run in processes with limits only: this kernel has no %s",
            " and no ".join(absent),
            extra={"lacking": list(absent)},
        )


def check(demand: Sandbox) -> None:
    """Raises DelianError where walls are demanded that this kernel lacks."""
    if demand == "require" and (absent := lacking()):
        raise DelianError(
            f"programs must run in a sandbox, and this kernel has no {' and no '.join(absent)}",
            'use Linux 5.13 or newer with landlock enabled, or set sandbox = "prefer"',
        )


def confine_run(read: Iterable[str], demand: Sandbox = "prefer", own: int = 1) -> tuple[str, ...]:
    """Confines this process to running programs, for good; gives what is missing.

    read: files and folders that it may read besides the interpreter's. own: threads that call this
    before a program runs, each for itself, this one among them. Raises DelianError as `check`.
    """
    check(demand)
    absent, threads = lacking(), _threads()
    if threads > own and demand == "require":
        raise DelianError(
            f"{threads - own} threads were started before the program: landlock does not hold them",
            'let the data source start no threads, or set sandbox = "prefer"',
        )
    if landlock.abi():
        landlock.restrict([*_interpreter(), *_SYSTEM, *read], devices=_DEVICES)
    if (machine := seccomp.machine()) is not None and seccomp.is_here():
        seccomp.install(seccomp.compute(machine, os.getpid()))
    return (*absent, *(("threads",) if threads > own else ()))


def confine_compile(
    read: Iterable[str], write: Iterable[str], demand: Sandbox = "prefer"
) -> tuple[str, ...]:
    """Confines this process to compiling, for good; gives what is missing.

    read, write: files and folders. Raises DelianError as `check`.
    """
    check(demand)
    absent = lacking()
    if landlock.abi():
        programs = (*_interpreter(), *_INSTALLED, *_compiler())
        landlock.restrict([*_SYSTEM, "/proc/self", *read], write, programs, _DEVICES)
    if (machine := seccomp.machine()) is not None and seccomp.is_here():
        seccomp.install(seccomp.compiling(machine))
    return absent


def confine_server(read: Iterable[str], write: Iterable[str]) -> None:
    """Confines this process to serving, for good.

    What the system has installed it may run, `read` it may read, `write` it may change, and it
    opens no sockets besides those that listen already. Call it before threads are started.
    """
    if landlock.abi():
        programs = (*_interpreter(), *_INSTALLED, *_compiler())
        landlock.restrict([*_SYSTEM, *read], write, programs, _DEVICES)
    if (machine := seccomp.machine()) is not None and seccomp.is_here():
        seccomp.install(seccomp.serving(machine))


def _interpreter() -> list[str]:
    """Python, its packages, and of Delian what workers import."""
    package = Path(__file__).parents[3]
    places = [sys.prefix, sys.base_prefix, sys.exec_prefix, *(p for p in sys.path if p)]
    return [*places, *(str(package / part) for part in _PARTS)]


def _compiler() -> list[str]:
    """Where the compiler of $DELIAN_CC and those on the PATH are installed."""
    names = [*shlex.split(os.environ.get("DELIAN_CC", ""))[:1], "cc", "gcc", "clang"]
    found = (shutil.which(name) for name in names)
    return [str(Path(file).resolve().parent.parent) for file in found if file]


def _threads() -> int:
    try:
        return sum(1 for _ in Path("/proc/self/task").iterdir())
    except OSError:
        return 1
