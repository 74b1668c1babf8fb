"""What a training process may take, and how the operating system is told.

A compiled program is data that was verified, but nobody can tell from a program how long it runs;
so the process that runs it has limits that it cannot lift: memory, processor time, open files, no
core dumps. It dies with the agent that started it, and runs when nothing else wants to.

Memory and new processes are bounded by soft limits, which differ between compiling (which starts
the C compiler) and running (which starts nothing).
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ..core.data.sources import DataSettings
from ..core.errors import DelianError

#: prctl(2).
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What the owner gives to training.

    memory_mib: on top of what the interpreter takes; also what the device tells a run that it has.
    compile_memory_mib: for compiling, likewise, for each process. cpu_s: processor seconds of one
    job. wall_s: seconds of one job by the clock, compiling included. files: open files. nice: added
    to the niceness. backend: "native" or "reference". artifacts: files of `delian build`,
    whose programs are not compiled here.
    """

    data: DataSettings = field(default_factory=DataSettings)
    memory_mib: int = 2048
    compile_memory_mib: int = 2048
    cpu_s: int = 3600
    wall_s: int = 3600
    files: int = 128
    nice: int = 10
    backend: Literal["native", "reference"] = "native"
    artifacts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("memory_mib", "compile_memory_mib", "cpu_s", "wall_s"):
            if getattr(self, name) < 1:
                raise DelianError(f"worker.{name} is {getattr(self, name)}", "at least 1")
        if self.files < 32 or not 0 <= self.nice <= 19:
            raise DelianError("worker.files is at least 32 and worker.nice from 0 to 19")

    def to_json(self) -> dict[str, Any]:
        fields = {n: getattr(self, n) for n in self.__slots__ if n != "data"}
        return {**fields, "data": {n: getattr(self.data, n) for n in self.data.__slots__}}

    @classmethod
    def from_json(cls, said: dict[str, Any]) -> WorkerSettings:
        given = dict(said["data"])
        for name in ("columns", "classes"):
            given[name] = tuple(given[name])
        made = {**said, "artifacts": tuple(said["artifacts"]), "data": DataSettings(**given)}
        return cls(**made)


def die_with(parent: int) -> None:
    """This process is killed when `parent`, which started it, ends. Where the system cannot do that
    the end of its input tells it.
    """
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


class Limits:
    """The limits of this process. Made once, when everything is imported that will be."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._memory_mib, self._cpu_s = settings.memory_mib, settings.cpu_s
        self._base = _address_space()
        os.nice(settings.nice)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _lower(resource.RLIMIT_NOFILE, settings.files)
        most = max(settings.memory_mib, settings.compile_memory_mib) * _MIB + self._base
        _lower(resource.RLIMIT_AS, most, hard=most)

    def of_job(self, memory_mib: int, cpu_s: int) -> None:
        """What the next job was allowed by whoever signed its bundle; zero, or more than the owner
        gives: what the owner gives.
        """
        settings = self._settings
        self._memory_mib = min(memory_mib or settings.memory_mib, settings.memory_mib)
        self._cpu_s = min(cpu_s or settings.cpu_s, settings.cpu_s)

    def compiling(self) -> None:
        """A compiler may be started."""
        _lower(resource.RLIMIT_AS, self._base + self._settings.compile_memory_mib * _MIB)
        _lower(resource.RLIMIT_NPROC, None)
        self._seconds()

    def running(self) -> None:
        """Nothing may be started any more (the superuser alone can: the system does not hold it to
        that limit).
        """
        _lower(resource.RLIMIT_AS, self._base + self._memory_mib * _MIB)
        _lower(resource.RLIMIT_NPROC, 0)
        self._seconds()

    def _seconds(self) -> None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        spent = int(used.ru_utime + used.ru_stime) + 1
        _lower(resource.RLIMIT_CPU, spent + self._cpu_s)


def _lower(which: int, soft: int | None, *, hard: int | None = None) -> None:
    """Sets a soft limit below the hard one; None: as high as that."""
    top = resource.getrlimit(which)[1]
    if hard is not None and (top == resource.RLIM_INFINITY or hard < top):
        top = hard
    if soft is None or (top != resource.RLIM_INFINITY and soft > top):
        soft = top
    resource.setrlimit(which, (soft, top))


def _address_space() -> int:
    """Bytes of address space that this process has taken."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        return 1 << 30  # more than the interpreter and NumPy take anywhere
    return pages * resource.getpagesize()
