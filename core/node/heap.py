"""Has the C library keep memory that was freed, for a process through which large messages pass.

glibc gives a block of a MiB back to the system when it is freed, or soon after, and takes pages for
the next one. The system must clear them first and put them in one by one, and that costs several
times what the copy does for which the block was made.
"""

from __future__ import annotations

import ctypes
import sys

#: Parameters of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -2, -3, -8
#: Larger blocks still come from the system, each by itself: the most that glibc takes.
MMAP_BYTES = 32 * 2**20
#: So much may be free at the end of the heap before it is given back.
TRIM_BYTES = 256 * 2**20
#: So much more than it needs the heap takes at a time. Pages that nobody touches are no memory.
PAD_BYTES = 16 * 2**20
#: Heaps for threads: few, so that what one has freed is there for the others.
ARENAS = 2


def keep_freed_memory() -> bool:
    """For the whole process, from now on; early, for heaps that are there stay. False: this C
    library has no such settings (macOS, musl, Windows).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    wanted = (
        (_MMAP_THRESHOLD, MMAP_BYTES),
        (_TRIM_THRESHOLD, TRIM_BYTES),
        (_TOP_PAD, PAD_BYTES),
        (_ARENA_MAX, ARENAS),
    )
    taken = [mallopt(name, value) == 1 for name, value in wanted]
    return all(taken)
