"""The limits of a worker process, and how the operating system enforces them.

A compiled program is data that was verified, but no verifier can determine how long it runs; so the
process that runs it has limits that it cannot lift: memory, processor time, open files, no core
dumps. It ends with the agent that started it, runs when nothing else wants to, and is what the
kernel kills first when the machine is out of memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...common.errors import DelianError
from .walls import Sandbox

if TYPE_CHECKING:
    from ...compiler.verify import Limits as ProgramLimits

#: prctl(2).
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_MIB = 1 << 20
#: The most that a process can ask for (proc_pid_oom_score_adj(5)).
_FIRST_TO_GO = "1000"


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """What the owner of a machine gives to a worker process."""

    memory_mib: int = 2048
    """On top of what the interpreter takes; a program that would need more is refused."""
    compile_memory_mib: int = 2048
    """For compiling, likewise, for each process."""
    cpu_s: int = 3600
    """Processor seconds of one job."""
    wall_s: int = 3600
    """Seconds of one job by the clock, compiling included."""
    files: int = 128
    """Open files."""
    nice: int = 10
    """Added to the niceness."""
    sandbox: Sandbox = "prefer"
    """Whether a kernel without landlock or seccomp runs programs at all."""
    operations_max: int = 2**50
    """Arithmetic operations of one call of a program, as far as they can be derived from it."""

    def __post_init__(self) -> None:
        for name in ("memory_mib", "compile_memory_mib", "cpu_s", "wall_s", "operations_max"):
            if getattr(self, name) < 1:
                raise DelianError(f"worker.{name} is {getattr(self, name)}", "at least 1")
        if self.files < 32 or not 0 <= self.nice <= 19:
            raise DelianError("worker.files is at least 32 and worker.nice from 0 to 19")
        if self.sandbox not in ("prefer", "require"):
            raise DelianError(f"worker.sandbox is {self.sandbox!r}", "prefer or require")

    def of_programs(self) -> ProgramLimits:
        """What a program may ask for before it is compiled, and take before it is called."""
        from ...compiler.verify import (
            Limits as ProgramLimits,  # with all primitives: an agent has no use
        )

        return ProgramLimits.of_memory(self.memory_mib * _MIB, self.operations_max)

    def mapping(self, mapped_bytes: int) -> WorkerLimits:
        """What programs may ask for whose arguments are partly files that are mapped.

        These count where a program is verified; the process's own limits leave them out.
        """
        return replace(self, memory_mib=self.memory_mib + -(-mapped_bytes // _MIB))

    def to_json(self) -> dict[str, int | str]:
        return {name: getattr(self, name) for name in self.__slots__}


def die_with(parent: int) -> None:
    """This process is killed when `parent`, which started it, ends.

    Where the system cannot do that the end of its input stops it.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def hide_memory() -> None:
    """For a process that holds keys.

    No core dump, and on Linux no other process of this user can read its memory (ptrace(2),
    /proc/PID/mem).
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(what: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(what, value, 0, 0, 0)


class Limits:
    """The limits of this process. Made once, when everything is imported that will be.

    mapped: bytes of files that it will map to read them, and how many these are. They take address
    space and open files, and no memory that the system cannot take back.
    """

    def __init__(self, given: WorkerLimits, mapped: tuple[int, int] = (0, 0)) -> None:
        self._given = given
        self._memory_mib, self._cpu_s = given.memory_mib, given.cpu_s
        self._base = _address_space() + mapped[0]
        os.nice(given.nice)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO, encoding="ascii")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _lower(resource.RLIMIT_NOFILE, given.files + mapped[1])
        most = max(given.memory_mib, given.compile_memory_mib) * _MIB + self._base
        _lower(resource.RLIMIT_AS, most, hard=most)

    def of_job(self, memory_mib: int = 0, cpu_s: int = 0) -> None:
        """The next job begins: its processor time is counted from here.

        Its limits are what the signer of its bundle allows. Zero, or more than the owner gives:
        what the owner gives.
        """
        given = self._given
        self._memory_mib = min(memory_mib or given.memory_mib, given.memory_mib)
        self._cpu_s = min(cpu_s or given.cpu_s, given.cpu_s)
        self._seconds()

    def compiling(self) -> None:
        """A compiler may be started."""
        _lower(resource.RLIMIT_AS, self._base + self._given.compile_memory_mib * _MIB)
        self._seconds()

    def running(self) -> None:
        """Forbids starting processes from now on.

        The superuser alone can, where the kernel lacks seccomp: the system does not hold it to that
        limit.
        """
        _lower(resource.RLIMIT_AS, self._base + self._memory_mib * _MIB)
        _lower(resource.RLIMIT_NPROC, 0, hard=0)

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
