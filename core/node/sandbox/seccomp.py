"""Filters of system calls: seccomp in its filter mode (Linux 3.17; seccomp(2)).

A filter is a program of the classic Berkeley Packet Filter that the kernel runs at each system
call. `compute` lists what is allowed and refuses the rest with EPERM; `compiling` and `serving`
list what is refused. A call of another architecture's table (as of 32-bit x86) ends the process.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Mapping, Sequence

from . import syscalls

_PR_SET_NO_NEW_PRIVS, _PR_GET_SECCOMP, _PR_SET_SECCOMP, _MODE_FILTER = 38, 21, 22, 2
#: BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_JMP|BPF_JGE|BPF_K, BPF_RET.
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38
#: Offsets in struct seccomp_data (linux/seccomp.h): the number, the architecture, arguments. These
#: are 64 bits each, little-endian on all machines of the table: the low half comes first.
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
#: From here on, x86-64 has the calls of its x32 ABI (__X32_SYSCALL_BIT): the same calls under other
#: numbers, which a list of refused numbers would miss.
_X32 = 0x40000000
#: What Python asks of a file: TCGETS, FIONREAD, FIONCLEX, FIOCLEX (asm-generic/ioctls.h).
_IOCTLS = (0x5401, 0x541B, 0x5450, 0x5451)
#: F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC. Not F_SETOWN, which has the kernel
#: send signals to other processes.
_FCNTLS = (0, 1, 2, 3, 4, 1030)

Instruction = tuple[int, int, int, int]


class _Filter(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def machine() -> str | None:
    """This machine, where its system calls are known.

    A 64-bit one that runs 64-bit Python, or ARM with 32 bits.
    """
    found = platform.machine().lower()
    if not sys.platform.startswith("linux") or sys.byteorder != "little":
        return None
    if found == "aarch64" and sys.maxsize < 2**32:
        found = "armv8l"  # 32-bit Python of a 64-bit kernel
    if found == "x86_64" and sys.maxsize < 2**32:
        return None
    return found if found in syscalls.MACHINES else None


def is_here() -> bool:
    """Whether this kernel filters system calls, and their numbers are known."""
    if machine() is None:
        return False
    return int(ctypes.CDLL(None).prctl(_PR_GET_SECCOMP, 0, 0, 0, 0)) >= 0


def compute(machine: str, pid: int) -> list[Instruction]:
    """The filter of a process that runs programs. pid: its own."""
    checked = syscalls.checked(machine)
    looked_at = {
        "fcntl": (1, _FCNTLS),
        "fcntl64": (1, _FCNTLS),
        "ioctl": (1, _IOCTLS),
        "prlimit64": (0, (0, pid)),
        "tgkill": (0, (pid,)),  # abort() sends itself a signal
    }
    rules = [rule for name, n in checked.items() for rule in _checked(n, *looked_at[name])]
    refused = syscalls.absent(machine)
    return [
        *_of(machine),
        *rules,
        *_each(refused, _ERRNO | _ENOSYS),
        *_each(syscalls.compute(machine), _ALLOW),
        (_RETURN, 0, 0, _ERRNO | _EPERM),
    ]


def compiling(machine: str) -> list[Instruction]:
    """The filter of a process that starts a compiler, and of all that it starts."""
    return _all_but(syscalls.not_compiling(machine), machine)


def serving(machine: str) -> list[Instruction]:
    """The filter of a server that compiles and runs programs. Its sockets listen before it."""
    return _all_but(syscalls.not_serving(machine), machine)


def _all_but(refused: Mapping[str, int], machine: str) -> list[Instruction]:
    return [*_of(machine), *_each(refused, _ERRNO | _EPERM), (_RETURN, 0, 0, _ALLOW)]


def install(instructions: Sequence[Instruction]) -> None:
    """This thread, and all that it starts, is filtered from now on. Raises OSError."""
    code = b"".join(struct.pack("<HBBI", *one) for one in instructions)
    held = ctypes.create_string_buffer(code, len(code))
    program = _Filter(len(instructions), ctypes.addressof(held))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
    for order in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(program), 0, 0),
    ):
        if prctl(*order):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), "seccomp")


def _of(machine: str) -> list[Instruction]:
    """Ends the process at a call of another machine's, or of x32; leaves the number loaded."""
    x32 = [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _KILL)] if machine == "x86_64" else []
    return [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, syscalls.MACHINES[machine][1]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        *x32,
    ]


def _each(numbers: Mapping[str, int], answer: int) -> list[Instruction]:
    """Two instructions a call: no jump is longer than the 255 that an instruction can hold."""
    return [
        one
        for number in numbers.values()
        for one in ((_EQUAL, 0, 1, number), (_RETURN, 0, 0, answer))
    ]


def _checked(number: int, argument: int, values: Sequence[int]) -> list[Instruction]:
    """Allows a call when the low half of an argument is one of the values, and refuses it else."""
    tests = [one for value in values for one in ((_EQUAL, 0, 1, value), (_RETURN, 0, 0, _ALLOW))]
    block = [
        (_LOAD, 0, 0, _ARGUMENTS + 8 * argument),
        *tests,
        (_RETURN, 0, 0, _ERRNO | _EPERM),
    ]
    return [(_EQUAL, 0, len(block), number), *block]
