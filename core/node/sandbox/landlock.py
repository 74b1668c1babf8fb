"""Landlock (Linux 5.13; landlock(7)): a process gives up all files but some, for good.

What a rule allows holds for a file, or for all beneath a folder. Handled here is every right that
the kernel knows: to open, list, make, remove, rename, truncate, run; since ABI 4 to bind and to
connect TCP, since ABI 5 device controls, since ABI 6 abstract sockets and signals to processes
outside. What stays possible: stat, chdir, and what seccomp must refuse (chmod, chown, utime).
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
import sys
from collections.abc import Iterable
from typing import Any

#: The same numbers on every machine (asm-generic/unistd.h).
_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38
#: LANDLOCK_ACCESS_FS_* (linux/landlock.h).
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REMOVE_AND_MAKE = 0x1FF0  # REMOVE_DIR, REMOVE_FILE, and seven MAKE_*
_REFER, _TRUNCATE, _DEVICE = 1 << 13, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _DEVICE
#: MAKE_REG, MAKE_DIR, MAKE_SYM, REMOVE_DIR, REMOVE_FILE: not devices, pipes or sockets.
_CHANGE = 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12


def abi() -> int:
    """The kernel's landlock ABI; 0: it has none, or it is switched off."""
    if not sys.platform.startswith("linux"):
        return 0
    found = _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))
    return max(found, 0)


def restrict(
    read: Iterable[str],
    write: Iterable[str] = (),
    run: Iterable[str] = (),
    devices: Iterable[str] = (),
) -> None:
    """Confines this thread, and all that it starts, to these files and devices.

    From now on it may read what is beneath `read`, read and change what is beneath `write`, read
    and run what is beneath `run`, and read and write the devices. Missing paths are left out.
    Raises OSError.
    """
    here = abi()
    handled = _handled(here)
    # Later fields are absent from older kernels: they take what they know, by its size.
    attributes = struct.pack("<Q", handled)
    if here >= 4:
        attributes += struct.pack("<Q", 0b11)  # BIND_TCP, CONNECT_TCP
    if here >= 6:
        attributes += struct.pack("<Q", 0b11)  # ABSTRACT_UNIX_SOCKET, SIGNAL
    held = ctypes.create_string_buffer(attributes, len(attributes))
    rules = _checked(_CREATE, held, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        reads = _READ | _LIST
        writes = reads | _WRITE | _CHANGE | _REFER | _TRUNCATE
        for paths, rights in (
            (read, reads),
            (write, writes),
            (run, reads | _EXECUTE),
            (devices, _READ | _WRITE),
        ):
            for path in paths:
                _allow(rules, path, rights & handled)
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _checked(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0))
    finally:
        os.close(rules)


def _handled(here: int) -> int:
    if here < 1:
        raise OSError(38, "the kernel has no landlock")
    handled = _EXECUTE | _WRITE | _READ | _LIST | _REMOVE_AND_MAKE
    for since, right in ((2, _REFER), (3, _TRUNCATE), (5, _DEVICE)):
        if here >= since:
            handled |= right
    return handled


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _OF_FILES
        rule = struct.pack("<Qi", rights, place)
        held = ctypes.create_string_buffer(rule, len(rule))
        _checked(_ADD, ctypes.c_int(rules), ctypes.c_int(_PATH_BENEATH), held, ctypes.c_uint32(0))
    finally:
        os.close(place)


def _checked(*arguments: Any) -> int:
    found = _call(*arguments)
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "landlock")
    return found


def _call(number: int, *arguments: Any) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return int(libc.syscall(ctypes.c_long(number), *arguments))
